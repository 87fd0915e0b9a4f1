//! The byte stream to and from an SFTP server, over any transport.
//!
//! Invariant: with a child process, the end of the stream (an end of file, or an error of a read or
//! a write) is reported only when the child has ended and its last messages are in the
//! [`Diagnosis`], or did not arrive in time. So the reason is known when the end is reported.

use std::fs::File;
use std::future::Future;
use std::io::{self, IoSlice, Write};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::{AddressFamily, Shutdown, SocketType, sockopt};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::diagnosis::Diagnosis;

/// The half of a byte stream that reads.
///
/// Dropping both halves ends the connection: the child, if any, gets an end of file and a moment to
/// send its remaining data, then it is killed; it is reaped in any case.
#[derive(Debug)]
pub struct Reader {
    input: AsyncFd<File>,
    /// Whether a read that did not fill the buffer has left nothing to read: true for stream
    /// sockets, not for descriptors that deliver a line or a packet at a time.
    short_is_all: bool,
    end: End,
    _hangup: Arc<Hangup>,
}

/// The half of a byte stream that writes. Dropping it sends an end of file.
#[derive(Debug)]
pub struct Writer {
    /// `None` after a shutdown.
    output: Option<Output>,
    end: End,
    _hangup: Arc<Hangup>,
}

/// Dropping it notifies the child's attendant, which holds the other half.
type Hangup = Option<oneshot::Sender<()>>;

/// One end of a socket pair whose other end is the child's.
pub(crate) fn of_child(
    socket: OwnedFd,
    hangup: oneshot::Sender<()>,
    diagnosis: &Diagnosis,
) -> io::Result<(Reader, Writer)> {
    let output = socket.try_clone()?;
    halves(socket, output, Some(hangup), diagnosis)
}

/// A socket for both directions.
pub(crate) fn of_socket(socket: OwnedFd) -> io::Result<(Reader, Writer)> {
    let output = socket.try_clone()?;
    of_descriptors(socket, output)
}

/// Takes two descriptors that can be polled: pipes, sockets, terminals. Makes them nonblocking, also
/// for other processes that share their open file descriptions.
pub(crate) fn of_descriptors(input: OwnedFd, output: OwnedFd) -> io::Result<(Reader, Writer)> {
    halves(input, output, None, &Diagnosis::default())
}

fn halves(
    input: OwnedFd,
    output: OwnedFd,
    hangup: Hangup,
    diagnosis: &Diagnosis,
) -> io::Result<(Reader, Writer)> {
    let hangup = Arc::new(hangup);
    let end = || End::Far(diagnosis.clone());
    let reader = Reader {
        short_is_all: is_plain_stream(&input),
        input: polled(input, Interest::READABLE)?,
        end: end(),
        _hangup: hangup.clone(),
    };
    let output = Some(Output::new(output)?);
    Ok((reader, Writer { output, end: end(), _hangup: hangup }))
}

/// The state of the end of one half.
enum End {
    /// Not seen yet.
    Far(Diagnosis),
    /// Seen; waiting for the child's last messages.
    Near(Pin<Box<dyn Future<Output = ()> + Send + Sync>>),
    /// May be reported.
    Here,
}

impl End {
    /// Ready when the end may be reported. Call it from when the end was seen until it is ready.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let End::Far(diagnosis) = self {
            let diagnosis = diagnosis.clone();
            *self = End::Near(Box::pin(async move { diagnosis.settled().await }));
        }
        if let End::Near(settled) = self {
            ready!(settled.as_mut().poll(context));
            *self = End::Here;
        }
        Poll::Ready(())
    }
}

impl std::fmt::Debug for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            End::Far(_) => "Far",
            End::Near(_) => "Near",
            End::Here => "Here",
        })
    }
}

impl Reader {
    fn poll_input(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.input.poll_read_ready(context))?;
            let wanted = buffer.remaining();
            match ready.try_io(|input| read(input.get_ref(), buffer)) {
                Ok(Ok(read)) => {
                    if self.short_is_all && (1..wanted).contains(&read) {
                        // Saves a read that would return nothing.
                        ready.clear_ready();
                    }
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => (),
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) => (),
            }
        }
    }
}

