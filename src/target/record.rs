//! Target records: reading, validating, and finding one by name.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use amk_schedule_ir::Target;
use amk_schedule_ir::unique::Unique;
use serde_json::{Map, Value};

use super::arch::{Arch, Variant};
use super::device::features_of;

/// The version of the record format that this program reads and writes.
pub const RECORD_FORMAT: u64 = 1;

/// A record as its file has it.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The part.
    pub target: Target,
    /// Other names a user may give it.
    pub aliases: Vec<String>,
}

/// One field of a record that is missing or wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldFault {
    /// The field, such as `sm_count` or `features.wgmma`.
    pub field: String,
    /// What is wrong with it.
    pub message: String,
}

impl std::fmt::Display for FieldFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

fn join(faults: &[FieldFault]) -> String {
    let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
    lines.join("; ")
}

/// Why there is no target.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The file cannot be read.
    #[error("cannot read the target record {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The file is not JSON, or no object.
    #[error("the target record {origin} is no JSON object: {reason}")]
    Json {
        /// File or part.
        origin: String,
        /// The parser's reason.
        reason: String,
    },
    /// The file is of another version.
    #[error("the target record {origin} has format {found}; this amk reads format {RECORD_FORMAT}")]
    Format {
        /// File or part.
        origin: String,
        /// The version it states.
        found: String,
    },
    /// Fields are missing or wrong.
    #[error("the target record {origin} is not valid: {}", join(.faults))]
    Fields {
        /// File or part.
        origin: String,
        /// All faults.
        faults: Vec<FieldFault>,
    },
    /// No shipped record has that name.
    #[error(
        "no target is called \"{name}\"; known are {known} (or describe another part with --target-file FILE)"
    )]
    Unknown {
        /// The name as given.
        name: String,
        /// Names of shipped records.
        known: String,
    },
}

const DATA: [&str; 9] = [
    include_str!("data/a100.json"),
    include_str!("data/rtx3090.json"),
    include_str!("data/a40.json"),
    include_str!("data/rtx4090.json"),
    include_str!("data/l40s.json"),
    include_str!("data/h200.json"),
    include_str!("data/h100.json"),
    include_str!("data/b200.json"),
    include_str!("data/rtx5090.json"),
];

/// All shipped records; the first of each architecture is that architecture's default.
pub fn records() -> &'static [Record] {
    static RECORDS: OnceLock<Vec<Record>> = OnceLock::new();
    RECORDS.get_or_init(|| {
        // A test asserts that each shipped file parses, so none is lost here.
        DATA.iter().filter_map(|text| parse_record(text, "shipped with amk").ok()).collect()
    })
}

/// One target per shipped architecture, in the order of [`super::DEFAULT_ARCHS`].
pub fn default_targets() -> Vec<Target> {
    super::DEFAULT_ARCHS.iter().filter_map(|arch| Some(by_arch(*arch)?.target.clone())).collect()
}

fn by_arch(arch: Arch) -> Option<&'static Record> {
    records().iter().find(|r| r.target.sm.parse() == Ok(arch))
}

/// A target found by name, and a sentence when it is not literally what was asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    /// The target.
    pub target: Target,
    /// Set when another spelling was meant, such as `sm_90` for `sm_90a`.
    pub notice: Option<String>,
}

