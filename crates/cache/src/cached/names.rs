//! Attributes, names and link targets: requests for them, and their records.

use base::{Attr, Errno, FileKind, RemotePath, Result, Timestamp};

use super::changes::Generation;
use super::{Core, ReadPolicy, RemoteWait};
use crate::metadata::same_but_atime;
use crate::{KnownAttr, KnownLink, SourceId};

/// When a request was sent.
#[derive(Clone, Copy)]
pub(crate) struct RequestStamp {
    pub(crate) generation: Generation,
    /// By the clock that all processes share.
    pub(crate) time: Timestamp,
}

impl Core {
    pub(crate) fn stamp(&self) -> RequestStamp {
        RequestStamp { generation: self.changes.generation(), time: Timestamp::now() }
    }

    pub(crate) async fn lstat(&self, path: &RemotePath) -> Result<Attr> {
        let known = |policy| self.known_name(path, policy);
        let request = |wait| self.noting_attr(path, self.within(wait, self.inner.lstat(path)));
        self.answer("the attributes are", path, known, request).await
    }

    /// Requests the attributes from the remote, and records them.
    pub(crate) async fn request_attr(&self, path: &RemotePath) -> Result<Attr> {
        let request = self.within(RemoteWait::WhileConnected, self.inner.lstat(path));
        self.noting_attr(path, request).await
    }

    /// Requests and records the attributes of the directories above `path` whose records are lost:
    /// offline, a file is found by the records of all of them. The mount of an immutable tree has
    /// no other reason to request them again.
    pub(super) async fn record_directories_above(&self, path: &RemotePath) {
        if !self.store.may_write() {
            return;
        }
        let mut unknown = Vec::new();
        let mut above = path.parent();
        while let Some(dir) = above {
            if self.known_name(&dir, ReadPolicy::CacheOnly).is_some() {
                break;
            }
            above = dir.parent();
            unknown.push(dir);
        }
        // From the top down: if this ends early, a later call requests the rest.
        for dir in unknown.iter().rev() {
            if self.request_attr(dir).await.is_err() {
                return;
            }
        }
    }

    /// Records the attributes of `path` that `request` returns.
    async fn noting_attr(
        &self,
        path: &RemotePath,
        request: impl Future<Output = Result<Attr>> + Send,
    ) -> Result<Attr> {
        let stamp = self.stamp();
        let answer = request.await;
        match &answer {
            Ok(attr) => {
                if !self.is_immutable(path) {
                    // The caller may show the size to the readers of all open files.
                    self.files.recognize(path, attr);
                }
                self.note_attr(path, attr, stamp);
            }
            Err(Errno::ENOENT) => self.note_absent(path),
            Err(_) => {}
        }
        answer
    }

    /// The recorded attributes of `path`; `ENOENT` if a complete listing lacks it. Of several
    /// identities of the source, the one that was seen last decides.
    pub(crate) fn known_name(&self, path: &RemotePath, policy: ReadPolicy) -> Option<Result<Attr>> {
        let doubtful = policy == ReadPolicy::CacheFirst && self.invalid_dirs.contains(path);
        match self.latest(path, policy, |source| self.known_in(source, path))? {
            Ok(_) if doubtful => None,
            known => Some(known),
        }
    }

    /// What was `seen` last of `path`, under any of its identities. While the remote of an immutable
    /// tree is unreachable, what was seen of that tree stays valid.
    pub(super) fn latest<T>(
        &self,
        path: &RemotePath,
        policy: ReadPolicy,
        seen: impl Fn(&SourceId) -> Option<(Timestamp, T)>,
    ) -> Option<T> {
        // The last of several equal times is taken, which is that of the best identity.
        let mut seen = self.sources(path, policy).into_iter().rev().filter_map(seen);
        let latest = match self.is_immutable(path) && !self.config.offline {
            true => seen.next_back(),
            false => seen.max_by_key(|(seen_at, _)| *seen_at),
        };
        latest.map(|(_, seen)| seen)
    }

    /// What is recorded of `path` under one identity, and when that was seen.
    fn known_in(&self, source: &SourceId, path: &RemotePath) -> Option<(Timestamp, Result<Attr>)> {
        if let Some(known) = self.known_attr(source, path) {
            return Some((known.seen_at, Ok(known.attr)));
        }
        self.left_out_at(source, path).map(|seen_at| (seen_at, Err(Errno::ENOENT)))
    }

    /// The attributes that were seen last, of those recorded and those in a listing that will be.
    pub(crate) fn recorded_attr(&self, source: &SourceId, path: &RemotePath) -> Option<KnownAttr> {
        self.pending_listings.attr(source, path).unwrap_or_else(|| {
            let known = self.store.attr(source, path)?;
            Some(KnownAttr { attr: self.shown(&known.attr), ..known })
        })
    }

