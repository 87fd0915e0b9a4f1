//! In place of `ring.rs` for processors that the crate `io-uring` does not know.

use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::sync::Arc;

use crate::channel::Channel;

/// Entries of a queue, unless configured.
pub const DEFAULT_DEPTH: u16 = 32;

pub(crate) type Handler = Box<dyn FnMut(Slot) + Send>;

pub(crate) struct Slot(Infallible);

impl Slot {
    pub(crate) fn read(&mut self, _: &mut [u8]) -> Option<usize> {
        match self.0 {}
    }

    pub(crate) fn admit_lock(&mut self) -> bool {
        match self.0 {}
    }

    pub(crate) fn reply(self, _: i32, _: &[IoSlice<'_>]) -> bool {
        match self.0 {}
    }
}

pub(crate) struct Prepared(Infallible);

impl Prepared {
    pub(crate) fn new(_: &Arc<dyn Channel>, _: u16, _: usize) -> io::Result<Prepared> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn start(self, _: impl FnMut() -> Handler) -> Ring {
        match self.0 {}
    }
}

pub(crate) struct Ring(Infallible);

impl Ring {
    pub(crate) async fn failed(&mut self) -> io::Error {
        match self.0 {}
    }

    pub(crate) async fn end(self) {
        match self.0 {}
    }
}

pub(crate) fn effective_depth(configured: u16) -> u16 {
    configured
}
