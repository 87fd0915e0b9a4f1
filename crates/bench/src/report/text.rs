//! The report for a terminal: aligned, at most 100 columns, control characters escaped.

use std::fmt::Write as _;

use crate::measure::Measure;
use crate::results::Ratio;

use super::number;
use super::printable;
use super::standing::{self, Meeting};
use super::view::{Cell, Table, View, cache_word, title};
use super::{cost, method};

/// Columns of a line.
const WIDTH: usize = 100;

/// Columns of a row's name at most.
const LABEL: usize = 38;

/// Between columns.
const GAP: usize = 2;

/// The whole report.
pub(super) fn text(view: &View<'_>) -> String {
    let mut out = String::new();
    head(&mut out, view);
    for family in view.families() {
        for table in &family.tables {
            let heading = format!("{}, {} ({})", family.name, table.scale.unit, table.direction());
            grid(&mut out, &heading, &figures(table));
        }
    }
    costs(&mut out, view);
    standings(&mut out, view);
    lists(&mut out, view);
    out
}

fn head(out: &mut String, view: &View<'_>) {
    let results = view.results;
    let run = format!(
        "{}, {}, link {}, size {}",
        results.program,
        results.started,
        method::link(view),
        results.settings.size
    );
    let legend = format!(
        "Medians of {}; ratios to {}, above 1 is better; ≈ may be chance.",
        number::counted(results.settings.rounds.into(), "round"),
        results.settings.reference
    );
    wrapped(out, "", &printable(&run));
    wrapped(out, "", &printable(&legend));
}

/// Rows of cells, the first of each its name; the first row is the header.
type Cells = Vec<Vec<String>>;

fn figures(table: &Table<'_>) -> Cells {
    let mut cells = vec![header(table.subjects.iter().map(|subject| subject.name.as_str()))];
    for row in &table.rows {
        let mut line = vec![label(row.measure, false)];
        line.extend(row.cells.iter().map(|cell| figure(table, cell)));
        cells.push(line);
    }
    cells
}

/// The measure's own name (titles are too long for a terminal), and what is cached.
fn label(measure: &Measure, whole: bool) -> String {
    let own = match measure.id.split_once('.') {
        Some((_, own)) if !whole => own,
        _ => &measure.id,
    };
    match cache_word(measure.cache) {
        Some(word) if !own.contains(word) => format!("{own}, {word}"),
        _ => own.to_owned(),
    }
}

fn header<'s>(names: impl Iterator<Item = &'s str>) -> Vec<String> {
    std::iter::once(String::new()).chain(names.map(str::to_owned)).collect()
}

fn figure(table: &Table<'_>, cell: &Cell<'_>) -> String {
    let Cell::Value { summary, wrong_data, .. } = cell else {
        return cell.word().unwrap_or_default().to_owned();
    };
    let value = table.scale.show(summary.median);
    let ratio = summary.ratio.as_ref().map_or(String::new(), |ratio| format!(" {}", judged(ratio)));
    let mark = if *wrong_data { " WRONG" } else { "" };
    format!("{value}{ratio}{mark}")
}

/// A ratio, marked if it may be chance.
fn judged(ratio: &Ratio) -> String {
    let mark = if ratio.significant { "" } else { "≈" };
    format!("{mark}{}", number::ratio(ratio.value))
}

/// Writes a table; subjects that do not fit go to another below it.
fn grid(out: &mut String, heading: &str, cells: &Cells) {
    let _ = writeln!(out, "\n{}", printable(heading));
    let columns = cells.first().map_or(0, Vec::len);
    let width = |column: usize| {
        cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0) + GAP
    };
    let label = cells.iter().map(|row| row[0].chars().count()).max().unwrap_or(0).min(LABEL);
    let mut next = 1;
    while next < columns {
        let first = next;
        let mut used = label;
        while next < columns && (next == first || used + width(next) <= WIDTH) {
            used += width(next);
            next += 1;
        }
        for row in cells {
            let _ = write!(out, "{:<label$}", cut(&printable(&row[0]), label));
            for (column, cell) in row.iter().enumerate().take(next).skip(first) {
                let width = width(column).min(WIDTH - label);
                let _ = write!(out, "{:>width$}", cut(&printable(cell), width));
            }
            out.push('\n');
        }
    }
}

fn cut(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    text.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
}

fn costs(out: &mut String, view: &View<'_>) {
    for table in cost::cpu(view) {
        let mut cells = vec![header(table.subjects.iter().map(|subject| subject.name.as_str()))];
        for row in &table.rows {
            let mut line = vec![label(row.measure, true)];
            line.extend(row.cells.iter().map(|&cell| cost::CpuRow::shown(cell)));
            cells.push(line);
        }
        grid(out, &format!("{}, client / server", table.per.name()), &cells);
    }
    let table = cost::memory(view);
    if !table.rows.is_empty() {
        let mut cells = vec![header(table.subjects.iter().map(|subject| subject.name.as_str()))];
        for (family, peaks) in &table.rows {
            let shown = |peak: &Option<u64>| peak.map_or("–".to_owned(), number::mebibytes);
            let mut line = vec![(*family).to_owned()];
            line.extend(peaks.iter().map(shown));
            cells.push(line);
        }
        grid(out, "greatest memory of the client side, MiB", &cells);
    }
}

fn standings(out: &mut String, view: &View<'_>) {
    let columns = ["best", "clearly", "better", "worse", "≈", "typical", "failed"];
    let mut cells = vec![header(columns.into_iter())];
    for standing in standing::standings(view) {
        let mut line = vec![standing.subject.name.clone()];
        line.extend(standing.cells());
        cells.push(line);
    }
    let reference = &view.results.settings.reference;
    grid(out, &format!("summary (better, worse, ≈, typical: than {reference})"), &cells);
    let Some(ours) = standing::ours(view) else { return };
    let (ahead, behind) = standing::extremes(view, &ours.name);
    meetings(out, &format!("{}: farthest ahead of the best other", ours.name), &ahead);
    meetings(out, &format!("{}: farthest behind the best other", ours.name), &behind);
}

fn meetings(out: &mut String, heading: &str, meetings: &[Meeting<'_>]) {
    if meetings.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", printable(heading));
    for meeting in meetings {
        let rival = cut(&printable(&format!(" against {}", meeting.rival)), WIDTH / 2);
        let room = WIDTH - 12 - rival.chars().count();
        let title = cut(&printable(&title(meeting.measure)), room);
        let _ = writeln!(out, "  {:>8}  {title}{rival}", judged(&meeting.ratio));
    }
}

fn lists(out: &mut String, view: &View<'_>) {
    let failures: Vec<String> = view.failures.iter().map(super::failure_line).collect();
    let left_out: Vec<String> = view.results.left_out.iter().map(super::left_out_line).collect();
    for (heading, lines) in
        [("failures", &failures), ("left out", &left_out), ("warnings", &view.warnings)]
    {
        if lines.is_empty() {
            continue;
        }
        let _ = writeln!(out, "\n{heading}");
        for line in lines {
            wrapped(out, "  - ", &printable(line));
        }
    }
}

/// A paragraph, broken at spaces; all of it stands right of the mark.
fn wrapped(out: &mut String, mark: &str, text: &str) {
    let indent = mark.chars().count();
    let mut column = indent;
    out.push_str(mark);
    for (at, word) in text.split_whitespace().enumerate() {
        let word = cut(word, WIDTH - indent);
        let len = word.chars().count();
        if column + 1 + len > WIDTH {
            let _ = write!(out, "\n{:indent$}", "");
            column = indent;
        } else if at > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(&word);
        column += len;
    }
    out.push('\n');
}
