//! For each operation, the method of the file system and the type of its reply.

use std::sync::Arc;

use base::Errno;

use super::Inner;
use super::accounting::Call;
use super::reply::Listing;
use crate::abi::{self, opcode};
use crate::filesystem::Filesystem;
use crate::operation::{Context, Lock, LockKind, Operation};

/// Calls a method of the file system and replies with a method of [`Reply`](super::reply::Reply).
macro_rules! run {
    ($inner:ident, $ctx:ident, $call:ident, $method:ident($($argument:expr),*) => $answer:ident($($extra:expr),*)) => {
        $inner.run(&$ctx, $call, move |reply| async move {
            let result = reply.filesystem().$method(&$ctx, $($argument),*).await;
            reply.$answer(result $(, $extra)*);
        })
    };
    ($inner:ident, $ctx:ident, $call:ident, $method:ident($($argument:expr),*) => wire $wire:expr) => {
        $inner.run(&$ctx, $call, move |reply| async move {
            let result = reply.filesystem().$method(&$ctx, $($argument),*).await;
            reply.wire(result.map($wire));
        })
    };
}

impl<F: Filesystem> Inner<F> {
    /// Starts an operation of the file system on `ino`, which is the parent if the operation has a
    /// name.
    ///
    /// Names are copied, since the operation may outlive the buffer.
    pub(super) fn perform(
        self: &Arc<Self>,
        ctx: Context,
        ino: u64,
        call: Call,
        operation: Operation<'_>,
    ) {
        match operation {
            Operation::Lookup { name } => {
                let name = name.to_vec();
                run!(self, ctx, call, lookup(ino, &name) => entry());
            }
            Operation::Getattr { fh } => {
                run!(self, ctx, call, getattr(ino, fh) => wire |reply| reply.wire());
            }
            Operation::Setattr { change } => {
                run!(self, ctx, call, setattr(ino, &change) => wire |reply| reply.wire());
            }
            Operation::Statx { fh, flags, mask } => {
                run!(self, ctx, call, statx(ino, fh, flags, mask) => wire |reply| reply.wire());
            }
            Operation::Readlink => {
                self.run(&ctx, call, move |reply| async move {
                    match reply.filesystem().readlink(&ctx, ino).await {
                        Ok(target) => reply.bytes(&target),
                        Err(errno) => reply.error(errno),
                    }
                });
            }
            Operation::Symlink { name, target } => {
                let (name, target) = (name.to_vec(), target.to_vec());
                run!(self, ctx, call, symlink(ino, &name, &target) => entry());
            }
            Operation::Mknod { name, mode, umask, rdev } => {
                let name = name.to_vec();
                run!(self, ctx, call, mknod(ino, &name, mode, umask, rdev) => entry());
            }
            Operation::Mkdir { name, mode, umask } => {
                let name = name.to_vec();
                run!(self, ctx, call, mkdir(ino, &name, mode, umask) => entry());
            }
            Operation::Unlink { name } => {
                let name = name.to_vec();
                run!(self, ctx, call, unlink(ino, &name) => empty());
            }
            Operation::Rmdir { name } => {
                let name = name.to_vec();
                run!(self, ctx, call, rmdir(ino, &name) => empty());
            }
            Operation::Rename { name, new_parent, new_name, flags } => {
                let (name, new_name) = (name.to_vec(), new_name.to_vec());
                run!(self, ctx, call, rename(ino, &name, new_parent, &new_name, flags) => empty());
            }
            // The header has the new directory, and the body the inode.
            Operation::Link { ino: existing, new_name } => {
                let new_name = new_name.to_vec();
                run!(self, ctx, call, link(existing, ino, &new_name) => entry());
            }
            Operation::Open(open) => {
                run!(self, ctx, call, open(ino, &open) => opened(ctx, ino, open.flags));
            }
            Operation::Create { name, create } => {
                let name = name.to_vec();
                run!(self, ctx, call, create(ino, &name, &create) => created(ctx, create.flags));
            }
            Operation::Read(read) => run!(self, ctx, call, read(ino, &read) => data(read.size)),
            Operation::Flush { fh, lock_owner } => {
                run!(self, ctx, call, flush(ino, fh, lock_owner) => empty());
            }
            Operation::Release { fh, flags } => {
                run!(self, ctx, call, release(ino, fh, flags) => empty());
            }
            Operation::Fsync { fh, datasync } => {
                run!(self, ctx, call, fsync(ino, fh, datasync) => empty());
            }
            Operation::Opendir { flags } => {
                run!(self, ctx, call, opendir(ino, flags) => opened_dir(ctx, ino, flags));
            }
            Operation::Readdir { read, plus } => {
                let mut listing = Listing::new(self, read.size, plus);
                self.run(&ctx, call, move |reply| async move {
                    let filesystem = reply.filesystem();
                    let sink = &mut listing.sink;
                    let result = filesystem.readdir(&ctx, ino, read.fh, read.offset, sink).await;
                    reply.listing(result, listing);
                });
            }
            Operation::Releasedir { fh, flags } => {
                run!(self, ctx, call, releasedir(ino, fh, flags) => empty());
            }
            Operation::Fsyncdir { fh, datasync } => {
                run!(self, ctx, call, fsyncdir(ino, fh, datasync) => empty());
            }
            Operation::Statfs => {
                run!(self, ctx, call, statfs(ino) => wire |figures| figures.wire())
            }
            Operation::Setxattr { name, value, flags } => {
                let (name, value) = (name.to_vec(), value.to_vec());
                run!(self, ctx, call, setxattr(ino, &name, &value, flags) => empty());
            }
            Operation::Getxattr { name, size } => {
                let name = name.to_vec();
                run!(self, ctx, call, getxattr(ino, &name, size) => xattr(size));
            }
            Operation::Listxattr { size } => run!(self, ctx, call, listxattr(ino) => xattr(size)),
            Operation::Removexattr { name } => {
                let name = name.to_vec();
                run!(self, ctx, call, removexattr(ino, &name) => empty());
            }
            Operation::Access { mask } => run!(self, ctx, call, access(ino, mask) => empty()),
            Operation::Getlk(lock) => {
                run!(self, ctx, call, getlk(ino, &lock) => wire |lock| lock_out(&lock));
            }
            Operation::Setlk(lock) => run!(self, ctx, call, setlk(ino, &lock) => empty()),
            Operation::Fallocate { fh, offset, len, mode } => {
                run!(self, ctx, call, fallocate(ino, fh, offset, len, mode) => empty());
            }
            Operation::Lseek { fh, offset, whence } => {
                run!(self, ctx, call, lseek(ino, fh, offset, whence) =>
                    wire |offset| abi::LseekOut { offset });
            }
            Operation::CopyFileRange { copy, wide: true } => {
                run!(self, ctx, call, copy_file_range(ino, &copy) =>
                    wire |bytes_copied| abi::CopyFileRangeOut { bytes_copied });
            }
            Operation::CopyFileRange { mut copy, wide: false } => {
                // The reply is a WriteOut with 32 bits.
                copy.len = copy.len.min(u64::from(u32::MAX) & !4095);
                run!(self, ctx, call, copy_file_range(ino, &copy) =>
                    wire |copied| abi::WriteOut { size: copied as u32, padding: 0 });
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

fn lock_out(lock: &Lock) -> abi::LkOut {
    let type_ = match lock.kind {
        LockKind::Read => libc::F_RDLCK,
        LockKind::Write => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    };
    let (start, end) = (lock.start, lock.end);
    abi::LkOut { lk: abi::FileLock { start, end, type_: type_ as u32, pid: lock.pid } }
}
