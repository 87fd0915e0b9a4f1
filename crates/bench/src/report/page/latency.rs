//! The section of single operations: curves and percentiles.

use maud::{Markup, html};

use crate::measure::Measure;
use crate::report::chart::curves::{Curve, curves, curves_of};
use crate::report::number;
use crate::report::view::title;

use super::{Page, scrolling};

impl Page<'_> {
    pub(super) fn latency(&mut self) -> Markup {
        let view = self.view;
        let mut parts = Vec::new();
        for measure in &view.results.measures {
            let found = curves_of(view, measure);
            if let Some(chart) = curves(&mut self.counter, &self.palette, measure, &found) {
                parts.push((measure, found, chart));
            }
        }
        html! {
            section id="latency" {
                h2 { "Single operations" }
                @if parts.is_empty() {
                    p.note { "No work of this run timed single operations." }
                } @else {
                    p.note { "Farther left is faster; a steep curve is a steady one." }
                }
                div.charts {
                    @for (measure, curves, chart) in &parts {
                        figure {
                            figcaption { b { (title(measure)) } }
                            (chart)
                            (self.legend(curves))
                        }
                    }
                }
                @if !parts.is_empty() {
                    (scrolling("Percentiles", &percentiles(&parts)))
                }
            }
        }
    }

    fn legend(&self, curves: &[Curve<'_>]) -> Markup {
        html! {
            ul.legend {
                @for curve in curves {
                    li class=(self.palette.class(&curve.subject.name)) {
                        svg.swatch viewBox="0 0 24 8" aria-hidden="true" {
                            path.curve d="M0 4H24" {}
                        }
                        (curve.subject.name)
                    }
                }
            }
        }
    }
}

fn percentiles(parts: &[(&Measure, Vec<Curve<'_>>, Markup)]) -> Markup {
    html! {
        table {
            caption { span { "Percentiles in µs: medians of the rounds" } }
            thead {
                tr {
                    td {}
                    @for column in ["subject", "50 %", "90 %", "99 %", "99.9 %", "slowest", "operations"] {
                        th scope="col" { (column) }
                    }
                }
            }
            @for (measure, curves, _) in parts {
                tbody {
                    @for (at, curve) in curves.iter().enumerate() {
                        tr {
                            @if at == 0 {
                                th scope="rowgroup" rowspan=(curves.len()) { (title(measure)) }
                            }
                            td.name { (curve.subject.name) }
                            @for value in curve.percentiles { td { (number::significant(value)) } }
                            td { (curve.operations) }
                        }
                    }
                }
            }
        }
    }
}
