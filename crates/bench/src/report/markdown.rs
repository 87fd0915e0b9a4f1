//! The report as GitHub shows it: the tables, without the charts.

use std::fmt::Write as _;

use super::document::{Block, Cell, Document, Table};
use super::printable;

pub(super) fn markdown(document: &Document) -> String {
    let mut out = format!("# {}\n\n{}\n\n", escaped(&document.title), escaped(&document.facts));
    let _ = writeln!(out, "{}\n", escaped(&document.legend));
    for banner in &document.banners {
        let _ = writeln!(out, "**{}**\n", escaped(banner));
    }
    for section in &document.sections {
        let _ = writeln!(out, "## {}\n", escaped(&section.title));
        for block in &section.blocks {
            match block {
                Block::Table(shown) => table(&mut out, shown),
                Block::List { heading, lines } => {
                    let _ = writeln!(out, "**{}**\n", escaped(heading));
                    for line in lines {
                        let _ = writeln!(out, "- {}", escaped(line));
                    }
                    out.push('\n');
                }
                Block::Command(command) => {
                    let _ = writeln!(out, "To repeat it:\n\n    {}\n", printable(command));
                }
                Block::Charts(_) => {}
            }
        }
    }
    out
}

fn table(out: &mut String, table: &Table) {
    let line = |out: &mut String, cells: &mut dyn Iterator<Item = String>| {
        let _ = writeln!(out, "| {} |", cells.collect::<Vec<_>>().join(" | "));
    };
    let header = std::iter::once(&table.caption).chain(&table.header);
    line(out, &mut header.map(|name| escaped(name)));
    let rule = if table.words { "---|" } else { "--:|" };
    let _ = writeln!(out, "|---|{}", rule.repeat(table.header.len()));
    for row in &table.rows {
        line(out, &mut std::iter::once(escaped(&row.name)).chain(row.cells.iter().map(figure)));
    }
    out.push('\n');
}

fn figure(cell: &Cell) -> String {
    let value = escaped(&cell.value);
    let parts = [
        Some(if cell.is_best { format!("**{value}**") } else { value }),
        cell.spread.as_ref().map(|spread| format!("({})", escaped(spread))),
        cell.ratio.as_ref().map(|ratio| escaped(&ratio.text)),
        cell.bad.as_ref().map(|bad| format!("**{}**", escaped(bad))),
        cell.note.as_ref().map(|note| escaped(note)),
    ];
    let parts = parts.into_iter().flatten().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join(" ")
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
