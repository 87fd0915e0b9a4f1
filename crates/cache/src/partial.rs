//! Partial contents: contents that are being fetched, chunk by chunk, until they are whole.
//!
//! A content of one chunk is collected in memory, a larger one in two files ([`files`]) that a
//! later process can resume. Bytes may arrive in any order and in pieces of any size; pieces of
//! chunks are kept in memory, within a bound. The digest is computed while the bytes arrive, as far
//! as they arrive in order.
//!
//! Invariants:
//! 1. A chunk is present when its bytes and then its checksum were written, and its bytes are
//!    compared with it whenever they are read again: for a reader, and for the digest.
//! 2. A content is of one version: at the end the caller passes the server's attributes of the file
//!    ([`Partial::finish`]), or discards the content ([`Partial::abandon`]).
//! 3. There is one writer: all callers in this process share one, and other processes leave locked
//!    files alone.
//!
//! Lock order: `hashing`, then `state`. `state` is held for a few instructions, except while files
//! are opened; `hashing` while bytes are hashed, by writers.

pub(crate) mod chunks;
pub(crate) mod files;
mod keep;
mod registry;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use base::{Attr, FileKind, Mutex, Timestamp};
use bytes::{Bytes, BytesMut};
use tokio::sync::watch;

use self::chunks::{ChunkSums, Fragment, chunk_range, chunks_of};
use self::files::{Files, Names, Subject};
pub(crate) use self::registry::{Registry, Resume};
use crate::codec::checksum_at;
use crate::digest::Digest;
use crate::metadata::{KnownFile, Validator};
use crate::object::blocks::{BlockSums, TABLE_FROM_BYTES};
use crate::object::{Object, chunk_count, read_chunk_of};
use crate::store::quota::on_disk;
use crate::store::shared::Shared;

/// Bound on the pieces of chunks in memory, of all contents together. Bytes beyond it are dropped,
/// and fetched again by the next read.
const FRAGMENT_BYTES: u64 = 64 << 20;

/// Bound on the incomplete chunks of one content: requests in flight together may be answered in
/// any order.
const MAX_FRAGMENTS: usize = 64;

/// Disk space is reserved in steps of this many bytes.
const RESERVE_STEP_BYTES: u64 = 1 << 20;

/// Why a content could not be completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfinished {
    /// Bytes are missing, or were lost.
    #[error("bytes are missing")]
    Missing,
    /// The file has changed since the fetch began.
    #[error("the file has changed while it was fetched")]
    Changed,
    /// The store does not keep it: it is full, it fails, or the content is too large for it.
    #[error("the cache does not keep it")]
    NotKept,
}

/// The number of operations in flight.
pub(crate) type InFlight = Arc<watch::Sender<u64>>;

/// A content that is being fetched. Clones share one state.
#[derive(Clone)]
pub struct Partial(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    subject: Subject,
    key: [u8; 32],
    /// Whether it is small enough for the store.
    fits: bool,
    state: Mutex<PartialState>,
    hashing: Mutex<Hashing>,
    /// Operations of this content in flight to the store.
    in_flight: InFlight,
}

#[derive(Default)]
struct PartialState {
    stage: Stage,
    files: Option<Arc<Files>>,
    present: ChunkSums,
    /// Of the chunks for which there was memory.
    blocks: HashMap<u64, BlockSums>,
    /// Chunks that are being written.
    writing: HashSet<u64>,
    fragments: HashMap<u64, Fragment>,
    /// The whole content, if it has one chunk.
    small: Option<Bytes>,
    /// Disk space that is reserved and not used yet.
    reserved_bytes: u64,
}

/// The life of a partial content:
///
/// | from | to | by |
/// |---|---|---|
/// | `Filling` | `Finishing` | [`Partial::finish`], unless a chunk is being written |
/// | `Finishing` | `Filling` | `finish`, when it failed |
/// | `Finishing` | `Whole` | `finish`, when the content is in the store |
/// | any | `Abandoned` | [`Partial::abandon`] |
/// | `Abandoned` | `Whole` | a `finish` that had begun before, and succeeds |
///
/// Chunks are written in `Filling` alone. Pieces of chunks are still accepted in `Finishing`, for
/// the case that it fails.
#[derive(Default)]
enum Stage {
    #[default]
    Filling,
    /// The content is being hashed and moved into the store.
    Finishing,
    /// The object is opened when it is read.
    Whole(Box<KnownFile>, Option<Object>),
    Abandoned,
}

