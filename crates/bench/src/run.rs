//! A run: its rounds, in which all subjects do all workloads in turn.
//!
//! It never fails. What goes wrong is in its [`Results`]: steps without a value, works and subjects
//! left out, the reason why it is partial.

mod result_log;
mod scratch;
mod trial;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::executor::Executor;
use crate::failure::{Failure, Result};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::report;
use crate::results::{LeftOut, Results, SCHEMA};
use crate::storage::{self, Storage};
use crate::workload::{Step, Workload};

use result_log::{ResultLog, UNFINISHED};
pub use scratch::Scratch;
use trial::{Ending, Trial};

/// Workloads in a row in which a subject could not be started, before it is given up for good: each
/// may cost a deadline.
const REFUSALS: u32 = 3;

/// Does what the plan says, and takes everything down that it has started.
///
/// `keep` gets the results after each round, for a file that survives what may come.
pub fn run(
    plan: Plan,
    executor: &Executor,
    progress: &mut Progress,
    keep: &mut dyn FnMut(&Results),
) -> Results {
    let mut log = ResultLog::open(&plan);
    let outcome = Run::prepare(&plan, executor, &mut log, progress)
        .and_then(|run| run.rounds(&mut log, progress, keep));
    progress.end();
    for program in executor.left_behind() {
        log.note(format!("a program could not be ended, and may still disturb: {program}"));
    }
    let partial = match outcome {
        Err(failure) => Some(failure.to_string()),
        Ok(()) => log.is_empty().then(|| "nothing was measured".to_owned()),
    };
    log.so_far(&plan, partial)
}

/// A run whose data are laid out.
struct Run<'a> {
    plan: &'a Plan,
    executor: &'a Executor,
    corpus: PathBuf,
    works: Vec<Ready<'a>>,
    /// Numbers of the subjects, as they take turns.
    turns: Vec<usize>,
}

/// A workload whose data are laid out.
struct Ready<'a> {
    workload: &'a dyn Workload,
    steps: Vec<Step>,
    /// For each subject, whether its storage has the data.
    laid_out: Vec<bool>,
}

impl<'a> Run<'a> {
    /// Makes the data of all workloads, and lays them out in each storage. What cannot be is left
    /// out; only an interrupt is an error. On this machine the data are on the disk when it returns:
    /// writing them back would disturb the first steps.
    fn prepare(
        plan: &'a Plan,
        executor: &'a Executor,
        log: &mut ResultLog,
        progress: &mut Progress,
    ) -> Result<Run<'a>> {
        let corpus = plan.scratch.subdirectory("corpus-")?;
        let mut works = Vec::new();
        for workload in &plan.works {
            let workload = workload.as_ref();
            progress.prepare(&format!("preparing {}", workload.name()));
            if let Err(failure) = workload.make(&plan.size, &corpus, executor) {
                interrupted(executor)?;
                log.leave_out(LeftOut::new(workload.name(), failure.to_string()));
                continue;
            }
            let laid_out = lay_out(plan, workload, &corpus, executor, log)?;
            works.push(Ready { workload, steps: workload.steps(&plan.size), laid_out });
        }
        progress.prepare("writing the data to the disk");
        if let Err(failure) = storage::sync(&corpus, executor) {
            interrupted(executor)?;
            log.note(format!("the data could not be written to the disk at first: {failure}"));
        }
        let run = Run { plan, executor, corpus, works, turns: turns_of(plan) };
        run.announce(log, progress);
        Ok(run)
    }

    /// Tells book and display what is to come.
    fn announce(&self, log: &mut ResultLog, progress: &mut Progress) {
        for ready in &self.works {
            for step in &ready.steps {
                log.expect(step.measure.clone());
                for &subject in &self.turns {
                    if ready.laid_out[subject] && self.concerns(step, subject, log) {
                        progress.expect(self.plan.results.settings.rounds);
                    }
                }
            }
        }
    }

    /// Whether a step has a meaning for a subject, as far as that is known without a session.
    fn concerns(&self, step: &Step, subject: usize, log: &ResultLog) -> bool {
        let storage = self.plan.subjects[subject].storage();
        step.concerns(log.subject(subject)) && step.suits_storage(storage)
    }

    fn rounds(
        &self,
        log: &mut ResultLog,
        progress: &mut Progress,
        keep: &mut dyn FnMut(&Results),
    ) -> Result<()> {
        let mut refusals = vec![0; self.plan.subjects.len()];
        let rounds = self.plan.results.settings.rounds;
        for round in 0..rounds {
            for ready in &self.works {
                for subject in rotated(&self.turns, round) {
                    if !ready.laid_out[subject] {
                        continue;
                    }
                    self.warm(ready.workload, subject, log);
                    interrupted(self.executor)?;
                    let given_up = (refusals[subject] >= REFUSALS)
                        .then(|| format!("it could not be started in {REFUSALS} works in a row"));
                    let trial = Trial { run: self, ready, subject, round };
                    match trial.run(log, progress, given_up)? {
                        Ending::Started => refusals[subject] = 0,
                        Ending::Refused => refusals[subject] += 1,
                        Ending::Idle => {}
                    }
                    let name = log.subject_name(subject);
                    progress.trial_done(name, ready.workload.name(), round, rounds);
                }
            }
            if round + 1 < rounds {
                keep(&log.so_far(self.plan, Some(UNFINISHED.to_owned())));
            }
        }
        Ok(())
    }

    /// Warms the server's page cache for each subject, since the previous one has changed it. The
    /// local disk and targets have no server of ours.
    fn warm(&self, workload: &dyn Workload, subject: usize, log: &mut ResultLog) {
        if log.subject(subject).is_there() {
            return;
        }
        let storage = self.plan.subjects[subject].storage();
        let warmed = storage.warm(Path::new(workload.name()));
        if let (Err(failure), false) = (warmed, self.executor.is_interrupted()) {
            let name = storage.name().to_owned();
            log.note(format!("the server's page cache could not be warmed ({name}): {failure}"));
        }
    }
}

