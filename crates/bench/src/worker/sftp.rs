//! A small SFTP client: one thread, blocking calls, requests sent together, replies read together.
//! It is the floor that file systems are compared with.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use bytes::{Buf, Bytes, BytesMut};
use sftp::codec::{
    self, Extension, FileAttrs, HEADER_BYTES, Limits, MAX_PACKET_BYTES, NameEntry, OpenFlags,
    RemoteHandle, Reply, Request, StatusCode, Version,
};

use crate::failure::{Failure, Result};

use super::job::Invocation;
use super::remote::{Answer, Opening, Remote};

/// Read from the stream at once.
const READ_BYTES: usize = 64 << 10;

/// Queued requests of this length are sent.
const OUTBOX_BYTES: usize = 64 << 10;

/// Lengths of OpenSSH before `limits@openssh.com`, and the least that the protocol requires.
const DEFAULT_DATA_BYTES: u64 = 32 << 10;

/// A connection to a server.
#[derive(Debug)]
pub(super) struct Sftp {
    connection: Connection,
    /// Received bytes; it begins with a packet, possibly an incomplete one.
    inbox: BytesMut,
    outbox: BytesMut,
    limits: Limits,
}

impl Sftp {
    /// Starts a program that speaks SFTP, and negotiates the version and the limits.
    pub(super) fn connect(ssh: &Invocation) -> Result<Sftp> {
        let connection = Connection::start(ssh.command()).map_err(|error| {
            Failure::failed(format!("cannot start {}: {error}", ssh.program.escape_debug()))
        })?;
        let (inbox, outbox) = (BytesMut::new(), BytesMut::new());
        let mut sftp = Sftp { connection, inbox, outbox, limits: Limits::default() };
        sftp.greet().map_err(|error| sftp.connection.failure(&error))?;
        Ok(sftp)
    }

    fn greet(&mut self) -> io::Result<()> {
        codec::encode_init(codec::VERSION, &mut self.outbox);
        self.flush()?;
        let version = Version::decode(&self.next_packet()?).map_err(malformed)?;
        if version.extensions.has(Extension::Limits)
            && let Reply::Extended(body) = self.call(&Request::Limits)?
        {
            self.limits = Limits::decode(&body).map_err(malformed)?;
        }
        Ok(())
    }

    /// Queues a request for the next [`Sftp::flush`].
    fn queue(&mut self, id: u32, request: &Request<'_>) -> io::Result<()> {
        request.encode(id, &mut self.outbox);
        if self.outbox.len() >= OUTBOX_BYTES { self.flush() } else { Ok(()) }
    }

    /// Sends the queued requests.
    fn flush(&mut self) -> io::Result<()> {
        self.connection.stream.write_all(&self.outbox)?;
        self.outbox.clear();
        Ok(())
    }

    /// Waits for the next reply; returns its request id too.
    fn answer(&mut self) -> io::Result<(u32, Reply)> {
        Reply::decode(&self.next_packet()?).map_err(malformed)
    }

    /// The length of the first packet, if all of it was received.
    fn packet_length(&self) -> io::Result<Option<usize>> {
        let length = codec::packet_length(&self.inbox, MAX_PACKET_BYTES).map_err(malformed)?;
        Ok(length.filter(|length| HEADER_BYTES + length <= self.inbox.len()))
    }

