//! `sshoal bench --list`.

use std::fmt::Write as _;

use bench::executor::Executor;
use bench::report::paragraph;
use bench::size::{Scale, Size};
use bench::subject::catalog;
use bench::workload;

/// Columns of the longest name.
const NAME: usize = 17;

/// Subjects and works, and the packages to install for those that are missing.
pub(super) fn text() -> String {
    let mut text = String::from("Subjects:\n");
    let mut packages: Vec<String> = Vec::new();
    for subject in catalog::list(&Executor::new()) {
        let state = match subject.state {
            Ok(version) => version,
            Err(missing) => {
                packages.extend(missing.package.map(str::to_owned));
                format!("not installed: {}", missing.remedy)
            }
        };
        line(&mut text, subject.name, subject.about, &state);
    }
    text.push_str("\nWorks:\n");
    for work in workload::all() {
        let lacks = match work.check() {
            Ok(()) => work.lacks(&Size::of(Scale::Full)),
            Err(reason) => vec![reason],
        };
        line(&mut text, work.name(), work.about(), "");
        for reason in lacks {
            let remedy = reason.remedy.unwrap_or_default();
            line(&mut text, "", &format!("left out: {}: {}", reason.name, reason.why), &remedy);
        }
    }
    packages.sort();
    packages.dedup();
    if !packages.is_empty() {
        let _ = write!(text, "\napt-get install {}\n", packages.join(" "));
    }
    text
}

/// A name in a column of its own, and words beside it.
fn line(text: &mut String, name: &str, about: &str, state: &str) {
    let state = if state.is_empty() { String::new() } else { format!(" ({state})") };
    paragraph(text, &format!("  {name:NAME$} "), &format!("{about}{state}"));
}
