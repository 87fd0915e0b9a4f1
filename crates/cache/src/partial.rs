//! Contents that are being fetched: what has come of them, chunk by chunk, until they are whole.
//!
//! A content of one chunk waits in memory, a larger one in two files ([`files`]) that a later
//! process finds again. Bytes may come in any order and any size; those of a chunk that is not
//! whole wait in memory, within a bound. Digests are made while the bytes come, as far as they come
//! in order.
//!
//! Invariants:
//! 1. A chunk counts as there when its bytes and then its checksum were written, and its bytes are
//!    compared with it whenever they are read again: by a reader, and for the digest.
//! 2. A content is of one version: whoever fetches it says at the end what the server says of the
//!    file then ([`Partial::finish`]), or throws it away ([`Partial::abandon`]).
//! 3. There is one writer: in this process all callers share one, other processes leave files
//!    alone that are locked.
//!
//! Lock order: `hashing`, then `state`. `state` is held for a few instructions, except while files
//! are opened; `hashing` while bytes are hashed, by those who write.

pub(crate) mod chunks;
pub(crate) mod files;
mod keep;
mod registry;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{Attr, FileKind, Timestamp};
use bytes::{Bytes, BytesMut};

use self::chunks::{ChunkSet, Fragment, chunk_range, chunks_of};
use self::files::{Files, Names, Subject};
pub(crate) use self::registry::Registry;
use crate::codec::{CHECKSUM_BYTES, checksum_at};
use crate::digest::Digest;
use crate::known::{KnownFile, Validator};
use crate::object::blocks::{BlockSums, TABLE_FROM_BYTES};
use crate::object::{Object, chunk_count, read_chunk_of};
use crate::store::room::on_disk;
use crate::store::shared::{Counters, Shared};
use crate::under_way::UnderWay;

/// Bytes of chunks that are not whole, of all contents together. What does not fit is fetched
/// again when it is asked for again.
const WAITING_BYTES: u64 = 64 << 20;

/// Chunks of one content that may wait: requests on their way together come in this order at worst.
const WAITING_CHUNKS: usize = 64;

/// Room is reserved in steps of this many bytes.
const ROOM_STEP_BYTES: u64 = 1 << 20;

/// Why a content could not be completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfinished {
    /// Not all bytes are here (any more).
    #[error("bytes are missing")]
    Missing,
    /// The file is not as it was when the fetch began.
    #[error("the file has changed while it was fetched")]
    Changed,
    /// The store does not keep it: it is full, fails, or the content is too large for it.
    #[error("the cache does not keep it")]
    NotKept,
}

/// A content that is being fetched. Clones are the same one.
#[derive(Clone)]
pub struct Partial(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    subject: Subject,
    key: [u8; 32],
    /// Small enough for the store.
    fits: bool,
    state: Mutex<State>,
    hashing: Mutex<Hashing>,
    /// What of it was read, and is on its way here.
    under_way: UnderWay,
}

#[derive(Default)]
struct State {
    stage: Stage,
    files: Option<Arc<Files>>,
    present: ChunkSet,
    sums: Vec<[u8; CHECKSUM_BYTES]>,
    /// Of the chunks for which there was memory.
    blocks: HashMap<u64, BlockSums>,
    /// Chunks that somebody writes at this moment.
    writing: HashSet<u64>,
    waiting: HashMap<u64, Fragment>,
    /// The whole content, if it has one chunk.
    small: Option<Bytes>,
    /// Room that was reserved and not used yet.
    room_bytes: u64,
    /// It is being made an object: nothing is written any more.
    finishing: bool,
}

#[derive(Default)]
enum Stage {
    #[default]
    Filling,
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
    /// Which state of the file it is the content of.
    #[must_use]
    pub fn validator(&self) -> Validator {
        self.0.subject.validator
    }

