//! Opening files for reading.
//!
//! If the content is cached, an open costs one round trip to revalidate it, or none where that is
//! not needed. The right to read was proven when the content was fetched; it is proven again, by an
//! open at the server, when owner, group or permission bits have changed, or a change made here may
//! have removed a right to a directory above.

use std::sync::Arc;

use base::{Access, Attr, Data, Errno, Fh, FileKind, OpenFlags, Opened, RemotePath, Result};

use super::changes::Scope;
use super::files::Content;
use super::names::RequestStamp;
use super::write_behind::{Fetch, FetchTarget};
use super::{Core, ReadPolicy, RemoteWait};
use crate::metadata::same_but_atime;
use crate::partial::Resume;
use crate::partial::files::Subject;
use crate::{KnownFile, Object, SourceId, Validator};

impl Core {
    pub(crate) async fn open(
        self: &Arc<Self>,
        path: &RemotePath,
        flags: OpenFlags,
    ) -> Result<Opened> {
        if flags != OpenFlags::existing(Access::Read) {
            return self.open_to_change(path, flags).await;
        }
        let policy = self.read_policy(path);
        let stamp = self.stamp();
        let known = match policy {
            ReadPolicy::Server => None,
            ReadPolicy::CacheFirst | ReadPolicy::CacheOnly => self.known_if_unchanged(path, policy),
        };
        if let Some(known) = known
            && let Some(opened) = self.open_known(path, policy, known, stamp).await
        {
            return opened;
        }
        if policy != ReadPolicy::CacheOnly {
            let answer =
                self.open_at_server(path, policy, stamp, known, RemoteWait::WhileConnected).await;
            if !self.falls_back(&answer) {
                return answer;
            }
            let (policy, stamp) = (ReadPolicy::CacheOnly, self.stamp());
            if let Some(known) = self.known_if_unchanged(path, policy)
                && let Some(opened) = self.open_known(path, policy, known, stamp).await
            {
                return opened;
            }
        }
        self.unless_offline("the content is", path)?;
        let policy =
            if self.is_immutable(path) { ReadPolicy::CacheFirst } else { ReadPolicy::Server };
        self.open_at_server(path, policy, self.stamp(), None, RemoteWait::Unbounded).await
    }

    /// The recorded state of `path`, unless a change of it is in flight.
    fn known_if_unchanged(&self, path: &RemotePath, policy: ReadPolicy) -> Option<Result<Attr>> {
        self.changes.is_stable(path).then(|| self.known_name(path, policy)).flatten()
    }

    /// Opens by the recorded state, without a request; `None` when too little is known.
    async fn open_known(
        self: &Arc<Self>,
        path: &RemotePath,
        policy: ReadPolicy,
        known: Result<Attr>,
        stamp: RequestStamp,
    ) -> Option<Result<Opened>> {
        let attr = match known {
            Ok(attr) => attr,
            Err(error) => return Some(Err(error)),
        };
        if let Some(error) = not_regular(&attr) {
            return Some(Err(error));
        }
        let mut object = self.cached_object(path, &attr, policy);
        if object.is_none() && policy == ReadPolicy::CacheOnly {
            object = self.read_by_another_name(path, &attr);
        }
        if object.is_none() && policy == ReadPolicy::CacheFirst {
            object = self.named_by_digest(path, &attr, policy, stamp).await;
        }
        match object {
            Some(object) => self.open_cached(path, attr, object, stamp).await.map(Ok),
            None if policy == ReadPolicy::CacheFirst => None,
            None => self.open_part(path, attr),
        }
    }

    /// The cached content of the file, which has the attributes `attr`.
    pub(crate) fn cached_object(
        &self,
        path: &RemotePath,
        attr: &Attr,
        policy: ReadPolicy,
    ) -> Option<Object> {
        self.valid_contents(path, attr, policy)
            .filter(|known| same_rights(&known.attr, attr))
            .find_map(|known| self.store.object(&known.digest))
    }

    /// The content of a file with several names that was read by another one. An application's open
    /// may come with any of them.
    fn read_by_another_name(&self, path: &RemotePath, attr: &Attr) -> Option<Object> {
        let id = attr.inode.filter(|inode| inode.links > 1)?.id?;
        let sources = self.sources(path, ReadPolicy::CacheOnly).into_iter();
        let mut names = sources.flat_map(|source| self.store.names_with_content(source, id));
        names.find_map(|name| self.cached_object(&name, attr, ReadPolicy::CacheOnly))
    }

