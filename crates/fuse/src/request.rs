//! Parses the bytes of `/dev/fuse` into a typed [`Request`]. Pure: no I/O, no allocation, no
//! panics.
//!
//! The kernel is trusted not to be malicious, but may disagree with this crate on a length: a
//! request that does not match is [`Malformed`], and the session answers it with an error.

use base::{LockFamily, LockKind, LockOwner, LockRange, Timestamp};

use crate::abi::flags::{self, setattr};
use crate::abi::{self, InHeader, Wire, opcode};
use crate::attr::{SetAttr, SetTime};
use crate::operation::{
    CopyFileRange, Create, ForgetItems, Init, LockRequest, Open, Operation, Read, Write,
};

/// Offset of the data in a WRITE request.
pub const WRITE_DATA_OFFSET: usize = InHeader::SIZE + abi::WriteIn::SIZE;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The header as received.
    pub header: InHeader,
    /// The operation.
    pub operation: Operation<'a>,
}

/// An invalid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Shorter than a header, or the length field is wrong. Cannot be answered, since its number is
    /// not reliable.
    #[error("a request of {got} bytes that says it has {said}")]
    Header {
        /// Received bytes.
        got: usize,
        /// The length field, zero if there is none.
        said: u32,
    },
    /// The body does not match the opcode.
    #[error("a malformed request {} ({})", opcode::name(header.opcode).unwrap_or("?"), header.opcode)]
    Body {
        /// The header, with the number for the error reply.
        header: InHeader,
    },
}

impl<'a> Request<'a> {
    /// Parses one request, which must be all of `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Request<'a>, Malformed> {
        let mut rest = bytes;
        let header =
            InHeader::take(&mut rest).ok_or(Malformed::Header { got: bytes.len(), said: 0 })?;
        if header.len as usize != bytes.len() {
            return Err(Malformed::Header { got: bytes.len(), said: header.len });
        }
        // Extensions are at the end. None is negotiated, so they are skipped.
        let extensions = usize::from(header.total_extlen) * 8;
        let body = rest.len().checked_sub(extensions).map(|len| &rest[..len]);
        match body.and_then(|body| Body(body).operation(&header)) {
            Some(operation) => Ok(Request { header, operation }),
            None => Err(Malformed::Body { header }),
        }
    }
}

