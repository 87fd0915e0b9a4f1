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
//! Whether a record is still valid is decided by the caller: see [`KnownFile::current`] and
//! [`Validator::is_racy`].

pub(crate) mod deferred;
mod housekeeping;
mod inspect;
pub(crate) mod layout;
pub(crate) mod pins;
pub(crate) mod quota;
mod scan;
pub(crate) mod shared;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::{DigestKind, RemotePath};

pub use self::housekeeping::GcReport;
pub use self::inspect::{ContentInfo, FileLocation, VerifyReport};
pub use self::layout::default_dir;
use self::layout::escaped;
pub use self::pins::Pin;
use self::shared::Shared;
use crate::digest::{Digest, Digests};
use crate::dir_fd;
use crate::in_flight::InFlight;
use crate::index::record::Record;
use crate::metadata::{KnownAttr, KnownFile, KnownLink, Listing, SourceId, Validator};
use crate::object::Object;
use crate::object::about::Origin;
use crate::partial::Partial;
use crate::partial::files::Subject;

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
    /// and before, they are computed on request ([`Store::compute_digests`]).
    pub digests: bool,
    /// Whether [`Store::content_of`] finds contents by digests other than their names. Each content
    /// takes three inodes more then.
    pub aliases: bool,
}

impl StoreConfig {
    /// A store in `dir` with the default bounds, 32 MiB of records in memory, and no digests but
    /// blake3.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> StoreConfig {
        StoreConfig {
            dir: dir.into(),
            size_bytes: None,
            free_bytes: None,
            memory_bytes: 32 << 20,
            digests: false,
            aliases: false,
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
    /// Look-ups that found a record.
    pub record_hits: u64,
    /// Look-ups that found none.
    pub record_misses: u64,
    /// Requested contents that were in the store.
    pub object_hits: u64,
    /// Requested contents that were not.
    pub object_misses: u64,
    /// Bytes read from whole contents.
    pub read_bytes: u64,
    /// Bytes of contents written.
    pub written_bytes: u64,
    /// Damaged pieces that were found and removed.
    pub damaged: u64,
    /// Bytes evicted.
    pub evicted_bytes: u64,
    /// Largest content that is kept, in bytes.
    pub largest_content_bytes: u64,
    /// Contents that were not kept since they are larger.
    pub too_large: u64,
}

/// An open store. Cheap to clone; clones share one state.
#[derive(Clone)]
pub struct Store(Arc<Shared>, #[expect(dead_code, reason = "dropped last")] Arc<FlushOnDrop>);

/// Writes the deferred records when the last clone of a [`Store`] is dropped, also if objects of it
/// live on.
struct FlushOnDrop(Arc<Shared>);

impl Drop for FlushOnDrop {
    fn drop(&mut self) {
        self.0.write_notes();
    }
}

impl Store {
    /// Opens the store, and creates it if it is absent. If the index is missing, it is rebuilt from
    /// the contents, which may take a second for 100,000 of them.
    pub fn open(config: StoreConfig) -> Result<Store, StoreError> {
        let shared = Arc::new(Shared::open(config)?);
        if shared.layout().index_is_new {
            let files = shared.rebuild_index();
            tracing::info!("the index of the cache was rebuilt from {files} files");
        }
        shared.start_housekeeping();
        if shared.aliases {
            shared.defer_scan();
        }
        let flush = Arc::new(FlushOnDrop(shared.clone()));
        Ok(Store(shared, flush))
    }

    /// Makes later commands keep this store within the bounds that it was opened with
    /// ([`Store::bounds`]). To be called by processes that fill it.
    pub fn remember_bounds(&self) {
        let layout = self.0.layout();
        let encoded = self.0.bounds.encode();
        let known = layout.root.read_only(b"bounds").ok().and_then(|(file, stat)| {
            dir_fd::read_exact_at(&file, 0, stat.st_size.clamp(0, 64) as usize).ok()?
        });
        if known.as_ref() != Some(&encoded)
            && let Err(error) = layout.put(&layout.root, b"bounds", &encoded)
        {
            tracing::debug!("the bounds of the cache are not remembered: {error}");
        }
    }

    /// The bounds remembered for the store in `dir`: its size and the free space, `None` for the
    /// default.
    #[must_use]
    pub fn bounds(dir: &Path) -> (Option<u64>, Option<u64>) {
        let read = || {
            let root = dir_fd::DirFd::at(dir).ok()?.sub(layout::VERSION).ok()?;
            quota::Bounds::read(&root.read_only(b"bounds").ok()?.0).ok()?
        };
        read().unwrap_or_default()
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// The record of the content of the file `path`.
    #[must_use]
    pub fn file(&self, source: &SourceId, path: &RemotePath) -> Option<KnownFile> {
        self.0.known_file(source, path)
    }

    /// Records that the file `path` has this content, which the store may hold or not.
    /// [`Partial::finish`] does this itself.
    pub fn record_file(&self, source: &SourceId, path: &RemotePath, known: &KnownFile) {
        if !known.racy {
            let KnownFile { attr, fetched_at, .. } = *known;
            let origin = Origin { source: *source, path: path.clone(), attr, fetched_at };
            self.0.add_to_about(&known.digest, Some(origin), None);
        }
        self.0.record_name(source, path, |name| Record::File(name, *known));
    }

    /// The complete listing of the directory `path`.
    #[must_use]
    pub fn directory(&self, source: &SourceId, path: &RemotePath) -> Option<Listing> {
        self.0.known_listing(source, path)
    }

    /// Whether the listing of its directory has the name of `path`; `None` without a listing. A
    /// look-up by name, where [`Store::directory`] would make the caller search.
    #[must_use]
    pub fn is_listed(&self, source: &SourceId, path: &RemotePath) -> Option<bool> {
        self.0.is_listed(source, path)
    }

    /// Records a listing, which must be complete: names that are not in it are taken for absent.
    pub fn record_directory(&self, source: &SourceId, path: &RemotePath, listing: &Listing) {
        self.0.record_listing(source, path, listing);
    }

    /// The target of the symbolic link `path`.
    #[must_use]
    pub fn link(&self, source: &SourceId, path: &RemotePath) -> Option<KnownLink> {
        self.0.known_link(source, path)
    }

    /// Records the target of a symbolic link.
    pub fn record_link(&self, source: &SourceId, path: &RemotePath, link: &KnownLink) {
        self.0.record_name(source, path, |name| Record::Link(name, link.clone()));
    }

    /// The attributes of `path` that were recorded last: by themselves, with a content, or in the
    /// listing of its directory. `None` also if a later listing lacks the name.
    #[must_use]
    pub fn attr(&self, source: &SourceId, path: &RemotePath) -> Option<KnownAttr> {
        self.0.known_attr(source, path)
    }

    /// Records attributes.
    pub fn record_attr(&self, source: &SourceId, path: &RemotePath, known: &KnownAttr) {
        self.0.record_name(source, path, |name| Record::Attr(name, *known));
    }

    /// Forgets `path`, all below it, and the listing of its directory. When this returns, no
    /// process finds their records; after a power loss the latest forgetting may be undone. Records
    /// that other processes write at the same time, or have read and not recorded yet, may stay.
    pub fn forget(&self, source: &SourceId, path: &RemotePath) {
        self.0.forget_path(source, path);
    }

    /// Forgets the listing of the directory `path`, not the records of its names.
    pub fn forget_listing(&self, source: &SourceId, path: &RemotePath) {
        self.0.forget_names(source, path);
    }

    /// Forgets the attributes of the directory `path`, not those of its entries.
    pub fn forget_attr(&self, source: &SourceId, path: &RemotePath) {
        self.0.forget_attr(source, path);
    }

    /// A whole content. It stays readable while the value lives, also if it is evicted. A content
    /// of one chunk is read at once.
    #[must_use]
    pub fn object(&self, digest: &Digest) -> Option<Object> {
        let object = self.0.open_object(digest);
        let counters = &self.0.counters;
        let counter =
            if object.is_some() { &counters.object_hits } else { &counters.object_misses };
        shared::Counters::add(counter, 1);
        object
    }

    /// The length of a content, if it is in the store. The content is not read, so it may be
    /// damaged.
    #[must_use]
    pub fn object_bytes(&self, digest: &Digest) -> Option<u64> {
        self.0.object_bytes(digest)
    }

    /// The partial content for one state of a file, with the bytes of earlier fetches of that
    /// state. All callers in this process share it; another process keeps nothing of the same state
    /// as long as this one is in use.
    #[must_use]
    pub fn fetch(&self, source: &SourceId, path: &RemotePath, validator: Validator) -> Partial {
        self.0.partial(Subject { source: *source, path: path.clone(), validator })
    }

    /// The partial content for one state of a file, without the bytes of other processes: size and
    /// mtime do not prove that those are of the same content, and parts of two contents must not be
    /// put together.
    #[must_use]
    pub fn fetch_own(&self, source: &SourceId, path: &RemotePath, validator: Validator) -> Partial {
        let subject = Subject { source: *source, path: path.clone(), validator };
        if self.0.begins(&subject) && self.0.partial_bytes(&subject) > 0 {
            self.0.partial(subject.clone()).abandon();
        }
        self.0.partial(subject)
    }

    /// Whether [`Store::fetch_own`] has begun this state of a file in this process.
    pub(crate) fn is_own(
        &self,
        source: &SourceId,
        path: &RemotePath,
        validator: Validator,
    ) -> bool {
        self.0.has_begun(&Subject { source: *source, path: path.clone(), validator })
    }

    /// The operations of this state of a file in flight to the store, in this process.
    pub(crate) fn in_flight(
        &self,
        source: &SourceId,
        path: &RemotePath,
        validator: Validator,
    ) -> Option<InFlight> {
        self.0.in_flight(&Subject { source: *source, path: path.clone(), validator })
    }

    /// Discards the partial contents of files below these directories. Long where there are very
    /// many.
    pub fn abandon_below(&self, directories: &[(&SourceId, &RemotePath)]) {
        if !directories.is_empty() {
            self.0.abandon_below(directories);
        }
    }

    /// The number of bytes of this state of a file in the store, in a whole or a partial content.
    #[must_use]
    pub fn present_bytes(&self, source: &SourceId, path: &RemotePath, validator: Validator) -> u64 {
        let known = self.file(source, path).filter(|known| known.validator() == validator);
        if let Some(bytes) = known.and_then(|known| self.object_bytes(&known.digest)) {
            return bytes;
        }
        self.0.partial_bytes(&Subject { source: *source, path: path.clone(), validator })
    }

    /// All digests of a content, if they were computed before. Reads memory, or one file.
    #[must_use]
    pub fn digests(&self, digest: &Digest) -> Option<Digests> {
        self.0.digests_of(digest)
    }

    /// All digests of a content in the store; long if they were not computed before.
    #[must_use]
    pub fn compute_digests(&self, digest: &Digest) -> Option<Digests> {
        self.0.make_digests(digest, &|| true)
    }

    /// Computes the digests that are due, as long as `may_continue` returns true. Long.
    pub fn catch_up(&self, may_continue: impl Fn() -> bool) {
        self.0.make_waiting_digests(&may_continue);
    }

    /// Writes the deferred records (where contents were found; not digests), and releases unused
    /// disk space. Dropping the last clone does this too, but a process may end before that. Long.
    pub fn flush(&self) {
        self.0.write_notes();
        self.0.release_reservation();
    }

    /// Records the contents of files, which were kept or found here before.
    pub(crate) fn record_files(&self, files: &[(SourceId, RemotePath, KnownFile)]) {
        self.0.record_files(files);
    }

    /// The content with this digest of any kind, if it is in the store. By digests of other kinds
    /// than BLAKE3 it is found after they were computed, in a store with [`StoreConfig::aliases`].
    #[must_use]
    pub fn content_of(&self, kind: DigestKind, value: &[u8]) -> Option<Digest> {
        self.0.find_by_digest(kind, value)
    }

    /// Protects a sub-tree from eviction: its present contents, and later ones.
    pub fn pin(&self, source: &SourceId, path: &RemotePath) -> Result<(), StoreError> {
        let pin = Pin { source: *source, path: path.clone() };
        pins::add(&self.0.layout(), &pin)
            .map_err(|error| StoreError::io(self.dir(), "writing a pin", error))
    }

    /// Removes a pin; returns whether it existed.
    pub fn unpin(&self, source: &SourceId, path: &RemotePath) -> Result<bool, StoreError> {
        let pin = Pin { source: *source, path: path.clone() };
        pins::remove(&self.0.layout(), &pin)
            .map_err(|error| StoreError::io(self.dir(), "removing a pin", error))
    }

    /// All pins, in order.
    #[must_use]
    pub fn pins(&self) -> Vec<Pin> {
        pins::all(&self.0.layout())
    }

    /// Figures. Cheap.
    #[must_use]
    pub fn status(&self) -> Status {
        let shared = &self.0;
        let counted = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &shared.counters;
        let disk = shared.layout().disk().ok();
        Status {
            dir: shared.dir.clone(),
            used_bytes: shared.usage().bytes.saturating_sub(shared.unused_bytes()),
            limit_bytes: disk.as_ref().map_or(0, |disk| shared.bounds.size_bytes(disk)),
            disk_free_bytes: disk.as_ref().map_or(0, |disk| disk.f_bavail * disk.f_frsize),
            keep_free_bytes: disk.as_ref().map_or(0, |disk| shared.bounds.free_bytes(disk)),
            off: shared.health.why_off(),
            record_hits: counted(&counters.record_hits),
            record_misses: counted(&counters.record_misses),
            object_hits: counted(&counters.object_hits),
            object_misses: counted(&counters.object_misses),
            read_bytes: counted(&counters.read_bytes),
            written_bytes: counted(&counters.written_bytes),
            damaged: counted(&counters.damaged),
            evicted_bytes: counted(&counters.evicted_bytes),
            largest_content_bytes: shared.largest_content_bytes(),
            too_large: counted(&counters.too_large),
        }
    }

    /// All contents, whole and partial. Long.
    #[must_use]
    pub fn list(&self) -> Vec<ContentInfo> {
        self.0.contents()
    }

    /// Reads and verifies everything; removes what is damaged. `progress` is called with the size
    /// of each item. Long.
    pub fn verify(&self, progress: impl FnMut(u64)) -> VerifyReport {
        self.0.verify_all(progress)
    }

    /// Evicts down to the bounds, and removes stale files. Long.
    pub fn gc(&self) -> GcReport {
        self.0.clean()
    }

    /// Removes everything but the pins, also while mounts use it: they fetch again. Long.
    pub fn clear(&self) -> Result<(), StoreError> {
        self.0
            .remove_all()
            .map_err(|error| StoreError::io(self.dir(), "removing its contents", error))
    }
}
