//! For each operation, the method of the file system and the type of its reply.

use std::sync::Arc;

use base::{Errno, LockKind, LockRange};

use super::Inner;
use super::accounting::Call;
use super::reply::Listing;
use crate::abi::{self, opcode};
use crate::attr::{decode_device, getattr_out, statfs_out, statx_out};
use crate::filesystem::Filesystem;
use crate::operation::{Context, LockRequest, Operation};

impl<F: Filesystem> Inner<F> {
    /// Starts an operation of the file system on `ino`, which is the parent if the operation has a
    /// name.
    pub(super) fn perform(
        self: &Arc<Self>,
        ctx: Context,
        ino: u64,
        call: Call,
        operation: Operation<'_>,
    ) {
        /// Calls a method of the file system and replies with a method of
        /// [`Reply`](super::reply::Reply). The names in brackets are copied, since the operation may
        /// outlive the buffer.
        macro_rules! run {
            ($([$($name:ident),*])? $method:ident($($argument:expr),*)
                => $answer:ident($($extra:expr),*)) => {{
                $($(let $name = $name.to_vec();)*)?
                self.run(&ctx, call, move |reply| async move {
                    let result = reply.filesystem().$method($($argument),*).await;
                    reply.$answer(result $(, $extra)*);
                })
            }};
        }
        match operation {
            Operation::Lookup { name } => run!([name] lookup(&ctx, ino, &name) => found()),
            Operation::Getattr => run!(getattr(&ctx, ino) => wire(getattr_out)),
            Operation::Setattr { change } => {
                run!(setattr(&ctx, ino, &change) => wire(getattr_out))
            }
            Operation::Statx => run!(statx(ino) => wire(statx_out)),
            Operation::Readlink => {
                self.run(&ctx, call, move |reply| async move {
                    match reply.filesystem().readlink(ino).await {
                        Ok(target) => reply.bytes(&target),
                        Err(errno) => reply.error(errno),
                    }
                });
            }
            Operation::Symlink { name, target } => {
                run!([name, target] symlink(ino, &name, &target) => entry())
            }
            Operation::Mknod { name, mode, umask, rdev } => {
                let device = decode_device(rdev);
                run!([name] mknod(&ctx, ino, &name, mode, umask, device) => entry())
            }
            Operation::Mkdir { name, mode, umask } => {
                run!([name] mkdir(&ctx, ino, &name, mode, umask) => entry())
            }
            Operation::Unlink { name } => run!([name] unlink(&ctx, ino, &name) => empty()),
            Operation::Rmdir { name } => run!([name] rmdir(&ctx, ino, &name) => empty()),
            Operation::Rename { name, new_parent, new_name, flags } => {
                run!([name, new_name] rename(&ctx, ino, &name, new_parent, &new_name, flags)
                    => empty())
            }
            // The header has the new directory, and the body the inode.
            Operation::Link { ino: existing, new_name } => {
                run!([new_name] link(existing, ino, &new_name) => entry())
            }
            Operation::Open(open) => run!(open(&ctx, ino, &open) => opened(ino, false)),
            Operation::Create { name, create } => {
                run!([name] create(ino, &name, &create) => created())
            }
            Operation::Read(read) => run!(read(ino, &read) => data(read.size)),
            Operation::Flush { fh, lock_owner } => run!(flush(&ctx, fh, lock_owner) => empty()),
            Operation::Release { fh } => run!(release(ino, fh) => empty()),
            Operation::Fsync { fh } => run!(fsync(fh) => empty()),
            Operation::Opendir => run!(opendir(ino) => opened(ino, true)),
            Operation::Readdir { read, plus } => {
                let mut listing = Listing::new(self, read.size, plus);
                self.run(&ctx, call, move |reply| async move {
                    let filesystem = reply.filesystem();
                    let sink = &mut listing.sink;
                    let result = filesystem.readdir(ino, read.fh, read.offset, sink).await;
                    reply.listing(result, listing);
                });
            }
            Operation::Releasedir { fh } => run!(releasedir(fh) => empty()),
            Operation::Fsyncdir => run!(fsyncdir(ino) => empty()),
            Operation::Statfs => run!(statfs(ino) => wire(|figures| statfs_out(&figures))),
            Operation::Setxattr { name, value, flags } => {
                run!([name, value] setxattr(ino, &name, &value, flags) => empty())
            }
            Operation::Getxattr { name, size } => {
                run!([name] getxattr(ino, &name, size) => xattr(size))
            }
            Operation::Listxattr { size } => run!(listxattr(ino) => xattr(size)),
            Operation::Removexattr { name } => run!([name] removexattr(ino, &name) => empty()),
            Operation::Access { mask } => run!(access(ino, mask) => empty()),
            Operation::Getlk(lock) => run!(getlk(&lock) => wire(|found| lock_out(&lock, found))),
            Operation::Setlk(lock) => run!(setlk(&lock) => empty()),
            Operation::Fallocate { fh, offset, len, mode } => {
                run!(fallocate(&ctx, ino, fh, offset, len, mode) => empty())
            }
            Operation::Lseek { fh, offset, whence } => {
                run!(lseek(fh, offset, whence) => wire(|offset| abi::LseekOut { offset }))
            }
            Operation::CopyFileRange { copy, wide: true } => {
                run!(copy_file_range(&ctx, &copy)
                    => wire(|bytes_copied| abi::CopyFileRangeOut { bytes_copied }))
            }
            Operation::CopyFileRange { mut copy, wide: false } => {
                // The reply is a WriteOut with 32 bits.
                copy.len = copy.len.min(u64::from(u32::MAX) & !4095);
                run!(copy_file_range(&ctx, &copy)
                    => wire(|copied| abi::WriteOut { size: copied as u32, padding: 0 }))
            }
            Operation::Unknown { opcode } => {
                // Some kernels would return ENOSYS to the caller of ioctl(2).
                let is_ioctl = opcode == opcode::IOCTL;
                let errno = if is_ioctl { Errno::ENOTTY } else { Errno::ENOSYS };
                self.run(&ctx, call, move |reply| async move { reply.error(errno) });
            }
            // Operations without a method, and WRITE with its buffer, are handled by dispatch.
            Operation::Forget { .. }
            | Operation::BatchForget { .. }
            | Operation::Interrupt { .. }
            | Operation::NotifyReply
            | Operation::Destroy
            | Operation::Init(_)
            | Operation::Write(..) => unreachable!("dispatch handles these itself"),
        }
    }
}

/// The conflicting lock, or the range of the request without a lock.
fn lock_out(request: &LockRequest, found: Option<(LockRange, LockKind)>) -> abi::LkOut {
    let type_ = match found.map(|(_, kind)| kind) {
        Some(LockKind::Read) => libc::F_RDLCK,
        Some(LockKind::Write) => libc::F_WRLCK,
        None => libc::F_UNLCK,
    };
    let range = found.map(|(range, _)| range).or(request.range).unwrap_or(LockRange::WHOLE);
    let (start, end) = (range.start(), range.last());
    // The process may be of another machine.
    abi::LkOut { lk: abi::FileLock { start, end, type_: type_ as u32, pid: 0 } }
}
