//! Unpacks an archive from a server into a local tree.
//!
//! The archive is not trusted: names outside of the one that was requested are refused, and [`Sink`]
//! ensures that no name leads elsewhere. A member that cannot be unpacked counts as missed, and the
//! rest goes on.

use std::io::{self, BufRead};

use base::{Errno, FileKind, Name, RemotePath};

use crate::job::below;
use crate::options::Options;
use crate::outcome::Doing;
use crate::sink::{Finish, Sink};

use super::counters::{Counters, is_full};
use super::member::{Kind, Member, special};
use super::reader::Reader;
use super::receive::{Broken, Receiver, attr};

/// What is behind an archive's end: zeros up to a whole record, of 10 KiB with all known tars.
const TRAILER_LIMIT_BYTES: u64 = 1 << 20;

/// Extended attributes of all directories together in which more is to come.
const KEPT_LIMIT_BYTES: usize = 16 << 20;

fn xattr_bytes(finish: &Finish) -> usize {
    finish.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum()
}

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
    /// Bytes of the extended attributes that these are to get.
    kept_bytes: usize,
    count: Box<dyn Fn(u64) + Send + 'a>,
}

impl<'a> Unpacker<'a> {
    pub(super) fn new(
        sink: &'a Sink,
        target: &'a RemotePath,
        naming: &'a Naming,
        options: &'a Options,
        counters: &'a mut Counters,
    ) -> Unpacker<'a> {
        let progress = counters.progress();
        let count = Box::new(move |bytes| progress.bytes(bytes));
        Unpacker { sink, target, naming, options, counters, open: Vec::new(), kept_bytes: 0, count }
    }

    /// All of it, to the end of the stream.
    ///
    /// # Errors
    /// Where the stream breaks, is no archive, or there is no room for it here. What was unpacked
    /// stays.
    pub(super) fn run(mut self, input: impl BufRead) -> io::Result<()> {
        let mut reader = Reader::new(input, self.options.xattrs);
        let unpacked = self.members(&mut reader);
        // Of a broken archive too: what has its time already need not be copied again.
        self.leave_directories(None);
        unpacked?;
        if self.options.fsync {
            // The names of what was asked for, and of the target where it is new.
            for above in [self.target, &RemotePath::root()] {
                let synced = self.sink.sync_dir(above);
                synced.map_err(|errno| io::Error::from_raw_os_error(errno.raw()))?;
            }
        }
        pass_trailer(reader)
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
        let made = match member.kind {
            Kind::File => return self.file(reader, member, name),
            Kind::Directory => self.directory(member, name),
            Kind::Symlink => self.receiver().symlink(&member, &path).map(|finished| {
                self.counters.refused(finished);
                self.counters.symlink(name);
            }),
            Kind::HardLink => self.hard_link(&member, name),
            Kind::Other(letter) => {
                let kind = special(letter).unwrap_or(FileKind::Socket);
                match self.receiver().special(&member, letter, &path) {
                    None => {
                        self.counters.skip(name, kind);
                        Ok(())
                    }
                    Some(made) => made.map(|finished| {
                        self.counters.refused(finished);
                        self.counters.special(name, kind);
                    }),
                }
            }
        };
        self.judge(made, name, Doing::Make)
    }

    fn receiver(&self) -> Receiver<'_> {
        Receiver { sink: self.sink, options: self.options, count: &self.count }
    }

    /// What failed is missed; what would make all that follows fail, too, ends it.
    fn judge(
        &mut self,
        made: Result<(), Errno>,
        name: &RemotePath,
        doing: Doing,
    ) -> io::Result<()> {
        match made {
            Err(errno) if is_full(errno) => Err(io::Error::from_raw_os_error(errno.raw())),
            Err(errno) => {
                self.counters.missed(name, doing, errno);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn directory(&mut self, member: Member, name: &RemotePath) -> Result<(), Errno> {
        let path = below(self.target, name);
        if !path.is_root() {
            self.sink.make_dir(&path)?;
        }
        self.counters.directory(name);
        let mut finish = self.receiver().finish(member);
        let bytes = xattr_bytes(&finish);
        let is_kept = self.kept_bytes + bytes <= KEPT_LIMIT_BYTES;
        if is_kept {
            self.kept_bytes += bytes;
        } else {
            finish.xattrs = Vec::new();
        }
        self.open.push((name.clone(), finish));
        if is_kept { Ok(()) } else { Err(Errno::E2BIG) }
    }

    fn hard_link(&mut self, member: &Member, name: &RemotePath) -> Result<(), Errno> {
        let first = self.naming.place(&member.link).ok_or(Errno::EXDEV)?;
        let attr = attr(member, FileKind::Regular);
        // Without -H each name is a file of its own; the run copies it as missed.
        if !self.options.hard_links {
            return Err(Errno::EMLINK);
        }
        let (from, to) = (below(self.target, &first), below(self.target, name));
        self.sink.hard_link(&from, &to, &attr)?;
        self.counters.hard_link(name, &first);
        Ok(())
    }

    fn file<R: BufRead>(
        &mut self,
        reader: &mut Reader<R>,
        member: Member,
        name: &RemotePath,
    ) -> io::Result<()> {
        let bytes = member.file_bytes();
        self.counters.begin_file(bytes);
        match self.receiver().file(reader, member, &below(self.target, name)) {
            Ok(finished) => {
                self.counters.refused(finished);
                self.counters.file(name, bytes);
                Ok(())
            }
            Err(Broken::Here(doing, errno)) => self.judge(Err(errno), name, doing),
            Err(Broken::There(error)) => Err(error),
        }
    }

    /// Gives directories that `next` is not in what they are to have, the innermost first.
    fn leave_directories(&mut self, next: Option<&RemotePath>) {
        while let Some((path, finish)) = self.open.last() {
            if next.is_some_and(|next| next.is_within(path)) {
                return;
            }
            match self.sink.finish_dir(&below(self.target, path), finish) {
                Ok(finished) => self.counters.refused(finished),
                Err(errno) => self.counters.missed(path, Doing::SetAttr, errno),
            }
            self.kept_bytes -= xattr_bytes(finish);
            self.open.pop();
        }
    }
}
