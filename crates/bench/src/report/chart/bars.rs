//! One measure: a bar for each subject, with its quartiles as a whisker.

use maud::{Markup, html};

use crate::report::number;
use crate::report::view::{Cell, Row, Table, title};
use crate::results::SubjectInfo;

use super::axis::Linear;
use super::palette::Palette;
use super::{Counter, WIDTH, fit, frame, n};

/// Of a bar with the space around it.
const ROW: f64 = 22.0;

/// Of the bar alone.
const THICK: f64 = 14.0;

/// Where bars begin, right of the names.
const LEFT: f64 = 104.0;

/// Where bars end at most, left of the numbers.
const RIGHT: f64 = 250.0;

/// Where the values end; the ratios end at the chart's.
const VALUES: f64 = 298.0;

/// Space above the bars, and below them for the axis.
const ABOVE: f64 = 4.0;
const BELOW: f64 = 18.0;

/// The chart of a row of a table.
pub(in crate::report) fn bars(
    counter: &mut Counter,
    palette: &Palette<'_>,
    table: &Table<'_>,
    row: &Row<'_>,
) -> Markup {
    let shown: Vec<(&SubjectInfo, &Cell<'_>)> = table
        .subjects
        .iter()
        .copied()
        .zip(&row.cells)
        .filter(|(_, cell)| !matches!(cell, Cell::Absent))
        .collect();
    let axis = Linear::new(greatest(&shown) / table.scale.one, LEFT, RIGHT);
    let height = ABOVE + shown.len() as f64 * ROW + BELOW;
    let marks = html! {
        (grid(&axis, height))
        @for (at, (subject, cell)) in shown.iter().enumerate() {
            (bar(palette, table, &axis, ABOVE + at as f64 * ROW, subject, cell))
        }
    };
    let describe = describe(table, &shown);
    frame(counter.next(), height, &title(row.measure), &describe, &marks)
}

/// The end of the axis. The local disk, and the page cache, are often so much faster that all else
/// would vanish: their bar is cut where the others end.
fn greatest(shown: &[(&SubjectInfo, &Cell<'_>)]) -> f64 {
    let greatest = |local: bool| {
        shown
            .iter()
            .filter(|(subject, _)| (subject.kind == "local") == local)
            .filter_map(|(_, cell)| match cell {
                Cell::Value { summary, .. } => Some(summary.high),
                Cell::Failed { .. } | Cell::Absent => None,
            })
            .fold(0.0, f64::max)
    };
    let others = greatest(false);
    if others > 0.0 { others } else { greatest(true) }
}

fn grid(axis: &Linear, height: f64) -> Markup {
    let bottom = height - BELOW;
    html! {
        @for tick in axis.ticks() {
            @let x = n(axis.at(tick));
            line.grid x1=(x) x2=(x) y1=(n(ABOVE)) y2=(n(bottom)) {}
            text.tick x=(x) y=(n(bottom + 12.0)) text-anchor="middle" { (tick_text(tick)) }
        }
    }
}

fn tick_text(tick: f64) -> String {
    let thousands = |value: f64, unit: &str| {
        let text = format!("{value:.1}");
        format!("{}{unit}", text.strip_suffix(".0").unwrap_or(&text))
    };
    match tick {
        tick if tick >= 1e6 => thousands(tick / 1e6, " M"),
        tick if tick >= 1e4 => thousands(tick / 1e3, " k"),
        // Steps have at most two digits that count: 0.25, 2.5, 25.
        tick => {
            let text = format!("{tick:.6}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    }
}

fn bar(
    palette: &Palette<'_>,
    table: &Table<'_>,
    axis: &Linear,
    top: f64,
    subject: &SubjectInfo,
    cell: &Cell<'_>,
) -> Markup {
    let base = n(top + ROW / 2.0 + 4.0);
    html! {
        g class=(palette.class(&subject.name)) {
            title { (subject.name) ": " (words(table, cell)) }
            text.name x=(n(LEFT - 6.0)) y=(base) text-anchor="end" {
                (fit(&subject.name, LEFT - 6.0))
            }
            @match cell {
                Cell::Value { summary, wrong_data, .. } => {
                    @let (value, one) = (summary.median, table.scale.one);
                    @let end = axis.at(value / one);
                    rect.bar x=(n(LEFT)) y=(n(top + (ROW - THICK) / 2.0))
                        width=(n((end - LEFT).max(0.5))) height=(n(THICK)) {}
                    @if value / one > axis.max() * 1.001 {
                        (cut_mark(top))
                    } @else if summary.high > summary.low {
                        (whisker(axis.at(summary.low / one), axis.at(summary.high / one), top))
                    }
                    text.value x=(n(VALUES)) y=(base) text-anchor="end" {
                        (table.scale.show(value))
                    }
                    @if *wrong_data {
                        text.value.bad x=(n(WIDTH)) y=(base) text-anchor="end" { "wrong!" }
                    } @else if let Some(ratio) = &summary.ratio {
                        text.value.soft[!ratio.significant] x=(n(WIDTH)) y=(base) text-anchor="end" {
                            @if !ratio.significant { "≈" } (number::ratio(ratio.value))
                        }
                    }
                }
                _ => text.value.bad x=(n(LEFT + 4.0)) y=(base) { (cell.word().unwrap_or_default()) }
            }
        }
    }
}

/// From quartile to quartile.
fn whisker(low: f64, high: f64, top: f64) -> Markup {
    let middle = top + ROW / 2.0;
    let (above, below) = (middle - 4.0, middle + 4.0);
    html! {
        path.whisker d=(format!(
            "M{low} {above}V{below}M{low} {middle}H{high}M{high} {above}V{below}",
            low = n(low), high = n(high), above = n(above), below = n(below), middle = n(middle)
        )) {}
    }
}

/// Two strokes through the end of a bar that goes on beyond the axis.
fn cut_mark(top: f64) -> Markup {
    let (above, below) = (top + (ROW - THICK) / 2.0 - 1.0, top + (ROW + THICK) / 2.0 + 1.0);
    html! {
        @for x in [RIGHT - 14.0, RIGHT - 9.0] {
            path.cut d=(format!("M{} {}L{} {}", n(x), n(below), n(x + 5.0), n(above))) {}
        }
    }
}

fn words(table: &Table<'_>, cell: &Cell<'_>) -> String {
    let Cell::Value { summary, wrong_data, .. } = cell else {
        return cell.word().unwrap_or_default().to_owned();
    };
    let shown = |value: f64| table.scale.show(value);
    let mut words = format!(
        "{} {}, quartiles {} to {}, {}",
        shown(summary.median),
        table.scale.unit,
        shown(summary.low),
        shown(summary.high),
        number::counted(summary.n.into(), "sample")
    );
    if let Some(ratio) = &summary.ratio {
        let judged = if ratio.significant { "" } else { ", may be chance" };
        words += &format!(
            "; {} as good as {} ({} to {}){judged}",
            number::ratio(ratio.value),
            ratio.to,
            number::ratio(ratio.low),
            number::ratio(ratio.high)
        );
    }
    if *wrong_data {
        words.push_str("; wrong data in some rounds");
    }
    words
}

fn describe(table: &Table<'_>, shown: &[(&SubjectInfo, &Cell<'_>)]) -> String {
    let bars = shown.iter().map(|(subject, cell)| {
        let value = cell.median().map(|median| table.scale.show(median));
        let word = || cell.word().unwrap_or_default().to_owned();
        format!("{} {}", subject.name, value.unwrap_or_else(word))
    });
    let bars: Vec<String> = bars.collect();
    format!("{}, {}: {}", table.scale.unit, table.direction(), bars.join("; "))
}
