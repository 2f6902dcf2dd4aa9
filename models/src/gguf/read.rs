//! The container: header, metadata and tensor list, read from mapped bytes. Every count is held against the bytes that
//! are left before anything is allocated for it.

use super::GgufError;
use std::collections::{BTreeMap, BTreeSet};

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Meta {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    List(Vec<Meta>),
    /// A list of numbers that nothing reads; kept as its length, for its entries would take many times their room.
    Skipped(usize),
}

/// How a tensor is stored: name, elements of a block, bytes of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stored {
    pub code: u32,
    pub name: &'static str,
    pub block: usize,
    pub bytes: usize,
}

/// What is read.
const STORED: &[Stored] = &[
    Stored { code: 0, name: "F32", block: 1, bytes: 4 },
    Stored { code: 1, name: "F16", block: 1, bytes: 2 },
    Stored { code: 2, name: "Q4_0", block: 32, bytes: 18 },
    Stored { code: 3, name: "Q4_1", block: 32, bytes: 20 },
    Stored { code: 8, name: "Q8_0", block: 32, bytes: 34 },
    Stored { code: 12, name: "Q4_K", block: 256, bytes: 144 },
    Stored { code: 14, name: "Q6_K", block: 256, bytes: 210 },
    Stored { code: 30, name: "BF16", block: 1, bytes: 2 },
];

/// One tensor of the file.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub name: String,
    /// Rows first.
    pub shape: Vec<usize>,
    pub stored: Stored,
    /// Which of the model's files it is in.
    pub part: usize,
    /// Bytes in the file.
    pub range: std::ops::Range<usize>,
}

/// A parsed file.
#[derive(Debug)]
pub(super) struct Contents {
    pub metadata: BTreeMap<String, Meta>,
    pub tensors: Vec<Entry>,
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Levels of lists in lists.
const DEEPEST: usize = 4;
/// Most dimensions of a tensor.
const MOST_DIMENSIONS: u64 = 4;

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], GgufError> {
        let end = self.at.checked_add(n).filter(|e| *e <= self.bytes.len());
        let end = end.ok_or_else(|| {
            GgufError::Damaged(format!("it ends inside its header, at byte {}", self.bytes.len()))
        })?;
        let out = &self.bytes[self.at..end];
        self.at = end;
        Ok(out)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.number()?))
    }

    fn u64(&mut self) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.number()?))
    }

    /// A count of things of at least `least` bytes each.
    fn count(&mut self, what: &str, least: usize) -> Result<usize, GgufError> {
        let n = self.u64()?;
        let room = (self.bytes.len() - self.at) / least;
        usize::try_from(n).ok().filter(|n| *n <= room).ok_or_else(|| {
            GgufError::Damaged(format!(
                "it says it has {n} {what}, more than its size has room for"
            ))
        })
    }

    fn text(&mut self) -> Result<String, GgufError> {
        let n = self.count("bytes of text", 1)?;
        String::from_utf8(self.take(n)?.to_vec())
            .map_err(|_| GgufError::Damaged("a text in its header is not UTF-8".to_string()))
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<Meta, GgufError> {
        Ok(match kind {
            0 => Meta::Unsigned(u64::from(self.number::<1>()?[0])),
            1 => Meta::Signed(i64::from(i8::from_le_bytes(self.number()?))),
            2 => Meta::Unsigned(u64::from(u16::from_le_bytes(self.number()?))),
            3 => Meta::Signed(i64::from(i16::from_le_bytes(self.number()?))),
            4 => Meta::Unsigned(u64::from(self.u32()?)),
            5 => Meta::Signed(i64::from(i32::from_le_bytes(self.number()?))),
            6 => Meta::Float(f64::from(f32::from_le_bytes(self.number()?))),
            7 => Meta::Bool(self.number::<1>()?[0] != 0),
            8 => Meta::Text(self.text()?),
            9 if depth < DEEPEST => {
                let kind = self.u32()?;
                if let Some(width) = width_of_small(kind) {
                    let n = self.count("list entries", width)?;
                    self.take(n * width)?;
                    return Ok(Meta::Skipped(n));
                }
                // Numbers of 4 bytes are the smallest that are kept.
                let n = self.count("list entries", 4)?;
                let mut list = Vec::new();
                for _ in 0..n {
                    list.push(self.value(kind, depth + 1)?);
                }
                Meta::List(list)
            }
            10 => Meta::Unsigned(self.u64()?),
            11 => Meta::Signed(i64::from_le_bytes(self.number()?)),
            12 => Meta::Float(f64::from_le_bytes(self.number()?)),
            _ => {
                return Err(GgufError::Damaged(format!("its header has a value of type {kind}")));
            }
        })
    }
}

/// Bytes of a number or flag of less than four.
fn width_of_small(kind: u32) -> Option<usize> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        _ => None,
    }
}

