//! Events as the JSON that chrome://tracing and Perfetto read (Trace Event Format: complete events, times in
//! microseconds, one thread per SM).

use serde_json::{Value, json};

use super::Timeline;

/// The document. Waiting and computing are events of their own; idle time is where there is none.
pub fn chrome(timeline: &Timeline, name: &str) -> Value {
    let mut events = vec![json!({
        "ph": "M", "pid": 0, "name": "process_name", "args": { "name": name },
    })];
    for sm in 0..timeline.sms {
        let args = json!({ "name": format!("SM {sm}") });
        events.push(json!({ "ph": "M", "pid": 0, "tid": sm, "name": "thread_name", "args": args }));
        let args = json!({ "sort_index": sm });
        events.push(
            json!({ "ph": "M", "pid": 0, "tid": sm, "name": "thread_sort_index", "args": args }),
        );
    }
    for e in &timeline.events {
        let parts = [("wait", e.begin, e.ready), ("compute", e.ready, e.end)];
        for (category, from, to) in parts {
            if to <= from {
                continue;
            }
            let name = match category {
                "wait" => format!("wait: {}", e.op),
                _ => e.op.to_owned(),
            };
            events.push(json!({
                "ph": "X", "pid": 0, "tid": e.sm, "cat": category, "name": name,
                "ts": from, "dur": to - from,
                "args": { "instruction": e.instruction, "queue_index": e.queue_index, "writes": e.what },
            }));
        }
    }
    json!({ "displayTimeUnit": "ns", "traceEvents": events })
}