/// Finds a shipped target by architecture (`sm_90a`, `9.0a`, `90a`), record name (`h200`) or alias
/// (`hopper`), in either case.
///
/// # Errors
/// [`TargetError::Unknown`], listing what there is.
pub fn resolve(name: &str) -> Result<Resolved, TargetError> {
    let wanted = canonical(name);
    let found = |record: &Record, notice| Resolved { target: record.target.clone(), notice };
    if let Some(record) = records().iter().find(|r| {
        canonical(&r.target.name) == wanted || r.aliases.iter().any(|a| canonical(a) == wanted)
    }) {
        return Ok(found(record, None));
    }
    if let Ok(arch) = name.parse::<Arch>() {
        if let Some(record) = by_arch(arch) {
            return Ok(found(record, None));
        }
        let other_letter = [Variant::Specific, Variant::Plain]
            .into_iter()
            .find_map(|variant| by_arch(Arch::new(arch.number, variant)));
        if let Some(record) = other_letter {
            let notice = format!("{arch} is compiled as {}", record.target.sm);
            return Ok(found(record, Some(notice)));
        }
    }
    let mut known: Vec<&str> = Vec::new();
    for record in records() {
        if !known.contains(&record.target.sm.as_str()) {
            known.push(&record.target.sm);
        }
    }
    known.extend(records().iter().map(|r| r.target.name.as_str()));
    Err(TargetError::Unknown { name: name.to_owned(), known: known.join(", ") })
}

/// Part names without the separators people put differently: `RTX 4090`, `rtx-4090`, `rtx4090`.
fn canonical(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, ' ' | '-' | '_')).map(|c| c.to_ascii_lowercase()).collect()
}

/// Loads the record of `--target-file`.
///
/// # Errors
/// [`TargetError`], naming each field that is missing or wrong.
pub fn load_target_file(path: &Path) -> Result<Target, TargetError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| TargetError::Read { path: path.to_owned(), source })?;
    Ok(parse_record(&text, &path.display().to_string())?.target)
}

/// Writes a target as a record that [`load_target_file`] reads.
pub fn to_record_json(target: &Target) -> String {
    let mut map = Map::new();
    map.insert("format".into(), RECORD_FORMAT.into());
    if let Ok(Value::Object(fields)) = serde_json::to_value(target) {
        map.extend(fields);
    }
    format!("{:#}\n", Value::Object(map))
}

/// Parses and validates a record. `origin` names it in errors.
///
/// # Errors
/// [`TargetError`], naming each field that is missing or wrong.
pub fn parse_record(text: &str, origin: &str) -> Result<Record, TargetError> {
    let json = |reason: String| TargetError::Json { origin: origin.to_owned(), reason };
    if text.starts_with('\u{feff}') {
        return Err(json("it begins with a byte-order mark; save it without one".into()));
    }
    serde_json::from_str::<Unique>(text).map_err(|e| json(e.to_string()))?;
    let value: Value = serde_json::from_str(text).map_err(|e| json(e.to_string()))?;
    let Value::Object(mut map) = value else {
        return Err(json("it holds another kind of value".into()));
    };
    match map.remove("format") {
        Some(v) if v.as_u64() == Some(RECORD_FORMAT) => {}
        found => {
            return Err(TargetError::Format {
                origin: origin.to_owned(),
                found: found.map_or("none".into(), |v| v.to_string()),
            });
        }
    }
    let fields = |faults| TargetError::Fields { origin: origin.to_owned(), faults };
    let mut faults = Vec::new();
    let aliases = match map.remove("aliases") {
        None => Vec::new(),
        Some(v) => serde_json::from_value(v).unwrap_or_else(|e| {
            faults.push(fault("aliases", e));
            Vec::new()
        }),
    };
    shape_faults(&map, &mut faults);
    if !faults.is_empty() {
        return Err(fields(faults));
    }
    let target: Target =
        serde_json::from_value(Value::Object(map)).map_err(|e| json(e.to_string()))?;
    let faults = validate_target(&target);
    if !faults.is_empty() {
        return Err(fields(faults));
    }
    Ok(Record { target, aliases })
}

fn fault(field: &str, message: impl ToString) -> FieldFault {
    FieldFault { field: field.to_owned(), message: message.to_string() }
}

/// Kinds of JSON value a field may have.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Count32,
    Count64,
    Number,
    NumberOrNull,
    Flag,
}

