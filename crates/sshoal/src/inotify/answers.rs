//! The answers to the requests of the thread that repeats changes.
//!
//! The kernel holds the lock of the directory from the look-up of a name until the answer to the
//! change of the name. So a change that follows a look-up of this thread is of what that look-up
//! has returned. But the kernel looks a name up only if it has no valid entry of it. Such an entry
//! leads to an inode that other processes may use. The removal of a file is answered all the same:
//! the server has reported that its name is gone. A directory would be marked as dead, and a
//! renamed entry would stay valid; these changes are answered with `EBUSY`, and the thread tries
//! again when the entry has expired.
//!
//! A name that a process has created again, or looked up again, is neither removed, renamed nor
//! replaced.

use std::sync::atomic::Ordering;
use std::time::Duration;

use base::{Attr, Entry, Errno, FileKind, Ino, Result, Stat, Timestamp};
use fuse::{Context, Opened};
use rustix::process::{getegid, geteuid};
use vfs::Vfs;

use super::Repeater;
use super::plan::{Action, Place, Step};

/// The bit that distinguishes the node id of a stand-in from all node ids of [`Vfs`].
const STAND_IN: u64 = 1 << 63;

/// The kinds of stand-ins, as further bits of their node id.
const STAND_IN_DIR: u64 = 1 << 62;

/// The handle of the files that the thread opens.
const HANDLE: u64 = u64::MAX;

/// The error for a look-up that must change nothing: the kernel keeps its entry. `EINTR` has this
/// effect since Linux 6.5 only.
const REFUSED: Errno = Errno::ENOMEM;

impl Repeater {
    fn is_ours(&self, ctx: &Context) -> bool {
        let thread = self.shared.thread.load(Ordering::Relaxed);
        thread != 0 && ctx.pid == thread
    }

    /// The answer to a look-up, if the thread has sent it.
    pub fn lookup(
        &self,
        vfs: &Vfs,
        ctx: &Context,
        parent: u64,
        name: &[u8],
    ) -> Option<Result<Entry>> {
        if parent == Ino::ROOT.0 && name == self.shared.greeting.as_bytes() {
            self.shared.thread.store(ctx.pid, Ordering::Relaxed);
            return Some(Err(Errno::ENOENT));
        }
        if !self.is_ours(ctx) {
            return None;
        }
        let step = self.shared.step.lock().clone();
        Some(match &step {
            Some(step) if step.at.is(parent, name) => {
                let found = self.look_up(vfs, step);
                if found.is_ok() {
                    self.shared.looked_up.store(true, Ordering::Relaxed);
                }
                found
            }
            Some(Step { action: Action::Rename { to }, is_dir, .. }) if to.is(parent, name) => {
                self.look_up_target(vfs, to, *is_dir)
            }
            // On the path to its directory.
            _ => vfs.known_directory(Ino(parent), name).ok_or(REFUSED),
        })
    }

    fn look_up(&self, vfs: &Vfs, Step { at, is_dir, action, .. }: &Step) -> Result<Entry> {
        let name = at.name.as_bytes();
        let is_created = *action == Action::Create;
        let is_unbound = matches!(action, Action::Remove | Action::Rename { .. });
        if is_unbound && vfs.has_valid_name(at.dir, name) {
            return Err(REFUSED);
        }
        if *is_dir {
            let stays = matches!(action, Action::Change { .. });
            let known = if stays { vfs.known_directory(at.dir, name) } else { None };
            return match known {
                _ if is_created => Err(Errno::ENOENT),
                Some(known) => Ok(known),
                None => Ok(self.stand_in(true)),
            };
        }
        match vfs.known_file(at.dir, name, self.is_watched(at) && !is_created) {
            // An open file would be shown as deleted.
            Ok(Some(known)) if is_created => {
                vfs.forget(known.ino, 1);
                Err(REFUSED)
            }
            Ok(Some(known)) => Ok(known),
            Ok(None) if is_created => Err(Errno::ENOENT),
            Ok(None) => Ok(self.stand_in(false)),
            Err(_) => Err(REFUSED),
        }
    }

    /// The file that a rename replaces, so that those who watch it see that.
    fn look_up_target(&self, vfs: &Vfs, to: &Place, is_dir: bool) -> Result<Entry> {
        if vfs.has_valid_name(to.dir, to.name.as_bytes()) {
            return Err(REFUSED);
        }
        match vfs.known_file(to.dir, to.name.as_bytes(), self.is_watched(to)) {
            Ok(Some(known)) if !is_dir => Ok(known),
            Ok(Some(known)) => {
                vfs.forget(known.ino, 1);
                Err(REFUSED)
            }
            Ok(None) => Err(Errno::ENOENT),
            Err(_) => Err(REFUSED),
        }
    }

    fn is_watched(&self, at: &Place) -> bool {
        self.shared.watchers.watch_any(at.number.into_iter())
    }

