//! getattr, setattr, access.

use std::sync::Arc;
use std::time::Duration;

use base::{Attr, AttrChange, Errno, FileKind, Result, Timestamp};
use tokio::time::Instant;

use crate::inode::{Inode, has_fractions};
use crate::lookup::MAX_ATTEMPTS;
use crate::shared::Shared;
use crate::tree::RequestStamp;
use crate::{Change, Handle, Ino, ROOT_TIMEOUT, Stat, Vfs, change_to_remote};

impl Vfs {
    /// The attributes of `ino`. For the root, the last ones if no answer arrives within five
    /// seconds.
    ///
    /// # Errors
    /// `ETIMEDOUT` for the root, if there are no earlier ones.
    pub async fn getattr(&self, ino: Ino) -> Result<Stat> {
        let inode = self.inode(ino)?;
        if let Some(attr) = self.known_attr(&inode) {
            self.counters.attributes_cached.add(1);
            return self.stat(&inode, &attr);
        }
        self.counters.attributes_requested.add(1);
        if ino != Ino::ROOT {
            let attr = self.request_attr(&inode).await?;
            return self.stat(&inode, &attr);
        }
        if let Ok(attr) = tokio::time::timeout(ROOT_TIMEOUT, self.request_attr(&inode)).await {
            return self.stat(&inode, &attr?);
        }
        let last = inode.state().last_attr().ok_or(Errno::ETIMEDOUT)?;
        let stat = self.stat(&inode, &last)?;
        Ok(Stat { ttl: Duration::ZERO, ..stat })
    }

    /// The attributes of `inode`, from the cache while they are fresh.
    pub(crate) async fn attr(&self, inode: &Arc<Inode>) -> Result<Attr> {
        match self.known_attr(inode) {
            Some(attr) => Ok(attr),
            None => self.request_attr(inode).await,
        }
    }

    async fn request_attr(&self, inode: &Arc<Inode>) -> Result<Attr> {
        self.or_stale(inode.ino, self.fetch_attr(inode), || Ok(self.stale_attr(inode))).await
    }

    /// The attributes of `inode` without a request.
    fn known_attr(&self, inode: &Arc<Inode>) -> Option<Attr> {
        let cached = {
            let state = inode.state();
            // Writes in flight to a file created here change nothing that is not known.
            state.fresh_attr(Instant::now()).or_else(|| self.attr_of_created_file(&state))
        };
        cached.or_else(|| self.cached_listing_attr(inode)).or_else(|| self.stale_attr(inode))
    }

    /// The attributes of `inode` from the server, after all writes of this mount.
    pub(crate) async fn fetch_attr(&self, inode: &Arc<Inode>) -> Result<Attr> {
        for attempt in 1.. {
            inode.writes.drained().await;
            self.await_moves(inode.ino).await;
            let stamp = self.stamp_request();
            // A handle refers to the file itself, wherever its name leads by now. It may have been
            // lost with its session; then only the name is left.
            if let Some(attr) = self.attr_by_handle(inode).await {
                self.check_same_file(inode, &attr)?;
                self.record_attr_by_handle(inode, &attr, stamp, Instant::now());
                return Ok(attr);
            }
            let before = inode.state().version();
            let path = match self.path(inode.ino) {
                Ok(path) => path,
                Err(errno) => return self.attr_of_removed(inode).ok_or(errno),
            };
            if attempt == 1 {
                let parent = self.tree().parent(inode.ino);
                self.prefetch.note_piecemeal_lookup(&self.shared, parent);
            }
            let reply = self.remote.lstat(&path).await;
            let absent = matches!(reply, Err(Errno::ENOENT));
            if absent && self.has_other_path(inode, &path, stamp) && attempt < MAX_ATTEMPTS {
                continue;
            }
            // The path may have led elsewhere when the server looked it up.
            let deferred_opened = inode.state().deferred_open_since(stamp.seq);
            let moved = self.moved_since(inode, &path, stamp);
            let is_last = attempt == MAX_ATTEMPTS;
            if (deferred_opened || moved) && !is_last {
                continue;
            }
            if let Some(attr) = self.attr_of_nameless(inode, &reply) {
                return Ok(attr);
            }
            let attr = reply?;
            self.check_same_file(inode, &attr)?;
            if self.record_attr_since(inode, &attr, stamp, before) || is_last {
                return Ok(attr);
            }
        }
        unreachable!("the last attempt returns")
    }

    /// The last attributes of a file or directory whose last name was removed by a local change: a
    /// process may still have it open, or work in it.
    fn attr_of_removed(&self, inode: &Inode) -> Option<Attr> {
        let is_removed = self.tree().was_removed_here(inode.ino);
        inode.state().last_attr().filter(|_| is_removed)
    }