/// Reads into the unfilled part of the buffer, which need not be initialised.
fn read(input: &File, buffer: &mut ReadBuf<'_>) -> io::Result<usize> {
    // SAFETY: no initialised byte becomes uninitialised: only the kernel writes to the buffer.
    let (filled, _) = rustix::io::read(input, unsafe { buffer.unfilled_mut() })?;
    let read = filled.len();
    // SAFETY: the kernel has just written this many bytes at its beginning.
    unsafe { buffer.assume_init(read) };
    buffer.advance(read);
    Ok(read)
}

impl AsyncRead for Reader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.remaining();
        let result = ready!(self.poll_input(context, buffer));
        if result.is_err() || (before > 0 && buffer.remaining() == before) {
            // The descriptor returns the same result when it is read again.
            ready!(self.end.poll(context));
        }
        Poll::Ready(result)
    }
}

/// A descriptor that is polled only while it accepts no data. Polled all the time, it would wake
/// this process whenever the other side has read: once per request, for nothing.
#[derive(Debug)]
struct Output {
    file: File,
    /// A duplicate descriptor, which can be polled separately from a [`Reader`]'s.
    idle: Option<File>,
    full: Option<AsyncFd<File>>,
    /// The runtime that polls it, kept for writes outside of it.
    runtime: Handle,
}

impl Output {
    fn new(descriptor: OwnedFd) -> io::Result<Output> {
        set_nonblocking(&descriptor)?;
        let file = File::from(descriptor);
        let idle = Some(file.try_clone()?);
        // Fails now if the descriptor cannot be polled.
        let mut output = Output { file, idle, full: None, runtime: Handle::current() };
        output.watch()?;
        output.unwatch();
        Ok(output)
    }

    fn watch(&mut self) -> io::Result<()> {
        let _inside = self.runtime.enter();
        let file = match self.idle.take() {
            Some(file) => file,
            // It was dropped by an attempt that failed.
            None => self.file.try_clone()?,
        };
        self.full = Some(watched(file, Interest::WRITABLE)?);
        Ok(())
    }

    fn unwatch(&mut self) {
        if let Some(full) = self.full.take() {
            self.idle = Some(full.into_inner());
        }
    }

    fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            let result = match &self.full {
                None => (&self.file).write_vectored(slices),
                Some(full) => {
                    let mut ready = ready!(full.poll_write_ready(context))?;
                    match ready.try_io(|full| full.get_ref().write_vectored(slices)) {
                        Ok(result) => result,
                        Err(_would_block) => continue,
                    }
                }
            };
            match result {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.watch()?,
                result => {
                    self.unwatch();
                    return Poll::Ready(result);
                }
            }
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // A reader may hold the same socket, so that closing this one is no end of file. On a pipe
        // this call does nothing; closing it is the end of file.
        let _ = rustix::net::shutdown(&self.file, Shutdown::Write);
    }
}

impl AsyncWrite for Writer {
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
        let result = match &mut self.output {
            Some(output) => ready!(output.poll_write(context, slices)),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        if result.is_err() {
            ready!(self.end.poll(context));
        }
        Poll::Ready(result)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Nothing is kept here.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.output = None;
        Poll::Ready(Ok(()))
    }
}

/// Whether it is a stream socket that delivers bytes without packet boundaries. Some vsock drivers
/// deliver a packet at a time.
fn is_plain_stream(descriptor: &OwnedFd) -> bool {
    let domains = [AddressFamily::UNIX, AddressFamily::INET, AddressFamily::INET6];
    sockopt::socket_type(descriptor) == Ok(SocketType::STREAM)
        && sockopt::socket_domain(descriptor).is_ok_and(|domain| domains.contains(&domain))
}

