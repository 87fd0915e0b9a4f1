//! From a request to the operation of the file system and to its reply.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use base::task::Task;

use super::Inner;
use super::accounting::{Call, recorded};
use super::buffers::Buffer;
use super::origin::Origin;
use super::reply::Reply;
use crate::abi::{self, opcode};
use crate::filesystem::Filesystem;
use crate::operation::{Context, Operation};
use crate::request::{Malformed, Request, WRITE_DATA_OFFSET};

/// Requests on an open file: their caller was checked at the open, as in libfuse. So with
/// `allow_root` a file system must not answer `open` or `opendir` with `ENOSYS`: the kernel would
/// open files for any user without a request.
const BY_HANDLE: &[u32] = &[
    opcode::READ,
    opcode::WRITE,
    opcode::FSYNC,
    opcode::RELEASE,
    opcode::READDIR,
    opcode::READDIRPLUS,
    opcode::FSYNCDIR,
    opcode::RELEASEDIR,
];

/// Requests that are served until the end: they close files and write acknowledged data.
const UNTIL_THE_END: &[u32] =
    &[opcode::FLUSH, opcode::FSYNC, opcode::RELEASE, opcode::FSYNCDIR, opcode::RELEASEDIR];

impl<F: Filesystem> Inner<F> {
    /// Starts the operation of the request in the first `len` bytes of `buffer`.
    pub(super) fn dispatch(self: &Arc<Self>, buffer: &mut Buffer, len: usize, mut origin: Origin) {
        let request = match Request::parse(&buffer[..len]) {
            Ok(request) => request,
            Err(malformed @ Malformed::Header { .. }) => {
                return tracing::error!("request from the kernel: {malformed}");
            }
            Err(malformed @ Malformed::Body { header }) => {
                tracing::error!("request from the kernel: {malformed}");
                if !matches!(
                    header.opcode,
                    opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT
                ) {
                    self.write(origin, header.unique, -libc::EIO, &[]);
                }
                return;
            }
        };
        let header = request.header;
        tracing::debug!(
            unique = header.unique,
            ino = header.nodeid,
            pid = header.pid,
            "{}",
            opcode::name(header.opcode).unwrap_or("unknown")
        );
        let ctx =
            Context { uid: header.uid, gid: header.gid, pid: header.pid, unique: header.unique };
        match request.operation {
            Operation::Forget { count } => self.forget(header.nodeid, count),
            Operation::BatchForget { items } => {
                for (ino, count) in items {
                    self.forget(ino, count);
                }
            }
            Operation::Interrupt { unique } => self.interrupted(unique),
            Operation::NotifyReply => {}
            Operation::Destroy => drop(self.write(origin, header.unique, 0, &[])),
            // A second INIT is invalid.
            Operation::Init(_) => drop(self.write(origin, header.unique, -libc::EIO, &[])),
            operation if self.is_ending.load(Ordering::Relaxed) && is_new(&operation, &header) => {
                self.write(origin, header.unique, -libc::ENOTCONN, &[]);
            }
            _ if self.denies(ctx.uid, header.opcode) => {
                self.write(origin, header.unique, -libc::EACCES, &[]);
            }
            operation if is_lock(&operation) && !origin.admits_lock() => {
                self.write(origin, header.unique, -libc::ENOLCK, &[]);
            }
            Operation::Write(write, data) => {
                let call = self.call(&header, &request.operation, origin);
                let range = WRITE_DATA_OFFSET..WRITE_DATA_OFFSET + data.len();
                let data = self.buffers.take(buffer, range);
                self.run(&ctx, call, move |reply| async move {
                    let ino = header.nodeid;
                    let result = reply.filesystem().write(ino, &write, data).await;
                    reply.count_written(&result);
                    reply.wire(result, |size| abi::WriteOut { size, padding: 0 });
                });
            }
            operation => {
                let call = self.call(&header, &operation, origin);
                self.perform(ctx, header.nodeid, call, operation);
            }
        }
    }

    fn call(&self, header: &abi::InHeader, operation: &Operation<'_>, origin: Origin) -> Call {
        Call::new(header, operation, origin, self.filesystem.is_recording(header.pid))
    }

    /// Enters a request, polls its operation once, and keeps the operation if it has to wait.
    pub(super) fn run<Fut>(
        self: &Arc<Self>,
        ctx: &Context,
        call: Call,
        operation: impl FnOnce(Reply<F>) -> Fut,
    ) where
        Fut: Future<Output = ()> + Send + 'static,
    {
        let unique = ctx.unique;
        if self.pending.starting(unique, ctx.pid, call.ino, call.policy) {
            self.examine_interrupted();
        }
        let traced = call.traced.clone();
        let operation = caught(operation(Reply::new(self, unique, call)));
        let task = match traced {
            None => Task::start(operation),
            Some(traced) => Task::start(recorded(self.clone(), traced, operation)),
        };
        if let Some(task) = task
            && self.pending.started(unique, task)
        {
            self.examine_interrupted();
        }
    }

    /// Whether `allow_root` denies this caller.
    fn denies(&self, uid: u32, opcode: u32) -> bool {
        self.only_user.is_some_and(|user| uid != user && uid != 0) && !BY_HANDLE.contains(&opcode)
    }

    /// Returns lookups.
    pub(super) fn forget(&self, ino: u64, count: u64) {
        guarded("forget", || self.filesystem.forget(ino, count));
    }
}

/// Whether a request is rejected while the session ends.
fn is_new(operation: &Operation<'_>, header: &abi::InHeader) -> bool {
    // Pages of a mapping were acknowledged long ago.
    let is_page = matches!(operation, Operation::Write(write, _) if write.cached);
    !is_page && !UNTIL_THE_END.contains(&header.opcode)
}

/// Whether a request may wait for the owner of a lock.
fn is_lock(operation: &Operation<'_>) -> bool {
    matches!(operation, Operation::Setlk(lock) if lock.kind.is_some())
}

/// Runs code of the file system that has no reply to report a panic.
pub(super) fn guarded(what: &str, body: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(body)).is_err() {
        tracing::error!("{what} panicked");
    }
}

/// Ends with the operation, or with its panic. The panic drops the reply, which answers the
/// request.
async fn caught(operation: impl Future<Output = ()> + Send) {
    let mut operation = pin!(operation);
    poll_fn(|context| {
        catch_unwind(AssertUnwindSafe(|| operation.as_mut().poll(context))).unwrap_or_else(|_| {
            tracing::error!("an operation panicked; its caller gets EIO");
            Poll::Ready(())
        })
    })
    .await;
}
