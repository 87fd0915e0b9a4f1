//! Opening files to read them.
//!
//! Where the content is here, an open costs one round trip that asks whether it is still the one
//! of the file, or none where that need not be asked. The right to read was proven when the
//! content was fetched; it is proven anew, by an open at the server, when owner, group or
//! permission bits are others now.

use std::sync::Arc;

use base::{Access, Attr, Errno, Fh, FileKind, OpenFlags, Opened, RemotePath, Result};
use tokio::time::Instant;

use super::changes::{Change, Item, Tick};
use super::files::{Content, Parts};
use super::filling::{Filling, Leftovers, Of};
use super::names::{Asked, Told, same_but_atime};
use super::{Core, Standing, count};
use crate::{Object, SourceId, Validator};

/// How long an open waits for the remote.
enum Patience {
    /// As long as it is there, where what is known may be shown instead.
    WhileThere,
    /// As long as the remote does.
    OfTheRemote,
}

impl Core {
    pub(crate) async fn open(
        self: &Arc<Self>,
        path: &RemotePath,
        flags: OpenFlags,
    ) -> Result<Opened> {
        if flags != OpenFlags::existing(Access::Read) {
            return self.open_to_change(path, flags).await;
        }
        let standing = self.standing(path);
        let asked = self.asked();
        let told = match standing {
            Standing::Ask => None,
            Standing::Known | Standing::Only => self.told_quietly(path, standing),
        };
        if let Some(told) = told
            && let Some(opened) = self.open_known(path, standing, told).await
        {
            return opened;
        }
        if standing != Standing::Only {
            let answer = self.open_asking(path, standing, asked, told, Patience::WhileThere).await;
            if !self.falls_back(&answer) {
                return answer;
            }
            if let Some(told) = self.told_quietly(path, Standing::Only)
                && let Some(opened) = self.open_known(path, Standing::Only, told).await
            {
                return opened;
            }
        }
        self.unless_offline("the content is", path)?;
        let standing = if self.is_immutable(path) { Standing::Known } else { Standing::Ask };
        self.open_asking(path, standing, self.asked(), None, Patience::OfTheRemote).await
    }

    /// What is recorded of `path`, unless it is being changed.
    fn told_quietly(&self, path: &RemotePath, standing: Standing) -> Option<Told> {
        self.changes.quiet(path).then(|| self.told(path, standing)).flatten()
    }

    /// Opens by what was told, without asking; `None` when too little is known.
    async fn open_known(
        self: &Arc<Self>,
        path: &RemotePath,
        standing: Standing,
        told: Told,
    ) -> Option<Result<Opened>> {
        let attr = match told {
            Told::Present(attr) => attr,
            Told::Absent => return Some(Err(Errno::ENOENT)),
        };
        if let Some(error) = not_regular(&attr) {
            return Some(Err(error));
        }
        if let Some(object) = self.here(path, &attr, standing) {
            return self.open_here(path, attr, object).await.map(Ok);
        }
        if standing == Standing::Known {
            return match self.named_by_digest(path, &attr, standing).await {
                Some(object) => self.open_here(path, attr, object).await.map(Ok),
                None => None,
            };
        }
        self.open_part(path, attr)
    }

    /// The content of the file, which has `attr`, if it is here.
    pub(crate) fn here(
        &self,
        path: &RemotePath,
        attr: &Attr,
        standing: Standing,
    ) -> Option<Object> {
        if self.is_linked(path) {
            return None;
        }
        self.content_sources(path, standing).into_iter().find_map(|source| {
            let known = self.store.file(source, path)?;
            // A racy content was fetched where nothing changes, or there is nothing better.
            let trusted = !known.racy || standing != Standing::Ask;
            let same = known.validator() == Validator::of(attr) && same_rights(&known.attr, attr);
            if !trusted || !same {
                return None;
            }
            self.store.object(&known.digest)
        })
    }

    /// Opens a content that is here. `None` if it turns out to be damaged.
    async fn open_here(&self, path: &RemotePath, attr: Attr, object: Object) -> Option<Opened> {
        let content = self.proven(object).await?;
        count(&self.counters.hits, 1);
        Some(self.add(path, attr, None, content))
    }

    /// Verifies all of the content, where it may be given away.
    async fn proven(&self, object: Object) -> Option<Content> {
        if !self.config.backing {
            return Some(Content::Whole(object));
        }
        let verifying = object.clone();
        let verified = tokio::task::spawn_blocking(move || verifying.verify()).await;
        match verified {
            Ok(Ok(())) => Some(Content::Whole(object)),
            _ => {
                count(&self.counters.damaged, 1);
                None
            }
        }
    }

    fn add(&self, path: &RemotePath, attr: Attr, fh: Option<Fh>, content: Content) -> Opened {
        let (path, access) = (path.clone(), Access::Read);
        let (change, offline) = (None, self.config.offline);
        let parts = Parts { path, attr, access, fh, content, change, offline };
        let (fh, file) = self.files.add(parts);
        if self.config.backing && matches!(file.content(), Content::Whole(_)) {
            file.prove();
        }
        Opened { fh, attr }
    }

