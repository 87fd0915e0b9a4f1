//! One member of an archive, into a local directory.
//!
//! The caller chooses the place, and [`Sink`] ensures that nothing is written elsewhere.

use std::io::{self, BufRead};

use base::{Attr, Errno, FileKind, RemotePath};

use crate::options::Options;
use crate::outcome::Doing;
use crate::sink::{Finish, Finished, Incoming, Sink};

use super::LASTING_BYTES;
use super::member::{Member, special};
use super::reader::Reader;

/// Runs of zeros of this length become holes where sparse files are wanted.
const HOLE_BYTES: usize = 4096;

/// Why a member is not there.
pub(super) enum Broken {
    /// It could not be made here.
    Here(Doing, Errno),
    /// The stream broke.
    There(io::Error),
}

fn here(doing: Doing) -> impl Fn(Errno) -> Broken {
    move |errno| Broken::Here(doing, errno)
}

/// What receives members.
#[derive(Clone, Copy)]
pub(super) struct Receiver<'a> {
    pub sink: &'a Sink,
    pub options: &'a Options,
    /// Called with the number of bytes that were written.
    pub count: &'a dyn Fn(u64),
}

impl Receiver<'_> {
    /// A regular file, with its content, which comes from the reader.
    pub(super) fn file<R: BufRead>(
        &self,
        reader: &mut Reader<R>,
        member: Member,
        path: &RemotePath,
    ) -> Result<Finished, Broken> {
        let bytes = member.file_bytes();
        let in_order = member.sparse_bytes.is_none() && !self.options.sparse;
        let wanted = attr(&member, FileKind::Regular);
        let begun = match in_order && self.options.partial && bytes >= LASTING_BYTES {
            true => self.sink.begin_lasting(path, &wanted),
            false => self.sink.begin(path, &wanted),
        };
        let mut incoming = begun.map_err(here(Doing::Make))?;
        let filled = match member.sparse_bytes {
            Some(bytes) => self.fill_pieces(reader, &incoming, bytes),
            None => self.fill(reader, &mut incoming),
        };
        if let Err(Broken::Here(..)) = filled {
            incoming.discard();
        }
        filled?;
        let has_holes = self.options.sparse || member.sparse_bytes.is_some();
        let finish = Finish { size: has_holes.then_some(bytes), ..self.finish(member) };
        incoming.finish(&finish).map_err(here(Doing::Rename))
    }

    /// A symbolic link.
    pub(super) fn symlink(&self, member: &Member, path: &RemotePath) -> Result<Finished, Errno> {
        let finish = self.finish_plain(member);
        self.sink.make_link(path, &member.link, &attr(member, FileKind::Symlink), &finish)
    }

    /// A device or a pipe, by the letter of its member; `None` where these are left out.
    pub(super) fn special(
        &self,
        member: &Member,
        letter: u8,
        path: &RemotePath,
    ) -> Option<Result<Finished, Errno>> {
        let kind = special(letter).filter(|_| self.options.specials)?;
        let finish = self.finish_plain(member);
        Some(self.sink.make_special(path, &attr(member, kind), member.device, &finish))
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

    /// Writes all data of the member, one after another.
    fn fill<R: BufRead>(
        &self,
        reader: &mut Reader<R>,
        incoming: &mut Incoming,
    ) -> Result<(), Broken> {
        let mut data = reader.data();
        loop {
            let piece = data.fill_buf().map_err(Broken::There)?;
            if piece.is_empty() {
                return Ok(());
            }
            match self.options.sparse {
                true => append_with_holes(incoming, piece),
                false => incoming.append(piece),
            }
            .map_err(here(Doing::Write))?;
            let len = piece.len();
            data.consume(len);
            (self.count)(len as u64);
        }
    }

    /// Writes the pieces between the holes.
    fn fill_pieces<R: BufRead>(
        &self,
        reader: &mut Reader<R>,
        incoming: &Incoming,
        bytes: u64,
    ) -> Result<(), Broken> {
        let pieces = reader.sparse_map(bytes).map_err(Broken::There)?;
        let mut data = reader.data();
        for (mut at, mut left) in pieces {
            while left > 0 {
                let piece = data.fill_buf().map_err(Broken::There)?;
                let len = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                incoming.write_at(at, &piece[..len]).map_err(here(Doing::Write))?;
                data.consume(len);
                at += len as u64;
                left -= len as u64;
                (self.count)(len as u64);
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

/// Appends what is not zero, and leaves out whole blocks of zeros.
fn append_with_holes(incoming: &mut Incoming, bytes: &[u8]) -> Result<(), Errno> {
    let mut begin = 0;
    while begin < bytes.len() {
        // Blocks of the file, not of what happens to be here.
        let over = (incoming.end() % HOLE_BYTES as u64) as usize;
        let end = (begin + HOLE_BYTES - over).min(bytes.len());
        let block = &bytes[begin..end];
        match block.iter().all(|byte| *byte == 0) {
            true => incoming.skip(block.len() as u64),
            false => incoming.append(block)?,
        }
        begin = end;
    }
    Ok(())
}
