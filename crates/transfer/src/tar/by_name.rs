//! Streams of single files that a run needs. For a pull their names are sent to the server's tar as
//! the run finds them, and the members that arrive are put in their places. For a push the files
//! are sent to the server's tar, each under its temporary name, and are renamed over SFTP when all
//! of them have arrived.
//!
//! So many small files are copied at the speed of a stream also where the target is not empty,
//! where there are patterns, and after an interruption. Meanwhile the run copies large files in
//! pieces over its sessions. A stream costs a login: it starts when there are many files, and until
//! it has logged in, the files are copied as all others are.
//!
//! Invariants:
//! 1. The step decides where a file goes, never the archive. A member without a step is skipped.
//! 2. A step that is taken ends here, or is returned to the run, which then reports its problems.
//! 3. A file that is not as requested, and all files that tar's exit status may concern (one that
//!    changed while it was read, or could not be read to its end), are checked again. Of
//!    libarchive's tar all files are, since it reports neither. The run copies those that differ.
//!    In a push, only the files that GNU tar names in its messages have failed, if it has read the
//!    whole archive.
//! 4. The size of one stream is bounded, and so is the memory for it.

mod messages;
mod pull;
mod push;
mod worker;

use base::{AttrChange, Mutex, Name, RemotePath};
use std::collections::HashMap;
use std::sync::Arc;

use super::receive::Confirmed;
use super::{Declined, Streaming};
use crate::copy;
use crate::outcome::{Doing, Problem, Side};
use crate::plan;
use crate::run::{self, Core};
use crate::step::Step;
use crate::task::{at_most, blocking};
use messages::Messages;
use pull::CopiedEntry;
use worker::Worker;

/// Files that are checked at once.
const CHECKS: usize = 64;

/// A place of which single files may be copied in a stream.
#[derive(Clone)]
pub struct ByName {
    /// With [`Streaming::only_if_fast`] only small files, and only if there are many.
    pub streaming: Streaming,
    /// The directory at the server that is the root of the remote: absolute, or relative to the
    /// login's home.
    pub directory: Vec<u8>,
    /// Of a source: the entry of the directory that is copied; `None` for its contents.
    pub name: Option<Name>,
}

/// Takes steps from a run, and copies their files in streams. See the [module](self).
#[derive(Default)]
pub struct StreamsByName {
    workers: Vec<Option<Worker>>,
    entries: u64,
    declined: Option<Declined>,
}

/// Steps whose files were requested, by their path at the source.
#[derive(Default)]
struct Pending(Mutex<HashMap<RemotePath, Step>>);

impl Pending {
    /// The step that requested the file of this name, as it is called in a stream.
    fn take(&self, name: &[u8]) -> Option<Step> {
        let name = name.strip_prefix(b"./")?;
        let path = RemotePath::parse(name.strip_suffix(b"/").unwrap_or(name)).ok()?;
        self.0.lock().remove(&path)
    }
}

/// How a stream ended.
struct StreamEnd {
    /// Entries that were copied with all that they are to have.
    entries: u64,
    /// Entries that the run may have to copy.
    copied: Vec<CopiedEntry>,
    /// Steps that were not executed, or failed.
    left: Vec<Step>,
    /// Why copied files may differ from their sources.
    why: Option<String>,
    /// Of a pull: what tar's end confirms of the copied files.
    confirmed: Confirmed,
    /// Of the server's tar.
    messages: Messages,
}

impl StreamsByName {
    /// The streams of a pull, one for each source of a job, in their order; `None` for a source
    /// without one.
    pub fn pull(sources: Vec<Option<ByName>>) -> StreamsByName {
        let worker = |place: ByName| Worker::new(place, None);
        let workers = sources.into_iter().map(|place| place.map(worker)).collect();
        StreamsByName { workers, ..StreamsByName::default() }
    }

    /// The streams of a push of that many sources.
    pub fn push(sources: usize, target: &ByName) -> StreamsByName {
        let worker = |source| Some(Worker::new(target.clone(), Some(source)));
        StreamsByName { workers: (0..sources).map(worker).collect(), ..StreamsByName::default() }
    }

    /// Whether the source of this number may have a stream.
    pub fn has(&self, source: usize) -> bool {
        self.workers.get(source).is_some_and(Option::is_some)
    }

    /// Entries that were copied so far.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Why a stream was declined, if one was.
    pub fn declined(&self) -> Option<&Declined> {
        self.declined.as_ref()
    }

    /// Logs in for all streams now, and waits for the answers.
    ///
    /// # Errors
    /// Why the first of them was declined.
    pub async fn call(&mut self) -> Result<(), Declined> {
        for worker in self.workers.iter_mut().flatten() {
            worker.call().await?;
        }
        Ok(())
    }

