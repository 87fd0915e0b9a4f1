//! The environment of a rule: an empty remote, its expected features, and helpers for most rules.

use std::any::Any;
use std::fmt::Debug;
use std::future::{Future, poll_fn, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use base::{
    Access, Attr, AttrChange, Create, Data, Errno, Fh, OpenFlags, Remote, Result, Timestamp,
};
use bytes::Bytes;

pub(super) use crate::model::pattern;
use crate::path;

/// The features of a kind of remote. Without a feature it must fail with `EOPNOTSUPP`.
#[derive(Clone, Copy, Debug)]
pub struct Expectations {
    /// Times have nanoseconds. SFTP version 3 has whole seconds.
    pub nanoseconds: bool,
    /// Attributes have a [`base::InodeAttr`], which tells files apart.
    pub inodes: bool,
    /// Hard links are supported. (Otherwise `ENOSYS` is accepted too, which is sshfs's error.)
    pub hard_links: bool,
    /// The attributes of a symbolic link itself can be set.
    pub link_attributes: bool,
    /// `opendir` follows a symbolic link, as SFTP's OPENDIR does; a check would cost a round trip.
    pub opendir_follows_links: bool,
    /// The space of the file system is reported.
    pub statvfs: bool,
    /// `statvfs` follows a symbolic link, as SFTP's does; a check is rarely worth a round trip.
    pub statvfs_follows_links: bool,
    /// `lstat` below a non-directory is `ENOTDIR`. SFTP reports it like `ENOENT`, and a check for
    /// every absent name would cost a round trip; a caller that has looked up the parent does not
    /// need it.
    pub lstat_returns_enotdir: bool,
    /// `fsync` is supported.
    pub fsync: bool,
    /// `fsyncdir` is supported.
    pub fsyncdir: bool,
    /// The remote can copy between any two files. Otherwise it may fail.
    pub copy: bool,
    /// Names can be exchanged. Without this feature the error is `EINVAL`.
    pub exchange: bool,
    /// FIFOs and sockets can be created.
    pub special_files: bool,
    /// Space can be reserved and freed, and holes are found.
    pub holes: bool,
    /// Entries have extended attributes.
    pub xattrs: bool,
    /// The owner of a file can be changed, as by root.
    pub chown: bool,
    /// Longest name in bytes.
    pub name_max: usize,
}

impl Expectations {
    /// These, of a server that has nothing beyond OpenSSH's extensions.
    pub fn of_plain_sftp(self) -> Expectations {
        let none = false;
        Expectations { exchange: none, special_files: none, holes: none, xattrs: none, ..self }
    }
}

impl Default for Expectations {
    /// All features of a correct remote with SFTP's times, run by root.
    fn default() -> Expectations {
        Expectations {
            nanoseconds: false,
            inodes: false,
            hard_links: true,
            link_attributes: true,
            opendir_follows_links: false,
            statvfs: true,
            statvfs_follows_links: false,
            lstat_returns_enotdir: true,
            fsync: true,
            fsyncdir: true,
            copy: true,
            exchange: true,
            special_files: true,
            holes: true,
            xattrs: true,
            chown: true,
            name_max: 255,
        }
    }
}

/// An empty remote for one rule.
pub struct Fixture {
    remote: Arc<dyn Remote>,
    expectations: Expectations,
    open_handles: Option<Box<dyn Fn() -> usize + Send + Sync>>,
    _kept: Vec<Box<dyn Any + Send + Sync>>,
}

/// Time limit until closed handles are closed at the server.
const CLOSING_LIMIT: Duration = Duration::from_secs(10);

impl Fixture {
    /// An environment with `remote`, whose root must be an empty directory, and which rules may
    /// change.
    pub fn new(remote: Arc<dyn Remote>) -> Fixture {
        let expectations = Expectations::default();
        Fixture { remote, expectations, open_handles: None, _kept: Vec::new() }
    }

    /// Sets expectations other than [`Expectations::default`].
    pub fn expecting(mut self, expectations: Expectations) -> Fixture {
        self.expectations = expectations;
        self
    }

    /// Keeps `thing` until the end of the rule: the server, its directory.
    pub fn keeping(mut self, thing: impl Any + Send + Sync) -> Fixture {
        self._kept.push(Box::new(thing));
        self
    }

    /// Sets a counter of open files and directories at the server. After each rule it must return
    /// its initial value; without a counter, leaks are not detected.
    pub fn counting(mut self, open_handles: impl Fn() -> usize + Send + Sync + 'static) -> Fixture {
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
        // There is no event for a close at the server, so this polls.
        while open_handles() > 0 {
            assert!(Instant::now() < deadline, "{} handles leaked", open_handles());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// A handle of `at`, opened with these flags.
    pub(super) async fn handle(&self, at: &str, flags: OpenFlags) -> Fh {
        ok("open", (at, flags), self.remote.open(&path(at), flags).await).fh
    }

    /// Opens `at` for reading and writing; creates it if absent.
    pub(super) async fn open_rw(&self, at: &str) -> Fh {
        self.handle(at, read_write(Create::IfAbsent(0o644))).await
    }

    /// Creates or truncates the file `at`, and writes `content`.
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

    /// Reads; fails the test on an error.
    pub(super) async fn bytes(&self, fh: Fh, offset: u64, len: u32) -> Vec<u8> {
        let data: Result<Data> = self.remote.read(fh, offset, len).await;
        let data = data.unwrap_or_else(|errno| panic!("read {len} at {offset}: {errno:?}"));
        assert!(data.pieces().iter().all(|piece| !piece.is_empty()), "an empty piece");
        assert!(data.len() <= len as usize, "{} bytes for {len}", data.len());
        data.to_vec()
    }

    /// Writes; fails the test on an error.
    pub(super) async fn put_at(&self, fh: Fh, offset: u64, content: &[u8]) {
        let written = self.remote.write(fh, offset, Bytes::copy_from_slice(content)).await;
        written.unwrap_or_else(|errno| {
            panic!("write {} bytes at {offset}: {errno:?}", content.len());
        });
    }

    /// The attributes of `at`, which must exist.
    pub(super) async fn attr(&self, at: &str) -> Attr {
        let attr = self.remote.lstat(&path(at)).await;
        attr.unwrap_or_else(|errno| panic!("lstat {at:?}: {errno:?}"))
    }

    /// Whether `at` exists; any error except `ENOENT` fails the test.
    pub(super) async fn exists(&self, at: &str) -> bool {
        match self.remote.lstat(&path(at)).await {
            Ok(_) => true,
            Err(Errno::ENOENT) => false,
            Err(errno) => panic!("lstat {at:?}: {errno:?}"),
        }
    }

    /// Creates the directory `at`.
    pub(super) async fn dir(&self, at: &str) {
        ok("mkdir", at, self.remote.mkdir(&path(at), 0o755).await);
    }

    /// Creates the symbolic link `at`.
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

impl std::ops::Deref for Fixture {
    type Target = dyn Remote;

    fn deref(&self) -> &(dyn Remote + 'static) {
        &*self.remote
    }
}

/// Unwraps a result that must be a success.
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

/// A call that may be polled before it is awaited.
pub(super) type Started<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Polls `call` once, which determines its place in the order; returns whether it is complete.
pub(super) fn poll_once<T>(call: &mut Started<'_, T>) -> Poll<T> {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls `call` once; returns the rest of it.
pub(super) fn started<'a, T: Send + 'a>(mut call: Started<'a, T>) -> Started<'a, T> {
    match poll_once(&mut call) {
        Poll::Ready(result) => Box::pin(ready(result)),
        Poll::Pending => call,
    }
}

/// Polls all of `calls` in order, then until all are complete.
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
