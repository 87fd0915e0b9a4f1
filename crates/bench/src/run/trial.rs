//! One workload of one subject in one round: its sessions and its steps.
//!
//! Invariants:
//! 1. Every step that suits the subject gets exactly one sample, after any failure, unless the run
//!    is interrupted.
//! 2. After a step that failed, the next one has a session of its own. After two in a row that
//!    were not done in time, or two starts in a row that failed, nothing more is tried.
//! 3. A step that measures warm caches, also such on the disk, is not tried when the step before it
//!    has failed: its session, with the caches, was ended.
//! 4. When it returns there is no session.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::failure::{Failure, Result};
use crate::measure::{Cache, Measure};
use crate::progress::Progress;
use crate::results::Measured;
use crate::step::StepContext;
use crate::subject::{AccessKind, Session, Tuning};
use crate::workload::Step;

use super::result_log::{ResultLog, as_it_was};
use super::{Ready, Run, scratch};

/// Steps in a row that are not done in time, and starts in a row that fail, before the rest of a
/// work is given up: each costs a deadline.
const PATIENCE: u32 = 2;

/// One workload of one subject in one round.
pub(super) struct Trial<'a> {
    pub(super) run: &'a Run<'a>,
    pub(super) ready: &'a Ready<'a>,
    /// Its number in the plan.
    pub(super) subject: usize,
    pub(super) round: u32,
}

/// How a trial went for the subject as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It could be started.
    Started,
    /// It could not, though it was tried.
    Refused,
    /// There was nothing to do, or it was not tried.
    Idle,
}

/// A session, and what goes with it.
struct Live {
    session: Box<dyn Session>,
    tuning: Tuning,
    /// Its own directory.
    dir: PathBuf,
    /// It has done nothing yet, and so has nothing to forget.
    is_new: bool,
}

/// The state of a trial.
#[derive(Default)]
struct State {
    live: Option<Live>,
    /// Steps in a row that were not done in time.
    hangs: u32,
    /// Starts in a row that failed.
    refusals: u32,
    /// Why nothing more is tried.
    given_up: Option<String>,
    /// The step before this one had no sample that counts.
    stumbled: bool,
}

