//! A file system in memory for the tests: one directory of files, which counts operations, can
//! block them, and tracks the balance of lookups and handles.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use base::{
    Attr, Data, Entry, Errno, FileKind, Ino, LookupResult, Result, Stat, StatVfs, Timestamp,
};
use bytes::Bytes;
use fuse::{
    BackingId, Context, Create, DirSink, Filesystem, LockRequest, Open, OpenReply, Opened, Read,
    SetAttr, Started, Write,
};
use tokio::sync::watch;

/// Limit of any step of a test that does not hang.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);
pub(crate) const ROOT: u64 = Ino::ROOT.0;

#[derive(Clone)]
struct File {
    kind: FileKind,
    data: Vec<u8>,
    perm: u32,
    mtime: Timestamp,
}

#[derive(Default)]
struct State {
    names: BTreeMap<Vec<u8>, u64>,
    files: HashMap<u64, File>,
    next_ino: u64,
    next_fh: u64,
    /// Lookups that the kernel has not returned.
    lookups: HashMap<u64, u64>,
    /// Open files and directories.
    handles: HashSet<u64>,
    /// Number of times that an operation was begun, ended, and dropped before its end.
    begun: HashMap<&'static str, usize>,
    ended: HashMap<&'static str, usize>,
    dropped: HashMap<&'static str, usize>,
    held: HashMap<&'static str, watch::Sender<bool>>,
    destroyed: bool,
}

/// See the [module](self).
pub(crate) struct Memory {
    state: Mutex<State>,
    changed: Condvar,
    pub(crate) started: OnceLock<Started>,
    pub(crate) ttl: Duration,
    /// If set, opened files use this backing file.
    pub(crate) backing: Mutex<Option<OwnedFd>>,
    backing_id: Mutex<Option<Arc<BackingId>>>,
}

/// Records that an operation is dropped before its end.
struct Running<'a> {
    memory: &'a Memory,
    operation: &'static str,
    ended: bool,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.memory.state();
        let counts = if self.ended { &mut state.ended } else { &mut state.dropped };
        *counts.entry(self.operation).or_default() += 1;
        drop(state);
        self.memory.changed.notify_all();
    }
}

