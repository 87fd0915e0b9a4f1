//! Packs a local tree into an archive.
//!
//! A file is opened without following a link, and its header describes the file that was opened. If it
//! has become shorter when it is read, zeros fill the rest, so that the archive stays valid. A file that
//! changed meanwhile or cannot be read counts as missed, and the rest goes on.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use base::{Errno, FileKind, Name, RemotePath, Timestamp};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Stat};

use crate::options::Options;
use crate::outcome::Doing;
use crate::setid;

use super::counters::Counters;
use super::member::{Kind, Member};
use super::reader::Piece;
use super::receive::attr;
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
    options: &'a Options,
    counters: &'a mut Counters,
    /// Of files with several names: the first of them in the archive, and at the target.
    names: HashMap<(u64, u64), (Vec<u8>, RemotePath)>,
    /// The file system that is not left.
    device: Option<u64>,
}

/// An entry: its name in the archive, and at the target.
struct Place {
    path: Vec<u8>,
    name: RemotePath,
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}

impl<'a, W: Write> Packer<'a, W> {
    pub(super) fn new(
        output: W,
        options: &'a Options,
        counters: &'a mut Counters,
    ) -> Packer<'a, W> {
        let buffer = Vec::with_capacity(SEND_BYTES + READ_BYTES);
        Packer { output, buffer, options, counters, names: HashMap::new(), device: None }
    }

    /// Packs what is called `from` in `directory`, as `stage` in the archive and `to` at the target.
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
        self.entry(directory, from, FileType::Unknown, &place, 0)
    }

    /// Packs the entry `name` of `directory`, which is no directory itself, as `path`; it becomes
    /// `to`. False where it could not be read, or changed meanwhile: then it is not to be used.
    ///
    /// # Errors
    /// As [`Packer::pack`].
    pub(super) fn one(
        &mut self,
        directory: &OwnedFd,
        name: &Name,
        kind: FileKind,
        path: Vec<u8>,
        to: &RemotePath,
    ) -> io::Result<bool> {
        let (missed, place) = (self.counters.missed, Place { path, name: to.clone() });
        let (directory, name) = (directory.as_fd(), name.as_bytes());
        match kind {
            FileKind::Regular => self.file(directory, name, &place)?,
            FileKind::Symlink => self.symlink(directory, name, &place)?,
            FileKind::CharDevice => {
                self.special(directory, name, FileType::CharacterDevice, &place)?;
            }
            FileKind::BlockDevice => {
                self.special(directory, name, FileType::BlockDevice, &place)?
            }
            FileKind::Fifo => self.special(directory, name, FileType::Fifo, &place)?,
            FileKind::Directory | FileKind::Socket => return Ok(false),
        }
        Ok(self.counters.missed == missed)
    }

    /// Sends what is packed.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.send()?;
        self.output.flush()
    }

    /// Ends the archive with the mark that it is whole.
    pub(super) fn finish(mut self, mark: &[u8]) -> io::Result<W> {
        let mark = Member { perm: 0o600, ..Member::bare(mark, Kind::File) };
        writer::append(&mut self.buffer, &mark);
        self.end()
    }

    /// Ends the archive.
    pub(super) fn end(mut self) -> io::Result<W> {
        writer::append_end(&mut self.buffer);
        self.send()?;
        Ok(self.output)
    }

    fn send(&mut self) -> io::Result<()> {
        self.output.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    fn send_if_full(&mut self) -> io::Result<()> {
        if self.buffer.len() < SEND_BYTES { Ok(()) } else { self.send() }
    }

    fn missed(&mut self, place: &Place, doing: Doing, errno: Errno) {
        self.counters.missed(&place.name, doing, errno);
    }

    fn entry(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        kind: FileType,
        place: &Place,
        depth: usize,
    ) -> io::Result<()> {
        let kind = match kind {
            // Some file systems do not report it.
            FileType::Unknown => {
                match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(error) => {
                        self.missed(place, Doing::LookSource, errno(error));
                        return Ok(());
                    }
                }
            }
            kind => kind,
        };
        if self.options.filter.excludes(&place.name, kind == FileType::Directory) {
            return Ok(());
        }
        match kind {
            FileType::RegularFile => self.file(parent, name, place),
            FileType::Directory => self.directory(parent, name, place, depth),
            FileType::Symlink => self.symlink(parent, name, place),
            other => self.special(parent, name, other, place),
        }
    }

    fn directory(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        place: &Place,
        depth: usize,
    ) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(parent, name, flags, Mode::empty())
            .and_then(|directory| Ok((rustix::fs::fstat(&directory)?, directory)));
        let (stat, directory) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.missed(place, Doing::ListSource, errno(error));
                return Ok(());
            }
        };
        let device = *self.device.get_or_insert(stat.st_dev);
        if self.options.one_file_system && device != stat.st_dev {
            // The run that checks it again reports the problem.
            self.missed(place, Doing::ListSource, Errno::EXDEV);
            return Ok(());
        }
        if depth >= DEPTH_LIMIT {
            self.missed(place, Doing::ListSource, Errno::ENAMETOOLONG);
            return Ok(());
        }
        let member = self.member(place, Kind::Directory, &stat, self.xattrs(&directory));
        writer::append(&mut self.buffer, &member);
        self.send_if_full()?;
        self.counters.directory(&place.name);
        match entries(&directory) {
            Err(error) => self.missed(place, Doing::ListSource, errno(error)),
            Ok(entries) => {
                for (name, kind) in entries {
                    // The kernel's names are names.
                    let Ok(below) = Name::new(&name) else { continue };
                    let path = [&place.path[..], b"/", &name].concat();
                    let place = Place { path, name: place.name.join(&below) };
                    self.entry(directory.as_fd(), &name, kind, &place, depth + 1)?;
                }
            }
        }
        Ok(())
    }

    fn symlink(&mut self, parent: BorrowedFd<'_>, name: &[u8], place: &Place) -> io::Result<()> {
        let read = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
            .and_then(|stat| Ok((stat, rustix::fs::readlinkat(parent, name, Vec::new())?)));
        match read {
            Ok((stat, target)) => {
                let member = self.member(place, Kind::Symlink, &stat, Vec::new());
                let member = Member { link: target.into_bytes(), ..member };
                writer::append(&mut self.buffer, &member);
                self.counters.symlink(&place.name);
            }
            Err(error) => self.missed(place, Doing::Read, errno(error)),
        }
        self.send_if_full()
    }

    /// A device or a pipe, where they are wanted; an archive has no sockets.
    fn special(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        kind: FileType,
        place: &Place,
    ) -> io::Result<()> {
        let letter = match kind {
            FileType::CharacterDevice => b'3',
            FileType::BlockDevice => b'4',
            FileType::Fifo => b'6',
            _ => 0,
        };
        if letter == 0 || !self.options.specials {
            self.counters.skip(&place.name, file_kind(kind));
            return Ok(());
        }
        match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == kind => {
                let member = self.member(place, Kind::Other(letter), &stat, Vec::new());
                writer::append(&mut self.buffer, &member);
                self.counters.special(&place.name, file_kind(kind));
            }
            Ok(_) => self.missed(place, Doing::Read, Errno::ESTALE),
            Err(error) => self.missed(place, Doing::Read, errno(error)),
        }
        self.send_if_full()
    }

    fn file(&mut self, parent: BorrowedFd<'_>, name: &[u8], place: &Place) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = rustix::fs::openat(parent, name, flags | OFlags::CLOEXEC, Mode::empty())
            .and_then(|file| Ok((rustix::fs::fstat(&file)?, file)));
        let (stat, file) = match opened {
            Ok((stat, file)) if FileType::from_raw_mode(stat.st_mode).is_file() => (stat, file),
            Ok(_) => {
                self.missed(place, Doing::Read, Errno::ESTALE);
                return Ok(());
            }
            Err(error) => {
                self.missed(place, Doing::Read, errno(error));
                return Ok(());
            }
        };
        if self.is_further_name(place, &stat) {
            return self.send_if_full();
        }
        let size = stat.st_size as u64;
        self.counters.begin_file(size);
        let member = self.member(place, Kind::File, &stat, self.xattrs(&file));
        self.counters.sending = Some((place.name.clone(), attr(&member, FileKind::Regular)));
        let file = File::from(file);
        let pieces = self.options.sparse.then(|| pieces(&file, &stat)).flatten();
        let whole = match pieces {
            Some(pieces) => self.pieces(&file, member, &pieces)?,
            None => {
                writer::append(&mut self.buffer, &member);
                let whole = self.content(&file, 0, size)?;
                writer::append_padding(&mut self.buffer, size);
                whole
            }
        };
        let after = rustix::fs::fstat(&file);
        let is_same = |after: Stat| {
            (after.st_size, after.st_mtime, after.st_mtime_nsec)
                == (stat.st_size, stat.st_mtime, stat.st_mtime_nsec)
        };
        if whole && after.is_ok_and(is_same) {
            self.counters.file(&place.name, size);
        } else {
            self.missed(place, Doing::Read, Errno::ESTALE);
        }
        self.send_if_full()?;
        self.counters.sending = None;
        Ok(())
    }

    /// Packs a name of a file that another name of was packed before.
    fn is_further_name(&mut self, place: &Place, stat: &Stat) -> bool {
        if !self.options.hard_links || stat.st_nlink < 2 {
            return false;
        }
        let identity = (stat.st_dev, stat.st_ino);
        if let Some((first, shown)) = self.names.get(&identity).cloned() {
            let member = self.member(place, Kind::HardLink, stat, Vec::new());
            writer::append(&mut self.buffer, &Member { link: first, stored_bytes: 0, ..member });
            self.counters.hard_link(&place.name, &shown);
            return true;
        }
        if self.names.len() < NAMES_LIMIT {
            self.names.insert(identity, (place.path.clone(), place.name.clone()));
        }
        false
    }

    /// Packs a sparse file: its map, and what is between its holes.
    fn pieces(&mut self, file: &File, member: Member, pieces: &[Piece]) -> io::Result<bool> {
        let map = writer::sparse_map(pieces);
        let stored: u64 = pieces.iter().map(|(_, len)| len).sum();
        let stored_bytes = map.len() as u64 + stored;
        let sparse_bytes = Some(member.stored_bytes);
        writer::append(&mut self.buffer, &Member { stored_bytes, sparse_bytes, ..member });
        self.buffer.extend_from_slice(&map);
        let mut whole = true;
        for (at, len) in pieces {
            whole &= self.content(file, *at, *len)?;
        }
        writer::append_padding(&mut self.buffer, stored_bytes);
        Ok(whole)
    }

    /// Packs `len` bytes from `at` on; false where some had to be made up.
    fn content(&mut self, file: &File, at: u64, len: u64) -> io::Result<bool> {
        let mut done = 0;
        let mut whole = true;
        while done < len {
            let wanted = (len - done).min(READ_BYTES as u64) as usize;
            let start = self.buffer.len();
            self.buffer.resize(start + wanted, 0);
            let read = match whole {
                true => file.read_at(&mut self.buffer[start..], at + done),
                // What is missing are zeros.
                false => Ok(wanted),
            };
            match read {
                Ok(read) if read > 0 => {
                    self.buffer.truncate(start + read);
                    self.counters.bytes(read as u64);
                    done += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    self.buffer.truncate(start);
                }
                Ok(_) | Err(_) => {
                    self.buffer.truncate(start);
                    whole = false;
                }
            }
            self.send_if_full()?;
        }
        Ok(whole)
    }

    fn member(
        &self,
        place: &Place,
        kind: Kind,
        stat: &Stat,
        xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Member {
        let (uid, gid) = (stat.st_uid, stat.st_gid);
        let (uid, gid) = self.options.owners.of(uid, gid).unwrap_or((uid, gid));
        Member {
            path: place.path.clone(),
            kind,
            link: Vec::new(),
            // The server's tar would give set-ID bits to files of any owner.
            perm: setid::without(kind.file_kind(), stat.st_mode & 0o7777),
            uid,
            gid,
            mtime: Timestamp { secs: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 },
            stored_bytes: if kind == Kind::File { stat.st_size as u64 } else { 0 },
            sparse_bytes: None,
            device: stat.st_rdev,
            xattrs,
        }
    }

    fn xattrs(&self, file: &OwnedFd) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut xattrs = Vec::new();
        if !self.options.xattrs.any() {
            return xattrs;
        }
        let mut names = vec![0; XATTR_BYTES];
        let Ok(len) = rustix::fs::flistxattr(file, &mut names[..]) else { return xattrs };
        for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let mut value = vec![0; XATTR_BYTES];
            // What the kernel makes up by itself is not the file's.
            if self.options.xattrs.takes(name)
                && !name.starts_with(b"system.")
                && let Ok(len) = rustix::fs::fgetxattr(file, name, &mut value[..])
            {
                value.truncate(len);
                xattrs.push((name.to_vec(), value));
            }
        }
        xattrs
    }
}

/// Linux's limit of all names of a file's attributes, and of one value.
const XATTR_BYTES: usize = 64 << 10;

fn file_kind(kind: FileType) -> FileKind {
    match kind {
        FileType::Socket => FileKind::Socket,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::CharacterDevice => FileKind::CharDevice,
        _ => FileKind::Fifo,
    }
}

/// The entries of a directory, without `.` and `..`.
fn entries(directory: &OwnedFd) -> rustix::io::Result<Vec<(Vec<u8>, FileType)>> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            entries.push((name.to_vec(), entry.file_type()));
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
