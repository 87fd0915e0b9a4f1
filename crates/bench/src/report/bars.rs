//! The chart of one measure as SVG: a bar for each subject, with its quartiles as a whisker.
//!
//! All charts have the same width, so that on a phone one fills the screen and on a desk several
//! stand side by side. Colours are classes of the page's style sheet, for light and dark; nothing
//! depends on colour alone. `plotters` writes fixed colours and no titles of single marks, so the
//! SVG is written here.

use maud::{Markup, html};

use crate::measure::Measure;
use crate::plan::is_ours;
use crate::results::SubjectInfo;
use crate::stats::Spread;

use super::document::{Cell, Drawing, WRONG_DATA};
use super::view::{Figure, Figures, shortened, title};

/// Width of a chart in its own units: about the pixels of a phone.
pub(super) const WIDTH: f64 = 360.0;

/// Width of a character of the small text in bold.
const CHARACTER: f64 = 7.0;

/// Height of a bar with the space around it, and of the bar alone.
const ROW: f64 = 22.0;
const THICK: f64 = 14.0;

/// Ends of the longest bar: right of the names, left of the values.
const LEFT: f64 = 104.0;
const RIGHT: f64 = 250.0;

/// Characters of a name.
const NAME: usize = ((LEFT - 6.0) / CHARACTER) as usize;

/// Right end of the values; the ratios end at the chart's.
const VALUES: f64 = 298.0;

/// Space above the bars, and below them for the axis.
const ABOVE: f64 = 4.0;
const BELOW: f64 = 18.0;

/// Colours for peers in the style sheet.
const PEERS: usize = 6;

/// One measure of several subjects.
struct Chart {
    bars: Vec<Bar>,
    /// The value at the right end of the axis.
    greatest: f64,
}

struct Bar {
    name: String,
    class: String,
    /// Quartiles and median, in the unit shown; `None` for a failure.
    value: Option<[f64; 3]>,
    cell: Cell,
}

/// A chart for each wanted row of a table.
pub(super) fn of_rows(figures: &Figures<'_>, wanted: impl Fn(&Measure) -> bool) -> Vec<Drawing> {
    let chart = |(measure, cells): &(&Measure, Vec<Figure<'_>>)| {
        let mut peers = 0;
        let bars = figures.subjects.iter().zip(cells).filter_map(|(subject, figure)| {
            let class = class(subject, &mut peers);
            let value = match figure {
                Figure::Absent => return None,
                Figure::Failed { .. } => None,
                Figure::Value { summary, .. } => {
                    let Spread { low, median, high, .. } = summary.spread;
                    Some([low, median, high].map(|value| value / figures.scale.one))
                }
            };
            let name = subject.name.clone();
            Some(Bar { name, class, value, cell: Cell::of(figure, figures) })
        });
        // The local disk is often so much faster that all other bars would vanish: its bar is
        // cut at the end of the others' axis.
        let greatest = |local: bool| {
            let kinds = figures.subjects.iter().zip(cells);
            let highs = kinds.filter(|(subject, _)| (subject.kind == "local") == local);
            let highs = highs.filter_map(|(_, figure)| match figure {
                Figure::Value { summary, .. } => Some(summary.spread.high / figures.scale.one),
                _ => None,
            });
            highs.fold(0.0, f64::max)
        };
        let others = greatest(false);
        let greatest = if others > 0.0 { others } else { greatest(true) };
        let unit = format!("{}, {}", figures.scale.unit, figures.direction());
        Chart::new(bars.collect(), greatest).drawn(title(measure), unit)
    };
    figures.rows.iter().filter(|(measure, _)| wanted(measure)).map(chart).collect()
}

impl Chart {
    fn new(bars: Vec<Bar>, greatest: f64) -> Chart {
        Chart { bars, greatest: if greatest > 0.0 { greatest } else { 1.0 } }
    }

    fn drawn(&self, title: String, unit: String) -> Drawing {
        let height = ABOVE + self.bars.len() as f64 * ROW + BELOW;
        let bars: Vec<String> =
            self.bars.iter().map(|bar| format!("{} {}", bar.name, bar.word())).collect();
        let marks = html! {
            @for tick in ticks(self.greatest) {
                @let x = n(self.at(tick));
                line.grid x1=(x) x2=(x) y1=(n(ABOVE)) y2=(n(height - BELOW)) {}
                text.tick x=(x) y=(n(height - 6.0)) text-anchor="middle" { (tick_text(tick)) }
            }
            @for (row, bar) in self.bars.iter().enumerate() {
                (self.bar(bar, ABOVE + row as f64 * ROW))
            }
        };
        let described = format!("{unit}: {}", bars.join("; "));
        Drawing { name: title.clone(), title, caption: unit, described, height, marks }
    }