    /// Takes the step, or returns it, perhaps with others that were taken before.
    pub(crate) async fn take(&mut self, core: &Arc<Core>, step: Step) -> Vec<Step> {
        let source = step.source;
        let Some(Some(worker)) = self.workers.get_mut(source) else { return vec![step] };
        let need = worker.need(core, &step);
        if !need.is_wanted() {
            return vec![step];
        }
        if let Err(declined) = worker.prepare(core, need).await {
            tracing::debug!("no stream: {declined:?}");
            self.declined = Some(declined);
        }
        if !worker.is_open() {
            return vec![step];
        }
        let remote_side = worker.remote_side();
        match core.unless_stopped(prepare(core, &step, remote_side)).await {
            None => return Vec::new(),
            Some(Ok(true)) => {}
            Some(Ok(false)) => return vec![step],
            Some(Err(problem)) => {
                core.ended(&step, Err(problem));
                return Vec::new();
            }
        }
        let worker = self.workers[source].as_mut().expect("it was there");
        match worker.add(core, step).await {
            true => Vec::new(),
            false => self.end(core, source).await,
        }
    }

    /// Sends the names that wait for more: the run has none for now.
    pub(crate) async fn flush(&mut self, core: &Arc<Core>) {
        for worker in self.workers.iter_mut().flatten() {
            worker.flush(core).await;
        }
    }

    /// Waits for all streams, and returns the steps that they have not executed.
    pub(crate) async fn finish(&mut self, core: &Arc<Core>) -> Vec<Step> {
        let mut left = Vec::new();
        for source in 0..self.workers.len() {
            left.extend(self.end(core, source).await);
        }
        left
    }

    /// Ends the stream of a source, if it has one.
    async fn end(&mut self, core: &Arc<Core>, source: usize) -> Vec<Step> {
        let Some(worker) = &mut self.workers[source] else { return Vec::new() };
        let Some(end) = worker.end(core).await else { return Vec::new() };
        self.entries += end.entries;
        if let Some(why) = &end.why {
            tracing::debug!("the stream did not end well: {why}");
        }
        let mut left = end.left;
        left.extend(check(core, source, end.copied, end.confirmed).await);
        left
    }
}

/// Creates the step's directory, or the one that the step is for, and removes temporary files that
/// earlier runs have left of the step. At a server these are removed when the file has its name,
/// since now each would cost a round trip. `false` where the step is one for the run.
async fn prepare(core: &Core, step: &Step, remote_side: Side) -> Result<bool, Problem> {
    if let Some(own) = &step.own {
        let failed = Problem::failed(&step.name, Doing::MakeDir);
        own.ready().await.map_err(&failed)?;
        if remote_side == Side::Target {
            // The server's tar changes its mode. A refusal would be the end of the whole stream.
            if let Some(perm) = open_mode(step) {
                let change = AttrChange { perm: Some(perm), ..AttrChange::default() };
                let path = core.job.target.path_of(&step.name);
                if core.job.target.remote.setattr(&path, change).await.is_err() {
                    return Ok(false);
                }
            }
            own.ready_for_change().await.map_err(&failed)?;
        }
        return Ok(true);
    }
    run::ready(core, step).await?;
    if remote_side == Side::Source {
        copy::remove_stale(core, step).await;
        copy::remove_obstacle(core, step, &core.job.target.path_of(&step.name)).await?;
    }
    Ok(true)
}

/// The mode of a directory that is there, with which its owner can change entries in it.
fn open_mode(step: &Step) -> Option<u32> {
    step.there.filter(|there| there.is_dir()).map(|there| there.perm | 0o700)
}

/// Returns the steps of the files that differ from their sources, and removes these files from the
/// counts. The other unconfirmed files get their mtimes. Where the end of the stream has not
/// confirmed a file, its content is compared by digest. Nothing is checked after the run is stopped.
async fn check(
    core: &Arc<Core>,
    source: usize,
    copied: Vec<CopiedEntry>,
    confirmed: Confirmed,
) -> Vec<Step> {
    let is_right = |one: &CopiedEntry| confirmed == Confirmed::All && one.is_as_asked();
    let (mut right, doubtful): (Vec<_>, Vec<_>) = copied.into_iter().partition(is_right);
    let checks = doubtful.into_iter().map(|one| {
        let core = core.clone();
        async move {
            let now = core.job.sources[source].tree.remote.lstat(&one.from).await;
            let mut is_right = now.is_ok_and(|now| one.is_still(&now));
            if is_right
                && let Ok(now) = now
                && one.unconfirmed
                && !confirmed.includes(now.mtime)
            {
                let to = core.job.target.path_of(&one.name);
                let same = plan::same_content(&core, source, (&one.from, &now), (&to, &now)).await;
                is_right = same.unwrap_or(false);
            }
            (one, is_right)
        }
    });
    let Some(checked) = core.unless_stopped(at_most(CHECKS, checks)).await else {
        return Vec::new();
    };
    let mut wrong = Vec::new();
    for (one, is_right) in checked {
        if is_right { right.push(one) } else { wrong.push(one) }
    }
    right.retain(|one| one.unconfirmed);
    let here = core.clone();
    wrong.extend(
        blocking(move || {
            let Some(sink) = &here.sink else { return right };
            right.into_iter().filter(|one| one.set_mtime(&here, sink).is_err()).collect()
        })
        .await,
    );
    wrong.into_iter().map(|one| one.again(core, source)).collect()
}
