//! FUSE_INIT: the first request, which negotiates the features of both sides.

use std::io::{self, IoSlice};
use std::sync::Arc;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::buffers::Buffer;
use super::config::{Config, Negotiated};
use crate::abi::{self, InitOut, OutHeader, Wire, flags::init};
use crate::channel::{Channel, Readiness};
use crate::error::{Error, Result};
use crate::operation::{Init, Operation};
use crate::request::Request;
use crate::ring::Prepared;

/// First minor version with `FUSE_NOTIFY_INC_EPOCH`. It is not negotiated, so the kernel's offer
/// decides.
const MINOR_WITH_EPOCHS: u32 = 44;

/// First minor version with `FUSE_NOTIFY_PRUNE`. It is not negotiated, so the kernel's offer
/// decides.
const MINOR_WITH_PRUNE: u32 = 45;

/// Maximum depth of stacked file systems: passthrough needs one level.
const STACK_DEPTH: u32 = 1;

/// Waits for FUSE_INIT and answers it. Returns the queues of io_uring, if it is used.
pub(super) async fn negotiate(
    channel: &AsyncFd<Readiness>,
    buffer: &mut Buffer,
    config: &Config,
) -> Result<(Negotiated, Option<Prepared>)> {
    loop {
        let len = receive(channel, buffer).await?;
        let request = Request::parse(&buffer[..len]).map_err(|_| Error::NoInit)?;
        let Operation::Init(init) = request.operation else { return Err(Error::NoInit) };
        let send = |out: &InitOut| {
            let mut packet = Vec::with_capacity(OutHeader::SIZE + InitOut::SIZE);
            let len = (OutHeader::SIZE + InitOut::SIZE) as u32;
            OutHeader { len, error: 0, unique: request.header.unique }.put(&mut packet);
            out.put(&mut packet);
            channel.get_ref().0.send(&[IoSlice::new(&packet)]).map_err(Error::Session)
        };
        if init.major > abi::MAJOR {
            // By the protocol the kernel sends INIT again with our major version.
            send(&InitOut { major: abi::MAJOR, minor: abi::MINOR, ..InitOut::default() })?;
            continue;
        }
        if init.major < abi::MAJOR || init.minor < abi::MINOR_MIN {
            return Err(Error::Protocol { major: init.major, minor: init.minor });
        }
        let ring = prepare_ring(&init, config, &channel.get_ref().0);
        let (out, negotiated) = agree(&init, config, ring.is_some());
        send(&out)?;
        tracing::debug!(offered = init.flags, ?negotiated, "the kernel's FUSE is {}", init.minor);
        return Ok((negotiated, ring));
    }
}

/// Creates the queues of io_uring, if it is wanted and offered. Without them the kernel must not
/// get the flag: it would wait for them.
fn prepare_ring(offer: &Init, config: &Config, channel: &Arc<dyn Channel>) -> Option<Prepared> {
    let depth = config.io_uring?;
    if offer.flags & init::OVER_IO_URING == 0 || offer.flags & init::INIT_EXT == 0 {
        tracing::warn!(
            "io_uring: the kernel does not offer it, and requests are read from /dev/fuse; it needs \
             Linux 6.14, and as root \"echo Y > /sys/module/fuse/parameters/enable_uring\""
        );
        return None;
    }
    Prepared::new(channel, depth, config.payload_size())
        .inspect_err(|error| {
            tracing::warn!(
                "io_uring: it cannot be used, and requests are read from /dev/fuse: {error}"
            );
        })
        .ok()
}

/// The reply, and the resulting settings.
fn agree(offer: &Init, config: &Config, has_ring: bool) -> (InitOut, Negotiated) {
    let ring = if has_ring { init::OVER_IO_URING } else { 0 };
    let mut capabilities = offer.flags & (config.capabilities() | ring);
    if capabilities & init::INIT_EXT == 0 {
        capabilities &= u64::from(u32::MAX);
    }
    let negotiated = Negotiated {
        minor: offer.minor.min(abi::MINOR),
        max_write: config.max_write,
        max_readahead: config.max_readahead.min(offer.max_readahead),
        capabilities,
        epochs: offer.minor >= MINOR_WITH_EPOCHS,
        prunes: offer.minor >= MINOR_WITH_PRUNE,
    };
    let out = InitOut {
        major: abi::MAJOR,
        minor: negotiated.minor,
        max_readahead: negotiated.max_readahead,
        flags: capabilities as u32,
        max_background: config.max_background,
        congestion_threshold: config.congestion_threshold,
        max_write: config.max_write,
        time_gran: 1,
        max_pages: config.max_pages(),
        flags2: (capabilities >> 32) as u32,
        max_stack_depth: if negotiated.passthrough() { STACK_DEPTH } else { 0 },
        ..InitOut::default()
    };
    (out, negotiated)
}

