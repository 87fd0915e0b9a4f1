//! Deferred opens: opens without a request to the server.
//!
//! An open for reading is *deferred* if a request would bring nothing new: the server was asked for
//! the attributes recently (`open_revalidate`; under `timeout` and `immutable` as long as
//! attributes are fresh), a name led to the file, the permission bits let the login read it, and
//! the content is local, in the kernel's pages or prefetched. The remote handle is opened when a
//! part of the content is missing, or never.
//!
//! If no content is local, the open is sent: the first read would have to wait for the handle
//! anyway, and the kernel learns the size of the file.
//!
//! Invariants:
//! 1. All deferred opens of an inode whose handle is not open yet share one handle, so that they
//!    are of the same file.
//! 2. An open is deferred only while no other handle of the inode is open: the name may lead to
//!    another file later than that of the handle.
//! 3. Deferred handles are opened before any request that could separate the inode's name from its
//!    file or remove the right to read it (an unlink, a rename, a chmod, an open that is sent).
//!    While a name of the inode is being changed, no open is deferred.
//! 4. If the handle is opened and has another content than the open was validated for, the kernel
//!    drops its pages. The call fails with `ESTALE`, since a part of the old content may have been
//!    read, unless the server identifies the file as the same one: then it was changed in place, as
//!    under a handle that had been opened at once. Local writes since do not count as another
//!    content: an open for writing may be in flight when an open is deferred. But a file that the
//!    server identifies as another one is never used.

use std::sync::Arc;
use std::time::Duration;

use base::{Access, Attr, Errno, Fh, FileKind, OpenFlags, OpenGuard, RemotePath, Result};
use tokio::time::Instant;

use crate::Vfs;
use crate::config::{Config, Consistency, PageCache};
use crate::inode::{Inode, KernelSize, State, Validator};
use crate::lookup::MAX_ATTEMPTS;
use crate::open::{OpenRequest, Opened};
use crate::remote_file::{Opener, RemoteFile};
use crate::shared::Shared;
use crate::tree::RequestStamp;

impl Vfs {
    /// Opens `inode` without a request, if that is possible. `ESTALE` if the kernel must look the
    /// name up again first.
    pub(crate) fn try_deferred_open(
        &self,
        inode: &Arc<Inode>,
        request: OpenRequest,
    ) -> Result<Option<Opened>> {
        let plain = request == OpenRequest::plain(Access::Read);
        if !plain || self.config.page_cache == PageCache::Never {
            return Ok(None);
        }
        let is_second = {
            let tree = self.tree();
            // Of several names only one was validated.
            if !tree.has_one_path(inode.ino) {
                return Ok(None);
            }
            // A lock needs the handle, whose content may be another one by then.
            if tree.used_name(inode.ino).is_some_and(|(dir, _)| tree.has_locked_files(dir)) {
                return Ok(None);
            }
            tree.may_open_again()
        };
        let stale = self.serves_stale(inode.ino);
        let check = || {
            let state = inode.state();
            let known = self.validated(&state, inode.kind, stale);
            (known, known.is_some_and(|attr| self.has_pages(&state, &attr, stale)))
        };
        let (mut known, mut pages) = check();
        if known.is_none() && self.prefetch.record_prefetched(&self.shared, inode) {
            (known, pages) = check();
        }
        // A listing of a watched directory may be newer.
        if self.config.consistency == Consistency::Watch
            && !inode.state().is_covered()
            && self.cached_listing_attr(inode).is_some()
        {
            (known, pages) = check();
        }
        let wants_fetched = !pages || self.prefetch.files.may_miss_pages();
        let fetched = known
            .filter(|_| wants_fetched)
            .and_then(|attr| self.prefetch.attach(&self.shared, inode, &attr));
        let (attr, remote) = {
            let mut state = inode.state();
            let Some(attr) = self.validated(&state, inode.kind, stale) else { return Ok(None) };
            let has_pages = || {
                // Pages are dropped while the kernel's size is uncertain.
                let keeps = stale || !state.has_uncertain_kernel_size();
                keeps && self.has_pages(&state, &attr, stale)
            };
            if Some(attr) != known || fetched.is_none() && !has_pages() {
                return Ok(None);
            }
            let unopened = state.open.iter().all(|open| open.remote.opened().is_none());
            if !unopened || !may_read(&self.config, &attr) || self.wants_backing(&attr) {
                return Ok(None);
            }
            if self.config.page_cache != PageCache::Always {
                match state.expire_kernel_size(attr.size) {
                    KernelSize::Right => {}
                    KernelSize::Wrong if !is_second => return Err(Errno::ESTALE),
                    KernelSize::Wrong | KernelSize::WrongAgain => return Ok(None),
                }
            }
            let shared = state.open.last().map(|open| (open.remote.clone(), open.validator));
            let validator = Validator::of(&attr);
            if shared.as_ref().is_some_and(|(_, expected)| *expected != validator) {
                return Ok(None);
            }
            let shared = shared.map(|(remote, _)| remote);
            let since = state.validator_changes();
            (attr, shared.unwrap_or_else(|| self.deferred_handle(inode, validator, since)))
        };
        let is_prefetched = fetched.is_some();
        let file = self.new_open_file(inode, remote, request, fetched);
        let opened = self.register_deferred(file, &attr, request);
        if opened.is_some() {
            self.counters.opens_deferred.add(1);
            self.counters.opens_prefetched.add(is_prefetched.into());
        }
        Ok(opened)
    }