/// Reads a whole file.
pub(super) fn read(bytes: &[u8]) -> Result<Contents, GgufError> {
    let mut c = Cursor { bytes, at: 0 };
    if c.take(4).ok() != Some(b"GGUF") {
        return Err(GgufError::Damaged("it does not begin with GGUF".to_string()));
    }
    let version = c.u32()?;
    if !matches!(version, 2 | 3) {
        return Err(GgufError::Damaged(format!("it is of version {version}; 2 and 3 are read")));
    }
    let tensor_count = c.count("tensors", 24)?;
    let value_count = c.count("metadata values", 13)?;
    let mut metadata = BTreeMap::new();
    for _ in 0..value_count {
        let key = c.text()?;
        let kind = c.u32()?;
        let value = c.value(kind, 0)?;
        if metadata.insert(key.clone(), value).is_some() {
            return Err(GgufError::Damaged(format!("its header has {key} twice")));
        }
    }
    let mut tensors = Vec::new();
    let mut offsets = Vec::new();
    let mut names = BTreeSet::new();
    for _ in 0..tensor_count {
        let name = c.text()?;
        if !names.insert(name.clone()) {
            return Err(GgufError::Damaged(format!("it has the tensor {name} twice")));
        }
        let dimensions = u64::from(c.u32()?);
        if !(1..=MOST_DIMENSIONS).contains(&dimensions) {
            return Err(GgufError::Damaged(format!("{name} has {dimensions} dimensions")));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            let n = usize::try_from(c.u64()?).ok().filter(|n| *n > 0);
            shape.push(n.ok_or_else(|| {
                GgufError::Damaged(format!("{name} has a dimension that is no size"))
            })?);
        }
        // The file has the fastest dimension first.
        shape.reverse();
        let code = c.u32()?;
        let stored = STORED.iter().find(|s| s.code == code).copied().ok_or_else(|| {
            GgufError::Type { tensor: name.clone(), code, supported: supported_types() }
        })?;
        offsets.push(c.u64()?);
        tensors.push(Entry { name, shape, stored, part: 0, range: 0..0 });
    }
    let alignment = match metadata.get("general.alignment") {
        None => 32,
        Some(Meta::Unsigned(n)) if n.is_power_of_two() && *n <= 1 << 20 => *n as usize,
        Some(_) => {
            return Err(GgufError::Damaged("its general.alignment is no alignment".to_string()));
        }
    };
    let base = c.at.next_multiple_of(alignment);
    place(&mut tensors, &offsets, base, alignment, bytes.len())?;
    Ok(Contents { metadata, tensors })
}

/// Finds the bytes of every tensor: inside the file, apart from one another, and nothing behind the last.
fn place(
    tensors: &mut [Entry],
    offsets: &[u64],
    base: usize,
    alignment: usize,
    size: usize,
) -> Result<(), GgufError> {
    for (t, offset) in tensors.iter_mut().zip(offsets) {
        let row = t.shape.last().copied().unwrap_or(0);
        let elements = t.shape.iter().try_fold(1usize, |a, d| a.checked_mul(*d));
        let bytes = elements
            .filter(|_| row.is_multiple_of(t.stored.block))
            .and_then(|n| (n / t.stored.block).checked_mul(t.stored.bytes))
            .ok_or_else(|| {
                GgufError::Damaged(format!(
                    "{} has the shape {:?}, which {} cannot have",
                    t.name, t.shape, t.stored.name
                ))
            })?;
        if !offset.is_multiple_of(alignment as u64) {
            return Err(GgufError::Damaged(format!(
                "{} begins at {offset}, which is no multiple of {alignment}",
                t.name
            )));
        }
        let start = usize::try_from(*offset).ok().and_then(|o| base.checked_add(o));
        let end = start.and_then(|s| s.checked_add(bytes)).filter(|e| *e <= size);
        match (start, end) {
            (Some(start), Some(end)) => t.range = start..end,
            _ => {
                return Err(GgufError::Damaged(format!(
                    "{} is not inside its {size} bytes; it is cut off, download it again",
                    t.name
                )));
            }
        }
    }
    let mut order: Vec<&Entry> = tensors.iter().collect();
    order.sort_by_key(|t| t.range.start);
    for pair in order.windows(2) {
        if pair[0].range.end > pair[1].range.start {
            let (a, b) = (&pair[0].name, &pair[1].name);
            return Err(GgufError::Damaged(format!("{a} and {b} overlap")));
        }
    }
    let end = order.last().map_or(base, |t| t.range.end);
    if size > end.next_multiple_of(alignment) {
        return Err(GgufError::Damaged(format!(
            "it has {} bytes behind its last tensor; download it again",
            size - end
        )));
    }
    Ok(())
}

pub(super) fn supported_types() -> String {
    STORED.iter().map(|s| s.name).collect::<Vec<_>>().join(", ")
}