/// The rest of a request's body.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn operation(mut self, header: &InHeader) -> Option<Operation<'a>> {
        Some(match header.opcode {
            opcode::LOOKUP => Operation::Lookup { name: self.name()? },
            opcode::FORGET => Operation::Forget { count: self.take::<abi::ForgetIn>()?.nlookup },
            opcode::BATCH_FORGET => {
                let count = self.take::<abi::BatchForgetIn>()?.count as usize;
                let size = count.checked_mul(abi::ForgetOne::SIZE)?;
                Operation::BatchForget { items: ForgetItems(self.bytes(size)?) }
            }
            opcode::GETATTR => {
                self.take::<abi::GetattrIn>()?;
                Operation::Getattr
            }
            opcode::SETATTR => Operation::Setattr { change: set_attr(&self.take()?)? },
            opcode::STATX => {
                self.take::<abi::StatxIn>()?;
                Operation::Statx
            }
            opcode::READLINK => Operation::Readlink,
            opcode::SYMLINK => Operation::Symlink { name: self.name()?, target: self.string()? },
            opcode::MKNOD => {
                let abi::MknodIn { mode, rdev, umask, .. } = self.take()?;
                Operation::Mknod { name: self.name()?, mode, umask, rdev }
            }
            opcode::MKDIR => {
                let abi::MkdirIn { mode, umask } = self.take()?;
                Operation::Mkdir { name: self.name()?, mode, umask }
            }
            opcode::UNLINK => Operation::Unlink { name: self.name()? },
            opcode::RMDIR => Operation::Rmdir { name: self.name()? },
            opcode::RENAME => {
                let new_parent = self.take::<abi::RenameIn>()?.newdir;
                let (name, new_name) = (self.name()?, self.name()?);
                Operation::Rename { name, new_parent, new_name, flags: 0 }
            }
            opcode::RENAME2 => {
                let abi::Rename2In { newdir: new_parent, flags, .. } = self.take()?;
                let (name, new_name) = (self.name()?, self.name()?);
                Operation::Rename { name, new_parent, new_name, flags }
            }
            opcode::LINK => {
                let ino = self.take::<abi::LinkIn>()?.oldnodeid;
                Operation::Link { ino, new_name: self.name()? }
            }
            opcode::OPEN => {
                let abi::OpenIn { flags, open_flags } = self.take()?;
                let kill_suidgid = open_flags & flags::OPEN_KILL_SUIDGID != 0;
                Operation::Open(Open { flags: flags as i32, kill_suidgid })
            }
            opcode::READ => Operation::Read(self.read()?),
            opcode::READDIR => Operation::Readdir { read: self.read()?, plus: false },
            opcode::READDIRPLUS => Operation::Readdir { read: self.read()?, plus: true },
            opcode::WRITE => self.write()?,
            opcode::STATFS => Operation::Statfs,
            opcode::RELEASE => Operation::Release { fh: self.take::<abi::ReleaseIn>()?.fh },
            opcode::RELEASEDIR => Operation::Releasedir { fh: self.take::<abi::ReleaseIn>()?.fh },
            opcode::FSYNC => Operation::Fsync { fh: self.take::<abi::FsyncIn>()?.fh },
            opcode::FSYNCDIR => {
                self.take::<abi::FsyncIn>()?;
                Operation::Fsyncdir
            }
            opcode::SETXATTR => {
                let abi::SetxattrIn { size, flags } = self.take()?;
                let name = self.xattr_name()?;
                Operation::Setxattr { name, value: self.bytes(size as usize)?, flags }
            }
            opcode::GETXATTR => {
                let size = self.take::<abi::GetxattrIn>()?.size;
                Operation::Getxattr { name: self.xattr_name()?, size }
            }
            opcode::LISTXATTR => {
                Operation::Listxattr { size: self.take::<abi::GetxattrIn>()?.size }
            }
            opcode::REMOVEXATTR => Operation::Removexattr { name: self.xattr_name()? },
            opcode::FLUSH => {
                let wire: abi::FlushIn = self.take()?;
                Operation::Flush { fh: wire.fh, lock_owner: wire.lock_owner }
            }
            opcode::INIT => self.init()?,
            opcode::OPENDIR => {
                self.take::<abi::OpenIn>()?;
                Operation::Opendir
            }
            opcode::GETLK => Operation::Getlk(self.lock(false)?),
            opcode::SETLK => Operation::Setlk(self.lock(false)?),
            opcode::SETLKW => Operation::Setlk(self.lock(true)?),
            opcode::ACCESS => Operation::Access { mask: self.take::<abi::AccessIn>()?.mask },
            opcode::CREATE => {
                let create = self.create()?;
                Operation::Create { name: self.name()?, create }
            }
            opcode::INTERRUPT => {
                Operation::Interrupt { unique: self.take::<abi::InterruptIn>()?.unique }
            }
            opcode::DESTROY => Operation::Destroy,
            opcode::NOTIFY_REPLY => Operation::NotifyReply,
            opcode::FALLOCATE => {
                let wire: abi::FallocateIn = self.take()?;
                Operation::Fallocate {
                    fh: wire.fh,
                    offset: wire.offset,
                    len: wire.length,
                    mode: wire.mode as i32,
                }
            }
            opcode::LSEEK => {
                let wire: abi::LseekIn = self.take()?;
                Operation::Lseek { fh: wire.fh, offset: wire.offset as i64, whence: wire.whence }
            }
            opcode::COPY_FILE_RANGE => {
                Operation::CopyFileRange { copy: self.copy_file_range()?, wide: false }
            }
            opcode::COPY_FILE_RANGE_64 => {
                Operation::CopyFileRange { copy: self.copy_file_range()?, wide: true }
            }
            opcode => Operation::Unknown { opcode },
        })
    }

    fn take<T: Wire>(&mut self) -> Option<T> {
        T::take(&mut self.0)
    }

    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    /// The bytes up to a NUL, which is consumed too.
    fn string(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let string = self.bytes(end)?;
        self.bytes(1)?;
        Some(string)
    }

    /// The name of a directory entry.
    fn name(&mut self) -> Option<&'a [u8]> {
        self.string().filter(|name| !name.is_empty() && !name.contains(&b'/'))
    }

    fn xattr_name(&mut self) -> Option<&'a [u8]> {
        self.string().filter(|name| !name.is_empty())
    }

    fn read(&mut self) -> Option<Read> {
        let wire: abi::ReadIn = self.take()?;
        Some(Read { fh: wire.fh, offset: wire.offset, size: wire.size })
    }

    fn write(&mut self) -> Option<Operation<'a>> {
        let wire: abi::WriteIn = self.take()?;
        let write = Write {
            fh: wire.fh,
            offset: wire.offset,
            flags: wire.flags as i32,
            cached: wire.write_flags & flags::WRITE_CACHE != 0,
            kill_suidgid: wire.write_flags & flags::WRITE_KILL_SUIDGID != 0,
        };
        Some(Operation::Write(write, self.bytes(wire.size as usize)?))
    }

    fn init(&mut self) -> Option<Operation<'a>> {
        let wire: abi::InitIn = self.take()?;
        let mut flags = u64::from(wire.flags);
        if flags & flags::init::INIT_EXT != 0 {
            flags |= u64::from(self.take::<u32>()?) << 32;
        }
        Some(Operation::Init(Init {
            major: wire.major,
            minor: wire.minor,
            max_readahead: wire.max_readahead,
            flags,
        }))
    }

    fn lock(&mut self, wait: bool) -> Option<LockRequest> {
        let wire: abi::LkIn = self.take()?;
        let kind = match i32::try_from(wire.lk.type_).ok()? {
            libc::F_RDLCK => Some(LockKind::Read),
            libc::F_WRLCK => Some(LockKind::Write),
            libc::F_UNLCK => None,
            _ => return None,
        };
        let (family, range) = match wire.lk_flags & flags::LK_FLOCK != 0 {
            true => (LockFamily::Flock, Some(LockRange::WHOLE)),
            false => (LockFamily::Posix, LockRange::new(wire.lk.start, wire.lk.end)),
        };
        let owner = LockOwner { family, number: wire.owner };
        Some(LockRequest { fh: wire.fh, owner, range, kind, wait })
    }

    fn create(&mut self) -> Option<Create> {
        let wire: abi::CreateIn = self.take()?;
        Some(Create {
            flags: wire.flags as i32,
            mode: wire.mode,
            umask: wire.umask,
            kill_suidgid: wire.open_flags & flags::OPEN_KILL_SUIDGID != 0,
        })
    }

    fn copy_file_range(&mut self) -> Option<CopyFileRange> {
        let wire: abi::CopyFileRangeIn = self.take()?;
        Some(CopyFileRange {
            fh_in: wire.fh_in,
            offset_in: wire.off_in,
            ino_out: wire.nodeid_out,
            fh_out: wire.fh_out,
            offset_out: wire.off_out,
            len: wire.len,
        })
    }
}

