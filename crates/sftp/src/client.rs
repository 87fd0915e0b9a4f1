//! A client that keeps many requests in flight over one byte stream.
//!
//! The path of a request: the caller's first poll encodes the request and writes it to the stream
//! (`output`), inside a batch together with those of other callers; only bytes that the stream does
//! not accept at once are left to a writer task. One reader task (`receive_buffer`, `reader`)
//! receives replies, finds the request by its id (`pending`) and wakes the caller inside one
//! [`base::task::batch`], so an operation that runs as a [`base::task::Task`] continues in the
//! thread that decoded its reply. No request has its own task or channel.
//!
//! Invariants:
//! 1. The order of the first polls of two calls is the order of their packets on the wire.
//! 2. An id is not reused before its reply was received, even if the call was dropped.
//! 3. A handle that arrives for a call that was dropped is closed at once.
//! 4. When the connection ends, every call in flight and every later one fails with the reason.
//! 5. No request through a handle is sent behind its CLOSE. A server reuses the bytes of a handle,
//!    so such a request could reach another file.
//! 6. Locks: `output` before `pending`; neither is held across an await, and wakers are called
//!    with neither held, except for that of [`Client::busy`].
//!
//! Not here: time-outs, reconnecting, splitting of long reads and writes. These belong to the
//! caller.

mod call;
mod counters;
mod messages;
mod output;
mod pending;
mod reader;
mod receive_buffer;

use std::sync::{Arc, MutexGuard};
use std::task::{Poll, Waker};
use std::time::Duration;

use base::{Mutex, OnDrop, until};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, SetOnce};

use crate::codec::{
    ExactAttrs, Extension, Extensions, Kind, Limits, LockRequest, MAX_PACKET_BYTES, Product,
    RemoteHandle, Request, Version, encode_init, pack,
};
use crate::error::{Error, Result};
pub use call::Call;
pub use counters::Counters;
use output::Output;
use pending::{Expect, Pending};
use receive_buffer::ReceiveBuffer;

/// Length of READ and WRITE that every server must accept according to the draft, 32 KiB. Used for
/// a server that announces no limit or a lower one.
const MIN_TRANSFER_BYTES: u32 = 32 * 1024;

/// Packet length that every server must accept according to the draft.
const MIN_PACKET_BYTES: usize = 34_000;

/// Maximum bytes of a WRITE or DATA packet beside its content: type, id, handle, offset, lengths.
const ENVELOPE_BYTES: usize = 1024;

/// Limits of a client.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Longest packet accepted from the server, in bytes.
    pub max_packet_bytes: usize,
    /// Maximum number of requests in flight; further ones wait. 512 READs of 255 KiB are as much as
    /// OpenSSH's server queues (128 MiB) before it stops reading.
    pub max_in_flight: usize,
    /// Queued bytes beyond which further requests wait. 4 MiB are twice the window of OpenSSH's
    /// channel: more would only wait in this queue.
    pub max_queued_bytes: usize,
    /// The fields of [`ExactAttrs`] to request from servers that know them.
    pub exact_attrs: u32,
    /// Uses the extensions of sshoal's own server, if the server offers them.
    pub uses_own_extensions: bool,
    /// Compresses packets in both directions, if the server can.
    pub compresses: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            max_packet_bytes: MAX_PACKET_BYTES,
            max_in_flight: 512,
            max_queued_bytes: 4 * 1024 * 1024,
            exact_attrs: ExactAttrs::ALL,
            uses_own_extensions: true,
            compresses: false,
        }
    }
}

/// What the server announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// The extensions that the server offers.
    pub extensions: Extensions,
    /// Longest READ in bytes, at least 32 KiB.
    pub max_read: u32,
    /// Longest WRITE in bytes, at least 32 KiB.
    pub max_write: u32,
    /// Longest packet in bytes, at least 34,000.
    pub max_packet: usize,
    /// Maximum number of open handles, if announced.
    pub max_handles: Option<u64>,
}