    /// The recorded contents of the file that are valid for its attributes `attr`, the best first.
    pub(crate) fn valid_contents(
        &self,
        path: &RemotePath,
        attr: &Attr,
        policy: ReadPolicy,
    ) -> impl Iterator<Item = KnownFile> {
        let sources = match self.linked.contains(path) {
            true => Vec::new(),
            false => self.content_sources(path, policy),
        };
        let known = sources.into_iter().filter_map(|source| self.store.file(source, path));
        let reported = Validator::of(attr);
        known.filter(move |known| {
            let valid = match policy {
                ReadPolicy::Server => !known.racy && known.validator().is_current(&reported),
                // The tree never changes, or there is nothing better.
                _ => known.validator().has_size_and_mtime_of(&reported),
            };
            valid && self.changes.is_current_file(path, known.fetched_at)
        })
    }

    /// Opens a cached content. `None` if it turns out to be damaged, or the file was changed here
    /// since `stamp`.
    async fn open_cached(
        &self,
        path: &RemotePath,
        attr: Attr,
        object: Object,
        stamp: RequestStamp,
    ) -> Option<Opened> {
        let content = self.verified_content(object).await?;
        let opened = self.add(path, attr, content);
        if !self.changes.is_unchanged(path, stamp.generation) {
            // A change that began meanwhile has not seen the file in the table.
            drop(self.files.remove(opened.fh));
            return None;
        }
        self.counters.add(|it| it.hits += 1);
        Some(opened)
    }

    /// Verifies all of the content if it may be used as a backing file.
    async fn verified_content(&self, object: Object) -> Option<Content> {
        if !self.config.backing {
            return Some(Content::Whole(object));
        }
        let verifying = object.clone();
        let verified = tokio::task::spawn_blocking(move || verifying.verify()).await;
        matches!(verified, Ok(Ok(()))).then_some(Content::Whole(object))
    }

    fn add(&self, path: &RemotePath, attr: Attr, content: Content) -> Opened {
        let (fh, _) = self.files.add(path, attr, Access::Read, None, content, None);
        Opened { fh, attr }
    }

    /// Opens a file of which only a part is cached, where no more can be fetched.
    fn open_part(&self, path: &RemotePath, attr: Attr) -> Option<Result<Opened>> {
        let validator = self.validator_of_part(path, &attr);
        let is_usable = |source: &SourceId| {
            let never_changes = self.config.offline || self.is_immutable(path);
            never_changes || self.store.has_begun(&Subject::new(source, path, validator))
        };
        // Of an empty file nothing is missing.
        let has_some = |source: &&SourceId| {
            let is_begun = || self.store.present_bytes(source, path, validator) > 0;
            is_usable(source) && (attr.size == 0 || is_begun())
        };
        let source = self.sources(path, ReadPolicy::CacheOnly).into_iter().find(has_some)?;
        let fetch = self.fetch_under(source, path, validator, self.stamp(), true);
        Some(Ok(self.add(path, attr, Content::Part(fetch))))
    }