    /// Opens a file of which only a part is here, where no more can be had.
    fn open_part(&self, path: &RemotePath, attr: Attr) -> Option<Result<Opened>> {
        let validator = Validator::of(&attr);
        let is_usable = |source: &SourceId| {
            let never_changes = self.config.offline || self.is_immutable(path);
            never_changes || self.store.is_own(source, path, validator)
        };
        let has_some = |source: &&SourceId| {
            is_usable(source) && self.store.present_bytes(source, path, validator) > 0
        };
        let source = self.sources(path, Standing::Only).into_iter().find(has_some)?;
        let filling = self.filling_under(source, path, validator, self.changes.tick(), true);
        Some(Ok(self.add(path, attr, None, Content::Part(filling))))
    }

    async fn open_asking(
        self: &Arc<Self>,
        path: &RemotePath,
        standing: Standing,
        asked: Asked,
        told: Option<Told>,
        patience: Patience,
    ) -> Result<Opened> {
        // Each look into the store costs as much as a system call or ten. What was told has just
        // been compared with what is here.
        let mut may_be_here = told.is_none();
        if standing == Standing::Ask && self.changes.quiet(path) {
            may_be_here = self.store.file(&self.config.source, path).is_some();
            let worth = may_be_here || self.config.digest_source.is_some();
            if worth && let Some(opened) = self.open_validated(path, asked).await {
                return Ok(opened);
            }
        }
        count(&self.counters.misses, 1);
        let flags = OpenFlags::existing(Access::Read);
        let opening = self.inner.open(path, flags);
        let opened = match patience {
            Patience::WhileThere => self.asking(opening).await?,
            Patience::OfTheRemote => opening.await?,
        };
        // In the table at once, so that it is closed whatever comes.
        let told = self.told_before(
            path,
            standing,
            told.filter(|_| self.changes.untouched(path, asked.tick)),
        );
        let recorded_with_content = standing == Standing::Ask;
        let standing = Some(standing).filter(|_| may_be_here);
        let content = self.content_of_opened(path, &opened.attr, asked, standing);
        let parts = Parts {
            path: path.clone(),
            attr: opened.attr,
            access: Access::Read,
            fh: Some(opened.fh),
            content,
            change: None,
            offline: false,
        };
        let (fh, file) = self.files.add(parts);
        if told.is_some_and(|told| Validator::of(&told) != Validator::of(&opened.attr)) {
            drop(self.files.remove(fh));
            tracing::warn!(
                "{path}: changed on the server, though it is mounted as immutable: ESTALE; \
                 'sshoal cache clear' forgets what it was"
            );
            return Err(Errno::ESTALE);
        }
        match told {
            _ if recorded_with_content => self.note_seen(path, &opened.attr, asked),
            Some(told) if same_but_atime(&told, &opened.attr) => {
                self.note_seen(path, &opened.attr, asked);
            }
            _ => self.note_attr(path, &opened.attr, asked),
        }
        if let Content::Part(filling) = file.content() {
            match opened.attr.size {
                0 => self.filler.is_empty(&file, &filling),
                _ => self.unless_touched(&file, path, asked),
            }
        }
        Ok(Opened { fh, attr: opened.attr })
    }

    /// What was told for ever of a file; `before` if that is known already.
    fn told_before(
        &self,
        path: &RemotePath,
        standing: Standing,
        before: Option<Told>,
    ) -> Option<Attr> {
        let look = || (standing == Standing::Known).then(|| self.told(path, standing)).flatten();
        before.or_else(look)?.into_result().ok()
    }

    /// A change may have begun while the file was being opened, which did not see it in the table.
    fn unless_touched(&self, file: &super::files::File, path: &RemotePath, asked: Asked) {
        if !self.changes.untouched(path, asked.tick) {
            file.read_from_server();
        }
    }

    /// Opens what is here once the remote has said that it is what the file has.
    async fn open_validated(self: &Arc<Self>, path: &RemotePath, asked: Asked) -> Option<Opened> {
        let attr = self.validating(path).await?;
        if !self.changes.untouched(path, asked.tick) || not_regular(&attr).is_some() {
            return None;
        }
        let mut here = self.here(path, &attr, Standing::Ask);
        if here.is_none() {
            here = self.named_by_digest(path, &attr, Standing::Ask).await;
        }
        let content = self.proven(here?).await?;
        let opened = self.add(path, attr, None, content);
        if !self.changes.untouched(path, asked.tick) {
            // A change that began meanwhile has not seen it.
            drop(self.files.remove(opened.fh));
            return None;
        }
        count(&self.counters.hits, 1);
        Some(opened)
    }