/// The digest of the chunks before `next`.
struct Hashing {
    next: u64,
    blake3: blake3::Hasher,
}

impl Partial {
    /// The validator of the file whose content it is.
    pub fn validator(&self) -> Validator {
        self.0.subject.validator
    }

    /// Whether it is small enough for the store. If not, all bytes are dropped.
    pub(crate) fn fits(&self) -> bool {
        self.0.fits
    }

    /// Adds bytes that were read at `offset`. Bytes that are present already, and bytes beyond the
    /// quota, are dropped. Blocks for the disk.
    pub fn write(&self, offset: u64, data: &Bytes) {
        let size = self.0.size();
        let end = size.min(offset.saturating_add(data.len() as u64));
        if !self.0.fits || offset >= end {
            return;
        }
        for chunk in chunks_of(&(offset..end)) {
            let whole = chunk_range(chunk, size);
            let part = whole.start.max(offset)..whole.end.min(end);
            let bytes = data.slice((part.start - offset) as usize..(part.end - offset) as usize);
            if part == whole {
                self.0.commit(chunk, bytes);
            } else if let Some(bytes) =
                self.0.add_to_fragment(chunk, part.start - whole.start, &bytes)
            {
                self.0.commit(chunk, bytes);
            }
        }
    }

    /// The bytes of `offset..offset + len`, up to the end of the file, if all of them are present
    /// and undamaged. Blocks for the disk.
    pub fn read(&self, offset: u64, len: usize) -> Option<Bytes> {
        let range = offset..self.0.size().min(offset.saturating_add(len as u64));
        if range.start >= range.end {
            return Some(Bytes::new());
        }
        let state = self.0.state.lock();
        if let Stage::Whole(known, object) = &state.stage {
            let (digest, object) = (known.digest, object.clone());
            drop(state);
            let read = self.0.read_whole(digest, object, offset, len);
            if read.is_none() {
                // Damaged or evicted. The next fetch starts from nothing, also if this one is still
                // in use.
                self.abandon();
            }
            return read;
        }
        if let Some(content) = &state.small {
            return Some(content.slice(range.start as usize..range.end as usize));
        }
        let files = state.files.clone()?;
        if !chunks_of(&range).all(|chunk| state.present.get(chunk).is_some()) {
            return None;
        }
        drop(state);
        let mut bytes = BytesMut::with_capacity((range.end - range.start) as usize);
        for chunk in chunks_of(&range) {
            let content = self.0.read_chunk(&files, chunk)?;
            let whole = chunk_range(chunk, self.0.size());
            let part = range.start.max(whole.start)..range.end.min(whole.end);
            bytes.extend_from_slice(
                &content[(part.start - whole.start) as usize..(part.end - whole.start) as usize],
            );
        }
        Some(bytes.freeze())
    }