    async fn open_at_server(
        self: &Arc<Self>,
        path: &RemotePath,
        policy: ReadPolicy,
        stamp: RequestStamp,
        known: Option<Result<Attr>>,
        wait: RemoteWait,
    ) -> Result<Opened> {
        // A look-up in the store costs as much as one to ten system calls. A recorded state has
        // just been compared with the cache.
        let mut may_be_cached = known.is_none();
        if policy == ReadPolicy::Server && self.changes.is_stable(path) {
            may_be_cached = self.store.file(&self.config.source, path).is_some();
            let worth = may_be_cached || self.config.digest_source.is_some();
            if worth && let Some(opened) = self.open_validated(path, stamp).await {
                return Ok(opened);
            }
        }
        if policy == ReadPolicy::CacheFirst && known.is_none() {
            self.record_directories_above(path).await;
        }
        let flags = OpenFlags::existing(Access::Read);
        let opened = self.within(wait, self.inner.open(path, flags)).await;
        let opened = opened.inspect_err(|_| self.counters.add(|it| it.misses += 1))?;
        if policy == ReadPolicy::Server {
            self.files.recognize(path, &opened.attr);
        }
        // In the table at once, so that it is closed in any case.
        // The attributes recorded for an immutable tree.
        let known = match known.filter(|_| self.changes.is_unchanged(path, stamp.generation)) {
            None if policy == ReadPolicy::CacheFirst => self.known_name(path, policy),
            known => known,
        };
        let known = known.and_then(Result::ok);
        let recorded_with_content = policy == ReadPolicy::Server;
        let policy = Some(policy).filter(|_| may_be_cached);
        let content = self.content_of_opened(path, &opened.attr, stamp, policy);
        let is_cached = matches!(content, Content::Whole(_));
        self.counters.add(|it| if is_cached { it.hits += 1 } else { it.misses += 1 });
        let (fh, attr) = (Some(opened.fh), opened.attr);
        let (fh, file) = self.files.add(path, attr, Access::Read, fh, content, None);
        let reported = Validator::of(&opened.attr);
        if known.is_some_and(|known| !Validator::of(&known).has_size_and_mtime_of(&reported)) {
            drop(self.files.remove(fh));
            tracing::warn!(
                "{path}: changed on the server, though it is mounted as immutable: ESTALE; \
                 'sshoal cache clear' removes the old content"
            );
            return Err(Errno::ESTALE);
        }
        match known {
            _ if recorded_with_content => self.note_seen(path, &opened.attr, stamp),
            Some(known) if same_but_atime(&known, &opened.attr) => {
                self.note_seen(path, &opened.attr, stamp);
            }
            _ => self.note_attr(path, &opened.attr, stamp),
        }
        if let Content::Part(fetch) = file.content() {
            match opened.attr.size {
                // An empty content is complete.
                0 => self.write_behind.add_read(&file, &fetch, 0, 0, &Data::new()),
                // A change may have begun before the file was in the table.
                _ if !self.changes.is_unchanged(path, stamp.generation) => file.read_from_server(),
                _ => {}
            }
        }
        Ok(Opened { fh, attr: opened.attr })
    }

    /// Opens the cached content of a file whose present attributes are `attr`.
    pub(crate) async fn open_stored(&self, path: &RemotePath, attr: &Attr) -> Option<Opened> {
        let stamp = self.stamp();
        if !self.changes.is_stable(path) || self.changed_recently(attr) {
            return None;
        }
        self.files.recognize(path, attr);
        let object = self.cached_object(path, attr, ReadPolicy::Server)?;
        self.open_cached(path, *attr, object, stamp).await
    }

    /// Opens the cached content once the remote has confirmed that the file has it.
    async fn open_validated(
        self: &Arc<Self>,
        path: &RemotePath,
        stamp: RequestStamp,
    ) -> Option<Opened> {
        let attr = self.attr_for_validation(path).await?;
        if !self.changes.is_unchanged(path, stamp.generation) || not_regular(&attr).is_some() {
            return None;
        }
        let mut object = self.cached_object(path, &attr, ReadPolicy::Server);
        if object.is_none() {
            object = self.named_by_digest(path, &attr, ReadPolicy::Server, stamp).await;
        }
        if object.is_none() {
            object = self.confirmed_by_digest(path, &attr, stamp).await;
        }
        self.open_cached(path, attr, object?, stamp).await
    }

    /// The attributes of the file, if requesting them before an open pays: if its content seems to
    /// be cached.
    async fn attr_for_validation(self: &Arc<Self>, path: &RemotePath) -> Option<Attr> {
        let known = self.both_sources()[0];
        let known = self.store.file(known, path).filter(|known| !known.racy);
        let by_digest = self.config.digest_source.is_some() && known.is_none();
        if by_digest {
            self.prepare_digests(path).await;
        }
        let cached = known.is_some_and(|known| self.store.object_bytes(&known.digest).is_some());
        if self.linked.contains(path) || (!cached && !by_digest) {
            return None;
        }
        if known.is_some_and(|known| self.changed_recently(&known.attr)) {
            return None;
        }
        // Any error will be that of the open.
        self.request_attr(path).await.ok()
    }

    /// Whether the file may well change while it is open.
    fn changed_recently(&self, attr: &Attr) -> bool {
        let age = base::Timestamp::now().secs.saturating_sub(attr.mtime.secs);
        age < i64::try_from(self.config.recent_change.as_secs()).unwrap_or(i64::MAX)
    }

