//! A small client of NFS version 4.0 (RFC 7530): one connection, one file, requests in flight.
//!
//! It measures the protocol and a server without a kernel client: nothing is cached, read ahead or
//! gathered here. It knows what reading and writing a file need, and nothing else: no callbacks, so
//! that the server grants no delegations; no recovery of a lost connection or lease, which the
//! requests themselves renew. Written data are not durable before COMMIT, as with Linux's client.
//!
//! The numbers are those of RFC 7530, and of RFC 5531 for the calls that carry the requests.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::remote::{Answer, Opening, Remote};
use super::sftp::{OUTBOX_BYTES, receive};
use crate::failure::{Failure, Result};

/// Longest request of Linux's client.
const LONGEST: u32 = 1 << 20;

/// Longest answer: the longest request and its headers.
const ANSWER_BYTES: usize = (LONGEST + (64 << 10)) as usize;

/// Of a reply: this is the last fragment of the record.
const LAST: u32 = 0x8000_0000;

/// Ids of requests take so many of the lowest bits of the numbers of calls. Those above are
/// counted, since a server takes a call with a known number for a repetition.
const ID_BITS: u32 = 8;

mod op {
    pub(super) const CLOSE: u32 = 4;
    pub(super) const COMMIT: u32 = 5;
    pub(super) const GETATTR: u32 = 9;
    pub(super) const GETFH: u32 = 10;
    pub(super) const LOOKUP: u32 = 15;
    pub(super) const OPEN: u32 = 18;
    pub(super) const OPEN_CONFIRM: u32 = 20;
    pub(super) const PUTFH: u32 = 22;
    pub(super) const PUTROOTFH: u32 = 24;
    pub(super) const READ: u32 = 25;
    pub(super) const SETCLIENTID: u32 = 35;
    pub(super) const SETCLIENTID_CONFIRM: u32 = 36;
    pub(super) const WRITE: u32 = 38;
}

/// Of OPEN's result: OPEN_CONFIRM has to follow.
const HAS_TO_BE_CONFIRMED: u32 = 2;

/// The number of the attribute `size`, as a bitmap.
const SIZE: u32 = 1 << 4;

/// The attribute `mode`, in the second word of a bitmap.
const MODE: u32 = 1 << 1;

/// A number for an open file, as opaque bytes; the first four are counted by the server.
type StateId = [u8; 16];

/// What a server answers to a write and a commit; it is another one after a restart.
type Verifier = [u8; 8];

/// A connection to a server, and a file that is open there.
pub(super) struct NfsFile {
    stream: TcpStream,
    inbox: BytesMut,
    outbox: BytesMut,
    credential: Bytes,
    calls: u32,
    client: u64,
    /// Of the owner of the open file: the number of the last OPEN, OPEN_CONFIRM or CLOSE.
    sequence: u32,
    handle: Bytes,
    state: StateId,
    /// Of the writes so far.
    verifier: Option<Verifier>,
}

impl NfsFile {
    /// Connects from a port that only root can have, and introduces itself.
    pub(super) fn connect(port: u16) -> Result<NfsFile> {
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let failed = |error: io::Error| Failure::failed(format!("cannot connect by NFS: {error}"));
        let stream = sandbox::connect_reserved(server).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let mut file = NfsFile {
            stream,
            inbox: BytesMut::new(),
            outbox: BytesMut::new(),
            credential: credential(),
            calls: 0,
            client: 0,
            sequence: 0,
            handle: Bytes::new(),
            state: StateId::default(),
            verifier: None,
        };
        file.introduce().map_err(failed)?;
        Ok(file)
    }

    fn introduce(&mut self) -> io::Result<()> {
        // A client of its own for each connection, whose numbers of requests begin anew.
        let name = sandbox::random_word()?;
        let mut reply = self.call(&[op::SETCLIENTID], |body| {
            body.put_u64(0);
            put_opaque(body, name.as_bytes());
            // No program that can be called back, at no address.
            body.put_u32(0);
            put_opaque(body, b"tcp");
            put_opaque(body, b"0.0.0.0.0.0");
            body.put_u32(0);
        })?;
        self.client = u64_of(&mut reply)?;
        let verifier: Verifier = array_of(&mut reply)?;
        let client = self.client;
        self.call(&[op::SETCLIENTID_CONFIRM], |body| {
            body.put_u64(client);
            body.put_slice(&verifier);
        })?;
        Ok(())
    }

