//! Reopening a file after its inner handles were lost.
//!
//! One task reopens a file. The first caller that needs the file starts it, the others wait for its
//! end. It continues if they are cancelled, and ends with the [`Recovering`](crate::Recovering).
//!
//! 1. The file is opened by its path once for each handle, without creating or truncating it. If
//!    its mode refuses that, permission bits are added for the moment (`permission`). Its
//!    attributes must be the expected ones (`expected_attrs`), or the file must have grown. If it
//!    is not there, it may have been renamed (`renamed`).
//! 2. Appends without a reply are looked for in the file (`appends`).
//! 3. If the write verifier has changed, the unstable writes are compared with the file (`verify`).
//!    Each other open of a file that has unstable writes makes this comparison, too.
//! 4. The locks are set again (`file::locks`).
//! 5. The log is replayed in its order, with the changes that have joined it in the meantime.

mod appends;
mod permission;
mod renamed;
mod verify;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use base::{
    Access, Attr, Errno, Fh, OpenFlags, OpenGuard, RemotePath, Result, join_in_order, until,
};
use tokio::time::Instant;

pub(crate) use appends::LATE;
pub(crate) use permission::{needed_perm, set_perm};
pub(crate) use renamed::Listings;

use crate::Core;
use crate::change::send;
use crate::change_log::{Change, Replay};
use crate::expected_attrs::ExpectedAttrs;
use crate::file::{FileState, Handle, InnerHandle, OpenFile, OwnWrite, Phase, Tail, locks};
use crate::retry::{RemoteCall, is_temporary};

/// Changes that are replayed before the first of them is answered: enough to fill a long link with
/// writes of 128 KiB.
const MAX_IN_FLIGHT: usize = 64;

/// For log messages: when the file was changed or replaced.
const LOST: &str = "while the connection was lost";
const CLOSED: &str = "while a flush had closed it";

/// The result of an attempt.
#[derive(Debug, PartialEq, Eq)]
enum ReopenResult {
    Open,
    /// To be retried.
    Failed(Errno),
    /// The path no longer leads to this file, for this reason.
    Dead(String),
}

/// Returns when an attempt to reopen the file has ended; starts one if none is running. `Ok` when
/// the file is open, or dead.
pub(crate) async fn attempt(core: &Arc<Core>, file: &Arc<OpenFile>) -> Result<()> {
    let before = {
        let mut state = file.lock();
        match state.phase {
            Phase::Open | Phase::Dead => return Ok(()),
            Phase::Reopening => {}
            Phase::Lost => {
                state.phase = Phase::Reopening;
                begin(core, file);
            }
        }
        state.attempts
    };
    let ended = || {
        let state = file.lock();
        (state.attempts != before).then(|| state.last_error.map_or(Ok(()), Err))
    };
    until(&file.attempt_ended, ended).await
}

fn begin(core: &Arc<Core>, file: &Arc<OpenFile>) {
    let core = core.clone();
    let mut attempt =
        Attempt { file: file.clone(), result: ReopenResult::Failed(Errno::EHOSTDOWN) };
    tokio::spawn(async move {
        if let Some(result) = core.lifetime.run(reopen_all(&core, &attempt.file)).await {
            attempt.result = result;
        }
        if let ReopenResult::Dead(why) = &attempt.result {
            attempt.file.warn(&core, &format!("{why} {LOST}"));
        }
    });
}

/// A running attempt. Its result is published on drop, even if the task is aborted.
struct Attempt {
    file: Arc<OpenFile>,
    result: ReopenResult,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let mut state = self.file.lock();
        if matches!(self.result, ReopenResult::Dead(_)) {
            state.lose_locks(None);
        }
        state.attempts += 1;
        (state.phase, state.last_error) = match self.result {
            // `replay_log` has set the phase, when no entry was left to replay.
            ReopenResult::Open => (state.phase, None),
            ReopenResult::Dead(_) => (Phase::Dead, None),
            ReopenResult::Failed(errno) => (Phase::Lost, Some(errno)),
        };
        if state.phase == Phase::Lost {
            state.epoch += 1;
            if state.log.replay_lost() {
                state.lost_at = Some(Instant::now());
            }
        }
        let waiting = state.log.changed();
        drop(state);
        self.file.attempt_ended.notify_waiters();
        waiting.notify_waiters();
    }
}

