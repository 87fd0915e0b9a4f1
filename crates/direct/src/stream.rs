//! The two halves of a connection, for threads that may block ([`Reader`], [`Writer`]) and for the
//! tasks of a runtime ([`AsyncReader`], [`AsyncWriter`]).
//!
//! Bytes are received without a lock. They are deciphered and enciphered under the lock of the TLS
//! connection, which both halves share.

use std::io::{self, BufRead, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use base::Mutex;
use base::polling::Polling;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::Connection;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::runtime::Handle;

use crate::socket::limit_silence;

/// Bytes that are received at once, if there are as many.
const RECEIVED_BYTES: usize = 128 << 10;

/// Bytes that are enciphered before they are sent, at most.
const SEALED_BYTES: usize = 512 << 10;

/// A read that took less did not wait: several requests are under way.
const AT_ONCE: Duration = Duration::from_micros(4);

struct Shared {
    socket: TcpStream,
    /// Nothing is to be sent any more.
    is_discarded: AtomicBool,
    tls: Mutex<Connection>,
    awaited: Mutex<Awaited>,
}

/// The answer to what was sent, for which a task waits.
#[derive(Default)]
struct Awaited {
    /// Something was sent since the last bytes were received.
    is_due: bool,
    /// The task that reads, if it is to poll for the answer as soon as something is sent.
    reader: Option<Waker>,
}

impl Shared {
    fn new(socket: TcpStream, mut tls: Connection) -> Arc<Shared> {
        tls.set_buffer_limit(Some(SEALED_BYTES));
        let is_discarded = AtomicBool::new(false);
        Arc::new(Shared { socket, is_discarded, tls: Mutex::new(tls), awaited: Mutex::default() })
    }

    /// Something was sent.
    fn note_sent(&self) {
        let mut awaited = self.awaited.lock();
        awaited.is_due = true;
        let reader = awaited.reader.take();
        drop(awaited);
        reader.into_iter().for_each(Waker::wake);
    }
}

/// Received bytes that were not deciphered yet.
struct Received {
    bytes: Box<[u8]>,
    begin: usize,
    end: usize,
}

/// The result of an attempt to take bytes out of what was received.
enum Taken {
    /// This number of bytes was taken.
    Bytes(usize),
    /// More has to be received first.
    Nothing,
    /// The other side has ended the connection.
    End,
}

impl Received {
    fn new() -> Received {
        Received { bytes: vec![0; RECEIVED_BYTES].into(), begin: 0, end: 0 }
    }

    /// Receives bytes, when all before were taken. `false` at the end of the stream.
    fn receive(&mut self, mut socket: &TcpStream) -> io::Result<bool> {
        (self.begin, self.end) = (0, 0);
        self.end = socket.read(&mut self.bytes)?;
        Ok(self.end > 0)
    }

    /// Deciphers, and gives the bytes to `put`, which returns how many it has taken.
    fn take(
        &mut self,
        tls: &mut Connection,
        mut put: impl FnMut(&[u8]) -> usize,
    ) -> io::Result<Taken> {
        let mut taken = 0;
        loop {
            let mut reader = tls.reader();
            let (offered, used) = match reader.fill_buf() {
                Ok([]) if taken == 0 => return Ok(Taken::End),
                Ok([]) => return Ok(Taken::Bytes(taken)),
                Ok(plain) => (plain.len(), put(plain)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => (0, 0),
                Err(error) => return Err(error),
            };
            reader.consume(used);
            taken += used;
            if used < offered {
                return Ok(Taken::Bytes(taken));
            }
            if offered > 0 {
                continue;
            }
            if self.begin == self.end {
                return Ok(if taken > 0 { Taken::Bytes(taken) } else { Taken::Nothing });
            }
            let mut rest = &self.bytes[self.begin..self.end];
            let read = tls.read_tls(&mut rest)?;
            self.begin += read;
            tls.process_new_packets()
                .map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        }
    }
}

/// Sends what was enciphered. "Would block" if some of it is left.
fn send(tls: &mut Connection, mut socket: &TcpStream) -> io::Result<()> {
    while tls.wants_write() {
        match tls.write_tls(&mut socket) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

/// The half that reads. Blocks.
pub struct Reader {
    shared: Arc<Shared>,
    received: Received,
    polling: Polling,
}

/// The half that writes. Blocks.
pub struct Writer {
    shared: Arc<Shared>,
    silence_limit: Option<Duration>,
}

/// The halves of a connection whose handshake is done. `poll_limit` is how long a reader polls
/// before it sleeps, see [`Polling`].
pub(crate) fn blocking(
    socket: TcpStream,
    tls: Connection,
    poll_limit: Duration,
) -> (Reader, Writer) {
    let shared = Shared::new(socket, tls);
    let received = Received::new();
    let reader = Reader { shared: shared.clone(), received, polling: Polling::new(poll_limit) };
    (reader, Writer { shared, silence_limit: None })
}

impl Reader {
    /// Waits until there is something to read, or the end; `false` if there was neither for this
    /// time.
    ///
    /// # Errors
    /// The system's.
    pub fn is_readable_within(&mut self, limit: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + limit;
        loop {
            // A part of a record is nothing to read yet.
            match self.received.take(&mut self.shared.tls.lock(), |_| 0)? {
                Taken::Bytes(_) | Taken::End => return Ok(true),
                Taken::Nothing => {}
            }
            match self.receive(Some(deadline))? {
                Some(true) => {}
                Some(false) => return Ok(true),
                None => return Ok(false),
            }
        }
    }

    /// Whether it polls while a processor is free.
    #[cfg(test)]
    pub(crate) fn polls(&self) -> bool {
        self.polling.is_worthwhile()
    }

    /// Receives; sleeps if there is nothing after polling. `Some(false)` at the end of the stream,
    /// `None` if there is nothing until the deadline.
    fn receive(&mut self, deadline: Option<Instant>) -> io::Result<Option<bool>> {
        let began = Instant::now();
        let Reader { shared, received, polling } = self;
        let polled = polling.poll(|| {
            let flags = rustix::net::RecvFlags::DONTWAIT;
            match rustix::net::recv(&shared.socket, &mut received.bytes[..], flags) {
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => None,
                result => Some(result),
            }
        });
        let is_open = match polled {
            Some(result) => {
                let (read, _) = result?;
                (received.begin, received.end) = (0, read);
                Some(read > 0)
            }
            None => loop {
                if let Some(deadline) = deadline
                    && !is_readable_by(&shared.socket, deadline)?
                {
                    break None;
                }
                match received.receive(&shared.socket) {
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    result => break Some(result?),
                }
            },
        };
        note(polling, began.elapsed());
        Ok(is_open)
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut filled = 0;
            let taken = self.received.take(&mut self.shared.tls.lock(), |plain| {
                let len = plain.len().min(buffer.len() - filled);
                buffer[filled..filled + len].copy_from_slice(&plain[..len]);
                filled += len;
                len
            });
            match taken? {
                Taken::Bytes(taken) => return Ok(taken),
                Taken::End => return Ok(0),
                Taken::Nothing if self.receive(None)? == Some(true) => {}
                Taken::Nothing => return Ok(0),
            }
        }
    }
}

impl Writer {
    /// The connection is lost when the other side acknowledges or takes nothing for this time, if
    /// that is less than usual.
    ///
    /// # Errors
    /// The system's.
    pub fn limit_silence(&mut self, limit: Option<Duration>) -> io::Result<()> {
        if self.silence_limit != limit {
            limit_silence(&self.shared.socket, limit)?;
            self.silence_limit = limit;
        }
        Ok(())
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut tls = self.shared.tls.lock();
        let written = tls.writer().write_vectored(slices)?;
        send(&mut tls, &self.shared.socket)?;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket that a runtime watches only while a task sleeps: watched all the time, it would wake
/// the runtime for bytes that a task takes without it.
struct Watched {
    /// A duplicate of the socket, which can be watched by itself.
    socket: Option<TcpStream>,
    watched: Option<tokio::net::TcpStream>,
    interest: Interest,
    runtime: Handle,
}

impl Watched {
    fn new(socket: &TcpStream, interest: Interest) -> io::Result<Watched> {
        let socket = Some(socket.try_clone()?);
        Ok(Watched { socket, watched: None, interest, runtime: Handle::current() })
    }

    /// Calls `attempt` when the socket is ready, until it does not report "would block".
    fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        mut attempt: impl FnMut() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let interest = self.interest;
        let watched = match &self.watched {
            Some(watched) => watched,
            None => self.watch()?,
        };
        loop {
            match interest {
                Interest::READABLE => ready!(watched.poll_read_ready(context))?,
                _ => ready!(watched.poll_write_ready(context))?,
            }
            match watched.try_io(interest, &mut attempt) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    fn watch(&mut self) -> io::Result<&tokio::net::TcpStream> {
        let _inside = self.runtime.enter();
        let socket = self.socket.take().ok_or(ErrorKind::NotConnected)?;
        Ok(self.watched.insert(tokio::net::TcpStream::from_std(socket)?))
    }

    fn unwatch(&mut self) {
        if let Some(watched) = self.watched.take() {
            self.socket = watched.into_std().ok();
        }
    }
}

/// The half that reads, for a task.
pub struct AsyncReader {
    shared: Arc<Shared>,
    received: Received,
    polling: Polling,
    watched: Watched,
    /// Since when the task has waited.
    waits_since: Option<Instant>,
}

/// The half that writes, for tasks and other threads. Dropping it ends the connection.
pub struct AsyncWriter {
    shared: Arc<Shared>,
    watched: Watched,
}

/// The TCP connection of two halves. Does not keep it open.
pub struct Link(Weak<Shared>);

impl Link {
    /// See [`tcp::is_cut`]; false if the connection has ended.
    pub fn is_cut(&self) -> bool {
        self.0.upgrade().is_some_and(|shared| tcp::is_cut(shared.socket.as_fd()))
    }

    /// See [`tcp::discard_at_close`].
    pub fn discard_at_close(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.is_discarded.store(true, Ordering::Relaxed);
            tcp::discard_at_close(&shared.socket);
        }
    }
}

/// The halves of a connection whose handshake is done. Must be called within a runtime, which
/// serves them from then on.
pub(crate) fn asynchronous(
    socket: TcpStream,
    tls: Connection,
    poll_limit: Duration,
) -> io::Result<(AsyncReader, AsyncWriter)> {
    socket.set_nonblocking(true)?;
    let shared = Shared::new(socket, tls);
    let watched = |interest| Watched::new(&shared.socket, interest);
    let (input, output) = (watched(Interest::READABLE)?, watched(Interest::WRITABLE)?);
    let reader = AsyncReader {
        shared: shared.clone(),
        received: Received::new(),
        polling: Polling::new(poll_limit),
        watched: input,
        waits_since: None,
    };
    Ok((reader, AsyncWriter { shared, watched: output }))
}

impl AsyncWriter {
    /// The TCP connection.
    pub fn link(&self) -> Link {
        Link(Arc::downgrade(&self.shared))
    }
}

impl AsyncReader {
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let began = *self.waits_since.get_or_insert_with(Instant::now);
        let AsyncReader { shared, received, polling, watched, .. } = self;
        let mut receive = || loop {
            match received.receive(&shared.socket) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => return result,
            }
        };
        let mut polled = None;
        if polling.is_active() {
            if shared.awaited.lock().is_due {
                watched.unwatch();
                polled = polling.poll(|| Some(receive()).filter(|result| !would_block(result)));
            }
            if polled.is_none() {
                // It polls as soon as something is sent.
                shared.awaited.lock().reader = Some(context.waker().clone());
            }
        }
        let result = match polled {
            Some(result) => result,
            None => ready!(watched.poll(context, receive)),
        };
        shared.awaited.lock().is_due = false;
        note(polling, began.elapsed());
        self.waits_since = None;
        Poll::Ready(result)
    }
}

/// Sleeps until there is something to receive, or the end; `false` if there was neither until the
/// deadline.
fn is_readable_by(socket: &TcpStream, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

/// Records the wait of a read.
fn note(polling: &mut Polling, waited: Duration) {
    match waited < AT_ONCE {
        true => polling.note_no_wait(),
        false => polling.note_wait(waited),
    }
}

fn would_block<T>(result: &io::Result<T>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

impl AsyncRead for AsyncReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            let taken = this.received.take(&mut this.shared.tls.lock(), |plain| {
                let len = plain.len().min(buffer.remaining());
                buffer.put_slice(&plain[..len]);
                len
            });
            match taken? {
                Taken::Bytes(_) | Taken::End => return Poll::Ready(Ok(())),
                Taken::Nothing if ready!(this.poll_receive(context))? => {}
                Taken::Nothing => return Poll::Ready(Ok(())),
            }
        }
    }
}

impl AsyncWrite for AsyncWriter {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            let written = self.shared.tls.lock().writer().write_vectored(slices)?;
            if written > 0 || slices.iter().all(|slice| slice.is_empty()) {
                return Poll::Ready(Ok(written));
            }
            // As much is enciphered as may be.
            ready!(self.as_mut().poll_flush(context))?;
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let AsyncWriter { shared, watched } = &mut *self;
        let attempt = || send(&mut shared.tls.lock(), &shared.socket);
        match attempt() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            result => {
                watched.unwatch();
                shared.note_sent();
                return Poll::Ready(result);
            }
        }
        let result = ready!(watched.poll(context, attempt));
        watched.unwatch();
        shared.note_sent();
        Poll::Ready(result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.tls.lock().send_close_notify();
        self.as_mut().poll_flush(context)
    }
}

impl Drop for AsyncWriter {
    fn drop(&mut self) {
        if self.shared.is_discarded.load(Ordering::Relaxed) {
            return;
        }
        let mut tls = self.shared.tls.lock();
        tls.send_close_notify();
        let _ = send(&mut tls, &self.shared.socket);
        let _ = self.shared.socket.shutdown(std::net::Shutdown::Write);
    }
}
