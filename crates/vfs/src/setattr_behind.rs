//! Attribute changes that return when they are in flight.
//!
//! A program that extracts an archive creates a file, writes it, sets its mode and times, and
//! closes it. The server cannot refuse mode and times to the owner of a file, so these changes
//! return early, as writes do: they are sent behind the writes of the same handle, the close waits
//! for all of them together, and the next write, fsync or close reports an error.
//!
//! Only for a file that this mount has created, while it is open for writing: then its size, which
//! the reply to the kernel must contain, is known without a request.
//!
//! Some servers refuse: those that forbid FSETSTAT, and file systems without modes. Programs
//! tolerate that error from the call itself, but not from a close, so after the first refusal each
//! change of the mount waits for its answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::task::Task;
use base::{Attr, AttrChange, Errno, FileKind, Result};
use tokio::time::Instant;

use crate::config::Consistency;
use crate::inode::{Inode, State};
use crate::write_behind::InFlight;
use crate::{Stat, Vfs};

/// Bits that the server may refuse to set, or clear.
const SPECIAL: u32 = 0o7000;

impl Vfs {
    /// Removes from `change` owners that the file has already, if the server would do nothing for
    /// them: archivers set the owner of each file that they have created.
    ///
    /// Only for what this mount has created or changed, and while that is known for less than the
    /// minimum time-out. What is known of other files may be older than a change of the owner by
    /// another machine, which `change` is to replace.
    pub(crate) fn without_unchanged_owner(&self, inode: &Inode, change: AttrChange) -> AttrChange {
        let within = self.timeout(inode.kind).min;
        let state = inode.state();
        let changed_here = || {
            let attr = state.fresh_attr(Instant::now()).and(state.requested_within(within));
            attr.filter(|_| state.changes_begun() > 0)
        };
        let known = state.created_here_within(within).or_else(changed_here);
        let Some(attr) = known else { return change };
        // A new owner clears these bits, even if it is the old one.
        let plain = matches!(attr.kind, FileKind::Regular | FileKind::Directory);
        if !plain || attr.perm & SPECIAL != 0 || !self.owns(&attr) {
            return change;
        }
        AttrChange {
            uid: change.uid.filter(|uid| *uid != attr.uid),
            gid: change.gid.filter(|gid| *gid != attr.gid),
            ..change
        }
    }

    /// Adds the present atime to a `change` that sets only the mtime: SFTP can set only both, and a
    /// request for the other one would cost a round trip. The atime is a recent cached one; reads
    /// since are treated as reads before.
    pub(crate) fn with_known_atime(&self, inode: &Inode, change: AttrChange) -> AttrChange {
        let within = self.timeout(inode.kind).max;
        if change.mtime.is_none() || change.atime.is_some() || within.is_zero() {
            return change;
        }
        let state = inode.state();
        let known = state.requested_within(within).or_else(|| state.created_here_within(within));
        AttrChange { atime: known.map(|attr| state.times(&attr).0), ..change }
    }

