//! Making, moving and removing names, when the answer is lost.
//!
//! Such a request is never blindly sent again. When there is a connection again, the names are looked
//! at. *Before* is what was last seen of a name through us (`known`) when the request was sent, since
//! what is seen later may be its work, or what an open file must look like; of a file that was linked
//! here it is only the kind, since its other names lead to changes of it, too. *Fresh* means made
//! between the request and its loss, by the server's clock, or, as long as that is not known, at the
//! time at which the directory above was last changed.
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
//! | unlink | something, of which nothing was known, not newer than the request | sent again |
//! | rmdir | a directory not changed since the request, or of the same time as before, or no directory | sent again |
//! | unlink, rmdir | something newer | unknown |
//! | rename | not the old name, and at the new one what was at the old one | done |
//! | rename | not the old name, the old one was not known, and the new one is not known to be what it was | done |
//! | rename | what was at the old name is there | sent again |
//! | rename | at the old name something, at the new one what was at the old one | done |
//! | rename | at the old name something not known, at the new one what was there before | sent again |
//! | rename | anything else, also neither name | unknown |
//!
//! A request that was lost may be carried out a moment later than the look: by another gateway one is
//! quick to look. So when it is sent again, and the answer is what a request gets that has been
//! done already (`EEXIST`, `ENOENT`), there is one more look.
//!
//! Names that cannot be looked at (a path with a loop of links in it) cannot be changed either: such
//! a request is sent again, for the server's own error.
//!
//! *Unknown* is `EIO`, and a line in the log; nothing is removed or replaced then.

mod look;
mod renames;

use std::sync::Arc;

use base::{
    AttrChange, Errno, FileKind, OpenFlags, Opened, RemotePath, RenameMode, Result, Timestamp,
};

use crate::Core;
use crate::call::{Asked, Trouble};
use crate::change::Ticket;
use crate::clock::Window;
use crate::known::{Moment, Seen};
use crate::link::is_loss;
use crate::log::Change;

pub(crate) use renames::Renames;

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

/// A request that changes names.
struct Request<'a> {
    name: &'static str,
    path: &'a RemotePath,
    /// The other name that it concerns.
    other: Option<&'a RemotePath>,
    /// The server's answer when it has been done already.
    done_already: Errno,
}

/// When a request was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// By our clock.
    pub(crate) at: Timestamp,
    seen: Moment,
}

/// A request whose answer was lost.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    window: Window,
    /// What was seen from here on may be the request's own work.
    seen: Moment,
}

impl Sent {
    /// Now, after all that was seen so far.
    pub(crate) fn now(core: &Core) -> Sent {
        Sent { at: Timestamp::now(), seen: core.known.moment() }
    }

