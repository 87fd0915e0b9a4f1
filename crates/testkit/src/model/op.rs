//! One operation of a list, as a value whose debug output is Rust code.

use std::fmt;

use base::{OpenFlags, RenameMode, Result};

use super::{Entry, Stat, Subject};

macro_rules! operations {
    ($($(#[$doc:meta])* $op:ident { $($field:ident: $kind:ty),* }
        => $method:ident($($arg:expr),*), $answer:expr;)*) => {
        /// An operation on a [`Subject`]. Fields are as in its methods.
        ///
        /// Paths are literals, so that a printed list can be pasted into a test.
        #[derive(Clone, Debug, PartialEq)]
        #[expect(missing_docs, reason = "each is a method of Subject, with its parameters as fields")]
        pub enum Op {
            $($(#[$doc])* $op { $($field: $kind),* },)*
        }

        impl Op {
            /// Executes the operation.
            pub(super) fn apply(&self, subject: &mut impl Subject) -> Result<Answer> {
                match *self {
                    $(Op::$op { $($field),* } => subject.$method($($arg),*).map($answer),)*
                }
            }
        }
    };
}

operations! {
    Open { fd: usize, path: &'static str, flags: OpenFlags }
        => open(fd, path, flags), Answer::Done;
    Close { fd: usize } => close(fd), Answer::Done;
    Pread { fd: usize, offset: u64, len: usize } => pread(fd, offset, len), Answer::Bytes;
    /// Writes `len` bytes that are derived from `fill`.
    Pwrite { fd: usize, offset: u64, len: usize, fill: u8 }
        => pwrite(fd, offset, &pattern(fill, len)), Answer::Count;
    Ftruncate { fd: usize, size: u64 } => ftruncate(fd, size), Answer::Done;
    Fstat { fd: usize } => fstat(fd), Answer::Stat;
    Fsync { fd: usize } => fsync(fd), Answer::Done;
    Fchmod { fd: usize, perm: u32 } => fchmod(fd, perm), Answer::Done;
    Futimens { fd: usize, secs: i64 } => futimens(fd, secs), Answer::Done;
    CopyRange { from: usize, from_offset: u64, to: usize, to_offset: u64, len: usize }
        => copy_range(from, from_offset, to, to_offset, len), Answer::Count;
    Truncate { path: &'static str, size: u64 } => truncate(path, size), Answer::Done;
    Mkdir { path: &'static str, perm: u32 } => mkdir(path, perm), Answer::Done;
    Rmdir { path: &'static str } => rmdir(path), Answer::Done;
    Unlink { path: &'static str } => unlink(path), Answer::Done;
    Symlink { target: &'static str, path: &'static str } => symlink(target, path), Answer::Done;
    Readlink { path: &'static str } => readlink(path), Answer::Bytes;
    Link { existing: &'static str, new: &'static str } => link(existing, new), Answer::Done;
    Rename { from: &'static str, to: &'static str, mode: RenameMode }
        => rename(from, to, mode), Answer::Done;
    Chmod { path: &'static str, perm: u32 } => chmod(path, perm), Answer::Done;
    Utimens { path: &'static str, secs: i64, follow: bool }
        => utimens(path, secs, follow), Answer::Done;
    Stat { path: &'static str, follow: bool } => stat(path, follow), Answer::Stat;
    Readdir { path: &'static str } => readdir(path), Answer::sorted;
}

/// The result of an operation.
#[derive(Clone, PartialEq)]
pub(super) enum Answer {
    Done(()),
    Count(usize),
    Bytes(Vec<u8>),
    Stat(Stat),
    Entries(Vec<Entry>),
}

/// Bytes, shortened for failure messages.
impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Done(()) => f.write_str("done"),
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
    /// A listing, in the order of the names.
    fn sorted(mut entries: Vec<Entry>) -> Answer {
        entries.sort_by(|one, other| one.0.cmp(&other.0));
        Answer::Entries(entries)
    }

    /// The first difference of two contents, for a failure message; empty for other results.
    pub(super) fn first_difference(&self, got: &Answer) -> String {
        let (Answer::Bytes(expected), Answer::Bytes(got)) = (self, got) else {
            return String::new();
        };
        let at = expected.iter().zip(got).position(|(one, other)| one != other);
        let at = at.unwrap_or_else(|| expected.len().min(got.len()));
        let byte = |bytes: &[u8]| bytes.get(at).map_or("end".into(), |byte| format!("{byte:#04x}"));
        format!(" (first difference at {at}: expected {}, got {})", byte(expected), byte(got))
    }

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
}

/// `len` bytes that depend on position and `fill`, never zero, so that a hole, a block in the wrong
/// place and an older write can be distinguished.
pub(crate) fn pattern(fill: u8, len: usize) -> Vec<u8> {
    let byte = |at: usize| (at.wrapping_mul(31) ^ (at >> 8) ^ usize::from(fill)) as u8 | 1;
    (0..len).map(byte).collect()
}