    /// The missing parts of `range`, in order, none adjacent; whole chunks, except at the ends of
    /// `range`.
    pub fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let size = self.0.size();
        let range = range.start..range.end.min(size);
        let state = self.0.state.lock();
        let mut missing: Vec<Range<u64>> = Vec::new();
        for chunk in chunks_of(&range).filter(|chunk| !state.has(*chunk)) {
            let whole = chunk_range(chunk, size);
            let part = whole.start.max(range.start)..whole.end.min(range.end);
            match missing.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                _ => missing.push(part),
            }
        }
        missing
    }

    /// The number of bytes present.
    pub fn present_bytes(&self) -> u64 {
        let size = self.0.size();
        let missing = self.missing(0..size);
        size - missing.iter().map(|range| range.end - range.start).sum::<u64>()
    }

    /// Whether all bytes are present, as far as is known without reading them again.
    pub fn is_whole(&self) -> bool {
        let chunks = chunk_count(self.0.size());
        let state = self.0.state.lock();
        match state.stage {
            Stage::Filling | Stage::Finishing => {
                chunks == 0 || state.small.is_some() || state.present.len() == chunks
            }
            Stage::Whole(..) => true,
            Stage::Abandoned => false,
        }
    }

    /// Moves the content into the store, and records that the file has it.
    ///
    /// `attr` are the server's attributes of the file after the last byte was read. If their size
    /// or mtime differs from the validator's, the bytes may be of two versions, and are discarded.
    /// With `racy` ([`RACY_SECS`](crate::RACY_SECS), when the fetch began) the content is kept,
    /// and recorded as uncertain. Blocks for the disk: chunks that did not arrive in order are read
    /// again.
    pub fn finish(&self, attr: &Attr, racy: bool) -> Result<KnownFile, Unfinished> {
        let (known, is_new) = self.finish_unrecorded(attr, racy, Timestamp::now())?;
        if is_new {
            let Subject { source, path, .. } = &self.0.subject;
            self.0.shared.record_files(&[(*source, path.clone(), known)]);
        }
        Ok(known)
    }

    /// Moves the content into the store, and leaves it to the caller to record that the file has
    /// it, if the second value is `true`: it was not finished before.
    pub(crate) fn finish_unrecorded(
        &self,
        attr: &Attr,
        racy: bool,
        fetched_at: Timestamp,
    ) -> Result<(KnownFile, bool), Unfinished> {
        let (expected, found) = (self.0.subject.validator, Validator::of(attr));
        // Of an immutable tree, the last change does not matter.
        let found = Validator { change: expected.change.and(found.change), ..found };
        if attr.kind != FileKind::Regular || found != expected {
            self.abandon();
            return Err(Unfinished::Changed);
        }
        {
            let mut state = self.0.state.lock();
            match &state.stage {
                Stage::Whole(known, _) => return Ok((**known, false)),
                _ if !self.0.fits => return Err(Unfinished::NotKept),
                Stage::Filling if state.writing.is_empty() => state.stage = Stage::Finishing,
                Stage::Filling | Stage::Finishing | Stage::Abandoned => {
                    return Err(Unfinished::Missing);
                }
            }
        }
        let made = self.0.make_object(attr, racy, fetched_at);
        if made.is_err() && !self.0.is_small() && self.0.lost_its_files() {
            // The next fetch has files of its own.
            self.abandon();
        }
        let mut state = self.0.state.lock();
        let known = match made {
            Ok(known) => known,
            Err(error) => {
                if let Stage::Finishing = state.stage {
                    state.stage = Stage::Filling;
                }
                return Err(error);
            }
        };
        state.stage = Stage::Whole(Box::new(known), None);
        self.0.release_memory(&mut state);
        Ok((known, true))
    }

    /// Operations of this content in flight to the store, counted by the callers.
    pub(crate) fn in_flight(&self) -> &InFlight {
        &self.0.in_flight
    }

    /// Discards the bytes written: they are not of one content. The next fetch of this state of the
    /// file starts from nothing. A finished content stays in the store.
    pub fn abandon(&self) {
        let mut state = self.0.state.lock();
        self.0.remove_files(&state);
        self.0.release_memory(&mut state);
        state.stage = Stage::Abandoned;
        drop(state);
        self.0.shared.partials.remove(&self.0, None);
    }
}

impl PartialState {
    fn has(&self, chunk: u64) -> bool {
        matches!(self.stage, Stage::Whole(..))
            || self.small.is_some()
            || self.present.get(chunk).is_some()
    }

    /// Whether bytes are still accepted.
    fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Filling | Stage::Finishing)
    }
}

impl Inner {
    fn new(shared: Arc<Shared>, subject: Subject, key: [u8; 32]) -> Inner {
        let size = subject.validator.size;
        let fits = shared.fits_at_all(size);
        let mut state = PartialState::default();
        if fits && chunk_count(size) > 1 {
            state.present = ChunkSums::new(chunk_count(size));
        } else if size == 0 {
            state.small = Some(Bytes::new());
        }
        let hashing = Hashing { next: 0, blake3: blake3::Hasher::new() };
        let (state, hashing) = (Mutex::new(state), Mutex::new(hashing));
        Inner { shared, subject, key, fits, state, hashing, in_flight: InFlight::default() }
    }

    fn size(&self) -> u64 {
        self.subject.validator.size
    }

    fn is_small(&self) -> bool {
        chunk_count(self.size()) <= 1
    }

    /// Resumes the files that this process or another one has left.
    fn resume(&self, state: &mut PartialState, which: Resume) {
        if self.is_small() || !self.fits {
            return;
        }
        match Files::resume(&self.shared.layout().partial, &self.subject) {
            Ok(Some((files, entries))) => {
                for (chunk, sum) in entries {
                    state.present.insert(chunk, sum);
                }
                state.files = Some(Arc::new(files));
                if which == Resume::Own && !self.shared.partials.left(&self.key, &state.present) {
                    self.remove_files(state);
                    state.files = None;
                    state.present = ChunkSums::new(chunk_count(self.size()));
                }
            }
            Ok(None) => {}
            Err(error) => tracing::debug!("a partial content was not resumed: {error}"),
        }
    }

