//! The option `metrics`: serves the metrics of a mount over HTTP, to this machine only.
//!
//! `GET /metrics` is answered, and nothing else. The length of a request, its time, and the number
//! of connections are bounded. A Unix socket has mode 0600. A socket file is replaced only if no
//! process listens on it, and belongs to this user; at the end of the mount it is removed, unless
//! another file has taken its name.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cli::{OrProblem, Problem, printable};
use control::server::serve_connections;
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::geteuid;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinHandle;

/// Longest head of a request in bytes; a scraper sends some hundred.
const MAX_REQUEST_BYTES: u64 = 8 << 10;

/// Connections at a time. Further ones wait in the kernel.
const MAX_CONNECTIONS: usize = 4;

/// How long one connection may take.
const CONNECTION_LIMIT: Duration = Duration::from_secs(5);

/// Where the metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP port of a loopback address.
    Tcp(SocketAddr),
}

impl Address {
    /// Parses the option's value; a path stays as it is written.
    pub fn parse(text: &str) -> Result<Address, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err("needs a path, as in unix:/run/user/1000/sshoal.metrics".to_owned()),
                path => Ok(Address::Unix(path.into())),
            };
        }
        let address: SocketAddr = text.parse().map_err(|_| {
            "needs unix:PATH, or a loopback address and a port, as in 127.0.0.1:9464".to_owned()
        })?;
        if address.ip().is_loopback() {
            Ok(Address::Tcp(address))
        } else {
            Err("must be a loopback address (127.0.0.1 or [::1]): the metrics have no password and \
                no encryption"
                .to_owned())
        }
    }
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// A socket that is bound, but not served yet.
pub struct Bound {
    listener: Listener,
    file: Option<SocketFile>,
}

/// The file of a Unix socket; removed when dropped.
struct SocketFile {
    path: PathBuf,
    id: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let present = std::fs::symlink_metadata(&self.path);
        if present.is_ok_and(|present| (present.dev(), present.ino()) == self.id) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Serves metrics until it is dropped.
pub struct Endpoint {
    server: JoinHandle<()>,
    _file: Option<SocketFile>,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // The task owns the connections.
        self.server.abort();
    }
}

impl Bound {
    /// Binds the address. Must be called within a tokio runtime.
    pub fn new(address: &Address) -> Result<Bound, Problem> {
        match address {
            Address::Unix(path) => {
                let what = format!("metrics=unix:{}", printable(path));
                remove_stale(path).and_then(|()| bind_unix(path)).or_problem(what)
            }
            Address::Tcp(address) => {
                let bound = std::net::TcpListener::bind(address).and_then(|listener| {
                    listener.set_nonblocking(true)?;
                    TcpListener::from_std(listener)
                });
                let what = format!("metrics={address}");
                let listener = bound.or_problem(what)?;
                Ok(Bound { listener: Listener::Tcp(listener), file: None })
            }
        }
    }

    /// Serves what `text` returns.
    pub fn serve(self, text: impl Fn() -> String + Send + Sync + 'static) -> Endpoint {
        let text = Arc::new(text);
        let server = match self.listener {
            Listener::Unix(listener) => tokio::spawn(serve_connections(
                MAX_CONNECTIONS,
                move |context| listener.poll_accept(context),
                move |(stream, _)| serve(stream, text.clone()),
            )),
            Listener::Tcp(listener) => tokio::spawn(serve_connections(
                MAX_CONNECTIONS,
                move |context| listener.poll_accept(context),
                move |(stream, _)| serve(stream, text.clone()),
            )),
        };
        Endpoint { server, _file: self.file }
    }
}

/// Removes a socket at `path` that no process listens on.
fn remove_stale(path: &Path) -> io::Result<()> {
    let present = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        present => present?,
    };
    if !present.file_type().is_socket() {
        return Err(io::Error::other("the file exists and is not a socket"));
    }
    if present.uid() != geteuid().as_raw() {
        return Err(io::Error::other("the socket belongs to another user"));
    }
    // Without blocking: its process may be stopped, with as many connections waiting as it allows.
    match connect(&unix_socket()?, &SocketAddrUnix::new(path)?) {
        Ok(()) | Err(Errno::WOULDBLOCK) => {
            Err(io::Error::other("another process listens on this socket"))
        }
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path),
        Err(error) => Err(error.into()),
    }
}

fn unix_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// A socket at `path` that only this user can connect to, from its first moment: Linux gives the
/// file the mode of the socket.
fn bind_unix(path: &Path) -> io::Result<Bound> {
    let socket = unix_socket()?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    let present = std::fs::symlink_metadata(path)?;
    let file = SocketFile { path: path.to_owned(), id: (present.dev(), present.ino()) };
    listen(&socket, MAX_CONNECTIONS as i32)?;
    let listener = UnixListener::from_std(socket.into())?;
    Ok(Bound { listener: Listener::Unix(listener), file: Some(file) })
}

/// Serves one connection within the limit.
async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, text: Arc<impl Fn() -> String>) {
    let served = tokio::time::timeout(CONNECTION_LIMIT, converse(stream, &*text));
    if !matches!(served.await, Ok(Ok(()))) {
        tracing::debug!("a connection to the metrics was not served");
    }
}

