//! The end of the page: the machine, the subjects, the method, and how to repeat it.

use maud::{Markup, html};

use crate::report::{command_line, method};

use super::{Page, scrolling};

impl Page<'_> {
    pub(super) fn about(&self) -> Markup {
        let results = self.view.results;
        html! {
            section id="method" {
                h2 { "Machine and method" }
                ul { @for sentence in method::sentences(self.view) { li { (sentence) } } }
                (scrolling("Machine and settings", &html! {
                    table.words {
                        caption { span { "Machine and settings" } }
                        tbody {
                            @for (name, value) in method::facts(self.view) {
                                tr { th scope="row" { (name) } td { (value) } }
                            }
                        }
                    }
                }))
                (self.subjects())
                (self.versions())
                @if !results.settings.command.is_empty() {
                    h3 { "To repeat it" }
                    pre { code { (command_line(&results.settings.command)) } }
                }
            }
        }
    }

    fn subjects(&self) -> Markup {
        let table = html! {
            table.words {
                caption { span { "Subjects" } }
                thead {
                    tr {
                        @for column in ["subject", "kind", "version", "cipher", "command"] {
                            th scope="col" { (column) }
                        }
                    }
                }
                tbody {
                    @for subject in &self.view.results.subjects {
                        tr {
                            th scope="row" class=(self.palette.class(&subject.name)) {
                                span.chip { (subject.name) }
                            }
                            td { (subject.kind)
                                @if let Some(of) = &subject.control_of { ", control of " (of) } }
                            td { (subject.version) }
                            td { (subject.cipher.as_deref().unwrap_or("–")) }
                            td { code { (subject.command) } }
                        }
                    }
                }
            }
        };
        scrolling("Subjects", &table)
    }

    fn versions(&self) -> Markup {
        let versions = &self.view.results.environment.versions;
        html! {
            @if !versions.is_empty() {
                (scrolling("Programs", &html! {
                    table.words {
                        caption { span { "Programs" } }
                        tbody {
                            @for (program, version) in versions {
                                tr { th scope="row" { (program) } td { (version) } }
                            }
                        }
                    }
                }))
            }
        }
    }
}
