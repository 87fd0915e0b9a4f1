//! Digests of files: those that are known, and those that the server can tell.
//!
//! A [`DigestSource`] tells digests without moving contents. A file that the store does not know,
//! but whose digest is that of a content that is here, needs no transfer: so another revision of a
//! tree costs what differs. Files of one directory are asked for together, when the first of them
//! is opened.
//!
//! A digest that the server made is of the content that the file had at that time. It is taken for
//! that of a validator only if the remote told this validator before and tells it after.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::{Attr, Dh, DigestEffort, DigestKind, FileKind, RemotePath, Result, Timestamp};
use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;

use super::opening::not_regular;
use super::{Core, Standing};
use crate::{Digest, Digests, KnownFile, Object, Validator};

/// What tells digests of files without moving their contents.
#[async_trait]
pub trait DigestSource: Send + Sync + 'static {
    /// How its digests are made.
    fn kind(&self) -> DigestKind;

    /// The digests of the contents that these regular files have now, in the same order; `None`
    /// for each that it cannot tell. Dropping the future gives it up.
    async fn digests(&self, paths: &[RemotePath]) -> Result<Vec<Option<Bytes>>>;
}

/// Files that are asked for together, at most: as many names as fit into a command line.
const MAX_FILES: usize = 512;

/// Bytes of all of them, at most: what a server hashes in about a second. More would keep the
/// first reader waiting.
const MAX_BYTES: u64 = 512 << 20;

/// Digests that were told and not used yet, at most.
const MAX_TOLD: usize = 16 << 10;

/// For how long the first reader of a directory waits for digests of what was kept a moment ago,
/// and who asks for one for what is being kept. They are made at some hundred MB a second.
const CATCH_UP: Duration = Duration::from_secs(2);

/// For how long a directory is not asked for again.
const PAUSE: Duration = Duration::from_secs(60);

/// Directories of which that is remembered, at most.
const MAX_ASKED: usize = 1024;

/// A question for the digests of a directory's files; ends when it is answered.
type Answered = watch::Receiver<bool>;

#[derive(Default)]
struct State {
    told: HashMap<RemotePath, (Validator, Bytes)>,
    order: VecDeque<RemotePath>,
    asked: HashMap<RemotePath, (Instant, Answered)>,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Digesting(Mutex<State>);

impl Digesting {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was told of `path`, and all below it, does not count any longer.
    pub(crate) fn forget(&self, path: &RemotePath) {
        let mut state = self.lock();
        if !state.told.is_empty() {
            state.told.retain(|at, _| !at.is_within(path));
        }
        state.asked.retain(|dir, _| !dir.is_within(path));
    }

    fn told(&self, path: &RemotePath, attr: &Attr) -> Option<Bytes> {
        let state = self.lock();
        let (validator, digest) = state.told.get(path)?;
        (*validator == Validator::of(attr)).then(|| digest.clone())
    }

    fn tell(&self, path: RemotePath, validator: Validator, digest: Bytes) {
        let mut state = self.lock();
        if state.told.insert(path.clone(), (validator, digest)).is_none() {
            state.order.push_back(path);
        }
        while state.order.len() > MAX_TOLD {
            if let Some(oldest) = state.order.pop_front() {
                state.told.remove(&oldest);
            }
        }
    }

    /// Whether the digests of the files in `dir` are to be asked for: a sender that ends the
    /// question, or the question that is on its way.
    fn ask(&self, dir: &RemotePath) -> std::result::Result<watch::Sender<bool>, Answered> {
        let mut state = self.lock();
        let now = Instant::now();
        if let Some((at, answered)) = state.asked.get(dir)
            && now.duration_since(*at) < PAUSE
        {
            return Err(answered.clone());
        }
        if state.asked.len() >= MAX_ASKED {
            state.asked.retain(|_, (at, _)| now.duration_since(*at) < PAUSE);
            if state.asked.len() >= MAX_ASKED {
                state.asked.clear();
            }
        }
        let (done, answered) = watch::channel(false);
        state.asked.insert(dir.clone(), (now, answered));
        Ok(done)
    }
}

/// A directory that is being listed; closed with it.
struct Listed<'a>(&'a Core, Dh);

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.0.listings.close(self.1);
    }
}

impl Core {
    /// Sees to it that the digest of `path` is told, if the server can, along with those of its
    /// neighbours.
    pub(crate) async fn prepare_digests(self: &Arc<Self>, path: &RemotePath) {
        let Some(source) = self.config.digest_source.clone() else { return };
        let Some(dir) = path.parent() else { return };
        let mut answered = match self.digesting.ask(&dir) {
            Err(answered) => answered,
            Ok(done) => {
                let answered = done.subscribe();
                let core = self.clone();
                // Seen through, since others wait for it.
                tokio::spawn(async move {
                    let Some(files) = core.without_content(&dir).await else {
                        done.send_replace(true);
                        return;
                    };
                    let paths: Vec<RemotePath> =
                        files.iter().map(|(path, _)| path.clone()).collect();
                    let (told, ()) = tokio::join!(source.digests(&paths), core.catch_up());
                    match told {
                        Ok(digests) => {
                            for ((path, validator), digest) in files.into_iter().zip(digests) {
                                if let Some(digest) = digest {
                                    core.digesting.tell(path, validator, digest);
                                }
                            }
                        }
                        Err(error) => tracing::debug!(%error, "the server told no digests"),
                    }
                    done.send_replace(true);
                });
                answered
            }
        };
        let _ = answered.wait_for(|answered| *answered).await;
    }