impl Kind {
    fn accepts(self, value: &Value) -> bool {
        match self {
            Kind::Text => value.is_string(),
            Kind::Count32 => value.as_u64().is_some_and(|n| u32::try_from(n).is_ok()),
            Kind::Count64 => value.is_u64(),
            Kind::Number => value.is_number(),
            Kind::NumberOrNull => value.is_number() || value.is_null(),
            Kind::Flag => value.is_boolean(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Text => "a text",
            Kind::Count32 => "a whole number below 2^32",
            Kind::Count64 => "a whole number",
            Kind::Number => "a number",
            Kind::NumberOrNull => "a number or null",
            Kind::Flag => "true or false",
        }
    }
}

const FIELDS: [(&str, Kind); 13] = [
    ("name", Kind::Text),
    ("sm", Kind::Text),
    ("sm_count", Kind::Count32),
    ("shared_per_block", Kind::Count64),
    ("shared_per_sm", Kind::Count64),
    ("reserved_shared", Kind::Count64),
    ("registers_per_sm", Kind::Count32),
    ("registers_per_thread", Kind::Count32),
    ("threads_per_block", Kind::Count32),
    ("barriers", Kind::Count32),
    ("l2_bytes", Kind::Count64),
    ("nominal_gbps", Kind::Number),
    ("measured_gbps", Kind::NumberOrNull),
];

const FEATURES: [&str; 5] = ["cp_async", "bulk_copy", "wgmma", "setmaxnreg", "cluster"];

/// Missing fields, fields of the wrong kind, and unknown fields.
fn shape_faults(map: &Map<String, Value>, faults: &mut Vec<FieldFault>) {
    let mut check = |prefix: &str, map: &Map<String, Value>, field: &str, kind: Kind| {
        let full = format!("{prefix}{field}");
        match map.get(field) {
            None => faults.push(fault(&full, format!("missing; it must be {}", kind.name()))),
            Some(v) if !kind.accepts(v) => {
                faults.push(fault(&full, format!("is {v}; it must be {}", kind.name())));
            }
            Some(_) => {}
        }
    };
    for (field, kind) in FIELDS {
        check("", map, field, kind);
    }
    let features = map.get("features").and_then(Value::as_object);
    if let Some(features) = features {
        for field in FEATURES {
            check("features.", features, field, Kind::Flag);
        }
        for field in features.keys().filter(|k| !FEATURES.contains(&k.as_str())) {
            faults.push(fault(&format!("features.{field}"), "unknown field"));
        }
    } else {
        faults.push(fault("features", "missing; it must be an object of flags"));
    }
    for field in map.keys() {
        if field != "features" && !FIELDS.iter().any(|(known, _)| known == field) {
            faults.push(fault(field, "unknown field"));
        }
    }
}

/// What is wrong with a target's values; empty when it can be used.
pub fn validate_target(target: &Target) -> Vec<FieldFault> {
    let mut faults = Vec::new();
    let mut require = |holds: bool, field: &str, message: String| {
        if !holds {
            faults.push(FieldFault { field: field.to_owned(), message });
        }
    };
    let t = target;
    let fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ' ');
    require(
        !t.name.is_empty() && t.name.len() <= 64 && t.name.chars().all(fit),
        "name",
        "must be 1 to 64 letters, digits, '.', '-', '_' or spaces".into(),
    );
    let arch = t.sm.parse::<Arch>();
    match &arch {
        Ok(arch) => {
            require(arch.to_string() == t.sm, "sm", format!("is \"{}\"; write it {arch}", t.sm));
            require(arch.number >= 80, "sm", format!("is {arch}; the kernels need sm_80 or newer"));
        }
        Err(e) => require(false, "sm", e.to_string()),
    }
    require(
        (1..=1024).contains(&t.sm_count),
        "sm_count",
        format!("is {}; it must be 1 to 1024", t.sm_count),
    );
    require(
        (16 * 1024..=1 << 20).contains(&t.shared_per_block),
        "shared_per_block",
        format!("is {} bytes; it must be 16384 to 1048576", t.shared_per_block),
    );
    require(
        t.shared_per_block.checked_add(t.reserved_shared).is_some_and(|n| n <= t.shared_per_sm),
        "shared_per_sm",
        format!(
            "is {} bytes; it must hold shared_per_block ({}) and reserved_shared ({})",
            t.shared_per_sm, t.shared_per_block, t.reserved_shared
        ),
    );
    require(
        t.reserved_shared <= 16 * 1024,
        "reserved_shared",
        format!("is {} bytes; it must be at most 16384", t.reserved_shared),
    );
    require(
        (1..=255).contains(&t.registers_per_thread),
        "registers_per_thread",
        format!("is {}; it must be 1 to 255", t.registers_per_thread),
    );
    require(
        t.registers_per_sm >= 8192 && t.registers_per_sm.is_multiple_of(256),
        "registers_per_sm",
        format!("is {}; it must be a multiple of 256, at least 8192", t.registers_per_sm),
    );
    require(
        (32..=1024).contains(&t.threads_per_block) && t.threads_per_block.is_multiple_of(32),
        "threads_per_block",
        format!("is {}; it must be a multiple of 32, at most 1024", t.threads_per_block),
    );
    require(
        (1..=16).contains(&t.barriers),
        "barriers",
        format!("is {}; it must be 1 to 16", t.barriers),
    );
    require(t.l2_bytes > 0, "l2_bytes", "must not be zero".into());
    let positive = |x: f64| x.is_finite() && x > 0.0;
    require(
        positive(t.nominal_gbps),
        "nominal_gbps",
        format!("is {}; it must be positive", t.nominal_gbps),
    );
    if let Some(measured) = t.measured_gbps {
        require(
            positive(measured) && measured <= t.nominal_gbps,
            "measured_gbps",
            format!("is {measured}; it must be positive and at most nominal_gbps"),
        );
    }
    if let Ok(arch) = arch {
        let can = features_of(arch);
        let stated = t.features;
        for (field, stated, possible) in [
            ("features.cp_async", stated.cp_async, can.cp_async),
            ("features.bulk_copy", stated.bulk_copy, can.bulk_copy),
            ("features.wgmma", stated.wgmma, can.wgmma),
            ("features.setmaxnreg", stated.setmaxnreg, can.setmaxnreg),
            ("features.cluster", stated.cluster, can.cluster),
        ] {
            require(
                possible || !stated,
                field,
                format!("is true, and {arch} has no such instruction"),
            );
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_record_parses_and_every_default_is_there() {
        for text in DATA {
            parse_record(text, "shipped").unwrap();
        }
        assert_eq!(records().len(), DATA.len());
        let sms: Vec<String> = default_targets().into_iter().map(|t| t.sm).collect();
        let archs: Vec<String> =
            super::super::DEFAULT_ARCHS.iter().map(ToString::to_string).collect();
        assert_eq!(sms, archs);
        let mut names: Vec<String> = records()
            .iter()
            .flat_map(|r| r.aliases.iter().chain([&r.target.name]))
            .map(|n| canonical(n))
            .collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "two records share a name");
    }

    #[test]
    fn spellings_and_aliases_find_the_same_part() {
        for name in ["sm_90a", "SM_90A", "90a", "9.0a", "h200", "H200", "hopper"] {
            let found = resolve(name).unwrap();
            assert_eq!((found.target.name.as_str(), found.notice), ("h200", None), "{name}");
        }
        for name in ["sm_90", "9.0", "90"] {
            let found = resolve(name).unwrap();
            assert_eq!(found.target.sm, "sm_90a", "{name}");
            assert!(found.notice.unwrap().contains("sm_90a"));
        }
        for name in ["RTX 4090", "rtx-4090", "GeForce RTX 4090", "4090", "8.9"] {
            assert_eq!(resolve(name).unwrap().target.name, "rtx4090", "{name}");
        }
        assert_eq!(resolve("h100").unwrap().target.nominal_gbps, 3350.0);
        for name in ["sm_75", "gtx1080", "", "sm_"] {
            let error = resolve(name).unwrap_err().to_string();
            assert!(error.contains("sm_100a") && error.contains("--target-file"), "{error}");
        }
    }

    fn faults(text: &str) -> Vec<String> {
        match parse_record(text, "part.json") {
            Err(TargetError::Fields { faults, .. }) => {
                faults.into_iter().map(|f| f.field).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_record_file_goes_out_and_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("part.json");
        let target = resolve("b200").unwrap().target;
        std::fs::write(&path, to_record_json(&target)).unwrap();
        assert_eq!(load_target_file(&path).unwrap(), target);
        let error = load_target_file(&dir.path().join("none.json")).unwrap_err();
        assert!(error.to_string().contains("none.json"));
    }

    #[test]
    fn every_faulty_field_is_named() {
        let edit = |from: &str, to: &str| {
            let text = DATA[5].replace(from, to);
            assert_ne!(text, DATA[5], "{from}");
            faults(&text)
        };
        assert_eq!(edit("\"sm_count\": 132,", ""), ["sm_count"]);
        assert_eq!(edit("\"sm_count\": 132", "\"sm_count\": -1"), ["sm_count"]);
        assert_eq!(edit("\"sm_count\": 132", "\"sm_count\": 0"), ["sm_count"]);
        assert_eq!(edit("\"sm_count\"", "\"sms\""), ["sm_count", "sms"]);
        assert_eq!(edit("233472", "232448"), ["shared_per_sm"]);
        assert_eq!(edit("232448", "18446744073709551615"), ["shared_per_block", "shared_per_sm"]);
        assert_eq!(edit("sm_90a", "hopper"), ["sm"]);
        assert_eq!(edit("sm_90a", "90a"), ["sm"]);
        assert_eq!(edit("sm_90a", "sm_90"), ["features.wgmma", "features.setmaxnreg"]);
        assert_eq!(edit("\"wgmma\": true", "\"wgmma\": 1"), ["features.wgmma"]);
        assert_eq!(edit("\"wgmma\"", "\"wgmna\""), ["features.wgmma", "features.wgmna"]);
        assert_eq!(edit("4591.0", "9e9"), ["measured_gbps"]);
        assert_eq!(
            edit("\"threads_per_block\": 1024", "\"threads_per_block\": 1000"),
            ["threads_per_block"]
        );
        assert_eq!(edit("\"h200\"", "\"\""), ["name"]);
        assert_eq!(edit("[", "[3,"), ["aliases"]);
        for (from, to, says) in [
            (
                "\"sm_count\"",
                "\"sm_count\": 1, \"sm_count\"",
                "the key \"sm_count\" is given twice",
            ),
            ("\"wgmma\"", "\"wgmma\": true, \"wgmma\"", "the key \"wgmma\" is given twice"),
            ("{", "\u{feff}{", "byte-order mark"),
        ] {
            let error = parse_record(&DATA[5].replacen(from, to, 1), "part.json").unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
        let both = edit("132", "\"many\"").len() + edit("65536", "100").len();
        assert_eq!(both, 2);
    }

    #[test]
    fn other_formats_and_other_values_are_refused_by_name() {
        let newer = DATA[5].replace("\"format\": 1", "\"format\": 2");
        let error = parse_record(&newer, "part.json").unwrap_err().to_string();
        assert!(error.contains("format 2") && error.contains("part.json"), "{error}");
        assert!(matches!(parse_record("{}", "x"), Err(TargetError::Format { .. })));
        for text in ["", "[]", "{", "3"] {
            assert!(matches!(parse_record(text, "x"), Err(TargetError::Json { .. })), "{text}");
        }
    }
}
