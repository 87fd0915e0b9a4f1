//! The output of `find`, assembled into directories. Pure.
//!
//! `find` lists depth first, and a directory precedes its contents. So each record is in the last
//! directory before it that is one level higher, and a record of depth `n` completes all
//! directories of depth `n` and more before it. The directories that contain the last complete
//! record, and that record itself if it is a directory, may have further entries. These, and no
//! others, are omitted from a listing that was cut short.
//!
//! A record contains a name and no path, so no path has to be trusted.

use base::{Attr, FileKind, Name, RemotePath, Timestamp};

use crate::plan;

/// Longest path of a directory that is given out, in bytes. What is deeper is asked for.
const PATH_MAX_BYTES: usize = 4096;

/// What is held at most, in bytes; what comes then is missing. Three times what honest records of
/// the longest listing take.
const HELD_BYTES: usize = 64 << 20;

/// What an entry takes beside its name, in bytes.
const ENTRY_BYTES: usize = size_of::<(Name, Attr)>() + 2 * size_of::<usize>();

type Entries = Vec<(Name, Attr)>;

/// The records so far.
#[derive(Default)]
pub(super) struct Records {
    /// The directories that `find` is in, the top first.
    open: Vec<Directory>,
    complete: Vec<(RemotePath, Entries)>,
    held_bytes: usize,
    state: State,
}

#[derive(Default, PartialEq, Eq)]
enum State {
    #[default]
    Taking,
    /// Nothing more is taken: as if it were cut off here.
    Full,
    /// This is no listing.
    Wrong,
}

struct Directory {
    /// Relative to the top; `None` where it is too long.
    path: Option<RemotePath>,
    entries: Entries,
    /// It contains an entry that cannot be represented as SFTP would.
    is_odd: bool,
}

impl Records {
    /// Takes the next one, without the NUL behind it. An empty one is none.
    pub(super) fn take(&mut self, record: &[u8]) {
        if !record.is_empty() && self.state == State::Taking && self.enter(record).is_none() {
            self.state = State::Wrong;
        }
    }

    /// All directories, where nothing is missing; `None` where it is no listing.
    pub(super) fn whole(mut self) -> Option<Vec<(RemotePath, Entries)>> {
        if self.state == State::Taking {
            self.leave(0);
        }
        self.cut()
    }

    /// The complete directories, where something is missing behind the last record; `None` where it
    /// is no listing.
    pub(super) fn cut(self) -> Option<Vec<(RemotePath, Entries)>> {
        (self.state != State::Wrong).then_some(self.complete)
    }

    fn enter(&mut self, record: &[u8]) -> Option<()> {
        let (depth, attr, name) = parse(record)?;
        let is_dir = attr.is_some_and(|attr| attr.is_dir());
        if depth == 0 {
            // Nothing but a directory can be listed, and there is one top.
            let is_first = self.open.is_empty() && self.complete.is_empty();
            return (is_dir && is_first).then(|| self.open(Some(RemotePath::root())));
        }
        if depth > self.open.len() {
            return None;
        }
        self.leave(depth);
        let name = Name::new(name).ok()?;
        let parent = self.open.last_mut()?;
        let path = parent.path.as_ref().filter(|_| is_dir).map(|path| path.join(&name));
        self.held_bytes += ENTRY_BYTES + name.as_bytes().len();
        match attr {
            Some(attr) if parent.path.is_some() => parent.entries.push((name, attr)),
            Some(_) => {}
            None => parent.is_odd = true,
        }
        if is_dir {
            self.open(path);
        }
        if self.held_bytes > HELD_BYTES {
            self.state = State::Full;
        }
        Some(())
    }

    fn open(&mut self, path: Option<RemotePath>) {
        let path = path.filter(|path| path.as_bytes().len() <= PATH_MAX_BYTES);
        self.held_bytes += size_of::<Directory>() + size_of::<(RemotePath, Entries)>();
        self.held_bytes += path.as_ref().map_or(0, |path| path.as_bytes().len());
        self.open.push(Directory { path, entries: Vec::new(), is_odd: false });
    }

    /// The directories of this depth and more are complete.
    fn leave(&mut self, depth: usize) {
        for directory in self.open.drain(depth..) {
            let Directory { path: Some(path), mut entries, is_odd: false } = directory else {
                continue;
            };
            plan::put_in_order(&mut entries);
            self.complete.push((path, entries));
        }
    }
}

/// Reads `KIND DEPTH MODE SIZE UID GID MTIME ATIME NAME`, with one space between: the depth, the
/// attributes, if the kind is one that there is, and the name.
fn parse(record: &[u8]) -> Option<(usize, Option<Attr>, &[u8])> {
    let mut fields = record.splitn(9, |byte| *byte == b' ');
    let mut field = || fields.next();
    let kind = kind(field()?)?;
    let depth = number(field()?)?.try_into().ok()?;
    let perm = u32::from_str_radix(text(field()?)?, 8).ok()? & 0o7777;
    // More no file can have.
    let size = number(field()?).filter(|size| i64::try_from(*size).is_ok())?;
    let (uid, gid) = (id(field()?)?, id(field()?)?);
    let (mtime, atime) = (time(field()?)?, time(field()?)?);
    let attr = kind.map(|kind| Attr { kind, perm, size, uid, gid, atime, mtime, inode: None });
    Some((depth, attr, field()?))
}

fn id(field: &[u8]) -> Option<u32> {
    number(field)?.try_into().ok()
}

/// The kind for a letter of `find`; `Some(None)` for a kind without a letter.
fn kind(field: &[u8]) -> Option<Option<FileKind>> {
    let [letter] = field else { return None };
    Some(match letter {
        b'f' => Some(FileKind::Regular),
        b'd' => Some(FileKind::Directory),
        b'l' => Some(FileKind::Symlink),
        b'p' => Some(FileKind::Fifo),
        b's' => Some(FileKind::Socket),
        b'b' => Some(FileKind::BlockDevice),
        b'c' => Some(FileKind::CharDevice),
        _ => None,
    })
}

fn text(field: &[u8]) -> Option<&str> {
    // A sign is a number's beginning for the library.
    std::str::from_utf8(field).ok().filter(|text| !text.starts_with('+'))
}

fn number(field: &[u8]) -> Option<u64> {
    text(field)?.parse().ok()
}

/// A time in whole seconds, as SFTP has it.
fn time(field: &[u8]) -> Option<Timestamp> {
    Some(Timestamp::from_secs(text(field)?.parse().ok()?))
}
