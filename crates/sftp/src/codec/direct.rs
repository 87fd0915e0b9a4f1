//! The messages of `direct@sshoal`.

use std::net::IpAddr;

use bytes::{BufMut, BytesMut};

use super::wire::{Field, Fields, Malformed, fields_of, put_string};

/// Bytes of the digest of a key: SHA-256.
pub const KEY_DIGEST_BYTES: usize = 32;

/// The client's part of `direct@sshoal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectRequest {
    /// The digest of the client's public key.
    pub key: [u8; KEY_DIGEST_BYTES],
    /// The ports to listen on, the first one that is free; zero is any.
    pub ports: (u16, u16),
    /// How long the server may poll a connection before it sleeps, in microseconds.
    pub poll_us: u32,
}

/// The reply to `direct@sshoal`: where the server listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectAddress {
    /// The digest of the server's public key.
    pub key: [u8; KEY_DIGEST_BYTES],
    /// The address on which the ssh connection has arrived at the server.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
}

fields_of! {
    DirectRequest { key, ports, poll_us }
    DirectAddress { key, address, port }
}

impl Field<'_> for [u8; KEY_DIGEST_BYTES] {
    fn put(&self, out: &mut BytesMut) {
        put_string(out, self);
    }

    fn get(fields: &mut Fields<'_>) -> Result<[u8; KEY_DIGEST_BYTES], Malformed> {
        let digest = fields.string()?;
        digest.try_into().map_err(|_| Malformed::BadValue("a digest that is not of 32 bytes"))
    }
}

/// A port.
impl Field<'_> for u16 {
    fn put(&self, out: &mut BytesMut) {
        out.put_u32((*self).into());
    }

    fn get(fields: &mut Fields<'_>) -> Result<u16, Malformed> {
        fields.u32()?.try_into().map_err(|_| Malformed::BadValue("a port above 65535"))
    }
}

impl Field<'_> for IpAddr {
    fn put(&self, out: &mut BytesMut) {
        match self {
            IpAddr::V4(address) => put_string(out, &address.octets()),
            IpAddr::V6(address) => put_string(out, &address.octets()),
        }
    }

    fn get(fields: &mut Fields<'_>) -> Result<IpAddr, Malformed> {
        let octets = fields.string()?;
        if let Ok(octets) = <[u8; 4]>::try_from(octets) {
            Ok(IpAddr::from(octets))
        } else if let Ok(octets) = <[u8; 16]>::try_from(octets) {
            Ok(IpAddr::from(octets))
        } else {
            Err(Malformed::BadValue("an address that is not of IP"))
        }
    }
}
