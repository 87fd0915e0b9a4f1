//! The loop that reads requests.
//!
//! Readiness is edge-triggered: it is awaited only after a read that found nothing. The interest
//! has to include errors, since at the end of a session the kernel reports nothing else.

use std::io;
use std::sync::Arc;

use base::task;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

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
) -> Cause {
    let mut buffer = inner.buffers.get();
    loop {
        // Ready at once, without a system call, if the last read found a request.
        let mut guard = match readiness.ready(Interest::READABLE | Interest::ERROR).await {
            Ok(guard) => guard,
            Err(error) => return Cause::Failed(error),
        };
        // Other operations that these complete are finished here too, and their packets are sent
        // together.
        let ended = task::batch(|| {
            for _ in 0..MAX_BATCH {
                match guard.try_io(|channel| channel.get_ref().0.receive(&mut buffer)) {
                    Ok(Ok(0)) => return Some(Cause::Unmounted),
                    Ok(Ok(len)) => inner.dispatch(&mut buffer, len),
                    Ok(Err(error)) => {
                        if let Some(cause) = end(error) {
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

/// The meaning of a failed read; `None` to continue.
fn end(error: io::Error) -> Option<Cause> {
    match error.raw_os_error() {
        // The request was interrupted before it was read, or the read was.
        Some(libc::ENOENT | libc::EINTR) => None,
        Some(libc::ENODEV | libc::ECONNABORTED) => Some(Cause::Unmounted),
        _ => Some(Cause::Failed(error)),
    }
}
