//! A content that has become whole gets its name in the store.

use std::io;

use base::{Attr, Timestamp};

use super::files::{Names, Subject};
use super::{Inner, Unfinished};
use crate::digest::Digest;
use crate::folder::Folder;
use crate::known::KnownFile;
use crate::object;
use crate::object::about::{About, Origin};
use crate::object::blocks::TABLE_FROM_BYTES;
use crate::object::finer::{table_room, write_table};
use crate::store::places::Places;
use crate::store::room::on_disk;
use crate::store::shared::Counters;

impl Inner {
    /// The file was seen to have this content at `fetched_at`.
    pub(super) fn make_object(
        &self,
        attr: &Attr,
        racy: bool,
        fetched_at: Timestamp,
    ) -> Result<KnownFile, Unfinished> {
        let digest = self.hash_all().ok_or(Unfinished::Missing)?;
        let known = KnownFile { attr: *attr, digest, racy, fetched_at };
        let Subject { source, path, .. } = &self.subject;
        let origin = Origin { source: *source, path: path.clone(), attr: *attr, fetched_at };
        let small = self.lock().small.clone();
        match small {
            Some(content) => self.keep_small(&digest, &content)?,
            None => self.keep_large(&digest)?,
        }
        self.shared.note_later(digest, (!racy).then_some(origin));
        Ok(known)
    }

    /// Makes the bytes an object. Nothing stands beside it: its name is its checksum.
    fn keep_small(&self, digest: &Digest, content: &[u8]) -> Result<(), Unfinished> {
        let shared = &self.shared;
        let (places, names) = (shared.places(), object::Names::of(digest));
        let folder = places.objects.make_sub(&names.folder).map_err(|error| {
            shared.write_failed(&places, "making a directory of contents", &error);
            Unfinished::NotKept
        })?;
        let known =
            folder.stat(&names.content).is_ok_and(|stat| stat.st_size as u64 == self.size());
        if known && shared.open_object(digest).is_some() {
            // Another file has the same content.
            return Ok(());
        }
        let room = on_disk(content.len() as u64);
        if !shared.reserve(room) {
            return Err(Unfinished::NotKept);
        }
        Counters::add(&shared.counters.written_bytes, content.len() as u64);
        places.put(&folder, &names.content, content).map_err(|error| {
            shared.release(room);
            shared.write_failed(&places, "naming a content", &error);
            Unfinished::NotKept
        })
    }

    /// What is known about it, the checksums of its chunks above all, is written before it gets
    /// its name.
    fn keep_large(&self, digest: &Digest) -> Result<(), Unfinished> {
        let shared = &self.shared;
        if shared.object_bytes(digest) == Some(self.size()) && shared.open_object(digest).is_some()
        {
            self.remove_files(&self.lock());
            return Ok(());
        }
        // Where it was thrown away, another process may have begun anew under the same name.
        if self.is_thrown_away() {
            return Err(Unfinished::NotKept);
        }
        let about = About::new(*digest, self.size(), self.lock().sums.clone());
        // A little more than what the chunks have reserved; it is not worth to fail for.
        shared.reserve(on_disk(about.encode().len() as u64));
        let has_room = shared.reserve(table_room(self.size()));
        let (places, names, own) =
            (shared.places(), object::Names::of(digest), Names::of(&self.key));
        let named = places.objects.make_sub(&names.folder).and_then(|folder| {
            if !shared.put_about(&places, &folder, &names, &about) {
                return Err(io::ErrorKind::Other.into());
            }
            if has_room {
                self.keep_blocks(&places, &folder, digest);
            }
            places.partial.rename(&own.data, &folder, &names.content)?;
            places.partial.unlink(&own.map)
        });
        named.map_err(|error| {
            // What `put_about` could not write it has told by itself.
            if error.kind() != io::ErrorKind::Other {
                shared.write_failed(&places, "naming a content", &error);
            }
            Unfinished::NotKept
        })
    }

    /// The checksums of its blocks. It can do without: who reads it makes them.
    fn keep_blocks(&self, places: &Places, folder: &Folder, digest: &Digest) {
        if self.size() < TABLE_FROM_BYTES {
            return;
        }
        let blocks = std::mem::take(&mut self.lock().blocks);
        self.shared.forget_sums(blocks.len());
        if let Err(error) = write_table(places, folder, digest, self.size(), &blocks) {
            tracing::debug!("checksums of a content are not kept: {error}");
        }
    }
}