    /// One compound of operations without arguments, the last but with those that `put` writes.
    /// Returns the result of the last one, behind its status.
    fn call(&mut self, ops: &[u32], put: impl FnOnce(&mut BytesMut)) -> io::Result<Bytes> {
        let mut body = BytesMut::new();
        ops.iter().for_each(|&op| body.put_u32(op));
        put(&mut body);
        self.perform(ops.len() as u32, &body)
    }

    /// One compound on the open file.
    fn on_file(&mut self, op: u32, put: impl FnOnce(&mut BytesMut)) -> io::Result<Bytes> {
        let mut body = BytesMut::new();
        put_handle(&mut body, &self.handle);
        body.put_u32(op);
        put(&mut body);
        self.perform(2, &body)
    }

    /// A compound and its answer.
    fn perform(&mut self, ops: u32, body: &[u8]) -> io::Result<Bytes> {
        self.queue(0, ops, &[body])?;
        self.flush()?;
        let (_, reply) = self.reply()?;
        last_result(reply)
    }

    /// Queues a compound that consists of these parts.
    fn queue(&mut self, id: u32, ops: u32, parts: &[&[u8]]) -> io::Result<()> {
        self.calls = self.calls.wrapping_add(1);
        let begin = self.outbox.len();
        let out = &mut self.outbox;
        out.put_u32(0);
        out.put_u32(self.calls << ID_BITS | id);
        // A call of version 2, to version 4 of program 100003, its procedure COMPOUND.
        [0, 2, 100_003, 4, 1].into_iter().for_each(|word| out.put_u32(word));
        out.put_slice(&self.credential);
        // No verifier, no tag, minor version 0.
        [0, 0, 0, 0, ops].into_iter().for_each(|word| out.put_u32(word));
        parts.iter().for_each(|part| out.put_slice(part));
        let length = (out.len() - begin - 4) as u32;
        out[begin..begin + 4].copy_from_slice(&(LAST | length).to_be_bytes());
        if self.outbox.len() >= OUTBOX_BYTES { self.flush() } else { Ok(()) }
    }

    /// The length of the first record, if all of it was received. A server sends a record in one
    /// fragment.
    fn record_length(&self) -> io::Result<Option<usize>> {
        let Some(mut head) = self.inbox.get(..4) else { return Ok(None) };
        let head = head.get_u32();
        let length = (head & !LAST) as usize;
        if head & LAST == 0 || length > ANSWER_BYTES {
            return Err(malformed());
        }
        Ok(Some(length).filter(|length| 4 + length <= self.inbox.len()))
    }

    /// Waits for the next answer; returns the id of its request and the results of its compound.
    fn reply(&mut self) -> io::Result<(u32, Bytes)> {
        let length = loop {
            if let Some(length) = self.record_length()? {
                break length;
            }
            receive(&mut self.stream, &mut self.inbox)?;
        };
        self.inbox.advance(4);
        let mut reply = self.inbox.split_to(length).freeze();
        let number = u32_of(&mut reply)?;
        // A reply, accepted.
        if (u32_of(&mut reply)?, u32_of(&mut reply)?) != (1, 0) {
            return Err(io::Error::other("the server denies the call"));
        }
        u32_of(&mut reply)?;
        opaque_of(&mut reply)?;
        match u32_of(&mut reply)? {
            0 => Ok((number & ((1 << ID_BITS) - 1), reply)),
            status => Err(io::Error::other(format!("the server rejects the call ({status})"))),
        }
    }
}

impl Remote for NfsFile {
    fn longest(&self, _: Opening) -> u32 {
        LONGEST
    }

