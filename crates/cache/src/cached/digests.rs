//! Digests of files: known ones, and ones that the server computes.
//!
//! A [`DigestSource`] returns digests without transferring contents. A file that the store does not
//! know, but whose digest is that of a cached content, needs no transfer: so another revision of a
//! tree costs the difference. The files of one directory are queried together, when the first of
//! them is opened.
//!
//! A digest computed by the server is that of the content at that time. It is taken for that of a
//! validator only if the remote returned this validator before and after it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::{
    Attr, DigestEffort, DigestKind, Errno, FileKind, Mutex, OnDrop, Remote, RemotePath, Result,
};
use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::listing::MAX_ENTRIES;
use super::names::RequestStamp;
use super::opening::not_regular;
use super::{Core, ReadPolicy, RemoteWait};
use crate::partial::files::Subject;
use crate::{Digest, Digests, KnownFile, Object, Validator};

/// Computes digests at the remote.
#[async_trait]
pub trait DigestSource: Send + Sync + 'static {
    /// The BLAKE3 digests of the contents that these regular files have now, in the same order;
    /// `None` for each that it cannot compute, and for each that does not have these attributes any
    /// more, if it can tell. Dropping the future cancels it.
    async fn digests(&self, files: &[(RemotePath, Attr)]) -> Result<Vec<Option<Bytes>>>;
}

/// The digests that a remote computes ([`Remote::digest`]).
pub struct RemoteDigests(pub Arc<dyn Remote>);

#[async_trait]
impl DigestSource for RemoteDigests {
    async fn digests(&self, files: &[(RemotePath, Attr)]) -> Result<Vec<Option<Bytes>>> {
        let mut requests = JoinSet::new();
        for (at, (path, attr)) in files.iter().cloned().enumerate() {
            let (remote, kind) = (self.0.clone(), DigestKind::Blake3);
            requests.spawn(async move {
                let digest = remote.digest(&path, &attr, kind, DigestEffort::Compute).await;
                (at, digest.unwrap_or_default())
            });
        }
        let mut digests = vec![None; files.len()];
        while let Some(answer) = requests.join_next().await {
            let (at, digest) = answer.map_err(|_| Errno::EIO)?;
            digests[at] = digest;
        }
        Ok(digests)
    }
}

/// Bound on the files of one query: as many names as fit into a command line.
const MAX_FILES: usize = 512;

/// Bound on their bytes together, and on those of a file whose content is confirmed: what a server
/// hashes in about a second. More would delay the first reader.
const MAX_BYTES: u64 = 512 << 20;

/// Bound on the digests that were returned. All are dropped then.
const MAX_ANSWERS: usize = 16 << 10;

/// How long a caller waits for the digest of a content that is being kept.
const KEEPING_LIMIT: Duration = Duration::from_secs(2);

/// How long a directory is not queried again.
const PAUSE: Duration = Duration::from_secs(60);

/// Bound on the directories for which that is remembered.
const MAX_QUERIED: usize = 1024;

/// A query for the digests of a directory's files; `true` when it was answered.
type QueryDone = watch::Receiver<bool>;

#[derive(Default)]
struct Queries {
    answers: HashMap<RemotePath, (Validator, Bytes)>,
    queried: HashMap<RemotePath, (Instant, QueryDone)>,
    /// Directories whose listing is too long to be recorded.
    too_long: HashSet<RemotePath>,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct ServerDigests(Mutex<Queries>);

impl ServerDigests {
    /// Drops the answers about `path` and all below it.
    pub(crate) fn forget(&self, path: &RemotePath) {
        let mut state = self.0.lock();
        if !state.answers.is_empty() {
            state.answers.retain(|at, _| !at.is_within(path));
        }
        state.queried.retain(|dir, _| !dir.is_within(path));
    }

    fn get(&self, path: &RemotePath, attr: &Attr) -> Option<Bytes> {
        let state = self.0.lock();
        let (validator, digest) = state.answers.get(path)?;
        (*validator == Validator::of(attr)).then(|| digest.clone())
    }

    /// Keeps an answer, if it `is_valid`. A change that begins after that check drops it
    /// ([`ServerDigests::forget`]).
    fn insert(
        &self,
        path: RemotePath,
        answer: (Validator, Bytes),
        is_valid: impl Fn(&RemotePath) -> bool,
    ) {
        let mut state = self.0.lock();
        if !is_valid(&path) {
            return;
        }
        if state.answers.len() >= MAX_ANSWERS {
            state.answers.clear();
        }
        state.answers.insert(path, answer);
    }

    /// Sends no more queries for the files of `dir`: each would wait for a long listing.
    fn set_too_long(&self, dir: &RemotePath) {
        let mut state = self.0.lock();
        if state.too_long.len() >= MAX_QUERIED {
            state.too_long.clear();
        }
        state.too_long.insert(dir.clone());
    }

