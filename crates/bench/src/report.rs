//! A run for readers: HTML with charts, Markdown, and text for a terminal.
//!
//! Invariants:
//! 1. All forms show one document, made from the samples by [`crate::stats`].
//! 2. The page is one file: nothing is fetched, no script runs, and a policy says so to the
//!    browser.
//! 3. Names and words from outside are escaped for the form in which they are shown.

mod bars;
mod cpu_trace;
mod document;
mod html;
mod markdown;
mod method;
mod published;
mod ranking;
mod text;
mod view;

pub(crate) use document::{Table, row};
pub(crate) use method::circumstances;
pub use text::paragraph;
pub(crate) use text::table;

use crate::results::Results;

use view::View;

/// One self-contained page: tables, charts, environment and method. It needs no script and no
/// network, and follows the reader's light or dark theme.
pub fn html(results: &Results) -> String {
    html::page(&document::document(&View::of(results)))
}

/// The tables in GitHub's Markdown.
pub fn markdown(results: &Results) -> String {
    markdown::markdown(&document::document(&View::of(results)))
}

/// The tables for a terminal of 100 columns.
pub fn text(results: &Results) -> String {
    text::text(&document::document(&View::of(results)))
}

/// Text from outside, safe for a terminal (see [`base::printable()`]).
pub fn printable(text: &str) -> String {
    base::printable(text.as_bytes())
}
