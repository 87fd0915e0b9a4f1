//! The top of the page: who wins where, and how many times.

use maud::{Markup, html};

use crate::report::standing::{self, Meeting};
use crate::report::view::title;

use super::figures::judged;
use super::{Page, scrolling};

impl Page<'_> {
    pub(super) fn summary(&self) -> Markup {
        let reference = &self.view.results.settings.reference;
        let table = html! {
            table {
                caption {
                    span {
                        "How each subject did in all measures; better, worse and typical: than "
                        (reference)
                    }
                }
                thead {
                    tr {
                        td {}
                        @for column in ["best in", "clearly", "better", "worse", "≈", "typical", "failed"] {
                            th scope="col" { (column) }
                        }
                    }
                }
                tbody {
                    @for standing in standing::standings(self.view) {
                        tr {
                            th scope="row" class=(self.palette.class(&standing.subject.name)) {
                                span.chip { (standing.subject.name) }
                            }
                            @let cells = standing.cells();
                            @for cell in &cells[..cells.len() - 1] { td { (cell) } }
                            td.bad[standing.failed > 0] { (standing.failed) }
                        }
                    }
                }
            }
        };
        html! {
            section id="summary" {
                h2 { "Summary" }
                (scrolling("Summary", &table))
                (self.meetings())
            }
        }
    }

    fn meetings(&self) -> Markup {
        let Some(ours) = standing::ours(self.view) else { return html! {} };
        let (ahead, behind) = standing::extremes(self.view, &ours.name);
        html! {
            div.columns {
                (meetings(&format!("Where {} is farthest ahead of the best other", ours.name), &ahead))
                (meetings(&format!("Where {} is farthest behind", ours.name), &behind))
            }
        }
    }
}

fn meetings(heading: &str, meetings: &[Meeting<'_>]) -> Markup {
    html! {
        div {
            h3 { (heading) }
            @if meetings.is_empty() {
                p.note { "Nowhere." }
            }
            ol.meetings {
                @for meeting in meetings {
                    li {
                        (judged(&meeting.ratio)) " " (title(meeting.measure))
                        span.note { " against " (meeting.rival) }
                    }
                }
            }
        }
    }
}