    /// A remote handle that is opened when it is needed. The file is `expected` if it was not
    /// changed locally since its count of [`State::validator_changes`] was `since`.
    fn deferred_handle(
        &self,
        inode: &Arc<Inode>,
        expected: Validator,
        since: u64,
    ) -> Arc<RemoteFile> {
        // The inode owns the handle, so the handle must not own the inode.
        let (shared, inode) = (Arc::downgrade(&self.shared), Arc::downgrade(inode));
        let opener: Opener = Box::new(move || {
            let both = shared.upgrade().zip(inode.upgrade());
            Box::pin(async move {
                let (shared, inode) = both.ok_or(Errno::ESTALE)?;
                shared.open_deferred(&inode, expected, since).await
            })
        });
        RemoteFile::deferred(self.remote.clone(), opener)
    }
}

impl Shared {
    /// Whether the kernel may have pages of the content that `attr` names. `stale`: cached data of
    /// any age is valid for the file.
    pub(crate) fn has_pages(&self, state: &State, attr: &Attr, stale: bool) -> bool {
        match self.config.page_cache {
            PageCache::Validated => state.has_pages(attr, self.trusts_racy(stale)),
            PageCache::SameTime => state.has_pages(attr, true),
            PageCache::Always => state.trusts_pages(),
            PageCache::Never => false,
        }
    }

    /// Whether pages may be kept whose content was read in the second of its mtime.
    pub(crate) fn trusts_racy(&self, stale: bool) -> bool {
        self.config.consistency == Consistency::Timeout || stale
    }

    /// The attributes that a deferred open can rely on. `stale`: those of any age.
    pub(crate) fn validated(&self, state: &State, kind: FileKind, stale: bool) -> Option<Attr> {
        if kind != FileKind::Regular || self.config.consistency == Consistency::Strict {
            return None;
        }
        let now = Instant::now();
        let window = match stale {
            true => Duration::MAX,
            false => self.live(|it| it.open_revalidate),
        };
        state.validated(now, window).or_else(|| {
            let by_time_out =
                matches!(self.config.consistency, Consistency::Timeout | Consistency::Immutable)
                    || state.is_covered();
            let attr = state.fresh_attr(now).filter(|_| by_time_out);
            attr.and(state.validated(now, Duration::MAX))
        })
    }

    /// Opens the existing file `path`, which is the name of `inode`. If that needs no request,
    /// `stamp` becomes the time at which its attributes were requested.
    pub(crate) async fn open_remote(
        &self,
        inode: &Inode,
        path: &RemotePath,
        flags: OpenFlags,
        stamp: &mut RequestStamp,
    ) -> Result<base::Opened> {
        let covered = inode.state().covered_attr(Instant::now());
        let known = covered.filter(|_| flags == OpenFlags::existing(Access::Read));
        if let Some((attr, requested_at)) = known
            && let Some(opened) = self.remote.open_stored(path, &attr).await
        {
            stamp.at = requested_at;
            return Ok(opened);
        }
        self.remote.open(path, flags).await
    }

    /// Opens a handle that was deferred when the count of local changes was `since`. It is of the
    /// file that the name leads to now.
    async fn open_deferred(
        &self,
        inode: &Arc<Inode>,
        expected: Validator,
        since: u64,
    ) -> Result<Fh> {
        for attempt in 1.. {
            inode.writes.drained().await;
            self.await_moves(inode.ino).await;
            let path = self.path(inode.ino)?;
            let mut stamp = self.stamp_request();
            let flags = OpenFlags::existing(Access::Read);
            let opened = self.open_remote(inode, &path, flags, &mut stamp).await;
            // Closed unless it is taken.
            let opened =
                opened.map(|opened| (OpenGuard::new(&*self.remote, opened.fh), opened.attr));
            if self.moved_since(inode, &path, stamp) && attempt < MAX_ATTEMPTS {
                continue;
            }
            let (handle, attr) = match opened {
                Err(Errno::ENOENT)
                    if self.has_other_path(inode, &path, stamp) && attempt < MAX_ATTEMPTS =>
                {
                    continue;
                }
                // The file is gone, and its content is unknown.
                Err(Errno::ENOENT | Errno::ELOOP | Errno::EISDIR | Errno::ENOTDIR) => {
                    self.invalidate_inode(inode);
                    return Err(Errno::ESTALE);
                }
                opened => opened?,
            };
            self.check_same_content(inode, &attr, stamp, (expected, since))?;
            return Ok(handle.take());
        }
        unreachable!("the last attempt returns")
    }

