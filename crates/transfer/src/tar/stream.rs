//! A command's streams for blocking code.
//!
//! A thread that unpacks or packs waits in the stream itself, so data that has already arrived
//! costs no change of threads. Dropping the guard of [`cancellable`] ends the wait.

use std::io::{self, BufReader, Read, Write};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::peer::{Peer, close_reason, line};
use super::script::SOME_FAILED;
use crate::compress::{self, Encoder, Method};
use crate::shell::Running;
use crate::task::blocking;

/// Bytes of an archive that are read at a time.
const READ_BYTES: usize = 512 << 10;

/// Bytes of the messages that follow [`SOME_FAILED`].
const MESSAGES_BYTES: u64 = 8 << 20;

/// An archive that arrives.
pub(super) type Archive = BufReader<Box<dyn Read>>;

/// An archive that is sent.
pub(super) type Sending = Encoder<Output>;

/// How a stream ended.
pub(super) struct End<T> {
    /// What the thread has done.
    pub done: T,
    /// Why the stream is not whole.
    pub why: Option<String>,
    /// What the command has said of that, of bounded length; the start may be missing.
    pub messages: Vec<u8>,
    /// How long it took.
    pub elapsed: Duration,
    /// The compression.
    pub method: Option<Method>,
}

impl Peer {
    /// Unpacks the archive that the server sends, with `done` on a thread that may block, and waits
    /// for the end of the command. `input` is held while the archive arrives: what is written to
    /// the command meanwhile.
    pub(super) async fn receive<T: Send + 'static>(
        self,
        input: impl Send,
        mut done: T,
        unpack: impl FnOnce(&mut T, Archive) -> io::Result<()> + Send + 'static,
    ) -> End<T> {
        let Peer { running: Running { stdin, stdout, exit }, method, .. } = self;
        let (guard, waiting) = cancellable();
        let began = Instant::now();
        let (done, unpacked) = blocking(move || {
            let input = BufReader::with_capacity(READ_BYTES, Input { stream: stdout, waiting });
            let unpacked = compress::decoder(method, input).and_then(|archive| {
                unpack(&mut done, BufReader::with_capacity(READ_BYTES, archive))
            });
            (done, unpacked)
        })
        .await;
        drop(guard);
        // Not earlier: a shell that lost its input would have ended, too. Not later: an archive may
        // end before the input does, if it is not one of tar's.
        drop((stdin, input));
        let mut messages = Vec::new();
        let why = match unpacked {
            Err(error) => Some(error.to_string()),
            Ok(()) => match exit.await {
                Ok(exit) if exit.status == Some(0) => None,
                Ok(exit) => {
                    messages = exit.stderr;
                    Some(String::from_utf8_lossy(&messages).trim().escape_debug().to_string())
                }
                Err(error) => Some(error.to_string()),
            },
        };
        End { done, why, messages, elapsed: began.elapsed(), method }
    }

    /// Sends the archive that `pack` makes, with `done` on a thread that may block. The command has
    /// succeeded if it then answers `success`. After the answer [`SOME_FAILED`] come messages.
    pub(super) async fn send<T: Send + 'static>(
        self,
        success: &[u8],
        mut done: T,
        pack: impl FnOnce(&mut T, Sending) -> io::Result<Sending> + Send + 'static,
    ) -> End<T> {
        let Peer { running: Running { stdin, stdout, exit }, method, rate, .. } = self;
        let (guard, waiting) = cancellable();
        let began = Instant::now();
        let (done, packed) = blocking(move || {
            let output = Output { stream: stdin, waiting };
            let output = Encoder::new(method.is_some(), output, rate);
            let packed = pack(&mut done, output).and_then(|output| output.finish()?.flush());
            (done, packed)
        })
        .await;
        drop(guard);
        let mut running = Running { stdin: Box::new(tokio::io::sink()), stdout, exit };
        // After an error, too: then the command has ended its work.
        let said = line(&mut running).await;
        let mut messages = Vec::new();
        let why = match (packed, said) {
            (Err(error), _) => Some(error.to_string()),
            (Ok(()), Ok(said)) if said == success => None,
            (Ok(()), Ok(said)) if said == SOME_FAILED => {
                let mut limited = (&mut running.stdout).take(MESSAGES_BYTES);
                let is_whole = limited.read_to_end(&mut messages).await.is_ok();
                if !is_whole || limited.limit() == 0 {
                    messages.clear();
                }
                Some("tar has failed for some entries".to_owned())
            }
            (Ok(()), _) => Some(close_reason(running).await.why()),
        };
        End { done, why, messages, elapsed: began.elapsed(), method }
    }
}