    /// Adds a piece of a chunk; returns the chunk if it is complete.
    fn add_to_fragment(&self, chunk: u64, at: u64, bytes: &[u8]) -> Option<Bytes> {
        let mut state = self.state.lock();
        if !state.is_open() || state.has(chunk) {
            return None;
        }
        if !state.fragments.contains_key(&chunk) && !self.reserve_fragment(&mut state, chunk) {
            return None;
        }
        let fragment = state.fragments.get_mut(&chunk)?;
        fragment.add(at as usize, bytes);
        let whole = fragment.whole()?;
        state.fragments.remove(&chunk);
        drop(state);
        self.release_fragment_bytes(whole.len() as u64);
        Some(whole.into())
    }

    /// Reserves memory for the pieces of a chunk, if there is some.
    fn reserve_fragment(&self, state: &mut PartialState, chunk: u64) -> bool {
        if state.fragments.len() >= MAX_FRAGMENTS {
            // In a fetch that reads forward, the lowest chunk has waited longest.
            let lowest = state.fragments.keys().min().copied();
            if let Some(fragment) = lowest.and_then(|lowest| state.fragments.remove(&lowest)) {
                self.release_fragment_bytes(fragment.len());
            }
        }
        let range = chunk_range(chunk, self.size());
        let len = range.end - range.start;
        if !self.shared.counters.fragment_bytes.take(len, FRAGMENT_BYTES) {
            return false;
        }
        state.fragments.insert(chunk, Fragment::new(len as usize));
        true
    }

    fn release_fragment_bytes(&self, bytes: u64) {
        self.shared.counters.fragment_bytes.give_back(bytes);
    }

    /// Stores a whole chunk.
    fn commit(&self, chunk: u64, bytes: Bytes) {
        if self.is_small() {
            self.commit_small(bytes);
            return;
        }
        let Some(files) = self.begin_write(chunk) else { return };
        let sum = checksum_at(&bytes, chunk);
        let range = chunk_range(chunk, self.size());
        let written = files.write(chunk, range.start, &bytes, (chunk, sum));
        let mut state = self.state.lock();
        state.writing.remove(&chunk);
        match written {
            Ok(()) => {
                state.present.insert(chunk, sum);
                drop(state);
                self.note_blocks(chunk, &bytes);
                self.advance_hash(&files, Some((chunk, &bytes)));
            }
            Err(error) => {
                drop(state);
                self.shared.write_failed(&self.shared.layout(), "writing a content", &error);
            }
        }
    }

    fn commit_small(&self, bytes: Bytes) {
        let mut state = self.state.lock();
        let is_wanted = state.is_open() && state.small.is_none();
        if is_wanted && self.shared.counters.fragment_bytes.take(bytes.len() as u64, FRAGMENT_BYTES)
        {
            // A slice of a long buffer would keep all of it.
            state.small = Some(Bytes::copy_from_slice(&bytes));
        }
    }

    /// Whether the caller may write this chunk now; returns the files.
    fn begin_write(&self, chunk: u64) -> Option<Arc<Files>> {
        let mut state = self.state.lock();
        let idle = matches!(state.stage, Stage::Filling)
            && state.present.get(chunk).is_none()
            && !state.writing.contains(&chunk);
        if !idle || !self.shared.may_write() {
            return None;
        }
        let range = chunk_range(chunk, self.size());
        let len = on_disk(range.end - range.start);
        if state.reserved_bytes < len {
            let step = RESERVE_STEP_BYTES.min(on_disk(self.size())).max(len);
            if !self.shared.reserve(step) {
                return None;
            }
            state.reserved_bytes += step;
        }
        let files = self.open_files(&mut state)?;
        state.reserved_bytes -= len;
        state.writing.insert(chunk);
        Some(files)
    }

    fn open_files(&self, state: &mut PartialState) -> Option<Arc<Files>> {
        if state.files.is_none() {
            match Files::create(&self.shared.layout().partial, &self.subject) {
                Ok(files) => state.files = files.map(Arc::new),
                Err(error) => {
                    let layout = self.shared.layout();
                    self.shared.write_failed(&layout, "creating a file for a content", &error);
                }
            }
        }
        state.files.clone()
    }

