//! The requested subjects and workloads that can be measured here.

use std::sync::Arc;

use crate::executor::Executor;
use crate::results::{LeftOut, SubjectInfo};
use crate::size::Size;
use crate::subject::Subject;
use crate::workload::Workload;

use super::Control;
use super::Refusal;
use super::request::usual_reference;

/// A subject that was asked for.
pub(super) struct Candidate {
    pub(super) subject: Arc<dyn Subject>,
    /// Described by the user: if it cannot be measured that is a mistake. A well-known one that is
    /// not installed is only left out.
    pub(super) described: bool,
}

/// Those that can be measured; the others that may be left out are.
pub(super) fn subjects(
    candidates: Vec<Candidate>,
    left_out: &mut Vec<LeftOut>,
    executor: &Executor,
) -> Result<Vec<Arc<dyn Subject>>, Refusal> {
    let mut admitted: Vec<Arc<dyn Subject>> = Vec::new();
    let mut names: Vec<String> = Vec::new();
    for Candidate { subject, described } in candidates {
        let name = subject.info().name;
        if names.contains(&name) {
            return Err(Refusal::Twice { name });
        }
        names.push(name);
        match subject.check(executor) {
            Ok(()) => admitted.push(subject),
            Err(_) if executor.is_interrupted() => return Err(Refusal::Interrupted),
            Err(reason) if described => return Err(Refusal::from_left_out(reason)),
            Err(reason) => left_out.push(reason),
        }
    }
    if admitted.is_empty() { Err(Refusal::NoSubject) } else { Ok(admitted) }
}

/// The workloads asked for, in the order of `all`; those that cannot be done here are left out, if
/// that leaves any.
pub(super) fn works(
    asked: Option<&[String]>,
    all: Vec<Box<dyn Workload>>,
    size: &Size,
    left_out: &mut Vec<LeftOut>,
) -> Result<Vec<Box<dyn Workload>>, Refusal> {
    for name in asked.unwrap_or_default() {
        if !all.iter().any(|workload| workload.name() == name) {
            let near = nearest(name, all.iter().map(|workload| workload.name()));
            return Err(Refusal::UnknownWorkload { name: name.clone(), near });
        }
    }
    let mut works = Vec::new();
    let mut missing = Vec::new();
    for workload in all {
        if asked.is_some_and(|names| !names.iter().any(|name| name == workload.name())) {
            continue;
        }
        match workload.check() {
            // All of it is lacking.
            Ok(()) if workload.steps(size).is_empty() => missing.extend(workload.lacks(size)),
            Ok(()) => {
                left_out.extend(workload.lacks(size));
                works.push(workload);
            }
            Err(reason) => missing.push(reason),
        }
    }
    if works.is_empty() {
        let reasons = missing.iter().map(|reason| format!("{}: {}", reason.name, reason.why));
        let mut why = reasons.collect::<Vec<_>>().join("; ");
        if why.is_empty() {
            "none was named".clone_into(&mut why);
        }
        return Err(Refusal::NoWorkload { why });
    }
    left_out.extend(missing);
    Ok(works)
}

/// The workload that a misspelled word most likely stands for.
fn nearest(word: &str, names: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    names
        .map(|name| (strsim::damerau_levenshtein(word, name), name))
        .filter(|(slips, name)| *slips <= name.len().div_ceil(3))
        .min_by_key(|(slips, _)| *slips)
        .map(|(_, name)| name)
}

/// Chooses the subject to which ratios are given, and adds its control; the reference's name.
pub(super) fn reference(
    subjects: &mut Vec<Arc<dyn Subject>>,
    asked: Option<&str>,
    with_control: bool,
) -> Result<String, Refusal> {
    let infos: Vec<SubjectInfo> = subjects.iter().map(|subject| subject.info()).collect();
    let name = match asked {
        Some(name) => name,
        None => usual_reference(&infos).ok_or(Refusal::NoSubject)?,
    };
    let Some(number) = infos.iter().position(|info| info.name == name) else {
        let subjects = infos.iter().map(|info| info.name.clone()).collect();
        return Err(Refusal::NoReference { name: name.to_owned(), subjects });
    };
    if with_control {
        let control = Control::new(Arc::clone(&subjects[number]));
        subjects.push(Arc::new(control));
    }
    Ok(name.to_owned())
}
