//! An archive from a server to a tree here.
//!
//! The archive is believed in nothing: its names are those below the one that was asked for, or
//! they are refused; that none of them leads elsewhere is the business of [`Sink`]. What cannot be
//! unpacked is missed, and the rest goes on.

use std::io::{self, BufRead};

use base::{Attr, Errno, FileKind, Name, RemotePath};

use crate::job::{below, is_within};
use crate::options::Options;
use crate::outcome::Doing;
use crate::sink::{Finish, Incoming, Sink};

use super::member::{Kind, Member};
use super::reader::Reader;
use super::tally::{Tally, is_full};

/// What is behind an archive's end: zeros up to a whole record, of 10 KiB with all known tars.
const TRAILER_LIMIT_BYTES: u64 = 1 << 20;

/// Runs of zeros of this length become holes where sparse files are wanted.
const HOLE_BYTES: usize = 4096;

/// Which names an archive may have, and what becomes of them.
#[derive(Clone, Debug)]
pub(super) struct Naming {
    /// What all names are to begin with; `None` for the directory `.`.
    pub top: Option<Name>,
    /// What that becomes, relative to the target.
    pub to: RemotePath,
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
    tally: &'a mut Tally,
    /// Directories whose last member has not come, outermost first.
    open: Vec<(RemotePath, Finish)>,
}

impl<'a> Unpacker<'a> {
    pub(super) fn new(
        sink: &'a Sink,
        target: &'a RemotePath,
        naming: &'a Naming,
        options: &'a Options,
        tally: &'a mut Tally,
    ) -> Unpacker<'a> {
        Unpacker { sink, target, naming, options, tally, open: Vec::new() }
    }

    /// All of it, to the end of the stream.
    ///
    /// # Errors
    /// Where the stream breaks, is no archive, or there is no room for it here. What was unpacked
    /// stays.
    pub(super) fn run(mut self, input: impl BufRead) -> io::Result<()> {
        let mut reader = Reader::new(input);
        let unpacked = self.members(&mut reader);
        // Of a broken archive too: what has its time already need not be copied again.
        self.leave_directories(None);
        unpacked?;
        // Who writes it should not find that nobody reads.
        io::copy(&mut reader.into_rest().take(TRAILER_LIMIT_BYTES), &mut io::sink())?;
        Ok(())
    }

    fn members<R: BufRead>(&mut self, reader: &mut Reader<R>) -> io::Result<()> {
        while let Some(member) = reader.next()? {
            let Some(place) = self.naming.place(&member.path) else {
                tracing::warn!("left out \"{}\" of the archive", member.path.escape_ascii());
                self.tally.missed += 1;
                continue;
            };
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
            Kind::Symlink => self
                .sink
                .make_link(&path, &member.link, &attr(&member, FileKind::Symlink))
                .map(|()| self.tally.symlink(name)),
            Kind::HardLink => self.hard_link(&member, name),
            Kind::Other(letter) => {
                self.tally.skip(name, special(letter));
                Ok(())
            }
        };
        self.judge(made, name, Doing::Make)
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
                self.tally.missed(name, doing, errno);
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
        self.tally.directory(name);
        let finish = self.finish(member);
        self.open.push((name.clone(), finish));
        Ok(())
    }

    fn hard_link(&mut self, member: &Member, name: &RemotePath) -> Result<(), Errno> {
        let first = self.naming.place(&member.link).ok_or(Errno::EXDEV)?;
        let attr = attr(member, FileKind::Regular);
        // Without -H each name is a file of its own, which is for whoever copies what was missed.
        if !self.options.hard_links {
            return Err(Errno::EMLINK);
        }
        let (from, to) = (below(self.target, &first), below(self.target, name));
        self.sink.hard_link(&from, &to, &attr)?;
        self.tally.hard_link(name, &first);
        Ok(())
    }

    fn file<R: BufRead>(
        &mut self,
        reader: &mut Reader<R>,
        member: Member,
        name: &RemotePath,
    ) -> io::Result<()> {
        let bytes = member.file_bytes();
        self.tally.begin_file(bytes);
        let begun = self.sink.begin(&below(self.target, name), &attr(&member, FileKind::Regular));
        let mut incoming = match begun {
            Ok(incoming) => incoming,
            Err(errno) => return self.judge(Err(errno), name, Doing::Make),
        };
        let filled = match member.sparse_bytes {
            Some(bytes) => self.fill_pieces(reader, &incoming, bytes),
            None => self.fill(reader, &mut incoming),
        };
        match filled {
            Ok(()) => {}
            Err(Broken::Here(errno)) => return self.judge(Err(errno), name, Doing::Write),
            Err(Broken::There(error)) => return Err(error),
        }
        let has_holes = self.options.sparse || member.sparse_bytes.is_some();
        let finish = Finish { size: has_holes.then_some(bytes), ..self.finish(member) };
        match incoming.finish(&finish) {
            Ok(finished) => {
                self.tally.refused(finished);
                self.tally.file(name, bytes);
                Ok(())
            }
            Err(errno) => self.judge(Err(errno), name, Doing::Rename),
        }
    }

    /// Writes all data of the member, one after another.
    fn fill<R: BufRead>(
        &mut self,
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
            .map_err(Broken::Here)?;
            let len = piece.len();
            data.consume(len);
            self.tally.bytes(len as u64);
        }
    }

    /// Writes the pieces between the holes.
    fn fill_pieces<R: BufRead>(
        &mut self,
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
                incoming.write_at(at, &piece[..len]).map_err(Broken::Here)?;
                data.consume(len);
                at += len as u64;
                left -= len as u64;
                self.tally.bytes(len as u64);
            }
        }
        Ok(())
    }

    fn finish(&self, member: Member) -> Finish {
        Finish {
            perm: member.perm,
            owner: self.options.owners.of(member.uid, member.gid),
            mtime: Some(member.mtime),
            size: None,
            xattrs: if self.options.xattrs { member.xattrs } else { Vec::new() },
        }
    }

    /// Gives directories that `next` is not in what they are to have, the innermost first.
    fn leave_directories(&mut self, next: Option<&RemotePath>) {
        while let Some((path, finish)) = self.open.last() {
            if next.is_some_and(|next| is_within(next, path)) {
                return;
            }
            match self.sink.finish_dir(&below(self.target, path), finish) {
                Ok(finished) => self.tally.refused(finished),
                Err(errno) => self.tally.missed(path, Doing::SetAttr, errno),
            }
            self.open.pop();
        }
    }
}

/// Why a file was not filled.
enum Broken {
    /// It could not be written.
    Here(Errno),
    /// The stream broke.
    There(io::Error),
}

fn special(letter: u8) -> FileKind {
    match letter {
        b'3' => FileKind::CharDevice,
        b'4' => FileKind::BlockDevice,
        _ => FileKind::Fifo,
    }
}

/// What the source's file has.
fn attr(member: &Member, kind: FileKind) -> Attr {
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