impl Trial<'_> {
    /// Does all steps.
    ///
    /// # Errors
    /// [`Failure::Interrupted`], nothing else.
    pub(super) fn run(
        &self,
        log: &mut ResultLog,
        progress: &mut Progress,
        given_up: Option<String>,
    ) -> Result<Ending> {
        let mut state = State { given_up, ..State::default() };
        let mut started = false;
        for step in &self.ready.steps {
            let mut measure = step.measure.clone();
            progress.begin(
                log.subject_name(self.subject),
                self.ready.workload.name(),
                &measure.title,
            );
            let outcome = self.one(step, &mut measure, &mut state, log);
            started |= state.live.is_some();
            if matches!(outcome, Some(Err(_))) && self.run.executor.is_interrupted() {
                self.close(&mut state, log);
                return Err(Failure::Interrupted);
            }
            let Some(outcome) = outcome else {
                // It was expected if nothing but the session could show it.
                if self.round == 0 && self.run.concerns(step, self.subject, log) {
                    progress.drop_expected(self.run.plan.results.settings.rounds);
                }
                continue;
            };
            progress.done(&outcome);
            state.stumbled = outcome.is_err();
            match &outcome {
                Ok(_) => state.hangs = 0,
                Err(failure) => {
                    progress.failed(log.subject_name(self.subject), &measure.id, failure);
                    self.recover(failure, &mut state, log);
                }
            }
            log.enter(&measure, self.subject, self.round, outcome);
        }
        self.close(&mut state, log);
        Ok(match (started, state.refusals) {
            (true, _) => Ending::Started,
            (false, 0) => Ending::Idle,
            (false, _) => Ending::Refused,
        })
    }

    /// One step; `None` when it is nothing for this subject.
    fn one(
        &self,
        step: &Step,
        measure: &mut Measure,
        state: &mut State,
        log: &mut ResultLog,
    ) -> Option<Result<Measured>> {
        let suits = match &state.live {
            Some(live) => step.suits(live.session.access().kind()),
            None => may_suit(step, &log.subject(self.subject).kind),
        };
        if !suits || !self.run.concerns(step, self.subject, log) {
            return None;
        }
        if let Some(why) = &state.given_up {
            return Some(Err(Failure::NotTried { why: why.clone() }));
        }
        if (measure.cache == Cache::Hot || step.keeps_disk_cache) && state.stumbled {
            let why = "the step before failed, so the caches are not warm".to_owned();
            return Some(Err(Failure::NotTried { why }));
        }
        if let Err(failure) = self.open(&step.tuning, state, log) {
            return Some(Err(failure));
        }
        let live = state.live.as_mut()?;
        if !step.suits(live.session.access().kind()) {
            return None;
        }
        let is_new = std::mem::take(&mut live.is_new);
        let forget = measure.cache == Cache::Cold && !is_new;
        Some(self.measure(step, measure, live.session.as_mut(), forget))
    }

    /// Sees to a session with this tuning.
    fn open(&self, tuning: &Tuning, state: &mut State, log: &mut ResultLog) -> Result<()> {
        if state.live.as_ref().is_some_and(|live| live.tuning == *tuning) {
            return Ok(());
        }
        self.close(state, log);
        let dir = self.run.plan.scratch.subdirectory("session-")?;
        match self.run.plan.subjects[self.subject].start(&dir, tuning, self.run.executor) {
            Ok(session) => {
                // What was there before the run may have anything cached.
                let is_new = !log.subject(self.subject).is_there();
                state.live = Some(Live { session, tuning: tuning.clone(), dir, is_new });
                state.refusals = 0;
                Ok(())
            }
            Err(failure) => {
                // What cannot be started so may well be startable otherwise.
                state.refusals += u32::from(!matches!(failure, Failure::NotTried { .. }));
                self.remove(&dir, log);
                Err(failure)
            }
        }
    }

    /// Runs a step with all that it needs.
    fn measure(
        &self,
        step: &Step,
        measure: &mut Measure,
        session: &mut dyn Session,
        forget: bool,
    ) -> Result<Measured> {
        if forget {
            let forgot = match step.keeps_disk_cache {
                true => session.remount(self.run.executor)?,
                false => session.forget(self.run.executor)?,
            };
            if !forgot {
                *measure = as_it_was(measure);
            }
        }
        let deadline = Instant::now() + step.deadline(self.run.plan.deadline);
        let scratch =
            tempfile::Builder::new().prefix("step-").tempdir_in(self.run.plan.scratch.path())?;
        let mut context = StepContext {
            subject: self.run.plan.subjects[self.subject].as_ref(),
            session,
            size: &self.run.plan.size,
            seed: self.run.plan.results.settings.seed.wrapping_add(u64::from(self.round)),
            scratch: scratch.path(),
            corpus: &self.run.corpus,
            executor: self.run.executor,
            deadline,
            server: self.run.plan.server.as_ref(),
            trace_cpu: self.run.plan.trace_cpu,
        };
        step.run(&mut context)
    }

    /// After a failure: a session that may be broken is of no use to the next step.
    fn recover(&self, failure: &Failure, state: &mut State, log: &mut ResultLog) {
        match failure {
            Failure::NotTried { .. } => return,
            Failure::TimedOut { .. } => {
                state.hangs += 1;
                self.abandon(state, log);
            }
            _ => {
                state.hangs = 0;
                self.close(state, log);
            }
        }
        if state.refusals >= PATIENCE {
            state.given_up = Some(format!("{PATIENCE} starts in a row failed: {failure}"));
        } else if state.hangs >= PATIENCE {
            state.given_up = Some(format!("{PATIENCE} steps in a row were not done in time"));
        }
    }

    /// Ends the session in order, or else by force.
    fn close(&self, state: &mut State, log: &mut ResultLog) {
        let Some(live) = &mut state.live else { return };
        // Also after the user has ended the run.
        if let Err(failure) = live.session.stop(&self.run.executor.for_cleanup()) {
            let name = log.subject_name(self.subject);
            log.note(format!("{name} did not end in order and was ended by force: {failure}"));
            return self.abandon(state, log);
        }
        if let Some(Live { session, dir, .. }) = state.live.take() {
            drop(session);
            self.remove(&dir, log);
        }
    }

    /// Ends the session by force.
    fn abandon(&self, state: &mut State, log: &mut ResultLog) {
        if let Some(Live { mut session, dir, .. }) = state.live.take() {
            session.abandon();
            drop(session);
            self.remove(&dir, log);
        }
    }

    /// Frees what a session has left on the disk, a peer's cache for one.
    fn remove(&self, dir: &Path, log: &mut ResultLog) {
        if let Err(failure) = scratch::remove(dir) {
            let name = log.subject_name(self.subject);
            log.note(format!("{name} has left something in its directory: {failure}"));
        }
    }
}

/// Whether a subject of this kind, which has no session, may be able to do a step.
fn may_suit(step: &Step, kind: &str) -> bool {
    match kind {
        "copy" => step.suits(AccessKind::Copier),
        "floor" => step.suits(AccessKind::Stream) || step.suits(AccessKind::Sftp),
        _ => step.suits(AccessKind::Directory),
    }
}
