//! Looking at names, to tell what became of a request. The table is at the head of [`super`].

use std::sync::Arc;

use base::{Attr, AttrChange, Errno, FileKind, OpenFlags, Remote, RemotePath, Result};

use super::{Doubt, New, Verdict};
use crate::Core;
use crate::clock::about_equal;
use crate::known::{Moment, Seen};
use crate::recover::Fresh;

/// Permission bits that are asked for, without those that a directory may pass on by itself.
const ASKED_PERM: u32 = 0o777;

/// Whether `attr` is what was seen before; `None` when nothing was.
fn is(before: Option<Seen>, attr: Option<&Attr>) -> Option<bool> {
    Some(match before? {
        Seen::Absent => attr.is_none(),
        Seen::There(expect) => attr.is_some_and(|attr| expect.explains(attr)),
    })
}

impl Core {
    async fn there(&self, path: &RemotePath) -> Result<Option<Attr>> {
        match self.inner.lstat(path).await {
            Ok(attr) => Ok(Some(attr)),
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn before(&self, path: &RemotePath, sent: Moment) -> Option<Seen> {
        let seen = self.known.before(path, sent);
        if seen == Some(Seen::Absent) {
            return seen;
        }
        // What is written changes without being looked at.
        match self.files.body(path).map(|body| Seen::There(body.expect())).or(seen) {
            Some(Seen::There(expect)) if self.known.is_linked(path) => {
                Some(Seen::There(expect.by_another_name()))
            }
            seen => seen,
        }
    }

    fn was_there(&self, path: &RemotePath, sent: Moment) -> bool {
        matches!(self.before(path, sent), Some(Seen::There(_)))
    }

    async fn is_fresh(&self, path: &RemotePath, attr: &Attr, doubt: Doubt) -> Result<bool> {
        if let Some(within) = self.clock.is_within(attr.mtime, doubt.window) {
            return Ok(within);
        }
        let above = path.parent().unwrap_or_default();
        let above = self.there(&above).await?;
        Ok(above.is_some_and(|above| about_equal(above.mtime, attr.mtime)))
    }

    /// Whether nothing is in a directory; `false` when it cannot be looked.
    async fn is_empty(&self, path: &RemotePath) -> Result<bool> {
        let dh = match self.inner.opendir(path).await {
            Ok(dh) => dh,
            Err(errno) if crate::link::is_loss(errno) => return Err(errno),
            Err(_) => return Ok(false),
        };
        let dir = Dir(&*self.inner, dh);
        Ok(self.inner.readdir(dir.1).await?.is_none())
    }

    pub(super) async fn look_mkdir(
        self: &Arc<Core>,
        path: &RemotePath,
        perm: u32,
        doubt: Doubt,
    ) -> Result<Verdict> {
        let Some(attr) = self.there(path).await? else { return Ok(Verdict::NotDone) };
        if self.was_there(path, doubt.seen) {
            return Ok(Verdict::NotDone);
        }
        let ours = attr.is_dir()
            && attr.perm & ASKED_PERM & !perm == 0
            && self.is_fresh(path, &attr, doubt).await?
            && self.is_empty(path).await?;
        if !ours {
            return Ok(Verdict::Failed(Errno::EEXIST));
        }
        if let Some(perm) = missing_bits(perm, attr.perm) {
            // The bits that the server's umask has taken, which its maker had no time to set.
            let change = AttrChange { perm: Some(perm), ..AttrChange::default() };
            self.inner.setattr(path, change).await?;
        }
        Ok(Verdict::Done)
    }

    /// The verdict on a removal, when nothing is there.
    fn gone_from(&self, path: &RemotePath, sent: Moment) -> Verdict {
        match self.before(path, sent) {
            // The server knows best why that fails.
            Some(Seen::Absent) => Verdict::NotDone,
            _ => Verdict::Done,
        }
    }

    pub(super) async fn look_rmdir(
        self: &Arc<Core>,
        path: &RemotePath,
        doubt: Doubt,
    ) -> Result<Verdict> {
        let Some(attr) = self.there(path).await? else {
            return Ok(self.gone_from(path, doubt.seen));
        };
        let before = self.before(path, doubt.seen);
        // Somebody may have given it a time in the future, with which it was seen before.
        let is_same =
            matches!(before, Some(Seen::There(expect)) if expect.was_changed_at(attr.mtime));
        let newer = self.clock.is_after_start(attr.mtime, doubt.window) == Some(true);
        // What is no directory is not removed by this, whoever has made it.
        if attr.is_dir() && (newer && !is_same || before == Some(Seen::Absent)) {
            return Ok(Verdict::Unknown("something else has this name now"));
        }
        Ok(Verdict::NotDone)
    }

    pub(super) async fn look_unlink(
        self: &Arc<Core>,
        path: &RemotePath,
        doubt: Doubt,
    ) -> Result<Verdict> {
        let Some(attr) = self.there(path).await? else {
            return Ok(self.gone_from(path, doubt.seen));
        };
        let is_same = match is(self.before(path, doubt.seen), Some(&attr)) {
            Some(same) => same || self.clock.is_before(attr.mtime, doubt.window) == Some(true),
            // Nothing is known of what was there: only its time can say that it is something new.
            None => self.clock.is_after_start(attr.mtime, doubt.window) != Some(true),
        };
        // A directory is not removed by an unlink, whoever has made it.
        if attr.is_dir() || is_same {
            return Ok(Verdict::NotDone);
        }
        Ok(Verdict::Unknown("what has this name now may be something new"))
    }

    pub(super) async fn look_symlink(
        self: &Arc<Core>,
        target: &[u8],
        path: &RemotePath,
        doubt: Doubt,
    ) -> Result<Verdict> {
        let Some(attr) = self.there(path).await? else { return Ok(Verdict::NotDone) };
        if self.was_there(path, doubt.seen) {
            return Ok(Verdict::NotDone);
        }
        let ours = attr.kind == FileKind::Symlink && self.inner.readlink(path).await? == target;
        Ok(if ours { Verdict::Done } else { Verdict::Failed(Errno::EEXIST) })
    }

    pub(super) async fn look_link(
        self: &Arc<Core>,
        existing: &RemotePath,
        new: &RemotePath,
        doubt: Doubt,
    ) -> Result<Verdict> {
        if self.there(new).await?.is_none() || self.was_there(new, doubt.seen) {
            return Ok(Verdict::NotDone);
        }
        // The file may be written meanwhile.
        let before = self.there(existing).await?;
        let attr = self.there(new).await?;
        let ours = match (before, attr, self.there(existing).await?) {
            (Some(before), Some(attr), Some(after)) => attr.is_between(&before, &after),
            _ => false,
        };
        Ok(if ours { Verdict::Done } else { Verdict::Failed(Errno::EEXIST) })
    }

    pub(super) async fn look_rename(
        self: &Arc<Core>,
        from: &RemotePath,
        to: &RemotePath,
        doubt: Doubt,
    ) -> Result<Verdict> {
        let (old, new) = (self.there(from).await?, self.there(to).await?);
        let (before_from, before_to) = (self.before(from, doubt.seen), self.before(to, doubt.seen));
        let arrived = new.is_some() && is(before_from, new.as_ref()) == Some(true);
        let to_changed = is(before_to, new.as_ref()).map(|same| !same);
        Ok(match (&old, &new) {
            (None, _) if before_from == Some(Seen::Absent) => Verdict::NotDone,
            (None, None) => Verdict::Unknown("neither name is there"),
            (None, Some(_)) => match before_from {
                _ if arrived => Verdict::Done,
                None if to_changed != Some(false) => Verdict::Done,
                _ => Verdict::Unknown("the new name is not what had the old one"),
            },
            (Some(old), _) => match is(before_from, Some(old)) {
                Some(true) => Verdict::NotDone,
                _ if arrived => Verdict::Done,
                None if to_changed != Some(true) => Verdict::NotDone,
                _ if to_changed == Some(false) => Verdict::NotDone,
                _ => Verdict::Unknown("both names are not what they were"),
            },
        })
    }

    pub(super) async fn look_new(
        self: &Arc<Core>,
        path: &RemotePath,
        flags: OpenFlags,
        perm: u32,
        doubt: Doubt,
    ) -> Result<New> {
        let Some(attr) = self.there(path).await? else { return Ok(New::Absent) };
        let ours = !self.was_there(path, doubt.seen)
            && attr.kind == FileKind::Regular
            && attr.size == 0
            && attr.perm & ASKED_PERM & !perm == 0
            && self.is_fresh(path, &attr, doubt).await?;
        if !ours {
            return Ok(New::Taken);
        }
        let existing = OpenFlags { append: flags.append, ..OpenFlags::existing(flags.access) };
        let mut opened = match self.inner.open(path, existing).await {
            Err(Errno::ENOENT) => return Ok(New::Absent),
            opened => opened?,
        };
        let fresh = Fresh::new(&*self.inner, opened.fh);
        if let Some(perm) = missing_bits(perm, attr.perm) {
            let change = AttrChange { perm: Some(perm), ..AttrChange::default() };
            self.inner.fsetattr(fresh.fh(), change).await?;
            opened.attr.perm = perm;
        }
        fresh.take();
        Ok(New::Ours(opened))
    }
}

/// An open directory; closed when dropped.
struct Dir<'a>(&'a dyn Remote, base::Dh);

impl Drop for Dir<'_> {
    fn drop(&mut self) {
        self.0.closedir(self.1);
    }
}

/// The permission bits to set when some of those `wanted` are not among those there `are`.
fn missing_bits(wanted: u32, are: u32) -> Option<u32> {
    (wanted & ASKED_PERM & !are != 0).then_some(wanted | are)
}