/// Reads one request and answers it.
async fn converse(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    text: &impl Fn() -> String,
) -> io::Result<()> {
    let mut head = Vec::new();
    let mut limited = (&mut stream).take(MAX_REQUEST_BYTES);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if limited.read_buf(&mut head).await? == 0 {
            let is_long = head.len() as u64 == MAX_REQUEST_BYTES;
            let reply = reply(
                if is_long { "431 Request Header Fields Too Large" } else { "400 Bad Request" },
                "",
            );
            stream.write_all(reply.as_bytes()).await?;
            return stream.shutdown().await;
        }
    }
    let reply = match request_line(&head) {
        Some(("GET", "/metrics")) => reply("200 OK", &text()),
        Some(("GET", _)) => reply("404 Not Found", "The metrics are at /metrics.\n"),
        Some(_) => reply("405 Method Not Allowed", ""),
        None => reply("400 Bad Request", ""),
    };
    stream.write_all(reply.as_bytes()).await?;
    stream.shutdown().await
}

/// The method and the path of a request, without a query.
fn request_line(head: &[u8]) -> Option<(&str, &str)> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let path = target.split('?').next().unwrap_or_default();
    (version.starts_with("HTTP/1.") && words.next().is_none()).then_some((method, path))
}

fn reply(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use tokio::net::UnixStream;

    #[test]
    fn only_this_machine_can_connect() {
        let parse = Address::parse;
        assert_eq!(parse("unix:/a b"), Ok(Address::Unix("/a b".into())));
        assert_eq!(parse("127.0.0.1:9464"), Ok(Address::Tcp(([127, 0, 0, 1], 9464).into())));
        assert!(parse("[::1]:9464").is_ok());
        for other in ["0.0.0.0:9464", "192.0.2.1:80", "[::]:9464"] {
            assert!(parse(other).unwrap_err().contains("loopback"), "{other}");
        }
        for wrong in ["", "unix:", "9464", "localhost:9464", "127.0.0.1", "127.0.0.1:99999"] {
            assert!(parse(wrong).unwrap_err().contains("needs"), "{wrong}");
        }
    }

    async fn answer(request: &[u8]) -> String {
        let (mut ours, theirs) = tokio::io::duplex(64 << 10);
        let served = tokio::spawn(async move {
            converse(Box::new(theirs), &|| "sshoal_up 1\n".to_owned()).await
        });
        ours.write_all(request).await.unwrap();
        ours.shutdown().await.unwrap();
        let mut heard = String::new();
        ours.read_to_string(&mut heard).await.unwrap();
        served.await.unwrap().unwrap();
        heard
    }

    #[tokio::test]
    async fn only_one_request_is_served() {
        let heard = answer(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(heard.starts_with("HTTP/1.1 200 OK\r\n"), "{heard}");
        assert!(
            heard.contains("\r\nContent-Length: 12\r\n")
                && heard.ends_with("\r\n\r\nsshoal_up 1\n")
        );
        let long = [&b"GET /metrics HTTP/1.1\r\nX: "[..], &vec![b'x'; 9000]].concat();
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"\xff\xfe\r\n\r\n", "400"),
            (b"GET /metrics\r\n\r\n", "400"),
            (b"GET /metrics HTTP/1.1\r\n", "400"),
            (&long, "431"),
        ] {
            let heard = answer(request).await;
            assert!(heard.starts_with(&format!("HTTP/1.1 {status} ")), "{heard}");
        }
    }

    #[tokio::test]
    async fn a_socket_is_private_and_no_file_of_another_program_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics");
        let address = Address::Unix(path.clone());
        let endpoint = Bound::new(&address).unwrap().serve(|| "x 1\n".to_owned());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
        let mut heard = String::new();
        stream.read_to_string(&mut heard).await.unwrap();
        assert!(heard.ends_with("\r\n\r\nx 1\n"), "{heard}");
        let refused =
            |address: &Address| Bound::new(address).err().map(|problem| problem.to_string());
        assert!(refused(&address).unwrap().contains("another process listens"));
        drop(endpoint);
        assert!(!path.exists());
        // Of a process that is stopped, with as many connections waiting as it allows.
        let stopped = unix_socket().unwrap();
        let name = SocketAddrUnix::new(&path).unwrap();
        bind(&stopped, &name).unwrap();
        listen(&stopped, 0).unwrap();
        let waiting = unix_socket().unwrap();
        connect(&waiting, &name).unwrap();
        assert_eq!(connect(unix_socket().unwrap(), &name), Err(Errno::WOULDBLOCK));
        let own_address = address.clone();
        let (sender, said) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(refused(&own_address)));
        let said = said.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(said.unwrap().contains("another process listens"));
        // It was killed.
        drop((stopped, waiting));
        let bound = Bound::new(&address).unwrap();
        // Another file has taken the name.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "text").unwrap();
        drop(bound);
        assert!(refused(&address).unwrap().contains("not a socket"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "text");
        let missing = Address::Unix(dir.path().join("none/metrics"));
        assert!(refused(&missing).unwrap().contains("No such file"));
        let tcp = Bound::new(&Address::parse("127.0.0.1:0").unwrap());
        assert!(tcp.is_ok());
    }
}
