//! The thread that repeats changes on the mount.
//!
//! It reaches a directory from the mount point, one name at a time, without following links and
//! without entering what is mounted there. It has
//! the mount point open only while there is something to repeat, so that an idle mount is not busy.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use base::RemotePath;
use mountinfo::{Device, Mount};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, openat, statx};
use rustix::io::Errno;
use vfs::ForeignChange;

use super::Shared;
use super::plan::{Action, Step, may_continue, open_inside, plan};
use super::sources::Sources;

/// How long the second half of a rename is awaited.
const SECOND_HALF: Duration = Duration::from_millis(10);

/// Searches for watchers take a twentieth of the time, at most.
const SEARCH_SHARE: u32 = 20;

/// How long what was found is used while changes are repeated: what is no longer watched costs
/// time.
const MAX_SEARCH_AGE: Duration = Duration::from_secs(5);

/// Pauses before a name is tried again of which the kernel has a valid entry that it got for
/// another process.
const RETRIES: [Duration; 3] =
    [Duration::from_millis(1), Duration::from_millis(10), Duration::from_millis(100)];

/// Repeats changes until there is no sender any more; in a union, as its `sources` show them.
pub(super) fn repeat_all(
    shared: &Shared,
    queue: &Receiver<Vec<ForeignChange>>,
    mount: &Mount,
    sources: Option<&Sources>,
) {
    shared.watchers.set_device(mount.device);
    // In directories that no process watched at the last search.
    let mut undecided: VecDeque<(Instant, Step)> = VecDeque::new();
    loop {
        let wait = if undecided.is_empty() { None } else { Some(until_search(shared)) };
        let Some(changes) = receive(queue, wait) else { return };
        let (reported_at, steps) = (Instant::now(), plan(&changes));
        // Every step is of one change or more.
        shared.queued.fetch_sub(changes.len() - steps.len(), Ordering::Relaxed);
        undecided.extend(steps.into_iter().map(|step| (reported_at, step)));
        let search_age = shared.watchers.last_search().map(|(began, _)| began.elapsed());
        let is_known = |step: &Step| shared.watchers.watch_any(step.numbers());
        let is_old = search_age.is_none_or(|age| age > MAX_SEARCH_AGE);
        if (is_old || !undecided.iter().all(|(_, step)| is_known(step)))
            && until_search(shared).is_zero()
        {
            shared.watchers.find();
        }
        let searched_at = shared.watchers.last_search().map(|(began, _)| began);
        let mut watched = Vec::new();
        let before = undecided.len();
        undecided.retain(|(reported_at, step)| {
            let is_watched = is_known(step);
            if is_watched {
                watched.push(step.clone());
            }
            // One that began to watch after the search would miss it.
            !is_watched && searched_at.is_none_or(|searched_at| searched_at < *reported_at)
        });
        if let Some(sources) = sources.filter(|_| !watched.is_empty()) {
            watched = sources.shown(&watched);
        }
        repeat(shared, mount, &watched);
        shared.queued.fetch_sub(before - undecided.len(), Ordering::Relaxed);
    }
}

/// How long it takes until the next search.
fn until_search(shared: &Shared) -> Duration {
    let next = shared.watchers.last_search().map(|(began, took)| began + took * SEARCH_SHARE);
    next.map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now()))
}

/// The next changes; none after `wait`. `None` if there will be no more.
fn receive(
    queue: &Receiver<Vec<ForeignChange>>,
    wait: Option<Duration>,
) -> Option<Vec<ForeignChange>> {
    let first = match wait {
        None => queue.recv().ok()?,
        Some(wait) => match queue.recv_timeout(wait) {
            Ok(changes) => changes,
            Err(RecvTimeoutError::Timeout) => return Some(Vec::new()),
            Err(RecvTimeoutError::Disconnected) => return None,
        },
    };
    let mut changes = first;
    changes.extend(queue.try_iter().flatten());
    if may_continue(&changes)
        && let Ok(more) = queue.recv_timeout(SECOND_HALF)
    {
        changes.extend(more);
    }
    Some(changes)
}

/// Repeats these steps, as far as that is possible.
fn repeat(shared: &Shared, mount: &Mount, steps: &[Step]) {
    if steps.is_empty() {
        return;
    }
    // The mount point may be hidden by another mount, or the mount may be gone.
    let Some(root) = open_root(mount) else { return };
    if shared.thread.load(Ordering::Relaxed) == 0 {
        let _ = openat(&root, &shared.greeting, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        if shared.thread.load(Ordering::Relaxed) == 0 {
            // The kernel shows this thread without a number.
            return;
        }
    }
    let mut last: Option<(&RemotePath, OwnedFd)> = None;
    for step in steps {
        if last.as_ref().is_none_or(|(path, _)| **path != step.at.path) {
            last = open_dir(&root, &step.at.path).map(|dir| (&step.at.path, dir));
        }
        let Some((_, dir)) = &last else { continue };
        let other_dir = match &step.action {
            Action::Rename { to } if to.path != step.at.path => match open_dir(&root, &to.path) {
                Some(to) => Some(to),
                None => continue,
            },
            _ => None,
        };
        let to = other_dir.as_ref().unwrap_or(dir);
        for pause in RETRIES {
            shared.looked_up.store(false, Ordering::Relaxed);
            *shared.step.lock() = Some(step.clone());
            let result = step.execute(dir.as_fd(), to.as_fd());
            *shared.step.lock() = None;
            // All other errors: it cannot be repeated. A part of a change of the file may have
            // been.
            let is_change = matches!(step.action, Action::Change { .. });
            if result != Err(Errno::BUSY) || is_change {
                break;
            }
            sleep(pause);
        }
    }
}

/// The root of the mount.
fn open_root(mount: &Mount) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = openat(CWD, &mount.mountpoint, flags, Mode::empty()).ok()?;
    // Without a request to the file system.
    let at = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(&root, "", at, StatxFlags::empty()).ok()?;
    let device = Device { major: found.stx_dev_major, minor: found.stx_dev_minor };
    (device == mount.device).then_some(root)
}

fn open_dir(root: &OwnedFd, path: &RemotePath) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut dir = openat(root, ".", flags, Mode::empty()).ok()?;
    for name in path.names() {
        dir = open_inside(&dir, name, flags).ok()?;
    }
    Some(dir)
}
