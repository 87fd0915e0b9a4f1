//! The report as GitHub shows it: the tables, without the charts.

use std::fmt::Write as _;

use crate::results::Ratio;

use super::standing::{self, Meeting};
use super::view::{Cell, Table, View, title};
use super::{cost, method, number};

/// The whole report.
pub(super) fn markdown(view: &View<'_>) -> String {
    let mut out = String::new();
    let results = view.results;
    let _ = writeln!(out, "# {}, {}\n", escaped(&results.program), escaped(&results.started));
    standings(&mut out, view);
    list(&mut out, "Warnings", &view.warnings);
    let failures: Vec<String> = view.failures.iter().map(super::failure_line).collect();
    list(&mut out, "Failures", &failures);
    let left_out: Vec<String> = results.left_out.iter().map(super::left_out_line).collect();
    list(&mut out, "Left out", &left_out);
    for family in view.families() {
        let _ = writeln!(out, "## {}\n", escaped(family.name));
        for table in &family.tables {
            let corner = format!("{} ({})", table.scale.unit, table.direction());
            let names = table.subjects.iter().map(|subject| subject.name.as_str());
            table_head(&mut out, &corner, names);
            for row in &table.rows {
                let cells = row.cells.iter().map(|cell| figure(table, cell));
                table_row(&mut out, &title(row.measure), cells);
            }
            out.push('\n');
        }
    }
    costs(&mut out, view);
    method_section(&mut out, view);
    out
}

fn table_head<'s>(out: &mut String, corner: &str, names: impl Iterator<Item = &'s str>) {
    let mut rule = "|---|".to_owned();
    let _ = write!(out, "| {} |", escaped(corner));
    for name in names {
        let _ = write!(out, " {} |", escaped(name));
        rule.push_str("--:|");
    }
    let _ = writeln!(out, "\n{rule}");
}

/// The cells are Markdown already.
fn table_row(out: &mut String, name: &str, cells: impl Iterator<Item = String>) {
    let _ = write!(out, "| {} |", escaped(name));
    for cell in cells {
        let _ = write!(out, " {cell} |");
    }
    out.push('\n');
}

fn figure(table: &Table<'_>, cell: &Cell<'_>) -> String {
    let Cell::Value { summary, best, wrong_data } = cell else {
        return cell.word().unwrap_or_default().to_owned();
    };
    let value = table.scale.show(summary.median);
    let mut text = if *best { format!("**{value}**") } else { value };
    if summary.n > 1 {
        let (low, high) = (table.scale.show(summary.low), table.scale.show(summary.high));
        let _ = write!(text, " ({low}–{high})");
    }
    if let Some(ratio) = &summary.ratio {
        let _ = write!(text, " {}", judged(ratio));
    }
    if *wrong_data {
        text.push_str(" **wrong data**");
    }
    text
}

fn judged(ratio: &Ratio) -> String {
    let mark = if ratio.significant { "" } else { "≈" };
    format!("{mark}{}", number::ratio(ratio.value))
}

fn standings(out: &mut String, view: &View<'_>) {
    let reference = &view.results.settings.reference;
    let better = format!("better than {reference}");
    let columns =
        ["best in", "clearly", better.as_str(), "worse", "≈", "typical ratio", "failed samples"];
    table_head(out, "subject", columns.into_iter());
    for standing in standing::standings(view) {
        table_row(out, &standing.subject.name, standing.cells().into_iter());
    }
    out.push('\n');
    let Some(ours) = standing::ours(view) else { return };
    let (ahead, behind) = standing::extremes(view, &ours.name);
    meetings(out, &format!("{}, farthest ahead of the best other", ours.name), &ahead);
    meetings(out, &format!("{}, farthest behind the best other", ours.name), &behind);
}

fn meetings(out: &mut String, heading: &str, meetings: &[Meeting<'_>]) {
    let lines = meetings.iter().map(|meeting| {
        let ratio = judged(&meeting.ratio);
        format!("{ratio} {} (against {})", title(meeting.measure), meeting.rival)
    });
    list(out, heading, &lines.collect::<Vec<_>>());
}

fn list(out: &mut String, heading: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(out, "**{}**\n", escaped(heading));
    for line in lines {
        let _ = writeln!(out, "- {}", escaped(line));
    }
    out.push('\n');
}

fn costs(out: &mut String, view: &View<'_>) {
    let tables = cost::cpu(view);
    let memory = cost::memory(view);
    if tables.is_empty() && memory.rows.is_empty() {
        return;
    }
    out.push_str("## CPU and memory\n\n");
    for table in &tables {
        let names = table.subjects.iter().map(|subject| subject.name.as_str());
        table_head(out, &format!("{}, client / server", table.per.name()), names);
        for row in &table.rows {
            table_row(
                out,
                &title(row.measure),
                row.cells.iter().map(|&cell| cost::CpuRow::shown(cell)),
            );
        }
        out.push('\n');
    }
    if !memory.rows.is_empty() {
        let names = memory.subjects.iter().map(|subject| subject.name.as_str());
        table_head(out, "greatest memory of the client side, MiB", names);
        for (family, peaks) in &memory.rows {
            let shown = |peak: &Option<u64>| peak.map_or("–".to_owned(), number::mebibytes);
            table_row(out, family, peaks.iter().map(shown));
        }
        out.push('\n');
    }
}

fn method_section(out: &mut String, view: &View<'_>) {
    out.push_str("## Machine and method\n\n");
    table_head(out, "", [""].into_iter());
    for (name, value) in method::facts(view) {
        table_row(out, name, std::iter::once(escaped(&value)));
    }
    out.push('\n');
    table_head(out, "subject", ["kind", "version", "cipher", "command"].into_iter());
    for subject in &view.results.subjects {
        let cipher = subject.cipher.as_deref().unwrap_or("–");
        let cells =
            [subject.kind.as_str(), &subject.version, cipher, &subject.command].map(escaped);
        table_row(out, &subject.name, cells.into_iter());
    }
    out.push('\n');
    for sentence in method::sentences(view) {
        let _ = writeln!(out, "- {}", escaped(&sentence));
    }
    if !view.results.settings.command.is_empty() {
        let command = super::command_line(&view.results.settings.command);
        let _ = writeln!(out, "\nTo repeat it:\n\n    {}", super::printable(&command));
    }
}

/// Text that Markdown shows as it is, on one line.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\n' | '\r' | '\t' => out.push(' '),
            '|' | '<' | '>' | '*' | '_' | '`' | '[' | ']' | '\\' | '#' | '~' => {
                out.push('\\');
                out.push(char);
            }
            char if char.is_control() => out.extend(char.escape_default()),
            char => out.push(char),
        }
    }
    out
}
