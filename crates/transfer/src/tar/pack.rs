//! Packs a local tree into an archive.
//!
//! A file is opened without following a link, and its header describes the file that was opened. A
//! file that changed meanwhile or cannot be read counts as missed, and the other files are packed.
//! If nothing of the file was sent yet, it is removed from the archive. Otherwise zeros fill the
//! rest of its data, so that the archive stays valid, and an empty member with the same name and an
//! mtime of 1970 follows, which replaces the file. So no later comparison finds it equal to its
//! source. An archive with such a file does not get the mark of a complete archive.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use base::{Errno, FileKind, Name, RemotePath, Timestamp};
use bytes::Bytes;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Stat};

use crate::options::{Options, Xattrs};
use crate::outcome::Doing;
use crate::plan::may_collide;
use crate::setid;
use crate::step::{Action, Skip, Why};
use crate::xattr;

use super::counters::Counters;
use super::member::{Kind, Member, letter};
use super::reader::Piece;
use super::receive::{Broken, attr, here};
use super::writer;

/// How much is gathered before it is sent.
const SEND_BYTES: usize = 512 << 10;

/// How much is read of a large file at a time.
const READ_BYTES: usize = 256 << 10;

/// How deep directories may be nested. Each level keeps one open; deeper ones are missed.
const DEPTH_LIMIT: usize = 256;

/// Files with several names that are remembered; of more, further names are files of their own.
const NAMES_LIMIT: usize = 1 << 20;

/// Packs trees.
pub(super) struct Packer<'a, W: Write> {
    output: W,
    buffer: Vec<u8>,
    /// Bytes that were sent.
    sent: u64,
    /// An incomplete file was sent.
    is_damaged: bool,
    /// Two names in a directory collide on some file systems.
    may_collide: bool,
    options: &'a Options,
    counters: &'a mut Counters,
    /// Of files with several names: the first of them in the archive, and at the target.
    names: HashMap<(u64, u64), (Vec<u8>, RemotePath)>,
    /// The file system that is not left.
    device: Option<u64>,
    /// The mtime of the first directory.
    top_mtime: Option<Timestamp>,
}

/// An entry: its name in the archive, and at the target.
struct Place {
    path: Vec<u8>,
    name: RemotePath,
}

/// Makes of an error what was missed, for `map_err`.
fn failed(doing: Doing) -> impl Fn(rustix::io::Errno) -> Broken {
    move |error| Broken::Here(doing, local::errno(error))
}

/// Why an entry was missed, if it was and the archive can go on.
fn missed(packed: Result<(), Broken>) -> io::Result<Option<(Doing, Errno)>> {
    match packed {
        Ok(()) => Ok(None),
        Err(Broken::Here(doing, errno)) => Ok(Some((doing, errno))),
        Err(Broken::There(error)) => Err(error),
    }
}

/// A kind of entry for [`Packer::one`].
pub(super) enum One {
    /// With the mode that it gets.
    Directory(u32),
    Leaf(FileKind),
}

