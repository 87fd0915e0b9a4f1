//! `docs/troubleshooting.md` lists the messages that the program prints, no fewer and no others.
//!
//! A message is the text in one of [`MARKERS`], or in the table of ssh's phrases. The sources are
//! read as text: that needs no registration of messages, and a new one cannot be forgotten.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Where messages are in the code, and of how many literals they consist: `what` and `why`, or one
/// text.
const MARKERS: [(&str, usize); 10] = [
    ("#[error(", 1),
    ("Problem::new(", 2),
    (".or_problem(", 1),
    ("tracing::warn!(", 1),
    ("tracing::error!(", 1),
    ("Check::wrong(", 2),
    ("Check::note(", 2),
    ("Check::unknown(", 2),
    ("Failure::failed(", 1),
    ("Failure::wrong(", 1),
];

/// A crate for development, whose messages users do not see.
const SKIPPED: &str = "testkit";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The sources of both programs, without tests.
fn sources() -> Vec<String> {
    let crates = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let mut waiting: Vec<PathBuf> =
        crates.filter(|path| !path.ends_with(SKIPPED)).map(|path| path.join("src")).collect();
    let mut sources = Vec::new();
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if path.is_dir() && name != "tests" {
                waiting.push(path);
            } else if name.ends_with(".rs") && !name.contains("test") {
                let text = fs::read_to_string(&path).unwrap();
                let end = text.find("\n#[cfg(test)]\nmod tests {").unwrap_or(text.len());
                sources.push(text[..end].to_owned());
            }
        }
    }
    sources
}

/// The string literals in the parentheses that `code` begins with.
fn literals(code: &str) -> Vec<String> {
    let (mut found, mut depth, mut rest) = (Vec::new(), 0, code);
    while let Some(next) = rest.chars().next() {
        let mut len = next.len_utf8();
        match next {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '/' if rest.starts_with("//") => len = rest.find('\n').unwrap_or(rest.len()),
            '\'' if rest.get(2..3) == Some("'") => len = 3,
            '\'' if rest.starts_with("'\\") && rest.get(3..4) == Some("'") => len = 4,
            '"' => {
                let (text, end) = literal(rest);
                found.push(text);
                len = end;
            }
            _ => {}
        }
        rest = &rest[len..];
        if depth == 0 {
            break;
        }
    }
    found
}

/// The text of the literal that `code` begins with, and its length in the code.
fn literal(code: &str) -> (String, usize) {
    let (mut text, mut chars) = (String::new(), code.char_indices().skip(1).peekable());
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return (text, at + 1),
            '\\' => match chars.next() {
                // A line that continues without its indentation.
                Some((_, '\n')) => while chars.next_if(|(_, it)| it.is_whitespace()).is_some() {},
                Some((_, 'n')) => text.push(' '),
                Some((_, other)) => text.push(other),
                None => break,
            },
            other => text.push(other),
        }
    }
    panic!("a literal does not end: {code:.80}");
}

/// A template with `…` for each value, as the page has it; `None` if it has no words of its own.
fn template(text: &str) -> Option<String> {
    let (mut template, mut depth) = (String::new(), 0);
    for char in text.chars() {
        match char {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                template.push('…');
            }
            '`' => template.push('\''),
            other if depth == 0 => template.push(other),
            _ => {}
        }
    }
    template.contains(|char: char| char.is_ascii_alphabetic()).then_some(template)
}

fn messages_in_code() -> BTreeSet<String> {
    let mut messages = BTreeSet::new();
    for source in sources() {
        for (marker, count) in MARKERS {
            for (at, _) in source.match_indices(marker) {
                let texts = literals(&source[at + marker.len() - 1..]);
                let texts = &texts[..texts.len().min(count)];
                messages.extend(template(&texts.join(": ")));
            }
        }
        if let Some((_, table)) = source.split_once("const PHRASES: ") {
            let table = &table[table.find("= [").unwrap() + 2..];
            messages.extend(literals(table));
        }
    }
    messages
}

fn messages_on_page() -> BTreeSet<String> {
    let page = fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells =
        rows.map(|row| row.split_once("` |").expect("a row has three columns").0.to_owned());
    cells.flat_map(|cell| cell.split("`, `").map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
fn the_page_of_troubleshooting_has_every_message() {
    let (code, page) = (messages_in_code(), messages_on_page());
    assert!(code.len() > 200, "the scan finds no messages: {code:#?}");
    let missing: Vec<_> = code.difference(&page).collect();
    assert!(missing.is_empty(), "not in docs/troubleshooting.md: {missing:#?}");
    let stale: Vec<_> = page.difference(&code).collect();
    assert!(stale.is_empty(), "in docs/troubleshooting.md, but in no source: {stale:#?}");
}

#[test]
fn a_message_is_found_with_its_values() {
    let code = "(format!(\"a '{}'\", x(')')), // \"no\"\n \"b \\\n   c \\\"{d}\\\"\", e)\"f\"";
    assert_eq!(literals(code), ["a '{}'", "b c \"{d}\""]);
    assert_eq!(template("a '{}': {why:?}").as_deref(), Some("a '…': …"));
    assert_eq!(template("{}: {words}"), None);
}
