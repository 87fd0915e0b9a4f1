//! A remote in memory with faults, a store in a directory of its own, and common operations.

use std::path::Path;
use std::sync::Arc;

use base::{Access, Errno, OpenFlags, Remote, Result};
use cache::{Cached, CachedConfig, Mode, SourceId, Store, StoreConfig};
use tempfile::TempDir;
use testkit::mem::Options;
use testkit::tree::Limits;
use testkit::{FaultyRemote, MemRemote, path};

/// Long ago: an mtime that is not racy.
pub(crate) const LONG_AGO: i64 = 1_000_000_000;

pub(crate) type Faulty = FaultyRemote<MemRemote>;

pub(crate) fn open_store(dir: &Path) -> Store {
    // Far beyond the needs of the tests.
    let config = StoreConfig {
        size_bytes: Some(1 << 30),
        free_bytes: Some(0),
        digests: true,
        ..StoreConfig::new(dir.join("store"))
    };
    Store::open(config).expect("a store can be opened in an own directory")
}

pub(crate) struct Stage {
    pub(crate) memory: Arc<MemRemote>,
    pub(crate) faulty: Arc<Faulty>,
    pub(crate) dir: TempDir,
}

/// A remote in memory that identifies files.
pub(crate) fn identifying_files() -> Arc<MemRemote> {
    identifying_changes(false)
}

/// A remote in memory that identifies their last change; not the files, if `hides_identities`.
pub(crate) fn identifying_changes(hides_identities: bool) -> Arc<MemRemote> {
    let limits = Limits { shows_inodes: true, hides_identities, ..Limits::default() };
    Arc::new(MemRemote::with(Options { limits, ..Options::default() }))
}

impl Stage {
    pub(crate) fn new() -> Stage {
        Stage::over(Arc::new(MemRemote::new()))
    }

    pub(crate) fn over(memory: Arc<MemRemote>) -> Stage {
        let faulty = Arc::new(FaultyRemote::new(memory.clone()));
        Stage { memory, faulty, dir: TempDir::new().expect("a directory") }
    }

    /// Creates this file, with times long past.
    pub(crate) fn put(&self, at: &str, content: impl AsRef<[u8]>) {
        self.memory.put_file(at, content);
        self.memory.set_mtime(at, LONG_AGO);
        self.memory.set_ctime(at, LONG_AGO);
    }

    pub(crate) fn config(&self) -> CachedConfig {
        CachedConfig::new(SourceId::new(b"the source"))
    }

    /// A new cached remote, as after a remount: with a store that was opened again.
    pub(crate) fn mount(&self, mode: Mode) -> Arc<Cached> {
        self.mount_with(CachedConfig { mode, ..self.config() })
    }

    pub(crate) fn mount_with(&self, config: CachedConfig) -> Arc<Cached> {
        self.mount_on(open_store(self.dir.path()), config)
    }

    pub(crate) fn mount_on(&self, store: Store, config: CachedConfig) -> Arc<Cached> {
        Cached::new(self.faulty.clone(), store, config).expect("threads can be made")
    }

    /// The number of requests to the remote since the last call.
    pub(crate) fn asked(&self) -> u64 {
        let asked = self.faulty.round_trips();
        self.faulty.reset_calls();
        asked
    }
}

/// `len` bytes that depend on their offset and on `seed`.
pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    let byte = |at: usize| (at.wrapping_mul(31) ^ (at >> 8) ^ usize::from(seed)) as u8;
    (0..len).map(byte).collect()
}

/// Reads a whole file, in the requests of a mount.
pub(crate) async fn read(remote: &Arc<Cached>, at: &str) -> Result<Vec<u8>> {
    const REQUEST: u32 = 128 << 10;
    let opened = remote.open(&path(at), OpenFlags::existing(Access::Read)).await?;
    let mut content = Vec::new();
    let result = loop {
        match remote.read(opened.fh, content.len() as u64, REQUEST).await {
            Ok(data) => content.extend(data.to_vec()),
            Err(error) => break Err(error),
        }
        if content.len() as u64 >= opened.attr.size || content.len() % REQUEST as usize != 0 {
            break Ok(content);
        }
    };
    remote.close(opened.fh);
    result
}

/// Reads a whole file, and waits until it is kept.
pub(crate) async fn keep(remote: &Arc<Cached>, at: &str) -> Vec<u8> {
    let content = read(remote, at).await.expect("it can be read");
    remote.wait_idle().await;
    content
}

/// The names of a directory, sorted.
pub(crate) async fn list(remote: &Arc<Cached>, at: &str) -> Result<Vec<String>> {
    let dh = remote.opendir(&path(at)).await?;
    let mut names = Vec::new();
    let result = loop {
        match remote.readdir(dh).await {
            Ok(Some(batch)) => names.extend(batch.iter().map(|entry| entry.name.to_string())),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    remote.closedir(dh);
    names.sort();
    result.map(|()| names)
}

pub(crate) async fn size(remote: &Arc<Cached>, at: &str) -> Result<u64> {
    remote.lstat(&path(at)).await.map(|attr| attr.size)
}

pub(crate) const EIO: Errno = Errno::EIO;