impl OpenFile {
    /// The file cannot be reopened for this handle. Returns the error for its callers: `EIO` for a
    /// handle that writes, because written data is at stake, and the error of an open would not say
    /// that.
    fn refuse(&self, core: &Core, handle: &Handle, errno: Errno) -> Errno {
        if !handle.flags.access.writes() {
            return errno;
        }
        self.warn(core, &format!("cannot be reopened for writing: {errno}"));
        Errno::EIO
    }

    /// Logs what has happened to the file.
    fn warn(&self, core: &Core, what: &str) {
        tracing::warn!("{}: {}: {what}", core.config.name, self.shown_path());
    }

    /// Its path, for the log.
    pub(crate) fn shown_path(&self) -> String {
        let path = self.lock().path.clone();
        path.map_or_else(|| "a removed file".to_owned(), |path| path.to_string())
    }
}

/// The file as reopened for one handle, or the error.
type Reopened<'a> = (Arc<Handle>, Result<OpenGuard<'a>>);

/// What a path leads to.
enum Found<'a> {
    /// This file, opened for each handle for which that is possible.
    Same {
        attr: Option<Attr>,
        opened: Vec<Reopened<'a>>,
    },
    /// Another file, or none.
    Different(String),
    Failed(Errno),
}

/// Searches for a file that is changed or renamed in the meantime.
const MAX_SEARCHES: u32 = 8;

async fn reopen_all(core: &Arc<Core>, file: &Arc<OpenFile>) -> ReopenResult {
    appends::wait(file).await;
    match find_file(core, file, Wanted::Lost).await {
        Ok((observed, opened)) => resume(core, file, observed, opened).await,
        Err(result) => result,
    }
}

/// Reopens the file for one handle that a flush has closed, while nothing is lost.
pub(crate) async fn reopen_one(core: &Arc<Core>, handle: &Arc<Handle>) -> Result<()> {
    let file = &handle.file;
    let (next, epoch) = {
        let state = file.lock();
        (state.next_if_idle(0), state.epoch)
    };
    let (observed, mut opened) = match find_file(core, file, Wanted::Closed(handle)).await {
        Ok(found) => found,
        Err(ReopenResult::Failed(errno)) => return Err(errno),
        Err(ReopenResult::Dead(why)) => {
            file.warn(core, &format!("{why} {CLOSED}"));
            return Err(Errno::ESTALE);
        }
        Err(ReopenResult::Open) => unreachable!("a search does not change the phase"),
    };
    let guard = opened.pop().ok_or(Errno::EBADF)?.1?;
    verify::check(core, file, &observed.path).await.map_err(stale_as_loss)?;
    if !handle.set_reopened(guard.fh(), epoch) {
        return Ok(());
    }
    let _ = guard.take();
    core.files.found(file, &observed.path, observed.path_version);
    let mut state = file.lock();
    if let Some(attr) = &observed.attr {
        match state.is_unchanged_since(next, 0) {
            true => state.observed(attr),
            false => state.expected = state.expected.or(ExpectedAttrs::of(attr)),
        }
    }
    Ok(())
}

/// The file was opened by `path` for a new handle, while nothing is lost. A lost file is checked
/// when it is reopened.
pub(crate) async fn check_unstable(
    core: &Arc<Core>,
    file: &OpenFile,
    path: &RemotePath,
) -> Result<()> {
    let is_needed = {
        let state = file.lock();
        state.phase == Phase::Open && !state.unstable.is_empty()
    };
    match is_needed {
        true => Box::pin(verify::check(core, file, path)).await,
        false => Ok(()),
    }
}

/// Bytes that one request reads in the search for an append.
const SEARCHED_BYTES: u32 = 32 << 10;

