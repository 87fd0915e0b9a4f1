//! The messages of `direct@sshoal`.

use std::net::IpAddr;

use bytes::{BufMut, Bytes, BytesMut};

use super::wire::{Fields, Malformed, put_string};

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

impl DirectRequest {
    pub(super) fn encode(&self, out: &mut BytesMut) {
        put_string(out, &self.key);
        out.put_u32(self.ports.0.into());
        out.put_u32(self.ports.1.into());
        out.put_u32(self.poll_us);
    }

    pub(super) fn decode(fields: &mut Fields<'_>) -> Result<DirectRequest, Malformed> {
        let key = key(fields)?;
        let ports = (port(fields)?, port(fields)?);
        Ok(DirectRequest { key, ports, poll_us: fields.u32()? })
    }
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

impl DirectAddress {
    /// Encodes the body of an EXTENDED_REPLY.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        put_string(&mut out, &self.key);
        match self.address {
            IpAddr::V4(address) => put_string(&mut out, &address.octets()),
            IpAddr::V6(address) => put_string(&mut out, &address.octets()),
        }
        out.put_u32(self.port.into());
        out.freeze()
    }

    /// Decodes the body of an EXTENDED_REPLY.
    pub fn decode(body: &[u8]) -> Result<DirectAddress, Malformed> {
        let mut fields = Fields::new(body);
        let key = key(&mut fields)?;
        let address = fields.string()?;
        let address = if let Ok(octets) = <[u8; 4]>::try_from(address) {
            IpAddr::from(octets)
        } else if let Ok(octets) = <[u8; 16]>::try_from(address) {
            IpAddr::from(octets)
        } else {
            return Err(Malformed::BadValue("an address that is not of IP"));
        };
        let port = port(&mut fields)?;
        fields.finish()?;
        Ok(DirectAddress { key, address, port })
    }
}

fn key(fields: &mut Fields<'_>) -> Result<[u8; KEY_DIGEST_BYTES], Malformed> {
    let digest = fields.string()?;
    digest.try_into().map_err(|_| Malformed::BadValue("a digest that is not of 32 bytes"))
}

fn port(fields: &mut Fields<'_>) -> Result<u16, Malformed> {
    fields.u32()?.try_into().map_err(|_| Malformed::BadValue("a port above 65535"))
}