    /// The attributes of the file, if it is worth to ask for them before it is opened: if its
    /// content seems to be here.
    async fn validating(self: &Arc<Self>, path: &RemotePath) -> Option<Attr> {
        let known = self.both_sources()[0];
        let known = self.store.file(known, path).filter(|known| !known.racy);
        let by_digest = self.config.digest_source.is_some() && known.is_none();
        if by_digest {
            self.prepare_digests(path).await;
        }
        let here = known.is_some_and(|known| self.store.object_bytes(&known.digest).is_some());
        if self.is_linked(path) || (!here && !by_digest) {
            return None;
        }
        // A digest has to be told between two answers.
        if !by_digest && let Some(attr) = self.seen.lately(path, Instant::now()) {
            return Some(attr);
        }
        if known.is_some_and(|known| self.is_lively(&known.attr)) {
            return None;
        }
        // What is wrong with it, an open tells.
        self.ask_attr(path).await.ok()
    }

    /// Whether the file may well change while it is open.
    fn is_lively(&self, attr: &Attr) -> bool {
        let age = base::Timestamp::now().secs.saturating_sub(attr.mtime.secs);
        age < i64::try_from(self.config.lively.as_secs()).unwrap_or(i64::MAX)
    }

    /// Where the bytes of a file come from that was opened at the server. Without a standing
    /// nothing of it is here as a whole.
    fn content_of_opened(
        &self,
        path: &RemotePath,
        attr: &Attr,
        asked: Asked,
        standing: Option<Standing>,
    ) -> Content {
        if !self.changes.untouched(path, asked.tick) || not_regular(attr).is_some() {
            return Content::Server;
        }
        if let Some(object) = standing.and_then(|standing| self.here(path, attr, standing)) {
            return Content::Whole(object);
        }
        self.filling(path, attr, asked.tick).map_or(Content::Server, Content::Part)
    }

    /// What a content with this validator is put into while it is read; `None` where it is not
    /// kept.
    pub(crate) fn filling(
        &self,
        path: &RemotePath,
        attr: &Attr,
        tick: Tick,
    ) -> Option<Arc<Filling>> {
        let source = match self.seen.is_settled(path, attr) {
            true => self.both_sources()[0],
            false if self.is_immutable(path) => self.source(path),
            false => return None,
        };
        if self.is_linked(path) {
            return None;
        }
        let racy = source != self.both_sources()[0];
        Some(self.filling_under(source, path, Validator::of(attr), tick, racy))
    }

    fn filling_under(
        &self,
        source: &SourceId,
        path: &RemotePath,
        validator: Validator,
        tick: Tick,
        racy: bool,
    ) -> Arc<Filling> {
        let changes = self.changes.clone();
        let never_changes = self.config.offline || self.is_immutable(path);
        let leftovers = if never_changes { Leftovers::Used } else { Leftovers::Dropped };
        let of = Of { source: *source, path: path.clone(), tick, changes };
        Filling::new(&self.store, of, validator, racy, leftovers)
    }

    /// Opens to write, to make or to cut a file.
    async fn open_to_change(&self, path: &RemotePath, flags: OpenFlags) -> Result<Opened> {
        self.may_change()?;
        let mut items = vec![Item::Tree(path.clone())];
        if flags.create != base::Create::Never {
            items.extend(path.parent().map(Item::Names));
        }
        let change = self.begin(items);
        if flags.access.writes() || flags.truncate {
            self.files.let_go(path).await;
        }
        let opened = match self.inner.open(path, flags).await {
            Ok(opened) => opened,
            Err(error) => {
                self.end(change);
                return Err(error);
            }
        };
        let change = self.kept_if(flags.access.writes(), change);
        let parts = Parts {
            path: path.clone(),
            attr: opened.attr,
            access: flags.access,
            fh: Some(opened.fh),
            content: Content::Server,
            change,
            offline: false,
        };
        let (fh, _) = self.files.add(parts);
        Ok(Opened { fh, attr: opened.attr })
    }

    fn kept_if(&self, kept: bool, change: Change) -> Option<Change> {
        if kept {
            return Some(change);
        }
        self.end(change);
        None
    }

    pub(crate) async fn finish(&self, fh: Fh) -> Result<()> {
        let (file, change) = self.files.remove(fh).ok_or(Errno::EBADF)?;
        self.filler.closed(&file);
        // Only what is written is the server's to answer for.
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
        self.filler.closed(&file);
        if let Some(change) = change {
            self.end(change);
        }
    }
}

/// Why something with these attributes cannot be opened as a regular file.
pub(crate) fn not_regular(attr: &Attr) -> Option<Errno> {
    match attr.kind {
        FileKind::Regular => None,
        FileKind::Directory => Some(Errno::EISDIR),
        FileKind::Symlink => Some(Errno::ELOOP),
        _ => Some(Errno::ENXIO),
    }
}

/// Whether who may read the one may read the other.
fn same_rights(one: &Attr, other: &Attr) -> bool {
    (one.perm, one.uid, one.gid) == (other.perm, other.uid, other.gid)
}
