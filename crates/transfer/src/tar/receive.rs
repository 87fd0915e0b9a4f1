//! One member of an archive, into a local directory.
//!
//! The caller chooses the place, and [`Sink`] ensures that nothing is written elsewhere.

use std::io::{self, BufRead};

use base::{Attr, Errno, FileKind, RemotePath};

use crate::events::Progress;
use crate::options::Options;
use crate::outcome::Doing;
use crate::sink::{Finish, Finished, Incoming, Sink};

use super::LASTING_BYTES;
use super::member::{Kind, Member};
use super::reader::Reader;

/// Why a member is not there.
#[derive(Debug)]
pub(super) enum Broken {
    /// It could not be made, or read, on this machine.
    Here(Doing, Errno),
    /// The stream broke.
    There(io::Error),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Broken {
        Broken::There(error)
    }
}

impl Broken {
    /// Why this member alone is missing.
    ///
    /// # Errors
    /// If the stream cannot go on, or further files would fail, too, since a file system is full.
    pub(super) fn missed(self) -> io::Result<(Doing, Errno)> {
        match self {
            Broken::Here(_, errno @ (Errno::ENOSPC | Errno::EDQUOT)) => {
                Err(io::Error::from_raw_os_error(errno.raw()))
            }
            Broken::Here(doing, errno) => Ok((doing, errno)),
            Broken::There(error) => Err(error),
        }
    }
}

/// For `map_err`.
pub(super) fn here(doing: Doing) -> impl Fn(Errno) -> Broken {
    move |errno| Broken::Here(doing, errno)
}

/// What receives members.
#[derive(Clone, Copy)]
pub(super) struct Receiver<'a> {
    pub sink: &'a Sink,
    pub options: &'a Options,
    pub progress: &'a Progress,
}

impl Receiver<'_> {
    /// A regular file, with its content, which comes from the reader; a symbolic link, a device or a pipe.
    pub(super) fn entry<R: BufRead>(
        &self,
        reader: &mut Reader<R>,
        member: Member,
        path: &RemotePath,
    ) -> Result<Finished, Broken> {
        let wanted = attr(&member, member.kind.file_kind());
        let finish = self.finish_plain(&member);
        match member.kind {
            Kind::File => self.file(reader, member, path, &wanted),
            Kind::Symlink => {
                self.sink.make_link(path, &member.link, &wanted, &finish).map_err(here(Doing::Make))
            }
            Kind::Other(_) if self.options.specials => self
                .sink
                .make_special(path, &wanted, member.device, &finish)
                .map_err(here(Doing::Make)),
            _ => Err(Broken::Here(Doing::Make, Errno::EOPNOTSUPP)),
        }
    }

    fn file<R: BufRead>(
        &self,
        reader: &mut Reader<R>,
        member: Member,
        path: &RemotePath,
        wanted: &Attr,
    ) -> Result<Finished, Broken> {
        let has_holes = self.options.sparse || member.sparse_bytes.is_some();
        let begun = match !has_holes && !self.options.no_partial && wanted.size >= LASTING_BYTES {
            true => self.sink.begin_lasting(path, wanted),
            false => self.sink.begin(path, wanted),
        };
        let mut incoming = begun.map_err(here(Doing::Make))?;
        let filled = self.fill(reader, &member, &incoming);
        if let Err(Broken::Here(..)) = filled {
            incoming.discard();
        }
        filled?;
        let finish = Finish { size: has_holes.then_some(wanted.size), ..self.finish(member) };
        incoming.finish(&finish).map_err(here(Doing::Rename))
    }

    /// What the member is to have when it is whole.
    pub(super) fn finish(&self, member: Member) -> Finish {
        let finish = self.finish_plain(&member);
        Finish { xattrs: member.xattrs, ..finish }
    }

    fn finish_plain(&self, member: &Member) -> Finish {
        Finish {
            perm: member.perm,
            set_ids: self.options.set_ids_of(member.uid, member.gid),
            owner: self.options.owners.of(member.uid, member.gid),
            mtime: Some(member.mtime),
            fsync: self.options.fsync,
            ..Finish::default()
        }
    }

    /// Writes all data of the member: that between its holes, if it is stored with holes.
    fn fill<R: BufRead>(
        &self,
        reader: &mut Reader<R>,
        member: &Member,
        incoming: &Incoming,
    ) -> Result<(), Broken> {
        let pieces = match member.sparse_bytes {
            Some(bytes) => reader.sparse_map(bytes)?,
            None => vec![(0, member.stored_bytes)],
        };
        let mut data = reader.data();
        for (mut at, mut left) in pieces {
            while left > 0 {
                let piece = data.fill_buf()?;
                let len = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let written = incoming.write_at(at, &piece[..len], self.options.sparse);
                written.map_err(here(Doing::Write))?;
                data.consume(len);
                at += len as u64;
                left -= len as u64;
                self.progress.bytes(len as u64);
            }
        }
        Ok(())
    }
}

/// What the source's file has.
pub(super) fn attr(member: &Member, kind: FileKind) -> Attr {
    Attr {
        kind,
        perm: member.perm,
        size: member.file_bytes(),
        uid: member.uid,
        gid: member.gid,
        atime: member.mtime,
        mtime: member.mtime,
    }
}
