//! Making, moving and removing names, when the answer is lost.
//!
//! Such a request is never blindly sent again. When there is a connection again, the names are looked
//! at. *Before* is what was last seen of a name through us (`known`), or what an open file must look
//! like; *fresh* means made between the request and its loss, by the server's clock, or, as long as
//! that is not known, at the time at which the directory above was last changed.
//!
//! | request | what is there now | answer |
//! |---|---|---|
//! | any of those that make a name | nothing | sent again |
//! | any of those that make a name | something, and it was there before | sent again (`EEXIST`) |
//! | mkdir | an empty, fresh directory with no other permissions | done |
//! | open of a new file | an empty, fresh file with no other permissions | done, opened |
//! | symlink | a link with that target | done |
//! | link | a file with the attributes of the other name | done |
//! | any of those that make a name | something else | `EEXIST` |
//! | unlink, rmdir, rename | nothing, and nothing was there before | sent again (`ENOENT`) |
//! | unlink, rmdir | nothing | done |
//! | unlink | what was there before, or what is older than the request, or a directory | sent again |
//! | rmdir | a directory not changed since the request, or no directory | sent again |
//! | unlink, rmdir | something newer | unknown |
//! | rename | not the old name, and at the new one what was at the old one | done |
//! | rename | not the old name, at the new one something else than before, and the old one was not known | done |
//! | rename | what was at the old name is there | sent again |
//! | rename | at the old name something, at the new one what was at the old one | done |
//! | rename | at the old name something not known, at the new one what was there before | sent again |
//! | rename | anything else, also neither name | unknown |
//!
//! Names that cannot be looked at (a path with a loop of links in it) cannot be changed either: such
//! a request is sent again, for the server's own error.
//!
//! *Unknown* is `EIO`, and a line in the log; nothing is removed or replaced then.

mod look;

use std::sync::Arc;

use base::{
    AttrChange, Errno, FileKind, OpenFlags, Opened, RemotePath, RenameMode, Result, Timestamp,
};

use crate::Core;
use crate::call::{Asked, Trouble};
use crate::change::Ticket;
use crate::clock::Window;
use crate::known::Seen;
use crate::link::is_loss;
use crate::log::Change;

/// What became of a request whose answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Done,
    /// It is to be sent again.
    NotDone,
    /// It has failed.
    Failed(Errno),
    /// Nobody can tell, for this reason.
    Unknown(&'static str),
}

/// What became of an open of a new file.
enum New {
    Ours(Opened),
    Absent,
    Taken,
}