/// Makes a descriptor nonblocking and polls it.
pub(crate) fn polled(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<File>> {
    set_nonblocking(&descriptor)?;
    watched(File::from(descriptor), interest)
}

fn set_nonblocking(descriptor: &OwnedFd) -> io::Result<()> {
    Ok(fcntl_setfl(descriptor, fcntl_getfl(descriptor)? | OFlags::NONBLOCK)?)
}

fn watched(file: File, interest: Interest) -> io::Result<AsyncFd<File>> {
    // SAFETY: a `File` owns its descriptor, which therefore is open and the same one until the
    // `File` is dropped, and only `into_inner` can take it out.
    Ok(unsafe { AsyncFd::register_with_interest(file, interest) }?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn pipes_carry_both_directions_and_an_end() {
        let (to_us, from_them) = rustix::pipe::pipe().unwrap();
        let (to_them, from_us) = rustix::pipe::pipe().unwrap();
        let (mut from_theirs, mut to_theirs) = of_descriptors(to_us, from_us).unwrap();
        let (mut from_ours, mut to_ours) = of_descriptors(to_them, from_them).unwrap();

        // More than a pipe holds, so that both sides have to wait.
        let sent: Vec<u8> = (0..1_000_000u32).map(|i| i as u8).collect();
        let send = async {
            to_theirs.write_all(&sent).await.unwrap();
            to_theirs.shutdown().await.unwrap();
            assert!(to_theirs.write(b"x").await.is_err());
        };
        let mut received = Vec::new();
        let (_, read) = tokio::join!(send, from_ours.read_to_end(&mut received));
        read.unwrap();
        assert_eq!(received, sent);

        to_ours.write_all(b"back").await.unwrap();
        drop((from_ours, to_ours));
        let mut back = String::new();
        from_theirs.read_to_string(&mut back).await.unwrap();
        assert_eq!(back, "back");
    }

    #[tokio::test]
    async fn a_socket_ends_in_one_direction_at_a_time() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let (mut reader, mut writer) = of_socket(ours.into()).unwrap();
        let (mut from_ours, mut to_ours) = of_socket(theirs.into()).unwrap();

        // Full more than once, so that it is watched again after it was not.
        let sent: Vec<u8> = (0..3_000_000u32).map(|i| i as u8).collect();
        let send = async move {
            for part in sent.chunks(1_000_000) {
                writer.write_all(part).await.unwrap();
            }
            sent
        };
        let mut received = Vec::new();
        let (sent, read) = tokio::join!(send, from_ours.read_to_end(&mut received));
        read.unwrap();
        assert_eq!(received, sent);

        to_ours.write_all(b"back").await.unwrap();
        drop((from_ours, to_ours));
        let mut back = String::new();
        reader.read_to_string(&mut back).await.unwrap();
        assert_eq!(back, "back");
    }

    /// Handles are closed by their last owner, which may be outside of the runtime.
    #[tokio::test]
    async fn a_thread_outside_the_runtime_may_fill_a_socket() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut writer = of_socket(ours.into()).unwrap().1;
        let mut theirs = of_socket(theirs.into()).unwrap().0;
        let (mut writer, sent) = std::thread::spawn(move || {
            let mut context = Context::from_waker(std::task::Waker::noop());
            let mut sent = 0;
            loop {
                match Pin::new(&mut writer).poll_write(&mut context, &[7; 10_000]) {
                    Poll::Ready(written) => sent += written.unwrap(),
                    Poll::Pending => return (writer, sent),
                }
            }
        })
        .join()
        .unwrap();
        let mut received = vec![0; sent];
        theirs.read_exact(&mut received).await.unwrap();
        writer.write_all(b"more").await.unwrap();
        theirs.read_exact(&mut received[..4]).await.unwrap();
        assert_eq!(&received[..4], b"more");
    }

    #[tokio::test]
    async fn a_plain_file_is_refused() {
        let file = || OwnedFd::from(tempfile::tempfile().unwrap());
        assert!(of_descriptors(file(), file()).is_err());
    }
}
