//! Faults planted in packed tables change what they say they change, and nothing else.

use amk::engine::{Tampered, tamper};
use amk::lower::{EdgeKind, Edges, Knobs, Mode, Shape, lower};
use amk::target::resolve;
use amk_models::Checkpoint;
use amk_schedule_ir::Bucket;
use amk_validator::{Validated, validate};

fn program(edges: Edges) -> Validated<amk_schedule_ir::Program> {
    let shape = Shape::of(&Checkpoint::embedded().unwrap());
    let target = resolve("h200").unwrap().target;
    let knobs = Knobs { edges, grid: Some(9), ..Knobs::default() };
    let bucket = Bucket { first: 0, last: 255 };
    let low = lower(&shape, &target, &knobs, bucket, Mode::Bf16).unwrap();
    validate(low.program, &target).unwrap()
}

#[test]
fn a_signal_a_packet_and_an_arrival_can_be_taken_away() {
    let c = EdgeKind::Counter;
    let counters = Edges { hidden: c, qkv: c, attention: c, act: c, partial: c };
    let (packets, counters) = (program(Edges::default()), program(counters));
    let table = |p: &Validated<_>| amk::codegen::tables(p).unwrap().bytes;
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());

    let bytes = table(&counters);
    let change = tamper(&counters, &bytes, Tampered::Signal).unwrap();
    assert_eq!((word(&bytes, change.at), change.word), (1, 0), "{change:?}");
    assert!(change.what.contains("signals"), "{change:?}");
    assert_eq!(tamper(&packets, &table(&packets), Tampered::Signal), None);

    let bytes = table(&packets);
    let change = tamper(&packets, &bytes, Tampered::Packet).unwrap();
    assert!(word(&bytes, change.at) < 64, "an op's number");
    assert!(change.what.contains("attention"), "{change:?}");
    assert_eq!(tamper(&counters, &table(&counters), Tampered::Packet), None);

    let change = tamper(&packets, &bytes, Tampered::Boundary).unwrap();
    assert!(change.what.contains("boundary of sm 8"), "{change:?}");
    // The record is that of the last instruction of the last SM.
    let count: usize = packets.sms.iter().map(|s| s.queue.len()).sum();
    assert_eq!(change.at, word(&bytes, 0) as usize + (count - 1) * 128);
    assert_eq!(tamper(&packets, &[], Tampered::Boundary), None);
}