    /// Waits for the next packet; returns it without its length field.
    fn next_packet(&mut self) -> io::Result<Bytes> {
        loop {
            if let Some(length) = self.packet_length()? {
                self.inbox.advance(HEADER_BYTES);
                return Ok(self.inbox.split_to(length).freeze());
            }
            let received = self.inbox.len();
            self.inbox.resize(received + READ_BYTES, 0);
            let read = self.connection.stream.read(&mut self.inbox[received..]);
            self.inbox.truncate(received + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
    }

    /// One request, and its reply.
    pub(super) fn call(&mut self, request: &Request<'_>) -> io::Result<Reply> {
        self.queue(0, request)?;
        self.flush()?;
        Ok(self.answer()?.1)
    }

    /// A request that is answered by nothing but how it went.
    pub(super) fn status(&mut self, request: &Request<'_>) -> io::Result<()> {
        match self.call(request)? {
            Reply::Status { code: StatusCode::OK, .. } => Ok(()),
            reply => Err(refusal(reply)),
        }
    }

    pub(super) fn open(&mut self, path: &[u8], flags: OpenFlags) -> io::Result<RemoteHandle> {
        let attrs = FileAttrs::with_permissions(0o644);
        let attrs = if flags.contains(OpenFlags::CREATE) { attrs } else { FileAttrs::default() };
        self.handle(&Request::Open { path, flags, attrs })
    }

    pub(super) fn handle(&mut self, request: &Request<'_>) -> io::Result<RemoteHandle> {
        match self.call(request)? {
            Reply::Handle(handle) => Ok(handle),
            reply => Err(refusal(reply)),
        }
    }

    pub(super) fn attrs(&mut self, request: &Request<'_>) -> io::Result<FileAttrs> {
        match self.call(request)? {
            Reply::Attrs(attrs) => Ok(attrs),
            reply => Err(refusal(reply)),
        }
    }

    pub(super) fn close(&mut self, handle: &RemoteHandle) -> io::Result<()> {
        self.status(&Request::Close { handle: handle.as_bytes() })
    }

    /// Names of a directory that is open, some more of them; `None` at its end.
    pub(super) fn names(&mut self, handle: &RemoteHandle) -> io::Result<Option<Vec<NameEntry>>> {
        match self.call(&Request::Readdir { handle: handle.as_bytes() })? {
            Reply::Names(names) => Ok(Some(names)),
            Reply::Status { code: StatusCode::EOF, .. } => Ok(None),
            reply => Err(refusal(reply)),
        }
    }
}

/// A connection and the handle of the file that is open.
pub(super) struct SftpFile {
    sftp: Sftp,
    /// Empty until a file is open.
    handle: Vec<u8>,
}

impl SftpFile {
    pub(super) fn connect(ssh: &Invocation) -> Result<SftpFile> {
        Ok(SftpFile { sftp: Sftp::connect(ssh)?, handle: Vec::new() })
    }
}

impl Remote for SftpFile {
    fn longest(&self, opening: Opening) -> u32 {
        longest(match opening {
            Opening::Read => self.sftp.limits.read_bytes,
            Opening::Write | Opening::Create => self.sftp.limits.write_bytes,
        })
    }

    fn open(&mut self, path: &Path, opening: Opening) -> io::Result<()> {
        let flags = match opening {
            Opening::Read => OpenFlags::READ,
            Opening::Write => OpenFlags::WRITE,
            Opening::Create => OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUSIVE,
        };
        let handle = self.sftp.open(path.as_os_str().as_bytes(), flags)?;
        self.handle = handle.as_bytes().to_vec();
        Ok(())
    }

    fn read(&mut self, id: u32, offset: u64, len: u32) -> io::Result<()> {
        self.sftp.queue(id, &Request::Read { handle: &self.handle, offset, len })
    }

    fn write(&mut self, id: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        self.sftp.queue(id, &Request::Write { handle: &self.handle, offset, data })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sftp.flush()
    }

    fn answer(&mut self) -> io::Result<(u32, Answer)> {
        let (id, reply) = self.sftp.answer()?;
        let answer = match reply {
            Reply::Data(data) => Answer::Data(data),
            Reply::Status { code: StatusCode::EOF, .. } => Answer::End,
            Reply::Status { code: StatusCode::OK, .. } => Answer::Written(None),
            reply => Answer::Refused(refusal(reply)),
        };
        Ok((id, answer))
    }

    fn has_answer(&self) -> bool {
        self.sftp.packet_length().is_ok_and(|length| length.is_some())
    }

    fn size(&mut self) -> io::Result<Option<u64>> {
        Ok(self.sftp.attrs(&Request::Fstat { handle: &self.handle })?.size)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sftp.status(&Request::Fsync { handle: &self.handle })
    }

    fn close(&mut self) -> io::Result<()> {
        self.sftp.status(&Request::Close { handle: &self.handle })
    }

    fn failure(&mut self, what: &str, error: &io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => {
                self.sftp.connection.failure(error)
            }
            _ => Failure::failed(format!("{what}: {error}")),
        }
    }
}

fn longest(limit: u64) -> u32 {
    let bytes = if limit == 0 { DEFAULT_DATA_BYTES } else { limit.min(MAX_PACKET_BYTES as u64) };
    (bytes & !0xfff).max(4096) as u32
}

fn malformed(error: codec::Malformed) -> io::Error {
    io::Error::other(format!("the server sent {error}"))
}

/// The error of a reply that is not the one that the request is to have.
fn refusal(reply: Reply) -> io::Error {
    match reply {
        Reply::Status { code: StatusCode::NO_SUCH_FILE, .. } => io::ErrorKind::NotFound.into(),
        Reply::Status { code, message, .. } => {
            io::Error::other(format!("the server refuses: {} ({code:?})", message.escape_debug()))
        }
        other => io::Error::other(format!("an unexpected reply: {other:?}")),
    }
}

/// Of what ssh has said, so much is shown.
const WORDS_BYTES: usize = 2000;

/// A program and the stream to it. Dropping it closes the stream, at which ssh ends, and waits.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Its standard input and output.
    pub(crate) stream: UnixStream,
    child: Child,
    words: File,
}

impl Connection {
    /// Runs a command; its streams are set here.
    pub(crate) fn start(mut command: Command) -> io::Result<Connection> {
        let (stream, theirs) = UnixStream::pair()?;
        let words = tempfile::tempfile()?;
        command.stdin(OwnedFd::from(theirs.try_clone()?)).stdout(OwnedFd::from(theirs));
        command.stderr(Stdio::from(words.try_clone()?));
        let child = command.spawn()?;
        Ok(Connection { stream, child, words })
    }

    /// Of the program.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the program without waiting for it to do so by itself.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// Why the stream broke: what the program has said, or else the error.
    pub(crate) fn failure(&mut self, error: &io::Error) -> Failure {
        let words = self.words().unwrap_or_default();
        match words.trim() {
            "" => Failure::failed(format!("the connection broke: {error}")),
            words => Failure::failed(format!("the connection broke: {words}")),
        }
    }

    fn words(&mut self) -> io::Result<String> {
        // Its end, so that nothing more comes.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        let _ = self.child.wait();
        self.words.rewind()?;
        let mut words = Vec::new();
        (&self.words).take(WORDS_BYTES as u64).read_to_end(&mut words)?;
        let lines = String::from_utf8_lossy(&words);
        Ok(lines.lines().map(|line| line.escape_debug().to_string()).collect::<Vec<_>>().join("\n"))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        // Its CPU time is that of this process only once it is reaped. One that does not end is
        // killed at the deadline of this process.
        let _ = self.child.wait();
    }
}
