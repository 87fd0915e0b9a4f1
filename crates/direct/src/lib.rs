//! Encrypted TCP connections between two processes that have exchanged the digests of their public
//! keys over a connection that both trust.
//!
//! Invariants:
//! 1. Only TLS 1.3, and each side accepts exactly the public key with the digest that it was given.
//!    There are no certificates, names or authorities.
//! 2. A caller gets a stream only after both sides are authenticated: of what another peer sends,
//!    only rustls reads anything.
//! 3. The number, the rate and the time of handshakes are limited.
//! 4. A [`Listener`] that is dropped listens no more, and ends all its connections.
//!
//! Not here: how the digests are exchanged, and what the streams carry.
#![forbid(unsafe_code)]

mod client;
mod key;
mod listener;
mod socket;
mod stream;
#[cfg(test)]
mod tests;

pub use client::connect;
pub use key::{Digest, Identity};
pub use listener::{Limits, Listener};
pub use stream::{AsyncReader, AsyncWriter, Link, Reader, Writer};

/// Why there is no direct connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No key could be made.
    #[error("no random number for a key")]
    Key,
    /// The library for TLS refused the settings, or the other side is not the expected one.
    #[error("{0}")]
    Tls(#[from] rustls::Error),
    /// The network, or the handshake.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// All ports of the range are in use.
    #[error("no free port from {0} to {1}")]
    NoPort(u16, u16),
}
