//! Models that were cut into several GGUF files, `name-00001-of-00003.gguf` and so on: which files belong together, and
//! reading them as one.

use super::GgufError;
use super::read::{Contents, read};
use crate::files::{Bytes, Files};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A file and its bytes.
pub(super) struct Part {
    pub name: Arc<str>,
    pub storage: Arc<Bytes>,
}

/// What a file's name says: the name of the whole, the number of the part from 1, and the number of parts.
fn parse(name: &str) -> Option<(&str, u32, u32)> {
    let number = |digits: &str| {
        let five = digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit());
        five.then(|| digits.parse::<u32>().ok()).flatten()
    };
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, part) = rest.rsplit_once('-')?;
    let (part, count) = (number(part)?, number(count)?);
    (1..=count).contains(&part).then_some((stem, part, count))
}

fn name_of(stem: &str, part: u32, count: u32) -> String {
    format!("{stem}-{part:05}-of-{count:05}.gguf")
}

/// The names of all parts of the model that a file is one of; the name itself where it is whole.
pub(crate) fn family(name: &str) -> Vec<String> {
    match parse(name) {
        Some((stem, _, count)) => (1..=count).map(|part| name_of(stem, part, count)).collect(),
        None => vec![name.to_string()],
    }
}

/// One name for each model among these files: that of its first part, whether it is there or not.
pub(crate) fn models<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let first = |name: &str| match parse(name) {
        Some((stem, _, count)) => name_of(stem, 1, count),
        None => name.to_string(),
    };
    names.into_iter().map(first).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Reads a file, with the other parts of its model if it is one of several.
///
/// # Errors
/// A file is damaged, a part is missing, or the parts do not belong together.
pub(super) fn open(files: &Files, name: &str) -> Result<(Vec<Part>, Contents), GgufError> {
    let look = |name: &str| -> Result<(Part, Contents), GgufError> {
        let storage = Arc::new(files.map(name)?);
        let contents = read(&storage)?;
        Ok((Part { name: Arc::from(name), storage }, contents))
    };
    let missing = |name: &str| GgufError::MissingPart {
        folder: files.label().to_string(),
        part: name.to_string(),
    };
    let names = family(name);
    if !files.has(name) && names.len() > 1 {
        return Err(missing(name));
    }
    let (given, contents) = look(name)?;
    let count = contents.unsigned("split.count").unwrap_or(1).max(1);
    if names.len() as u64 != count {
        let file = name.to_string();
        return Err(GgufError::Split { file, parts: count, named: names.len() });
    }
    if count == 1 {
        return Ok((vec![given], contents));
    }
    if let Some(name) = names.iter().find(|n| !files.has(n)) {
        return Err(missing(name));
    }
    let mut given = Some((given, contents));
    let mut part = |number: usize| -> Result<(Part, Contents), GgufError> {
        let (part, mut contents) = match given.take_if(|(part, _)| *part.name == names[number]) {
            Some(given) => given,
            None => look(&names[number])?,
        };
        let said = (contents.unsigned("split.no"), contents.unsigned("split.count"));
        if said != (Some(number as u64), Some(count)) {
            return Err(GgufError::Damaged(format!(
                "{} does not say that it is part {} of {count}; it belongs to another model, download it again",
                part.name,
                number + 1
            )));
        }
        contents.tensors.iter_mut().for_each(|t| t.part = number);
        Ok((part, contents))
    };
    let (first, mut whole) = part(0)?;
    let mut parts = vec![first];
    for number in 1..names.len() {
        let (part, contents) = part(number)?;
        join(&mut whole, contents, &part.name)?;
        parts.push(part);
    }
    let tensors = whole.tensors.len();
    if let Some(said) = whole.unsigned("split.tensors.count").filter(|n| *n != tensors as u64) {
        return Err(GgufError::Damaged(format!(
            "its parts have {tensors} tensors, and the first says {said}; download them again"
        )));
    }
    Ok((parts, whole))
}

/// Adds a later part: its tensors, and no metadata but those that the first has too.
fn join(whole: &mut Contents, part: Contents, name: &str) -> Result<(), GgufError> {
    let other = part.metadata.iter().find(|(key, value)| {
        !key.starts_with("split.") && whole.metadata.get(*key) != Some(*value)
    });
    if let Some((key, _)) = other {
        return Err(GgufError::Damaged(format!("{name} has another {key} than the first part")));
    }
    let known: BTreeSet<&str> = whole.tensors.iter().map(|t| t.name.as_str()).collect();
    if let Some(twice) = part.tensors.iter().find(|t| known.contains(t.name.as_str())) {
        return Err(GgufError::Damaged(format!("it has the tensor {} twice", twice.name)));
    }
    whole.tensors.extend(part.tensors);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts() {
        assert_eq!(parse("a-b-00002-of-00003.gguf"), Some(("a-b", 2, 3)));
        for whole in [
            "a.gguf",
            "a-00000-of-00002.gguf",
            "a-00003-of-00002.gguf",
            "a-1-of-2.gguf",
            "a-00001-of-00002.bin",
            "a-+0001-of-00002.gguf",
        ] {
            assert_eq!(parse(whole), None, "{whole}");
            assert_eq!(family(whole), [whole]);
        }
        assert_eq!(
            family("a-00002-of-00002.gguf"),
            ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"]
        );
        let names =
            ["b.gguf", "a-00002-of-00002.gguf", "a-00001-of-00002.gguf", "a-00001-of-00003.gguf"];
        assert_eq!(models(names), ["a-00001-of-00002.gguf", "a-00001-of-00003.gguf", "b.gguf"]);
    }
}
