//! Framing, and the basic types of the protocol: big-endian integers and length-prefixed strings.

use base::Timestamp;
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

/// A value that is encoded as one field, or as several.
pub(crate) trait Field<'a>: Sized {
    /// Appends the value.
    fn put(&self, out: &mut BytesMut);

    /// Decodes the value.
    fn get(fields: &mut Fields<'a>) -> Result<Self, Malformed>;
}

impl<'a> Field<'a> for &'a [u8] {
    fn put(&self, out: &mut BytesMut) {
        put_string(out, self);
    }

    fn get(fields: &mut Fields<'a>) -> Result<&'a [u8], Malformed> {
        fields.string()
    }
}

impl Field<'_> for bool {
    fn put(&self, out: &mut BytesMut) {
        out.put_u8((*self).into());
    }

    fn get(fields: &mut Fields<'_>) -> Result<bool, Malformed> {
        Ok(fields.u8()? != 0)
    }
}

macro_rules! numbers {
    ($($number:ident: $put:ident,)*) => {$(
        impl Field<'_> for $number {
            fn put(&self, out: &mut BytesMut) {
                out.$put(*self);
            }

            fn get(fields: &mut Fields<'_>) -> Result<$number, Malformed> {
                fields.$number()
            }
        }
    )*};
}

numbers! {
    u32: put_u32,
    u64: put_u64,
}

impl<'a, A: Field<'a>, B: Field<'a>> Field<'a> for (A, B) {
    fn put(&self, out: &mut BytesMut) {
        self.0.put(out);
        self.1.put(out);
    }

    fn get(fields: &mut Fields<'a>) -> Result<(A, B), Malformed> {
        Ok((A::get(fields)?, B::get(fields)?))
    }
}

/// A string of the numbers.
impl Field<'_> for Vec<u32> {
    fn put(&self, out: &mut BytesMut) {
        put_sized(out, 0, |out| self.iter().for_each(|number| out.put_u32(*number)));
    }

    fn get(fields: &mut Fields<'_>) -> Result<Vec<u32>, Malformed> {
        let mut list = Fields::new(fields.string()?);
        let mut numbers = Vec::with_capacity(list.left() / 4);
        while list.left() > 0 {
            numbers.push(list.u32()?);
        }
        Ok(numbers)
    }
}

impl Field<'_> for Timestamp {
    fn put(&self, out: &mut BytesMut) {
        out.put_i64(self.secs);
        out.put_u32(self.nanos);
    }

    fn get(fields: &mut Fields<'_>) -> Result<Timestamp, Malformed> {
        match (fields.u64()? as i64, fields.u32()?) {
            (secs, nanos @ 0..1_000_000_000) => Ok(Timestamp { secs, nanos }),
            _ => Err(Malformed::BadValue("a time of more than 999,999,999 ns")),
        }
    }
}

/// Implements [`Field`] for structs, as the given fields in this order.
macro_rules! fields_of {
    ($($type:ident { $($field:tt),* })*) => {$(
        impl $crate::codec::wire::Field<'_> for $type {
            fn put(&self, out: &mut bytes::BytesMut) {
                $($crate::codec::wire::Field::put(&self.$field, out);)*
            }

            fn get(
                fields: &mut $crate::codec::wire::Fields<'_>,
            ) -> Result<$type, $crate::codec::wire::Malformed> {
                Ok($type { $($field: $crate::codec::wire::Field::get(fields)?),* })
            }
        }
    )*};
}
pub(crate) use fields_of;
