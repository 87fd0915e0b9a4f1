//! How a host is to be used.

use std::time::Duration;

/// Sessions at most where nobody has said how many: with 100 ms and OpenSSH's windows they carry 1
/// Gbit/s, and a shared connection (`ControlMaster`) takes ten (`MaxSessions`).
pub const AUTOMATIC_CONNS: usize = 8;

/// How a host is to be used. [`Config::default`] is one connection with all checks on.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory on the server that becomes the root, as the user gave it: absolute, relative
    /// to where the session begins (usually the home), or beginning with `~`. Empty for where the
    /// session begins.
    pub base: Vec<u8>,
    /// Sessions at most, from 1 to 64. The first is for metadata, and for everything when it is the
    /// only one; further ones are opened when much content is read or written, as far as they
    /// gain. [`AUTOMATIC_CONNS`] is a good bound.
    pub max_conns: usize,
    /// Further sessions are opened where what was measured says that they could gain, and left again
    /// when they do not. Without this they are opened as soon as much is on its way.
    pub measure_gain: bool,
    /// Sessions beyond the second that carried nothing for so long are closed.
    pub idle_limit: Duration,
    /// Shows what symbolic links lead to in their stead, as far as they lead somewhere.
    pub follow_symlinks: bool,
    /// Asks for one part of a listing at a time.
    pub sync_readdir: bool,
    /// Longest READ in bytes; the server's own limit counts too.
    pub max_read: Option<u32>,
    /// Longest WRITE in bytes; the server's own limit counts too.
    pub max_write: Option<u32>,
    /// Makes no hard links (`ENOSYS`).
    pub disable_hardlink: bool,
    /// On a server without `posix-rename`: moves the target of a rename out of the way, renames,
    /// and removes what was the target. Not atomic.
    pub rename_workaround: bool,
    /// Answers `EXDEV` where a rename fails for an unknown reason, so that `mv` copies.
    pub renamexdev_workaround: bool,
    /// With requests outstanding and no byte received for so long, a session is given up. Ten
    /// times as much while an `fsync` or a copy on the server is outstanding.
    pub stall_limit: Duration,
    /// Connects anew when a connection is lost.
    pub reconnect: bool,
    /// Connects at the first operation, not in [`Host::connect`](crate::Host::connect).
    pub delay_connect: bool,
    /// Checks in [`Host::connect`](crate::Host::connect) that the base is a directory.
    pub check_root: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            base: Vec::new(),
            max_conns: 1,
            measure_gain: true,
            idle_limit: Duration::from_secs(180),
            follow_symlinks: false,
            sync_readdir: false,
            max_read: None,
            max_write: None,
            disable_hardlink: false,
            rename_workaround: false,
            renamexdev_workaround: false,
            stall_limit: Duration::from_secs(60),
            reconnect: true,
            delay_connect: false,
            check_root: true,
        }
    }
}