impl Core {
    /// Sends a request; if its answer is lost, `look` finds out what became of it.
    async fn looked_into<'a>(
        self: &'a Arc<Core>,
        what: &str,
        path: &RemotePath,
        call: impl Fn() -> Asked<'a, ()> + Send + Sync,
        look: impl Fn(Window) -> Asked<'a, Verdict> + Send + Sync,
    ) -> Result<()> {
        self.connected().await?;
        let sent = Timestamp::now();
        match call().await {
            Err(errno) if is_loss(errno) => {
                Box::pin(self.in_doubt(what, path, call, look, sent, errno)).await
            }
            answer => answer,
        }
    }

    async fn in_doubt<'a>(
        self: &'a Arc<Core>,
        what: &str,
        path: &RemotePath,
        call: impl Fn() -> Asked<'a, ()> + Send + Sync,
        look: impl Fn(Window) -> Asked<'a, Verdict> + Send + Sync,
        sent: Timestamp,
        mut errno: Errno,
    ) -> Result<()> {
        let mut trouble = Trouble::new(self);
        let mut window = Window::until_now(sent);
        loop {
            trouble.lost(errno).await?;
            let verdict = match trouble.within(look(window)).await {
                Err(errno) if is_loss(errno) => Err(errno),
                // What cannot be looked at cannot be changed either: the server knows best why.
                Err(_) => Ok(Verdict::NotDone),
                verdict => verdict,
            };
            let answer = match verdict {
                Ok(Verdict::Done) => return Ok(()),
                Ok(Verdict::NotDone) => {
                    let answer = trouble.within(call()).await;
                    window = Window::until_now(sent);
                    answer
                }
                Ok(Verdict::Failed(errno)) => return Err(errno),
                Ok(Verdict::Unknown(why)) => {
                    let name = &self.config.name;
                    tracing::warn!(
                        "{name}: {what} {path}: the connection was lost before the answer, and \
                         what became of it cannot be told: {why}"
                    );
                    return Err(Errno::EIO);
                }
                Err(errno) => Err(errno),
            };
            match answer {
                Err(lost) if trouble.goes_on_after(lost) => errno = lost,
                answer => return answer,
            }
        }
    }

    pub(crate) async fn mkdir(self: &Arc<Core>, path: &RemotePath, perm: u32) -> Result<()> {
        let call = || self.inner.mkdir(path, perm);
        let look = |window| -> Asked<'_, _> { Box::pin(self.look_mkdir(path, perm, window)) };
        self.looked_into("mkdir", path, call, look).await?;
        self.known.note(path, Seen::made(FileKind::Directory));
        Ok(())
    }

    pub(crate) async fn rmdir(self: &Arc<Core>, path: &RemotePath) -> Result<()> {
        let call = || self.inner.rmdir(path);
        let look = |window| -> Asked<'_, _> { Box::pin(self.look_rmdir(path, window)) };
        self.looked_into("rmdir", path, call, look).await?;
        self.listings.removed(path);
        self.known.note(path, Seen::Absent);
        Ok(())
    }

    pub(crate) async fn unlink(self: &Arc<Core>, path: &RemotePath) -> Result<()> {
        let call = || self.inner.unlink(path);
        let look = |window| -> Asked<'_, _> { Box::pin(self.look_unlink(path, window)) };
        self.looked_into("unlink", path, call, look).await?;
        self.files.removed(path);
        self.known.note(path, Seen::Absent);
        Ok(())
    }

    pub(crate) async fn symlink(self: &Arc<Core>, target: &[u8], path: &RemotePath) -> Result<()> {
        let call = || self.inner.symlink(target, path);
        let look = |_| -> Asked<'_, _> { Box::pin(self.look_symlink(target, path)) };
        self.looked_into("symlink", path, call, look).await?;
        self.known.note(path, Seen::made(FileKind::Symlink));
        Ok(())
    }

    pub(crate) async fn link(
        self: &Arc<Core>,
        existing: &RemotePath,
        new: &RemotePath,
    ) -> Result<()> {
        let call = || self.inner.link(existing, new);
        let look = |_| -> Asked<'_, _> { Box::pin(self.look_link(existing, new)) };
        self.looked_into("link", new, call, look).await?;
        self.known.linked(existing, new);
        Ok(())
    }

    pub(crate) async fn rename(
        self: &Arc<Core>,
        from: &RemotePath,
        to: &RemotePath,
        mode: RenameMode,
    ) -> Result<()> {
        let call = || self.inner.rename(from, to, mode);
        let look = |_| -> Asked<'_, _> {
            // What is open may have to be opened again before this is decided.
            self.files.perhaps_renamed(from, to);
            Box::pin(self.look_rename(from, to))
        };
        match self.looked_into("rename", from, call, look).await {
            Ok(()) => {
                self.files.renamed(from, to);
                self.listings.renamed(from, to);
                self.known.renamed(from, to);
                Ok(())
            }
            Err(errno) => {
                if errno != Errno::EIO && !is_loss(errno) {
                    self.files.not_renamed(from, to);
                }
                Err(errno)
            }
        }
    }

    /// Setting attributes may be repeated; a file that is open by this path may look either way
    /// meanwhile.
    pub(crate) async fn setattr(
        self: &Arc<Core>,
        path: &RemotePath,
        change: AttrChange,
    ) -> Result<()> {
        let body = self.files.body(path);
        let ticket = body.map(|body| Ticket::elsewhere(&body, Change::SetByPath(change)));
        self.repeated(|| self.inner.setattr(path, change)).await?;
        if let Some(ticket) = ticket {
            ticket.happened(self);
        }
        self.known.changed(path, change);
        Ok(())
    }

    /// The open of a new file, whose answer was lost.
    pub(crate) async fn new_in_doubt(
        self: &Arc<Core>,
        path: &RemotePath,
        flags: OpenFlags,
        perm: u32,
        sent: Timestamp,
        mut errno: Errno,
    ) -> Result<Opened> {
        let mut trouble = Trouble::new(self);
        let mut window = Window::until_now(sent);
        loop {
            trouble.lost(errno).await?;
            let found = match trouble.within(self.look_new(path, flags, perm, window)).await {
                Err(errno) if is_loss(errno) => Err(errno),
                Err(_) => Ok(New::Absent),
                found => found,
            };
            let answer = match found {
                Ok(New::Ours(opened)) => return Ok(opened),
                Ok(New::Taken) => return Err(Errno::EEXIST),
                Ok(New::Absent) => {
                    let answer = trouble.within(self.inner.open(path, flags)).await;
                    window = Window::until_now(sent);
                    answer
                }
                Err(errno) => Err(errno),
            };
            match answer {
                Err(lost) if trouble.goes_on_after(lost) => errno = lost,
                answer => return answer,
            }
        }
    }
}