    /// Recorded attributes as this mount shows them.
    pub(super) fn shown(&self, attr: &Attr) -> Attr {
        Attr { inode: attr.inode.filter(|_| self.config.inode_attrs), ..*attr }
    }

    /// The recorded attributes, unless they were requested before a change made here.
    pub(super) fn known_attr(&self, source: &SourceId, path: &RemotePath) -> Option<KnownAttr> {
        let known = self.recorded_attr(source, path)?;
        self.changes.is_current(path, known.seen_at).then_some(known)
    }

    /// When the listing of its directory was seen to lack the name, if it lacks it.
    fn left_out_at(&self, source: &SourceId, path: &RemotePath) -> Option<Timestamp> {
        let dir = path.parent()?;
        let pending = self.pending_listings.lists(source, path);
        let is_listed = pending.or_else(|| self.store.is_listed(source, path));
        match is_listed {
            Some(false) => Some(self.known_directory(source, &dir)?.seen_at),
            _ => None,
        }
    }

    /// Notes that the remote returned `attr`, which are recorded elsewhere, for the request of
    /// `stamp`.
    pub(crate) fn note_seen(&self, path: &RemotePath, attr: &Attr, stamp: RequestStamp) {
        if self.changes.is_unchanged(path, stamp.generation) {
            self.validators.note(path, attr);
        }
    }

    /// Records that the remote returned `attr` for the request of `stamp`.
    pub(crate) fn note_attr(&self, path: &RemotePath, attr: &Attr, stamp: RequestStamp) {
        if !self.changes.is_unchanged(path, stamp.generation) {
            return;
        }
        self.validators.note(path, attr);
        self.invalid_dirs.remove(path);
        let source = self.source(path);
        let known = self.known_attr(source, path).map(|known| known.attr);
        if known.is_some_and(|known| same_but_atime(&known, attr)) {
            return;
        }
        self.write_listing_of(source, path);
        let known = KnownAttr { attr: *attr, seen_at: stamp.time };
        self.store.record_attr(source, path, &known);
        self.undo_if_changed(path, stamp);
    }

    /// Writes the pending listing that has the name of `path`, since newer attributes are to be
    /// recorded.
    pub(super) fn write_listing_of(&self, source: &SourceId, path: &RemotePath) {
        if let Some(dir) = path.parent()
            && let Some(pending) = self.pending_listings.get(source, &dir)
        {
            self.recorder.write_pending(&pending);
        }
    }

    /// Records that the remote returned `ENOENT`.
    fn note_absent(&self, path: &RemotePath) {
        let source = self.source(path);
        if self.recorded_attr(source, path).is_some() {
            self.pending_listings.forget(path);
            self.store.forget(source, path);
        }
        self.validators.forget(path);
    }

    /// A change may have begun between the check and the record.
    pub(super) fn undo_if_changed(&self, path: &RemotePath, stamp: RequestStamp) {
        if !self.changes.is_unchanged(path, stamp.generation) {
            self.store.forget_entry(self.source(path), path);
        }
    }

    pub(crate) async fn readlink(&self, path: &RemotePath) -> Result<Vec<u8>> {
        let known = |policy| self.known_target(path, policy);
        let request = |wait| self.noting_target(path, self.within(wait, self.inner.readlink(path)));
        self.answer("the link's target is", path, known, request).await
    }

    /// Records the target of `path` that `request` returns.
    async fn noting_target(
        &self,
        path: &RemotePath,
        request: impl Future<Output = Result<Vec<u8>>> + Send,
    ) -> Result<Vec<u8>> {
        let stamp = self.stamp();
        let target = request.await?;
        let source = self.source(path);
        let says_the_same = |known: KnownLink| {
            *known.target == *target && self.changes.is_current(path, known.seen_at)
        };
        if self.changes.is_unchanged(path, stamp.generation)
            && !self.store.link(source, path).is_some_and(says_the_same)
        {
            let link = KnownLink { target: target[..].into(), seen_at: stamp.time };
            self.store.record_link(source, path, &link);
            self.undo_if_changed(path, stamp);
        }
        Ok(target)
    }

    fn known_target(&self, path: &RemotePath, policy: ReadPolicy) -> Option<Result<Vec<u8>>> {
        let link = |source: &SourceId| {
            let link = self.store.link(source, path)?;
            let is_current = self.changes.is_current(path, link.seen_at);
            is_current.then(|| (link.seen_at, link.target.to_vec()))
        };
        if let Some(target) = self.latest(path, policy, link) {
            return Some(Ok(target));
        }
        match self.known_name(path, policy)? {
            Ok(attr) if attr.kind == FileKind::Symlink => None,
            Ok(_) => Some(Err(Errno::EINVAL)),
            Err(error) => Some(Err(error)),
        }
    }
}