async fn receive(channel: &AsyncFd<Readiness>, buffer: &mut Buffer) -> Result<usize> {
    loop {
        let ready = channel.ready(Interest::READABLE | Interest::ERROR).await;
        let mut guard = ready.map_err(Error::Session)?;
        match guard.try_io(|channel| channel.get_ref().0.receive(buffer)) {
            Ok(Ok(0)) => return Err(Error::Ended),
            Ok(Ok(len)) => return Ok(len),
            Ok(Err(error)) => match error.raw_os_error() {
                Some(libc::ENODEV | libc::ECONNABORTED) => return Err(Error::Ended),
                Some(libc::ENOENT | libc::EINTR) => {}
                _ => return Err(Error::Session(io::Error::from(error.kind()))),
            },
            // No request after all.
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(flags: u64) -> Init {
        Init { major: 7, minor: 45, max_readahead: 128 << 10, flags }
    }

    #[test]
    fn only_offered_and_wanted_capabilities_are_enabled() {
        let config = Config { max_write: 1 << 20, ..Config::default() }.effective();
        let (out, negotiated) = agree(&offer(u64::MAX), &config, false);
        assert_ne!(out.flags & init::ASYNC_DIO as u32, 0);
        assert_eq!(out.max_pages, 256);
        assert_eq!((out.minor, out.max_stack_depth), (42, 0));
        assert_eq!(negotiated.max_readahead, 128 << 10);

        let passthrough = Config { passthrough: true, ..config };
        let (out, _) = agree(&offer(u64::MAX), &passthrough, false);
        assert_eq!(out.max_stack_depth, 1);
        assert_ne!(out.flags2 & 1 << (37 - 32), 0);

        let (out, negotiated) = agree(&offer(init::ASYNC_READ), &passthrough, false);
        assert_eq!((u64::from(out.flags), out.flags2), (init::ASYNC_READ, 0));
        assert!(!negotiated.passthrough());
    }

    #[test]
    fn io_uring_is_enabled_only_with_queues() {
        let config = Config { io_uring: Some(1), max_write: 4096, ..Config::default() }.effective();
        assert_eq!((config.io_uring, config.max_write), (Some(4), 128 << 10));
        assert_eq!(config.payload_size(), 32 * rustix::param::page_size());
        let (out, negotiated) = agree(&offer(u64::MAX), &config, false);
        assert_eq!((out.flags2 & 1 << (41 - 32), negotiated.io_uring()), (0, false));
        let (out, negotiated) = agree(&offer(u64::MAX), &config, true);
        assert_ne!(out.flags2 & 1 << (41 - 32), 0);
        assert!(negotiated.io_uring());
        // Not offered.
        let (_, negotiated) = agree(&offer(!init::OVER_IO_URING), &config, true);
        assert!(!negotiated.io_uring());
    }

    #[test]
    fn the_upper_flags_need_the_extension() {
        let config = Config { passthrough: true, ..Config::default() }.effective();
        let (out, negotiated) = agree(&offer(!init::INIT_EXT), &config, false);
        assert_eq!((out.flags2, out.max_stack_depth), (0, 0));
        assert!(!negotiated.passthrough());
    }

    #[test]
    fn settings_out_of_range_are_clamped() {
        let config = Config {
            max_write: u32::MAX,
            max_background: 0,
            congestion_threshold: 9,
            readers: 7,
            ..Config::default()
        };
        let config = config.effective();
        assert_eq!((config.max_write, config.max_background), (4 << 20, 1));
        assert_eq!((config.congestion_threshold, config.readers), (1, 2));
        let small = Config { max_write: 0, ..Config::default() }.effective();
        assert_eq!(agree(&offer(0), &small, false).0.max_pages, 1);
        assert!(small.buffer_size() > 64 << 10);
    }
}
