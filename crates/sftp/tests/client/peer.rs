//! The server: OpenSSH's sftp-server, or a script.

use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use sftp::codec::{Extension, Reply, Request, Version};
use sftp::{Client, Options};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

/// Limit for a request that has to arrive.
const LIMIT: Duration = Duration::from_secs(20);

/// A client of a real server; the server ends with it.
pub(crate) struct Real {
    pub(crate) client: Client,
    pub(crate) server: Child,
}

/// Starts OpenSSH's server in `dir` and connects to it.
pub(crate) async fn real(dir: &std::path::Path) -> Real {
    let (stream, server) = spawn(dir);
    Real { client: Client::connect(stream, Options::default()).await.unwrap(), server }
}

/// Starts OpenSSH's server in `dir`.
pub(crate) fn spawn(dir: &std::path::Path) -> (UnixStream, Child) {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let server = Command::new("/usr/lib/openssh/sftp-server")
        .current_dir(dir)
        .stdin(Stdio::from(OwnedFd::from(theirs.try_clone().unwrap())))
        .stdout(Stdio::from(OwnedFd::from(theirs)))
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("openssh-sftp-server has to be installed");
    (UnixStream::from_std(ours).unwrap(), server)
}

/// A scripted server.
pub(crate) struct Script {
    stream: DuplexStream,
}

/// A client and its scripted server after VERSION, without `limits@`.
pub(crate) async fn scripted(extensions: &[Extension], options: Options) -> (Client, Script) {
    // Small, so that packets are split anywhere and writes have to wait.
    let (ours, theirs) = tokio::io::duplex(1000);
    let mut script = Script { stream: theirs };
    let extensions = extensions.iter().copied().collect();
    let version = Version { version: 3, extensions, product: None };
    let greet = async {
        script.receive_raw().await;
        let mut out = BytesMut::new();
        version.encode(&mut out);
        script.send_raw(&out).await;
    };
    let (client, ()) = tokio::join!(Client::connect(ours, options), greet);
    (client.unwrap(), script)
}

impl Script {
    pub(crate) fn new(stream: DuplexStream) -> Script {
        Script { stream }
    }

    /// One packet without its length; `None` at the end of the stream.
    pub(crate) async fn try_receive_raw(&mut self) -> Option<Bytes> {
        let len = self.stream.read_u32().await.ok()?;
        let mut packet = vec![0; len as usize];
        self.stream.read_exact(&mut packet).await.ok()?;
        Some(packet.into())
    }

    pub(crate) async fn receive_raw(&mut self) -> Bytes {
        let packet = tokio::time::timeout(LIMIT, self.try_receive_raw());
        packet.await.expect("the client sends nothing").expect("the client has closed the stream")
    }

    /// Receives one request: its id, and the result of `with`.
    pub(crate) async fn receive<T>(&mut self, with: impl FnOnce(u32, Request<'_>) -> T) -> T {
        let packet = self.receive_raw().await;
        let (id, request) = Request::decode(&packet).unwrap();
        with(id, request)
    }

    /// The id of the next request.
    pub(crate) async fn next_id(&mut self) -> u32 {
        self.receive(|id, _| id).await
    }

    pub(crate) async fn send(&mut self, id: u32, reply: Reply) {
        let mut out = BytesMut::new();
        reply.encode(id, &mut out);
        self.send_raw(&out).await;
    }

    /// Bytes that the client does not read any more are lost.
    pub(crate) async fn send_raw(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }
}