impl<'a, W: Write> Packer<'a, W> {
    pub(super) fn new(
        output: W,
        options: &'a Options,
        counters: &'a mut Counters,
    ) -> Packer<'a, W> {
        let buffer = Vec::with_capacity(SEND_BYTES + READ_BYTES);
        Packer {
            output,
            buffer,
            sent: 0,
            is_damaged: false,
            may_collide: false,
            options,
            counters,
            names: HashMap::new(),
            device: None,
            top_mtime: None,
        }
    }

    /// Packs what is called `from` in `directory`, as `stage` in the archive and `to` at the
    /// target.
    ///
    /// # Errors
    /// When the archive cannot be sent. What cannot be read is missed.
    pub(super) fn pack(
        &mut self,
        directory: BorrowedFd<'_>,
        from: &[u8],
        stage: &[u8],
        to: &RemotePath,
    ) -> io::Result<()> {
        let place = Place { path: stage.to_vec(), name: to.clone() };
        self.entry(directory, from, None, &place, 0)
    }

    /// Packs the entry `name` of `directory` as `path`; it becomes `to`. Of a directory only its
    /// own attributes, with the mode that is given. False where the entry could not be read,
    /// or changed meanwhile, or is a directory with a default access list: then it is not to be
    /// used.
    ///
    /// # Errors
    /// As [`Packer::pack`].
    pub(super) fn one(
        &mut self,
        directory: &OwnedFd,
        name: &[u8],
        kind: One,
        path: Vec<u8>,
        to: &RemotePath,
    ) -> io::Result<bool> {
        let place = Place { path, name: to.clone() };
        let packed = match kind {
            One::Directory(perm) => {
                self.open_directory(directory.as_fd(), name).and_then(|(own, stat)| {
                    let xattrs = self.xattrs(&own)?;
                    // It would give entries that come later rights that their sources do not give.
                    if xattrs.iter().any(|(name, _)| name == b"system.posix_acl_default") {
                        return Err(Broken::Here(Doing::SetAttr, Errno::EOPNOTSUPP));
                    }
                    let member = self.member(&place, Kind::Directory, &stat, xattrs);
                    writer::append(&mut self.buffer, &Member { perm, ..member });
                    Ok(())
                })
            }
            One::Leaf(kind) => self.leaf(directory.as_fd(), name, kind, &place),
        };
        let missed = missed(packed)?;
        tracing::debug!(?missed, "{to}");
        Ok(missed.is_none())
    }

    /// Sends what is packed.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.send()?;
        self.output.flush()
    }

    /// Ends the archive; if it is complete, with the mark, which has the mtime of the tree. The mark
    /// is not empty if there may be name collisions at the target.
    pub(super) fn finish(mut self, mark: &[u8]) -> io::Result<W> {
        if !self.is_damaged {
            let content = if self.may_collide { &b"\n"[..] } else { b"" };
            self.append(mark, content, self.top_mtime.unwrap_or_default());
        }
        self.end()
    }

    fn append(&mut self, path: &[u8], content: &[u8], mtime: Timestamp) {
        let stored_bytes = content.len() as u64;
        let path = path.to_vec();
        let member = Member { path, perm: 0o600, mtime, stored_bytes, ..Member::default() };
        writer::append(&mut self.buffer, &member);
        self.buffer.extend_from_slice(content);
        writer::append_padding(&mut self.buffer, stored_bytes);
    }

    /// Ends the archive.
    pub(super) fn end(mut self) -> io::Result<W> {
        writer::append_end(&mut self.buffer);
        self.send()?;
        Ok(self.output)
    }

    fn send(&mut self) -> io::Result<()> {
        self.output.write_all(&self.buffer)?;
        self.sent += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn send_if_full(&mut self) -> io::Result<()> {
        if self.buffer.len() < SEND_BYTES { Ok(()) } else { self.send() }
    }

    /// Packs an entry and all below it. What cannot be read is missed.
    fn entry(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        kind: Option<FileKind>,
        place: &Place,
        depth: usize,
    ) -> io::Result<()> {
        if let Some((doing, errno)) = missed(self.try_entry(parent, name, kind, place, depth))? {
            self.counters.missed(&place.name, doing, errno);
        }
        Ok(())
    }

    fn try_entry(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        kind: Option<FileKind>,
        place: &Place,
        depth: usize,
    ) -> Result<(), Broken> {
        let kind = match kind {
            Some(kind) => kind,
            // Some file systems do not report it.
            None => {
                let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
                let stat = stat.map_err(failed(Doing::LookSource))?;
                let kind = FileKind::from_mode(stat.st_mode);
                kind.ok_or(Broken::Here(Doing::LookSource, Errno::EIO))?
            }
        };
        if self.options.filter.excludes(&place.name, kind == FileKind::Directory) {
            return Ok(());
        }
        match kind {
            FileKind::Directory => self.directory(parent, name, place, depth),
            kind => self.leaf(parent, name, kind, place),
        }
    }

    fn open_directory(
        &self,
        parent: BorrowedFd<'_>,
        name: &[u8],
    ) -> Result<(OwnedFd, Stat), Broken> {
        let failed = failed(Doing::ListSource);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(parent, name, flags, Mode::empty()).map_err(&failed)?;
        let stat = rustix::fs::fstat(&directory).map_err(&failed)?;
        Ok((directory, stat))
    }

    fn directory(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        place: &Place,
        depth: usize,
    ) -> Result<(), Broken> {
        let failed = failed(Doing::ListSource);
        let (directory, stat) = self.open_directory(parent, name)?;
        let device = *self.device.get_or_insert(stat.st_dev);
        if self.options.one_file_system && device != stat.st_dev {
            // The run that checks it again reports the problem.
            return Err(Broken::Here(Doing::ListSource, Errno::EXDEV));
        }
        if depth >= DEPTH_LIMIT {
            return Err(Broken::Here(Doing::ListSource, Errno::ENAMETOOLONG));
        }
        let member = self.member(place, Kind::Directory, &stat, self.xattrs(&directory)?);
        self.top_mtime.get_or_insert(member.mtime);
        writer::append(&mut self.buffer, &member);
        self.send_if_full()?;
        self.counters.done(&place.name, FileKind::Directory, 0, &Action::MakeDir);
        let entries = entries(&directory).map_err(&failed)?;
        self.may_collide = self.may_collide || may_collide(entries.iter().map(|(name, _)| name));
        for (name, kind) in entries {
            let path = [&place.path[..], b"/", name.as_bytes()].concat();
            let place = Place { path, name: place.name.join(&name) };
            self.entry(directory.as_fd(), name.as_bytes(), kind, &place, depth + 1)?;
        }
        Ok(())
    }

    /// Packs what is no directory.
    fn leaf(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        kind: FileKind,
        place: &Place,
    ) -> Result<(), Broken> {
        match kind {
            FileKind::Regular => self.file(parent, name, place)?,
            FileKind::Symlink => self.symlink(parent, name, place)?,
            kind => self.special(parent, name, kind, place)?,
        }
        Ok(self.send_if_full()?)
    }

    fn symlink(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        place: &Place,
    ) -> Result<(), Broken> {
        let failed = failed(Doing::Read);
        let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(&failed)?;
        let target = rustix::fs::readlinkat(parent, name, Vec::new()).map_err(&failed)?;
        let xattrs = self.xattrs_of_entry(parent, name, &stat)?;
        let member = self.member(place, Kind::Symlink, &stat, xattrs);
        writer::append(&mut self.buffer, &Member { link: target.into_bytes(), ..member });
        self.counters.done(&place.name, FileKind::Symlink, 0, &Action::MakeLink(Why::New));
        Ok(())
    }

    /// A device or a pipe, where they are wanted; an archive has no sockets.
    fn special(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        kind: FileKind,
        place: &Place,
    ) -> Result<(), Broken> {
        let Some(letter) = letter(kind).filter(|_| self.options.specials) else {
            self.counters.done(&place.name, kind, 0, &Action::Skip(Skip::Special));
            return Ok(());
        };
        let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
        let stat = stat.map_err(failed(Doing::Read))?;
        if FileKind::from_mode(stat.st_mode) != Some(kind) {
            return Err(Broken::Here(Doing::Read, Errno::ESTALE));
        }
        let xattrs = self.xattrs_of_entry(parent, name, &stat)?;
        let member = self.member(place, Kind::Other(letter), &stat, xattrs);
        writer::append(&mut self.buffer, &member);
        self.counters.done(&place.name, kind, 0, &Action::Copy(Why::New));
        Ok(())
    }

    fn file(&mut self, parent: BorrowedFd<'_>, name: &[u8], place: &Place) -> Result<(), Broken> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = rustix::fs::openat(parent, name, flags | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed(Doing::Read))?;
        let stat = rustix::fs::fstat(&file).map_err(failed(Doing::Read))?;
        let changed = Broken::Here(Doing::Read, Errno::ESTALE);
        if !FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(changed);
        }
        // Before its name is noted as one to which others can be linked.
        let xattrs = self.xattrs(&file)?;
        if self.is_further_name(place, &stat) {
            return Ok(());
        }
        let size = stat.st_size as u64;
        let begin = (self.sent, self.buffer.len());
        self.counters.begin_file(size);
        let mut member = self.member(place, Kind::File, &stat, xattrs);
        self.counters.sending = Some((place.name.clone(), attr(&member, FileKind::Regular)));
        let file = File::from(file);
        let pieces = self.options.sparse.then(|| pieces(&file, &stat)).flatten();
        let map = pieces.as_deref().map_or(Vec::new(), writer::sparse_map);
        if let Some(pieces) = &pieces {
            member.sparse_bytes = Some(size);
            member.stored_bytes = map.len() as u64 + pieces.iter().map(|(_, len)| len).sum::<u64>();
        }
        writer::append(&mut self.buffer, &member);
        self.buffer.extend_from_slice(&map);
        let mut whole = true;
        for (at, len) in pieces.unwrap_or_else(|| vec![(0, size)]) {
            whole &= self.content(&file, at, len)?;
        }
        writer::append_padding(&mut self.buffer, member.stored_bytes);
        let after = rustix::fs::fstat(&file);
        let is_same = |after: Stat| {
            (after.st_size, after.st_mtime, after.st_mtime_nsec)
                == (stat.st_size, stat.st_mtime, stat.st_mtime_nsec)
        };
        if whole && after.is_ok_and(is_same) {
            self.counters.done(&place.name, FileKind::Regular, size, &Action::Copy(Why::New));
            self.send_if_full()?;
            self.counters.sending = None;
            return Ok(());
        }
        self.counters.sending = None;
        self.names.remove(&(stat.st_dev, stat.st_ino));
        match begin.0 == self.sent {
            true => self.buffer.truncate(begin.1),
            false => {
                self.is_damaged = true;
                self.append(&place.path, b"", Timestamp::default());
            }
        }
        Err(changed)
    }

    /// Packs a name of a file that another name of was packed before.
    fn is_further_name(&mut self, place: &Place, stat: &Stat) -> bool {
        if !self.options.hard_links || stat.st_nlink < 2 {
            return false;
        }
        let identity = (stat.st_dev, stat.st_ino);
        if let Some((link, first)) = self.names.get(&identity).cloned() {
            let member = self.member(place, Kind::HardLink, stat, Vec::new());
            writer::append(&mut self.buffer, &Member { link, stored_bytes: 0, ..member });
            let action = Action::HardLink { first };
            self.counters.done(&place.name, FileKind::Regular, 0, &action);
            return true;
        }
        if self.names.len() < NAMES_LIMIT {
            self.names.insert(identity, (place.path.clone(), place.name.clone()));
        }
        false
    }

    /// Packs `len` bytes from `at` on; false where some had to be made up.
    fn content(&mut self, file: &File, at: u64, len: u64) -> io::Result<bool> {
        let (mut done, mut whole) = (0, true);
        while done < len {
            let wanted = (len - done).min(READ_BYTES as u64) as usize;
            let start = self.buffer.len();
            self.buffer.resize(start + wanted, 0);
            // What is missing are zeros.
            let mut read = wanted;
            if whole {
                read = match file.read_at(&mut self.buffer[start..], at + done) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                    read => {
                        let read = read.unwrap_or(0);
                        whole = read > 0;
                        if !whole {
                            // A later run must not continue it.
                            self.counters.sending = None;
                        }
                        read
                    }
                };
            }
            self.buffer.truncate(start + read);
            self.counters.bytes(read as u64);
            done += read as u64;
            self.send_if_full()?;
        }
        Ok(whole)
    }

    fn member(&self, place: &Place, kind: Kind, stat: &Stat, xattrs: xattr::List) -> Member {
        let (uid, gid) = (stat.st_uid, stat.st_gid);
        let (uid, gid) = self.options.owners.of(uid, gid).unwrap_or((uid, gid));
        Member {
            path: place.path.clone(),
            kind,
            // The server's tar would give set-ID bits to files of any owner.
            perm: setid::without(kind.file_kind(), stat.st_mode & 0o7777),
            uid,
            gid,
            mtime: Timestamp { secs: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 },
            stored_bytes: if kind == Kind::File { stat.st_size as u64 } else { 0 },
            device: stat.st_rdev,
            xattrs,
            ..Member::default()
        }
    }

    fn xattrs(&self, file: &OwnedFd) -> Result<xattr::List, Broken> {
        if !self.options.xattrs.any() {
            return Ok(xattr::List::new());
        }
        let get = |name: &Bytes| local::get_xattr(file, name);
        read_xattrs(local::list_xattrs(file), self.options.xattrs, get).map_err(here(Doing::Read))
    }

    /// The extended attributes of an entry that must not be opened.
    fn xattrs_of_entry(
        &self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        stat: &Stat,
    ) -> Result<xattr::List, Broken> {
        if !self.options.xattrs.any() {
            return Ok(xattr::List::new());
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let pinned = rustix::fs::openat(parent, name, flags, Mode::empty());
        let pinned = pinned.map_err(failed(Doing::Read))?;
        let now = rustix::fs::fstat(&pinned).map_err(failed(Doing::Read))?;
        match (now.st_dev, now.st_ino) == (stat.st_dev, stat.st_ino) {
            true => self.xattrs(&pinned),
            false => Err(Broken::Here(Doing::Read, Errno::ESTALE)),
        }
    }
}

