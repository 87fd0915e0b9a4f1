//! The store: contents by digest, and records of the names that lead to them, on the local disk.
//!
//! Many mounts and many processes share a directory; none of them is in charge, and each may be
//! killed at any moment. The modules describe how that is safe: whole contents (`object`), partial
//! ones (`partial`), records of names (`index`), quota and eviction (`store/quota`,
//! `store/housekeeping`). The files are described to the byte in `docs/cache-format.md`.
//!
//! Promises:
//! 1. Every byte returned is the one that was stored: damage is a miss, and is counted.
//! 2. No failure reaches the user: data that cannot be written is not kept, data that cannot be
//!    read is a miss. Only [`Store::open`] and the commands return errors.
//! 3. No call waits for the network, or without a limit for another process.
//!
//! All calls block for the disk; those marked "long" read or write contents, or walk through the
//! store. Callers run those on a thread that may block.
//!
//! Whether a record is still valid is decided by the caller.

pub(crate) mod deferred;
mod housekeeping;
mod inspect;
pub(crate) mod layout;
pub(crate) mod pins;
pub(crate) mod quota;
mod sample;
mod scan;
pub(crate) mod shared;

use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::RemotePath;
use rustix::fs::StatVfs;

pub use self::housekeeping::GcReport;
pub use self::inspect::{ContentInfo, VerifyReport};
pub use self::layout::default_dir;
use self::layout::escaped;
pub use self::pins::Place;
use self::quota::Bounds;
pub use self::sample::{Sample, SampleLimits};
pub use self::shared::Shared;
use crate::digest::{Digest, Digests};
use crate::dir_fd::DirFd;
use crate::index::record::Record;
use crate::metadata::{KnownAttr, KnownFile, KnownLink, SourceId, Validator};
use crate::object::about::Origin;
use crate::partial::files::Subject;
use crate::partial::{Partial, Resume};

/// The configuration of a store.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// The directory; created with mode 0700 if it is absent. [`default_dir`] returns the default.
    /// The store's files are private also where other users may read the directory itself.
    pub dir: PathBuf,
    /// Bound on the bytes that the store takes on the disk; `None` for the smaller of 20 GiB and a
    /// tenth of the disk.
    pub size_bytes: Option<u64>,
    /// Bytes of the disk that the store leaves free; `None` for a twentieth of it.
    pub free_bytes: Option<u64>,
    /// Bytes of memory for the records used last.
    pub memory_bytes: u64,
    /// Whether MD5, SHA-1 and SHA-256 of each content are computed when the store is idle; else,
    /// and before, they are computed on request ([`Shared::compute_digests`]).
    pub digests: bool,
}

impl StoreConfig {
    /// A store in `dir` with the default bounds, 32 MiB of records in memory, and no digests but
    /// blake3.
    pub fn new(dir: impl Into<PathBuf>) -> StoreConfig {
        StoreConfig {
            dir: dir.into(),
            size_bytes: None,
            free_bytes: None,
            memory_bytes: 32 << 20,
            digests: false,
        }
    }
}

/// Why a store cannot be opened, or a command on it failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A system call failed.
    #[error("the cache directory {dir}: {doing}: {error}")]
    Io {
        /// The directory of the store, escaped.
        dir: String,
        /// The operation.
        doing: &'static str,
        /// Why it failed.
        error: io::Error,
    },
    /// The directory, or a link in its place, belongs to another user.
    #[error(
        "the cache directory {dir} belongs to user {owner}, who could change what is read from \
         it; choose one of your own with cache_dir="
    )]
    ForeignOwner {
        /// The directory of the store, escaped.
        dir: String,
        /// The owner.
        owner: u32,
    },
    /// Other users may write to the directory, and may have done so.
    #[error(
        "others may write to the cache directory {dir}; choose another with cache_dir=, or empty \
         it and make it private with chmod 700"
    )]
    OthersMayWrite {
        /// The directory of the store, escaped.
        dir: String,
    },
}

impl StoreError {
    fn io(dir: &Path, doing: &'static str, error: io::Error) -> StoreError {
        StoreError::Io { dir: escaped(dir), doing, error }
    }
}

/// Figures of a store. Counters are those of this process since it opened the store.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// The directory.
    pub dir: PathBuf,
    /// Bytes that the store takes on the disk, of all processes.
    pub used_bytes: u64,
    /// Bound on these bytes.
    pub limit_bytes: u64,
    /// Bytes of the disk that are free.
    pub disk_free_bytes: u64,
    /// Bytes of the disk that the store leaves free.
    pub keep_free_bytes: u64,
    /// Why writes are off at present, if they are.
    pub off: Option<String>,
    /// Damaged pieces that were found and removed.
    pub damaged: u64,
    /// Bytes evicted.
    pub evicted_bytes: u64,
    /// Largest content that is kept, in bytes.
    pub largest_content_bytes: u64,
    /// Contents that were not kept since they are larger.
    pub too_large: u64,
}

/// An open store. Cheap to clone; clones share one state, to which it dereferences.
#[derive(Clone)]
pub struct Store(Arc<FlushOnDrop>);

/// Writes the deferred records when the last clone of a [`Store`] is dropped, also if objects of it
/// live on.
struct FlushOnDrop(Arc<Shared>);

impl Drop for FlushOnDrop {
    fn drop(&mut self) {
        self.0.write_notes();
    }
}

impl Deref for Store {
    type Target = Arc<Shared>;

    fn deref(&self) -> &Arc<Shared> {
        &self.0.0
    }
}

