//! Unpacks an archive from a server into a local tree.
//!
//! The archive is not trusted: names outside of the one that was requested are refused, and
//! [`Sink`] ensures that no name leads elsewhere. A member that cannot be unpacked counts as
//! missed, and the rest goes on.

use std::io::{self, BufRead};
use std::sync::Arc;

use base::{Errno, FileKind, Name, RemotePath};

use crate::events::Progress;
use crate::job::below;
use crate::options::Options;
use crate::outcome::Doing;
use crate::sink::{Finish, Sink};
use crate::step::{Action, Skip, Why};
use crate::xattr;

use super::counters::Counters;
use super::member::{Kind, Member};
use super::reader::Reader;
use super::receive::{Broken, Receiver, attr, here};

/// What is behind an archive's end: zeros up to a whole record, of 10 KiB with all known tars.
const TRAILER_LIMIT_BYTES: u64 = 1 << 20;

/// Reads everything after an archive's end, so that its writer gets no broken pipe.
pub(super) fn pass_trailer<R: BufRead>(reader: Reader<R>) -> io::Result<()> {
    io::copy(&mut reader.into_rest().take(TRAILER_LIMIT_BYTES), &mut io::sink()).map(drop)
}

/// Which names an archive may have, and what becomes of them.
#[derive(Clone, Debug)]
pub(super) struct Naming {
    /// What all names are to begin with; `None` for the directory `.`.
    pub top: Option<Name>,
    /// What that becomes, relative to the target.
    pub to: RemotePath,
    /// Whether it is a directory, where the place was chosen by that: what has become another kind
    /// meanwhile belongs elsewhere.
    pub is_directory: Option<bool>,
}

impl Naming {
    /// What the member of that path becomes; `None` where it is not below what was asked for.
    fn place(&self, path: &[u8]) -> Option<RemotePath> {
        let path = path.strip_prefix(b"./").unwrap_or(path);
        let path = path.strip_suffix(b"/").unwrap_or(path);
        let path = RemotePath::parse(if path == b"." { b"" } else { path }).ok()?;
        let mut names = path.names();
        if let Some(top) = &self.top
            && names.next() != Some(top.as_bytes())
        {
            return None;
        }
        let mut place = self.to.clone();
        for name in names {
            place.push(&Name::new(name).ok()?);
        }
        Some(place)
    }
}

/// Unpacks an archive.
pub(super) struct Unpacker<'a> {
    sink: &'a Sink,
    /// The target, relative to the sink's root.
    target: &'a RemotePath,
    naming: &'a Naming,
    options: &'a Options,
    counters: &'a mut Counters,
    /// Directories whose last member has not come, outermost first.
    open: Vec<(RemotePath, Finish)>,
    /// A directory is finished.
    has_left: bool,
    /// Bytes of the extended attributes that these are to get.
    kept_bytes: usize,
    torn_since: i64,
    progress: Arc<Progress>,
}