    /// Sends `change` behind the writes of the file, if this mount has created it. Returns the
    /// resulting attributes.
    pub(crate) async fn setattr_behind(
        &self,
        inode: &Arc<Inode>,
        change: AttrChange,
    ) -> Option<Result<Stat>> {
        let allowed = change.size.is_none()
            && change.uid.or(change.gid).is_none()
            && change.perm.is_none_or(|perm| perm & SPECIAL == 0)
            && !self.refuses_attributes.load(Ordering::Relaxed)
            && !self.config.sync_writes
            && self.config.consistency != Consistency::Strict;
        if !allowed {
            return None;
        }
        let writer = {
            let state = inode.state();
            let owned = state.created_here().is_some_and(|attr| self.owns(&attr));
            let writer = state.open.iter().rfind(|open| open.access.writes());
            writer.filter(|_| owned).map(|open| open.file)
        };
        let file = self.files.get(writer?).ok()?;
        let fh = file.remote.opened().filter(|_| !file.remote.is_flushed())?;
        // The writes are sent first.
        inode.writes.drained_but(file.number).await;
        let (attr, request) = {
            let mut state = inode.state();
            let attr = state.created_here()?;
            state.apply(&change, false);
            state.keep_set_mtime(&change);
            let attr = Attr {
                perm: change.perm.unwrap_or(attr.perm),
                atime: change.atime.unwrap_or(attr.atime),
                mtime: change.mtime.unwrap_or(attr.mtime),
                ..attr
            };
            let exact = change.mtime.is_some() || state.created_here_exact().is_some();
            state.set_created_here(attr, exact);
            if change.is_empty() {
                (attr, None)
            } else {
                state.begin_change(self.change_counter.advance());
                let number = inode.writes.begin_other(file.number);
                let change_counter = self.change_counter.clone();
                let in_flight = InFlight { file: file.clone(), change_counter, number };
                (attr, Some((in_flight, self.dirty.change())))
            }
        };
        if let Some((in_flight, dirty)) = request {
            file.note_write();
            let (shared, number) = (self.shared.clone(), in_flight.number);
            Task::start(async move {
                if let Err(error) = shared.remote.fsetattr(fh, change).await {
                    if is_refusal(error) {
                        shared.refuses_attributes.store(true, Ordering::Relaxed);
                    }
                    in_flight.file.fail(error);
                }
                drop(in_flight);
                drop(dirty);
            });
            // Polled once, and so sent.
            inode.writes.sent(number);
        }
        Some(self.stat(inode, &attr))
    }

    /// The attributes of a file that this mount has created, while it is open for writing.
    pub(crate) fn attr_of_created_file(&self, state: &State) -> Option<Attr> {
        let caches = self.config.consistency != Consistency::Strict && !self.config.sync_writes;
        let writes = state.open.iter().any(|open| open.access.writes());
        let (attr, at) = state.created_here_exact().filter(|_| caches && writes)?;
        // Another machine may write to it too.
        (at.elapsed() < self.live(|it| it.files).min).then_some(attr)
    }

    /// Whether the login owns a file with these attributes.
    pub(crate) fn owns(&self, attr: &Attr) -> bool {
        self.config.login.is_some_and(|(uid, _)| uid == 0 || uid == attr.uid)
    }
}

/// Whether the server would refuse the next change, too.
fn is_refusal(error: Errno) -> bool {
    matches!(error, Errno::EPERM | Errno::EACCES | Errno::EOPNOTSUPP | Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use base::Timestamp;
    use testkit::MemRemote;

    use super::*;
    use crate::{Config, Ino, LookupResult};

    #[tokio::test]
    async fn the_time_of_the_last_read_goes_along_and_no_other() {
        let (time, now) = (Timestamp::from_secs(1000), Timestamp::now());
        for consistency in [Consistency::CloseToOpen, Consistency::Strict] {
            let remote = Arc::new(MemRemote::new());
            remote.put_file("f", "content");
            let vfs = Vfs::new(remote, Config { consistency, ..Config::default() });
            let found = vfs.lookup(Ino::ROOT, b"f").await.unwrap();
            let LookupResult::Found(entry) = found else { panic!("absent") };
            let inode = vfs.inode(entry.ino).unwrap();
            let known = (consistency != Consistency::Strict).then_some(entry.stat.attr.atime);
            let of = |change| vfs.with_known_atime(&inode, change);
            let mtime = AttrChange { mtime: Some(time), ..AttrChange::default() };
            assert_eq!(of(mtime), AttrChange { atime: known, ..mtime });
            let both = AttrChange { atime: Some(now), ..mtime };
            assert_eq!(of(both), both);
            let atime = AttrChange { atime: Some(time), ..AttrChange::default() };
            assert_eq!(of(atime), atime);
        }
    }
}