    /// The last attributes of an open file, if its name is gone or leads to another file, as
    /// `reply` says, and no handle is open at the server.
    fn attr_of_nameless(&self, inode: &Inode, reply: &Result<Attr>) -> Option<Attr> {
        let is_gone = match reply {
            Ok(attr) => !inode.may_be(attr),
            Err(error) => *error == Errno::ENOENT,
        };
        let state = inode.state();
        state.last_attr().filter(|_| is_gone && !state.open.is_empty())
    }

    /// `ESTALE` if `attr`, an answer for `inode`, is of another file.
    fn check_same_file(&self, inode: &Inode, attr: &Attr) -> Result<()> {
        if inode.may_be(attr) {
            return Ok(());
        }
        self.tree().orphan(inode.ino);
        Err(Errno::ESTALE)
    }

    /// The present time, for a change of `ino` that sets it: after all local changes in this
    /// second. If the remote reports fractions itself, it is that of the clock.
    pub fn now(&self, ino: Ino) -> Timestamp {
        let last = self.inode(ino).ok().and_then(|inode| inode.state().last_attr());
        match last.is_some_and(|attr| has_fractions(&attr)) {
            true => Timestamp::now(),
            false => self.fractions.now(),
        }
    }

    /// Changes attributes, through `handle` if the kernel names one.
    pub async fn setattr(
        &self,
        ino: Ino,
        change: AttrChange,
        handle: Option<Handle>,
    ) -> Result<Stat> {
        let inode = self.inode(ino)?;
        let change = change_to_remote(&self.config, change)?;
        if change.is_empty() {
            return self.getattr(ino).await;
        }
        if let Some(mtime) = change.mtime {
            self.fractions.note(mtime);
        }
        let change = self.without_unchanged_owner(&inode, change);
        let change = self.with_known_atime(&inode, change);
        if change.size.is_some() || change.mtime.is_some() {
            // Before the values change that the opened file is compared with.
            self.force_deferred_opens([&inode]).await;
        }
        if let Some(done) = self.setattr_behind(&inode, change).await {
            return done;
        }
        if change.is_empty() {
            inode.state().touch_ctime(&self.change_counter);
            return self.getattr(ino).await;
        }
        if change.perm.is_some() || change.uid.or(change.gid).is_some() {
            // The change may remove the right to open the file.
            self.force_deferred_opens([&inode]).await;
        }
        if change.size.is_some() {
            // Before it begins: a server sets the size first, and then the mtime.
            let mut state = inode.state();
            state.note_content_change();
            state.forget_created_here();
        }
        let mut change_guard = Change::begin(&inode, &self.change_counter);
        // For a file of another user, the remote may set the times of its own clock.
        let sets_given_times = !change.touch
            || !self.remote.may_exceed_sftp()
            || inode.state().last_attr().is_some_and(|attr| self.owns(&attr));
        let is_predictable = sets_given_times && change_guard.predicts(&change);
        if is_predictable || change.size.is_some() {
            self.send_change(&inode, change, handle).await?;
            change_guard.apply(&change);
            drop(change_guard);
        } else {
            self.change_then_stat(&inode, change, handle, change_guard).await?;
        }
        let attr = self.attr(&inode).await?;
        self.stat(&inode, &attr)
    }

    /// Sends `change` and, right behind it, a request for the resulting attributes, so that one
    /// round trip is enough. A remote may execute the second request first: attributes that do not
    /// show the change are dropped, and attributes that show it are as valid as those of a later
    /// request, since there was no other local change meanwhile.
    async fn change_then_stat(
        &self,
        inode: &Arc<Inode>,
        change: AttrChange,
        handle: Option<Handle>,
        mut change_guard: Change<'_>,
    ) -> Result<()> {
        let stamp = self.stamp_request();
        let path = self.tree().path(inode.ino);
        let before = inode.state().version();
        let query = async {
            if let Some(attr) = self.attr_by_handle(inode).await {
                return Some((attr, false));
            }
            let attr = self.remote.lstat(path.as_ref()?).await.ok()?;
            Some((attr, true))
        };
        let (sent, reply) = tokio::join!(self.send_change(inode, change, handle), query);
        sent?;
        change_guard.apply(&change);
        let alone = change_guard.end();
        let reply = reply.filter(|(attr, _)| inode.may_be(attr) && shows_change(attr, &change));
        let (Some(seq), Some((attr, by_name))) = (alone, reply) else { return Ok(()) };
        let moved = path.is_none_or(|path| self.moved_since(inode, &path, stamp));
        let stamp = RequestStamp { seq, ..stamp };
        match by_name {
            true if moved => {}
            true => {
                self.record_attr_since(inode, &attr, stamp, before);
            }
            false => {
                self.record_attr_by_handle(inode, &attr, stamp, Instant::now());
            }
        }
        Ok(())
    }

