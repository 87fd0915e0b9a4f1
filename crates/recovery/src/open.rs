//! Opening files.
//!
//! An open that was cut off may be repeated: what it made is there, what it cut is empty. Only one
//! that was to make the file, and nobody else, has to look who made it (`names`).

use std::sync::Arc;

use base::{Create, Errno, OpenFlags, Opened, RemotePath, Result};

use crate::Core;
use crate::expect::Expect;
use crate::file::Files;
use crate::known::Seen;
use crate::link::is_loss;
use crate::names::Sent;

/// How often a file is opened that is removed, renamed or replaced meanwhile.
const MAX_LOOKS: u32 = 8;

impl Core {
    pub(crate) async fn open(
        self: &Arc<Core>,
        path: &RemotePath,
        flags: OpenFlags,
    ) -> Result<Opened> {
        let is_new = matches!(flags.create, Create::Exclusive(_));
        for look in 1.. {
            let again = !is_new && look < MAX_LOOKS;
            if let Some(opened) = self.open_once(path, flags, again).await? {
                return Ok(opened);
            }
        }
        unreachable!("the last look takes what it finds")
    }

    /// `None` if the file was removed, renamed or replaced here meanwhile: the answer does not tell which
    /// file was opened, so it is to be opened `again`, where that is allowed.
    async fn open_once(
        self: &Arc<Core>,
        path: &RemotePath,
        flags: OpenFlags,
        again: bool,
    ) -> Result<Option<Opened>> {
        let before = self.files.about_to_open(self, path, flags).await?;
        let asked = self.known.moment();
        let opened = match flags.create {
            Create::Exclusive(perm) => self.open_new(path, flags, perm).await,
            _ => self.repeated(|| self.inner.open(path, flags)).await,
        };
        let opened = match opened {
            Ok(opened) => opened,
            Err(errno) => {
                if errno == Errno::ENOENT {
                    self.known.note_seen(path, Seen::Absent, asked);
                }
                if !is_loss(errno) && errno != Errno::EIO {
                    Files::not_opened(before);
                }
                return Err(errno);
            }
        };
        if again && (before.has_no_name() || self.renames.concern(path)) {
            self.inner.close(opened.fh);
            // What it was to cut may have been cut.
            drop(before);
            self.patiently(self.renames.ended(path)).await?;
            return Ok(None);
        }
        let seen = Seen::There(Expect::of(&opened.attr));
        match flags.create == Create::Never && !flags.truncate {
            true => self.known.note_seen(path, seen, asked),
            false => self.known.note(path, seen),
        }
        let fh = self.files.opened(self, path, flags, &opened, before).await;
        Ok(Some(Opened { fh, ..opened }))
    }

    async fn open_new(
        self: &Arc<Core>,
        path: &RemotePath,
        flags: OpenFlags,
        perm: u32,
    ) -> Result<Opened> {
        self.connected().await?;
        let sent = Sent::now(self);
        match self.inner.open(path, flags).await {
            Err(errno) if is_loss(errno) => {
                Box::pin(self.new_in_doubt(path, flags, perm, sent, errno)).await
            }
            Ok(opened) => {
                self.clock.learn(opened.attr.mtime, sent.at);
                Ok(opened)
            }
            Err(errno) => Err(errno),
        }
    }
}
