//! The reply to an open.

use std::sync::Arc;

use crate::abi::{self, flags::fopen};
use crate::passthrough::BackingId;

/// An opened file or directory.
#[derive(Clone, Debug, Default)]
pub struct Opened {
    /// The file system's handle; returned by `release` or `releasedir`.
    pub fh: u64,
    /// Flags for the kernel.
    pub flags: OpenReply,
}

impl Opened {
    /// A reply with the handle `fh` and default flags.
    pub fn new(fh: u64) -> Opened {
        Opened { fh, flags: OpenReply::default() }
    }

    pub(crate) fn wire(&self) -> abi::OpenOut {
        abi::OpenOut {
            fh: self.fh,
            open_flags: self.flags.wire(),
            backing_id: self.flags.passthrough.as_ref().map_or(0, |backing| backing.number()),
        }
    }
}

/// How the kernel treats an open file.
#[derive(Clone, Debug, Default)]
pub struct OpenReply {
    /// Reads and writes bypass the page cache.
    ///
    /// Has to be set for an open with `O_DIRECT`, together with `parallel_direct_writes`: on a
    /// cached open the kernel sends no interrupt for asynchronous direct I/O, and its caller cannot
    /// even be killed.
    pub direct_io: bool,
    /// Keeps the cached pages of this inode; without it, this open drops them.
    pub keep_cache: bool,
    /// Allows concurrent direct writes to this inode.
    pub parallel_direct_writes: bool,
    /// No `flush` at close.
    pub noflush: bool,
    /// Reads and writes go to this file instead, without a request. Only `direct_io`, `noflush` and
    /// `parallel_direct_writes` may be set in addition. All concurrent opens of one inode must use
    /// the same backing file, and none of them may be cached.
    pub passthrough: Option<Arc<BackingId>>,
}

impl OpenReply {
    fn wire(&self) -> u32 {
        [
            (self.direct_io, fopen::DIRECT_IO),
            (self.keep_cache, fopen::KEEP_CACHE),
            (self.parallel_direct_writes, fopen::PARALLEL_DIRECT_WRITES),
            (self.noflush, fopen::NOFLUSH),
            (self.passthrough.is_some(), fopen::PASSTHROUGH),
        ]
        .into_iter()
        .filter(|(set, _)| *set)
        .fold(0, |bits, (_, bit)| bits | bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_their_bits() {
        let flags = OpenReply {
            direct_io: true,
            keep_cache: true,
            parallel_direct_writes: true,
            noflush: true,
            passthrough: None,
        };
        assert_eq!(
            Opened { fh: 9, flags }.wire(),
            abi::OpenOut { fh: 9, open_flags: 0x63, backing_id: 0 }
        );
        assert_eq!(Opened::new(1).wire().open_flags, 0);
    }
}
