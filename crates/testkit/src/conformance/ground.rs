//! What a rule stands on: an empty remote, what may be expected of it, and short forms of what
//! most rules need.

use std::any::Any;
use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use base::{
    Access, Attr, AttrChange, Create, Data, Errno, Fh, OpenFlags, Remote, Result, Timestamp,
};
use bytes::Bytes;

use crate::path;

/// What a kind of remote can do. Where it cannot, it must say so with `EOPNOTSUPP`.
#[derive(Clone, Copy, Debug)]
pub struct Expectations {
    /// Times keep their nanoseconds. SFTP version 3 has whole seconds.
    pub nanoseconds: bool,
    /// There are hard links. (Without them `ENOSYS` will do as well, which is sshfs's answer.)
    pub hard_links: bool,
    /// The attributes of a symbolic link itself can be set.
    pub link_attributes: bool,
    /// `opendir` follows a symbolic link, as SFTP's OPENDIR does; to look first would cost a round
    /// trip.
    pub opendir_follows_links: bool,
    /// `statvfs` follows a symbolic link, as SFTP's does; one file system or another is seldom
    /// worth a round trip.
    pub statvfs_follows_links: bool,
    /// `lstat` below something that is no directory is `ENOTDIR`. SFTP says the same for it as for
    /// `ENOENT`, and to look twice for every absent name would cost a round trip; a caller that has
    /// looked up the parent before does not need it.
    pub lstat_tells_enotdir: bool,
    /// Files can be synced.
    pub fsync: bool,
    /// Directories can be synced.
    pub fsyncdir: bool,
    /// The remote can copy between any two files by itself. If not, it may refuse.
    pub copy: bool,
    /// Files can be given to somebody else, as the superuser can.
    pub chown: bool,
    /// Longest name in bytes.
    pub name_max: usize,
}

impl Default for Expectations {
    /// All that a perfect remote with SFTP's times could give to the superuser.
    fn default() -> Expectations {
        Expectations {
            nanoseconds: false,
            hard_links: true,
            link_attributes: true,
            opendir_follows_links: false,
            statvfs_follows_links: false,
            lstat_tells_enotdir: true,
            fsync: true,
            fsyncdir: true,
            copy: true,
            chown: true,
            name_max: 255,
        }
    }
}

/// An empty remote for one rule.
pub struct Ground {
    remote: Arc<dyn Remote>,
    expectations: Expectations,
    open_handles: Option<Box<dyn Fn() -> usize + Send + Sync>>,
    _kept: Vec<Box<dyn Any + Send + Sync>>,
}

/// How long handles that were given back may take to be closed at the server.
const CLOSING_LIMIT: Duration = Duration::from_secs(10);

impl Ground {
    /// Rules may do everything in `remote`, whose root must be an empty directory.
    #[must_use]
    pub fn new(remote: Arc<dyn Remote>) -> Ground {
        let expectations = Expectations::default();
        Ground { remote, expectations, open_handles: None, _kept: Vec::new() }
    }

    /// With other expectations than [`Expectations::default`].
    #[must_use]
    pub fn expecting(mut self, expectations: Expectations) -> Ground {
        self.expectations = expectations;
        self
    }

    /// Keeps `thing` until the rule is done: the server, its directory.
    #[must_use]
    pub fn keeping(mut self, thing: impl Any + Send + Sync) -> Ground {
        self._kept.push(Box::new(thing));
        self
    }

    /// With a way to count the open files and directories at the server. After each rule the
    /// number must be what it was at first; without it, leaks are not seen.
    #[must_use]
    pub fn counting(mut self, open_handles: impl Fn() -> usize + Send + Sync + 'static) -> Ground {
        let before = open_handles();
        self.open_handles = Some(Box::new(move || open_handles().saturating_sub(before)));
        self
    }

    pub(super) fn expect(&self) -> Expectations {
        self.expectations
    }

    pub(super) fn shared(&self) -> Arc<dyn Remote> {
        self.remote.clone()
    }

