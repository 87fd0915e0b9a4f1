//! The types that packets are made of: big-endian integers and length-prefixed strings.

use bytes::{BufMut, BytesMut};

/// Why bytes are no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The packet's length field is zero. The words are sshfs's.
    #[error("bad reply len: 0")]
    ZeroLength,
    /// The packet's length field is beyond the bound.
    #[error("bad reply len: {len} (at most {max})")]
    TooLong {
        /// What the field says.
        len: usize,
        /// The bound.
        max: usize,
    },
    /// The packet ends inside a field.
    #[error("a packet ends inside a field")]
    Truncated,
    /// The packet goes on after its last field.
    #[error("{0} bytes too many in a packet")]
    Trailing(usize),
    /// No message has this type.
    #[error("a message of unknown type {0}")]
    UnknownType(u8),
    /// A field has a value that it cannot have.
    #[error("a packet with {0}")]
    BadValue(&'static str),
}

/// Takes fields off the front of a packet.
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

    /// What has not been taken yet, all of it.
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
/// A string longer than `u32::MAX` cannot be told; no caller has one, since packets are bounded.
pub(crate) fn put_string(out: &mut BytesMut, bytes: &[u8]) {
    out.put_u32(bytes.len() as u32);
    out.put_slice(bytes);
}

/// Appends what `body` makes, a packet or a string, with its length in front. `beyond` bytes of
/// it will follow from elsewhere.
pub(crate) fn put_sized(out: &mut BytesMut, beyond: usize, body: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.put_u32(0);
    body(out);
    let len = (out.len() - start - 4 + beyond) as u32;
    out[start..start + 4].copy_from_slice(&len.to_be_bytes());
}
