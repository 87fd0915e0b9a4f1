//! A content that has become whole gets its name in the store.

use std::io;

use base::{Attr, Timestamp};

use super::files::{Names, Subject};
use super::{Inner, Unfinished};
use crate::digest::{Digest, Digests};
use crate::folder::Folder;
use crate::index::record::Record;
use crate::known::KnownFile;
use crate::object;
use crate::object::about::{About, Origin};
use crate::store::places::Places;
use crate::store::room::on_disk;
use crate::store::shared::Counters;

impl Inner {
    pub(super) fn make_object(&self, attr: &Attr, racy: bool) -> Result<KnownFile, Unfinished> {
        let (digest, digests) = self.hash_all().ok_or(Unfinished::Missing)?;
        let fetched_at = Timestamp::now();
        let known = KnownFile { attr: *attr, digest, racy, fetched_at };
        let Subject { source, path, .. } = &self.subject;
        let origin = Origin { source: *source, path: path.clone(), attr: *attr, fetched_at };
        self.keep(digest, (!racy).then_some(origin), digests)?;
        self.shared.record_name(source, path, |name| Record::File(name, known));
        Ok(known)
    }

    /// Makes the bytes an object.
    fn keep(
        &self,
        digest: Digest,
        origin: Option<Origin>,
        digests: Option<Digests>,
    ) -> Result<(), Unfinished> {
        let shared = &self.shared;
        if shared.object_bytes(&digest) == Some(self.size())
            && shared.open_object(&digest).is_some()
        {
            // Another file has the same content.
            shared.add_to_about(&digest, origin, digests);
            self.remove_files(&self.lock());
            return Ok(());
        }
        let (small, sums) = {
            let state = self.lock();
            (state.small.clone(), state.sums.clone())
        };
        let mut about = About::new(digest, self.size(), sums);
        about.digests = digests;
        if let Some(origin) = origin {
            about.add(origin);
        }
        match small {
            Some(content) => self.keep_small(&about, &content),
            None => self.keep_large(&about),
        }
    }

    fn keep_small(&self, about: &About, content: &[u8]) -> Result<(), Unfinished> {
        let shared = &self.shared;
        let room = on_disk(content.len() as u64) + on_disk(about.encode().len() as u64);
        if !shared.reserve(room) {
            return Err(Unfinished::NotKept);
        }
        Counters::add(&shared.counters.written_bytes, content.len() as u64);
        self.name(about, |places, folder, names| places.put(folder, &names.content, content))
            .inspect_err(|_| shared.release(room))
    }

    fn keep_large(&self, about: &About) -> Result<(), Unfinished> {
        // A little more than what the chunks have reserved; it is not worth to fail for.
        self.shared.reserve(on_disk(about.encode().len() as u64));
        let own = Names::of(&self.key);
        self.name(about, |places, folder, names| {
            places.partial.rename(&own.data, folder, &names.content)?;
            places.partial.unlink(&own.map)
        })
    }

    /// Writes what is known about a content, and then lets `content` give it its name.
    fn name(
        &self,
        about: &About,
        content: impl FnOnce(&Places, &Folder, &object::Names) -> io::Result<()>,
    ) -> Result<(), Unfinished> {
        let shared = &self.shared;
        let places = shared.places();
        let names = object::Names::of(&about.digest);
        let named = places.objects.make_sub(&names.folder).and_then(|folder| {
            if !shared.put_about(&places, &folder, &names, about) {
                return Err(io::ErrorKind::Other.into());
            }
            content(&places, &folder, &names)
        });
        named.map_err(|error| {
            // What `put_about` could not write it has told by itself.
            if error.kind() != io::ErrorKind::Other {
                shared.write_failed(&places, "naming a content", &error);
            }
            Unfinished::NotKept
        })
    }
}