    async fn send_change(
        &self,
        inode: &Arc<Inode>,
        change: AttrChange,
        handle: Option<Handle>,
    ) -> Result<()> {
        // After all earlier writes: those through its own handle by order, the others by waiting.
        let file = handle.and_then(|handle| self.files.get(handle.0).ok());
        if let Some(file) = &file
            && let Some(fh) = file.remote.opened()
        {
            inode.writes.drained_but(file.number).await;
            return self.remote.fsetattr(fh, change).await;
        }
        inode.writes.drained().await;
        // The kernel names no descriptor for `fchmod` and others, and the name may lead to another
        // file by now.
        let open = inode.state().handle_with_identity().filter(|_| change.size.is_none());
        if let Some(open) = open {
            match open.fh().await {
                Ok(fh) => return self.remote.fsetattr(fh, change).await,
                Err(Errno::ESTALE) => return Err(Errno::ESTALE),
                // It may be changed, but not opened.
                Err(_) => {}
            }
        }
        for attempt in 1.. {
            self.await_moves(inode.ino).await;
            let stamp = self.stamp_request();
            let Some(path) = self.tree().path(inode.ino) else { break };
            match self.remote.setattr(&path, change).await {
                Err(Errno::ENOENT)
                    if self.has_other_path(inode, &path, stamp) && attempt < MAX_ATTEMPTS => {}
                done => return done,
            }
        }
        let writable = |open: &&crate::inode::OpenHandle| open.access.writes();
        let file = {
            let state = inode.state();
            let any = state.open.iter().rfind(writable).or(state.open.last());
            any.map(|open| open.remote.clone())
        };
        let fh = file.ok_or(Errno::ESTALE)?.fh().await?;
        self.remote.fsetattr(fh, change).await
    }

    /// Whether `ino` may be accessed as `mask` (`R_OK | W_OK | X_OK`) says. The kernel calls this
    /// only where it does not check permissions itself. The server decides about reads and writes
    /// when they happen; a file without any execute bit is not executed.
    pub async fn access(&self, ino: Ino, mask: u32) -> Result<()> {
        const X_OK: u32 = 1;
        let inode = self.inode(ino)?;
        if mask & X_OK == 0 || inode.kind != FileKind::Regular {
            return Ok(());
        }
        let attr = self.attr(&inode).await?;
        if self.stat(&inode, &attr)?.attr.perm & 0o111 == 0 { Err(Errno::EACCES) } else { Ok(()) }
    }
}

/// Whether these may be the attributes after `change`.
fn shows_change(attr: &Attr, change: &AttrChange) -> bool {
    let time = |set: Option<Timestamp>, is: Timestamp| set.is_none_or(|set| set.secs == is.secs);
    change.perm.is_none_or(|perm| perm == attr.perm)
        && change.uid.is_none_or(|uid| uid == attr.uid)
        && change.gid.is_none_or(|gid| gid == attr.gid)
        && time(change.atime, attr.atime)
        && time(change.mtime, attr.mtime)
}

impl Shared {
    /// The attributes by an open handle, if there is a valid one. The newest handle first: older
    /// ones may be from a session that has ended.
    pub(crate) async fn attr_by_handle(&self, inode: &Inode) -> Option<Attr> {
        let handles: Vec<_> = {
            let state = inode.state();
            state.open.iter().rev().map(|open| open.remote.clone()).collect()
        };
        for file in handles {
            // A deferred handle that is not open is no better than the name.
            let Some(fh) = file.opened() else { continue };
            match self.remote.fstat(fh).await {
                Ok(attr) => return Some(attr),
                Err(Errno::ESTALE | Errno::EBADF) => {}
                Err(_) => return None,
            }
        }
        None
    }

    /// The attributes of an open file by its name, recorded. `None` if they are not known: it has no
    /// name, or the name leads to another file.
    pub(crate) async fn attr_by_name(&self, inode: &Inode) -> Option<Attr> {
        for _ in 0..MAX_ATTEMPTS {
            self.await_moves(inode.ino).await;
            let (stamp, before) = (self.stamp_request(), inode.state().version());
            let path = self.tree().path(inode.ino)?;
            let reply = self.remote.lstat(&path).await;
            if self.serves_stale_at(&path) {
                // The answer may be that of a cache below.
                return None;
            }
            let is_opened = inode.state().deferred_open_since(stamp.seq);
            if !is_opened && !self.moved_since(inode, &path, stamp) {
                let attr = reply.ok().filter(|attr| inode.may_be(attr))?;
                return self.record_attr_since(inode, &attr, stamp, before).then_some(attr);
            }
        }
        None
    }
}