#[allow(dead_code)] // Not every test binary needs all of it.
impl Memory {
    pub(crate) fn new(ttl: Duration) -> Arc<Memory> {
        let state = State { next_ino: ROOT + 1, next_fh: 1, ..State::default() };
        Arc::new(Memory {
            state: Mutex::new(state),
            changed: Condvar::new(),
            started: OnceLock::new(),
            ttl,
            backing: Mutex::default(),
            backing_id: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Adds a file without a request of the kernel.
    pub(crate) fn add(&self, name: &str, data: &[u8]) -> u64 {
        let mut state = self.state();
        let ino = state.next_ino;
        state.next_ino += 1;
        state.names.insert(name.as_bytes().to_vec(), ino);
        let file = File {
            kind: FileKind::Regular,
            data: data.to_vec(),
            perm: 0o666,
            mtime: Timestamp::from_secs(1_000_000),
        };
        state.files.insert(ino, file);
        ino
    }

    /// Changes a file without a request of the kernel.
    pub(crate) fn change(&self, ino: u64, data: &[u8]) {
        self.state().files.get_mut(&ino).unwrap().data = data.to_vec();
    }

    pub(crate) fn remove(&self, name: &str) {
        self.state().names.remove(name.as_bytes());
    }

    pub(crate) fn content(&self, ino: u64) -> Vec<u8> {
        self.state().files[&ino].data.clone()
    }

    /// Makes every such operation wait from now on, until [`Memory::release_held`].
    pub(crate) fn hold(&self, operation: &'static str) {
        self.state().held.insert(operation, watch::Sender::new(true));
    }

    pub(crate) fn release_held(&self, operation: &'static str) {
        if let Some(gate) = self.state().held.remove(operation) {
            gate.send_replace(false);
        }
    }

    pub(crate) fn release_all(&self) {
        for (_, gate) in self.state().held.drain() {
            gate.send_replace(false);
        }
    }

    /// Blocks every thread that begins an operation, while `body` runs.
    pub(crate) fn stalled<T>(&self, body: impl FnOnce() -> T) -> T {
        let _state = self.state();
        body()
    }

    pub(crate) fn begun(&self, operation: &'static str) -> usize {
        self.state().begun.get(operation).copied().unwrap_or(0)
    }

    pub(crate) fn dropped(&self, operation: &'static str) -> usize {
        self.state().dropped.get(operation).copied().unwrap_or(0)
    }

    /// Waits until this many operations were begun.
    pub(crate) fn wait_begun(&self, operation: &'static str, count: usize) {
        self.wait(&format!("{operation} begun {count} times"), |state| {
            state.begun.get(operation).copied().unwrap_or(0) >= count
        });
    }

    pub(crate) fn wait_dropped(&self, operation: &'static str, count: usize) {
        self.wait(&format!("{operation} dropped {count} times"), |state| {
            state.dropped.get(operation).copied().unwrap_or(0) >= count
        });
    }

    /// Waits until the kernel holds neither look-ups nor handles.
    pub(crate) fn wait_balanced(&self) {
        self.wait("no look-ups and no handles", |state| {
            state.lookups.is_empty() && state.handles.is_empty()
        });
    }

    /// Waits until the kernel holds no lookups of the inodes selected by `meant`.
    pub(crate) fn wait_forgotten(&self, meant: impl Fn(u64) -> bool) {
        self.wait("look-ups to be given back", |state| {
            !state.lookups.keys().any(|ino| meant(*ino))
        });
    }

    /// Waits until every such operation has ended or was dropped.
    pub(crate) fn wait_ended(&self, operation: &'static str) {
        self.wait(&format!("the end of {operation}"), |state| {
            let count = |counts: &HashMap<_, _>| counts.get(operation).copied().unwrap_or(0);
            count(&state.begun) == count(&state.ended) + count(&state.dropped)
        });
    }

    pub(crate) fn lookups(&self, ino: u64) -> u64 {
        self.state().lookups.get(&ino).copied().unwrap_or(0)
    }

    pub(crate) fn handles(&self) -> usize {
        self.state().handles.len()
    }

    pub(crate) fn destroyed(&self) -> bool {
        self.state().destroyed
    }

    fn wait(&self, what: &str, mut condition: impl FnMut(&State) -> bool) {
        let deadline = Instant::now() + LIMIT;
        let mut state = self.state();
        while !condition(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "waited in vain for {what}: {:?}", state.lookups);
            state = self.changed.wait_timeout(state, left).unwrap().0;
        }
    }

    /// Counts the operation and waits while it is blocked.
    async fn begin(&self, operation: &'static str) -> Running<'_> {
        let running = Running { memory: self, operation, ended: false };
        let gate = {
            let mut state = self.state();
            *state.begun.entry(operation).or_default() += 1;
            state.held.get(operation).map(watch::Sender::subscribe)
        };
        self.changed.notify_all();
        if let Some(mut gate) = gate {
            // An error means that the gate was dropped, and so is open.
            let _ = gate.wait_for(|held| !held).await;
        }
        running
    }

    fn stat(&self, state: &State, ino: u64) -> Result<Stat> {
        // All files belong to the user who mounts.
        let uid = rustix::process::getuid().as_raw();
        let gid = rustix::process::getgid().as_raw();
        let (kind, perm, size, nlink, mtime) = match ino {
            ROOT => (FileKind::Directory, 0o755, 0, 2, Timestamp::default()),
            _ => {
                let file = state.files.get(&ino).ok_or(Errno::ESTALE)?;
                (file.kind, file.perm, file.data.len() as u64, 1, file.mtime)
            }
        };
        let atime = Timestamp::default();
        let attr = Attr { kind, perm, size, uid, gid, atime, mtime, inode: None };
        Ok(Stat { number: ino, attr, nlink, ctime: mtime, ttl: self.ttl })
    }

    fn entry(&self, state: &mut State, ino: u64) -> Result<Entry> {
        let stat = self.stat(state, ino)?;
        *state.lookups.entry(ino).or_default() += 1;
        Ok(Entry { ino: Ino(ino), stat, ttl: self.ttl })
    }

    fn named(&self, state: &State, name: &[u8]) -> Result<u64> {
        state.names.get(name).copied().ok_or(Errno::ENOENT)
    }

    fn make(&self, name: &[u8], kind: FileKind, mode: u32, data: &[u8]) -> Result<Entry> {
        let mut state = self.state();
        if state.names.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let ino = state.next_ino;
        state.next_ino += 1;
        let file = File { kind, data: data.to_vec(), perm: mode & 0o7777, mtime: Timestamp::now() };
        state.files.insert(ino, file);
        state.names.insert(name.to_vec(), ino);
        self.entry(&mut state, ino)
    }

    fn handle(&self, state: &mut State, flags: i32) -> Opened {
        let fh = state.next_fh;
        state.next_fh += 1;
        state.handles.insert(fh);
        let direct = flags & libc::O_DIRECT != 0;
        let passthrough = self.backing_id.lock().unwrap().clone();
        let flags = OpenReply {
            direct_io: direct,
            parallel_direct_writes: direct,
            keep_cache: !direct && passthrough.is_none(),
            passthrough,
            ..OpenReply::default()
        };
        Opened { fh, flags }
    }
}

impl Filesystem for Memory {
    fn init(&self, started: &Started) {
        if let (Some(passthrough), Some(file)) =
            (&started.passthrough, &*self.backing.lock().unwrap())
        {
            let id = passthrough.register(file.as_fd()).unwrap();
            *self.backing_id.lock().unwrap() = Some(Arc::new(id));
        }
        self.started.set(started.clone()).unwrap();
    }

    async fn destroy(&self) {
        // Like a file system that has to wait.
        tokio::task::yield_now().await;
        self.state().destroyed = true;
    }

    async fn lookup(&self, _ctx: &Context, parent: u64, name: &[u8]) -> Result<LookupResult> {
        let mut running = self.begin("lookup").await;
        assert_ne!(name, b"panic", "asked to panic");
        let mut state = self.state();
        let ino = self.named(&state, name);
        running.ended = true;
        match ino {
            Ok(ino) if parent == ROOT => self.entry(&mut state, ino).map(LookupResult::Found),
            _ => Ok(LookupResult::Absent(self.ttl)),
        }
    }

    fn forget(&self, ino: u64, count: u64) {
        let mut state = self.state();
        let left = state.lookups.get_mut(&ino).expect("forgets what was never looked up");
        *left = left.checked_sub(count).expect("forgets more than was looked up");
        if *left == 0 {
            state.lookups.remove(&ino);
        }
        drop(state);
        self.changed.notify_all();
    }

    async fn getattr(&self, _ctx: &Context, ino: u64) -> Result<Stat> {
        let mut running = self.begin("getattr").await;
        running.ended = true;
        self.stat(&self.state(), ino)
    }

    async fn setattr(&self, _ctx: &Context, ino: u64, change: &SetAttr) -> Result<Stat> {
        let mut running = self.begin("setattr").await;
        running.ended = true;
        let mut state = self.state();
        let file = state.files.get_mut(&ino).ok_or(Errno::ESTALE)?;
        if let Some(size) = change.size {
            file.data.resize(size as usize, 0);
        }
        if let Some(mode) = change.mode {
            file.perm = mode & 0o7777;
        }
        if let Some(fuse::SetTime::At(mtime)) = change.mtime {
            file.mtime = mtime;
        }
        self.stat(&state, ino)
    }

    async fn readlink(&self, ino: u64) -> Result<Vec<u8>> {
        Ok(self.content(ino))
    }

    async fn symlink(&self, _parent: u64, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.make(name, FileKind::Symlink, 0o777, target)
    }

    async fn unlink(&self, _ctx: &Context, _parent: u64, name: &[u8]) -> Result<()> {
        self.state().names.remove(name).map(drop).ok_or(Errno::ENOENT)
    }

    async fn rename(
        &self,
        _ctx: &Context,
        _parent: u64,
        name: &[u8],
        _new_parent: u64,
        new_name: &[u8],
        flags: u32,
    ) -> Result<()> {
        let mut state = self.state();
        if flags & libc::RENAME_NOREPLACE != 0 && state.names.contains_key(new_name) {
            return Err(Errno::EEXIST);
        }
        let ino = state.names.remove(name).ok_or(Errno::ENOENT)?;
        state.names.insert(new_name.to_vec(), ino);
        Ok(())
    }

    async fn link(&self, ino: u64, _parent: u64, name: &[u8]) -> Result<Entry> {
        let mut state = self.state();
        state.names.insert(name.to_vec(), ino);
        self.entry(&mut state, ino)
    }

    async fn open(&self, _ctx: &Context, ino: u64, open: &Open) -> Result<Opened> {
        let mut running = self.begin("open").await;
        running.ended = true;
        let mut state = self.state();
        if open.flags & libc::O_TRUNC != 0 {
            state.files.get_mut(&ino).ok_or(Errno::ESTALE)?.data.clear();
        }
        Ok(self.handle(&mut state, open.flags))
    }

    async fn create(&self, _parent: u64, name: &[u8], create: &Create) -> Result<(Entry, Opened)> {
        let mut running = self.begin("create").await;
        running.ended = true;
        let entry = self.make(name, FileKind::Regular, create.mode & !create.umask, b"")?;
        let opened = self.handle(&mut self.state(), create.flags);
        Ok((entry, opened))
    }

    async fn read(&self, ino: u64, read: &Read) -> Result<Data> {
        let mut running = self.begin("read").await;
        running.ended = true;
        let state = self.state();
        let data = &state.files.get(&ino).ok_or(Errno::ESTALE)?.data;
        let start = data.len().min(read.offset as usize);
        let end = data.len().min(start + read.size as usize);
        // In chunks, as they would arrive from a network.
        let mut pieces = Data::new();
        for piece in data[start..end].chunks(10_000) {
            pieces.push(Bytes::copy_from_slice(piece));
        }
        Ok(pieces)
    }

    async fn write(&self, ino: u64, write: &Write, data: Bytes) -> Result<u32> {
        let mut running = self.begin("write").await;
        running.ended = true;
        let mut state = self.state();
        let file = state.files.get_mut(&ino).ok_or(Errno::ESTALE)?;
        let start = write.offset as usize;
        let end = start + data.len();
        if file.data.len() < end {
            file.data.resize(end, 0);
        }
        file.data[start..end].copy_from_slice(&data);
        Ok(data.len() as u32)
    }

    async fn flush(&self, _ctx: &Context, _fh: u64, _owner: u64) -> Result<()> {
        let mut running = self.begin("flush").await;
        running.ended = true;
        Ok(())
    }

    async fn release(&self, _ino: u64, fh: u64) -> Result<()> {
        let mut running = self.begin("release").await;
        running.ended = true;
        assert!(self.state().handles.remove(&fh), "released twice");
        Ok(())
    }

    async fn setlk(&self, request: &LockRequest) -> Result<()> {
        let mut running = self.begin(request.kind.map_or("unlock", |_| "setlk")).await;
        running.ended = true;
        Ok(())
    }

    async fn opendir(&self, _ino: u64) -> Result<Opened> {
        let mut running = self.begin("opendir").await;
        running.ended = true;
        let mut state = self.state();
        let fh = state.next_fh;
        state.next_fh += 1;
        state.handles.insert(fh);
        Ok(Opened::new(fh))
    }

    async fn readdir(&self, _ino: u64, _fh: u64, offset: u64, sink: &mut DirSink) -> Result<()> {
        let plus = sink.is_plus();
        let mut running = self.begin(if plus { "readdirplus" } else { "readdir" }).await;
        let names: Vec<_> = {
            let state = self.state();
            state.names.iter().map(|(name, ino)| (name.clone(), *ino)).collect()
        };
        let dots = [&b"."[..], b".."];
        for (next, name) in (1..).zip(dots).skip(offset as usize) {
            if !sink.push_name(ROOT, next, FileKind::Directory, name) {
                running.ended = true;
                return Ok(());
            }
        }
        let skip = (offset as usize).saturating_sub(dots.len());
        for (next, (name, ino)) in (3..).zip(names).skip(skip) {
            if !sink.has_room(name.len()) {
                break;
            }
            let pushed = {
                let mut state = self.state();
                match plus {
                    true => sink.push(&self.entry(&mut state, ino)?, next, &name),
                    false => sink.push_name(ino, next, self.stat(&state, ino)?.attr.kind, &name),
                }
            };
            assert!(pushed, "there was room");
            if plus {
                // An interrupt may come between two entries.
                drop(self.begin("readdirplus entry").await);
            }
        }
        running.ended = true;
        Ok(())
    }

    async fn releasedir(&self, fh: u64) -> Result<()> {
        let mut running = self.begin("releasedir").await;
        running.ended = true;
        assert!(self.state().handles.remove(&fh), "released twice");
        Ok(())
    }

    async fn statfs(&self, _ino: u64) -> Result<StatVfs> {
        let (block_size, fragment_size, name_max) = (512, 512, 255);
        let sizes = StatVfs { block_size, fragment_size, name_max, ..StatVfs::default() };
        Ok(StatVfs { blocks: 12345, ..sizes })
    }

    async fn getxattr(&self, _ino: u64, name: &[u8], _size: u32) -> Result<Vec<u8>> {
        self.begin("getxattr").await.ended = true;
        match name {
            b"user.color" => Ok(b"blue".to_vec()),
            _ => Err(Errno::ENODATA),
        }
    }

    async fn listxattr(&self, _ino: u64) -> Result<Vec<u8>> {
        Ok(b"user.color\0".to_vec())
    }
}