    /// Adds bytes that were read at `offset`. Those that are here already, and those that the store
    /// has no room for, are dropped. Blocks for the disk.
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
            } else if let Some(bytes) = self.0.collect(chunk, part.start - whole.start, &bytes) {
                self.0.commit(chunk, bytes);
            }
        }
    }

    /// The bytes of `offset..offset + len`, cut at the end of the file, when all of them are here
    /// and undamaged. Blocks for the disk.
    #[must_use]
    pub fn read(&self, offset: u64, len: usize) -> Option<Bytes> {
        let range = offset..self.0.size().min(offset.saturating_add(len as u64));
        if range.start >= range.end {
            return Some(Bytes::new());
        }
        let state = self.0.lock();
        if let Stage::Whole(known, object) = &state.stage {
            let (digest, object) = (known.digest, object.clone());
            drop(state);
            let read = self.0.read_whole(digest, object, offset, len);
            if read.is_none() {
                // Damaged or evicted. The next fetch begins anew, though somebody has this one.
                self.abandon();
            }
            return read;
        }
        if let Some(content) = &state.small {
            return Some(content.slice(range.start as usize..range.end as usize));
        }
        let files = state.files.clone()?;
        if !chunks_of(&range).all(|chunk| state.present.has(chunk)) {
            return None;
        }
        drop(state);
        let mut bytes = BytesMut::with_capacity((range.end - range.start) as usize);
        for chunk in chunks_of(&range) {
            let content = self.0.read_back(&files, chunk)?;
            let whole = chunk_range(chunk, self.0.size());
            let part = range.start.max(whole.start)..range.end.min(whole.end);
            bytes.extend_from_slice(
                &content[(part.start - whole.start) as usize..(part.end - whole.start) as usize],
            );
        }
        Some(bytes.freeze())
    }

    /// What is not here of `range`, in order, none of it touching; whole chunks, except at the ends
    /// of `range`.
    #[must_use]
    pub fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let size = self.0.size();
        let range = range.start..range.end.min(size);
        let state = self.0.lock();
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

    /// Bytes that are here.
    #[must_use]
    pub fn present_bytes(&self) -> u64 {
        let size = self.0.size();
        let missing = self.missing(0..size);
        size - missing.iter().map(|range| range.end - range.start).sum::<u64>()
    }

    /// Whether all bytes are here, as far as is known without reading them again.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let chunks = chunk_count(self.0.size());
        let state = self.0.lock();
        match state.stage {
            Stage::Filling => chunks == 0 || state.small.is_some() || state.present.len() == chunks,
            Stage::Whole(..) => true,
            Stage::Abandoned => false,
        }
    }

    /// Makes it a content of the store, and records that the file has it.
    ///
    /// `attr` is what the server says of the file after the last byte was read; with another size
    /// or time than the validator's the bytes are of two versions, perhaps, and are thrown away.
    /// With `racy` ([`Validator::is_racy`], asked with the time at which the fetch began) the
    /// content is kept, and recorded as one that does not count. Blocks for the disk: what did not
    /// come in order is read again.
    pub fn finish(&self, attr: &Attr, racy: bool) -> Result<KnownFile, Unfinished> {
        let (known, is_new) = self.finish_unrecorded(attr, racy, Timestamp::now())?;
        if is_new {
            let Subject { source, path, .. } = &self.0.subject;
            self.0.shared.record_files(&[(*source, path.clone(), known)]);
        }
        Ok(known)
    }

    /// As [`Partial::finish`], but that the file has it is left to the caller to be recorded, if it
    /// became one just now, which is what the second says.
    pub(crate) fn finish_unrecorded(
        &self,
        attr: &Attr,
        racy: bool,
        seen_at: Timestamp,
    ) -> Result<(KnownFile, bool), Unfinished> {
        if attr.kind != FileKind::Regular || Validator::of(attr) != self.0.subject.validator {
            self.abandon();
            return Err(Unfinished::Changed);
        }
        if let Stage::Whole(known, _) = &self.0.lock().stage {
            return Ok((**known, false));
        }
        if !self.0.fits {
            return Err(Unfinished::NotKept);
        }
        {
            let mut state = self.0.lock();
            if state.finishing || !state.writing.is_empty() {
                return Err(Unfinished::Missing);
            }
            state.finishing = true;
        }
        let made = self.0.make_object(attr, racy, seen_at);
        if made.is_err() && self.0.is_thrown_away() {
            // Whoever fetches it next has files of his own.
            self.abandon();
        }
        let mut state = self.0.lock();
        state.finishing = false;
        let known = made?;
        state.stage = Stage::Whole(Box::new(known), None);
        self.0.empty(&mut state);
        Ok((known, true))
    }

    /// Throws away what was written: it is not one content. The next fetch of the same state of the
    /// file begins at nothing. What was finished stays in the store.
    pub fn abandon(&self) {
        let mut state = self.0.lock();
        self.0.remove_files(&state);
        self.0.empty(&mut state);
        state.stage = Stage::Abandoned;
        drop(state);
        self.0.shared.partials.remove(&self.0);
    }
}

impl Partial {
    /// What was read of it, and is on its way here: counted by whoever brings it.
    pub(crate) fn under_way(&self) -> &UnderWay {
        &self.0.under_way
    }
}

impl State {
    fn has(&self, chunk: u64) -> bool {
        matches!(self.stage, Stage::Whole(..)) || self.small.is_some() || self.present.has(chunk)
    }
}

