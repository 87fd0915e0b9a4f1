//! A client that keeps many requests in flight over one byte stream.
//!
//! The way of a request: the caller's first poll encodes it and writes it to the stream itself
//! (`output`), inside a batch together with those of others; only what the stream does not take at
//! once is left to a writer task. One reader
//! task (`inbox`, `reader`) receives, finds the request by its id (`pending`) and wakes the
//! caller inside one [`base::task::batch`], so an operation that runs as a [`base::task::Task`]
//! goes on in the thread that decoded its reply. No request has a task or a channel of its own.
//!
//! Invariants:
//! 1. The order of the first polls of two calls is the order of their packets on the wire.
//! 2. An id is not used again before the reply to it has come, whether or not anybody still waits
//!    for that reply.
//! 3. A handle that arrives for a call that was dropped is closed at once.
//! 4. When the connection ends, every call in flight and every later one fails with the reason.
//! 5. Locks: `output` before `pending`; neither is held across an await, and wakers are called
//!    with neither held.
//!
//! Not here: time-outs, reconnecting, splitting of long reads and writes. That is the caller's.

mod call;
mod inbox;
mod messages;
mod output;
mod pending;
mod reader;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

use crate::codec::{
    Extension, Extensions, Limits, MAX_PACKET_BYTES, Request, Version, encode_init,
};
use crate::error::{Error, Result};
pub use call::Call;
use inbox::Inbox;
use output::Output;
use pending::{Expect, Pending};

/// Least READ and WRITE that a server must take according to the draft, 32 KiB. A server that
/// announces no limit, or a lower one, gets this.
const LEAST_TRANSFER_BYTES: u32 = 32 * 1024;

/// Least packet that a server must take according to the draft.
const LEAST_PACKET_BYTES: usize = 34_000;

/// Bytes of a WRITE or DATA packet beside its content, at most: type, id, handle, offset, lengths.
const ENVELOPE_BYTES: usize = 1024;

/// Bounds of a client.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Longest packet that is accepted from the server, in bytes.
    pub max_packet_bytes: usize,
    /// Requests in flight; a further one waits. 512 READs of 255 KiB are as much as OpenSSH's
    /// server queues (128 MiB) before it stops listening.
    pub max_in_flight: usize,
    /// Bytes that wait to be written beyond which a further request waits. 4 MiB are twice the
    /// window of OpenSSH's channel: more could only lie here.
    pub max_queued_bytes: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            max_packet_bytes: MAX_PACKET_BYTES,
            max_in_flight: 512,
            max_queued_bytes: 4 * 1024 * 1024,
        }
    }
}

/// What the server has told about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// The extensions that it offers.
    pub extensions: Extensions,
    /// Longest READ in bytes, at least 32 KiB.
    pub max_read: u32,
    /// Longest WRITE in bytes, at least 32 KiB.
    pub max_write: u32,
    /// Longest packet in bytes, at least 34,000.
    pub max_packet: usize,
    /// Handles open at once, where it says.
    pub max_handles: Option<u64>,
}

impl Server {
    /// Limits below those of the draft are raised to them: with one of a few bytes a request of
    /// the kernel would become a million of the protocol.
    fn new(extensions: Extensions, limits: Limits, options: &Options) -> Server {
        let packet = usize::try_from(limits.packet_bytes).unwrap_or(usize::MAX);
        let max_packet = packet.max(LEAST_PACKET_BYTES);
        let transfer = |value: u64, packet: usize| {
            let most = packet.saturating_sub(ENVELOPE_BYTES);
            let most = u32::try_from(most).unwrap_or(u32::MAX);
            u32::try_from(value).unwrap_or(u32::MAX).min(most).max(LEAST_TRANSFER_BYTES)
        };
        Server {
            extensions,
            max_read: transfer(limits.read_bytes, options.max_packet_bytes),
            max_write: transfer(limits.write_bytes, max_packet),
            max_packet,
            max_handles: (limits.open_handles > 0).then_some(limits.open_handles),
        }
    }
}

