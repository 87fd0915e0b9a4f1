//! Fetching whole files before they are read, and reporting how much of them is cached.

use std::sync::Arc;

use base::{Access, Errno, Fh, OnDrop, OpenFlags, RemotePath, Result};
use tokio::task::JoinSet;

use super::files::{Content, File};
use super::write_behind::{FLUSH_PAUSE, Fetch};
use super::{Cached, Core};
use crate::metadata::RACY_SECS;

/// How much of a file is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presence {
    /// Bytes of the file.
    pub size: u64,
    /// Cached bytes of it.
    pub present: u64,
    /// Whether it can be opened and read without a transfer.
    pub whole: bool,
}

/// The result of fetching a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warmed {
    /// All of it was cached.
    Already,
    /// All of it is cached now; this many bytes were transferred.
    Fetched(u64),
    /// It is not kept: it is being changed, or the store cannot be written to.
    NotKept,
    /// It is too large for the store, and was not read.
    TooLarge,
}

/// Bound on the requests in flight for one file, for any window.
const MAX_REQUESTS: u64 = 64;

impl Cached {
    /// How much of the file at `path` is cached, of its present content as far as the mode sends
    /// requests. `EISDIR` and the like if it is not a regular file.
    pub async fn presence(&self, path: &RemotePath) -> Result<Presence> {
        let core = &self.core;
        let attr = core.lstat(path).await?;
        if let Some(error) = super::opening::not_regular(&attr) {
            return Err(error);
        }
        let policy = core.read_policy(path);
        let whole = core.cached_object(path, &attr, policy).is_some();
        let validator = core.validator_of_part(path, &attr);
        let of_part = |source| core.store.present_bytes(source, path, validator);
        let sources = core.content_sources(path, policy);
        let part = sources.into_iter().map(of_part).max().unwrap_or(0);
        let present = if whole { attr.size } else { part.min(attr.size) };
        Ok(Presence { size: attr.size, present, whole })
    }

    /// Fetches the missing part of the file at `path`. `fetched` is called with the number of bytes
    /// of each read. Dropping the future cancels it; bytes that have arrived are kept.
    pub async fn warm(
        &self,
        path: &RemotePath,
        fetched: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<Warmed> {
        self.core.warm(path, fetched).await
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
            let _closed = OnDrop(|| self.close(opened.fh));
            let file = self.files.get(opened.fh)?;
            match file.content() {
                Content::Whole(_) => return Ok(Warmed::Already),
                Content::Part(fetch) if !fetch.partial.fits() => return Ok(Warmed::TooLarge),
                Content::Part(fetch) => {
                    return self.fetch(opened.fh, &file, &fetch, fetched).await;
                }
                Content::Server if std::mem::take(&mut again) => {}
                Content::Server => return Ok(Warmed::NotKept),
            }
            // Most likely it has just been changed. Once its mtime is past the racy window it can
            // be kept. A listing shows the mtimes of the other files, so one wait is enough for all
            // files of a directory.
            let past = tokio::time::sleep(std::time::Duration::from_secs(RACY_SECS as u64));
            let listing = async {
                if let Some(dir) = path.parent() {
                    self.list(&dir, usize::MAX).await;
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
        fetch: &Arc<Fetch>,
        fetched: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<Warmed> {
        let mut bytes = 0;
        let mut reads = JoinSet::new();
        let window = self.inner.suggested_window();
        let piece = u64::from(window.request_bytes.max(1));
        let most = (window.bytes / piece).clamp(1, MAX_REQUESTS) as usize;
        for range in fetch.partial.missing(0..file.attr.size) {
            let mut at = range.start;
            while at < range.end {
                if !self.store.may_write() {
                    return Ok(Warmed::NotKept);
                }
                let len = piece.min(range.end - at) as u32;
                self.wait_for_space(u64::from(len)).await;
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
        self.write_behind.flush(file);
        self.write_behind.wait_written(fetch.partial.in_flight()).await;
        match file.content() {
            Content::Whole(_) => Ok(Warmed::Fetched(bytes)),
            Content::Part(_) | Content::Server => Ok(Warmed::NotKept),
        }
    }

    async fn wait_for_space(&self, bytes: u64) {
        let space = self.write_behind.wait_for_space(bytes);
        tokio::pin!(space);
        while tokio::time::timeout(FLUSH_PAUSE, &mut space).await.is_err() {
            self.flush_all();
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
