//! The parameters of the simulation, one record per part and kernel.

use std::collections::BTreeMap;

use amk_schedule_ir::{Op, Target};
use serde::{Deserialize, Serialize};

/// Version of the record's form.
pub const CALIBRATION_FORMAT: u32 = 2;

/// The chunks that costs by their bytes were measured with.
pub const CHUNK_BYTES: f64 = 16_384.0;

/// What an op costs, cycles of the part's clock unless said otherwise. `warps` are the consumer warps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OpCost {
    /// From the input to the first product, and whatever else every instruction of the op pays.
    pub fixed: f64,
    /// More of it for each consumer warp.
    pub per_warp: f64,
    /// Consuming 1,024 bytes of chunks, whatever the warps.
    pub per_kb: f64,
    /// Consuming 1,024 bytes of chunks by one warp; the warps share it.
    pub per_kb_warp: f64,
    /// From the last product to the sums of a group of tiles, and their publication.
    pub group: f64,
    /// One past position of one query head by one warp; the warps share it.
    pub per_position: f64,
    /// One past position of each query head of the instruction beyond the first, by one warp.
    pub per_position_head: f64,
    /// One split that a merge combines.
    pub per_split: f64,
}

/// Where parameters come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// The device, or `assumed`.
    pub device: String,
    /// The kernel whose instructions were stamped.
    pub kernel: String,
    /// What was measured, and how the parameters follow from it.
    pub from: Vec<String>,
    /// Were they fitted to measurements on that part?
    pub measured: bool,
}