/// Bytes of other clients among which an append of this mount is searched.
const MAX_SEARCHED_BYTES: u64 = 1 << 20;

/// The handles for which a file is searched.
#[derive(Clone, Copy)]
enum Wanted<'a> {
    /// All that are lost.
    Lost,
    /// One that a flush has closed.
    Closed(&'a Arc<Handle>),
}

impl Wanted<'_> {
    fn handles(self, state: &FileState) -> Vec<Arc<Handle>> {
        match self {
            Wanted::Lost => {
                let lost = state.inner_handles.values().filter(|inner| inner.epoch < state.epoch);
                lost.filter_map(|inner| inner.handle.upgrade()).collect()
            }
            Wanted::Closed(handle) => vec![handle.clone()],
        }
    }

    /// Whether a file that is only longer and newer is accepted: bytes that another client has
    /// appended in the meantime do not prevent further appends.
    fn may_grow(self) -> bool {
        matches!(self, Wanted::Closed(handle) if handle.flags.append)
    }
}

/// Waits for requests in flight after which the name may lead to another file: those that remove or
/// replace the name, and, if there are changes to replay, a rename of the file itself.
async fn wait_for_name(core: &Core, file: &OpenFile) {
    let to_replay = || {
        let state = file.lock();
        (state.removals == 0).then(|| state.path.clone().filter(|_| !state.log.is_idle()))
    };
    while let Some(path) = until(&file.attempt_ended, to_replay).await
        && core.renames.affects(&path)
    {
        core.renames.wait_until_ended(&path).await;
    }
}

/// Searches the file at its paths, and opens it for the `wanted` handles.
async fn find_file<'a>(
    core: &'a Arc<Core>,
    file: &OpenFile,
    wanted: Wanted<'_>,
) -> std::result::Result<(Observation, Vec<Reopened<'a>>), ReopenResult> {
    for searches in 1.. {
        // A handle that a flush has closed is reopened before a removal of its name is sent.
        if let Wanted::Lost = wanted {
            wait_for_name(core, file).await;
        }
        let (paths, former_path, path_version, handles, answered_changes) = {
            let state = file.lock();
            let paths: Vec<RemotePath> =
                state.path.iter().chain(&state.pending_path).cloned().collect();
            let former_path = state.former_path.clone();
            (paths, former_path, state.path_version, wanted.handles(&state), state.answered_changes)
        };
        let found = |path: &RemotePath, attr| Observation {
            path: path.clone(),
            path_version,
            attr,
            answered_changes,
        };
        let mut why = "removed through this mount".to_owned();
        for path in &paths {
            match open_by_path(core, file, path, &handles, wanted.may_grow()).await {
                Found::Same { attr, opened } => return Ok((found(path, attr), opened)),
                Found::Different(reason) => why = reason,
                Found::Failed(errno) => return Err(ReopenResult::Failed(errno)),
            }
        }
        // A change that another connection has answered in the meantime may have been executed
        // after the search.
        let is_current = {
            let state = file.lock();
            (state.path_version, state.answered_changes) == (path_version, answered_changes)
        };
        if !is_current && searches < MAX_SEARCHES {
            continue;
        }
        if let Some(path) = paths.first().or(former_path.as_ref()) {
            let failed = |errno| ReopenResult::Failed(stale_as_loss(errno));
            for may_be_old in [true, false] {
                let renamed = renamed::search(core, file, path, may_be_old).await;
                let Some(path) = renamed.map_err(failed)? else { break };
                match open_by_path(core, file, &path, &handles, wanted.may_grow()).await {
                    Found::Same { attr, opened } => return Ok((found(&path, attr), opened)),
                    Found::Different(_) => {}
                    Found::Failed(errno) => return Err(ReopenResult::Failed(errno)),
                }
            }
        }
        return Err(ReopenResult::Dead(why));
    }
    unreachable!("the last search returns")
}

