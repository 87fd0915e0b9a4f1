//! Connections without ssh: TCP, vsock, and this process's own stdin and stdout.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::error::{Error, Result};
use crate::stream::{self, Reader, Writer, polled};

/// Time-out of a direct connection. As with ssh, the fourth SYN has been sent by then.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Connects to a server that speaks SFTP on a bare TCP port.
pub(crate) async fn tcp(host: &str, port: u16) -> Result<(Reader, Writer)> {
    // The resolver accepts an address with a scope (`fe80::1%eth0`), `IpAddr` does not.
    let target = match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(_)) => format!("[{host}]:{port}"),
        _ => format!("{host}:{port}"),
    };
    let connect = async {
        let stream = TcpStream::connect((host, port)).await?;
        // A request is one small packet, and the next may depend on its answer.
        stream.set_nodelay(true)?;
        stream::of_socket(stream.into_std()?.into())
    };
    in_time(connect).await.map_err(|source| Error::Connect { target, source })
}

/// Connects to a server that speaks SFTP on a vsock port.
pub(crate) async fn vsock(cid: u32, port: u32) -> Result<(Reader, Writer)> {
    in_time(connect_vsock(cid, port))
        .await
        .map_err(|source| Error::Connect { target: format!("vsock {cid}:{port}"), source })
}

async fn in_time(
    connect: impl Future<Output = io::Result<(Reader, Writer)>>,
) -> io::Result<(Reader, Writer)> {
    match tokio::time::timeout(CONNECT_TIMEOUT, connect).await {
        Ok(result) => result,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

async fn connect_vsock(cid: u32, port: u32) -> io::Result<(Reader, Writer)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::VSOCK, SocketType::STREAM, flags, None)?;
    let address = libc::sockaddr_vm {
        svm_family: libc::AF_VSOCK as libc::sa_family_t,
        svm_reserved1: 0,
        svm_port: port,
        svm_cid: cid,
        svm_zero: [0; 4],
    };
    // SAFETY: the address is a complete `sockaddr_vm`, it outlives the call, and the length is
    // its size; the descriptor is open, since `socket` owns it.
    let result = unsafe {
        libc::connect(
            socket.as_raw_fd(),
            (&raw const address).cast::<libc::sockaddr>(),
            size_of::<libc::sockaddr_vm>() as libc::socklen_t,
        )
    };
    if result != 0 {
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINPROGRESS) {
            return Err(error);
        }
    }
    let socket = polled(socket, Interest::WRITABLE)?;
    socket.writable().await?.retain_ready();
    sockopt::socket_error(&socket)??;
    stream::of_socket(socket.into_inner().into())
}

/// Whether stdin and stdout were taken. They belong to the process, so this is global, too.
static PASSIVE_USED: AtomicBool = AtomicBool::new(false);

/// Takes stdin and stdout and replaces them by `/dev/null`, so that nothing can print into the
/// stream, and the other side sees when the stream is dropped.
pub(crate) fn passive() -> Result<(Reader, Writer)> {
    if PASSIVE_USED.swap(true, Ordering::SeqCst) {
        return Err(Error::PassiveUsed);
    }
    let take = || -> io::Result<(Reader, Writer)> {
        let input = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
        let output = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
        let nothing: OwnedFd =
            rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let halves = stream::of_descriptors(input, output)?;
        rustix::stdio::dup2_stdin(&nothing)?;
        rustix::stdio::dup2_stdout(&nothing)?;
        Ok(halves)
    };
    take().map_err(|source| Error::Local { what: "use stdin and stdout as a stream", source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn tcp_reaches_a_listener_by_name_and_by_address() {
        for host in ["127.0.0.1", "localhost"] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let (reader, mut writer) = tcp(host, port).await.unwrap();
            let (mut server, _) = listener.accept().await.unwrap();
            writer.write_all(b"ping").await.unwrap();
            let mut bytes = [0; 4];
            server.read_exact(&mut bytes).await.unwrap();
            assert_eq!(&bytes, b"ping");
            drop((reader, writer));
            assert_eq!(server.read(&mut bytes).await.unwrap(), 0);
        }
    }

    #[tokio::test]
    async fn a_port_where_nobody_listens_is_an_error_with_the_target_in_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let error = tcp("127.0.0.1", port).await.unwrap_err();
        assert!(matches!(&error, Error::Connect { .. }));
        assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
        assert!(error.is_transient());
    }

    #[tokio::test]
    async fn a_vsock_where_nobody_listens_is_an_error() {
        // The local context, on a port in the dynamic range.
        let error = vsock(libc::VMADDR_CID_LOCAL, 0x7fff_fff0).await.unwrap_err();
        assert!(error.to_string().contains("vsock 1:2147483632"), "{error}");
    }
}
