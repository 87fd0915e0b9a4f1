//! `sshoal bench --list`.

use std::fmt::Write as _;

use bench::executor::Executor;
use bench::published::PUBLISHED;
use bench::report::paragraph;
use bench::size::{Scale, Size};
use bench::subject::catalog::{self, Listed};
use bench::units::binary_size;
use bench::workload;

/// Columns of names. A longer one has a line of its own.
const NAME: usize = 17;

/// Subjects, works and published comparisons, and the packages to install for what is missing.
pub(super) fn text() -> String {
    let mut text = String::from("Subjects:\n");
    let mut packages: Vec<String> = Vec::new();
    let subjects = catalog::list(&Executor::new());
    for subject in &subjects {
        let state = match &subject.state {
            Ok(version) => version.clone(),
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
    text.push_str("\nPublished comparisons, by --repeat:\n");
    for published in &PUBLISHED {
        line(&mut text, published.name, published.about, "");
        let mut needs = format!("needs {} of free space", binary_size(published.space_bytes()));
        if !published.needs.is_empty() {
            needs += &format!("; {}", published.needs);
        }
        line(&mut text, "", &needs, "");
        let missing = missing(published.name, &subjects);
        if !missing.is_empty() {
            line(&mut text, "", &format!("not installed here: {}", missing.join(", ")), "");
        }
    }
    packages.sort();
    packages.dedup();
    if !packages.is_empty() {
        let _ = write!(text, "\napt-get install {}\n", packages.join(" "));
    }
    text
}

/// Those of a list of subjects that are not installed.
fn missing(peers: &str, subjects: &[Listed]) -> Vec<String> {
    let lacks = |name: &str| subjects.iter().any(|it| it.name == name && it.state.is_err());
    let names = catalog::parse(peers).unwrap_or_default().into_iter().map(|spec| spec.name());
    names.filter(|name| lacks(name)).collect()
}

/// A name in a column of its own, and words beside it.
fn line(text: &mut String, name: &str, about: &str, state: &str) {
    let state = if state.is_empty() { String::new() } else { format!(" ({state})") };
    let name = if name.chars().count() > NAME {
        let _ = writeln!(text, "  {name} ");
        ""
    } else {
        name
    };
    paragraph(text, &format!("  {name:NAME$} "), &format!("{about}{state}"));
}
