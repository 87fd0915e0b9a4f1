//! SFTP as cheap as can be: one thread, blocking calls, requests gathered, replies taken many at
//! a time off the stream and looked at where they lie. This is the floor that file systems are
//! compared with.
//!
//! Invariant: `inbox[start..end]` is what has arrived and was not looked at yet; it begins with a
//! packet, maybe a part of one.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};

use bytes::{Bytes, BytesMut};
use rustix::io::{IoSlice, writev};
use sftp::codec::{
    self, Extension, FileAttrs, HEADER_BYTES, Limits, MAX_PACKET_BYTES, NameEntry, OpenFlags,
    RemoteHandle, Reply, Request, StatusCode, Version,
};

use crate::failure::Failure;

use super::job::Invocation;

/// Room for what arrives: a few of the longest packets, and still in the processor's cache.
const INBOX_BYTES: usize = 1 << 20;

/// From this length on the content of a WRITE is not copied to where its head is.
const GATHER_BYTES: usize = 32 << 10;

/// Type of a DATA packet, which is not decoded by the codec to spare its allocation.
const DATA: u8 = 103;

/// In front of a DATA packet's content: type, id, length.
const DATA_HEAD_BYTES: usize = 9;

/// Lengths of OpenSSH before it told its limits, and the least that the protocol demands.
const DEFAULT_DATA_BYTES: u64 = 32 << 10;

/// A server that is talked to.
#[derive(Debug)]
pub(super) struct Sftp {
    connection: Connection,
    inbox: Vec<u8>,
    start: usize,
    end: usize,
    outbox: BytesMut,
    limits: Limits,
}

/// A reply, where it lies.
#[derive(Debug)]
pub(super) enum Answer<'a> {
    /// Content.
    Data(&'a [u8]),
    /// Anything else.
    Other(Reply),
}

impl Sftp {
    /// Starts what speaks SFTP and agrees with it.
    pub(super) fn connect(ssh: &Invocation) -> Result<Sftp, Failure> {
        let connection = Connection::start(ssh)?;
        let mut sftp = Sftp {
            connection,
            inbox: vec![0; INBOX_BYTES],
            start: 0,
            end: 0,
            outbox: BytesMut::with_capacity(2 * GATHER_BYTES),
            limits: Limits::default(),
        };
        sftp.greet().map_err(|error| sftp.connection.failure(&error))?;
        Ok(sftp)
    }

    fn greet(&mut self) -> io::Result<()> {
        codec::encode_init(codec::VERSION, &mut self.outbox);
        self.flush()?;
        let version = self.packet(|packet| Version::decode(packet).map_err(malformed))?;
        if version.extensions.has(Extension::Limits)
            && let Reply::Extended(body) = self.call(&Request::Limits)?
        {
            self.limits = Limits::decode(&body).map_err(malformed)?;
        }
        Ok(())
    }

    /// Longest READ, in bytes, a whole number of 4 KiB.
    pub(super) fn read_bytes(&self) -> u32 {
        longest(self.limits.read_bytes)
    }

    /// Longest WRITE.
    pub(super) fn write_bytes(&self) -> u32 {
        longest(self.limits.write_bytes)
    }

