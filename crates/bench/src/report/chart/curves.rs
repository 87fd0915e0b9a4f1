//! How long single operations took: for each subject, the part of them that was done by a time.

use maud::{Markup, html};

use crate::measure::Measure;
use crate::report::number;
use crate::report::view::{View, title};
use crate::results::{Latency, SubjectInfo};
use crate::stats::median;

use super::axis::Logarithmic;
use super::palette::Palette;
use super::{Counter, frame, n};

/// Of the plot.
const LEFT: f64 = 38.0;
const RIGHT: f64 = 350.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 190.0;

/// With the text below.
const HEIGHT: f64 = 222.0;

/// Points of a curve: more cannot be seen.
const POINTS: usize = 120;

/// The curve begins where this part of the operations was done, and ends where all but this part
/// was: single operations are in the table.
const TAIL: f64 = 0.001;

/// The latencies of one measure of one subject, over all rounds.
pub(in crate::report) struct Curve<'v> {
    pub(in crate::report) subject: &'v SubjectInfo,
    /// Median over the rounds of each percentile: 50, 90, 99, 99.9, the greatest.
    pub(in crate::report) percentiles: [f64; 5],
    pub(in crate::report) operations: u64,
    /// Upper ends in microseconds, and the part of all operations that was done by then.
    points: Vec<(f64, f64)>,
}

/// The curves of a measure, of all subjects whose single operations were timed.
pub(in crate::report) fn curves_of<'v>(view: &'v View<'_>, measure: &Measure) -> Vec<Curve<'v>> {
    let curve = |subject: &'v SubjectInfo| {
        let cell = view.index.cell(&measure.id, &subject.name)?;
        let rounds: Vec<&Latency> = cell.measured().filter_map(|m| m.latency.as_ref()).collect();
        let of = |part: fn(&Latency) -> f64| {
            median(&rounds.iter().map(|latency| part(latency)).collect::<Vec<_>>())
        };
        Some(Curve {
            subject,
            percentiles: [
                of(|latency| latency.p50_us)?,
                of(|latency| latency.p90_us)?,
                of(|latency| latency.p99_us)?,
                of(|latency| latency.p999_us)?,
                of(|latency| latency.max_us)?,
            ],
            operations: rounds.iter().map(|latency| latency.count).sum(),
            points: points(&rounds),
        })
    };
    view.results.subjects.iter().filter_map(curve).collect()
}

/// All rounds in one distribution.
fn points(rounds: &[&Latency]) -> Vec<(f64, f64)> {
    let buckets = rounds.iter().flat_map(|latency| latency.buckets.iter().copied());
    let mut buckets: Vec<(f64, u64)> = buckets.filter(|(end, _)| end.is_finite()).collect();
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all: u64 = buckets.iter().map(|&(_, count)| count).sum();
    let mut done = 0;
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (end, count) in buckets {
        done += count;
        let part = done as f64 / all.max(1) as f64;
        match points.last_mut() {
            Some(last) if last.0 == end => last.1 = part,
            _ => points.push((end, part)),
        }
    }
    let every = points.len().div_ceil(POINTS).max(1);
    let last = points.len().saturating_sub(1);
    let kept = points.iter().enumerate().filter(|(at, _)| at % every == 0 || *at == last);
    kept.map(|(_, &point)| point).collect()
}

/// The chart of a measure, if any subject has points.
pub(in crate::report) fn curves(
    counter: &mut Counter,
    palette: &Palette<'_>,
    measure: &Measure,
    curves: &[Curve<'_>],
) -> Option<Markup> {
    let axis = axis(curves)?;
    let marks = html! {
        (grid(&axis))
        @for curve in curves.iter().filter(|curve| !curve.points.is_empty()) {
            g class=(palette.class(&curve.subject.name)) {
                title { (curve.subject.name) ": " (words(curve)) }
                path.curve d=(path(&axis, &curve.points)) {}
            }
        }
    };
    let describe: Vec<String> =
        curves.iter().map(|curve| format!("{}: {}", curve.subject.name, words(curve))).collect();
    let heading = format!("{}: part of the operations done by a time", title(measure));
    Some(frame(counter.next(), HEIGHT, &heading, &describe.join("; "), &marks))
}

fn words(curve: &Curve<'_>) -> String {
    let [half, _, most, ..] = curve.percentiles;
    format!("half within {}, 99 % within {}", number::duration_us(half), number::duration_us(most))
}

fn axis(curves: &[Curve<'_>]) -> Option<Logarithmic> {
    let at = |points: &[(f64, f64)], part: f64| {
        points.iter().find(|point| point.1 >= part).map(|point| point.0.max(0.01))
    };
    let ends = |part: f64| curves.iter().filter_map(move |curve| at(&curve.points, part));
    let low = ends(TAIL).reduce(f64::min)?;
    let high = ends(1.0 - TAIL).reduce(f64::max)?;
    Some(Logarithmic::new(low / 1.5, (high * 1.5).max(low * 10.0), LEFT, RIGHT))
}

fn height_of(part: f64) -> f64 {
    BOTTOM - (BOTTOM - TOP) * part
}

fn path(axis: &Logarithmic, points: &[(f64, f64)]) -> String {
    let mut path = String::new();
    for (at, &(end, part)) in points.iter().enumerate() {
        let command = if at == 0 { 'M' } else { 'L' };
        path += &format!("{command}{} {}", n(axis.at(end)), n(height_of(part)));
    }
    path
}

fn grid(axis: &Logarithmic) -> Markup {
    let decades = axis.powers(10.0);
    html! {
        @for percent in [0_u8, 25, 50, 75, 100] {
            @let y = height_of(f64::from(percent) / 100.0);
            line.grid x1=(n(LEFT)) x2=(n(RIGHT)) y1=(n(y)) y2=(n(y)) {}
            text.tick x=(n(LEFT - 5.0)) y=(n(y + 3.5)) text-anchor="end" { (percent) " %" }
        }
        @for (_, value) in &decades {
            @let x = n(axis.at(*value));
            line.grid x1=(x) x2=(x) y1=(n(TOP)) y2=(n(BOTTOM)) {}
            text.tick x=(x) y=(n(BOTTOM + 14.0)) text-anchor="middle" { (decade(*value)) }
        }
        text.tick x=(n(RIGHT)) y=(n(HEIGHT - 4.0)) text-anchor="end" { "done within (log scale)" }
    }
}

fn decade(us: f64) -> String {
    let whole = |value: f64, unit: &str| format!("{} {unit}", (value * 100.0).round() / 100.0);
    match us {
        us if us < 999.0 => whole(us, "µs"),
        us if us < 999_000.0 => whole(us / 1e3, "ms"),
        us => whole(us / 1e6, "s"),
    }
}
