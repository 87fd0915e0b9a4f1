//! One member of an archive, as the reader and the writer describe it.

use base::{FileKind, Timestamp};

/// Archives are sequences of blocks of this many bytes.
pub(super) const BLOCK_BYTES: usize = 512;

/// What a member is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    File,
    /// Another name of a member before it.
    HardLink,
    Symlink,
    Directory,
    /// A device, a pipe, or something that this program does not know, by its letter.
    Other(u8),
}

impl Kind {
    /// As the system has it; a further name is of a regular file.
    pub(super) fn file_kind(self) -> FileKind {
        match self {
            Kind::File | Kind::HardLink => FileKind::Regular,
            Kind::Symlink => FileKind::Symlink,
            Kind::Directory => FileKind::Directory,
            Kind::Other(letter) => {
                let special = SPECIALS.iter().find(|(it, _)| *it == letter);
                special.map_or(FileKind::Socket, |(_, kind)| *kind)
            }
        }
    }
}

/// A member, without its data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Member {
    /// As the archive has it: nothing is checked yet.
    pub path: Vec<u8>,
    pub kind: Kind,
    /// What a link names; empty for all others.
    pub link: Vec<u8>,
    /// At most `0o7777`.
    pub perm: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Timestamp,
    /// Bytes of data that follow.
    pub stored_bytes: u64,
    /// The file's length, when the data that follow are a map and what is between the holes.
    pub sparse_bytes: Option<u64>,
    /// Of a device: its number, as the system has it.
    pub device: u64,
    /// Extended attributes: names and values.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Member {
    /// The length of the file that the member is.
    pub(super) fn file_bytes(&self) -> u64 {
        self.sparse_bytes.unwrap_or(self.stored_bytes)
    }
}

/// Special members, with their letters.
const SPECIALS: [(u8, FileKind); 3] =
    [(b'3', FileKind::CharDevice), (b'4', FileKind::BlockDevice), (b'6', FileKind::Fifo)];

/// The letter of a special member; `None` for a kind that an archive does not have.
pub(super) fn letter(kind: FileKind) -> Option<u8> {
    SPECIALS.iter().find(|(_, it)| *it == kind).map(|(letter, _)| *letter)
}

/// Zeros that follow `bytes` of data.
pub(super) fn padding(bytes: u64) -> usize {
    let over = (bytes % BLOCK_BYTES as u64) as usize;
    if over == 0 { 0 } else { BLOCK_BYTES - over }
}

/// The sum over a header's bytes, its own field counted as blanks.
pub(super) fn checksum(header: &[u8; BLOCK_BYTES]) -> u32 {
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    sum(&header[..148]) + 8 * u32::from(b' ') + sum(&header[156..])
}