    /// Whether the thread has sent a request for what it is executing; then the answer.
    fn answer<T>(
        &self,
        ctx: &Context,
        answer: impl FnOnce(&Step) -> Option<T>,
    ) -> Option<Result<T>> {
        if !self.is_ours(ctx) {
            return None;
        }
        let step = self.shared.step.lock().clone();
        Some(step.as_ref().and_then(answer).ok_or(Errno::EBUSY))
    }

    /// The answer to the creation of a file or directory.
    pub fn create(
        &self,
        vfs: &Vfs,
        ctx: &Context,
        parent: u64,
        name: &[u8],
        is_dir: bool,
    ) -> Option<Result<Entry>> {
        self.answer(ctx, |step| {
            let is_it = step.action == Action::Create && step.at.is(parent, name);
            if !is_it || step.is_dir != is_dir {
                return None;
            }
            // A directory that another process has looked up since keeps its place in the kernel.
            let known = if is_dir { vfs.known_directory(step.at.dir, name) } else { None };
            Some(known.unwrap_or_else(|| self.stand_in(is_dir)))
        })
    }

    /// The answer to the removal of a name.
    pub fn remove(
        &self,
        vfs: &Vfs,
        ctx: &Context,
        parent: u64,
        name: &[u8],
        is_dir: bool,
    ) -> Option<Result<()>> {
        self.answer(ctx, |step| {
            let is_it = step.action == Action::Remove && step.at.is(parent, name);
            let looked_up = self.shared.looked_up.load(Ordering::Relaxed);
            let is_safe = looked_up || !is_dir && !vfs.has_valid_name(step.at.dir, name);
            (is_it && is_safe && step.is_dir == is_dir).then_some(())
        })
    }

    /// The answer to a rename.
    pub fn rename(
        &self,
        ctx: &Context,
        from: (u64, &[u8]),
        target: (u64, &[u8]),
    ) -> Option<Result<()>> {
        self.answer(ctx, |step| {
            let Action::Rename { to } = &step.action else { return None };
            let is_it = step.at.is(from.0, from.1) && to.is(target.0, target.1);
            (is_it && self.shared.looked_up.load(Ordering::Relaxed)).then_some(())
        })
    }

    /// The answer to a change of attributes: nothing is changed.
    pub fn setattr(&self, vfs: &Vfs, ctx: &Context, ino: u64) -> Option<Result<Stat>> {
        self.answer(ctx, |step| {
            let is_it = matches!(step.action, Action::Change { .. });
            is_it.then(|| known_stat(vfs, ino)).flatten()
        })
    }

    /// The answer to a request for attributes.
    pub fn getattr(&self, vfs: &Vfs, ctx: &Context, ino: u64) -> Option<Result<Stat>> {
        self.is_ours(ctx).then(|| known_stat(vfs, ino).ok_or(REFUSED))
    }

    /// The answer to an open.
    pub fn open(&self, vfs: &Vfs, ctx: &Context, ino: u64) -> Option<Result<Opened>> {
        self.answer(ctx, |step| {
            let is_it = matches!(step.action, Action::Change { written: true, .. });
            let found = is_it.then(|| known_stat(vfs, ino)).flatten()?;
            (found.attr.kind == FileKind::Regular).then(|| {
                let mut opened = Opened::new(HANDLE);
                opened.flags.keep_cache = true;
                opened.flags.noflush = true;
                opened
            })
        })
    }

    /// The answer to the close of a file that the thread has opened. The kernel may show another
    /// thread as its caller.
    pub fn closed(&self, fh: u64) -> Option<Result<()>> {
        (fh == HANDLE).then_some(Ok(()))
    }

    /// A new stand-in. It is looked up once, and the kernel forgets it at once.
    fn stand_in(&self, is_dir: bool) -> Entry {
        let number = self.shared.stand_ins.fetch_add(1, Ordering::Relaxed);
        let ino = STAND_IN | if is_dir { STAND_IN_DIR } else { 0 } | number;
        Entry { ino: Ino(ino), stat: stand_in_stat(ino), ttl: Duration::ZERO }
    }
}

/// The attributes of an inode, or of a stand-in.
fn known_stat(vfs: &Vfs, ino: u64) -> Option<Stat> {
    match ino & STAND_IN {
        0 => vfs.known_stat(Ino(ino)),
        _ => Some(stand_in_stat(ino)),
    }
}

/// The thread may do anything with it.
fn stand_in_stat(ino: u64) -> Stat {
    let is_dir = ino & STAND_IN_DIR != 0;
    let kind = if is_dir { FileKind::Directory } else { FileKind::Regular };
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let (atime, mtime) = (Timestamp::default(), Timestamp::default());
    let attr = Attr { kind, perm: 0o700, size: 0, uid, gid, atime, mtime, inode: None };
    Stat { number: ino, attr, nlink: 1, ctime: Timestamp::now(), ttl: Duration::ZERO }
}
