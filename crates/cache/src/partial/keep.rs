//! Moving a complete content into the store.

use std::fs::File;
use std::io;

use base::{Attr, Timestamp};

use super::files::{Names, Subject};
use super::{Inner, Unfinished};
use crate::digest::Digest;
use crate::dir_fd::DirFd;
use crate::metadata::KnownFile;
use crate::object;
use crate::object::about::{About, Origin};
use crate::object::block_sums::{table_bytes, write_table};
use crate::object::blocks::TABLE_FROM_BYTES;
use crate::store::layout::Layout;
use crate::store::quota::on_disk;

impl Inner {
    /// Makes it an object, and records that the file had this content at `fetched_at`.
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
        let small = self.state.lock().small.clone();
        match small {
            Some(content) => self.keep_small(&digest, &content)?,
            None => self.keep_large(&digest)?,
        }
        self.shared.defer_work(digest, (!racy).then_some(origin));
        Ok(known)
    }

    /// Writes the bytes as an object. It needs no other file: its name is its checksum.
    fn keep_small(&self, digest: &Digest, content: &[u8]) -> Result<(), Unfinished> {
        let shared = &self.shared;
        let (layout, names) = (shared.layout(), object::Names::of(digest));
        let dir_fd = layout.objects.make_sub(&names.dir).map_err(|error| {
            shared.write_failed(&layout, "creating a directory for contents", &error);
            Unfinished::NotKept
        })?;
        let known =
            dir_fd.stat(&names.content).is_ok_and(|stat| stat.st_size as u64 == self.size());
        if known && shared.object(digest).is_some() {
            // Another file has the same content.
            return Ok(());
        }
        let space = on_disk(content.len() as u64);
        if !shared.reserve(space) {
            return Err(Unfinished::NotKept);
        }
        layout.put(&dir_fd, &names.content, content).map_err(|error| {
            shared.release(space);
            shared.write_failed(&layout, "naming a content", &error);
            Unfinished::NotKept
        })
    }

    /// Writes the metadata, above all the checksums of the chunks, and then gives the data file its
    /// name.
    fn keep_large(&self, digest: &Digest) -> Result<(), Unfinished> {
        let shared = &self.shared;
        if self.is_kept(digest) {
            self.remove_files(&self.state.lock());
            return Ok(());
        }
        let files = self.state.lock().files.clone();
        let Some(files) = files.filter(|_| !self.lost_its_files()) else {
            return Err(Unfinished::NotKept);
        };
        let about = About::new(*digest, self.size(), self.state.lock().present.all()).encode();
        // A little more than the chunks have reserved; not worth failing for.
        shared.reserve(on_disk(about.len() as u64));
        let has_room = shared.reserve(table_bytes(self.size()));
        let (layout, names) = (shared.layout(), object::Names::of(digest));
        let named = layout.objects.make_sub(&names.dir).and_then(|dir_fd| {
            layout.put(&dir_fd, &names.about, &about)?;
            if has_room {
                self.keep_blocks(&layout, &dir_fd, digest);
            }
            self.give_name(&layout, &dir_fd, digest, &files.data)
        });
        let is_there = named.map_err(|error| {
            shared.write_failed(&layout, "naming a content", &error);
            Unfinished::NotKept
        })?;
        if is_there { Ok(()) } else { Err(Unfinished::NotKept) }
    }

    /// Moves the data file to the place of the content. A good content that another process has
    /// moved there meanwhile stays: it is recorded. Returns whether the content is there.
    fn give_name(
        &self,
        layout: &Layout,
        dir_fd: &DirFd,
        digest: &Digest,
        data: &File,
    ) -> io::Result<bool> {
        let (names, own) = (object::Names::of(digest), Names::of(&self.key));
        match layout.partial.rename_new(&own.data, dir_fd, &names.content) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if self.is_kept(digest) {
                    self.remove_files(&self.state.lock());
                    return Ok(true);
                }
                layout.partial.rename(&own.data, dir_fd, &names.content)?;
            }
            renamed => renamed?,
        }
        // Another process may have removed the file and begun another one under its name.
        if !dir_fd.leads_to(&names.content, data) {
            dir_fd.unlink(&names.content)?;
            return Ok(false);
        }
        // The map is not needed any more. Housekeeping removes it if this fails.
        let _ = layout.partial.unlink(&own.map);
        Ok(true)
    }

    /// Whether the content is in the store.
    fn is_kept(&self, digest: &Digest) -> bool {
        let shared = &self.shared;
        shared.object_bytes(digest) == Some(self.size()) && shared.object(digest).is_some()
    }

    /// Writes the block checksums. They are optional: a reader computes missing ones.
    fn keep_blocks(&self, layout: &Layout, dir_fd: &DirFd, digest: &Digest) {
        if self.size() < TABLE_FROM_BYTES {
            return;
        }
        let blocks = std::mem::take(&mut self.state.lock().blocks);
        self.shared.release_sums(blocks.len());
        if let Err(error) = write_table(layout, dir_fd, digest, self.size(), &blocks) {
            tracing::debug!("checksums of a content are not kept: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use base::{FileKind, RemotePath};
    use bytes::Bytes;

    use crate::object::CHUNK_BYTES;
    use crate::{SourceId, Store, StoreConfig, Validator};

    use super::*;

    fn open(dir: &Path) -> Store {
        let (size_bytes, free_bytes) = (Some(1 << 30), Some(0));
        Store::open(StoreConfig { size_bytes, free_bytes, ..StoreConfig::new(dir) }).unwrap()
    }

    fn attr(size: u64) -> Attr {
        let (kind, mtime) = (FileKind::Regular, Timestamp::from_secs(5));
        Attr { kind, perm: 0o644, size, uid: 0, gid: 0, atime: mtime, mtime, inode: None }
    }

    /// Two processes complete one content at the same time: the one that is later leaves that of
    /// the other in its place.
    #[test]
    fn a_content_that_another_process_has_just_kept_stays() {
        let dir = tempfile::tempdir().unwrap();
        let stores = [open(dir.path()), open(dir.path())];
        let content = Bytes::from(vec![7; 3 * CHUNK_BYTES as usize]);
        let attr = attr(content.len() as u64);
        let [first, second] = [0, 1].map(|at| {
            let path = RemotePath::parse(&[b'a' + at as u8]).unwrap();
            let fetch = stores[at].fetch(&SourceId::new(b"source"), &path, Validator::of(&attr));
            fetch.write(0, &content);
            fetch
        });
        let digest = second.0.hash_all().unwrap();
        first.finish(&attr, false).unwrap();
        let names = object::Names::of(&digest);
        let layout = stores[1].layout();
        let dir_fd = layout.objects.sub(&names.dir).unwrap();
        let inode = || dir_fd.stat(&names.content).unwrap().st_ino;
        let kept = inode();
        let data = second.0.state.lock().files.clone().unwrap();
        assert!(second.0.give_name(&layout, &dir_fd, &digest, &data.data).unwrap());
        assert_eq!(inode(), kept);
        assert!(layout.partial.names().unwrap().is_empty(), "its own files are removed");
    }

    /// A content is abandoned while it is hashed, and the next fetch creates files of its names.
    #[test]
    fn an_abandoned_content_does_not_take_the_files_of_the_next_fetch() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let (source, path) = (SourceId::new(b"source"), RemotePath::parse(b"f").unwrap());
        let content = Bytes::from(vec![7; 3 * CHUNK_BYTES as usize]);
        let attr = attr(content.len() as u64);
        let fetch = || store.fetch(&source, &path, Validator::of(&attr));
        let first = fetch();
        first.write(0, &content);
        let digest = first.0.hash_all().unwrap();
        first.abandon();
        let next = fetch();
        next.write(0, &content.slice(..CHUNK_BYTES as usize));
        assert!(first.0.keep_large(&digest).is_err());
        next.write(0, &content);
        let known = next.finish(&attr, false).unwrap();
        assert!(store.object(&known.digest).unwrap().read(0, content.len()).unwrap() == content);
        assert_eq!(store.status().damaged, 0);
    }
}
