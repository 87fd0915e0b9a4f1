//! The tables of published comparisons, in all three forms.

use bench::published::PUBLISHED;
use bench::report::{html, markdown, text};
use bench::results::{CpuTrace, Outcome, ProcessTrace, Results, Wire};

use super::FIXTURE;

/// The made-up run as one that repeats this comparison. Its rsync is scp with its own cipher.
fn repeating(name: &str) -> Results {
    let text = FIXTURE.replace("\"rsync\"", "\"scp\"").replace("files.out.aes128-gcm", "files.in.default");
    let mut results: Results = serde_json::from_str(&text).unwrap();
    results.settings.repeats = Some(name.to_owned());
    results
}

/// The section of the tables as published.
fn published(markdown: &str) -> &str {
    let begin = markdown.find("## As published").expect("the section");
    let rest = &markdown[begin..];
    &rest[..rest[3..].find("\n## ").map_or(rest.len(), |at| at + 3)]
}

#[test]
fn dump() {
    for p in &PUBLISHED {
        println!("=== {}", p.name);
        println!("{}", published(&markdown(&repeating(p.name))));
        println!("{}", text(&repeating(p.name)));
    }
}
