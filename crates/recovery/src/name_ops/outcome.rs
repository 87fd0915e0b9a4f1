//! Determines the outcome of a request by checking its names. The table is at the head of
//! [`super`].

use std::sync::Arc;

use base::{
    Attr, DirGuard, Errno, FileKind, OpenFlags, OpenGuard, Opened, RemotePath, RenameMode, Result,
};

use super::{CreateOutcome, InDoubt, NameRequest, Outcome};
use crate::Core;
use crate::name_history::{NameState, Seq};
use crate::reopen::{LATE, needed_perm, set_perm};
use crate::server_clock::about_equal;

/// The permission bits that are compared. A new entry may inherit other bits from its directory.
const COMPARED_PERM: u32 = 0o777;

/// Whether `attr` is the state from before; `None` if that is unknown.
fn matches_before(before: Option<NameState>, attr: Option<&Attr>) -> Option<bool> {
    Some(match before? {
        NameState::Absent => attr.is_none(),
        NameState::Present(expected) => attr.is_some_and(|attr| expected.matches(attr)),
    })
}

/// The state that an earlier and a later look at the records allow.
fn either(earlier: Option<NameState>, later: Option<NameState>) -> Option<NameState> {
    match (earlier, later) {
        (Some(NameState::Present(earlier)), Some(NameState::Present(later))) => {
            Some(NameState::Present(earlier.or(later)))
        }
        (earlier, later) => later.or(earlier),
    }
}