/// Opens the path for all `handles`, if it leads to this file.
async fn open_by_path<'a>(
    core: &'a Arc<Core>,
    file: &OpenFile,
    path: &RemotePath,
    handles: &[Arc<Handle>],
    may_grow: bool,
) -> Found<'a> {
    let inner = &*core.inner;
    let (mut attr, mut all) = (None, Vec::new());
    for handle in handles {
        match permission::open(core, file, path, handle.reopen_flags()).await {
            Ok(opened) => {
                let guard = OpenGuard::new(inner, opened.fh);
                match is_same_file(core, file, path, &opened.attr, may_grow).await {
                    Ok(true) => {}
                    Ok(false) => {
                        let difference = file.expected().difference(&opened.attr);
                        let difference = difference.as_deref().unwrap_or("it is the same again");
                        return Found::Different(format!("changed on the server ({difference})"));
                    }
                    Err(errno) => return Found::Failed(stale_as_loss(errno)),
                }
                attr = attr.or(Some(opened.attr));
                all.push((handle.clone(), Ok(guard)));
            }
            Err(Errno::ENOENT | Errno::ENOTDIR) => {
                return Found::Different("no longer on the server".to_owned());
            }
            Err(Errno::EISDIR | Errno::ELOOP | Errno::ENXIO) => {
                return Found::Different("replaced on the server".to_owned());
            }
            // It may be this file, but the access is no longer permitted.
            Err(errno @ (Errno::EACCES | Errno::EPERM | Errno::EROFS | Errno::ETXTBSY)) => {
                let expected = file.expected();
                if expected.regular_id().is_some() {
                    match inner.lstat(path).await {
                        Ok(attr) if expected.is_same_file(&attr) == Some(false) => {
                            return Found::Different("replaced on the server".to_owned());
                        }
                        Err(errno) if errno.is_loss() => return Found::Failed(errno),
                        _ => {}
                    }
                }
                all.push((handle.clone(), Err(file.refuse(core, handle, errno))));
            }
            Err(errno) => return Found::Failed(stale_as_loss(errno)),
        }
    }
    Found::Same { attr, opened: all }
}

/// Whether the file that was opened at this path is this file, unchanged or grown; with `may_grow`
/// also if only its attributes say so. An error means that this could not be checked.
async fn is_same_file(
    core: &Core,
    file: &OpenFile,
    path: &RemotePath,
    attr: &Attr,
    may_grow: bool,
) -> Result<bool> {
    let expected = file.expected();
    if let Some(is_same) = expected.is_same_file(attr) {
        return Ok(is_same);
    }
    let matches = expected.matches(attr);
    if matches && expected.has_exact_mtime() {
        return Ok(true);
    }
    let has_grown = expected.has_grown_to(attr);
    if matches || may_grow && has_grown {
        let Some(own) = expected_write(core, file, may_grow).await? else { return Ok(true) };
        return has_write(core, path, attr, &own).await;
    }
    let Some(tail) = file.lock().tail_if_unchanged().filter(|_| has_grown) else {
        return Ok(false);
    };
    let Some(guard) = open_to_compare(core, path).await? else { return Ok(false) };
    let data = core.inner.read(guard.fh(), tail.offset, Tail::LEN).await?;
    Ok(tail.matches(&data.to_vec()))
}

/// Opens a file to read it; `None` if that is not permitted, or it does not exist.
async fn open_to_compare<'a>(core: &'a Core, path: &RemotePath) -> Result<Option<OpenGuard<'a>>> {
    let inner = &*core.inner;
    match inner.open(path, OpenFlags::existing(Access::Read)).await {
        Err(errno) if !may_pass(errno) => Ok(None),
        opened => Ok(Some(OpenGuard::new(inner, opened?.fh))),
    }
}

/// The bytes that this mount has written last, if they must be in the file: unless it `is_closed`
/// by a flush, a server that was restarted may have lost them if they were not synced.
async fn expected_write(core: &Core, file: &OpenFile, is_closed: bool) -> Result<Option<OwnWrite>> {
    let (own, verifier) = {
        let state = file.lock();
        let own = state.expected_write();
        if own.is_none() || is_closed || state.unstable.is_empty() {
            return Ok(own);
        }
        (own, state.write_verifier.clone())
    };
    if verifier.is_none() {
        return Ok(None);
    }
    match core.inner.write_verifier().await {
        Err(errno) if errno.is_loss() => Err(errno),
        now => Ok(own.filter(|_| now == Ok(verifier))),
    }
}