    /// Checks that a file which was opened now has the content that it was validated for when the
    /// count of local changes was `since`.
    fn check_same_content(
        &self,
        inode: &Inode,
        attr: &Attr,
        stamp: RequestStamp,
        (expected, since): (Validator, u64),
    ) -> Result<()> {
        let seq = self.change_counter.advance();
        let (is_reported, is_same_file) = {
            let mut state = inode.state();
            let is_reported = state.is_reported_since(stamp.seq);
            state.note_deferred_open(seq);
            let is_same_file = inode.is_same_file(&state, attr);
            // Local changes of other kinds, or of everything that is cached, explain no new
            // validator.
            let is_expected =
                Validator::of(attr).agrees_with(&expected) || state.validator_changes() != since;
            if is_expected && is_same_file != Some(false) {
                return Ok(());
            }
            (is_reported, is_same_file)
        };
        if is_same_file == Some(false) {
            // Its attributes are not those of this inode.
            self.invalidate_inode(inode);
        } else if !is_reported {
            // Otherwise the answer may be from before the reported change.
            self.record_attr(inode, attr, RequestStamp { seq, ..stamp });
        }
        self.drop_pages(inode);
        if is_same_file == Some(true) {
            return Ok(());
        }
        tracing::debug!(ino = inode.ino.0, "the file changed between its open and a read");
        Err(Errno::ESTALE)
    }

    /// Opens the deferred handles of `inodes` before their names change.
    pub(crate) async fn force_deferred_opens(&self, inodes: impl IntoIterator<Item = &Arc<Inode>>) {
        let mut opening = Vec::new();
        for inode in inodes {
            let expected: Option<Arc<RemoteFile>> = {
                let state = inode.state();
                // All deferred opens of an inode share one.
                let unopened = state.open.iter().find(|open| open.remote.opened().is_none());
                unopened.map(|open| open.remote.clone())
            };
            // Begun here, so that all requests are in flight together.
            opening.extend(expected.map(|file| file.fh()));
        }
        for opening in opening {
            // A reader gets the error.
            let _ = opening.await;
        }
    }

    /// Invalidates the attributes of `inode` and its names in cached listings.
    pub(crate) fn invalidate_inode(&self, inode: &Inode) {
        self.tree().invalidate_names(inode.ino);
        inode.state().invalidate();
    }
}

/// Whether the server lets the login read a file with these attributes, judged by the permission
/// bits.
pub(crate) fn may_read(config: &Config, attr: &Attr) -> bool {
    const OWNER: u32 = 0o400;
    const OTHERS: u32 = 0o044;
    match config.login {
        Some((0, _)) => true,
        Some((uid, _)) if uid == attr.uid => attr.perm & OWNER != 0,
        // Only one of the login's groups is known, and an access list may restrict the file
        // further.
        Some(_) => attr.perm & OTHERS == OTHERS,
        None => attr.perm & (OWNER | OTHERS) == OWNER | OTHERS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ino, LookupResult};
    use base::Timestamp;
    use testkit::MemRemote;

    /// Invariant 1, with two opens that are deferred at the same time.
    #[tokio::test]
    async fn one_inode_never_has_two_deferred_handles() {
        let remote = Arc::new(MemRemote::new());
        remote.put_file("f", "content");
        let vfs = Vfs::new(remote, Config { login: Some((0, 0)), ..Config::default() });
        let Ok(LookupResult::Found(entry)) = vfs.lookup(Ino::ROOT, b"f").await else {
            panic!("it is there")
        };
        let inode = vfs.inode(entry.ino).unwrap();
        let (attr, request) = (entry.stat.attr, OpenRequest::plain(Access::Read));
        let expected = || {
            let remote = vfs.deferred_handle(&inode, Validator::of(&attr), 0);
            vfs.register_deferred(vfs.new_open_file(&inode, remote, request, None), &attr, request)
        };
        let first = expected().expect("nobody else has it open");
        assert_eq!(expected(), None, "it has a handle of its own");
        vfs.release(first.handle);
        assert!(expected().is_some());
    }

    #[test]
    fn permission_bits_decide_whether_the_login_may_read() {
        let allowed = |login, perm| {
            let time = Timestamp::default();
            let config = Config { login, ..Config::default() };
            let kind = FileKind::Regular;
            let attr =
                Attr { kind, perm, size: 0, uid: 7, gid: 7, atime: time, mtime: time, inode: None };
            may_read(&config, &attr)
        };
        assert!(allowed(Some((0, 0)), 0));
        assert!(allowed(Some((7, 1)), 0o400) && !allowed(Some((7, 1)), 0o377));
        assert!(allowed(Some((8, 7)), 0o044) && !allowed(Some((8, 7)), 0o740));
        assert!(!allowed(Some((8, 7)), 0o704));
        assert!(allowed(None, 0o444) && !allowed(None, 0o440) && !allowed(None, 0o044));
    }
}