    /// Sees to it that the contents that are here can be found by their digests, within a bound.
    async fn catch_up(&self) {
        if self.config.digest_source.as_ref().is_none_or(|it| it.kind() == DigestKind::Blake3) {
            return;
        }
        let (store, until) = (self.store.clone(), Instant::now() + CATCH_UP);
        let goes_on = move || Instant::now() < until;
        let _ = tokio::task::spawn_blocking(move || store.catch_up(goes_on)).await;
    }

    /// Files of `dir` whose contents are not known, by what was told of them. A directory that was
    /// never listed is listed for it; `None` where that fails.
    async fn without_content(&self, dir: &RemotePath) -> Option<Vec<(RemotePath, Validator)>> {
        let known = || self.known_directory(self.source(dir), dir);
        let listing = match known() {
            Some(listing) => listing,
            None => {
                self.list(dir).await?;
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
                && bytes + attr.size <= MAX_BYTES
                && (self.is_immutable(&path) || self.seen.is_settled(&path, attr))
                && self.known_content(&path, attr).is_none();
            if wanted {
                bytes += attr.size;
                files.push((path, Validator::of(attr)));
                if files.len() == MAX_FILES {
                    break;
                }
            }
        }
        Some(files)
    }

    /// Lists a directory, so that it is recorded.
    pub(super) async fn list(&self, dir: &RemotePath) -> Option<()> {
        let listed = Listed(self, self.opendir(dir).await.ok()?);
        while self.readdir(listed.1).await.ok()?.is_some() {}
        Some(())
    }

    /// The content of the file, if the server told the digest of one that is here.
    pub(crate) async fn named_by_digest(
        self: &Arc<Self>,
        path: &RemotePath,
        attr: &Attr,
        standing: Standing,
    ) -> Option<Object> {
        let source = self.config.digest_source.as_ref()?;
        if standing == Standing::Known {
            self.prepare_digests(path).await;
        }
        let told = self.digesting.told(path, attr)?;
        let digest = self.store.content_of(source.kind(), &told)?;
        let object = self.store.object(&digest).filter(|object| object.len() == attr.size)?;
        let settled = standing == Standing::Ask && self.seen.is_settled(path, attr);
        if standing == Standing::Ask && !settled {
            return None;
        }
        // What was not asked for afterwards is only as true as the tree is immutable.
        let fetched_at = Timestamp::now();
        let known = KnownFile { attr: *attr, digest, racy: !settled, fetched_at };
        self.store.record_file(self.source(path), path, &known);
        Some(object)
    }

    /// The content that the file has, which is what `attr` says now.
    pub(crate) fn known_content(&self, path: &RemotePath, attr: &Attr) -> Option<Digest> {
        let standing = self.standing(path);
        self.content_sources(path, standing).into_iter().find_map(|source| {
            let known = self.store.file(source, path)?;
            let trusted = !known.racy || standing != Standing::Ask;
            (trusted && known.validator() == Validator::of(attr)).then_some(known.digest)
        })
    }

    pub(crate) async fn digest(
        self: &Arc<Self>,
        path: &RemotePath,
        attr: &Attr,
        kind: DigestKind,
        effort: DigestEffort,
    ) -> Result<Option<Bytes>> {
        if not_regular(attr).is_some() || !self.changes.quiet(path) {
            return Ok(None);
        }
        let counts = self.standing(path) != Standing::Ask || self.seen.is_settled(path, attr);
        if attr.size == 0 && counts {
            // Nobody needs to have read it.
            return Ok(Some(Digests::of_nothing().get(kind)));
        }
        if let Some(digest) = self.digest_here(path, attr, kind).await {
            return Ok(Some(digest));
        }
        if effort == DigestEffort::Known {
            if self.standing(path) == Standing::Only {
                return Ok(None);
            }
            // Who has just read the file need not ask twice.
            let validator = Validator::of(attr);
            let under_way = |source| self.store.under_way(source, path, validator);
            let mut contents = self.both_sources().into_iter().filter_map(under_way);
            let Some(content) = contents.find(|content| content.count() > 0) else {
                return Ok(None);
            };
            let _ = tokio::time::timeout(CATCH_UP, self.filler.settled_of(&content)).await;
            let here = self.digest_here(path, attr, kind).await;
            return Ok(here.filter(|_| self.changes.quiet(path)));
        }
        self.warm(path, &|_| ()).await?;
        let content = self.known_content(path, attr).filter(|_| self.changes.quiet(path));
        Ok(match content {
            Some(content) => self.digest_of(content, kind).await,
            None => None,
        })
    }

    async fn digest_here(&self, path: &RemotePath, attr: &Attr, kind: DigestKind) -> Option<Bytes> {
        self.digest_of(self.known_content(path, attr)?, kind).await
    }

    /// The digest of a content that is here, made now if it was not before: that moves nothing.
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