impl Inner {
    fn new(shared: Arc<Shared>, subject: Subject, key: [u8; 32]) -> Inner {
        let size = subject.validator.size;
        let fits = shared.fits_at_all(size);
        let mut state = State::default();
        if fits && chunk_count(size) > 1 {
            state.present = ChunkSet::new(chunk_count(size));
            state.sums = vec![[0; CHECKSUM_BYTES]; chunk_count(size) as usize];
        } else if size == 0 {
            state.small = Some(Bytes::new());
        }
        let hashing = Hashing { next: 0, blake3: blake3::Hasher::new() };
        let (state, hashing) = (Mutex::new(state), Mutex::new(hashing));
        Inner { shared, subject, key, fits, state, hashing, under_way: UnderWay::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn size(&self) -> u64 {
        self.subject.validator.size
    }

    fn is_small(&self) -> bool {
        chunk_count(self.size()) <= 1
    }

    /// Finds what an earlier process has left.
    fn resume(&self, state: &mut State) {
        if self.is_small() || !self.fits {
            return;
        }
        match Files::resume(&self.shared.places().partial, &self.subject) {
            Ok(Some((files, entries))) => {
                for (chunk, sum) in entries {
                    state.sums[chunk as usize] = sum;
                    state.present.insert(chunk);
                }
                state.files = Some(Arc::new(files));
            }
            Ok(None) => {}
            Err(error) => tracing::debug!("no earlier part of a content: {error}"),
        }
    }

    /// Adds a piece of a chunk; the chunk, when that made it whole.
    fn collect(&self, chunk: u64, at: u64, bytes: &[u8]) -> Option<Bytes> {
        let mut state = self.lock();
        if !matches!(state.stage, Stage::Filling) || state.has(chunk) {
            return None;
        }
        if !state.waiting.contains_key(&chunk) && !self.make_place(&mut state, chunk) {
            return None;
        }
        let fragment = state.waiting.get_mut(&chunk)?;
        fragment.add(at as usize, bytes);
        let whole = fragment.whole()?;
        state.waiting.remove(&chunk);
        drop(state);
        self.waits_no_more(whole.len() as u64);
        Some(whole.into())
    }

    /// Takes memory for the pieces of a chunk, if there is some.
    fn make_place(&self, state: &mut State, chunk: u64) -> bool {
        if state.waiting.len() >= WAITING_CHUNKS {
            // The lowest has waited longest in a fetch that goes forward.
            let lowest = state.waiting.keys().min().copied();
            if let Some(fragment) = lowest.and_then(|lowest| state.waiting.remove(&lowest)) {
                self.waits_no_more(fragment.len());
            }
        }
        let range = chunk_range(chunk, self.size());
        let len = range.end - range.start;
        let waiting = &self.shared.counters.waiting_bytes;
        if waiting.fetch_add(len, Ordering::Relaxed) + len > WAITING_BYTES {
            self.waits_no_more(len);
            return false;
        }
        state.waiting.insert(chunk, Fragment::new(len as usize));
        true
    }

    fn waits_no_more(&self, bytes: u64) {
        self.shared.counters.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Keeps a whole chunk.
    fn commit(&self, chunk: u64, bytes: Bytes) {
        if self.is_small() {
            self.commit_small(bytes);
            return;
        }
        let Some(files) = self.begin(chunk) else { return };
        let sum = checksum_at(&bytes, chunk);
        let range = chunk_range(chunk, self.size());
        let written = files.write(chunk, range.start, &bytes, (chunk, sum));
        let mut state = self.lock();
        state.writing.remove(&chunk);
        match written {
            Ok(()) => {
                state.sums[chunk as usize] = sum;
                state.present.insert(chunk);
                drop(state);
                Counters::add(&self.shared.counters.written_bytes, bytes.len() as u64);
                self.note_blocks(chunk, &bytes);
                self.catch_up(&files, Some((chunk, &bytes)));
            }
            Err(error) => {
                drop(state);
                self.shared.write_failed(&self.shared.places(), "writing a content", &error);
            }
        }
    }

    fn commit_small(&self, bytes: Bytes) {
        let waiting = &self.shared.counters.waiting_bytes;
        let mut state = self.lock();
        if !matches!(state.stage, Stage::Filling) || state.small.is_some() {
            return;
        }
        let len = bytes.len() as u64;
        if waiting.fetch_add(len, Ordering::Relaxed) + len > WAITING_BYTES {
            self.waits_no_more(len);
            return;
        }
        // A slice of a long buffer would keep all of it.
        state.small = Some(Bytes::copy_from_slice(&bytes));
    }

    /// Whether the caller may write this chunk now, and where.
    fn begin(&self, chunk: u64) -> Option<Arc<Files>> {
        let mut state = self.lock();
        let idle = matches!(state.stage, Stage::Filling)
            && !state.finishing
            && !state.present.has(chunk)
            && !state.writing.contains(&chunk);
        if !idle || !self.shared.may_write() {
            return None;
        }
        let range = chunk_range(chunk, self.size());
        let len = on_disk(range.end - range.start);
        if state.room_bytes < len {
            let step = ROOM_STEP_BYTES.min(on_disk(self.size())).max(len);
            if !self.shared.reserve(step) {
                return None;
            }
            state.room_bytes += step;
        }
        let files = self.open_files(&mut state)?;
        state.room_bytes -= len;
        state.writing.insert(chunk);
        Some(files)
    }

    fn open_files(&self, state: &mut State) -> Option<Arc<Files>> {
        if state.files.is_none() {
            match Files::create(&self.shared.places().partial, &self.subject) {
                Ok(files) => state.files = files.map(Arc::new),
                Err(error) => {
                    let places = self.shared.places();
                    self.shared.write_failed(&places, "making a file for a content", &error);
                }
            }
        }
        state.files.clone()
    }

    /// Bytes of the content that this has become.
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
                let opened = self.shared.open_object(&digest)?;
                if let Stage::Whole(_, object) = &mut self.lock().stage {
                    *object = Some(opened.clone());
                }
                opened
            }
        };
        object.read(offset, len).ok()
    }