impl<'a> Unpacker<'a> {
    /// `torn_since`: see [`torn_since`](super::receive::torn_since).
    pub(super) fn new(
        sink: &'a Sink,
        target: &'a RemotePath,
        naming: &'a Naming,
        options: &'a Options,
        counters: &'a mut Counters,
        torn_since: i64,
    ) -> Unpacker<'a> {
        let progress = counters.progress();
        let (open, kept_bytes) = (Vec::new(), 0);
        Unpacker {
            sink,
            target,
            naming,
            options,
            counters,
            open,
            has_left: false,
            kept_bytes,
            torn_since,
            progress,
        }
    }

    /// All of it, to the end of the stream.
    ///
    /// # Errors
    /// Where the stream breaks, is no archive, or there is no room for it here. What was unpacked
    /// stays.
    pub(super) fn run(mut self, input: impl BufRead) -> io::Result<()> {
        let mut reader = Reader::new(input, self.options.xattrs);
        let unpacked = self.members(&mut reader);
        // Of a broken archive too: what has its time already need not be copied again, and the run
        // that copies the rest syncs only what it changes itself.
        self.leave_directories(None);
        let synced = self.sync_names();
        unpacked?;
        synced.map_err(|errno| io::Error::from_raw_os_error(errno.raw()))?;
        pass_trailer(reader)
    }

    /// With `fsync`, writes the names of what was asked for, and of the target where it is new, to
    /// the disk.
    fn sync_names(&self) -> base::Result<()> {
        if !self.options.fsync {
            return Ok(());
        }
        self.sink.sync_dir(self.target)?;
        self.sink.sync_dir(&RemotePath::root())
    }

    fn members<R: BufRead>(&mut self, reader: &mut Reader<R>) -> io::Result<()> {
        let mut is_directory = self.naming.is_directory;
        while let Some(member) = reader.next()? {
            let Some(place) = self.naming.place(&member.path) else {
                tracing::warn!("left out \"{}\" of the archive", member.path.escape_ascii());
                self.counters.missed += 1;
                continue;
            };
            if is_directory.take().is_some_and(|is| is != (member.kind == Kind::Directory)) {
                return Err(io::Error::other("what is copied is of another kind now"));
            }
            self.leave_directories(Some(&place));
            // libarchive's tar archives what is in a subdirectory after all entries of its parent:
            // the directory has its mtime already, and loses it.
            let is_late = match self.open.last() {
                Some((open, _)) => place.parent().as_ref() != Some(open),
                None => self.has_left,
            };
            self.counters.missed += u64::from(is_late);
            self.member(reader, member, &place)?;
        }
        Ok(())
    }

    fn member<R: BufRead>(
        &mut self,
        reader: &mut Reader<R>,
        member: Member,
        name: &RemotePath,
    ) -> io::Result<()> {
        let path = below(self.target, name);
        let kind = member.kind.file_kind();
        let is_skipped = !self.options.specials || kind == FileKind::Socket;
        let made = match member.kind {
            Kind::Directory => self.directory(member, name, &path),
            Kind::HardLink => self.hard_link(&member, name, &path),
            Kind::Other(_) if is_skipped => {
                self.counters.done(name, kind, 0, &Action::Skip(Skip::Special));
                Ok(())
            }
            Kind::File | Kind::Symlink | Kind::Other(_) => self.entry(reader, member, name, &path),
        };
        if let Err(broken) = made {
            let (doing, errno) = broken.missed()?;
            self.counters.missed(name, doing, errno);
        }
        Ok(())
    }

    fn receiver(&self) -> Receiver<'_> {
        let Unpacker { sink, options, progress, torn_since, .. } = self;
        Receiver { sink, options, progress, torn_since: *torn_since, is_new: true }
    }

    fn entry<R: BufRead>(
        &mut self,
        reader: &mut Reader<R>,
        member: Member,
        name: &RemotePath,
        path: &RemotePath,
    ) -> Result<(), Broken> {
        let kind = member.kind.file_kind();
        let bytes = if kind == FileKind::Regular { member.file_bytes() } else { 0 };
        let action = match kind {
            FileKind::Symlink => Action::MakeLink(Why::New),
            _ => Action::Copy(Why::New),
        };
        if kind == FileKind::Regular {
            self.counters.begin_file(bytes);
        }
        let mtime = member.mtime;
        let received = self.receiver().entry(reader, member, path)?;
        self.counters.refused(name, received.finished);
        if received.unconfirmed {
            self.counters.note_unconfirmed(path, mtime);
        }
        self.counters.done(name, kind, bytes, &action);
        Ok(())
    }

    fn directory(
        &mut self,
        mut member: Member,
        name: &RemotePath,
        path: &RemotePath,
    ) -> Result<(), Broken> {
        let is_new = path.is_root() || self.sink.make_dir(path).map_err(here(Doing::Make))?;
        if !is_new && name != &self.naming.to {
            // Perhaps a name collision: a run checks that.
            self.counters.missed(name, Doing::Make, Errno::EEXIST);
        }
        self.counters.done(name, FileKind::Directory, 0, &Action::MakeDir);
        let mut finish = self.receiver().finish(&mut member);
        let bytes = xattr::bytes(&finish.xattrs);
        // A further member of the same directory takes the place of the one before, as with tar.
        if let Some((_, before)) = self.open.pop_if(|(open, _)| open == name) {
            self.kept_bytes -= xattr::bytes(&before.xattrs);
        }
        let is_kept = self.kept_bytes + bytes <= xattr::KEPT_LIMIT_BYTES;
        if is_kept {
            self.kept_bytes += bytes;
        } else {
            finish.xattrs = Vec::new();
        }
        self.open.push((name.clone(), finish));
        if is_kept { Ok(()) } else { Err(Broken::Here(Doing::Make, Errno::E2BIG)) }
    }

    fn hard_link(
        &mut self,
        member: &Member,
        name: &RemotePath,
        path: &RemotePath,
    ) -> Result<(), Broken> {
        let first = self.naming.place(&member.link).ok_or(Errno::EXDEV);
        let first = first.map_err(here(Doing::Make))?;
        // Without -H each name is a file of its own; the run copies it as missed.
        if !self.options.hard_links {
            return Err(Broken::Here(Doing::Make, Errno::EMLINK));
        }
        let attr = attr(member, FileKind::Regular);
        let linked = self.sink.hard_link(&below(self.target, &first), path, &attr, true);
        linked.map_err(here(Doing::Make))?;
        self.counters.done(name, FileKind::Regular, 0, &Action::HardLink { first });
        Ok(())
    }

    /// Gives directories that `next` is not in what they are to have, the innermost first.
    fn leave_directories(&mut self, next: Option<&RemotePath>) {
        while let Some((path, finish)) = self.open.last() {
            if next.is_some_and(|next| next.is_within(path)) {
                return;
            }
            match self.sink.finish_dir(&below(self.target, path), finish) {
                Ok(finished) => self.counters.refused(path, finished),
                Err(errno) => self.counters.missed(path, Doing::SetAttr, errno),
            }
            self.kept_bytes -= xattr::bytes(&finish.xattrs);
            self.open.pop();
            self.has_left = true;
        }
    }
}