    /// A failure, with the last words of ssh.
    pub(super) fn failure(&mut self, what: &str, error: &io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => {
                self.connection.failure(error)
            }
            _ => Failure::failed(format!("{what}: {error}")),
        }
    }

    /// Puts a request among those that the next [`Sftp::flush`] sends.
    pub(super) fn queue(&mut self, id: u32, request: &Request<'_>) -> io::Result<()> {
        match request {
            Request::Write { data, .. } if data.len() >= GATHER_BYTES => {
                request.encode_head(id, data.len(), &mut self.outbox);
                self.send(data)
            }
            _ => {
                request.encode(id, &mut self.outbox);
                Ok(())
            }
        }
    }

    /// Sends what is queued.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.send(&[])
    }

    /// Sends what is queued, and `tail` after it.
    fn send(&mut self, mut tail: &[u8]) -> io::Result<()> {
        let mut head = &self.outbox[..];
        while !head.is_empty() || !tail.is_empty() {
            let slices = [IoSlice::new(head), IoSlice::new(tail)];
            let sent = match writev(&self.connection.stream, &slices) {
                Err(rustix::io::Errno::INTR) => continue,
                sent => sent?,
            };
            let of_head = sent.min(head.len());
            head = &head[of_head..];
            tail = &tail[sent - of_head..];
        }
        self.outbox.clear();
        Ok(())
    }

    /// Waits for the next reply; gives its id too.
    pub(super) fn answer(&mut self) -> io::Result<(u32, Answer<'_>)> {
        let (begin, end) = self.next_packet()?;
        let packet = &self.inbox[begin..end];
        if packet[0] == DATA
            && let Some((head, data)) = packet.split_first_chunk::<DATA_HEAD_BYTES>()
        {
            let word = |at: usize| {
                u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
            };
            if word(5) as usize != data.len() {
                return Err(io::Error::other("a DATA packet of a wrong length"));
            }
            return Ok((word(1), Answer::Data(data)));
        }
        let (id, reply) = Reply::decode(&Bytes::copy_from_slice(packet)).map_err(malformed)?;
        Ok((id, Answer::Other(reply)))
    }

    /// Whether a whole reply has arrived that was not looked at.
    pub(super) fn has_answer(&self) -> bool {
        self.packet_end().is_ok_and(|end| end.is_some())
    }

    fn packet<T>(&mut self, decode: impl FnOnce(&[u8]) -> io::Result<T>) -> io::Result<T> {
        let (begin, end) = self.next_packet()?;
        decode(&self.inbox[begin..end])
    }

    /// Where in the inbox the next packet ends, when all of it is there.
    fn packet_end(&self) -> io::Result<Option<usize>> {
        let arrived = &self.inbox[self.start..self.end];
        let length = codec::packet_length(arrived, MAX_PACKET_BYTES).map_err(malformed)?;
        let end = length.map(|length| self.start + HEADER_BYTES + length);
        Ok(end.filter(|&end| end <= self.end))
    }

    /// Takes a packet off the inbox, read from the stream if it is not there; gives where it lies,
    /// without its length field.
    fn next_packet(&mut self) -> io::Result<(usize, usize)> {
        loop {
            if let Some(end) = self.packet_end()? {
                let begin = self.start + HEADER_BYTES;
                self.start = end;
                return Ok((begin, end));
            }
            self.receive()?;
        }
    }

    /// Reads what the stream has, at least a byte.
    fn receive(&mut self) -> io::Result<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.inbox.len() - self.start < HEADER_BYTES + MAX_PACKET_BYTES {
            // The packet that has begun might not fit behind what lies here.
            self.inbox.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        match rustix::io::read(&self.connection.stream, &mut self.inbox[self.end..]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => {
                self.end += len;
                Ok(())
            }
            Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// One request, and its reply.
    pub(super) fn call(&mut self, request: &Request<'_>) -> io::Result<Reply> {
        self.queue(0, request)?;
        self.flush()?;
        match self.answer()?.1 {
            Answer::Other(reply) => Ok(reply),
            Answer::Data(data) => Ok(Reply::Data(Bytes::copy_from_slice(data))),
        }
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

fn longest(limit: u64) -> u32 {
    let bytes = if limit == 0 { DEFAULT_DATA_BYTES } else { limit.min(MAX_PACKET_BYTES as u64) };
    (bytes & !0xfff).max(4096) as u32
}

fn malformed(error: codec::Malformed) -> io::Error {
    io::Error::other(format!("the server sent {error}"))
}

/// The error of a reply that is not the one that the request is to have.
pub(super) fn refusal(reply: Reply) -> io::Error {
    match reply {
        Reply::Status { code: StatusCode::NO_SUCH_FILE, .. } => io::ErrorKind::NotFound.into(),
        Reply::Status { code, message } => {
            io::Error::other(format!("the server refuses: {} ({code:?})", message.escape_debug()))
        }
        other => io::Error::other(format!("an unexpected reply: {other:?}")),
    }
}

/// Of what ssh has said, so much is shown.
const WORDS_BYTES: usize = 2000;

/// A program and the stream to it. Dropping it closes the stream, at which ssh ends, and waits.
#[derive(Debug)]
pub(in crate::worker) struct Connection {
    /// Its standard input and output.
    pub(in crate::worker) stream: UnixStream,
    child: Child,
    words: File,
}

impl Connection {
    pub(in crate::worker) fn start(ssh: &Invocation) -> Result<Connection, Failure> {
        let start = || {
            let (stream, theirs) = UnixStream::pair()?;
            let words = tempfile::tempfile()?;
            let mut command = ssh.command();
            command.stdin(OwnedFd::from(theirs.try_clone()?)).stdout(OwnedFd::from(theirs));
            command.stderr(Stdio::from(words.try_clone()?));
            let child = command.spawn()?;
            Ok(Connection { stream, child, words })
        };
        let failed = |error: io::Error| {
            Failure::failed(format!("cannot start {}: {error}", ssh.program.escape_debug()))
        };
        start().map_err(failed)
    }

    /// Why the stream broke: what the program has said, or else the error.
    pub(in crate::worker) fn failure(&mut self, error: &io::Error) -> Failure {
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

    /// Waits for its end after it has closed its output; whether it was content.
    pub(in crate::worker) fn finish(&mut self) -> io::Result<bool> {
        self.stream.shutdown(std::net::Shutdown::Both)?;
        Ok(self.child.wait()?.success())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        // Waited for, since its CPU time counts only then. One that does not end is the matter of
        // whoever has given this process its deadline.
        let _ = self.child.wait();
    }
}