/// Lays a workload's data out, once in each storage; for each subject, whether that went well.
fn lay_out(
    plan: &Plan,
    workload: &dyn Workload,
    corpus: &Path,
    executor: &Executor,
    log: &mut ResultLog,
) -> Result<Vec<bool>> {
    let mut places: Vec<(&str, bool)> = Vec::new();
    let mut laid_out = Vec::new();
    for subject in &plan.subjects {
        let storage: &dyn Storage = subject.storage();
        let known = places.iter().find(|(name, _)| *name == storage.name());
        let good = match known {
            Some((_, good)) => *good,
            None => {
                let done = workload.lay_out(&plan.size, corpus, storage);
                interrupted(executor)?;
                if let Err(failure) = &done {
                    let what = format!("{} on {}", workload.name(), storage.name());
                    log.leave_out(LeftOut::new(what, failure.to_string()));
                }
                places.push((storage.name(), done.is_ok()));
                done.is_ok()
            }
        };
        laid_out.push(good);
    }
    Ok(laid_out)
}

fn interrupted(executor: &Executor) -> Result<()> {
    if executor.is_interrupted() { Err(Failure::Interrupted) } else { Ok(()) }
}

/// The subjects of a plan in the order in which they take turns.
fn turns_of(plan: &Plan) -> Vec<usize> {
    let infos: Vec<_> = plan.subjects.iter().map(|subject| subject.info()).collect();
    let control = infos.iter().enumerate().find_map(|(control, info)| {
        let of = info.control_of.as_ref()?;
        Some((control, infos.iter().position(|info| info.name == *of)?))
    });
    turns(infos.len(), control)
}

/// The order of the subjects in a round: A B C, then B C A, then C A B …
fn rotated(turns: &[usize], round: u32) -> impl Iterator<Item = usize> + '_ {
    let first = if turns.is_empty() { 0 } else { round as usize % turns.len() };
    turns[first..].iter().chain(&turns[..first]).copied()
}

/// The numbers of `count` subjects in the order of the first round. The control is as far from its
/// original as possible, since samples close in time are more alike than others.
fn turns(count: usize, control: Option<(usize, usize)>) -> Vec<usize> {
    let mut turns: Vec<usize> = (0..count).collect();
    if let Some((control, of)) = control {
        turns.retain(|&subject| subject != control);
        let at = turns.iter().position(|&subject| subject == of).unwrap_or(0);
        let opposite = (at + turns.len() / 2) % turns.len().max(1);
        turns.insert((opposite + 1).min(turns.len()), control);
    }
    turns
}

/// A directory for them.
#[derive(Clone, Debug)]
pub struct Files {
    dir: PathBuf,
}

impl Files {
    /// In this directory, which is made if it is missing. What it had of an earlier run is
    /// replaced when there is something to replace it by.
    ///
    /// # Errors
    /// When it cannot be made, or nothing can be written there.
    pub fn new(dir: &Path) -> io::Result<Files> {
        fs::create_dir_all(dir)?;
        tempfile::NamedTempFile::new_in(dir)?;
        Ok(Files { dir: dir.to_owned() })
    }

    /// The JSON alone.
    ///
    /// # Errors
    /// Of the file system.
    pub fn keep(&self, results: &Results) -> io::Result<()> {
        let json = serde_json::to_vec_pretty(results)?;
        self.replace("results.json", &[&json, &b"\n"[..]].concat())
    }

    /// All of them; their paths.
    ///
    /// # Errors
    /// Of the file system.
    pub fn write(&self, results: &Results) -> io::Result<Vec<PathBuf>> {
        self.keep(results)?;
        self.replace("report.html", report::html(results).as_bytes())?;
        self.replace("report.md", report::markdown(results).as_bytes())?;
        let names = ["report.html", "report.md", "results.json"];
        Ok(names.iter().map(|name| self.dir.join(name)).collect())
    }

    fn replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let mut file = tempfile::Builder::new()
            .prefix(".sshoal-bench-")
            .permissions(fs::Permissions::from_mode(0o644))
            .tempfile_in(&self.dir)?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        file.persist(self.dir.join(name))?;
        Ok(())
    }
}

/// Reads a `results.json`, or the one in a directory.
///
/// # Errors
/// What is wrong with it, for people.
pub fn read(path: &Path) -> Result<Results, String> {
    let file = if path.is_dir() { path.join("results.json") } else { path.to_owned() };
    let text = fs::read(&file).map_err(|error| format!("{file:?}: {error}"))?;
    #[derive(serde::Deserialize)]
    struct Form {
        schema: u32,
    }
    let form: Form = serde_json::from_slice(&text)
        .map_err(|_| format!("{file:?}: these are no results of a run"))?;
    if form.schema != SCHEMA {
        let schema = form.schema;
        return Err(format!("{file:?}: of form {schema}, and this program reads form {SCHEMA}"));
    }
    serde_json::from_slice(&text).map_err(|error| format!("{file:?}: {error}"))
}

#[cfg(test)]
pub(crate) mod tests;
