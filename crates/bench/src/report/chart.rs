//! Charts as SVG, to be put into the page.
//!
//! All have the same width, so that on a phone one fills the screen and its text keeps its size,
//! and on a desk several stand side by side. Colours are classes, which the page's style sheet
//! gives a meaning in light and in dark; nothing depends on colour alone.

mod axis;
pub(super) mod bars;
pub(super) mod curves;
pub(super) mod palette;
pub(super) mod ratios;

use maud::{Markup, html};

/// Width of every chart, in its own units: about the pixels of a phone.
const WIDTH: f64 = 360.0;

/// Units of a character of the small text, on the safe side for the fonts that systems have.
const CHARACTER: f64 = 6.2;

/// Numbers for the charts of a page, so that their titles have names of their own.
#[derive(Default)]
pub(super) struct Counter(u32);

impl Counter {
    fn next(&mut self) -> u32 {
        self.0 += 1;
        self.0
    }
}

/// The frame of a chart: its size, and what a screen reader says of it.
fn frame(number: u32, height: f64, title: &str, describe: &str, marks: &Markup) -> Markup {
    let (title_id, describe_id) = (format!("t{number}"), format!("d{number}"));
    let labelled = format!("{title_id} {describe_id}");
    html! {
        svg viewBox=(format!("0 0 {} {}", n(WIDTH), n(height))) role="img" aria-labelledby=(labelled) {
            title id=(title_id) { (title) }
            desc id=(describe_id) { (describe) }
            (marks)
        }
    }
}

/// A coordinate with as many digits as can be seen.
fn n(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

/// Text that fits into a width, cut if it must be.
fn fit(text: &str, width: f64) -> String {
    // At least one character, and far below what a usize holds.
    let room = ((width / CHARACTER).floor()).max(1.0) as usize;
    if text.chars().count() <= room {
        return text.to_owned();
    }
    text.chars().take(room - 1).chain(['…']).collect()
}