impl Store {
    /// Opens the store, and creates it if it is absent. If the index is missing, it is rebuilt from
    /// the contents, which may take a second for 100,000 of them.
    pub fn open(config: StoreConfig) -> Result<Store, StoreError> {
        let shared = Arc::new(Shared::open(config)?);
        if shared.layout().index_is_new {
            let files = shared.rebuild_index();
            tracing::info!("the index of the cache was rebuilt; files recorded: {files}");
        }
        shared.start_housekeeping();
        Ok(Store(Arc::new(FlushOnDrop(shared))))
    }

    /// Makes later commands keep this store within the bounds that it was opened with
    /// ([`Store::bounds`]). To be called by processes that fill it.
    pub fn remember_bounds(&self) {
        let layout = self.layout();
        let encoded = self.current_bounds().encode();
        let known = layout.root.read_whole(b"bounds", quota::BOUNDS_BYTES).ok().flatten();
        if known.as_ref() != Some(&encoded)
            && let Err(error) = layout.put(&layout.root, b"bounds", &encoded)
        {
            tracing::debug!("the bounds of the cache are not remembered: {error}");
        }
    }

    /// Changes the bounds of this store, and remembers them. A smaller size takes effect when the
    /// store is next written to.
    pub fn set_bounds(&self, size_bytes: Option<u64>, free_bytes: Option<u64>) {
        let bounds = Bounds { size: size_bytes, free: free_bytes };
        if bounds != self.current_bounds() {
            self.change_bounds(bounds);
            self.remember_bounds();
        }
    }

    /// The bounds remembered for the store in `dir`: its size and the free space, `None` for the
    /// default.
    pub fn bounds(dir: &Path) -> (Option<u64>, Option<u64>) {
        bounds_in(dir).map_or((None, None), |bounds| (bounds.size, bounds.free))
    }

    /// Whether there is a store in `dir`: [`open`](Self::open) would create it otherwise.
    pub fn exists(dir: &Path) -> io::Result<bool> {
        layout::is_store(dir)
    }
}

fn bounds_in(dir: &Path) -> Option<Bounds> {
    let root = DirFd::at(dir).ok()?.sub(layout::VERSION).ok()?;
    Bounds::decode(&root.read_whole(b"bounds", quota::BOUNDS_BYTES).ok()??)
}

impl Shared {
    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Records that the file `path` has this content, which the store may hold or not.
    /// [`Partial::finish`] does this itself.
    pub fn record_file(
        self: &Arc<Shared>,
        source: &SourceId,
        path: &RemotePath,
        known: &KnownFile,
    ) {
        if !known.racy {
            let KnownFile { attr, fetched_at, .. } = *known;
            let origin = Origin { source: *source, path: path.clone(), attr, fetched_at };
            self.add_to_about(&known.digest, Some(origin), None);
        }
        self.record_name(source, path, |name| Record::File(name, *known));
    }

    /// Records the target of a symbolic link.
    pub fn record_link(self: &Arc<Shared>, source: &SourceId, path: &RemotePath, link: &KnownLink) {
        self.record_name(source, path, |name| Record::Link(name, link.clone()));
    }

    /// Records attributes.
    pub fn record_attr(
        self: &Arc<Shared>,
        source: &SourceId,
        path: &RemotePath,
        known: &KnownAttr,
    ) {
        self.record_name(source, path, |name| Record::Attr(name, *known));
    }

    /// The partial content for one state of a file, with the bytes of earlier fetches of that
    /// state. All callers in this process share it; another process keeps nothing of the same state
    /// as long as this one is in use.
    pub fn fetch(
        self: &Arc<Shared>,
        source: &SourceId,
        path: &RemotePath,
        validator: Validator,
    ) -> Partial {
        self.partial(Subject::new(source, path, validator), Resume::Any)
    }

    /// The number of bytes of this state of a file in the store, in a whole or a partial content.
    pub fn present_bytes(&self, source: &SourceId, path: &RemotePath, validator: Validator) -> u64 {
        let known = self.file(source, path).filter(|known| known.validator() == validator);
        let whole = known.and_then(|known| self.object_bytes(&known.digest));
        whole.unwrap_or_else(|| self.partial_bytes(&Subject::new(source, path, validator)))
    }

    /// All digests of a content in the store; long if they were not computed before.
    pub fn compute_digests(self: &Arc<Shared>, digest: &Digest) -> Option<Digests> {
        self.make_digests(digest, &|| true)
    }

    /// Writes the deferred records (where contents were found; not digests), and releases unused
    /// disk space. Dropping the last clone does this too, but a process may end before that. Long.
    pub fn flush(&self) {
        self.write_notes();
        self.release_reservation();
    }

    /// Figures. Cheap.
    pub fn status(&self) -> Status {
        let counted = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        let disk = self.layout().disk().ok();
        let of_disk = |get: &dyn Fn(&StatVfs) -> u64| disk.as_ref().map_or(0, get);
        Status {
            dir: self.dir.clone(),
            used_bytes: self.usage().bytes.saturating_sub(self.unused_bytes()),
            limit_bytes: of_disk(&|disk| self.current_bounds().size_bytes(disk)),
            disk_free_bytes: of_disk(&|disk| disk.f_bavail * disk.f_frsize),
            keep_free_bytes: of_disk(&|disk| self.current_bounds().free_bytes(disk)),
            off: self.health.why_off(),
            damaged: counted(&counters.damaged),
            evicted_bytes: counted(&counters.evicted_bytes),
            largest_content_bytes: self.largest_content_bytes(),
            too_large: counted(&counters.too_large),
        }
    }
}
