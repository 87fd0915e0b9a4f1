//! The bytes to and from an SFTP server, whatever carries them.
//!
//! Invariant: where a child carries them, the end of the stream (an end of file, or an error of
//! a read or a write) is told only when the child has ended and its last words are in the
//! [`Diagnosis`], or did not come in time. So whoever sees the end can say why.

use std::fs::File;
use std::future::Future;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream, tcp, unix};
use tokio::sync::oneshot;

use crate::diagnosis::Diagnosis;

/// A byte stream to an SFTP server.
///
/// Dropping it (or both of its halves) ends the connection: the child, if there is one, gets an
/// end of file and a moment to send what it still has, then it is killed; it is reaped in any
/// case.
#[derive(Debug)]
pub struct Stream {
    reader: Reader,
    writer: Writer,
}

/// The half of a [`Stream`] that reads.
#[derive(Debug)]
pub struct Reader {
    carrier: ReadCarrier,
    end: End,
    _hangup: Arc<Hangup>,
}

/// The half of a [`Stream`] that writes. Dropping it tells the other side that no more comes.
#[derive(Debug)]
pub struct Writer {
    carrier: WriteCarrier,
    end: End,
    _hangup: Arc<Hangup>,
}

#[derive(Debug)]
enum ReadCarrier {
    Unix(unix::OwnedReadHalf),
    Tcp(tcp::OwnedReadHalf),
    Descriptor(AsyncFd<File>),
}

#[derive(Debug)]
enum WriteCarrier {
    Unix(unix::OwnedWriteHalf),
    Tcp(tcp::OwnedWriteHalf),
    /// `None` after a shutdown: closing is the only end of file that a pipe knows.
    Descriptor(Option<AsyncFd<File>>),
}

/// Its other half is with the child's attendant, who sees it go.
type Hangup = Option<oneshot::Sender<()>>;

impl Stream {
    /// One end of a socket pair whose other end a child has.
    pub(crate) fn of_child(
        stream: UnixStream,
        hangup: oneshot::Sender<()>,
        diagnosis: &Diagnosis,
    ) -> Stream {
        let (reader, writer) = stream.into_split();
        let carriers = (ReadCarrier::Unix(reader), WriteCarrier::Unix(writer));
        Stream::new(carriers, Some(hangup), diagnosis)
    }

    pub(crate) fn of_tcp(stream: TcpStream) -> Stream {
        let (reader, writer) = stream.into_split();
        let carriers = (ReadCarrier::Tcp(reader), WriteCarrier::Tcp(writer));
        Stream::new(carriers, None, &Diagnosis::default())
    }

    /// Takes two descriptors that can be polled: pipes, sockets, terminals. Makes them
    /// nonblocking, for everybody who shares their open file description.
    pub(crate) fn of_descriptors(input: OwnedFd, output: OwnedFd) -> io::Result<Stream> {
        let reader = ReadCarrier::Descriptor(polled(input)?);
        let writer = WriteCarrier::Descriptor(Some(polled(output)?));
        Ok(Stream::new((reader, writer), None, &Diagnosis::default()))
    }

    fn new(carriers: (ReadCarrier, WriteCarrier), hangup: Hangup, diagnosis: &Diagnosis) -> Stream {
        let hangup = Arc::new(hangup);
        let end = || End::Far(diagnosis.clone());
        let reader = Reader { carrier: carriers.0, end: end(), _hangup: hangup.clone() };
        let writer = Writer { carrier: carriers.1, end: end(), _hangup: hangup };
        Stream { reader, writer }
    }

    /// Two halves for two tasks, without a lock between them.
    #[must_use]
    pub fn into_split(self) -> (Reader, Writer) {
        (self.reader, self.writer)
    }
}

/// How far the end of one half is.
enum End {
    /// Not seen yet.
    Far(Diagnosis),
    /// Seen; what is to be said of it is being written down.
    Near(Pin<Box<dyn Future<Output = ()> + Send + Sync>>),
    /// May be told.
    Here,
}

impl End {
    /// Ready when the end may be told. To be called when it was seen, until it is ready.
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

impl AsyncRead for Reader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.remaining();
        let result = ready!(match &mut self.carrier {
            ReadCarrier::Unix(half) => Pin::new(half).poll_read(context, buffer),
            ReadCarrier::Tcp(half) => Pin::new(half).poll_read(context, buffer),
            ReadCarrier::Descriptor(input) => poll_read(input, context, buffer),
        });
        if result.is_err() || (before > 0 && buffer.remaining() == before) {
            // The carrier says the same when it is asked again.
            ready!(self.end.poll(context));
        }
        Poll::Ready(result)
    }
}