impl Server {
    /// Raises limits below those of the draft: with a limit of a few bytes, one request of the
    /// kernel would become a million of the protocol.
    fn new(extensions: Extensions, limits: Limits, options: &Options) -> Server {
        let packet = usize::try_from(limits.packet_bytes).unwrap_or(usize::MAX);
        let max_packet = packet.max(MIN_PACKET_BYTES);
        let transfer = |value: u64, packet: usize| {
            let most = packet.saturating_sub(ENVELOPE_BYTES);
            let most = u32::try_from(most).unwrap_or(u32::MAX);
            u32::try_from(value).unwrap_or(u32::MAX).min(most).max(MIN_TRANSFER_BYTES)
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

/// Activity of a connection, for a watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Requests without a reply, including those whose calls were dropped.
    pub in_flight: usize,
    /// The requests among them that are slow by nature: `fsync`, `copy_data`.
    pub slow_in_flight: usize,
    /// Time without a byte from the server while requests were in flight; zero without requests.
    pub silent: Duration,
}

/// State shared by the calls, the reader task, and the writer task.
struct Shared {
    pending: Mutex<Pending>,
    output: Output,
    /// Notified when the connection has ended.
    ended: Notify,
    /// The first reply of the wrong kind.
    unexpected: SetOnce<Error>,
    options: Options,
    /// Packets may be compressed.
    compresses: bool,
    counters: Arc<Counters>,
}

/// An encoded request, and the content of a WRITE that follows it.
struct Packet {
    kind: Kind,
    head: BytesMut,
    body: Bytes,
    /// The handles in the request.
    handles: [Option<RemoteHandle>; 2],
    /// The request is CLOSE.
    closes: bool,
    /// Bytes that compression has saved.
    saved: usize,
}

/// Room for a request with a path of usual length, in bytes.
const HEAD_BYTES: usize = 128;

/// Position of the id in a packet: after length and type.
const ID_AT: std::ops::Range<usize> = 5..9;

impl Packet {
    /// A request without content, its id still to be set.
    fn new(request: &Request<'_>) -> Packet {
        let mut head = BytesMut::with_capacity(HEAD_BYTES);
        request.encode(0, &mut head);
        Packet::encoded(request.kind(), head, Bytes::new())
    }

    /// A WRITE request with the content `body`.
    fn write(handle: &RemoteHandle, offset: u64, body: Bytes) -> Packet {
        let mut head = BytesMut::with_capacity(HEAD_BYTES);
        Request::encode_write_head(0, handle.as_bytes(), offset, body.len(), &mut head);
        Packet::encoded(Kind::WRITE, head, body)
    }

    fn encoded(kind: Kind, head: BytesMut, body: Bytes) -> Packet {
        Packet { kind, head, body, handles: [None, None], closes: false, saved: 0 }
    }

    /// The CLOSE request of a handle.
    fn close(handle: &RemoteHandle) -> Packet {
        let packet = Packet::new(&Request::Close { handle: handle.as_bytes() });
        Packet { handles: [Some(handle.clone()), None], closes: true, ..packet }
    }

    /// Undoes the request with this id to set a lock.
    fn cancel_lock(handle: &RemoteHandle, id: u32) -> Packet {
        let lock = LockRequest::Cancel { id };
        let packet = Packet::new(&Request::Lock { handle: handle.as_bytes(), lock });
        Packet { handles: [Some(handle.clone()), None], ..packet }
    }

    /// Whether CLOSE was sent for a handle of the request.
    fn is_void(&self) -> bool {
        self.handles.iter().flatten().any(RemoteHandle::is_closed)
    }

    fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Compresses the packet if it shrinks. Its id can still be set.
    fn compress(&mut self) {
        if let Some(packed) = pack(&self.head, &self.body) {
            self.saved = self.len() - packed.len();
            (self.head, self.body) = (packed, Bytes::new());
        }
    }

    fn set_id(&mut self, id: u32) {
        self.head[ID_AT].copy_from_slice(&id.to_be_bytes());
    }
}

impl Shared {
    /// Sends `packet` if the caller with `ticket` is next, and returns the id. Otherwise the caller
    /// is queued, and `waker` will be called.
    fn send_or_enqueue(
        self: &Arc<Shared>,
        packet: &mut Packet,
        expect: Expect,
        ticket: &mut Option<u64>,
        waker: &Waker,
    ) -> Poll<Result<u32>> {
        let output = self.output.lock();
        let mut pending = self.pending.lock();
        if let Some(end) = pending.end() {
            return Poll::Ready(Err(end.clone()));
        }
        if packet.is_void() {
            let next = ticket.take().and_then(|ticket| pending.leave_queue(ticket));
            drop((pending, output));
            next.into_iter().for_each(Waker::wake);
            return Poll::Ready(Err(Error::Closed));
        }
        let room = pending.in_flight() < self.options.max_in_flight
            && output.queued_bytes() < self.options.max_queued_bytes;
        if !room || !pending.is_next(*ticket) {
            *ticket = Some(pending.enqueue(*ticket, waker));
            return Poll::Pending;
        }
        let (waker, ticket) = (Some(waker.clone()), ticket.take());
        Poll::Ready(self.send((output, pending), packet, expect, waker, ticket))
    }

    /// Sends `packet` at once; no caller waits for the reply.
    fn send_unattended(self: &Arc<Shared>, mut packet: Packet, expect: Expect) {
        let output = self.output.lock();
        let pending = self.pending.lock();
        if pending.end().is_none() && !packet.is_void() {
            // An error ends the connection.
            let _ = self.send((output, pending), &mut packet, expect, None, None);
        }
    }

    /// Sends `packet` for a caller with `waker` and returns the id. A caller with a ticket leaves
    /// the queue.
    fn send(
        self: &Arc<Shared>,
        (mut output, mut pending): (MutexGuard<'_, output::State>, MutexGuard<'_, Pending>),
        packet: &mut Packet,
        expect: Expect,
        waker: Option<Waker>,
        ticket: Option<u64>,
    ) -> Result<u32> {
        let id = pending.reserve(packet.kind, expect, waker);
        // There may be room for the next caller too; it checks for itself.
        let next = ticket.and_then(|ticket| pending.leave_queue(ticket));
        drop(pending);
        let sent = match id {
            Some(id) => {
                packet.set_id(id);
                self.counters.sent(packet);
                output.push(packet, self).map(|()| id)
            }
            // 65,536 requests without a reply: the server has stopped responding.
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
        sent
    }

    /// Wakes the first caller in the queue, since there may be room.
    fn wake_next(&self) {
        let next = self.pending.lock().first_in_queue();
        next.into_iter().for_each(Waker::wake);
    }

    /// Ends the connection. The first reason is kept.
    fn finish(&self, why: Error) {
        let woken = self.pending.lock().finish(why);
        let writer = self.output.close();
        woken.into_iter().chain(writer).for_each(Waker::wake);
        self.ended.notify_waiters();
    }

    /// Ends the connection if the holder panics. Callers' operations run in the reader task: if one
    /// of them panics, the others would be left without a reader.
    fn finish_on_panic(&self) -> OnDrop<impl FnMut()> {
        OnDrop(|| {
            if std::thread::panicking() {
                self.finish(Error::Disconnected("an operation has panicked".into()));
            }
        })
    }

    fn end(&self) -> Option<Error> {
        self.pending.lock().end().cloned()
    }
}

/// One SFTP session. Dropping it ends the session; outstanding calls fail.
pub struct Client {
    shared: Arc<Shared>,
    server: Server,
    product: Option<Product>,
}

impl Client {
    /// Exchanges INIT and VERSION over `stream`, and requests the server's limits if it offers
    /// them.
    ///
    /// Has to be called, and the client has to be used, within a tokio runtime.
    pub async fn connect<S>(stream: S, options: Options) -> Result<Client>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (reader, writer) = tokio::io::split(stream);
        Client::connect_halves(reader, writer, options).await
    }

    /// Connects like [`Client::connect`], over a stream whose halves need no common lock.
    pub async fn connect_halves<R, W>(reader: R, writer: W, options: Options) -> Result<Client>
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        Client::connect_counted(reader, writer, options, Arc::default()).await
    }

    /// Connects like [`Client::connect_halves`]. The client counts in `counters`, which other
    /// clients may share.
    pub async fn connect_counted<R, W>(
        reader: R,
        writer: W,
        options: Options,
        counters: Arc<Counters>,
    ) -> Result<Client>
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let (mut reader, mut writer) = (reader, writer);
        let mut init = BytesMut::new();
        encode_init(crate::codec::VERSION, &mut init);
        let mut receive_buffer = ReceiveBuffer::new(options.max_packet_bytes);
        // A server that ended at once may have sent a message: it is the better error.
        let sent = async {
            writer.write_all(&init).await?;
            writer.flush().await
        };
        let sent = sent.await;
        let version = reader::handshake(&mut reader, &mut receive_buffer).await;
        let mut version = match (version, sent) {
            (Err(Error::Disconnected(_)), Err(error)) => {
                return Err(Error::of_stream(&error));
            }
            (version, _) => version?,
        };
        if !options.uses_own_extensions {
            version.extensions.remove(Extension::Attrs);
        }
        let compresses = options.compresses && version.extensions.has(Extension::Deflate);
        let shared = Arc::new(Shared {
            pending: Mutex::new(Pending::new()),
            output: Output::new(Box::new(writer)),
            ended: Notify::new(),
            unexpected: SetOnce::new(),
            options,
            compresses,
            counters,
        });
        tokio::spawn(reader::run(shared.clone(), reader, receive_buffer));
        tokio::spawn(output::run(shared.clone()));
        let server = Server::new(version.extensions, Limits::default(), &options);
        let mut client = Client { shared, server, product: version.product };
        if version.extensions.has(Extension::Attrs) {
            // Requests are executed in order, so all later replies have the fields.
            let request = Request::Attrs { fields: options.exact_attrs };
            client.shared.send_unattended(Packet::new(&request), Expect::Status);
        }
        if compresses {
            let request = Request::Deflate { replies: true };
            client.shared.send_unattended(Packet::new(&request), Expect::Status);
        }
        if version.extensions.has(Extension::Limits) {
            match client.limits().await {
                Ok(limits) => {
                    client.server = Server::new(version.extensions, limits, &options);
                }
                // The server may deny the request (`-P limits`); then nothing is announced.
                Err(error) if error.ends_connection() => return Err(error),
                Err(_) => {}
            }
        }
        Ok(client)
    }

