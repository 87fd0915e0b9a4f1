//! The report as one HTML file.

mod about;
mod figures;
mod latency;
mod summary;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart::{self, Counter, palette::Palette};
use super::standing;
use super::view::View;
use super::{failure_line, left_out_line, method};

/// The one style sheet.
const STYLE: &str = include_str!("page/style.css");

/// Nothing may be fetched and no script may run, whatever names and words are on the page.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; \
                      form-action 'none'";

/// A page in the making.
struct Page<'a> {
    view: &'a View<'a>,
    palette: Palette<'a>,
    counter: Counter,
}

/// The whole page.
pub(super) fn page(view: &View<'_>) -> String {
    let mut page = Page { view, palette: Palette::of(view.results), counter: Counter::default() };
    let results = view.results;
    let title = format!("{}, {}", results.program, results.started);
    let families: Vec<Markup> = view.families().iter().map(|family| page.family(family)).collect();
    let ratios = page.ratios();
    let latency = page.latency();
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "Bench of " (results.program) }
                    p { (results.started) " · link " (method::link(view)) " · size "
                        (results.settings.size) " · " (results.settings.rounds) " rounds" }
                    @if let Some(why) = &results.partial {
                        p.banner { "Not complete: " (why) }
                    }
                    @if view.failures.iter().any(|line| line.wrong_data) {
                        p.banner { "Wrong data was seen: see failures" }
                    }
                    (navigation(view))
                }
                main {
                    (page.summary())
                    (list("warnings", "Warnings", &view.warnings))
                    (page.troubles())
                    @for family in &families { (family) }
                    (ratios)
                    (latency)
                    (page.costs())
                    (page.about())
                }
            }
        }
    };
    markup.into_string()
}

fn navigation(view: &View<'_>) -> Markup {
    html! {
        nav aria-label="Sections" {
            a href="#summary" { "Summary" }
            @for family in view.families() {
                a href=(format!("#{}", anchor(family.name))) { (family.name) }
            }
            a href="#ratios" { "Ratios" }
            a href="#latency" { "Single operations" }
            a href="#cost" { "CPU and memory" }
            a href="#method" { "Machine and method" }
        }
    }
}

/// The name of a family's section; names from a file may hold anything.
fn anchor(family: &str) -> String {
    let plain = |char: char| if char.is_ascii_alphanumeric() { char } else { '-' };
    format!("work-{}", family.chars().map(plain).collect::<String>())
}

fn list(id: &str, heading: &str, lines: &[String]) -> Markup {
    html! {
        @if !lines.is_empty() {
            section id=(id) {
                h2 { (heading) }
                ul { @for line in lines { li { (line) } } }
            }
        }
    }
}

/// A table that scrolls by itself when it is wider than the screen.
fn scrolling(label: &str, table: &Markup) -> Markup {
    html! {
        div.scroll role="region" tabindex="0" aria-label=(label) { (table) }
    }
}

impl Page<'_> {
    fn troubles(&self) -> Markup {
        let failures: Vec<String> = self.view.failures.iter().map(failure_line).collect();
        let left_out: Vec<String> = self.view.results.left_out.iter().map(left_out_line).collect();
        html! {
            (list("failures", "Failures", &failures))
            (list("left-out", "Left out", &left_out))
        }
    }

    fn ratios(&mut self) -> Markup {
        let view = self.view;
        let reference = &view.results.settings.reference;
        let ours = standing::ours(view).map(|subject| subject.name.as_str());
        let mut subjects: Vec<_> = view.results.subjects.iter().collect();
        subjects.sort_by_key(|subject| Some(subject.name.as_str()) != ours);
        let mut charts = Vec::new();
        for subject in subjects {
            let chart = chart::ratios::ratios(&mut self.counter, &self.palette, view, subject);
            charts.extend(chart.map(|chart| (subject, chart)));
        }
        html! {
            section id="ratios" {
                h2 { "Ratios to " (reference) }
                p.note {
                    "Right of 1 is better. The line is the interval of the median ratio (below six \
                     rounds their range). The shaded band is what the control does by chance; hollow \
                     dots may be chance."
                }
                div.charts {
                    @for (subject, chart) in &charts {
                        figure {
                            figcaption { b { (subject.name) } " against " (reference) }
                            (chart)
                        }
                    }
                }
            }
        }
    }
}