    /// Its loss is noticed now.
    fn lost(self) -> Doubt {
        Doubt { window: Window::until_now(self.at), seen: self.seen }
    }
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
        what: &Request<'_>,
        call: impl Fn() -> Asked<'a, ()> + Send + Sync,
        look: impl Fn(Doubt) -> Asked<'a, Verdict> + Send + Sync,
    ) -> Result<()> {
        self.connected().await?;
        // What is known of open files stays known, though their last handles are closed meanwhile.
        let _bodies = [Some(what.path), what.other].map(|path| self.files.body(path?));
        let sent = Sent::now(self);
        match call().await {
            Err(errno) if is_loss(errno) => {
                Box::pin(self.in_doubt(what, call, look, sent, errno)).await
            }
            answer => answer,
        }
    }

    async fn in_doubt<'a>(
        self: &'a Arc<Core>,
        what: &Request<'_>,
        call: impl Fn() -> Asked<'a, ()> + Send + Sync,
        look: impl Fn(Doubt) -> Asked<'a, Verdict> + Send + Sync,
        sent: Sent,
        mut errno: Errno,
    ) -> Result<()> {
        let mut trouble = Trouble::new(self);
        // What the server said when it was sent again.
        let mut refused = None;
        loop {
            trouble.lost(errno).await?;
            let answer = loop {
                let verdict = match trouble.within(look(sent.lost())).await {
                    Err(errno) if is_loss(errno) => break Err(errno),
                    // What cannot be looked at cannot be changed either: the server knows best why.
                    Err(_) => Verdict::NotDone,
                    Ok(verdict) => verdict,
                };
                match (verdict, refused) {
                    (Verdict::Done, _) => return Ok(()),
                    (Verdict::NotDone, Some(errno)) | (Verdict::Failed(errno), _) => {
                        return Err(errno);
                    }
                    (Verdict::NotDone, None) => {}
                    (Verdict::Unknown(why), _) => return Err(self.cannot_tell(what, why)),
                }
                match trouble.within(call()).await {
                    Err(errno) if errno == what.done_already => refused = Some(errno),
                    answer => break answer,
                }
            };
            match answer {
                Err(lost) if trouble.goes_on_after(lost) => errno = lost,
                answer => return answer,
            }
        }
    }

    fn cannot_tell(&self, Request { name, path, .. }: &Request<'_>, why: &str) -> Errno {
        let host = &self.config.name;
        tracing::warn!(
            "{host}: {name} {path}: the connection was lost before the answer, and what became of \
             it cannot be told: {why}"
        );
        Errno::EIO
    }

    pub(crate) async fn mkdir(self: &Arc<Core>, path: &RemotePath, perm: u32) -> Result<()> {
        let call = || self.inner.mkdir(path, perm);
        let look = |doubt| -> Asked<'_, _> { Box::pin(self.look_mkdir(path, perm, doubt)) };
        self.looked_into(
            &Request { name: "mkdir", path, other: None, done_already: Errno::EEXIST },
            call,
            look,
        )
        .await?;
        self.known.note(path, Seen::made(FileKind::Directory));
        Ok(())
    }

    pub(crate) async fn rmdir(self: &Arc<Core>, path: &RemotePath) -> Result<()> {
        let call = || self.inner.rmdir(path);
        let look = |doubt| -> Asked<'_, _> { Box::pin(self.look_rmdir(path, doubt)) };
        self.looked_into(
            &Request { name: "rmdir", path, other: None, done_already: Errno::ENOENT },
            call,
            look,
        )
        .await?;
        self.listings.removed(path);
        self.known.note(path, Seen::Absent);
        Ok(())
    }

    pub(crate) async fn unlink(self: &Arc<Core>, path: &RemotePath) -> Result<()> {
        self.keep_open(path).await;
        let call = || self.inner.unlink(path);
        let look = |doubt| -> Asked<'_, _> { Box::pin(self.look_unlink(path, doubt)) };
        self.looked_into(
            &Request { name: "unlink", path, other: None, done_already: Errno::ENOENT },
            call,
            look,
        )
        .await?;
        self.files.removed(path);
        self.known.note(path, Seen::Absent);
        Ok(())
    }

    pub(crate) async fn symlink(self: &Arc<Core>, target: &[u8], path: &RemotePath) -> Result<()> {
        let call = || self.inner.symlink(target, path);
        let look = |doubt| -> Asked<'_, _> { Box::pin(self.look_symlink(target, path, doubt)) };
        self.looked_into(
            &Request { name: "symlink", path, other: None, done_already: Errno::EEXIST },
            call,
            look,
        )
        .await?;
        self.known.note(path, Seen::made(FileKind::Symlink));
        Ok(())
    }

    pub(crate) async fn link(
        self: &Arc<Core>,
        existing: &RemotePath,
        new: &RemotePath,
    ) -> Result<()> {
        let call = || self.inner.link(existing, new);
        let look = |doubt| -> Asked<'_, _> { Box::pin(self.look_link(existing, new, doubt)) };
        self.looked_into(
            &Request {
                name: "link",
                path: new,
                other: Some(existing),
                done_already: Errno::EEXIST,
            },
            call,
            look,
        )
        .await?;
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
        let look = |doubt| -> Asked<'_, _> { Box::pin(self.look_rename(from, to, doubt)) };
        self.keep_open(to).await;
        let _under_way = self.renames.begin(from, to);
        // What is open may have to be opened again before this is answered.
        self.files.perhaps_renamed(from, to);
        match self
            .looked_into(
                &Request {
                    name: "rename",
                    path: from,
                    other: Some(to),
                    done_already: Errno::ENOENT,
                },
                call,
                look,
            )
            .await
        {
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
        // Held also if nothing has it open: an open may begin before this is answered.
        let body = self.files.body_or_new(path);
        let ticket = Ticket::elsewhere(self, &body, Change::SetByPath(change)).await?;
        self.repeated(|| self.inner.setattr(path, change)).await?;
        ticket.happened(self);
        self.known.changed(path, change);
        Ok(())
    }

    /// The open of a new file, whose answer was lost.
    pub(crate) async fn new_in_doubt(
        self: &Arc<Core>,
        path: &RemotePath,
        flags: OpenFlags,
        perm: u32,
        sent: Sent,
        mut errno: Errno,
    ) -> Result<Opened> {
        let mut trouble = Trouble::new(self);
        let mut doubt = sent.lost();
        // When it was sent again, the server had it: perhaps from before.
        let (mut is_refused, mut looks_at_once) = (false, false);
        loop {
            if !std::mem::take(&mut looks_at_once) {
                trouble.lost(errno).await?;
            }
            let found = match trouble.within(self.look_new(path, flags, perm, doubt)).await {
                Err(errno) if is_loss(errno) => Err(errno),
                Err(_) => Ok(New::Absent),
                found => found,
            };
            let answer = match found {
                Ok(New::Ours(opened)) => return Ok(opened),
                Ok(New::Taken) => return Err(Errno::EEXIST),
                Ok(New::Absent) => {
                    let answer = trouble.within(self.inner.open(path, flags)).await;
                    doubt = sent.lost();
                    match answer {
                        Err(Errno::EEXIST) if !is_refused => {
                            (is_refused, looks_at_once) = (true, true);
                            continue;
                        }
                        answer => answer,
                    }
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