/// What is going on, for a watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Requests without a reply, those that nobody waits for any more included.
    pub in_flight: usize,
    /// Those of them that may take long although all is well: `fsync`, `copy_data`.
    pub slow_in_flight: usize,
    /// For how long requests have been in flight without one byte from the server; zero when
    /// none is.
    pub silent: Duration,
}

/// What the calls, the reader task, and the writer task share.
struct Shared {
    pending: Mutex<Pending>,
    output: Output,
    /// Notified when the connection has ended.
    ended: Notify,
    options: Options,
}

/// A request as it goes out: what was encoded for it, and the content of a WRITE behind that.
struct Packet {
    head: BytesMut,
    body: Bytes,
}

/// Room for a request with a path of usual length, in bytes.
const HEAD_BYTES: usize = 128;

/// Where the id is in a packet: after length and type.
const ID_AT: std::ops::Range<usize> = 5..9;

impl Packet {
    /// A request without content, its id still to be set.
    fn new(request: &Request<'_>) -> Packet {
        let mut head = BytesMut::with_capacity(HEAD_BYTES);
        request.encode(0, &mut head);
        Packet { head, body: Bytes::new() }
    }

    /// A WRITE request, with `body` for its content.
    fn with_body(request: &Request<'_>, body: Bytes) -> Packet {
        let mut head = BytesMut::with_capacity(HEAD_BYTES);
        request.encode_head(0, body.len(), &mut head);
        Packet { head, body }
    }

    fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    fn set_id(&mut self, id: u32) {
        self.head[ID_AT].copy_from_slice(&id.to_be_bytes());
    }
}

impl Shared {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends `packet` if it is the turn of the caller with `ticket`; gives the id. Else the caller
    /// is in the queue now, and `waker` will be called.
    fn send_in_turn(
        self: &Arc<Shared>,
        packet: &mut Packet,
        expect: Expect,
        ticket: &mut Option<u64>,
        waker: &Waker,
    ) -> Poll<Result<u32>> {
        let mut output = self.output.lock();
        let mut pending = self.pending();
        if let Some(end) = pending.end() {
            return Poll::Ready(Err(end.clone()));
        }
        let room = pending.in_flight() < self.options.max_in_flight
            && output.queued_bytes() < self.options.max_queued_bytes;
        if !room || !pending.is_next(*ticket) {
            *ticket = Some(pending.wait(*ticket, waker));
            return Poll::Pending;
        }
        let id = pending.reserve(expect, Some(waker.clone()));
        // The next one may have room too; it finds out by itself.
        let next = ticket.take().and_then(|ticket| pending.leave(ticket));
        drop(pending);
        let sent = match id {
            Some(id) => {
                packet.set_id(id);
                output.push(packet, self).map(|()| id)
            }
            None => Err(Error::Disconnected("all request ids are in use".into())),
        };
        let writer = output.writer_to_wake();
        drop(output);
        [writer, next].into_iter().flatten().for_each(Waker::wake);
        if let Err(error) = &sent
            && error.ends_connection()
        {
            self.finish(error.clone());
        }
        Poll::Ready(sent)
    }

    /// Sends `packet` at once, for a reply that nobody waits for.
    fn send_unattended(self: &Arc<Shared>, mut packet: Packet, expect: Expect) {
        let mut output = self.output.lock();
        let mut pending = self.pending();
        if pending.end().is_some() {
            return;
        }
        let id = pending.reserve(expect, None);
        drop(pending);
        let sent = match id {
            Some(id) => {
                packet.set_id(id);
                output.push(&mut packet, self)
            }
            // 65,536 handles of a server that has stopped answering: nothing will come of it.
            None => Err(Error::Disconnected("all request ids are in use".into())),
        };
        let writer = output.writer_to_wake();
        drop(output);
        writer.into_iter().for_each(Waker::wake);
        if let Err(error) = sent {
            self.finish(error);
        }
    }

    /// There may be room for the first in the queue.
    fn wake_next(&self) {
        let next = self.pending().first_in_queue();
        next.into_iter().for_each(Waker::wake);
    }

    /// Ends the connection. The first reason stays.
    fn finish(&self, why: Error) {
        let woken = self.pending().finish(why);
        let writer = self.output.close();
        woken.into_iter().chain(writer).for_each(Waker::wake);
        self.ended.notify_waiters();
    }

