//! One run: steps are taken, executed as many at a time as the bounds allow, and counted.
//!
//! The order in which a run ends: all steps end; files get their further names; surplus entries are
//! deleted, if nothing has failed ([`Run::delete`]); then the steps that waited for a deletion are
//! executed; then the directories that were held for these get their times ([`Run::finish`]).
//!
//! Dropping a [`Run`] ends it at once. [`Stopper::stop`] ends it in order: unfinished small files
//! are removed, large ones are kept for the next run.
//!
//! Locks are held for a few instructions.

mod attributes;
mod core;
mod names;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::{AttrChange, FileKind, RemotePath};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

pub(crate) use self::attributes::{attributes, differing};
pub(crate) use self::core::{Core, is_lost};
pub(crate) use self::names::{Group, Names};
use crate::collisions;
use crate::copy;
use crate::deletion;
use crate::dir::{DirDone, Last, Place};
use crate::events::{Events, Progress};
use crate::job::{Job, JobError};
use crate::options::Xattrs;
use crate::outcome::{Doing, Fault, Outcome, Problem, Stop};
use crate::plan;
use crate::step::{Action, Step};
use crate::task::{AbortOnDrop, returned};
use crate::unseen;
use crate::xattr;

/// Bundles of steps that wait to be taken. Enough that the walk goes on while large files are
/// copied, and one to two megabytes with the 64 steps that a bundle has at most.
const BUNDLES_AHEAD: usize = 128;

/// Directories that are finished at once.
const FINISHING: usize = 64;

/// What copying one file took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Bytes that were transferred.
    pub bytes: u64,
    /// Bytes that an earlier run had transferred.
    pub resumed: u64,
}

/// Ends a run in order.
#[derive(Clone)]
pub struct Stopper(Arc<Core>);

impl Stopper {
    /// No further step begins, and those under way end soon. [`Run::next`] gives `None`.
    pub fn stop(&self) {
        self.0.stop(Stop::Asked);
    }
}

/// One run. See the [module](self). To be used within a tokio runtime.
pub struct Run {
    core: Arc<Core>,
    steps: mpsc::Receiver<Vec<Step>>,
    /// What is left of the bundle that was received last.
    bundle: std::vec::IntoIter<Step>,
    tasks: JoinSet<()>,
    /// Further names of files, which are created after all files were copied.
    names: Vec<Step>,
    planner: AbortOnDrop<()>,
    finisher: AbortOnDrop<()>,
}

impl Run {
    /// Looks at the target, and begins to compare.
    ///
    /// # Errors
    /// If `lstat` or creation of the target fails.
    pub async fn start(job: Job, events: Arc<dyn Events>) -> Result<Run, JobError> {
        let core = Core::new(job, events);
        let (over, overs) = mpsc::unbounded_channel();
        if core.job.target.local.is_none() && !core.job.options.dry_run {
            // Known by the time that a large file needs it.
            let core = core.clone();
            tokio::spawn(async move { core.target_run().await });
        }
        let top = plan::look(&core, over).await?;
        let (sender, steps) = mpsc::channel(BUNDLES_AHEAD);
        let planner = tokio::spawn(plan::walk(core.clone(), top, sender));
        let finisher = tokio::spawn(finish_dirs(core.clone(), overs));
        Ok(Run {
            core,
            steps,
            bundle: Vec::new().into_iter(),
            tasks: JoinSet::new(),
            names: Vec::new(),
            planner: AbortOnDrop(planner),
            finisher: AbortOnDrop(finisher),
        })
    }

    /// The counters of the run.
    pub fn progress(&self) -> Arc<Progress> {
        self.core.progress.clone()
    }

