//! The report as one HTML file.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::bars::{WIDTH, n};
use super::document::{Block, Cell, Document, Drawing, Table};

/// The one style sheet.
const STYLE: &str = include_str!("style.css");

/// Nothing may be fetched and no script may run, for any content of names and words.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; \
                      form-action 'none'";

pub(super) fn page(document: &Document) -> String {
    let mut number = 0;
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                title { (document.title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "Benchmark of " (document.title) }
                    p { (document.facts) }
                    p { (document.legend) }
                    @for banner in &document.banners { p.banner { (banner) } }
                    nav aria-label="Sections" {
                        @for section in &document.sections {
                            a href=(format!("#{}", section.id)) { (section.title) }
                        }
                    }
                }
                main {
                    @for section in &document.sections {
                        section id=(section.id) {
                            h2 { (section.title) }
                            @for shown in &section.blocks { (block(shown, &mut number)) }
                        }
                    }
                }
            }
        }
    };
    markup.into_string()
}

/// `number` counts the charts, whose titles have names of their own.
fn block(block: &Block, number: &mut u32) -> Markup {
    match block {
        Block::List { heading, lines } => html! {
            h3 { (heading) }
            ul { @for line in lines { li { (line) } } }
        },
        Block::Table(shown) => table(shown),
        Block::Charts(charts) if charts.is_empty() => html! {},
        Block::Charts(charts) => html! {
            div.charts {
                @for drawing in charts { (chart(drawing, number)) }
            }
        },
        Block::Command(command) => html! {
            h3 { "To repeat it" }
            pre { code { (command) } }
        },
    }
}

fn chart(drawing: &Drawing, number: &mut u32) -> Markup {
    *number += 1;
    let (title_id, describe_id) = (format!("t{number}"), format!("d{number}"));
    html! {
        figure {
            figcaption { b { (drawing.title) } " " span.unit { (drawing.caption) } }
            svg viewBox=(format!("0 0 {WIDTH} {}", n(drawing.height))) role="img"
                aria-labelledby=(format!("{title_id} {describe_id}")) {
                title id=(title_id) { (drawing.name) }
                desc id=(describe_id) { (drawing.described) }
                (drawing.marks)
            }
        }
    }
}

/// A table that scrolls by itself when it is wider than the screen.
fn table(table: &Table) -> Markup {
    html! {
        div.scroll role="region" tabindex="0" aria-label=(table.caption) {
            table.words[table.words] {
                caption { span { (table.caption) } }
                thead {
                    tr { td {} @for name in &table.header { th scope="col" { (name) } } }
                }
                tbody {
                    @for row in &table.rows {
                        tr {
                            th scope="row" { (row.name) }
                            @for cell in &row.cells { (figure(cell)) }
                        }
                    }
                }
            }
        }
    }
}

fn figure(cell: &Cell) -> Markup {
    html! {
        td {
            span.value.best[cell.is_best] { (cell.value) }
            @if let Some(spread) = &cell.spread { span.spread { (spread) } }
            @if let Some(ratio) = &cell.ratio {
                @let class = match ratio.is_better {
                    None => "ratio soft",
                    Some(true) => "ratio up",
                    Some(false) => "ratio down",
                };
                span class=(class) { (ratio.text) }
            }
            @if let Some(bad) = &cell.bad { span.bad { (bad) } }
            @if let Some(note) = &cell.note { span.aside { (note) } }
        }
    }
}