    fn open(&mut self, path: &Path, opening: Opening) -> io::Result<()> {
        let names: Vec<&[u8]> = path.iter().map(OsStrExt::as_bytes).collect();
        let Some((name, parents)) = names.split_last() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut body = BytesMut::new();
        body.put_u32(op::PUTROOTFH);
        for parent in parents {
            body.put_u32(op::LOOKUP);
            put_opaque(&mut body, parent);
        }
        self.sequence += 1;
        body.put_u32(op::OPEN);
        body.put_u32(self.sequence);
        // Access to read or write, which is denied to no other.
        body.put_u32(if opening == Opening::Read { 1 } else { 2 });
        body.put_u32(0);
        body.put_u64(self.client);
        put_opaque(&mut body, b"bench");
        if opening == Opening::Create {
            // If it does not exist, with mode 0644.
            [1, 1, 2, 0, MODE, 4, 0o644].into_iter().for_each(|word| body.put_u32(word));
        } else {
            body.put_u32(0);
        }
        // By its name.
        body.put_u32(0);
        put_opaque(&mut body, name);
        body.put_u32(op::GETFH);
        let ops = parents.len() as u32 + 3;
        self.queue(0, ops, &[&body])?;
        self.flush()?;
        let (_, reply) = self.reply()?;
        let (_, mut reply) = results(reply)?;
        result(&mut reply, op::PUTROOTFH)?;
        for _ in parents {
            result(&mut reply, op::LOOKUP)?;
        }
        result(&mut reply, op::OPEN)?;
        self.state = array_of(&mut reply)?;
        // Of the directory: whether its change is atomic, before and after.
        take(&mut reply, 4 + 8 + 8)?;
        let flags = u32_of(&mut reply)?;
        let set = u32_of(&mut reply)? as usize;
        take(&mut reply, set.saturating_mul(4))?;
        if u32_of(&mut reply)? != 0 {
            return Err(io::Error::other("the server grants a delegation that nobody can return"));
        }
        result(&mut reply, op::GETFH)?;
        self.handle = opaque_of(&mut reply)?;
        if flags & HAS_TO_BE_CONFIRMED != 0 {
            self.sequence += 1;
            let (state, sequence) = (self.state, self.sequence);
            let mut reply = self.on_file(op::OPEN_CONFIRM, |body| {
                body.put_slice(&state);
                body.put_u32(sequence);
            })?;
            self.state = array_of(&mut reply)?;
        }
        Ok(())
    }

    fn read(&mut self, id: u32, offset: u64, len: u32) -> io::Result<()> {
        let mut body = BytesMut::new();
        put_handle(&mut body, &self.handle);
        body.put_u32(op::READ);
        body.put_slice(&self.state);
        body.put_u64(offset);
        body.put_u32(len);
        self.queue(id, 2, &[&body])
    }

    fn write(&mut self, id: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut body = BytesMut::new();
        put_handle(&mut body, &self.handle);
        body.put_u32(op::WRITE);
        body.put_slice(&self.state);
        body.put_u64(offset);
        // Not durable before COMMIT.
        body.put_u32(0);
        body.put_u32(data.len() as u32);
        self.queue(id, 2, &[&body, data, padding(data.len())])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.outbox)?;
        self.outbox.clear();
        Ok(())
    }

    fn answer(&mut self) -> io::Result<(u32, Answer)> {
        let (id, reply) = self.reply()?;
        let (failed, mut reply) = match results(reply) {
            Ok(results) => results,
            Err(error) => return Ok((id, Answer::Refused(error))),
        };
        if failed {
            let refused = result(&mut reply, op::PUTFH).and_then(|_| any_result(&mut reply));
            let error = refused.err().unwrap_or_else(malformed);
            return Ok((id, Answer::Refused(error)));
        }
        result(&mut reply, op::PUTFH)?;
        let answer = match any_result(&mut reply)? {
            op::READ => {
                let at_end = u32_of(&mut reply)? != 0;
                let data = opaque_of(&mut reply)?;
                if data.is_empty() && at_end { Answer::End } else { Answer::Data(data) }
            }
            op::WRITE => {
                let written = u32_of(&mut reply)?;
                u32_of(&mut reply)?;
                self.verify(array_of(&mut reply)?)?;
                Answer::Written(Some(written))
            }
            _ => return Err(malformed()),
        };
        Ok((id, answer))
    }

    fn has_answer(&self) -> bool {
        self.record_length().is_ok_and(|length| length.is_some())
    }

    fn size(&mut self) -> io::Result<Option<u64>> {
        let mut reply = self.on_file(op::GETATTR, |body| {
            body.put_u32(1);
            body.put_u32(SIZE);
        })?;
        if (u32_of(&mut reply)?, u32_of(&mut reply)?) != (1, SIZE) {
            return Ok(None);
        }
        Ok(Some(u64_of(&mut opaque_of(&mut reply)?)?))
    }

    fn sync(&mut self) -> io::Result<()> {
        // All of the file.
        let mut reply = self.on_file(op::COMMIT, |body| {
            body.put_u64(0);
            body.put_u32(0);
        })?;
        self.verify(array_of(&mut reply)?)
    }

    fn close(&mut self) -> io::Result<()> {
        self.sequence += 1;
        let (state, sequence) = (self.state, self.sequence);
        self.on_file(op::CLOSE, |body| {
            body.put_u32(sequence);
            body.put_slice(&state);
        })?;
        Ok(())
    }

    fn failure(&mut self, what: &str, error: &io::Error) -> Failure {
        Failure::failed(format!("{what}: {error}"))
    }
}

