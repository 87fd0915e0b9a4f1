//! Reopening files whose mode refuses it: the creator of a file may write to it whatever its mode
//! is (git creates its objects with 0444), and a program may remove permissions while it has the
//! file open.
//!
//! The missing permission bits are added for the time of the open. If that is interrupted or
//! refused, either the mode is unchanged, or the next attempt restores it. If no attempt follows,
//! because no program has the file open any more, the added bits stay.

use base::{Access, AttrChange, Errno, OpenFlags, OpenGuard, Opened, RemotePath, Result};

use crate::Core;
use crate::file::OpenFile;

/// A change of the permission bits.
pub(crate) fn set_perm(perm: u32) -> AttrChange {
    AttrChange { perm: Some(perm), ..AttrChange::default() }
}

/// The permission bits that the owner needs for this access.
pub(crate) fn needed_perm(access: Access) -> u32 {
    match access {
        Access::Read => 0o400,
        Access::Write => 0o200,
        Access::ReadWrite => 0o600,
    }
}

/// Opens the file for one of its handles.
pub(super) async fn open(
    core: &Core,
    file: &OpenFile,
    path: &RemotePath,
    flags: OpenFlags,
) -> Result<Opened> {
    let opened = match core.inner.open(path, flags).await {
        Err(Errno::EACCES) => open_with_added_mode(core, file, path, flags).await?,
        opened => opened?,
    };
    let Some(before) = file.lock().mode_to_restore else { return Ok(opened) };
    let guard = OpenGuard::new(&*core.inner, opened.fh);
    if !super::is_same_file(core, file, path, &opened.attr, false).await? {
        // Another file has taken the name in the meantime; the caller detects that as well.
        return Ok(Opened { fh: guard.take(), ..opened });
    }
    core.inner.fsetattr(guard.fh(), set_perm(before)).await?;
    file.note_mode_restored(before);
    let attr = base::Attr { perm: before, ..opened.attr };
    Ok(Opened { fh: guard.take(), attr })
}

async fn open_with_added_mode(
    core: &Core,
    file: &OpenFile,
    path: &RemotePath,
    flags: OpenFlags,
) -> Result<Opened> {
    let before = file.expected();
    let attr = core.inner.lstat(path).await?;
    let more = attr.perm | needed_perm(flags.access);
    // Changes through another handle may have been acknowledged meanwhile.
    if more == attr.perm || !before.or(file.expected()).matches(&attr) {
        return Err(Errno::EACCES);
    }
    file.note_mode_added(attr.perm, &set_perm(more));
    match core.inner.setattr(path, set_perm(more)).await {
        // The login is not the owner.
        Err(Errno::EPERM | Errno::EACCES) => {
            file.note_mode_restored(attr.perm);
            Err(Errno::EACCES)
        }
        Err(errno) => Err(errno),
        Ok(()) => match core.inner.open(path, flags).await {
            Err(errno) if !errno.is_loss() => {
                if core.inner.setattr(path, set_perm(attr.perm)).await.is_ok() {
                    file.note_mode_restored(attr.perm);
                }
                Err(errno)
            }
            opened => opened,
        },
    }
}

impl OpenFile {
    /// Permission bits are about to be added to the mode `before`.
    fn note_mode_added(&self, before: u32, change: &AttrChange) {
        let mut state = self.lock();
        // After an interrupted attempt, the mode from before that attempt is the right one.
        state.mode_to_restore = state.mode_to_restore.or(Some(before));
        state.expected.may_have_set(change, &|_| false);
    }

    /// The mode `before` was restored.
    fn note_mode_restored(&self, before: u32) {
        let mut state = self.lock();
        state.mode_to_restore = None;
        state.expected.set(&set_perm(before), &|_| false);
    }
}
