//! A run for readers: HTML with charts, Markdown, and text for a terminal.
//!
//! Invariants:
//! 1. All forms show the same figures, made anew from the samples by [`crate::stats`].
//! 2. The page is one file: nothing is fetched, no script runs, and it says so to the browser.
//! 3. Names and words from outside are escaped for where they are shown.
//!
//! The charts are SVG written by hand with `maud` instead of `plotters`: that writes colours and
//! fonts as fixed attributes, has neither classes nor titles for single marks, and so can follow
//! neither the reader's light or dark theme, nor a screen reader.

mod chart;
mod cost;
mod markdown;
mod method;
pub mod number;
mod page;
mod standing;
mod text;
mod view;

use crate::results::{LeftOut, Results};
use crate::stats::FailureLine;

use view::View;

/// Characters of a failure that are shown: programs may fail for each of a thousand files.
const WORDS: usize = 240;

/// One self-contained page: tables, charts, environment and method. It needs no script and no
/// network, follows the reader's light or dark theme, and can be read on a phone and printed.
#[must_use]
pub fn html(results: &Results) -> String {
    page::page(&View::of(results))
}

/// The tables in GitHub's Markdown.
#[must_use]
pub fn markdown(results: &Results) -> String {
    markdown::markdown(&View::of(results))
}

/// The tables for a terminal of 100 columns.
#[must_use]
pub fn text(results: &Results) -> String {
    text::text(&View::of(results))
}

/// Text from outside, safe for a terminal: control characters as escapes.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() {
            out.extend(char.escape_default());
        } else {
            out.push(char);
        }
    }
    out
}

fn failure_line(line: &FailureLine) -> String {
    let rounds: Vec<String> = line.rounds.iter().map(|round| (round + 1).to_string()).collect();
    let rounds = match rounds.as_slice() {
        [one] => format!("round {one}"),
        all => format!("rounds {}", all.join(", ")),
    };
    let why = line.why.lines().collect::<Vec<_>>().join("; ");
    let why = match why.char_indices().nth(WORDS) {
        Some((end, _)) => format!("{} … (the rest is in results.json)", why[..end].trim_end()),
        None => why,
    };
    format!("{} of {}, {rounds}: {why}", line.measure, line.subject)
}

fn left_out_line(left_out: &LeftOut) -> String {
    let remedy = left_out.remedy.as_ref().map_or(String::new(), |remedy| format!(" ({remedy})"));
    format!("{}: {}{remedy}", left_out.name, left_out.why)
}

/// Words of a command as a shell takes them.
fn command_line(words: &[String]) -> String {
    let plain = |char: char| char.is_ascii_alphanumeric() || "-_=+./:,@%".contains(char);
    let quoted = words.iter().map(|word| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}