    /// The source of the bytes of a file that was opened at the server. Without a policy the whole
    /// content is not cached.
    fn content_of_opened(
        &self,
        path: &RemotePath,
        attr: &Attr,
        stamp: RequestStamp,
        policy: Option<ReadPolicy>,
    ) -> Content {
        if !self.changes.is_unchanged(path, stamp.generation) || not_regular(attr).is_some() {
            return Content::Server;
        }
        if let Some(object) = policy.and_then(|policy| self.cached_object(path, attr, policy)) {
            return Content::Whole(object);
        }
        self.fetch_for(path, attr, stamp).map_or(Content::Server, Content::Part)
    }

    /// The fetch into which a content with this validator is written while it is read; `None` where
    /// it is not kept.
    pub(crate) fn fetch_for(
        &self,
        path: &RemotePath,
        attr: &Attr,
        stamp: RequestStamp,
    ) -> Option<Arc<Fetch>> {
        let source = match self.validators.is_settled(path, attr) {
            true => self.both_sources()[0],
            false if self.is_immutable(path) => self.source(path),
            false => return None,
        };
        if self.linked.contains(path) {
            return None;
        }
        let racy = source != self.both_sources()[0];
        Some(self.fetch_under(source, path, self.validator_of_part(path, attr), stamp, racy))
    }

    /// The validator by which a partial content is found.
    pub(crate) fn validator_of_part(&self, path: &RemotePath, attr: &Attr) -> Validator {
        let validator = Validator::of(attr);
        let change = validator.change.filter(|_| !self.is_immutable(path));
        Validator { change, ..validator }
    }

    fn fetch_under(
        &self,
        source: &SourceId,
        path: &RemotePath,
        validator: Validator,
        stamp: RequestStamp,
        racy: bool,
    ) -> Arc<Fetch> {
        // Size and mtime alone do not prove that another mount has fetched a part of the same
        // content.
        let is_certain = validator.change.is_some() || self.is_immutable(path);
        let which = match self.config.offline || is_certain {
            true => Resume::Any,
            false => Resume::Own,
        };
        let partial = self.store.partial(Subject::new(source, path, validator), which);
        let (source, path, changes) = (*source, path.clone(), self.changes.clone());
        Fetch::new(partial, FetchTarget { source, path, stamp, changes }, racy)
    }

    /// Opens for writing, creating or truncating.
    async fn open_to_change(&self, path: &RemotePath, flags: OpenFlags) -> Result<Opened> {
        self.may_change()?;
        let mut scopes = vec![Scope::Subtree(path.clone())];
        if flags.create != base::Create::Never {
            scopes.extend(path.parent().map(Scope::Names));
        }
        let change = self.begin(scopes);
        if flags.access.writes() || flags.truncate {
            self.files.switch_to_server(path).await;
        }
        let opened = match self.inner.open(path, flags).await {
            Ok(opened) => opened,
            Err(error) => {
                self.end(change);
                return Err(error);
            }
        };
        let change = match flags.access.writes() {
            true => Some(change),
            false => {
                self.end(change);
                None
            }
        };
        let (access, fh, attr) = (flags.access, Some(opened.fh), opened.attr);
        let (fh, _) = self.files.add(path, attr, access, fh, Content::Server, change);
        if access.writes() || flags.truncate {
            self.files.read_names_from_server(&attr);
        }
        Ok(Opened { fh, attr: opened.attr })
    }

    pub(crate) async fn finish(&self, fh: Fh) -> Result<()> {
        let (file, change) = self.files.remove(fh).ok_or(Errno::EBADF)?;
        self.write_behind.flush(&file);
        // The server has to answer only for a file that was open for writing.
        let result = match file.access.writes() {
            true => file.finish().await,
            false => Ok(()),
        };
        if let Some(change) = change {
            self.end(change);
        }
        result
    }

    pub(crate) fn close(&self, fh: Fh) {
        let Some((file, change)) = self.files.remove(fh) else { return };
        self.write_behind.flush(&file);
        if let Some(change) = change {
            self.end(change);
        }
    }
}

/// The error of opening an entry with these attributes as a regular file.
pub(crate) fn not_regular(attr: &Attr) -> Option<Errno> {
    match attr.kind {
        FileKind::Regular => None,
        FileKind::Directory => Some(Errno::EISDIR),
        FileKind::Symlink => Some(Errno::ELOOP),
        _ => Some(Errno::ENXIO),
    }
}

/// Whether the same users may read both.
fn same_rights(one: &Attr, other: &Attr) -> bool {
    (one.perm, one.uid, one.gid) == (other.perm, other.uid, other.gid)
}