impl Core {
    async fn lstat_if_present(&self, path: &RemotePath) -> Result<Option<Attr>> {
        match self.inner.lstat(path).await {
            Ok(attr) => Ok(Some(attr)),
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn before(&self, path: &RemotePath, sent: Seq) -> Option<NameState> {
        let seen = self.history.before(path, sent);
        if seen == Some(NameState::Absent) {
            return seen;
        }
        // The expected attributes of an open file include writes, which no lookup has observed.
        match self.files.get(path).map(|file| NameState::Present(file.expected())).or(seen) {
            Some(NameState::Present(expected)) if self.history.is_linked(path) => {
                Some(NameState::Present(expected.kind_only()))
            }
            seen => seen,
        }
    }

    /// The state of `path` before the request that was sent at `sent`, and its present attributes.
    /// Changes of an open file that are acknowledged while the attributes are on their way belong
    /// to the state: the attributes may be from before or after them.
    async fn before_and_now(
        &self,
        path: &RemotePath,
        sent: Seq,
    ) -> Result<(Option<NameState>, Option<Attr>)> {
        let first = self.before(path, sent);
        let now = self.lstat_if_present(path).await?;
        Ok((either(first, self.before(path, sent)), now))
    }

    fn existed(&self, path: &RemotePath, sent: Seq) -> bool {
        matches!(self.before(path, sent), Some(NameState::Present(_)))
    }

    /// Whether `attr` is that of a new entry of this kind, with no other permission bits than
    /// `perm`.
    async fn is_new(
        &self,
        path: &RemotePath,
        attr: &Attr,
        (kind, perm): (FileKind, u32),
        in_doubt: InDoubt,
    ) -> Result<bool> {
        if attr.kind != kind || attr.perm & COMPARED_PERM & !perm != 0 {
            return Ok(false);
        }
        if let Some(within) = self.clock.is_within(attr.mtime, in_doubt.span) {
            return Ok(within);
        }
        let parent = path.parent().unwrap_or_default();
        let parent = self.lstat_if_present(&parent).await?;
        Ok(parent.is_some_and(|parent| about_equal(parent.mtime, attr.mtime)))
    }

    /// Whether a directory is empty; `false` if it cannot be listed.
    async fn is_empty_dir(&self, path: &RemotePath) -> Result<bool> {
        let dh = match self.inner.opendir(path).await {
            Ok(dh) => dh,
            Err(errno) if errno.is_loss() => return Err(errno),
            Err(_) => return Ok(false),
        };
        let dir = DirGuard::new(&*self.inner, dh);
        Ok(self.inner.readdir(dir.dh()).await?.is_none())
    }

    pub(super) async fn outcome(
        self: &Arc<Core>,
        request: NameRequest<'_>,
        in_doubt: InDoubt,
    ) -> Result<Outcome> {
        match request {
            NameRequest::Rmdir { path } => self.rmdir_outcome(path, in_doubt).await,
            NameRequest::Unlink { path } => self.unlink_outcome(path, in_doubt).await,
            NameRequest::Rename { from, to, mode: RenameMode::Exchange } => {
                self.exchange_outcome(from, to, in_doubt).await
            }
            NameRequest::Rename { from, to, .. } => self.rename_outcome(from, to, in_doubt).await,
            _ => self.creation_outcome(request, in_doubt).await,
        }
    }

    /// The outcome of a request that creates a name.
    async fn creation_outcome(
        &self,
        request: NameRequest<'_>,
        in_doubt: InDoubt,
    ) -> Result<Outcome> {
        let (_, path, _) = request.names();
        let Some(attr) = self.lstat_if_present(path).await? else { return Ok(Outcome::NotDone) };
        if self.existed(path, in_doubt.seq) {
            return Ok(Outcome::NotDone);
        }
        if !self.has_created(request, &attr, in_doubt).await? {
            return Ok(Outcome::Failed(Errno::EEXIST));
        }
        if let NameRequest::Mkdir { perm: Some(perm), .. } | NameRequest::Mknod { perm, .. } =
            request
            && let Some(perm) = self.removed_bits(path, perm, attr.perm).await?
        {
            match self.inner.setattr(path, set_perm(perm)).await {
                Err(errno) if errno.is_loss() => return Err(errno),
                // The server may insist on fewer bits.
                _ => {}
            }
        }
        Ok(Outcome::Done)
    }

    /// The permission bits to set on a new entry that was requested with `wanted` and has the bits
    /// `are`, if the server's umask has removed some. The interrupted request would have set them.
    async fn removed_bits(&self, path: &RemotePath, wanted: u32, are: u32) -> Result<Option<u32>> {
        let missing = wanted & COMPARED_PERM & !are != 0;
        Ok((missing && !self.may_have_default_acl_above(path).await?).then_some(wanted | are))
    }

    /// Whether `request` has created the entry with the attributes `attr`.
    async fn has_created(
        &self,
        request: NameRequest<'_>,
        attr: &Attr,
        in_doubt: InDoubt,
    ) -> Result<bool> {
        match request {
            NameRequest::Mkdir { path, perm } => {
                let requested = (FileKind::Directory, perm.unwrap_or(0o777));
                Ok(self.is_new(path, attr, requested, in_doubt).await?
                    && self.is_empty_dir(path).await?)
            }
            NameRequest::Mknod { path, kind, perm, .. } => {
                self.is_new(path, attr, (kind, perm), in_doubt).await
            }
            // The attributes may be those of its target (`follow_symlinks`).
            NameRequest::Symlink { target, path } => match self.inner.readlink(path).await {
                Err(errno) if errno.is_loss() => Err(errno),
                found => Ok(found.is_ok_and(|found| found == target)),
            },
            NameRequest::Link { existing, new } => {
                // Another client may write the file in the meantime.
                let before = self.lstat_if_present(existing).await?;
                let attr = self.lstat_if_present(new).await?;
                Ok(match (before, attr, self.lstat_if_present(existing).await?) {
                    (Some(before), Some(attr), Some(after)) => attr.is_between(&before, &after),
                    _ => false,
                })
            }
            NameRequest::Rmdir { .. } | NameRequest::Unlink { .. } | NameRequest::Rename { .. } => {
                Ok(false)
            }
        }
    }

    /// The outcome of a removal, if the name is absent.
    fn absent_outcome(&self, path: &RemotePath, sent: Seq) -> Outcome {
        match self.before(path, sent) {
            // The repeated request returns the server's exact error.
            Some(NameState::Absent) => Outcome::NotDone,
            _ => Outcome::Done,
        }
    }

    async fn rmdir_outcome(&self, path: &RemotePath, in_doubt: InDoubt) -> Result<Outcome> {
        let Some(attr) = self.lstat_if_present(path).await? else {
            return Ok(self.absent_outcome(path, in_doubt.seq));
        };
        let before = self.before(path, in_doubt.seq);
        // An mtime in the future may have been set before the request.
        let is_same =
            matches!(before, Some(NameState::Present(expected)) if expected.had_mtime(attr.mtime));
        let is_newer = self.clock.is_after_start(attr.mtime, in_doubt.span) == Some(true);
        // An rmdir does not remove an entry that is not a directory.
        if attr.is_dir() && (is_newer && !is_same || before == Some(NameState::Absent)) {
            return Ok(Outcome::Unknown("another directory has this name now"));
        }
        Ok(Outcome::NotDone)
    }

    async fn unlink_outcome(&self, path: &RemotePath, in_doubt: InDoubt) -> Result<Outcome> {
        let (before, now) = self.before_and_now(path, in_doubt.seq).await?;
        let Some(attr) = now else {
            return Ok(self.absent_outcome(path, in_doubt.seq));
        };
        let is_same = match matches_before(before, Some(&attr)) {
            Some(same) => same || self.clock.is_before(attr.mtime, in_doubt.span) == Some(true),
            // Nothing is known from before: only its mtime can show that the entry is new.
            None => self.clock.is_after_start(attr.mtime, in_doubt.span) != Some(true),
        };
        // An unlink does not remove a directory.
        if attr.is_dir() || is_same {
            return Ok(Outcome::NotDone);
        }
        Ok(Outcome::Unknown("the name may belong to a new file"))
    }

    async fn exchange_outcome(
        &self,
        from: &RemotePath,
        to: &RemotePath,
        in_doubt: InDoubt,
    ) -> Result<Outcome> {
        // A request that is executed after this check, and once more, has no effect.
        tokio::time::sleep(LATE).await;
        let (before_from, old) = self.before_and_now(from, in_doubt.seq).await?;
        let (before_to, new) = self.before_and_now(to, in_doubt.seq).await?;
        let (Some(old), Some(new)) = (old, new) else { return Ok(Outcome::NotDone) };
        let is = |before, attr| matches_before(before, Some(attr)) == Some(true);
        let is_other = |before, attr| matches_before(before, Some(attr)) == Some(false);
        let is_done = is(before_from, &new) && is(before_to, &old);
        let is_not_done = is(before_from, &old) && is(before_to, &new);
        Ok(if is_done && !is_not_done {
            Outcome::Done
        } else if !is_done && is_not_done
            || is(before_from, &old) && is_other(before_to, &old)
            || is(before_to, &new) && is_other(before_from, &new)
        {
            Outcome::NotDone
        } else {
            Outcome::Unknown("it cannot be seen which file has which name")
        })
    }

    async fn rename_outcome(
        &self,
        from: &RemotePath,
        to: &RemotePath,
        in_doubt: InDoubt,
    ) -> Result<Outcome> {
        let (before_from, old) = self.before_and_now(from, in_doubt.seq).await?;
        let (before_to, new) = self.before_and_now(to, in_doubt.seq).await?;
        // The file may have the new name, and may have changed since the first lookup.
        let before_from = either(before_from, self.before(from, in_doubt.seq));
        let is_moved = new.is_some() && matches_before(before_from, new.as_ref()) == Some(true);
        // A rename leaves a file at the new name. So if there is none, and none is known to have
        // been there before, nothing has changed it.
        let to_changed = match (before_to, &new) {
            (None, None) => Some(false),
            _ => matches_before(before_to, new.as_ref()).map(|same| !same),
        };
        Ok(match (&old, &new) {
            (None, _) if before_from == Some(NameState::Absent) => Outcome::NotDone,
            (None, None) => Outcome::Unknown("neither name exists"),
            (None, Some(_)) => match before_from {
                _ if is_moved => Outcome::Done,
                None if to_changed != Some(false) => Outcome::Done,
                _ => Outcome::Unknown("the new name is not the file that had the old one"),
            },
            (Some(old), _) => match matches_before(before_from, Some(old)) {
                // Another file, with the same attributes, has the old name.
                Some(true) if is_moved && to_changed == Some(true) => Outcome::Done,
                Some(true) => Outcome::NotDone,
                _ if is_moved => Outcome::Done,
                None if to_changed != Some(true) => Outcome::NotDone,
                _ if to_changed == Some(false) => Outcome::NotDone,
                _ => Outcome::Unknown("both names have changed"),
            },
        })
    }

    pub(crate) async fn create_outcome(
        self: &Arc<Core>,
        path: &RemotePath,
        flags: OpenFlags,
        perm: u32,
        in_doubt: InDoubt,
    ) -> Result<CreateOutcome> {
        let Some(mut attr) = self.lstat_if_present(path).await? else {
            return Ok(CreateOutcome::Absent);
        };
        // The requested mode may refuse the open. Then these bits are added for the time of the
        // open; an interrupted attempt may have added them already.
        let added = needed_perm(flags.access) & !perm;
        let is_ours = !self.existed(path, in_doubt.seq)
            && attr.size == 0
            && self.is_new(path, &attr, (FileKind::Regular, perm | added), in_doubt).await?;
        if !is_ours {
            return Ok(CreateOutcome::Exists);
        }
        let existing = OpenFlags { append: flags.append, ..OpenFlags::existing(flags.access) };
        let opened = match self.inner.open(path, existing).await {
            Err(Errno::EACCES) if added != 0 => {
                attr.perm |= added;
                self.inner.setattr(path, set_perm(attr.perm)).await?;
                self.inner.open(path, existing).await
            }
            opened => opened,
        };
        let mut opened = match opened {
            Err(Errno::ENOENT) => return Ok(CreateOutcome::Absent),
            opened => opened?,
        };
        let guard = OpenGuard::new(&*self.inner, opened.fh);
        let kept = attr.perm & !added;
        let wanted = self.removed_bits(path, perm & COMPARED_PERM, kept).await?.unwrap_or(kept);
        if wanted != attr.perm {
            self.inner.fsetattr(guard.fh(), set_perm(wanted)).await?;
            opened.attr.perm = wanted;
        }
        opened.fh = guard.take();
        Ok(CreateOutcome::Opened(opened))
    }

    /// Opens a file, or creates it, after an attempt without a reply. If that has created it, the
    /// file gets the permission bits that the server's umask has removed. A file that may have been
    /// there before stays as it is: `flags` may truncate it, so that it looks new.
    pub(crate) async fn open_or_create_again(
        &self,
        path: &RemotePath,
        flags: OpenFlags,
        perm: u32,
        in_doubt: InDoubt,
    ) -> Result<Opened> {
        let mut opened = self.inner.open(path, flags).await?;
        let guard = OpenGuard::new(&*self.inner, opened.fh);
        let attr = &mut opened.attr;
        if self.before(path, in_doubt.seq) == Some(NameState::Absent)
            && attr.size == 0
            && self.is_new(path, attr, (FileKind::Regular, perm), in_doubt).await?
            && let Some(perm) = self.removed_bits(path, perm & COMPARED_PERM, attr.perm).await?
        {
            match self.inner.fsetattr(guard.fh(), set_perm(perm)).await {
                Ok(()) => attr.perm = perm,
                // The handle is lost, too.
                Err(Errno::ESTALE) => return Err(Errno::EHOSTDOWN),
                Err(errno) if errno.is_loss() => return Err(errno),
                // The server insists on fewer bits.
                Err(_) => {}
            }
        }
        opened.fh = guard.take();
        Ok(opened)
    }
}