fn set_attr(wire: &abi::SetattrIn) -> Option<SetAttr> {
    let given = |bit: u32| wire.valid & bit != 0;
    let timestamp =
        |secs: i64, nanos: u32| (nanos < 1_000_000_000).then_some(Timestamp { secs, nanos });
    let time = |bit: u32, now: u32, secs: i64, nanos: u32| -> Option<Option<SetTime>> {
        Some(match (given(bit), given(now)) {
            (false, _) => None,
            (true, true) => Some(SetTime::Now),
            (true, false) => Some(SetTime::At(timestamp(secs, nanos)?)),
        })
    };
    Some(SetAttr {
        mode: given(setattr::MODE).then_some(wire.mode),
        uid: given(setattr::UID).then_some(wire.uid),
        gid: given(setattr::GID).then_some(wire.gid),
        size: given(setattr::SIZE).then_some(wire.size),
        atime: time(setattr::ATIME, setattr::ATIME_NOW, wire.atime, wire.atimensec)?,
        mtime: time(setattr::MTIME, setattr::MTIME_NOW, wire.mtime, wire.mtimensec)?,
        fh: given(setattr::FH).then_some(wire.fh),
        kill_suidgid: given(setattr::KILL_SUIDGID),
    })
}

#[cfg(test)]
mod tests;