    /// Reads from the finished content.
    fn read_whole(
        &self,
        digest: Digest,
        object: Option<Object>,
        offset: u64,
        len: usize,
    ) -> Option<Bytes> {
        let object = match object {
            Some(object) => object,
            None => {
                let opened = self.shared.object(&digest)?;
                if let Stage::Whole(_, object) = &mut self.state.lock().stage {
                    *object = Some(opened.clone());
                }
                opened
            }
        };
        object.read(offset, len).ok()
    }

    /// A present chunk, verified; a damaged one is no longer present.
    fn read_chunk(&self, files: &Files, chunk: u64) -> Option<Vec<u8>> {
        let sum = self.state.lock().present.get(chunk)?;
        let bytes = read_chunk_of(&files.data, chunk, self.size());
        let good = bytes.filter(|bytes| checksum_at(bytes, chunk) == sum);
        if good.is_none() {
            self.state.lock().present.remove(chunk);
            self.shared.damaged("part of a content");
        }
        good
    }

    /// Hashes the following chunks, as far as they are present. `at_hand` is not read again.
    fn advance_hash(&self, files: &Files, at_hand: Option<(u64, &Bytes)>) {
        let mut hashing = self.hashing.lock();
        while hashing.next < chunk_count(self.size()) {
            let next = hashing.next;
            match at_hand {
                Some((chunk, bytes)) if chunk == next => hashing.blake3.update(bytes),
                _ => match self.read_chunk(files, next) {
                    Some(bytes) => {
                        self.note_blocks(next, &bytes);
                        hashing.blake3.update(&bytes)
                    }
                    None => return,
                },
            };
            hashing.next += 1;
        }
    }

    /// Computes and keeps the checksums of the blocks of a present chunk.
    fn note_blocks(&self, chunk: u64, bytes: &[u8]) {
        let is_wanted =
            |state: &PartialState| state.is_open() && !state.blocks.contains_key(&chunk);
        if self.size() < TABLE_FROM_BYTES || !is_wanted(&self.state.lock()) {
            return;
        }
        let sums = BlockSums::of(bytes);
        let mut state = self.state.lock();
        if is_wanted(&state) && self.shared.reserve_sums(1) {
            state.blocks.insert(chunk, sums);
        }
    }

    /// The digest of the whole content; `None` if chunks are missing.
    fn hash_all(&self) -> Option<Digest> {
        let (files, small) = {
            let state = self.state.lock();
            (state.files.clone(), state.small.clone())
        };
        if let Some(content) = small {
            return Some(Digest::of(&content));
        }
        self.advance_hash(&*files?, None);
        let hashing = self.hashing.lock();
        if hashing.next < chunk_count(self.size()) {
            return None;
        }
        Some(Digest::from_bytes(*hashing.blake3.finalize().as_bytes()))
    }

    /// Whether its files have lost their names: the content was abandoned, or another process has
    /// cleared the store. Files of these names belong to another fetch.
    fn lost_its_files(&self) -> bool {
        let Some(files) = self.state.lock().files.clone() else { return true };
        !self.shared.layout().partial.leads_to(&Names::of(&self.key).data, &files.data)
    }

    /// Removes the files.
    fn remove_files(&self, state: &PartialState) {
        let Some(files) = &state.files else { return };
        let layout = self.shared.layout();
        let names = Names::of(&self.key);
        if layout.partial.leads_to(&names.data, &files.data) {
            let _ = layout.partial.unlink(&names.data);
            let _ = layout.partial.unlink(&names.map);
            self.shared.release(state.present.len() * crate::object::CHUNK_BYTES);
        }
    }

    /// Releases its memory, the descriptors of the files, and unused disk space.
    fn release_memory(&self, state: &mut PartialState) {
        state.files = None;
        self.shared.release_sums(std::mem::take(&mut state.blocks).len());
        if let Some(content) = state.small.take() {
            self.release_fragment_bytes(content.len() as u64);
        }
        for (_, fragment) in state.fragments.drain() {
            self.release_fragment_bytes(fragment.len());
        }
        let space = std::mem::take(&mut state.reserved_bytes);
        if space > 0 {
            self.shared.release(space);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut state = std::mem::take(self.state.get_mut());
        // Before the lock of the files is released.
        let left = state.files.is_some().then_some(&state.present);
        self.shared.partials.remove(self, left);
        self.release_memory(&mut state);
    }
}
