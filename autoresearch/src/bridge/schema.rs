//! JSON schemas (2020-12) of the messages.

use serde_json::{Value as Json, json};

use super::{MOST_CANDIDATES, VERSION};
use crate::space::Space;

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Of one candidate. With a space its knobs are described one by one; a tool that serves several spaces has none.
pub fn candidate_schema(space: Option<&Space>) -> Json {
    let knobs = match space {
        Some(space) => space.schema(),
        None => json!({
            "type": "object",
            "additionalProperties": { "type": ["integer", "string", "null"] },
        }),
    };
    json!({
        "type": "object",
        "properties": {
            "knobs": knobs,
            "parent": {
                "type": ["string", "null"], "pattern": "^[0-9a-f]{16}$",
                "description": "id of the candidate it was made from",
            },
            "note": {
                "type": ["string", "null"], "maxLength": 2000,
                "description": "why, in your own words; kept in the journal, believed by nobody",
            },
        },
        "required": ["knobs"],
        "additionalProperties": false,
    })
}

/// Of what an agent may say.
pub fn from_agent_schema(space: Option<&Space>) -> Json {
    let version = json!({ "const": VERSION });
    let id = json!({ "type": "integer", "minimum": 0, "description": "the id of the open ask" });
    json!({
        "$schema": DIALECT,
        "title": "amk autoresearch: from an agent",
        "oneOf": [
            {
                "type": "object",
                "properties": {
                    "v": version, "type": { "const": "propose" }, "id": id,
                    "candidates": {
                        "type": "array", "items": candidate_schema(space),
                        "minItems": 1, "maxItems": MOST_CANDIDATES,
                    },
                },
                "required": ["v", "type", "id", "candidates"],
                "additionalProperties": false,
            },
            {
                "type": "object",
                "properties": {
                    "v": version, "type": { "const": "done" }, "id": id,
                    "reason": { "type": "string" },
                },
                "required": ["v", "type", "id", "reason"],
                "additionalProperties": false,
            },
        ],
    })
}

fn fault_schema() -> Json {
    let text = json!({ "type": "string" });
    json!({
        "type": "object",
        "properties": { "code": text, "message": text, "at": text, "fix": text },
        "required": ["code", "message", "at", "fix"],
    })
}

/// Of what amk says to an agent.
pub fn to_agent_schema() -> Json {
    let version = json!({ "const": VERSION });
    let whole = json!({ "type": "integer", "minimum": 0 });
    let number = json!({ "type": ["number", "null"] });
    let point = json!({ "type": "object" });
    let text = json!({ "type": "string" });
    let faults = json!({ "type": "array", "items": fault_schema() });
    let message = |kind: &str, fields: Json| {
        let mut properties = json!({ "v": version, "type": { "const": kind } });
        let mut required = vec![json!("v"), json!("type")];
        if let (Some(to), Some(from)) = (properties.as_object_mut(), fields.as_object()) {
            for (name, schema) in from {
                required.push(json!(name));
                to.insert(name.clone(), schema.clone());
            }
        }
        json!({ "type": "object", "properties": properties, "required": required })
    };
    json!({
        "$schema": DIALECT,
        "title": "amk autoresearch: to an agent",
        "oneOf": [
            message("hello", json!({
                "amk": text, "space": point, "knobs_schema": point, "answer_schema": point,
            })),
            message("ask", json!({
                "id": whole, "count": whole, "seed": whole, "trials": whole,
                "incumbent": point, "incumbent_us": number,
            })),
            message("trial", json!({
                "index": whole, "id": text, "source": text, "parent": { "type": ["string", "null"] },
                "knobs": point, "verdict": text, "kept": { "type": "boolean" }, "us": number,
                "predicted": { "type": "boolean" }, "speedup": { "type": ["object", "null"] },
                "faults": faults, "replayed": { "type": "boolean" },
            })),
            message("error", json!({ "id": whole, "faults": faults, "attempts_left": whole })),
            message("bye", json!({ "reason": text })),
        ],
    })
}
