//! Where a packet ends.

use super::wire::Malformed;

/// Bytes of the length field in front of each packet.
pub const HEADER_BYTES: usize = 4;

/// Largest length field that is accepted: 256 KiB, OpenSSH's own `SFTP_MAX_MSG_LENGTH`. A larger
/// one only costs memory, since nobody who keeps to OpenSSH's limits sends it.
pub const MAX_PACKET_BYTES: usize = 256 * 1024;

/// The length of the packet that `stream` begins with, without the length field itself; `None`
/// while that field has not all arrived.
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
