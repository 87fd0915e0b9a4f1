//! Fetching whole files before anybody reads them, and telling how much of them is here.

use std::sync::Arc;

use base::{Access, Errno, Fh, OpenFlags, RemotePath, Result};
use tokio::task::JoinSet;

use super::files::{Content, File};
use super::filling::Filling;
use super::{Cached, Core};
use crate::Validator;
use crate::known::RACY_SECS;

/// How much of a file is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presence {
    /// Bytes of the file.
    pub size: u64,
    /// Those of them that are here.
    pub present: u64,
    /// Whether it can be opened and read without moving any.
    pub whole: bool,
}

/// What came of fetching a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warmed {
    /// All of it was here.
    Already,
    /// All of it is here now; so many bytes were moved.
    Fetched(u64),
    /// It was read, and is not kept: it is being changed, or the store has no room.
    NotKept,
}

/// Requests on their way at once for one file, at most, whatever the window is.
const MAX_REQUESTS: u64 = 64;

impl Cached {
    /// How much of the file at `path` is here, of the content that it has now as far as the mode
    /// asks. `EISDIR` and the like for what is no file.
    pub async fn presence(&self, path: &RemotePath) -> Result<Presence> {
        let core = &self.core;
        let attr = core.lstat(path).await?;
        if let Some(error) = super::opening::not_regular(&attr) {
            return Err(error);
        }
        let standing = core.standing(path);
        let whole = core.here(path, &attr, standing).is_some();
        let of_part = |source| core.store.present_bytes(source, path, Validator::of(&attr));
        let sources = core.content_sources(path, standing);
        let part = sources.into_iter().map(of_part).max().unwrap_or(0);
        let present = if whole { attr.size } else { part.min(attr.size) };
        Ok(Presence { size: attr.size, present, whole })
    }

    /// Fetches what is missing of the file at `path`. `fetched` is told the number of bytes as
    /// they come. Dropping the future gives it up; what has come so far stays.
    pub async fn warm(
        &self,
        path: &RemotePath,
        fetched: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<Warmed> {
        self.core.warm(path, fetched).await
    }
}

/// Closes a file.
struct Closing<'a>(&'a Core, Fh);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close(self.1);
    }
}

impl Core {
    pub(crate) async fn warm(
        self: &Arc<Self>,
        path: &RemotePath,
        fetched: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<Warmed> {
        let flags = OpenFlags::existing(Access::Read);
        let mut again = true;
        loop {
            let opened = self.open(path, flags).await?;
            let _closing = Closing(self, opened.fh);
            let file = self.files.get(opened.fh)?;
            match file.content() {
                Content::Whole(_) => return Ok(Warmed::Already),
                Content::Part(filling) => {
                    return self.fetch(opened.fh, &file, &filling, fetched).await;
                }
                Content::Server if std::mem::take(&mut again) => {}
                Content::Server => return Ok(Warmed::NotKept),
            }
            // It was changed a moment ago, most likely. When that is past it can be trusted. A
            // listing shows what else was changed so lately: one wait does for all files of a
            // directory.
            let past = tokio::time::sleep(std::time::Duration::from_secs(RACY_SECS as u64));
            let listing = async {
                if let Some(dir) = path.parent() {
                    self.list(&dir).await;
                }
            };
            tokio::select! {
                () = past => {}
                () = async { listing.await; std::future::pending().await } => {}
            }
        }
    }

    async fn fetch(
        self: &Arc<Self>,
        fh: Fh,
        file: &Arc<File>,
        filling: &Arc<Filling>,
        fetched: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<Warmed> {
        let mut bytes = 0;
        let mut reads = JoinSet::new();
        let window = self.inner.suggested_window();
        let piece = u64::from(window.request_bytes.max(1));
        let most = (window.bytes / piece).clamp(1, MAX_REQUESTS) as usize;
        for range in filling.partial.missing(0..file.attr.size) {
            let mut at = range.start;
            while at < range.end {
                let len = piece.min(range.end - at) as u32;
                self.filler.room_for(u64::from(len)).await;
                if reads.len() >= most {
                    bytes += taken(reads.join_next().await, fetched)?;
                }
                let core = self.clone();
                reads.spawn(async move { core.read(fh, at, len).await.map(|data| data.len()) });
                at += u64::from(len);
            }
        }
        while !reads.is_empty() {
            bytes += taken(reads.join_next().await, fetched)?;
        }
        self.filler.closed(file);
        self.filler.settled_of(filling.partial.under_way()).await;
        match file.content() {
            Content::Whole(_) => Ok(Warmed::Fetched(bytes)),
            Content::Part(_) | Content::Server => Ok(Warmed::NotKept),
        }
    }
}

fn taken(
    read: Option<std::result::Result<Result<usize>, tokio::task::JoinError>>,
    fetched: &(dyn Fn(u64) + Send + Sync),
) -> Result<u64> {
    let bytes = read.map_or(Ok(0), |read| read.unwrap_or(Err(Errno::ECANCELED)))? as u64;
    fetched(bytes);
    Ok(bytes)
}
