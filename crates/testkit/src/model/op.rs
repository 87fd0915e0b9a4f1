//! One operation of a list, as a value whose debug output is Rust code.

use std::fmt;

use base::{OpenFlags, RenameMode, Result};

use super::{Entry, Stat, Subject};

/// An operation on a [`Subject`]. Fields are as in its methods.
///
/// Paths are literals, so that a printed list can be pasted into a test.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each is a method of Subject, with its parameters as fields")]
pub enum Op {
    Open {
        fd: usize,
        path: &'static str,
        flags: OpenFlags,
    },
    Close {
        fd: usize,
    },
    Pread {
        fd: usize,
        offset: u64,
        len: usize,
    },
    /// Writes `len` bytes that are derived from `fill`.
    Pwrite {
        fd: usize,
        offset: u64,
        len: usize,
        fill: u8,
    },
    Ftruncate {
        fd: usize,
        size: u64,
    },
    Fstat {
        fd: usize,
    },
    Fsync {
        fd: usize,
    },
    Fchmod {
        fd: usize,
        perm: u32,
    },
    Futimens {
        fd: usize,
        secs: i64,
    },
    CopyRange {
        from: usize,
        from_offset: u64,
        to: usize,
        to_offset: u64,
        len: usize,
    },
    Truncate {
        path: &'static str,
        size: u64,
    },
    Mkdir {
        path: &'static str,
        perm: u32,
    },
    Rmdir {
        path: &'static str,
    },
    Unlink {
        path: &'static str,
    },
    Symlink {
        target: &'static str,
        path: &'static str,
    },
    Readlink {
        path: &'static str,
    },
    Link {
        existing: &'static str,
        new: &'static str,
    },
    Rename {
        from: &'static str,
        to: &'static str,
        mode: RenameMode,
    },
    Chmod {
        path: &'static str,
        perm: u32,
    },
    Utimens {
        path: &'static str,
        secs: i64,
        follow: bool,
    },
    Stat {
        path: &'static str,
        follow: bool,
    },
    Readdir {
        path: &'static str,
    },
}

/// The result of an operation.
#[derive(Clone, PartialEq)]
pub(super) enum Answer {
    Done,
    Count(usize),
    Bytes(Vec<u8>),
    Stat(Stat),
    Entries(Vec<Entry>),
}

/// Bytes, shortened for failure messages.
impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Done => f.write_str("done"),
            Answer::Count(count) => write!(f, "{count}"),
            Answer::Bytes(bytes) => {
                let shown = &bytes[..bytes.len().min(32)];
                let dots = if shown.len() < bytes.len() { "…" } else { "" };
                write!(f, "{} bytes \"{}\"{dots}", bytes.len(), shown.escape_ascii())
            }
            Answer::Stat(stat) => write!(f, "{stat:?}"),
            Answer::Entries(entries) => f
                .debug_map()
                .entries(entries.iter().map(|(name, kind)| (name.escape_ascii().to_string(), kind)))
                .finish(),
        }
    }
}

impl Answer {
    /// Number of bytes in which two contents differ, one of which may be longer; 1 for other
    /// results.
    pub(super) fn differing_bytes(&self, other: &Answer) -> u64 {
        let (Answer::Bytes(one), Answer::Bytes(other)) = (self, other) else { return 1 };
        let differ = one.iter().zip(other).filter(|(one, other)| one != other).count();
        (differ + one.len().abs_diff(other.len())) as u64
    }
}

impl Op {
    /// The slots that must be open for the operation.
    pub(super) fn needs(&self) -> impl Iterator<Item = usize> {
        let (one, other) = match *self {
            Op::Close { fd }
            | Op::Pread { fd, .. }
            | Op::Pwrite { fd, .. }
            | Op::Ftruncate { fd, .. }
            | Op::Fstat { fd }
            | Op::Fsync { fd }
            | Op::Fchmod { fd, .. }
            | Op::Futimens { fd, .. } => (Some(fd), None),
            Op::CopyRange { from, to, .. } => (Some(from), Some(to)),
            _ => (None, None),
        };
        one.into_iter().chain(other)
    }

    /// Executes the operation.
    pub(super) fn apply(&self, subject: &mut impl Subject) -> Result<Answer> {
        let done = |()| Answer::Done;
        match *self {
            Op::Open { fd, path, flags } => subject.open(fd, path, flags).map(done),
            Op::Close { fd } => subject.close(fd).map(done),
            Op::Pread { fd, offset, len } => subject.pread(fd, offset, len).map(Answer::Bytes),
            Op::Pwrite { fd, offset, len, fill } => {
                subject.pwrite(fd, offset, &pattern(fill, len)).map(Answer::Count)
            }
            Op::Ftruncate { fd, size } => subject.ftruncate(fd, size).map(done),
            Op::Fstat { fd } => subject.fstat(fd).map(Answer::Stat),
            Op::Fsync { fd } => subject.fsync(fd).map(done),
            Op::Fchmod { fd, perm } => subject.fchmod(fd, perm).map(done),
            Op::Futimens { fd, secs } => subject.futimens(fd, secs).map(done),
            Op::CopyRange { from, from_offset, to, to_offset, len } => {
                subject.copy_range(from, from_offset, to, to_offset, len).map(Answer::Count)
            }
            Op::Truncate { path, size } => subject.truncate(path, size).map(done),
            Op::Mkdir { path, perm } => subject.mkdir(path, perm).map(done),
            Op::Rmdir { path } => subject.rmdir(path).map(done),
            Op::Unlink { path } => subject.unlink(path).map(done),
            Op::Symlink { target, path } => subject.symlink(target, path).map(done),
            Op::Readlink { path } => subject.readlink(path).map(Answer::Bytes),
            Op::Link { existing, new } => subject.link(existing, new).map(done),
            Op::Rename { from, to, mode } => subject.rename(from, to, mode).map(done),
            Op::Chmod { path, perm } => subject.chmod(path, perm).map(done),
            Op::Utimens { path, secs, follow } => subject.utimens(path, secs, follow).map(done),
            Op::Stat { path, follow } => subject.stat(path, follow).map(Answer::Stat),
            Op::Readdir { path } => subject.readdir(path).map(|mut entries| {
                entries.sort_by(|one, other| one.0.cmp(&other.0));
                Answer::Entries(entries)
            }),
        }
    }
}

/// `len` bytes that depend on position and `fill`, never zero, so that a hole, a block in the wrong
/// place and an older write can be distinguished.
pub(super) fn pattern(fill: u8, len: usize) -> Vec<u8> {
    let byte = |at: usize| (at.wrapping_mul(31) ^ (at >> 8) ^ usize::from(fill)) as u8 | 1;
    (0..len).map(byte).collect()
}