    /// A chunk that is there, compared; one that is damaged is there no more.
    fn read_back(&self, files: &Files, chunk: u64) -> Option<Vec<u8>> {
        let sum = {
            let state = self.lock();
            state.present.has(chunk).then(|| state.sums[chunk as usize])?
        };
        let bytes = read_chunk_of(&files.data, chunk, self.size());
        let good = bytes.filter(|bytes| checksum_at(bytes, chunk) == sum);
        if good.is_none() {
            self.lock().present.remove(chunk);
            self.shared.damaged("part of a content");
        }
        good
    }

    /// Hashes what comes next, as far as it is there. `at_hand` is not read again.
    fn catch_up(&self, files: &Files, at_hand: Option<(u64, &Bytes)>) {
        let mut hashing = self.hashing.lock().unwrap_or_else(PoisonError::into_inner);
        while hashing.next < chunk_count(self.size()) {
            let next = hashing.next;
            match at_hand {
                Some((chunk, bytes)) if chunk == next => hashing.blake3.update(bytes),
                _ => match self.read_back(files, next) {
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

    /// Notes the checksums of the blocks of a chunk that is there.
    fn note_blocks(&self, chunk: u64, bytes: &[u8]) {
        let is_wanted = |state: &State| {
            matches!(state.stage, Stage::Filling) && !state.blocks.contains_key(&chunk)
        };
        if self.size() < TABLE_FROM_BYTES || !is_wanted(&self.lock()) {
            return;
        }
        let sums = BlockSums::of(bytes);
        let mut state = self.lock();
        if is_wanted(&state) && self.shared.remember_sums(1) {
            state.blocks.insert(chunk, sums);
        }
    }

    /// The digest of the whole content; `None` when something is missing.
    fn hash_all(&self) -> Option<Digest> {
        let (files, small) = {
            let state = self.lock();
            (state.files.clone(), state.small.clone())
        };
        if let Some(content) = small {
            return Some(Digest::of(&content));
        }
        self.catch_up(&*files?, None);
        let hashing = self.hashing.lock().unwrap_or_else(PoisonError::into_inner);
        if hashing.next < chunk_count(self.size()) {
            return None;
        }
        Some(Digest::from_bytes(*hashing.blake3.finalize().as_bytes()))
    }

    /// Whether its files lost their names: another process has cleared the store, and what is
    /// there now, if anything, is another one's.
    fn is_thrown_away(&self) -> bool {
        let Some(files) = self.lock().files.clone() else { return false };
        !self.shared.places().partial.leads_to(&Names::of(&self.key).data, &files.data)
    }

    /// Removes the files, which nobody needs any more.
    fn remove_files(&self, state: &State) {
        let Some(files) = &state.files else { return };
        let places = self.shared.places();
        let names = Names::of(&self.key);
        if places.partial.leads_to(&names.data, &files.data) {
            let _ = places.partial.unlink(&names.data);
            let _ = places.partial.unlink(&names.map);
            self.shared.release(state.present.len() * crate::object::CHUNK_BYTES);
        }
    }

    /// Gives back what is kept in memory, the files' descriptors and room that is not used.
    fn empty(&self, state: &mut State) {
        state.files = None;
        self.shared.forget_sums(std::mem::take(&mut state.blocks).len());
        if let Some(content) = state.small.take() {
            self.waits_no_more(content.len() as u64);
        }
        for (_, fragment) in state.waiting.drain() {
            self.waits_no_more(fragment.len());
        }
        let room = std::mem::take(&mut state.room_bytes);
        if room > 0 {
            self.shared.release(room);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut state =
            std::mem::take(self.state.get_mut().unwrap_or_else(PoisonError::into_inner));
        self.empty(&mut state);
        self.shared.partials.remove(self);
    }
}
