//! The section of a work: a chart for each measure, and the tables.

use maud::{Markup, html};

use crate::report::view::{Cell, Family, Table, title};
use crate::report::{chart, cost, number};
use crate::results::{Ratio, SubjectInfo};

use super::{Page, anchor, scrolling};

impl Page<'_> {
    pub(super) fn family(&mut self, family: &Family<'_>) -> Markup {
        let mut charts = Vec::new();
        for table in &family.tables {
            for row in &table.rows {
                let chart = chart::bars::bars(&mut self.counter, &self.palette, table, row);
                charts.push((title(row.measure), table, chart));
            }
        }
        html! {
            section id=(anchor(family.name)) {
                h2 { (family.name) }
                div.charts {
                    @for (title, table, chart) in &charts {
                        figure {
                            figcaption {
                                b { (title) } " " span.unit { (table.scale.unit) ", "
                                (table.direction()) }
                            }
                            (chart)
                        }
                    }
                }
                @for table in &family.tables {
                    (self.table(family.name, table))
                }
            }
        }
    }

    fn table(&self, family: &str, table: &Table<'_>) -> Markup {
        let caption = format!("{family}, {} ({})", table.scale.unit, table.direction());
        let markup = html! {
            table {
                caption {
                    span {
                        (caption) ": median, quartiles, ratio to "
                        (self.view.results.settings.reference)
                    }
                }
                thead { (self.header(&table.subjects)) }
                tbody {
                    @for row in &table.rows {
                        tr {
                            th scope="row" { (title(row.measure)) }
                            @for cell in &row.cells { (figure(table, cell)) }
                        }
                    }
                }
            }
        };
        scrolling(&caption, &markup)
    }

    fn header(&self, subjects: &[&SubjectInfo]) -> Markup {
        html! {
            tr {
                td {}
                @for subject in subjects {
                    th scope="col" class=(self.palette.class(&subject.name)) {
                        span.chip { (subject.name) }
                    }
                }
            }
        }
    }

    pub(super) fn costs(&self) -> Markup {
        let memory = cost::memory(self.view);
        html! {
            section id="cost" {
                h2 { "CPU and memory" }
                @for table in &cost::cpu(self.view) {
                    @let caption = format!("{}, client / server", table.per.name());
                    (scrolling(&caption, &html! {
                        table {
                            caption { span { (caption) } }
                            thead { (self.header(&table.subjects)) }
                            tbody {
                                @for row in &table.rows {
                                    tr {
                                        th scope="row" { (title(row.measure)) }
                                        @for &cell in &row.cells {
                                            td { (cost::CpuRow::shown(cell)) }
                                        }
                                    }
                                }
                            }
                        }
                    }))
                }
                @if !memory.rows.is_empty() {
                    (scrolling("memory", &html! {
                        table {
                            caption { span { "Greatest memory of the client side, MiB" } }
                            thead { (self.header(&memory.subjects)) }
                            tbody {
                                @for (family, peaks) in &memory.rows {
                                    tr {
                                        th scope="row" { (family) }
                                        @for peak in peaks {
                                            td { (peak.map_or("–".to_owned(), number::mebibytes)) }
                                        }
                                    }
                                }
                            }
                        }
                    }))
                }
            }
        }
    }
}

fn figure(table: &Table<'_>, cell: &Cell<'_>) -> Markup {
    let Cell::Value { summary, best, wrong_data } = cell else {
        let word = cell.word().unwrap_or_default();
        let bad = matches!(cell, Cell::Failed { .. });
        return html! { td.bad[bad] { (word) } };
    };
    html! {
        td {
            span.value.best[*best] { (table.scale.show(summary.median)) }
            @if summary.n > 1 {
                span.spread { (table.scale.show(summary.low)) "–" (table.scale.show(summary.high)) }
            }
            @if let Some(ratio) = &summary.ratio { (judged(ratio)) }
            @if *wrong_data { span.bad { "wrong data" } }
            @if summary.failed > 0 && !wrong_data {
                span.bad { (summary.failed) " failed" }
            }
        }
    }
}

/// A ratio, with a class that says which way it points.
pub(super) fn judged(ratio: &Ratio) -> Markup {
    let class = match (ratio.significant, ratio.value > 1.0) {
        (false, _) => "ratio soft",
        (true, true) => "ratio up",
        (true, false) => "ratio down",
    };
    html! {
        span class=(class) {
            @if !ratio.significant { "≈" } (number::ratio(ratio.value))
        }
    }
}