    /// Ends the connection if the holder panics. Operations of callers run in the reader task: a
    /// panic of one of them must not leave the others without a reader.
    fn finished_by_panic(&self) -> FinishOnPanic<'_> {
        FinishOnPanic(self)
    }

    fn end(&self) -> Option<Error> {
        self.pending().end().cloned()
    }
}

struct FinishOnPanic<'a>(&'a Shared);

impl Drop for FinishOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.finish(Error::Disconnected("an operation has panicked".into()));
        }
    }
}

/// One SFTP session. Dropping it ends the session; calls that are still there fail.
pub struct Client {
    shared: Arc<Shared>,
    server: Server,
}

impl Client {
    /// Speaks INIT and VERSION over `stream`, and asks for the server's limits where it has them.
    ///
    /// To be called, and the client to be used, within a tokio runtime.
    pub async fn connect<S>(stream: S, options: Options) -> Result<Client>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (reader, writer) = tokio::io::split(stream);
        Client::connect_halves(reader, writer, options).await
    }

    /// As [`Client::connect`], over a stream whose halves need no lock between them.
    pub async fn connect_halves<R, W>(reader: R, writer: W, options: Options) -> Result<Client>
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let (mut reader, mut writer) = (reader, writer);
        let mut init = BytesMut::new();
        encode_init(crate::codec::VERSION, &mut init);
        let mut inbox = Inbox::new(options.max_packet_bytes);
        // A server that died at once has perhaps said why: what it sent is the better message.
        let sent = async {
            writer.write_all(&init).await?;
            writer.flush().await
        };
        let sent = sent.await;
        let version = reader::handshake(&mut reader, &mut inbox).await;
        let version = match (version, sent) {
            (Err(Error::Disconnected(_)), Err(error)) => {
                return Err(Error::Disconnected(error.to_string()));
            }
            (version, _) => version?,
        };
        let shared = Arc::new(Shared {
            pending: Mutex::new(Pending::new()),
            output: Output::new(Box::new(writer)),
            ended: Notify::new(),
            options,
        });
        tokio::spawn(reader::run(shared.clone(), reader, inbox));
        tokio::spawn(output::run(shared.clone()));
        let mut client =
            Client { shared, server: Server::new(version.extensions, Limits::default(), &options) };
        if version.extensions.has(Extension::Limits) {
            match client.limits().await {
                Ok(limits) => {
                    client.server = Server::new(version.extensions, limits, &options);
                }
                // A server may refuse it (`-P limits`); then it has told nothing.
                Err(error) if error.ends_connection() => return Err(error),
                Err(_) => {}
            }
        }
        Ok(client)
    }

    /// What the server has told about itself.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Why the connection is over, if it is.
    #[must_use]
    pub fn end(&self) -> Option<Error> {
        self.shared.end()
    }

    /// Waits for the end of the connection; tells its reason.
    pub fn closed(&self) -> impl Future<Output = Error> + Send + use<> {
        let shared = self.shared.clone();
        async move {
            loop {
                let ended = shared.ended.notified();
                if let Some(why) = shared.end() {
                    return why;
                }
                ended.await;
            }
        }
    }

    /// Ends the connection: every call fails with `why`.
    pub fn abort(&self, why: Error) {
        self.shared.finish(why);
    }

    /// The shortest time between a request and its answer within the last half to whole minute in
    /// which there were any: nearly what the way takes. `None` before the first answer.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        self.shared.pending().round_trip()
    }

    /// What is going on.
    #[must_use]
    pub fn activity(&self) -> Activity {
        let pending = self.shared.pending();
        Activity {
            in_flight: pending.in_flight(),
            slow_in_flight: pending.slow_in_flight(),
            silent: pending.silent(),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.shared.finish(Error::Disconnected("the session was closed here".into()));
    }
}

/// Checks what VERSION says.
fn accept_version(version: Version) -> Result<Version> {
    match version.version {
        crate::codec::VERSION => Ok(version),
        other => Err(Error::Protocol(format!(
            "the server speaks SFTP version {other} where version 3 was asked for"
        ))),
    }
}