/// What a stream waits with.
struct Waiting {
    runtime: Handle,
    guard: watch::Receiver<()>,
}

/// A guard for the task that waits for a thread, and what the thread's streams wait with: they fail
/// when the guard is dropped. Must be called within a runtime, which serves the streams.
fn cancellable() -> (watch::Sender<()>, Waiting) {
    let (sender, guard) = watch::channel(());
    (sender, Waiting { runtime: Handle::current(), guard })
}

impl Waiting {
    /// Waits for `what`, or until the guard is dropped.
    fn wait(&mut self, what: impl Future<Output = io::Result<usize>>) -> io::Result<usize> {
        let (runtime, guard) = (&self.runtime, &mut self.guard);
        runtime.block_on(async {
            tokio::select! {
                biased;
                _ = guard.changed() => Err(io::Error::other("given up")),
                done = what => done,
            }
        })
    }
}

/// A command's output.
struct Input {
    stream: Box<dyn AsyncRead + Send + Unpin>,
    waiting: Waiting,
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Input { stream, waiting } = self;
        waiting.wait(stream.read(buffer))
    }
}

/// A command's input.
pub(super) struct Output {
    stream: Box<dyn AsyncWrite + Send + Unpin>,
    waiting: Waiting,
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{DuplexStream, duplex};

    fn input(waiting: Waiting) -> (Input, DuplexStream) {
        let (near, peer) = duplex(1 << 16);
        (Input { stream: Box::new(near), waiting }, peer)
    }

    #[tokio::test]
    async fn a_thread_reads_all_up_to_the_end() {
        let (_guard, waiting) = cancellable();
        let (mut input, mut peer) = input(waiting);
        let reading = tokio::task::spawn_blocking(move || {
            let mut read = Vec::new();
            input.read_to_end(&mut read).map(|_| read)
        });
        let sent: Vec<u8> = (0..3_000_000u32).map(|at| (at >> 3) as u8).collect();
        peer.write_all(&sent).await.unwrap();
        drop(peer);
        assert!(reading.await.unwrap().unwrap() == sent);
    }

    #[tokio::test]
    async fn a_thread_that_waits_is_free_without_the_guard() {
        let (guard, waiting) = cancellable();
        let (mut input, mut peer) = input(waiting);
        let (told, begun) = tokio::sync::oneshot::channel();
        let reading = tokio::task::spawn_blocking(move || {
            let first = input.read(&mut [0; 8]).unwrap();
            told.send(first).unwrap();
            input.read(&mut [0; 8])
        });
        peer.write_all(b"a").await.unwrap();
        assert_eq!(begun.await, Ok(1));
        drop(guard);
        assert_eq!(reading.await.unwrap().unwrap_err().to_string(), "given up");
    }

    #[tokio::test]
    async fn without_the_guard_nothing_more_is_read() {
        let (guard, waiting) = cancellable();
        let (mut input, mut peer) = input(waiting);
        peer.write_all(b"more").await.unwrap();
        drop(guard);
        let read = tokio::task::spawn_blocking(move || input.read(&mut [0; 1]));
        assert_eq!(read.await.unwrap().unwrap_err().to_string(), "given up");
    }
}
