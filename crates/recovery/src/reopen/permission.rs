//! Files that may not be opened again as they were: whoever makes a file may write to it whatever its
//! permissions are (git makes its objects with 0444), and whoever has it open may take them away.
//!
//! What is missing is added for as long as it takes to open it. When that is cut off, or refused, the
//! file is either as it was, or the next attempt takes the bits away again. Left with them is a file
//! that nobody has open any more by then.

use base::{Access, AttrChange, Errno, OpenFlags, OpenGuard, Opened, RemotePath, Result};

use crate::Core;
use crate::connection::is_loss;
use crate::file::OpenFile;

fn perm(perm: u32) -> AttrChange {
    AttrChange { perm: Some(perm), ..AttrChange::default() }
}

/// What the owner needs for this.
fn needed_perm(access: Access) -> u32 {
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
    if !super::is_same_file(core, file, path, &opened.attr).await? {
        // Another file has got the name meanwhile; the caller sees that, too.
        return Ok(Opened { fh: guard.take(), ..opened });
    }
    core.inner.fsetattr(guard.fh(), perm(before)).await?;
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
    let attr = core.inner.lstat(path).await?;
    let more = attr.perm | needed_perm(flags.access);
    if more == attr.perm || !file.expected().matches(&attr) {
        return Err(Errno::EACCES);
    }
    file.note_mode_added(attr.perm, &perm(more));
    match core.inner.setattr(path, perm(more)).await {
        // Not ours.
        Err(Errno::EPERM | Errno::EACCES) => {
            file.note_mode_restored(attr.perm);
            Err(Errno::EACCES)
        }
        Err(errno) => Err(errno),
        Ok(()) => match core.inner.open(path, flags).await {
            Err(errno) if !is_loss(errno) => {
                if core.inner.setattr(path, perm(attr.perm)).await.is_ok() {
                    file.note_mode_restored(attr.perm);
                }
                Err(errno)
            }
            opened => opened,
        },
    }
}

impl OpenFile {
    /// It is about to get more permissions than it has `before`.
    fn note_mode_added(&self, before: u32, change: &AttrChange) {
        let mut state = self.lock();
        // Those of before an attempt that was cut off are the right ones.
        state.mode_to_restore = state.mode_to_restore.or(Some(before));
        state.expected.may_have_set(change, &|_| false);
    }

    /// It has the permissions of before.
    fn note_mode_restored(&self, before: u32) {
        let mut state = self.lock();
        state.mode_to_restore = None;
        state.expected.set(&perm(before), &|_| false);
    }
}
