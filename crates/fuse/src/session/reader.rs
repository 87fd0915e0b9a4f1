//! The loop that reads requests.
//!
//! Readiness is edge-triggered: it is waited for only after a read that found nothing. It has to
//! ask for errors too, since at the end of a session the kernel reports nothing else.

use std::io;
use std::sync::Arc;

use base::task;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::{Cause, Inner};
use crate::channel::Readiness;
use crate::filesystem::Filesystem;

/// Requests read before what they have sent goes out: it must not wait for long.
const TOGETHER: usize = 8;

/// Reads requests and starts their operations until the session ends. Suspended between requests
/// only.
pub(super) async fn read_requests<F: Filesystem>(
    inner: Arc<Inner<F>>,
    readiness: Arc<AsyncFd<Readiness>>,
) -> Cause {
    let mut buffer = inner.buffers.get();
    loop {
        // Ready at once, without a system call, as long as the last read found something.
        let mut guard = match readiness.ready(Interest::READABLE | Interest::ERROR).await {
            Ok(guard) => guard,
            Err(error) => return Cause::Failed(error),
        };
        // What these operations complete for others is finished here too, and what they send goes
        // out together.
        let ended = task::batch(|| {
            for _ in 0..TOGETHER {
                match guard.try_io(|channel| channel.get_ref().0.receive(&mut buffer)) {
                    Ok(Ok(0)) => return Some(Cause::Unmounted),
                    Ok(Ok(len)) => inner.dispatch(&mut buffer, len),
                    Ok(Err(error)) => {
                        if let Some(cause) = end(error) {
                            return Some(cause);
                        }
                    }
                    // Nothing there; the guard has noted it.
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

/// What a failed read means; `None` to go on.
fn end(error: io::Error) -> Option<Cause> {
    match error.raw_os_error() {
        // The request was interrupted before it was read, or the read was.
        Some(libc::ENOENT | libc::EINTR) => None,
        Some(libc::ENODEV | libc::ECONNABORTED) => Some(Cause::Unmounted),
        _ => Some(Cause::Failed(error)),
    }
}
