//! A command's streams for code that blocks.
//!
//! A thread that unpacks or packs waits in the stream itself, so that a piece that is there already
//! costs no change of threads. Whoever started it frees it by dropping the [`Leash`].

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Held by whoever waits for a thread: its streams fail when this is dropped.
pub(super) struct Leash(#[allow(dead_code, reason = "its drop is what counts")] watch::Sender<()>);

/// What a stream needs to wait.
#[derive(Clone)]
pub(super) struct Waiting {
    runtime: Handle,
    leash: watch::Receiver<()>,
    flow: Arc<Flow>,
}

/// What went through, and how long it took.
#[derive(Debug, Default)]
pub(super) struct Flow {
    bytes: AtomicU64,
    waited_ns: AtomicU64,
}

impl Flow {
    /// Bytes of the stream, as they are on the link.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How long was waited for the other side.
    pub(super) fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited_ns.load(Ordering::Relaxed))
    }

    fn note(&self, bytes: usize, since: Instant) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.waited_ns.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }
}

/// Must be called within a runtime, which serves the streams.
pub(super) fn leash() -> (Leash, Waiting, Arc<Flow>) {
    let (sender, receiver) = watch::channel(());
    let flow = Arc::new(Flow::default());
    let waiting = Waiting { runtime: Handle::current(), leash: receiver, flow: flow.clone() };
    (Leash(sender), waiting, flow)
}

impl Waiting {
    /// Waits for `what`, or until the leash is gone.
    fn wait(&mut self, what: impl Future<Output = io::Result<usize>>) -> io::Result<usize> {
        let since = Instant::now();
        let (runtime, leash) = (&self.runtime, &mut self.leash);
        let done = runtime.block_on(async {
            tokio::select! {
                biased;
                done = what => done,
                _ = leash.changed() => Err(io::Error::other("given up")),
            }
        })?;
        self.flow.note(done, since);
        Ok(done)
    }
}

/// A command's output.
pub(super) struct Input {
    pub stream: Box<dyn AsyncRead + Send + Unpin>,
    pub waiting: Waiting,
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Input { stream, waiting } = self;
        waiting.wait(stream.read(buffer))
    }
}

/// A command's input.
pub(super) struct Output {
    pub stream: Box<dyn AsyncWrite + Send + Unpin>,
    pub waiting: Waiting,
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Output { stream, waiting } = self;
        waiting.wait(stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        let Output { stream, waiting } = self;
        let flushed = async { stream.flush().await.map(|()| 0) };
        waiting.wait(flushed).map(drop)
    }
}