    /// The position of a value; a value beyond the axis is at its end.
    fn at(&self, value: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * (value / self.greatest).clamp(0.0, 1.0)
    }

    fn bar(&self, bar: &Bar, top: f64) -> Markup {
        let base = n(top + ROW / 2.0 + 4.0);
        let ratio = bar.cell.ratio.as_ref().map_or("", |ratio| ratio.text.as_str());
        html! {
            g class=(bar.class) {
                title { (bar.name) ": " (bar.word()) " " (ratio) }
                text.name x=(n(LEFT - 6.0)) y=(base) text-anchor="end" { (shortened(&bar.name, NAME)) }
                @if let Some([low, median, high]) = bar.value {
                    rect.bar x=(n(LEFT)) y=(n(top + (ROW - THICK) / 2.0))
                        width=(n((self.at(median) - LEFT).max(0.5))) height=(n(THICK)) {}
                    @if median > self.greatest * 1.001 {
                        (cut_mark(top))
                    } @else if high > low {
                        (whisker(self.at(low), self.at(high), top + ROW / 2.0))
                    }
                    text.value x=(n(VALUES)) y=(base) text-anchor="end" { (bar.word()) }
                    @if bar.cell.bad.as_deref() == Some(WRONG_DATA) {
                        text.value.bad x=(WIDTH) y=(base) text-anchor="end" { "wrong!" }
                    } @else {
                        text.value x=(WIDTH) y=(base) text-anchor="end" { (ratio) }
                    }
                } @else {
                    text.value.bad x=(n(LEFT + 4.0)) y=(base) { (bar.word()) }
                }
            }
        }
    }
}

impl Bar {
    /// The value, or the failure.
    fn word(&self) -> &str {
        let failure = self.cell.bad.as_deref().filter(|_| self.value.is_none());
        failure.unwrap_or(&self.cell.value)
    }
}

/// The colour of a subject.
fn class(subject: &SubjectInfo, peers: &mut usize) -> String {
    let control = if subject.control_of.is_some() { " control" } else { "" };
    if is_ours(&subject.name) {
        return format!("ours{control}");
    }
    if matches!(subject.kind.as_str(), "floor" | "local") || subject.control_of.is_some() {
        return format!("yardstick{control}");
    }
    *peers += 1;
    format!("peer{}", (*peers - 1) % PEERS + 1)
}

/// 0 and two to five round numbers.
pub(super) fn ticks(greatest: f64) -> Vec<f64> {
    let rough = greatest / 4.0;
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power);
    let step = steps.into_iter().find(|&step| step >= rough * 0.999).unwrap_or(rough);
    let count = (greatest / step * 1.000_001).floor() as u32;
    (0..=count).map(|tick| f64::from(tick) * step).collect()
}

pub(super) fn tick_text(tick: f64) -> String {
    let (value, unit) = match tick {
        tick if tick >= 1e6 => (tick / 1e6, " M"),
        tick if tick >= 1e4 => (tick / 1e3, " k"),
        tick => (tick, ""),
    };
    let text = format!("{value:.6}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// From quartile to quartile.
fn whisker(low: f64, high: f64, middle: f64) -> Markup {
    let (low, high, above, below) = (n(low), n(high), n(middle - 4.0), n(middle + 4.0));
    let middle = n(middle);
    let path = format!("M{low} {above}V{below}M{low} {middle}H{high}M{high} {above}V{below}");
    html! { path.whisker d=(path) {} }
}

/// Two strokes through the end of a bar that exceeds the axis.
fn cut_mark(top: f64) -> Markup {
    let (above, below) = (top + (ROW - THICK) / 2.0 - 1.0, top + (ROW + THICK) / 2.0 + 1.0);
    html! {
        @for x in [RIGHT - 14.0, RIGHT - 9.0] {
            path.cut d=(format!("M{} {}L{} {}", n(x), n(below), n(x + 5.0), n(above))) {}
        }
    }
}

/// A coordinate with one decimal at most.
pub(super) fn n(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        for max in [0.003, 0.9, 1.0, 7.3, 10.0, 43.0, 99.0, 412.0, 1e6] {
            let ticks = ticks(max);
            assert!((3..=6).contains(&ticks.len()), "{max}: {ticks:?}");
            assert_eq!(ticks[0], 0.0);
            assert!(ticks.iter().all(|&tick| tick <= max * 1.001), "{max}: {ticks:?}");
        }
        assert_eq!(ticks(412.0), [0.0, 200.0, 400.0]);
    }

    #[test]
    fn values_are_where_they_belong() {
        let chart = Chart::new(Vec::new(), 10.0);
        let middle = (LEFT + RIGHT) / 2.0;
        assert_eq!((chart.at(0.0), chart.at(5.0), chart.at(99.0)), (LEFT, middle, RIGHT));
    }
}
