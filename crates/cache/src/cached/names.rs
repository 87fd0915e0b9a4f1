//! Attributes, names and link targets: asked, recorded, and known.

use base::{Attr, Errno, RemotePath, Result, Timestamp};
use tokio::time::Instant;

use super::changes::Tick;
use super::{Core, Standing};
use crate::{KnownAttr, KnownLink, SourceId};

/// What is known of a name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Told {
    Present(Attr),
    /// A complete listing leaves it out.
    Absent,
}

/// When a question was asked.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) tick: Tick,
    pub(crate) at: Instant,
}

impl Core {
    pub(crate) fn asked(&self) -> Asked {
        Asked { tick: self.changes.tick(), at: Instant::now() }
    }

    pub(crate) async fn lstat(&self, path: &RemotePath) -> Result<Attr> {
        let standing = self.standing(path);
        if standing != Standing::Ask
            && let Some(told) = self.told(path, standing)
        {
            return told.into_result();
        }
        if standing != Standing::Only {
            let answer = self.ask_attr(path).await;
            if !self.falls_back(&answer) {
                return answer;
            }
            if let Some(told) = self.told(path, Standing::Only) {
                return told.into_result();
            }
        }
        self.unless_offline("the attributes are", path)?;
        self.noting_attr(path, self.inner.lstat(path)).await
    }

    /// Asks the remote, and records what it says.
    pub(crate) async fn ask_attr(&self, path: &RemotePath) -> Result<Attr> {
        self.noting_attr(path, self.asking(self.inner.lstat(path))).await
    }

    /// Records the attributes of `path` that `question` returns.
    async fn noting_attr(
        &self,
        path: &RemotePath,
        question: impl Future<Output = Result<Attr>> + Send,
    ) -> Result<Attr> {
        let asked = self.asked();
        let answer = question.await;
        match &answer {
            Ok(attr) => self.note_attr(path, attr, asked),
            Err(Errno::ENOENT) => self.note_absent(path),
            Err(_) => {}
        }
        answer
    }

    /// What is recorded of `path`.
    pub(crate) fn told(&self, path: &RemotePath, standing: Standing) -> Option<Told> {
        let doubtful = standing == Standing::Known && self.is_doubtful(path);
        for source in self.sources(path, standing) {
            if let Some(known) = self.known_attr(source, path) {
                if doubtful {
                    return None;
                }
                return Some(Told::Present(known.attr));
            }
            if !path.is_root() && self.is_left_out(source, path) {
                return Some(Told::Absent);
            }
        }
        None
    }

    /// The attributes that were recorded last, or are about to be.
    pub(crate) fn recorded_attr(&self, source: &SourceId, path: &RemotePath) -> Option<KnownAttr> {
        self.fresh.attr(source, path).unwrap_or_else(|| self.store.attr(source, path))
    }

    /// As [`Core::recorded_attr`], if they were not told before a change made here.
    fn known_attr(&self, source: &SourceId, path: &RemotePath) -> Option<KnownAttr> {
        let known = self.recorded_attr(source, path)?;
        self.changed_at.lets_count(path, known.seen_at).then_some(known)
    }

    /// Whether the listing of its directory leaves the name out.
    fn is_left_out(&self, source: &SourceId, path: &RemotePath) -> bool {
        if let Some(listed) = self.fresh.lists(source, path) {
            return !listed;
        }
        let counts =
            || path.parent().is_some_and(|dir| self.known_directory(source, &dir).is_some());
        self.store.is_listed(source, path) == Some(false)
            && (self.changed_at.is_empty() || counts())
    }

    /// The remote told `attr`, which is recorded otherwise, when it was `asked`.
    pub(crate) fn note_seen(&self, path: &RemotePath, attr: &Attr, asked: Asked) {
        if self.changes.untouched(path, asked.tick) {
            self.seen.note(path, attr, asked.at);
        }
    }