    fn is_too_long(&self, dir: &RemotePath) -> bool {
        self.0.lock().too_long.contains(dir)
    }

    /// Begins a query for the digests of the files in `dir`: the sender ends it. `Err` is the query
    /// in flight, or a recent one.
    fn begin_query(&self, dir: &RemotePath) -> std::result::Result<watch::Sender<bool>, QueryDone> {
        let mut state = self.0.lock();
        let now = Instant::now();
        if let Some((at, answered)) = state.queried.get(dir)
            && now.duration_since(*at) < PAUSE
        {
            return Err(answered.clone());
        }
        if state.queried.len() >= MAX_QUERIED {
            state.queried.clear();
        }
        let (done, answered) = watch::channel(false);
        state.queried.insert(dir.clone(), (now, answered));
        Ok(done)
    }
}

impl Core {
    /// Queries the digest of `path`, with those of the other files in its directory, if the server
    /// can compute it.
    pub(crate) async fn prepare_digests(self: &Arc<Self>, path: &RemotePath) {
        let Some(source) = self.config.digest_source.clone() else { return };
        let Some(dir) = path.parent().filter(|dir| !self.server_digests.is_too_long(dir)) else {
            return;
        };
        let mut answered = match self.server_digests.begin_query(&dir) {
            Err(answered) => answered,
            Ok(done) => {
                let answered = done.subscribe();
                let core = self.clone();
                // In a task of its own, since other callers wait for it.
                tokio::spawn(async move {
                    let began = core.changes.generation();
                    let Some(files) = core.files_without_content(&dir).await else {
                        done.send_replace(true);
                        return;
                    };
                    match source.digests(&files).await {
                        Ok(digests) => {
                            for ((path, attr), digest) in files.into_iter().zip(digests) {
                                if let Some(digest) = digest {
                                    let answer = (Validator::of(&attr), digest);
                                    core.server_digests.insert(path, answer, |path| {
                                        core.changes.is_unchanged(path, began)
                                    });
                                }
                            }
                        }
                        Err(error) => tracing::debug!(%error, "the server returned no digests"),
                    }
                    done.send_replace(true);
                });
                answered
            }
        };
        let _ = answered.wait_for(|answered| *answered).await;
    }

    /// The files of `dir` whose contents are not known, by their recorded attributes. A directory
    /// that was never listed is listed first; `None` where that fails.
    async fn files_without_content(&self, dir: &RemotePath) -> Option<Vec<(RemotePath, Attr)>> {
        let known = || self.known_directory(self.source(dir), dir);
        let listing = match known() {
            Some(listing) => listing,
            None => {
                if !self.list(dir, MAX_ENTRIES).await? {
                    self.server_digests.set_too_long(dir);
                    return None;
                }
                known()?
            }
        };
        let mut bytes = 0;
        let mut files = Vec::new();
        for entry in listing.entries.iter() {
            let Some(attr) = &entry.attr else { continue };
            let path = dir.join(&entry.name);
            let wanted = attr.kind == FileKind::Regular
                && attr.size > 0
                && attr.size.saturating_add(bytes) <= MAX_BYTES
                && (self.is_immutable(&path) || self.validators.is_settled(&path, attr))
                && self.known_content(&path, attr).is_none();
            if wanted {
                bytes += attr.size;
                files.push((path, *attr));
                if files.len() == MAX_FILES {
                    break;
                }
            }
        }
        Some(files)
    }

    /// Lists a directory, so that its files' times are known, and that it is recorded. Returns
    /// whether this is all of it: it ends beyond `most` entries. `None` where it fails.
    pub(super) async fn list(&self, dir: &RemotePath, most: usize) -> Option<bool> {
        let listed = self.opendir(dir).await.ok()?;
        let _closed = OnDrop(|| drop(self.listings.remove(listed.0)));
        let mut count = 0;
        while let Some(batch) = self.readdir(listed).await.ok()? {
            count += batch.len();
            if count > most {
                return Some(false);
            }
        }
        Some(true)
    }

    /// The cached content of the file, if the server returned its digest.
    pub(crate) async fn named_by_digest(
        self: &Arc<Self>,
        path: &RemotePath,
        attr: &Attr,
        policy: ReadPolicy,
        stamp: RequestStamp,
    ) -> Option<Object> {
        self.config.digest_source.as_ref()?;
        if policy == ReadPolicy::CacheFirst {
            self.prepare_digests(path).await;
        }
        let digest = self.server_digests.get(path, attr)?;
        let digest = Digest::from_bytes(digest[..].try_into().ok()?);
        let object = self.store.object(&digest).filter(|object| object.len() == attr.size)?;
        let settled = policy == ReadPolicy::Server && self.validators.is_settled(path, attr);
        if policy == ReadPolicy::Server && !settled
            || !self.changes.is_unchanged(path, stamp.generation)
        {
            return None;
        }
        // Without a later request it is only as certain as the tree is immutable.
        let known = KnownFile { attr: *attr, digest, racy: !settled, fetched_at: stamp.time };
        self.record_content(path, &known, stamp);
        Some(object)
    }