impl NfsFile {
    /// Compares the verifier of a write or commit with that of the writes before.
    fn verify(&mut self, verifier: Verifier) -> io::Result<()> {
        if *self.verifier.get_or_insert(verifier) == verifier {
            return Ok(());
        }
        Err(io::Error::other("the server was restarted, and may have lost written data"))
    }
}

/// AUTH_SYS: the user and group of this process.
fn credential() -> Bytes {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let mut body = BytesMut::new();
    body.put_u32(0);
    put_opaque(&mut body, b"bench");
    [user.as_raw(), group.as_raw(), 0].into_iter().for_each(|word| body.put_u32(word));
    let mut credential = BytesMut::new();
    credential.put_u32(1);
    put_opaque(&mut credential, &body);
    credential.freeze()
}

fn put_handle(body: &mut BytesMut, handle: &[u8]) {
    body.put_u32(op::PUTFH);
    put_opaque(body, handle);
}

/// Bytes of variable length: the length, the bytes, and zeros up to a multiple of four.
fn put_opaque(body: &mut BytesMut, bytes: &[u8]) {
    body.put_u32(bytes.len() as u32);
    body.put_slice(bytes);
    body.put_slice(padding(bytes.len()));
}

fn padding(length: usize) -> &'static [u8] {
    &[0; 3][..length.next_multiple_of(4) - length]
}

fn malformed() -> io::Error {
    io::Error::other("the server sent an answer that is not understood")
}

fn take(reply: &mut Bytes, length: usize) -> io::Result<Bytes> {
    if reply.len() < length { Err(malformed()) } else { Ok(reply.split_to(length)) }
}

fn u32_of(reply: &mut Bytes) -> io::Result<u32> {
    Ok(take(reply, 4)?.get_u32())
}

fn u64_of(reply: &mut Bytes) -> io::Result<u64> {
    Ok(take(reply, 8)?.get_u64())
}

fn array_of<const N: usize>(reply: &mut Bytes) -> io::Result<[u8; N]> {
    take(reply, N)?[..].try_into().map_err(|_| malformed())
}

fn opaque_of(reply: &mut Bytes) -> io::Result<Bytes> {
    let length = u32_of(reply)? as usize;
    let bytes = take(reply, length)?;
    take(reply, padding(length).len())?;
    Ok(bytes)
}

/// Whether an operation of a compound failed, and the results up to that one.
fn results(mut reply: Bytes) -> io::Result<(bool, Bytes)> {
    let status = u32_of(&mut reply)?;
    opaque_of(&mut reply)?;
    if u32_of(&mut reply)? == 0 {
        return Err(refused(status));
    }
    Ok((status != 0, reply))
}

/// The operation of the next result, if it succeeded.
fn any_result(reply: &mut Bytes) -> io::Result<u32> {
    let op = u32_of(reply)?;
    match u32_of(reply)? {
        0 => Ok(op),
        status => Err(refused(status)),
    }
}

fn result(reply: &mut Bytes, wanted: u32) -> io::Result<()> {
    if any_result(reply)? == wanted { Ok(()) } else { Err(malformed()) }
}

/// The result of the last of at most two operations, the first of which is PUTFH.
fn last_result(reply: Bytes) -> io::Result<Bytes> {
    let (_, mut reply) = results(reply)?;
    if any_result(&mut reply)? == op::PUTFH {
        any_result(&mut reply)?;
    }
    Ok(reply)
}

/// The errors of files have the numbers that they have here.
fn refused(status: u32) -> io::Error {
    match i32::try_from(status) {
        Ok(number @ 1..10_000) => io::Error::from_raw_os_error(number),
        _ => io::Error::other(format!("the server refuses (NFS4ERR {status})")),
    }
}