/// Whether the file has these bytes; `true` if it cannot be read, or if too much was appended since
/// to search all of it.
async fn has_write(core: &Core, path: &RemotePath, attr: &Attr, write: &OwnWrite) -> Result<bool> {
    let OwnWrite { bytes, offset, is_appended, .. } = write;
    let Some(guard) = open_to_compare(core, path).await? else { return Ok(true) };
    if !is_appended {
        let data = core.inner.read(guard.fh(), *offset, bytes.len() as u32).await?;
        return Ok(data.to_vec() == *bytes);
    }
    let mut seen = Vec::new();
    let mut at = *offset;
    while at < attr.size {
        if at - offset >= MAX_SEARCHED_BYTES {
            return Ok(true);
        }
        let data = core.inner.read(guard.fh(), at, SEARCHED_BYTES).await?;
        if data.is_empty() {
            break;
        }
        at += data.len() as u64;
        seen.extend_from_slice(&data.to_vec());
        if seen.windows(bytes.len()).any(|window| window == bytes) {
            return Ok(true);
        }
        // They may begin in this part and end in the next.
        seen.drain(..seen.len().saturating_sub(bytes.len()));
    }
    Ok(false)
}

/// A handle that is stale as soon as it is opened was lost with its connection.
fn stale_as_loss(errno: Errno) -> Errno {
    if errno == Errno::ESTALE { Errno::EHOSTDOWN } else { errno }
}

/// Whether what fails with this error may succeed after another attempt to reopen the file.
fn may_pass(errno: Errno) -> bool {
    errno.is_loss() || errno == Errno::ESTALE || is_temporary(errno)
}

/// What a search has found.
struct Observation {
    /// The path of the file at `path_version`.
    path: RemotePath,
    path_version: u64,
    attr: Option<Attr>,
    /// The value of [`FileState::answered_changes`] before the search.
    answered_changes: u64,
}

/// The file was found: resolves what is in doubt, takes over the handles, and replays the log.
async fn resume(
    core: &Arc<Core>,
    file: &Arc<OpenFile>,
    observed: Observation,
    opened: Vec<Reopened<'_>>,
) -> ReopenResult {
    if let Some(attr) = &observed.attr {
        if let Err(errno) = appends::resolve(core, file, &observed.path, attr).await {
            return ReopenResult::Failed(stale_as_loss(errno));
        }
        if let Err(errno) = verify::check(core, file, &observed.path).await {
            return ReopenResult::Failed(stale_as_loss(errno));
        }
    }
    core.files.found(file, &observed.path, observed.path_version);
    // Handles are dropped without the lock of the state, because the last reference closes one.
    let (mut old, mut handles) = (Vec::new(), Vec::new());
    {
        let mut state = file.lock();
        let epoch = state.epoch;
        for (handle, opened) in opened {
            let inner = state.inner_handles.get_mut(&handle.number);
            handles.push(handle);
            let Some(inner) = inner else { continue };
            match opened {
                Ok(guard) => {
                    old.push(std::mem::replace(&mut inner.fh, guard.take()));
                    inner.refused = None;
                }
                Err(errno) => inner.refused = Some(errno),
            }
            (inner.epoch, inner.closed) = (epoch, false);
        }
        // Unless a change that had begun before was answered since.
        if let Some(attr) =
            observed.attr.filter(|_| state.answered_changes == observed.answered_changes)
        {
            state.observed(&attr);
        }
    }
    drop(handles);
    old.into_iter().for_each(|fh| core.inner.close(fh));
    if let Err(errno) = locks::reclaim(core, file).await {
        return ReopenResult::Failed(stale_as_loss(errno));
    }
    replay_log(core, file).await
}

