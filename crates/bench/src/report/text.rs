//! The report for a terminal: aligned, at most 100 columns, control characters escaped.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, presets};

use super::document::{Block, Cell, Document, Table};
use super::printable;
use super::view::shortened;

/// Columns of a line.
const WIDTH: usize = 100;

/// Columns of a row's name, of a column's, and of a cell, at most.
const NAME: usize = 40;
const HEADER: usize = 24;
const CELL: usize = 50;

pub(super) fn text(document: &Document) -> String {
    let mut out = String::new();
    paragraph(&mut out, "", &format!("{}, {}", document.title, document.facts));
    paragraph(&mut out, "", &document.legend);
    document.banners.iter().for_each(|banner| paragraph(&mut out, "! ", banner));
    // The first sections come last, where they stay on the screen.
    let (first, rest) = document.sections.split_at(document.first.min(document.sections.len()));
    let sections = rest.iter().chain(first.iter().rev()).filter(|section| !section.only_in_files);
    for block in sections.flat_map(|section| &section.blocks) {
        match block {
            Block::Table(shown) => table(&mut out, shown),
            Block::List { heading, lines } => {
                let _ = writeln!(out, "\n{}", printable(heading).to_lowercase());
                lines.iter().for_each(|line| paragraph(&mut out, "  - ", line));
            }
            Block::Charts(_) | Block::Command(_) => {}
        }
    }
    out
}

/// Writes text wrapped for a terminal, its first line behind a mark.
pub fn paragraph(out: &mut String, mark: &str, text: &str) {
    let indent = " ".repeat(mark.chars().count());
    let options = textwrap::Options::new(WIDTH).initial_indent(mark).subsequent_indent(&indent);
    for line in textwrap::wrap(&printable(text), options) {
        let _ = writeln!(out, "{line}");
    }
}

/// Writes a table; columns that do not fit go to another table below it.
pub(crate) fn table(out: &mut String, table: &Table) {
    let _ = writeln!(out);
    paragraph(out, "", &table.caption);
    let mut first = 0;
    while first < table.header.len() {
        let mut shown = part(table, first, first + 1);
        let mut next = first + 1;
        while next < table.header.len() {
            let wider = part(table, first, next + 1);
            if wider.lines().next().is_some_and(|line| line.chars().count() > WIDTH) {
                break;
            }
            (shown, next) = (wider, next + 1);
        }
        for line in shown.lines() {
            let _ = writeln!(out, "{}", line.trim_end());
        }
        first = next;
    }
}

/// Some columns of a table, behind the names of the rows.
fn part(table: &Table, first: usize, next: usize) -> String {
    let mut part = comfy_table::Table::new();
    part.load_style(presets::NOTHING);
    let header = table.header[first..next].iter().map(|name| shortened(&printable(name), HEADER));
    part.set_header(std::iter::once(String::new()).chain(header));
    for row in &table.rows {
        let cells = row.cells[first..next].iter().map(|cell| cut(&words(cell), CELL));
        part.add_row(std::iter::once(shortened(&printable(&row.short), NAME)).chain(cells));
    }
    for column in part.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    if let Some(names) = part.column_mut(0) {
        names.set_padding((0, 1));
    }
    part.to_string()
}

fn words(cell: &Cell) -> String {
    let ratio = cell.ratio.as_ref().map(|ratio| ratio.text.as_str());
    let value = Some(cell.value.as_str()).filter(|value| !value.is_empty());
    let parts = [value, ratio, cell.bad.as_deref(), cell.note.as_deref()];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn cut(text: &str, columns: usize) -> String {
    let text = printable(text);
    if text.chars().count() <= columns {
        return text;
    }
    text.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
}