    /// The remote told `attr`, when it was `asked`.
    pub(crate) fn note_attr(&self, path: &RemotePath, attr: &Attr, asked: Asked) {
        if !self.changes.untouched(path, asked.tick) {
            return;
        }
        self.seen.note(path, attr, asked.at);
        self.trust(path);
        let source = self.source(path);
        let known = self.known_attr(source, path).map(|known| known.attr);
        if known.is_some_and(|known| same_but_atime(&known, attr)) {
            return;
        }
        if let Some(dir) = path.parent()
            && let Some(note) = self.fresh.of(source, &dir)
        {
            // What the directory's listing says of it is older: it is written before.
            self.recorder.note(&note);
        }
        let known = KnownAttr { attr: *attr, seen_at: Timestamp::now() };
        self.store.record_attr(source, path, &known);
        self.undo_if_touched(path, asked);
    }

    /// The remote said that nothing is there.
    fn note_absent(&self, path: &RemotePath) {
        let source = self.source(path);
        if self.recorded_attr(source, path).is_some() {
            self.fresh.forget(path);
            self.store.forget(source, path);
        }
        self.seen.forget(path);
    }

    /// A change may have begun between the look at the changes and the record.
    fn undo_if_touched(&self, path: &RemotePath, asked: Asked) {
        if !self.changes.untouched(path, asked.tick) {
            self.store.forget(self.source(path), path);
        }
    }

    pub(crate) async fn readlink(&self, path: &RemotePath) -> Result<Vec<u8>> {
        let standing = self.standing(path);
        if standing != Standing::Ask
            && let Some(target) = self.known_target(path, standing)
        {
            return target;
        }
        if standing != Standing::Only {
            let answer = self.noting_target(path, self.asking(self.inner.readlink(path))).await;
            if !self.falls_back(&answer) {
                return answer;
            }
            if let Some(target) = self.known_target(path, Standing::Only) {
                return target;
            }
        }
        self.unless_offline("the link's target is", path)?;
        self.noting_target(path, self.inner.readlink(path)).await
    }

    /// Records the target of `path` that `question` returns.
    async fn noting_target(
        &self,
        path: &RemotePath,
        question: impl Future<Output = Result<Vec<u8>>> + Send,
    ) -> Result<Vec<u8>> {
        let asked = self.asked();
        let answer = question.await;
        if let Ok(target) = &answer {
            self.note_target(path, target, asked);
        }
        answer
    }

    fn known_target(&self, path: &RemotePath, standing: Standing) -> Option<Result<Vec<u8>>> {
        for source in self.sources(path, standing) {
            if let Some(link) = self.store.link(source, path)
                && self.changed_at.lets_count(path, link.seen_at)
            {
                return Some(Ok(link.target.to_vec()));
            }
        }
        match self.told(path, standing)? {
            Told::Absent => Some(Err(Errno::ENOENT)),
            Told::Present(attr) if attr.kind != base::FileKind::Symlink => Some(Err(Errno::EINVAL)),
            Told::Present(_) => None,
        }
    }

    fn note_target(&self, path: &RemotePath, target: &[u8], asked: Asked) {
        if !self.changes.untouched(path, asked.tick) {
            return;
        }
        let source = self.source(path);
        let says_the_same = |known: KnownLink| {
            *known.target == *target && self.changed_at.lets_count(path, known.seen_at)
        };
        if self.store.link(source, path).is_some_and(says_the_same) {
            return;
        }
        let link = KnownLink { attr: None, target: target.into(), seen_at: Timestamp::now() };
        self.store.record_link(source, path, &link);
        self.undo_if_touched(path, asked);
    }
}

impl Told {
    pub(crate) fn into_result(self) -> Result<Attr> {
        match self {
            Told::Present(attr) => Ok(attr),
            Told::Absent => Err(Errno::ENOENT),
        }
    }
}

/// Whether nothing but the time of last access differs: to read a file changes that.
pub(crate) fn same_but_atime(one: &Attr, other: &Attr) -> bool {
    *one == Attr { atime: one.atime, ..*other }
}
