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
    self, Body, Extension, FileAttrs, HEADER_BYTES, Limits, MAX_PACKET_BYTES, OpenFlags, Reply,
    Request, StatusCode, Version,
};

use crate::failure::{Failure, Result};

use super::remote::{Answer, Opening, Remote};

/// Read from the stream at once.
const READ_BYTES: usize = 64 << 10;

/// Queued requests of this length are sent.
pub(super) const OUTBOX_BYTES: usize = 64 << 10;

/// Lengths of OpenSSH before `limits@openssh.com`, and the least that the protocol requires.
const DEFAULT_DATA_BYTES: u64 = 32 << 10;

/// A connection to a server, and the file that is open there.
#[derive(Debug)]
pub(super) struct SftpFile {
    connection: Connection,
    /// Received bytes; it begins with a packet, possibly an incomplete one.
    inbox: BytesMut,
    outbox: BytesMut,
    limits: Limits,
    /// Empty until a file is open.
    handle: Vec<u8>,
}

impl SftpFile {
    /// Starts a program that speaks SFTP, and negotiates the version and the limits.
    pub(super) fn connect(ssh: &[String]) -> Result<SftpFile> {
        let (program, words) =
            ssh.split_first().ok_or_else(|| Failure::failed("no program that speaks SFTP"))?;
        let mut command = Command::new(program);
        command.args(words);
        let connection = Connection::start(command).map_err(|error| {
            Failure::failed(format!("cannot start {}: {error}", program.escape_debug()))
        })?;
        let (inbox, outbox) = (BytesMut::new(), BytesMut::new());
        let (limits, handle) = (Limits::default(), Vec::new());
        let mut file = SftpFile { connection, inbox, outbox, limits, handle };
        file.greet().map_err(|error| file.connection.failure(&error))?;
        Ok(file)
    }

    fn greet(&mut self) -> io::Result<()> {
        codec::encode_init(codec::VERSION, &mut self.outbox);
        self.flush()?;
        let version = Version::decode(&self.next_packet()?).map_err(malformed)?;
        if version.extensions.has(Extension::Limits) {
            Request::Limits.encode(0, &mut self.outbox);
            if let Reply::Extended(body) = self.call()? {
                self.limits = Limits::decode(&body).map_err(malformed)?;
            }
        }
        Ok(())
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
            receive(&mut self.connection.stream, &mut self.inbox)?;
        }
    }

    /// Sends the one queued request; its reply.
    fn call(&mut self) -> io::Result<Reply> {
        self.flush()?;
        Ok(Reply::decode(&self.next_packet()?).map_err(malformed)?.1)
    }

    /// The same for a request that is answered by nothing but how it went.
    fn status(&mut self) -> io::Result<()> {
        match self.call()? {
            Reply::Status { code: StatusCode::OK, .. } => Ok(()),
            reply => Err(refusal(reply)),
        }
    }

    /// Sends queued requests if they are long.
    fn flush_if_long(&mut self) -> io::Result<()> {
        if self.outbox.len() >= OUTBOX_BYTES { self.flush() } else { Ok(()) }
    }
}

impl Remote for SftpFile {
    fn longest(&self, opening: Opening) -> u32 {
        let limit = match opening {
            Opening::Read => self.limits.read_bytes,
            Opening::Write | Opening::Create => self.limits.write_bytes,
        };
        let bytes =
            if limit == 0 { DEFAULT_DATA_BYTES } else { limit.min(MAX_PACKET_BYTES as u64) };
        (bytes & !0xfff).max(4096) as u32
    }

    fn open(&mut self, path: &Path, opening: Opening) -> io::Result<()> {
        let (flags, attrs) = match opening {
            Opening::Read => (OpenFlags::READ, FileAttrs::default()),
            Opening::Write => (OpenFlags::WRITE, FileAttrs::default()),
            Opening::Create => (
                OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUSIVE,
                FileAttrs::with_permissions(0o644),
            ),
        };
        let path = path.as_os_str().as_bytes();
        Request::Open { path, flags, attrs }.encode(0, &mut self.outbox);
        match self.call()? {
            Reply::Handle(handle) => self.handle = handle.as_bytes().to_vec(),
            reply => return Err(refusal(reply)),
        }
        Ok(())
    }

    fn read(&mut self, id: u32, offset: u64, len: u32) -> io::Result<()> {
        Request::Read { handle: &self.handle, offset, len }.encode(id, &mut self.outbox);
        self.flush_if_long()
    }

    fn write(&mut self, id: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        Request::Write { handle: &self.handle, offset, data }.encode(id, &mut self.outbox);
        self.flush_if_long()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.connection.stream.write_all(&self.outbox)?;
        self.outbox.clear();
        Ok(())
    }

    fn answer(&mut self) -> io::Result<(u32, Answer)> {
        let (id, reply) = Reply::decode(&self.next_packet()?).map_err(malformed)?;
        let answer = match reply {
            Reply::Data(data) => Answer::Data(data),
            Reply::Status { code: StatusCode::EOF, .. } => Answer::End,
            Reply::Status { code: StatusCode::OK, .. } => Answer::Written(None),
            reply => Answer::Refused(refusal(reply)),
        };
        Ok((id, answer))
    }

    fn has_answer(&self) -> bool {
        self.packet_length().is_ok_and(|length| length.is_some())
    }

    fn size(&mut self) -> io::Result<Option<u64>> {
        Request::Fstat { handle: &self.handle }.encode(0, &mut self.outbox);
        match self.call()? {
            Reply::Attrs(attrs) => Ok(attrs.size),
            reply => Err(refusal(reply)),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        Request::Fsync { handle: &self.handle }.encode(0, &mut self.outbox);
        self.status()
    }

    fn close(&mut self) -> io::Result<()> {
        Request::Close { handle: &self.handle }.encode(0, &mut self.outbox);
        self.status()
    }

    fn failure(&mut self, what: &str, error: &io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => {
                self.connection.failure(error)
            }
            _ => Failure::failed(format!("{what}: {error}")),
        }
    }
}

/// Waits for bytes, and adds them to those that were received before.
pub(super) fn receive(stream: &mut impl Read, inbox: &mut BytesMut) -> io::Result<()> {
    let received = inbox.len();
    inbox.resize(received + READ_BYTES, 0);
    let read = stream.read(&mut inbox[received..]);
    inbox.truncate(received + *read.as_ref().unwrap_or(&0));
    match read {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
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
