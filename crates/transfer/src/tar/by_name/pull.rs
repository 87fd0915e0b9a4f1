//! The members of a stream, written where their steps say. On a thread that may block.

use std::collections::HashMap;
use std::io::{self, BufRead};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::{Attr, Errno, FileKind, RemotePath};

use super::Pending;
use crate::dir::Dir;
use crate::events::Progress;
use crate::options::Options;
use crate::outcome::{Doing, Problem};
use crate::plan::is_same_second;
use crate::run::{Copied, Core};
use crate::sink::{Finished, Sink};
use crate::step::{Action, Step, Why};
use crate::tar::member::{Kind, Member};
use crate::tar::reader::Reader;
use crate::tar::receive::{Broken, Received, Receiver, attr};
use crate::tar::unpack::pass_trailer;
use crate::xattr;

/// An entry that was copied by a stream, and that the run copies if it is not right.
pub(super) struct CopiedEntry {
    pub(super) from: RemotePath,
    /// What was done, as it was reported.
    pub(super) action: Action,
    /// How it was counted: as failed if it lacks extended attributes.
    pub(super) end: Result<Copied, Problem>,
    /// Its mtime is not set yet: its content is unconfirmed until tar has ended.
    pub(super) unconfirmed: bool,
    /// Relative to the target.
    pub(super) name: RemotePath,
    /// Its attributes in the archive.
    attr: Attr,
    /// Its attributes when it was requested.
    asked: Attr,
    /// Held, so that the directory is not finished before.
    dir: Arc<Dir>,
}

impl CopiedEntry {
    /// Whether the copy is as requested.
    pub(super) fn is_as_asked(&self) -> bool {
        self.is_still(&self.asked)
    }

    /// Whether the copy equals the source now.
    pub(super) fn is_still(&self, now: &Attr) -> bool {
        let same = now.kind == self.attr.kind && is_same_second(now.mtime, self.attr.mtime);
        // The size of a link is its target's, which an archive does not count.
        same && (now.kind == FileKind::Symlink || now.size == self.attr.size)
    }

    /// Sets the mtime of an unconfirmed file. On a thread that may block.
    pub(super) fn set_mtime(&self, core: &Core, sink: &Sink) -> base::Result<()> {
        sink.set_mtime(&core.job.target.path_of(&self.name), self.attr.mtime)
    }

    /// Takes it back, and returns the step with which the run copies it.
    pub(super) fn again(self, core: &Core, source: usize) -> Step {
        let action = match self.attr.kind {
            FileKind::Symlink => Action::MakeLink(Why::Time),
            _ => Action::Copy(Why::Time),
        };
        let (paths, there) = ((self.from, self.name), Some(self.attr));
        // An archive has no identities.
        let attr = Attr { inode: self.asked.inode, ..self.attr };
        let step = Step { action, ..Step::new(source, paths, attr, there, self.dir) };
        core.take_back(&self.action, &self.end, &step);
        step
    }
}

/// What is reported of a member.
struct Put {
    action: Action,
    bytes: u64,
    received: Received,
}

/// Writes members to the places that their steps say.
pub(super) struct Placer {
    core: Arc<Core>,
    /// A file in which the stream breaks is not kept: its step is returned, and the run copies it.
    options: Options,
    pending: Arc<Pending>,
    /// The copied entries.
    pub(super) copied: Vec<CopiedEntry>,
    /// The steps that failed.
    pub(super) left: Vec<Step>,
    /// If hard links are preserved: the names copied in this stream, by their path at the source,
    /// and whether they are unconfirmed.
    firsts: HashMap<RemotePath, (RemotePath, bool)>,
    /// See [`torn_since`](crate::tar::receive::torn_since).
    torn_since: i64,
}

impl Placer {
    pub(super) fn new(core: Arc<Core>, pending: Arc<Pending>, torn_since: i64) -> Placer {
        let options = Options { no_partial: true, ..core.job.options.clone() };
        let (copied, left, firsts) = (Vec::new(), Vec::new(), HashMap::new());
        Placer { core, options, pending, copied, left, firsts, torn_since }
    }

    /// Unpacks the archive.
    ///
    /// # Errors
    /// If the stream breaks, is no archive, or the local file system is full.
    pub(super) fn unpack(&mut self, input: impl BufRead) -> io::Result<()> {
        let mut reader = Reader::new(input, self.options.xattrs);
        while let Some(member) = reader.next()? {
            match self.pending.take(&member.path) {
                Some(step) => self.member(&mut reader, member, step)?,
                // A server's invention, or a name that it sends twice.
                None => tracing::warn!("nobody asked for \"{}\"", member.path.escape_ascii()),
            }
        }
        pass_trailer(reader)
    }

