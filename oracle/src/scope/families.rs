//! The families of the scope, in three sizes.

use super::Object::{Counter, None, Packet};
use super::RunKind::{Kv, Weight};
use super::{Family, RunKind, Stream};

const NO_STREAM: Stream = Stream { runs: &[], slots: 1 };

/// Up to three chunks in up to three runs, through one or two slots.
const WEIGHTS: &[(&str, &[RunKind])] = &[
    ("ring-1", &[Weight(1)]),
    ("ring-2", &[Weight(2)]),
    ("ring-3", &[Weight(3)]),
    ("ring-1-1", &[Weight(1), Weight(1)]),
    ("ring-1-2", &[Weight(1), Weight(2)]),
    ("ring-2-1", &[Weight(2), Weight(1)]),
    ("ring-1-1-1", &[Weight(1), Weight(1), Weight(1)]),
];

/// Cache rows behind a gate: all of the past or all but the newest, in one or two runs, also after weights.
const CACHES: &[(&str, &[RunKind])] = &[
    ("gate-1", &[Kv { chunks: 1, back: 0, gate: 1 }]),
    ("gate-2", &[Kv { chunks: 1, back: 0, gate: 2 }]),
    ("gate-2-old", &[Kv { chunks: 1, back: 1, gate: 2 }]),
    ("gate-1-three", &[Kv { chunks: 3, back: 0, gate: 1 }]),
    ("gate-2-three", &[Kv { chunks: 3, back: 0, gate: 2 }]),
    ("gate-1-then-2", &[Kv { chunks: 1, back: 0, gate: 1 }, Kv { chunks: 1, back: 0, gate: 2 }]),
    ("gate-2-then-1", &[Kv { chunks: 1, back: 0, gate: 2 }, Kv { chunks: 1, back: 0, gate: 1 }]),
    ("gate-after-weights", &[Weight(1), Kv { chunks: 1, back: 0, gate: 2 }]),
    ("gate-before-weights", &[Kv { chunks: 2, back: 0, gate: 2 }, Weight(1)]),
];

/// How much of the scope.
///
/// `0`: seconds, for tests. `1`: a minute or two. `2`: the whole scope.
pub fn families(size: usize) -> Vec<Family> {
    let size = size.min(2);
    let base = Family {
        name: "",
        objects: [None, None],
        regions: 0,
        stream: NO_STREAM,
        cache: false,
        phases: 1,
        tags: 2,
        instructions: 4,
        each: 8,
        marks: 0,
    };
    let family = |name, objects, regions, phases, tags, marks: [u32; 3]| Family {
        name,
        objects,
        regions,
        phases,
        tags,
        marks: marks[size],
        ..base
    };
    let mut all = vec![
        family("one counter, one region", [Counter, None], 1, 1, 2, [6, 7, 8]),
        family("one counter, two regions", [Counter, None], 2, 1, 2, [6, 7, 8]),
        family("two counters, one region", [Counter, Counter], 1, 1, 2, [6, 7, 8]),
        family("two counters, two regions", [Counter, Counter], 2, 1, 2, [6, 7, 8]),
        family("a packet, two regions", [Packet, None], 2, 1, 2, [6, 7, 8]),
        family("a packet in two phases", [Packet, None], 0, 2, 2, [8, 10, 16]),
        family("a packet in two phases, three tags", [Packet, None], 0, 2, 3, [8, 10, 16]),
        family("a packet in two phases, one region", [Packet, None], 1, 2, 3, [6, 7, 8]),
        family("a counter and a packet, one region", [Counter, Packet], 1, 1, 2, [6, 7, 8]),
        family("a counter and a packet, two regions", [Counter, Packet], 2, 1, 2, [6, 7, 8]),
        family("a counter and a packet in two phases", [Counter, Packet], 0, 2, 3, [6, 7, 8]),
        family("a counter and two phases of two tags", [Counter, Packet], 0, 2, 2, [6, 7, 8]),
        family("a counter, two phases, one region", [Counter, Packet], 1, 2, 3, [5, 6, 8]),
        family("two packets, one region", [Packet, Packet], 1, 1, 2, [6, 7, 8]),
        family("two packets in two phases", [Packet, Packet], 0, 2, 3, [6, 7, 8]),
    ];
    for (name, runs) in WEIGHTS {
        for slots in [1, 2] {
            let stream = Stream { runs, slots };
            let marks = runs.len() as u32 + [3, 4, 5][size];
            let with =
                |objects, regions, marks| Family { name, objects, regions, stream, marks, ..base };
            all.push(with([Counter, None], 1, marks));
            all.push(with([Packet, None], 1, marks));
        }
    }
    for (name, runs) in CACHES {
        for slots in [1, 2] {
            let stream = Stream { runs, slots };
            let marks = runs.len() as u32 + [3, 4, 5][size];
            all.push(Family { name, objects: [Counter, None], stream, cache: true, marks, ..base });
        }
    }
    all
}