    /// To end it.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.core.clone())
    }

    /// The next step; `None` after the last one, or if the run was stopped. The caller passes each
    /// step to [`Run::apply`], or executes it.
    pub async fn next(&mut self) -> Option<Step> {
        if let Some(step) = self.next_now() {
            return Some(step);
        }
        self.bundle = self.core.unless_stopped(self.steps.recv()).await??.into_iter();
        self.bundle.next()
    }

    /// As [`Run::next`], without waiting.
    pub(crate) fn next_now(&mut self) -> Option<Step> {
        match self.core.stop_reason() {
            Some(_) => None,
            None => self.bundle.next().or_else(|| {
                self.bundle = self.steps.try_recv().ok()?.into_iter();
                self.bundle.next()
            }),
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Starts to execute a step, at the same time as others. Waits until the bounds allow it.
    pub async fn apply(&mut self, step: Step) {
        while let Some(over) = self.tasks.try_join_next() {
            returned(over);
        }
        let core = self.core.clone();
        let has_left_overs = !step.partials.is_empty();
        if core.job.options.dry_run || !(step.changes() || has_left_overs) {
            return core.ended(&step, Ok(Copied { bytes: step.bytes(), resumed: 0 }));
        }
        if matches!(step.action, Action::HardLink { .. }) {
            return self.names.push(step);
        }
        self.begin(step).await;
    }

    /// Begins a step when there is room for it.
    async fn begin(&mut self, step: Step) {
        let core = self.core.clone();
        let Some(room) = core.unless_stopped(core.flow.entry()).await else { return };
        self.tasks.spawn(async move { carry_out(&core, &step, room).await });
    }

    /// Waits for all steps in progress, and deletes. To be called when [`Run::next`] has returned
    /// `None` and the caller's own steps have ended. Returns the steps that waited for a deletion:
    /// as those before, they are executed by the caller, or passed to [`Run::apply`].
    pub async fn delete(&mut self) -> Vec<Step> {
        self.steps.close();
        if self.core.stop_reason().is_some() {
            self.planner.0.abort();
        }
        // They hold directories, which are over when nothing of them is left.
        self.bundle = Vec::new().into_iter();
        while let Some(bundle) = self.steps.recv().await {
            drop(bundle);
        }
        returned((&mut self.planner.0).await);
        self.settle().await;
        for step in std::mem::take(&mut self.names) {
            self.begin(step).await;
        }
        self.settle().await;
        unseen::report(&self.core, self.core.asked_for_unseen()).await;
        collisions::check(&self.core).await;
        deletion::carry_out(&self.core).await
    }

    /// Waits for the steps that [`Run::delete`] has returned, and returns the outcome.
    pub async fn finish(mut self) -> Outcome {
        self.settle().await;
        returned((&mut self.finisher.0).await);
        self.core.outcome()
    }

    /// Waits for the steps under way.
    async fn settle(&mut self) {
        while let Some(over) = self.tasks.join_next().await {
            returned(over);
        }
    }
}

/// Makes the directory that the step is in. To be called before something is written for it.
pub(crate) async fn ready(core: &Core, step: &Step) -> Result<(), Problem> {
    step.dir.ready_for_change().await.map_err(|errno| {
        match is_lost(&*core.job.target.remote, errno) {
            true => Problem::failed(&step.name, Doing::MakeDir)(errno),
            false => Fault::NoDirectory.of(&step.name),
        }
    })
}

/// Carries out one step, and takes note of how it ended, unless the run is stopped meanwhile.
async fn carry_out(core: &Arc<Core>, step: &Step, room: OwnedSemaphorePermit) {
    let left = copy::Unfinished::new(room);
    match core.unless_stopped(act_twice(core, step, &left)).await {
        Some(end) => core.ended(step, end),
        None if core.stop_reason() == Some(Stop::Asked) => left.remove(core).await,
        None => {}
    }
}

/// As [`act`], once more with few entries in progress if the server may have been out of handles.
async fn act_twice(
    core: &Arc<Core>,
    step: &Step,
    left: &copy::Unfinished,
) -> Result<Copied, Problem> {
    match act(core, step, left).await {
        Err(problem) if problem.may_lack_handles() => {
            left.remove(core).await;
            left.leave();
            let again = core.flow.with_few(act(core, step, left)).await;
            again.unwrap_or(Err(problem))
        }
        end => end,
    }
}

async fn act(core: &Arc<Core>, step: &Step, left: &copy::Unfinished) -> Result<Copied, Problem> {
    match &step.action {
        Action::Nothing => {
            // A run that still needs what is removed finds that the file is there.
            if !step.partials.is_empty() && ready(core, step).await.is_ok() {
                copy::remove_stale(core, step).await;
            }
            Ok(Copied::default())
        }
        Action::Skip(_) | Action::Delete => Ok(Copied::default()),
        Action::MakeDir => {
            // The result is reported at its end.
            if let Some(own) = &step.own {
                let _ = own.ready().await;
            }
            Ok(Copied::default())
        }
        Action::SetAttr(_) if step.own.is_some() => {
            // What is set at its end may need a mode that lets its owner in.
            if let Some(own) = &step.own
                && core.job.options.xattrs.any()
                && xattr::come_with(&step.action)
            {
                let _ = own.ready().await;
            }
            Ok(Copied::default())
        }
        Action::SetAttr(change) => {
            set_attributes(core, step, *change).await.map(|()| Copied::default())
        }
        Action::Copy(_) | Action::MakeLink(_) if needs_stream(core, step).await => {
            copy::remove_stale(core, step).await;
            Err(step.refused.clone().unwrap_or_else(|| no_stream_for_xattrs(&step.name)))
        }
        Action::Copy(_) if step.attr.kind == FileKind::Regular => {
            prepare(core, step).await?;
            if core.job.options.hard_links && !core.knows_links(step) {
                core.links_unknown.store(true, Ordering::Relaxed);
            }
            copy::file(core, step, left).await
        }
        Action::Copy(_) if core.makes_special(step) => {
            prepare(core, step).await?;
            copy::special(core, step, left).await.map(|()| Copied::default())
        }
        Action::Copy(_) => {
            copy::remove_stale(core, step).await;
            let words = "no stream has copied it, and SFTP makes no devices, pipes or sockets";
            let never = || Fault::Other { words: words.to_owned() }.of(&step.name);
            Err(step.refused.clone().unwrap_or_else(never))
        }
        Action::MakeLink(_) => {
            prepare(core, step).await?;
            copy::symlink(core, step, left).await.map(|()| Copied::default())
        }
        Action::HardLink { first } => {
            prepare(core, step).await?;
            copy::hard_link(core, step, first, left).await
        }
    }
}

/// Makes the directory of the step, and room for its file.
async fn prepare(core: &Core, step: &Step) -> Result<(), Problem> {
    ready(core, step).await?;
    copy::remove_useless(core, step).await;
    Ok(())
}

/// Whether the entry may have extended attributes, which only a stream copies.
async fn needs_stream(core: &Core, step: &Step) -> bool {
    let (xattrs, is_link) = (core.job.options.xattrs, step.attr.kind == FileKind::Symlink);
    // A link has no attributes of users.
    if !core.streams_xattrs(step.source) || (is_link && xattrs != Xattrs::All) {
        return false;
    }
    let is_seen = core.job.sources[step.source].tree.exceeds_sftp();
    let list = xattr::read(core, step.source, &step.from, &step.attr);
    !is_seen || !list.await.is_ok_and(|list| list.is_empty())
}

fn no_stream_for_xattrs(name: &RemotePath) -> Problem {
    let words = "no stream has copied it, and SFTP carries no extended attributes; copy again, or \
                 without -X";
    Fault::Other { words: words.to_owned() }.of(name)
}

/// Sets attributes by name; owners are left where they are refused.
async fn set_attributes(core: &Core, step: &Step, change: AttrChange) -> Result<(), Problem> {
    let set = core.set_by_name(&core.job.target.path_of(&step.name), &step.attr, change).await;
    set.map_err(Problem::failed(&step.name, Doing::SetAttr))
}

/// Finishes directories as they come, some at once, until none can come any more.
async fn finish_dirs(core: Arc<Core>, mut overs: mpsc::UnboundedReceiver<DirDone>) {
    let room = Arc::new(Semaphore::new(FINISHING));
    let mut tasks = JoinSet::new();
    while let Some(over) = overs.recv().await {
        while let Some(over) = tasks.try_join_next() {
            returned(over);
        }
        let kept_bytes = over.xattrs.as_ref().map_or(0, xattr::bytes);
        core.kept_xattr_bytes.fetch_sub(kept_bytes, Ordering::Relaxed);
        // What needs no call needs no task.
        let (over, change) = match change_of(&core, over) {
            (over, Some(change)) => (over, change),
            (over, None) if core.job.options.fsync && over.changed => (over, AttrChange::default()),
            (_, None) => continue,
        };
        let permit = room.clone().acquire_owned().await.expect("it is never closed");
        let core = core.clone();
        tasks.spawn(async move {
            // A server that does not answer must not delay the end.
            core.unless_stopped(finish_dir(&core, &over, change)).await;
            drop((over, permit));
        });
    }
    while let Some(over) = tasks.join_next().await {
        returned(over);
    }
}

/// The attributes for a directory after all steps in it. If there are none, its end is noted.
fn change_of(core: &Core, over: DirDone) -> (DirDone, Option<AttrChange>) {
    let Place { name, last: Some(last), .. } = &over.place else { return (over, None) };
    let end = match over.ready {
        _ if core.job.options.dry_run => Some(Ok(())),
        Some(Err(errno)) => Some(Err(Problem::failed(name, Doing::MakeDir)(errno))),
        _ => None,
    };
    if let Some(end) = end {
        core.dir_ended(name, last, end);
        return (over, None);
    }
    // Not whole: the next run will find that its time differs.
    if core.stop_reason().is_some() {
        return (over, None);
    }
    let there =
        last.there.as_ref().filter(|there| there.is_dir() && last.action != Action::MakeDir);
    let change = match there {
        None => attributes(core, &last.attr),
        Some(_) if over.changed => attributes(core, &last.attr),
        Some(there) => differing(core, &last.attr, there),
    };
    if change.is_empty() {
        core.dir_ended(name, last, Ok(()));
        return (over, None);
    }
    (over, Some(change))
}

async fn finish_dir(core: &Core, over: &DirDone, change: AttrChange) {
    let Place { name, path, last, .. } = &over.place;
    let last = last.as_ref().filter(|_| !change.is_empty());
    let mut end = Ok(());
    if let Some(last) = last {
        let xattrs = set_dir_xattrs(core, over, last).await;
        let change = match xattrs {
            Ok(_) => change,
            // The next run will find that its time differs.
            Err(_) => AttrChange { atime: None, mtime: None, ..change },
        };
        let set = core.set_by_name(path, &last.attr, change).await;
        end = set
            .map_err(Problem::failed(name, Doing::SetAttr))
            .and_then(|()| Problem::of_refused_xattrs(name, xattrs?));
    }
    // Also without its attributes: the names in it are complete.
    if core.job.options.fsync && over.changed && core.stop_reason().is_none() {
        let synced = sync_dir(core, &over.place).await;
        end = end.and(synced.map_err(Problem::failed(name, Doing::Sync)));
    }
    match (last, end) {
        (Some(last), end) => core.dir_ended(name, last, end),
        (None, Err(problem)) => core.problem(&problem),
        (None, Ok(())) => {}
    }
}

/// Sets the extended attributes that come with a directory's content. Before its mode, which may
/// keep its owner out. Returns how many the target has refused.
async fn set_dir_xattrs(core: &Core, over: &DirDone, last: &Last) -> Result<usize, Problem> {
    let Place { name, path, .. } = &over.place;
    if !core.job.options.xattrs.any() || !xattr::come_with(&last.action) {
        return Ok(0);
    }
    let read;
    let list = match &over.xattrs {
        Some(list) => list,
        None if core.copies_xattrs(last.source) => {
            let list = xattr::read(core, last.source, &last.from, &last.attr).await;
            read = list.map_err(Problem::failed(name, Doing::Read))?;
            &read
        }
        None => return Err(no_stream_for_xattrs(name)),
    };
    let written = xattr::write(&*core.job.target.remote, path, list).await;
    written.map_err(Problem::failed(name, Doing::SetAttr))
}

/// Returns when the names in a directory are on the target's disk, and its own where nothing above
/// it was changed by this run but for that.
async fn sync_dir(core: &Core, place: &Place) -> base::Result<()> {
    let target = &core.job.target.remote;
    target.fsyncdir(&place.path).await?;
    match (&place.parent, place.path.parent()) {
        (None, Some(parent)) => target.fsyncdir(&parent).await,
        _ => Ok(()),
    }
}