    /// The cached content of a file that was linked, copied with its times, or had its mode or
    /// owner changed since: its size and mtime are those of the record, and the server's digest
    /// shows whether its content is, too. That the server could read it proves the right to.
    pub(crate) async fn confirmed_by_digest(
        self: &Arc<Self>,
        path: &RemotePath,
        attr: &Attr,
        stamp: RequestStamp,
    ) -> Option<Object> {
        if attr.change().is_none() || attr.size > MAX_BYTES {
            return None;
        }
        let known = self.store.file(self.source(path), path)?;
        if !known.validator().has_size_and_mtime_of(&Validator::of(attr))
            || !self.validators.is_settled(path, attr)
        {
            return None;
        }
        let object = self.store.object(&known.digest)?;
        let effort = DigestEffort::Compute;
        let request = self.inner.digest(path, attr, DigestKind::Blake3, effort);
        let digest = self.within(RemoteWait::WhileConnected, request).await.ok()??;
        if digest != known.digest.as_bytes()[..]
            || !self.changes.is_unchanged(path, stamp.generation)
        {
            return None;
        }
        let known = KnownFile { attr: *attr, racy: false, fetched_at: stamp.time, ..known };
        self.record_content(path, &known, stamp);
        Some(object)
    }

    /// Records that the file has the cached content `known`.
    fn record_content(&self, path: &RemotePath, known: &KnownFile, stamp: RequestStamp) {
        let source = self.source(path);
        self.write_listing_of(source, path);
        self.store.record_file(source, path, known);
        self.undo_if_changed(path, stamp);
    }

    /// The content that the file has, given that `attr` are its attributes now.
    pub(crate) fn known_content(&self, path: &RemotePath, attr: &Attr) -> Option<Digest> {
        let policy = self.read_policy(path);
        self.valid_contents(path, attr, policy).next().map(|known| known.digest)
    }

    pub(crate) async fn digest(
        self: &Arc<Self>,
        path: &RemotePath,
        attr: &Attr,
        kind: DigestKind,
        effort: DigestEffort,
    ) -> Result<Option<Bytes>> {
        if not_regular(attr).is_some() || !self.changes.is_stable(path) {
            return Ok(None);
        }
        let counts =
            self.read_policy(path) != ReadPolicy::Server || self.validators.is_settled(path, attr);
        if attr.size == 0 && counts {
            // An empty file needs no reader.
            return Ok(Some(Digests::of_nothing().get(kind)));
        }
        if let Some(digest) = self.cached_digest(path, attr, kind).await {
            return Ok(Some(digest));
        }
        if effort == DigestEffort::Known {
            if self.read_policy(path) == ReadPolicy::CacheOnly {
                return Ok(None);
            }
            // A caller that has just read the file need not fetch it again.
            let validator = Validator::of(attr);
            let in_flight = |source| self.store.in_flight(&Subject::new(source, path, validator));
            let mut contents = self.both_sources().into_iter().filter_map(in_flight);
            let Some(content) = contents.find(|content| *content.borrow() > 0) else {
                return Ok(None);
            };
            let _ =
                tokio::time::timeout(KEEPING_LIMIT, self.write_behind.wait_written(&content)).await;
            let digest = self.cached_digest(path, attr, kind).await;
            return Ok(digest.filter(|_| self.changes.is_stable(path)));
        }
        if self.read_policy(path) != ReadPolicy::CacheOnly
            && let Some(digest) = self.inner.digest(path, attr, kind, effort).await?
            && self.changes.is_stable(path)
        {
            return Ok(Some(digest));
        }
        self.warm(path, &|_| ()).await?;
        let content = self.known_content(path, attr).filter(|_| self.changes.is_stable(path));
        Ok(match content {
            Some(content) => self.digest_of(content, kind).await,
            None => None,
        })
    }

    async fn cached_digest(
        &self,
        path: &RemotePath,
        attr: &Attr,
        kind: DigestKind,
    ) -> Option<Bytes> {
        self.digest_of(self.known_content(path, attr)?, kind).await
    }

    /// The digest of a cached content, computed if it was not before, without a transfer.
    async fn digest_of(&self, content: Digest, kind: DigestKind) -> Option<Bytes> {
        if kind == DigestKind::Blake3 {
            return Some(Bytes::copy_from_slice(content.as_bytes()));
        }
        if let Some(digests) = self.store.digests(&content) {
            return Some(digests.get(kind));
        }
        let store = self.store.clone();
        let computing = tokio::task::spawn_blocking(move || store.compute_digests(&content));
        Some(computing.await.ok()??.get(kind))
    }
}