impl Writer {
    fn poll_written(
        &mut self,
        context: &mut Context<'_>,
        result: io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        if result.is_err() {
            ready!(self.end.poll(context));
        }
        Poll::Ready(result)
    }
}

impl AsyncWrite for Writer {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(match &mut self.carrier {
            WriteCarrier::Unix(half) => Pin::new(half).poll_write(context, bytes),
            WriteCarrier::Tcp(half) => Pin::new(half).poll_write(context, bytes),
            WriteCarrier::Descriptor(output) =>
                poll_write(output.as_ref(), context, &[IoSlice::new(bytes)]),
        });
        self.poll_written(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(match &mut self.carrier {
            WriteCarrier::Unix(half) => Pin::new(half).poll_write_vectored(context, slices),
            WriteCarrier::Tcp(half) => Pin::new(half).poll_write_vectored(context, slices),
            WriteCarrier::Descriptor(output) => poll_write(output.as_ref(), context, slices),
        });
        self.poll_written(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Nothing is kept here.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.carrier {
            WriteCarrier::Unix(half) => Pin::new(half).poll_shutdown(context),
            WriteCarrier::Tcp(half) => Pin::new(half).poll_shutdown(context),
            WriteCarrier::Descriptor(output) => {
                *output = None;
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.writer.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(context)
    }
}

fn poll_read(
    input: &AsyncFd<File>,
    context: &mut Context<'_>,
    buffer: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    loop {
        let mut ready = ready!(input.poll_read_ready(context))?;
        let room = buffer.initialize_unfilled();
        match ready.try_io(|input| input.get_ref().read(room)) {
            Ok(Ok(read)) => {
                buffer.advance(read);
                return Poll::Ready(Ok(()));
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => (),
            Ok(Err(error)) => return Poll::Ready(Err(error)),
            Err(_would_block) => (),
        }
    }
}

fn poll_write(
    output: Option<&AsyncFd<File>>,
    context: &mut Context<'_>,
    slices: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    let Some(output) = output else {
        return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
    };
    loop {
        let mut ready = ready!(output.poll_write_ready(context))?;
        match ready.try_io(|output| output.get_ref().write_vectored(slices)) {
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => (),
            Ok(result) => return Poll::Ready(result),
            Err(_would_block) => (),
        }
    }
}

/// Makes a descriptor nonblocking and watches it.
pub(crate) fn polled(descriptor: OwnedFd) -> io::Result<AsyncFd<File>> {
    fcntl_setfl(&descriptor, fcntl_getfl(&descriptor)? | OFlags::NONBLOCK)?;
    // SAFETY: a `File` owns its descriptor, which therefore is open and the same one until the
    // `File` is dropped, and nobody can take it out but by `into_inner`.
    Ok(unsafe { AsyncFd::register(File::from(descriptor)) }?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn pipes_carry_both_directions_and_an_end() {
        let (to_us, from_them) = rustix::pipe::pipe().unwrap();
        let (to_them, from_us) = rustix::pipe::pipe().unwrap();
        let mut ours = Stream::of_descriptors(to_us, from_us).unwrap();
        let mut theirs = Stream::of_descriptors(to_them, from_them).unwrap();

        // More than a pipe holds, so that both sides have to wait.
        let sent: Vec<u8> = (0..1_000_000u32).map(|i| i as u8).collect();
        let send = async {
            ours.write_all(&sent).await.unwrap();
            ours.shutdown().await.unwrap();
            assert!(ours.write(b"x").await.is_err());
        };
        let mut received = Vec::new();
        let (_, read) = tokio::join!(send, theirs.read_to_end(&mut received));
        read.unwrap();
        assert_eq!(received, sent);

        theirs.write_all(b"back").await.unwrap();
        drop(theirs);
        let mut back = String::new();
        ours.read_to_string(&mut back).await.unwrap();
        assert_eq!(back, "back");
    }

    #[tokio::test]
    async fn a_plain_file_is_refused() {
        let file = || OwnedFd::from(tempfile::tempfile().unwrap());
        assert!(Stream::of_descriptors(file(), file()).is_err());
    }
}
