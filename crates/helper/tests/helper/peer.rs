//! A server in a thread of this process, and ways to talk to it.

use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use helper::{Error, Options};
use host::{ConnectError, Connection, Connector, Role};
use sftp::codec::{Reply, Request, Version, encode_init};
use sftp::{Extension, Extensions};

/// Starts a server; returns the client's end of its stream.
pub(crate) fn start(options: Options) -> (UnixStream, JoinHandle<Result<(), Error>>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || {
        let output = File::from(OwnedFd::from(theirs.try_clone().unwrap()));
        helper::serve(File::from(OwnedFd::from(theirs)), output, &options)
    });
    (ours, server)
}

/// Connects to servers with these options.
pub(crate) struct Servers(pub(crate) Options);

#[async_trait]
impl Connector for Servers {
    async fn connect(&self, _: Role) -> Result<Connection, ConnectError> {
        let (stream, _) = start(self.0.clone());
        stream.set_nonblocking(true).unwrap();
        let stream = tokio::net::UnixStream::from_std(stream).unwrap();
        Ok(Connection::new(stream, Box::new(|| None)))
    }
}

/// The number of files below `dir` that this process has open. Of `dir` itself each server has a
/// descriptor, and a client may start another server.
pub(crate) fn open_below(dir: &Path) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    links
        .filter_map(|link| std::fs::read_link(link.path()).ok())
        .filter(|to| to.starts_with(dir) && to != dir)
        .count()
}

/// A client that sends single packets.
pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    replies: File,
    pub(crate) server: JoinHandle<Result<(), Error>>,
}

impl Client {
    pub(crate) fn new(options: Options) -> Client {
        let is_direct = options.direct.is_some();
        let (stream, server) = start(options);
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let replies = File::from(OwnedFd::from(stream.try_clone().unwrap()));
        Client { stream, replies, server }.begin(is_direct)
    }

    /// A client that gets its replies by a pipe.
    pub(crate) fn by_pipe(options: Options) -> Client {
        let (stream, theirs) = UnixStream::pair().unwrap();
        let (replies, output) = std::io::pipe().unwrap();
        let server = thread::spawn(move || {
            let output = File::from(OwnedFd::from(output));
            helper::serve(File::from(OwnedFd::from(theirs)), output, &options)
        });
        let replies = File::from(OwnedFd::from(replies));
        Client { stream, replies, server }.begin(false)
    }

    fn begin(mut self, is_direct: bool) -> Client {
        let mut init = BytesMut::new();
        encode_init(3, &mut init);
        self.stream.write_all(&init).unwrap();
        let version = Version::decode(&self.packet()).unwrap();
        let mut all: Extensions = Extension::ALL.iter().copied().collect();
        if !is_direct {
            all.remove(Extension::Direct);
        }
        assert_eq!(version.extensions, all);
        self
    }

    pub(crate) fn send(&mut self, requests: &[(u32, Request<'_>)]) {
        let mut out = BytesMut::new();
        for (id, request) in requests {
            request.encode(*id, &mut out);
        }
        self.stream.write_all(&out).unwrap();
    }

    pub(crate) fn receive(&mut self) -> (u32, Reply) {
        Reply::decode(&self.packet()).unwrap()
    }

    fn packet(&mut self) -> Bytes {
        let mut len = [0; 4];
        self.replies.read_exact(&mut len).unwrap();
        let mut packet = vec![0; u32::from_be_bytes(len) as usize];
        self.replies.read_exact(&mut packet).unwrap();
        packet.into()
    }

    pub(crate) fn call(&mut self, request: Request<'_>) -> Reply {
        self.send(&[(7, request)]);
        let (id, reply) = self.receive();
        assert_eq!(id, 7);
        reply
    }

    pub(crate) fn handle(&mut self, request: Request<'_>) -> Vec<u8> {
        match self.call(request) {
            Reply::Handle(handle) => handle.as_bytes().to_vec(),
            other => panic!("{other:?}"),
        }
    }

    /// The server's result after the end of the stream and all replies.
    pub(crate) fn end(mut self) -> Result<(), Error> {
        let _ = self.stream.shutdown(Shutdown::Write);
        let _ = std::io::copy(&mut self.replies, &mut std::io::sink());
        self.server.join().unwrap()
    }
}
