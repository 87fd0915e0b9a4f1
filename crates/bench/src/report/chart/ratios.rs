//! One subject against the reference in all measures: a dot with its interval for each, over the
//! noise that the control shows.

use maud::{Markup, html};

use crate::report::number;
use crate::report::view::{View, title};
use crate::results::{Ratio, SubjectInfo};

use super::axis::Logarithmic;
use super::palette::Palette;
use super::{Counter, WIDTH, fit, frame, n};

/// Of a measure.
const ROW: f64 = 16.0;

/// Where the axis begins, right of the names, and where it ends, left of the numbers.
const LEFT: f64 = 164.0;
const RIGHT: f64 = 312.0;

/// Space above for the axis' text, and below.
const ABOVE: f64 = 18.0;
const BELOW: f64 = 6.0;

/// Ratios beyond this are shown at the end of the axis.
const FARTHEST: f64 = 1000.0;

/// An axis reaches at least this far both ways.
const LEAST: f64 = 1.6;

/// Space beyond the farthest end, so that a dot fits.
const MARGIN: f64 = 1.12;

/// An axis that would have more powers of two has powers of ten.
const MOST_POWERS: usize = 7;

/// The chart of a subject, if it has any ratio.
pub(in crate::report) fn ratios(
    counter: &mut Counter,
    palette: &Palette<'_>,
    view: &View<'_>,
    subject: &SubjectInfo,
) -> Option<Markup> {
    let rows: Vec<(String, &str, &Ratio)> = view
        .results
        .measures
        .iter()
        .filter_map(|measure| {
            let ratio = view.summary(&measure.id, &subject.name)?.ratio.as_ref()?;
            Some((title(measure), measure.id.as_str(), ratio))
        })
        .collect();
    if rows.is_empty() {
        return None;
    }
    let axis = axis(&rows);
    let height = ABOVE + rows.len() as f64 * ROW + BELOW;
    let marks = html! {
        (grid(&axis, &rows, height))
        @for (at, (title, id, ratio)) in rows.iter().enumerate() {
            (row(palette, &axis, subject, ABOVE + at as f64 * ROW, title, id, ratio))
        }
    };
    let heading = format!("{} against {}", subject.name, view.results.settings.reference);
    let describe: Vec<String> = rows
        .iter()
        .map(|(title, _, ratio)| {
            let judged = if ratio.significant { "" } else { " (may be chance)" };
            format!("{title}: {}{judged}", number::ratio(ratio.value))
        })
        .collect();
    Some(frame(counter.next(), height, &heading, &describe.join("; "), &marks))
}

type Rows<'v> = [(String, &'v str, &'v Ratio)];

fn axis(rows: &Rows<'_>) -> Logarithmic {
    let ends = |end: fn(&Ratio) -> f64| rows.iter().map(move |(_, _, ratio)| end(ratio));
    let noise = ends(|ratio| ratio.noise.unwrap_or(1.0)).fold(LEAST, f64::max);
    let low = ends(|ratio| ratio.low).fold(1.0 / noise, f64::min).max(1.0 / FARTHEST);
    let high = ends(|ratio| ratio.high).fold(noise, f64::max).min(FARTHEST);
    Logarithmic::new(low / MARGIN, high * MARGIN, LEFT, RIGHT)
}

fn grid(axis: &Logarithmic, rows: &Rows<'_>, height: f64) -> Markup {
    let base = if axis.powers(2.0).len() > MOST_POWERS { 10.0 } else { 2.0 };
    html! {
        @for (at, (_, _, ratio)) in rows.iter().enumerate() {
            @if let Some(noise) = ratio.noise {
                @let from = axis.at(1.0 / noise);
                rect.noise x=(n(from)) y=(n(ABOVE + at as f64 * ROW))
                    width=(n(axis.at(noise) - from)) height=(n(ROW)) {}
            }
        }
        @for (power, value) in axis.powers(base) {
            @let x = n(axis.at(value));
            line.grid.one[power == 0] x1=(x) x2=(x) y1=(n(ABOVE)) y2=(n(height - BELOW)) {}
            text.tick x=(x) y=(n(ABOVE - 6.0)) text-anchor="middle" { (power_text(value)) }
        }
    }
}

fn power_text(value: f64) -> String {
    if value >= 1.0 { format!("{value}") } else { format!("1/{}", (1.0 / value).round()) }
}

fn row(
    palette: &Palette<'_>,
    axis: &Logarithmic,
    subject: &SubjectInfo,
    top: f64,
    title: &str,
    id: &str,
    ratio: &Ratio,
) -> Markup {
    let (middle, base) = (top + ROW / 2.0, n(top + ROW / 2.0 + 4.0));
    let certain = match ratio.level {
        Some(level) => format!("{} sure", number::percent(level)),
        None => format!("range of {}", number::counted(ratio.n.into(), "round")),
    };
    html! {
        g class=(palette.class(&subject.name)) {
            title {
                (title) ": " (number::ratio(ratio.value)) ", " (number::ratio(ratio.low)) " to "
                (number::ratio(ratio.high)) ", " (certain)
                @if !ratio.significant { "; may be chance" }
            }
            text.label x=(n(LEFT - 6.0)) y=(base) text-anchor="end" { (fit(id, LEFT - 6.0)) }
            line.interval x1=(n(axis.at(ratio.low))) x2=(n(axis.at(ratio.high)))
                y1=(n(middle)) y2=(n(middle)) {}
            circle.dot.hollow[!ratio.significant] cx=(n(axis.at(ratio.value))) cy=(n(middle)) r="4" {}
            text.value.soft[!ratio.significant] x=(n(WIDTH)) y=(base) text-anchor="end" {
                @if !ratio.significant { "≈" } (number::ratio(ratio.value))
            }
        }
    }
}
