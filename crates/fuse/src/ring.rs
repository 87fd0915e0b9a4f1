//! Requests and replies through io_uring, where the kernel offers it (Linux 6.14, `enable_uring`).
//!
//! The kernel has one queue for each processor, and sends a request to the queue of the processor
//! on which its caller runs. A queue is served by one thread, on that processor. It has a fixed
//! number of entries: memory for one request, which then gets the reply. One system call commits
//! the replies of a queue and waits for its next request; `/dev/fuse` takes two, and a wake-up on
//! another processor. FORGET, INTERRUPT and notifications stay on `/dev/fuse`.
//!
//! Only the thread of a queue submits to its ring: the kernel completes a command in the thread
//! that submitted it, and cancels it when that thread ends. So a reply from another thread is
//! copied into its entry there, and the thread of the queue is woken to commit it.
//!
//! Invariants:
//! 1. An entry belongs to the kernel, or to exactly one [`Slot`]. A slot gives it back with one
//!    reply, at the latest when it is dropped.
//! 2. The rings exist before the kernel gets the reply to INIT that turns them on, since it then
//!    holds all requests back until every queue has an entry.
//! 3. Callers that are killed are freed, although the kernel reports no signal that arrives before
//!    the thread has taken over their request (`session/interrupts.rs`, `watch`).
//! 4. Locks never take more than half of the entries of a queue: their callers wait for requests
//!    of others, which need an entry, too.

mod cpus;
#[allow(unsafe_code, reason = "memory that the kernel writes into")]
mod memory;
#[allow(unsafe_code, reason = "the kernel uses what the submitted entries point to")]
mod queue;
mod slot;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::channel::Channel;
use memory::Memory;
use queue::{Queue, Server};
pub(crate) use slot::Slot;

/// Entries of a queue, unless configured: as many requests of one processor are in progress at a
/// time, and others wait in the kernel.
pub const DEFAULT_DEPTH: u16 = 32;

/// Bounds of the number of entries. Fewer could be taken by locks, and more take more memory than
/// they gain.
const DEPTHS: (u16, u16) = (4, 128);

/// How long the end of a session waits for the threads. They do not block, except in code of the
/// file system.
const END_LIMIT: Duration = Duration::from_secs(1);

/// Handles the requests of one queue.
pub(crate) type Handler = Box<dyn FnMut(Slot) + Send>;

/// What a thread needs to begin.
struct Start {
    handler: Handler,
    runtime: Handle,
    failures: UnboundedSender<io::Error>,
}

/// Queues whose threads wait for the start. They end when this is dropped.
pub(crate) struct Prepared(Vec<(Arc<Queue>, mpsc::Sender<Start>)>);

/// Queues that are served. Their threads end when this is dropped.
pub(crate) struct Ring {
    queues: Vec<Arc<Queue>>,
    failures: UnboundedReceiver<io::Error>,
}

/// The number of entries to use for a configured one.
pub(crate) fn effective_depth(configured: u16) -> u16 {
    configured.clamp(DEPTHS.0, DEPTHS.1)
}

impl Prepared {
    /// Creates the queues, with `depth` entries for requests and replies of `payload` bytes beside
    /// their headers. Blocks for about a millisecond.
    pub(crate) fn new(
        device: &Arc<dyn Channel>,
        depth: u16,
        payload: usize,
    ) -> io::Result<Prepared> {
        let (ready, is_ready) = mpsc::channel();
        let count = cpus::possible()?;
        let mut queues = Vec::new();
        for number in 0..count {
            let queue = Arc::new(Queue::new(depth)?);
            let (start, started) = mpsc::channel();
            let (own, device, ready) = (queue.clone(), device.clone(), ready.clone());
            let run = move || {
                cpus::pin(number.into());
                let server = Memory::new(depth, payload)
                    .and_then(|memory| Server::new(own, number, device, depth, memory));
                let (server, created) = match server {
                    Ok(server) => (Some(server), Ok(())),
                    Err(error) => (None, Err(error)),
                };
                let _ = ready.send(created);
                drop(ready);
                if let (Some(server), Ok(start)) = (server, started.recv()) {
                    serve(server, start);
                }
            };
            thread::Builder::new().name(format!("fuse-{number}")).spawn(run)?;
            queues.push((queue, start));
        }
        drop(ready);
        for _ in 0..count {
            // A thread that panics reports nothing.
            is_ready.recv().map_err(io::Error::other)??;
        }
        Ok(Prepared(queues))
    }

    /// Registers all entries with the kernel, and serves them within this tokio runtime. `handler`
    /// is called once for each queue.
    pub(crate) fn start(self, mut handler: impl FnMut() -> Handler) -> Ring {
        let (failures, receiver) = unbounded_channel();
        let runtime = Handle::current();
        let start = |(queue, start): (Arc<Queue>, mpsc::Sender<Start>)| {
            let (failures, runtime) = (failures.clone(), runtime.clone());
            // The thread waits for this and for nothing else.
            let _ = start.send(Start { handler: handler(), runtime, failures });
            queue
        };
        let queues = self.0.into_iter().map(start).collect();
        Ring { queues, failures: receiver }
    }
}

/// The body of a thread.
fn serve(mut server: Server, start: Start) {
    let Start { mut handler, runtime, failures } = start;
    let entered = runtime.enter();
    let served = catch_unwind(AssertUnwindSafe(|| server.serve(&mut *handler)));
    let served = served.unwrap_or_else(|_| Err(io::Error::other("a thread of io_uring panicked")));
    // The descriptors are closed before the end is reported.
    drop(server);
    drop(handler);
    drop(entered);
    if let Err(error) = served {
        let _ = failures.send(error);
    }
}

impl Ring {
    /// Returns when a queue cannot be served any longer, with the reason.
    pub(crate) async fn failed(&mut self) -> io::Error {
        match self.failures.recv().await {
            Some(error) => error,
            None => std::future::pending().await,
        }
    }

    /// Commits the replies so far, and ends the threads.
    pub(crate) async fn end(mut self) {
        self.stop();
        let ended = async { while self.failures.recv().await.is_some() {} };
        let _ = tokio::time::timeout(END_LIMIT, ended).await;
    }

    fn stop(&self) {
        self.queues.iter().for_each(|queue| queue.stop());
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.stop();
    }
}
