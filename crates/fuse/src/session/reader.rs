//! The loop that reads requests.
//!
//! Readiness is edge-triggered: it is awaited only after a read that found nothing. The interest
//! has to include errors, since at the end of a session the kernel reports nothing else.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::polling::Polling;
use base::task;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::buffers::Buffer;
use super::origin::Origin;
use super::{Cause, Inner};
use crate::channel::Readiness;
use crate::filesystem::Filesystem;

/// Maximum number of requests read before their operations' packets are sent, since these must not
/// wait for long.
const MAX_BATCH: usize = 8;

/// Reads requests and starts their operations until the session ends. Suspended only between
/// requests.
pub(super) async fn read_requests<F: Filesystem>(
    inner: Arc<Inner<F>>,
    readiness: Arc<AsyncFd<Readiness>>,
    poll_limit: Duration,
) -> Cause {
    let mut buffer = inner.buffers.get();
    let mut polling = Polling::new(poll_limit);
    loop {
        let began = Instant::now();
        // While an operation waits for a server, this thread has to receive the answer.
        let is_idle = inner.pending.len() == 0;
        let receive = || match readiness.get_ref().0.receive(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            received => Some(received),
        };
        if let Some(received) = if is_idle { polling.poll(receive) } else { None } {
            if let Some(cause) = task::batch(|| take(&inner, &mut buffer, received)) {
                return cause;
            }
            polling.note_wait(began.elapsed());
            // Tasks that the request has started run on this thread, too.
            tokio::task::yield_now().await;
            continue;
        }
        // Ready at once, without a system call, if the last read found a request.
        let mut guard = match readiness.ready(Interest::READABLE | Interest::ERROR).await {
            Ok(guard) => guard,
            Err(error) => return Cause::Failed(error),
        };
        polling.note_wait(began.elapsed());
        // Other operations that these complete are finished here too, and their packets are sent
        // together.
        let ended = task::batch(|| {
            for _ in 0..MAX_BATCH {
                match guard.try_io(|channel| channel.get_ref().0.receive(&mut buffer)) {
                    Ok(received) => {
                        if let Some(cause) = take(&inner, &mut buffer, received) {
                            return Some(cause);
                        }
                    }
                    // No request; the guard has recorded that.
                    Err(_) => break,
                }
            }
            None
        });
        if let Some(cause) = ended {
            return cause;
        }
    }
}

/// Starts the operation of a request that was received into `buffer`. Returns why the session ends,
/// if it does.
fn take<F: Filesystem>(
    inner: &Arc<Inner<F>>,
    buffer: &mut Buffer,
    received: io::Result<usize>,
) -> Option<Cause> {
    match received {
        Ok(0) => Some(Cause::Unmounted),
        Ok(len) => {
            inner.dispatch(buffer, len, Origin::Device);
            None
        }
        Err(error) => end(error),
    }
}

/// The meaning of a failed read; `None` to continue.
fn end(error: io::Error) -> Option<Cause> {
    match error.raw_os_error() {
        // The request was interrupted before it was read, or the read was.
        Some(libc::ENOENT | libc::EINTR) => None,
        Some(libc::ENODEV | libc::ECONNABORTED) => Some(Cause::Unmounted),
        _ => Some(Cause::Failed(error)),
    }
}
