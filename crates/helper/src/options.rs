//! What the server allows.

use std::net::IpAddr;
use std::path::PathBuf;

/// Settings of a server. The default allows everything that the process may do.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Refuses every request that could change a file.
    pub read_only: bool,
    /// Confines all paths to this directory, which the client sees as `/`. Needs Linux 5.6.
    pub root: Option<PathBuf>,
    /// Listens on this address for connections beside the first one, when the client asks for it.
    pub direct: Option<IpAddr>,
}