    fn member<R: BufRead>(
        &mut self,
        reader: &mut Reader<R>,
        member: Member,
        step: Step,
    ) -> io::Result<()> {
        if let (Some(own), Kind::Directory) = (&step.own, member.kind) {
            if !self.keep_xattrs(own, member.xattrs) {
                self.left.push(step);
            }
            return Ok(());
        }
        let came = attr(&member, step.attr.kind);
        let came = match member.kind {
            // Its content came before, under another name.
            Kind::HardLink => Attr { size: step.attr.size, ..came },
            _ => came,
        };
        match self.put(reader, member, &step) {
            Ok(put) => {
                self.ended(step, came, put);
                Ok(())
            }
            Err(broken) => {
                tracing::debug!("{}: {broken:?}", step.name);
                let missed = broken.missed();
                let failed = missed.as_ref().ok();
                let refused =
                    failed.map(|(doing, errno)| Problem::failed(&step.name, *doing)(*errno));
                self.left.push(Step { refused, ..step });
                missed.map(|_| ())
            }
        }
    }

    /// Keeps the extended attributes of a directory until everything in it is done; false where
    /// there is no room for them.
    fn keep_xattrs(&self, own: &Dir, xattrs: xattr::List) -> bool {
        let bytes = xattr::bytes(&xattrs);
        let kept_bytes = self.core.kept_xattr_bytes.fetch_add(bytes, Ordering::Relaxed);
        if kept_bytes + bytes <= xattr::KEPT_LIMIT_BYTES && own.xattrs.set(xattrs).is_ok() {
            return true;
        }
        self.core.kept_xattr_bytes.fetch_sub(bytes, Ordering::Relaxed);
        false
    }

    fn put<R: BufRead>(
        &mut self,
        reader: &mut Reader<R>,
        member: Member,
        step: &Step,
    ) -> Result<Put, Broken> {
        let core = &self.core;
        let failed = |errno| Broken::Here(Doing::Make, errno);
        let sink = core.sink.as_ref().ok_or_else(|| failed(Errno::EBADF))?;
        let path = core.job.target.path_of(&step.name);
        if member.kind.file_kind() != step.attr.kind {
            // It became something else meanwhile.
            return Err(failed(Errno::ESTALE));
        }
        if member.kind == Kind::HardLink {
            let (first, unconfirmed) =
                self.first_of(&member).ok_or_else(|| failed(Errno::EMLINK))?;
            let from = core.job.target.path_of(&first);
            let attr = attr(&member, FileKind::Regular);
            sink.hard_link(&from, &path, &attr, false).map_err(failed)?;
            Progress::add(&core.progress.files_done, 1);
            let received = Received { finished: Finished::default(), unconfirmed };
            return Ok(Put { action: Action::HardLink { first }, bytes: 0, received });
        }
        let is_file = member.kind == Kind::File;
        let bytes = if is_file { member.file_bytes() } else { 0 };
        let (options, progress, torn_since) = (&self.options, &*core.progress, self.torn_since);
        let receiver = Receiver { sink, options, progress, torn_since, is_new: false };
        let received = receiver.entry(reader, member, &path)?;
        if is_file && core.job.options.hard_links {
            self.firsts.insert(step.from.clone(), (step.name.clone(), received.unconfirmed));
        }
        Ok(Put { action: step.action.clone(), bytes, received })
    }

    /// The copy of the file of which the member is a hard link.
    fn first_of(&self, member: &Member) -> Option<(RemotePath, bool)> {
        let path = RemotePath::parse(member.link.strip_prefix(b"./")?).ok()?;
        self.firsts.get(&path).cloned()
    }

    fn ended(&mut self, mut step: Step, attr: Attr, put: Put) {
        let Put { action, bytes, received: Received { finished, unconfirmed } } = put;
        if finished.owner_refused {
            self.core.refuse_owner(self.options.owners.of(attr.uid, attr.gid));
        }
        step.action = action;
        let end = Problem::of_refused_xattrs(&step.name, finished.xattrs_refused)
            .map(|()| Copied { bytes, resumed: 0 });
        self.core.ended(&step, end.clone());
        let Step { from, name, action, dir, attr: asked, .. } = step;
        let copied = CopiedEntry { from, action, end, unconfirmed, name, attr, asked, dir };
        self.copied.push(copied);
    }
}
