//! Functions, calls and waits of a rendered kernel, found in the text itself, so that tests can break
//! each of them in turn and a new one is among them without being listed.

use std::ops::Range;

/// A function of the text.
#[derive(Clone, Debug)]
pub struct Function {
    pub name: String,
    /// Result type.
    pub result: String,
    /// What stands between its braces.
    pub body: Range<usize>,
}

/// A place in the text.
#[derive(Clone, Debug)]
pub struct Place {
    pub at: usize,
    /// Function it is in.
    pub within: String,
    /// Which of its kind in that function, from 1.
    pub nth: usize,
}

/// The text with comments replaced by blanks, so that offsets stay.
pub fn without_comments(text: &str) -> String {
    let mut out = String::new();
    for line in text.split_inclusive('\n') {
        match line.find("//") {
            Some(at) => {
                out.push_str(&line[..at]);
                out.extend(line[at..].chars().map(|c| if c == '\n' { c } else { ' ' }));
            }
            None => out.push_str(line),
        }
    }
    out
}

/// Offset just after the bracket that closes the one at `open`.
pub fn close(text: &str, open: usize) -> usize {
    let mut depth = 0;
    for (at, c) in text[open..].char_indices() {
        match c {
            '(' | '{' => depth += 1,
            ')' | '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return open + at + 1;
        }
    }
    panic!("nothing closes {}", &text[open..(open + 40).min(text.len())]);
}

/// Every function of a text without comments, the kernel among them.
pub fn functions(text: &str) -> Vec<Function> {
    let mut out = Vec::new();
    for marker in ["AMK_FN ", "AMK_KERNEL(THREADS) "] {
        for (start, _) in text.match_indices(marker) {
            let line = text[..start].rfind('\n').map_or(0, |n| n + 1);
            if text[line..start].trim_start().starts_with('#') {
                continue;
            }
            let from = start + marker.len();
            let open = from + text[from..].find('(').unwrap();
            let head = text[from..open].trim();
            let (result, name) = head.rsplit_once([' ', '*', '&']).unwrap_or(("", head));
            // A pointer's or reference's mark belongs to the type.
            let mark = head[result.len()..head.len() - name.len()].trim();
            let after = close(text, open);
            let brace = after + text[after..].find('{').unwrap();
            let end = close(text, brace);
            out.push(Function {
                name: name.to_owned(),
                result: format!("{result}{mark}"),
                body: brace + 1..end - 1,
            });
        }
    }
    out
}

/// Places where `pattern` stands as a word of its own, outside heads of functions.
pub fn find(text: &str, functions: &[Function], pattern: &str) -> Vec<Place> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut out: Vec<Place> = Vec::new();
    for (at, _) in text.match_indices(pattern) {
        let starts = pattern.starts_with(word);
        if starts && text[..at].ends_with(word) {
            continue;
        }
        let inner = functions.iter().filter(|f| f.body.contains(&at));
        let Some(function) = inner.min_by_key(|f| f.body.len()) else { continue };
        let nth = out.iter().filter(|p| p.within == function.name).count() + 1;
        out.push(Place { at, within: function.name.clone(), nth });
    }
    out
}

/// Waits that give up when they last too long: the offset of the condition of each.
pub fn bounded_waits(text: &str, functions: &[Function]) -> Vec<Place> {
    let mut out = find(text, functions, "spin.give_up(");
    // Looks at packets end in one function, which is not a wait of its own.
    out.retain(|place| place.within != "packets_end");
    out.extend(find(text, functions, "cx.packets_end("));
    for place in &mut out {
        let call = place.at;
        // The `if (` whose condition the call stands in.
        let holds = |open: &usize| close(text, open + 3) > call;
        let starts: Vec<usize> = text[..call].match_indices("if (").map(|(at, _)| at).collect();
        let open = starts.into_iter().rev().take(8).find(holds);
        place.at = open.expect("a wait is given up outside a condition") + 4;
    }
    out
}