/// The extended attributes with these names that are to be sent.
pub(super) fn read_xattrs(
    names: base::Result<Vec<Bytes>>,
    wanted: Xattrs,
    get: impl Fn(&Bytes) -> base::Result<Bytes>,
) -> base::Result<xattr::List> {
    let names = match names {
        // The file system has none.
        Err(Errno::EOPNOTSUPP) => return Ok(xattr::List::new()),
        names => names?,
    };
    let mut list = xattr::List::new();
    for name in names.iter().filter(|name| wanted.sends(name)) {
        match get(name) {
            Ok(value) => list.push((name.to_vec(), value.to_vec())),
            // Removed meanwhile.
            Err(Errno::ENODATA) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(list)
}

/// The entries of a directory, without `.` and `..`, with their kinds where these are reported.
fn entries(directory: &OwnedFd) -> rustix::io::Result<Vec<(Name, Option<FileKind>)>> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        // The kernel's names are names, but for these two.
        if let Ok(name) = Name::new(entry.file_name().to_bytes()) {
            entries.push((name, FileKind::from_mode(entry.file_type().as_raw_mode())));
        }
    }
    Ok(entries)
}

/// Where a file has data; `None` where it has no holes.
fn pieces(file: &File, stat: &Stat) -> Option<Vec<Piece>> {
    let size = stat.st_size as u64;
    if stat.st_blocks as u64 * 512 >= size {
        return None;
    }
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < size {
        let begin = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(begin) => begin.min(size),
            // Only a hole is left.
            Err(rustix::io::Errno::NXIO) => break,
            Err(_) => return None,
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(begin)).ok()?.min(size);
        if end <= begin {
            break;
        }
        pieces.push((begin, end - begin));
        at = end;
    }
    // An empty piece at its end marks its length.
    pieces.push((size, 0));
    Some(pieces)
}