/// The parameters for one part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// See [`CALIBRATION_FORMAT`].
    pub format: u32,
    /// Name of the record.
    pub name: String,
    /// Name of the target record it is for.
    pub target: String,
    pub provenance: Provenance,
    /// Clock of the SMs while the kernel runs, MHz.
    pub clock_mhz: f64,
    /// Part of the target's bandwidth that a stream without waits reaches, at most 1.
    pub stream_efficiency: f64,
    /// From the issue of a chunk to its landing when nothing else is in flight, ns.
    pub stream_latency_ns: f64,
    /// How far the latency of the nearest and the farthest SM lies from that, as a part of it.
    pub latency_spread: f64,
    /// Most one SM reads through its stream, GB/s.
    pub sm_gbps: f64,
    /// From a store of a packet, or a signal, until others can see it, ns.
    pub store_ns: f64,
    /// How much later the last of `n` writers is there than a usual one, per `ln(1 + n)`, ns: the largest of `n`
    /// exponential delays grows like that.
    pub tail_ns: f64,
    /// A round of loads from the L2 cache, ns.
    pub load_ns: f64,
    /// What a counter adds to its two hops, ns.
    pub counter_ns: f64,
    /// Part of the memory's queue that a hop, and a round of loads, waits for.
    pub queue_share: f64,
    /// How much longer the memory serves a chunk that is issued while its SM polls for input, as a part of the time.
    pub poll_share: f64,
    /// What all SMs together read of published values, GB/s.
    pub l2_gbps: f64,
    /// What one SM reads of them at most, GB/s.
    pub sm_l2_gbps: f64,
    /// From the last arrival at the boundary until every SM has left it, ns.
    pub boundary_ns: f64,
    /// Launch of a kernel to the first instruction, ns.
    pub launch_ns: f64,
    /// From an instruction's end to the next one's begin, cycles.
    pub dispatch: f64,
    /// What a chunk costs its consumers beside its bytes, cycles: a look at its barrier and a release. The costs by 1,024
    /// bytes are those of chunks of [`CHUNK_BYTES`] and have theirs in them.
    pub chunk: f64,
    /// By name of the op; ops without an entry cost nothing but their waits and reads.
    pub ops: BTreeMap<String, OpCost>,
}

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    #[error("the calibration is not of its form: {0}; compare it with a shipped one")]
    Json(#[from] serde_json::Error),
    #[error("the calibration has format {found}; this amk reads format {CALIBRATION_FORMAT}")]
    Format { found: u32 },
    #[error("{field} of the calibration is {value}; it must be {expected}")]
    Field { field: String, value: f64, expected: &'static str },
    #[error("the calibration has costs of an op {name:?} that does not exist; the ops are {known}")]
    Op { name: String, known: String },
}

const SHIPPED: &[&str] = &[include_str!("data/h200.json")];

impl Calibration {
    /// Reads a record.
    ///
    /// # Errors
    /// It is not of the form, or a parameter is out of range.
    pub fn parse(text: &str) -> Result<Calibration, CalibrationError> {
        let record: Calibration = serde_json::from_str(text)?;
        record.check()?;
        Ok(record)
    }

    /// The records shipped with amk.
    pub fn shipped() -> Vec<Calibration> {
        // A test asserts that each parses, so none is lost here.
        SHIPPED.iter().filter_map(|text| Calibration::parse(text).ok()).collect()
    }

    /// The record of a part, or else the first there is, which then says that it is assumed.
    pub fn for_target(target: &Target) -> Calibration {
        let shipped = Calibration::shipped();
        match shipped.iter().find(|c| c.target == target.name) {
            Some(record) => record.clone(),
            None => {
                shipped.into_iter().next().map_or_else(Calibration::ideal, |c| c.assumed(target))
            }
        }
    }

    /// The same parameters for a part nobody has measured.
    fn assumed(mut self, target: &Target) -> Calibration {
        self.provenance.from =
            vec![format!("nothing was measured on {}: parameters of {}", target.name, self.name)];
        self.provenance.device = "assumed".to_owned();
        self.provenance.measured = false;
        self.name = format!("{} as if it were {}", target.name, self.target);
        self.target = target.name.clone();
        self
    }

    /// Parameters by which nothing but reading takes time.
    pub fn ideal() -> Calibration {
        Calibration {
            format: CALIBRATION_FORMAT,
            name: "ideal".to_owned(),
            target: String::new(),
            provenance: Provenance {
                device: "assumed".to_owned(),
                kernel: "none".to_owned(),
                from: vec!["nothing takes time but reading".to_owned()],
                measured: false,
            },
            clock_mhz: 1000.0,
            stream_efficiency: 1.0,
            stream_latency_ns: 0.0,
            latency_spread: 0.0,
            sm_gbps: 1e6,
            store_ns: 0.0,
            tail_ns: 0.0,
            load_ns: 0.0,
            counter_ns: 0.0,
            queue_share: 0.0,
            poll_share: 0.0,
            l2_gbps: 1e9,
            sm_l2_gbps: 1e9,
            boundary_ns: 0.0,
            launch_ns: 0.0,
            dispatch: 0.0,
            chunk: 0.0,
            ops: BTreeMap::new(),
        }
    }

    /// Nanoseconds of one cycle.
    pub fn cycle_ns(&self) -> f64 {
        1e3 / self.clock_mhz
    }

    fn check(&self) -> Result<(), CalibrationError> {
        if self.format != CALIBRATION_FORMAT {
            return Err(CalibrationError::Format { found: self.format });
        }
        let field = |field: &str, value: f64, expected| {
            Err(CalibrationError::Field { field: field.to_owned(), value, expected })
        };
        let rates = [
            ("clock_mhz", self.clock_mhz),
            ("sm_gbps", self.sm_gbps),
            ("l2_gbps", self.l2_gbps),
            ("sm_l2_gbps", self.sm_l2_gbps),
        ];
        for (name, value) in rates {
            if !(value.is_finite() && value > 0.0) {
                return field(name, value, "finite and more than 0");
            }
        }
        if !(self.stream_efficiency > 0.0 && self.stream_efficiency <= 1.0) {
            return field("stream_efficiency", self.stream_efficiency, "more than 0, at most 1");
        }
        if !(0.0..=1.0).contains(&self.latency_spread) {
            return field("latency_spread", self.latency_spread, "from 0 to 1");
        }
        let times = [
            ("stream_latency_ns", self.stream_latency_ns),
            ("store_ns", self.store_ns),
            ("tail_ns", self.tail_ns),
            ("load_ns", self.load_ns),
            ("counter_ns", self.counter_ns),
            ("queue_share", self.queue_share),
            ("poll_share", self.poll_share),
            ("boundary_ns", self.boundary_ns),
            ("launch_ns", self.launch_ns),
            ("dispatch", self.dispatch),
            ("chunk", self.chunk),
        ];
        for (name, value) in times {
            if !(value.is_finite() && value >= 0.0) {
                return field(name, value, "finite and at least 0");
            }
        }
        for (op, c) in &self.ops {
            if !Op::NAMES.contains(&op.as_str()) {
                let known = Op::NAMES.join(", ");
                return Err(CalibrationError::Op { name: op.clone(), known });
            }
            let costs = [
                ("fixed", c.fixed),
                ("per_warp", c.per_warp),
                ("per_kb", c.per_kb),
                ("per_kb_warp", c.per_kb_warp),
                ("group", c.group),
                ("per_position", c.per_position),
                ("per_position_head", c.per_position_head),
                ("per_split", c.per_split),
            ];
            for (name, value) in costs {
                if !(value.is_finite() && value >= 0.0) {
                    return field(&format!("{op}.{name}"), value, "finite and at least 0");
                }
            }
        }
        Ok(())
    }
}
