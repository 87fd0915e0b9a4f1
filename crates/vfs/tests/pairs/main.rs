//! Two clients of one server: mounts and copies, interleaved call by call.

mod copies;
mod kernel;
mod mounts;

use std::sync::Arc;

use testkit::{FaultyRemote, MemRemote};

/// A client's own link to the server.
fn link(server: &kernel::Server) -> Arc<FaultyRemote<MemRemote>> {
    Arc::new(FaultyRemote::new(server.remote.clone()))
}