    /// Waits until all handles are closed.
    pub(super) async fn no_handle_leaked(&self) {
        let Some(open_handles) = &self.open_handles else {
            return;
        };
        let deadline = Instant::now() + CLOSING_LIMIT;
        // Nobody tells when a close has arrived at a server, hence the polling.
        while open_handles() > 0 {
            assert!(Instant::now() < deadline, "{} handles leaked", open_handles());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// A handle of `at`, opened with these flags.
    pub(super) async fn handle(&self, at: &str, flags: OpenFlags) -> Fh {
        ok("open", (at, flags), self.remote.open(&path(at), flags).await).fh
    }

    /// Opens `at` for reading and writing, made if it is absent.
    pub(super) async fn open_rw(&self, at: &str) -> Fh {
        self.handle(at, read_write(Create::IfAbsent(0o644))).await
    }

    /// Makes the file `at`, or empties it, and writes `content`.
    pub(super) async fn put(&self, at: &str, content: &[u8]) {
        let flags = OpenFlags { truncate: true, ..read_write(Create::IfAbsent(0o644)) };
        let fh = self.handle(at, flags).await;
        self.put_at(fh, 0, content).await;
        self.close(fh);
    }

    /// All bytes of the file `at`.
    pub(super) async fn get(&self, at: &str) -> Vec<u8> {
        let fh = self.handle(at, OpenFlags::existing(Access::Read)).await;
        let size = self.fstat(fh).await.expect("an open file has attributes").size;
        let bytes = self.bytes(fh, 0, u32::try_from(size).expect("a small file") + 1).await;
        self.close(fh);
        bytes
    }

    /// Reads; it must work.
    pub(super) async fn bytes(&self, fh: Fh, offset: u64, len: u32) -> Vec<u8> {
        let data: Result<Data> = self.remote.read(fh, offset, len).await;
        let data = data.unwrap_or_else(|errno| panic!("read {len} at {offset}: {errno:?}"));
        assert!(data.pieces().iter().all(|piece| !piece.is_empty()), "an empty piece");
        assert!(data.len() <= len as usize, "{} bytes for {len}", data.len());
        data.to_vec()
    }

    /// Writes; it must work.
    pub(super) async fn put_at(&self, fh: Fh, offset: u64, content: &[u8]) {
        let written = self.remote.write(fh, offset, Bytes::copy_from_slice(content)).await;
        written.unwrap_or_else(|errno| {
            panic!("write {} bytes at {offset}: {errno:?}", content.len());
        });
    }

    /// The attributes of `at`; it must be there.
    pub(super) async fn attr(&self, at: &str) -> Attr {
        let attr = self.remote.lstat(&path(at)).await;
        attr.unwrap_or_else(|errno| panic!("lstat {at:?}: {errno:?}"))
    }

    /// Whether `at` is there; any other answer than yes and `ENOENT` fails.
    pub(super) async fn exists(&self, at: &str) -> bool {
        match self.remote.lstat(&path(at)).await {
            Ok(_) => true,
            Err(Errno::ENOENT) => false,
            Err(errno) => panic!("lstat {at:?}: {errno:?}"),
        }
    }

    /// Makes the directory `at`.
    pub(super) async fn dir(&self, at: &str) {
        ok("mkdir", at, self.remote.mkdir(&path(at), 0o755).await);
    }

    /// Makes the symbolic link `at`.
    pub(super) async fn put_link(&self, target: &str, at: &str) {
        ok("symlink", at, self.remote.symlink(target.as_bytes(), &path(at)).await);
    }

    /// All names in the directory `at`, sorted.
    pub(super) async fn names(&self, at: &str) -> Vec<Vec<u8>> {
        let mut names: Vec<Vec<u8>> =
            self.list(at).await.into_iter().map(|entry| entry.name.as_bytes().to_vec()).collect();
        names.sort();
        names
    }

    /// All entries of the directory `at`, in the remote's order.
    pub(super) async fn list(&self, at: &str) -> Vec<base::DirEntry> {
        let dh = ok("opendir", at, self.remote.opendir(&path(at)).await);
        let mut entries = Vec::new();
        while let Some(batch) = ok("readdir", at, self.remote.readdir(dh).await) {
            assert!(!batch.is_empty(), "a batch is never empty");
            entries.extend(batch);
        }
        self.remote.closedir(dh);
        entries
    }
}

impl std::ops::Deref for Ground {
    type Target = dyn Remote;

    fn deref(&self) -> &(dyn Remote + 'static) {
        &*self.remote
    }
}

/// Unwraps what had to work.
#[track_caller]
pub(super) fn ok<T>(what: &str, at: impl Debug, result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(errno) => panic!("{what} {at:?}: {errno:?}"),
    }
}

pub(super) fn read_write(create: Create) -> OpenFlags {
    OpenFlags { create, ..OpenFlags::existing(Access::ReadWrite) }
}

pub(super) fn size_change(size: u64) -> AttrChange {
    AttrChange { size: Some(size), ..AttrChange::default() }
}

pub(super) fn mtime_change(secs: i64) -> AttrChange {
    AttrChange { mtime: Some(Timestamp::from_secs(secs)), ..AttrChange::default() }
}

/// `len` bytes that tell their place and their `seed`, none of them zero.
pub(super) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    let byte = |at: usize| (at.wrapping_mul(31) ^ (at >> 8) ^ usize::from(seed)) as u8 | 1;
    (0..len).map(byte).collect()
}

/// A call that may be polled before it is awaited.
pub(super) type Started<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Polls `call` once, which gives it its place in the order, and tells whether it is done already.
pub(super) fn poll_once<T>(call: &mut Started<'_, T>) -> Poll<T> {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls all of `calls` in order, then until all are done.
pub(super) async fn all<T>(mut calls: Vec<Started<'_, T>>) -> Vec<T> {
    let mut results: Vec<Option<T>> = calls.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (call, result) in calls.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(value) = call.as_mut().poll(context)
            {
                *result = Some(value);
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}