async fn replay_log(core: &Arc<Core>, file: &Arc<OpenFile>) -> ReopenResult {
    loop {
        let (batch, handles) = {
            let mut state = file.lock();
            let batch = state.log.take_replays(MAX_IN_FLIGHT);
            if batch.is_empty() {
                state.phase = Phase::Open;
                return ReopenResult::Open;
            }
            let inner_handles = state.inner_handles.iter();
            let usable = |number: u64, inner: &InnerHandle| match inner.refused {
                // Another may hold the lock now under which the change was made.
                _ if state.has_lost_lock(number) => Err(Errno::EIO),
                Some(errno) => Err(errno),
                None => Ok(inner.fh),
            };
            let handles: HashMap<u64, Result<Fh>> =
                inner_handles.map(|(number, inner)| (*number, usable(*number, inner))).collect();
            (batch, handles)
        };
        if let Err(errno) = replay_batch(core, file, batch, &handles).await {
            return ReopenResult::Failed(stale_as_loss(errno));
        }
    }
}

/// Sends these changes in order, and completes their callers. An error means another loss.
async fn replay_batch(
    core: &Arc<Core>,
    file: &OpenFile,
    batch: Vec<Replay>,
    handles: &HashMap<u64, Result<Fh>>,
) -> Result<()> {
    // One change may take several calls: each has the index of its change.
    let (mut indices, mut calls): (Vec<usize>, Vec<RemoteCall<'_, ()>>) = Default::default();
    for (index, replay) in batch.iter().enumerate() {
        match handles.get(&replay.handle.number) {
            Some(Ok(fh)) => calls.extend(calls_for(core, *fh, replay)),
            refused => {
                let errno = refused.and_then(|refused| refused.err()).unwrap_or(Errno::EBADF);
                calls.push(Box::pin(async move { Err(errno) }));
            }
        }
        indices.resize(calls.len(), index);
    }
    let mut results: Vec<Result<()>> = vec![Ok(()); batch.len()];
    for (index, result) in indices.into_iter().zip(join_in_order(calls).await) {
        results[index] = results[index].and(result);
    }
    let is_lost = |errno: Errno| errno.is_loss() || errno == Errno::ESTALE;
    let mut lost = Ok(());
    for (replay, result) in batch.iter().zip(results) {
        match result {
            Err(errno) if is_lost(errno) => lost = Err(errno),
            result => file.note_replayed(core, replay, result),
        }
    }
    lost
}

/// The calls that execute the remaining part of a change.
fn calls_for<'a>(
    core: &'a Core,
    fh: Fh,
    replay: &Replay,
) -> impl Iterator<Item = RemoteCall<'a, ()>> {
    let inner = &*core.inner;
    remaining_changes(replay).into_iter().map(move |change| send(inner, fh, &change))
}

/// The remaining part of a change, as separate changes.
fn remaining_changes(replay: &Replay) -> Vec<Change> {
    match &replay.change {
        Change::Write { offset, data } if replay.parts != [replay.change.range()] => {
            let part = |part: &Range<u64>| {
                let (from, to) = ((part.start - offset) as usize, (part.end - offset) as usize);
                Change::Write { offset: part.start, data: data.slice(from..to) }
            };
            replay.parts.iter().map(part).collect()
        }
        change => vec![change.clone()],
    }
}

impl OpenFile {
    /// A change was replayed and answered.
    fn note_replayed(&self, core: &Arc<Core>, replay: &Replay, result: Result<()>) {
        let write_verifier = core.write_verifier.current(core);
        let track_unstable = core.write_verifier.may_be_available();
        let is_future = |time| core.clock.is_future(time);
        let mut state = self.lock();
        for change in remaining_changes(replay) {
            match result {
                Ok(()) => {
                    let digest = track_unstable.then(|| change.digest()).flatten();
                    state.happened(
                        replay.number,
                        &change,
                        digest,
                        write_verifier.clone(),
                        track_unstable,
                        &is_future,
                    );
                }
                Err(_) => state.may_have_happened(replay.number, &change, &is_future),
            }
        }
        state.log.answer(replay.number, result);
    }
}