    /// What the server announced.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Whether packets are compressed that shrink.
    pub fn compresses(&self) -> bool {
        self.shared.compresses
    }

    /// The program of the server, if it names itself. Its text is the server's, not escaped.
    pub fn product(&self) -> Option<&Product> {
        self.product.as_ref()
    }

    /// The reason of the connection's end, if it has ended.
    pub fn end(&self) -> Option<Error> {
        self.shared.end()
    }

    /// Waits for the end of the connection; returns its reason.
    pub fn closed(&self) -> impl Future<Output = Error> + Send + use<> {
        let shared = self.shared.clone();
        async move { until(&shared.ended, || shared.end()).await }
    }

    /// Waits for the first reply of the wrong kind for its request; returns its error.
    pub fn unexpected(&self) -> impl Future<Output = Error> + Send + use<> {
        let shared = self.shared.clone();
        async move { shared.unexpected.wait().await.clone() }
    }

    /// Ends the connection: every call fails with `why`.
    pub fn abort(&self, why: Error) {
        self.shared.finish(why);
    }

    /// The shortest time between a request and its reply within the last 30 to 60 seconds with
    /// replies: close to the round trip of the link. `None` before the first reply.
    pub fn round_trip(&self) -> Option<Duration> {
        self.shared.pending.lock().round_trip()
    }

    /// Waits until a request is in flight. For one caller at a time.
    pub fn busy(&self) -> impl Future<Output = ()> + Send + use<> {
        let shared = self.shared.clone();
        std::future::poll_fn(move |context| match shared.pending.lock().is_busy(context.waker()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
    }

    /// The activity of the connection.
    pub fn activity(&self) -> Activity {
        let pending = self.shared.pending.lock();
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

/// Checks VERSION.
fn accept_version(version: Version) -> Result<Version> {
    match version.version {
        crate::codec::VERSION => Ok(version),
        other => Err(Error::Protocol(format!(
            "the server speaks SFTP version {other} where version 3 was requested"
        ))),
    }
}
