//! Framing, and the basic types of the protocol: big-endian integers and length-prefixed strings.

use bytes::{BufMut, BytesMut};

/// Why bytes are not a valid packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The packet's length field is zero. The message is sshfs's.
    #[error("bad reply len: 0")]
    ZeroLength,
    /// The packet's length field exceeds the limit.
    #[error("bad reply len: {len} (at most {max})")]
    TooLong {
        /// The value of the field.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The packet ends inside a field.
    #[error("a packet ends inside a field")]
    Truncated,
    /// The packet has bytes after its last field.
    #[error("{0} bytes too many in a packet")]
    Trailing(usize),
    /// No message has this type.
    #[error("a message of unknown type {0}")]
    UnknownType(u8),
    /// A field has an invalid value.
    #[error("a packet with {0}")]
    BadValue(&'static str),
}

/// Bytes of the length field in front of each packet.
pub const HEADER_BYTES: usize = 4;

/// Largest accepted length field: 256 KiB, OpenSSH's own `SFTP_MAX_MSG_LENGTH`. A larger one would
/// only cost memory, since no peer within OpenSSH's limits sends it.
pub const MAX_PACKET_BYTES: usize = 256 * 1024;

/// The length of the first packet in `stream`, without the length field; `None` until that field
/// was received completely.
pub fn packet_length(stream: &[u8], max: usize) -> Result<Option<usize>, Malformed> {
    let Some(header) = stream.first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    match u32::from_be_bytes(*header) as usize {
        0 => Err(Malformed::ZeroLength),
        len if len > max => Err(Malformed::TooLong { len, max }),
        len => Ok(Some(len)),
    }
}

/// Decodes fields from the front of a packet.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(packet: &'a [u8]) -> Fields<'a> {
        Fields { rest: packet }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (front, rest) = self.rest.split_first_chunk().ok_or(Malformed::Truncated)?;
        self.rest = rest;
        Ok(*front)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn string(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u32()? as usize;
        let (front, rest) = self.rest.split_at_checked(len).ok_or(Malformed::Truncated)?;
        self.rest = rest;
        Ok(front)
    }

    /// All bytes that were not decoded yet.
    pub(crate) fn remainder(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn finish(self) -> Result<(), Malformed> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(Malformed::Trailing(left)),
        }
    }
}

/// Appends a string: its length and its bytes.
///
/// A string longer than `u32::MAX` cannot be encoded; no caller has one, since packets are bounded.
pub(crate) fn put_string(out: &mut BytesMut, bytes: &[u8]) {
    out.put_u32(bytes.len() as u32);
    out.put_slice(bytes);
}

/// Appends the output of `body`, a packet or a string, preceded by its length. The length includes
/// `beyond` bytes that the caller sends after it.
pub(crate) fn put_sized(out: &mut BytesMut, beyond: usize, body: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.put_u32(0);
    body(out);
    let len = (out.len() - start - 4 + beyond) as u32;
    out[start..start + 4].copy_from_slice(&len.to_be_bytes());
}
