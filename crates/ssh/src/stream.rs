//! The bytes to and from an SFTP server, whatever carries them.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;

/// A byte stream to an SFTP server.
///
/// Dropping it ends the connection: the child, if there is one, gets an end of file and a moment
/// to send what it still has, then it is killed; it is reaped in any case.
#[derive(Debug)]
pub struct Stream {
    carrier: Carrier,
    /// Its other half is with the child's attendant, who sees it go.
    _hangup: Option<oneshot::Sender<()>>,
}

#[derive(Debug)]
enum Carrier {
    Unix(UnixStream),
    Tcp(TcpStream),
    Pair(Pair),
}

impl Stream {
    /// One end of a socket pair whose other end a child has.
    pub(crate) fn of_child(stream: UnixStream, hangup: oneshot::Sender<()>) -> Stream {
        Stream { carrier: Carrier::Unix(stream), _hangup: Some(hangup) }
    }

    pub(crate) fn of_tcp(stream: TcpStream) -> Stream {
        Stream { carrier: Carrier::Tcp(stream), _hangup: None }
    }

    /// Takes two descriptors that can be polled: pipes, sockets, terminals. Makes them
    /// nonblocking, for everybody who shares their open file description.
    pub(crate) fn of_descriptors(input: OwnedFd, output: OwnedFd) -> io::Result<Stream> {
        Ok(Stream { carrier: Carrier::Pair(Pair::new(input, output)?), _hangup: None })
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.carrier {
            Carrier::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
            Carrier::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Carrier::Pair(pair) => pair.poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.carrier {
            Carrier::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
            Carrier::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Carrier::Pair(pair) => pair.poll_write(context, &[IoSlice::new(bytes)]),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.carrier {
            Carrier::Unix(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Carrier::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Carrier::Pair(pair) => pair.poll_write(context, slices),
        }
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
            Carrier::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            Carrier::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Carrier::Pair(pair) => {
                pair.output = None;
                Poll::Ready(Ok(()))
            }
        }
    }
}

/// Two descriptors, one for each direction.
#[derive(Debug)]
struct Pair {
    input: AsyncFd<File>,
    /// Gone after a shutdown: closing is the only end of file that a pipe knows.
    output: Option<AsyncFd<File>>,
}

impl Pair {
    fn new(input: OwnedFd, output: OwnedFd) -> io::Result<Pair> {
        Ok(Pair { input: polled(input)?, output: Some(polled(output)?) })
    }

    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.input.poll_read_ready(context))?;
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
        &mut self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Some(output) = &self.output else {
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
