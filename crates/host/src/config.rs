//! Configuration of a host.

use std::time::Duration;

/// Default maximum of sessions: with a round trip of 100 ms and OpenSSH's windows they carry 1
/// Gbit/s, and a shared connection (`ControlMaster`) accepts ten (`MaxSessions`).
pub const AUTOMATIC_CONNS: usize = 8;

/// Configuration of a host. [`Config::default`] has one connection and all checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The host in the log.
    pub name: String,
    /// The directory on the server that becomes the root, as the user specified it: absolute,
    /// relative to the directory where the session begins (usually the home), or beginning with
    /// `~`. Empty for the directory where the session begins.
    pub base: Vec<u8>,
    /// Maximum number of sessions, from 1 to 64. The first is for metadata, and for everything
    /// while it is the only one; further ones are opened for large transfers while throughput
    /// improves. [`AUTOMATIC_CONNS`] is a good maximum.
    pub max_conns: usize,
    /// Further sessions are opened if measurements suggest a gain, and are no longer used if there
    /// is none. Otherwise they are opened as soon as many bytes are in flight.
    pub measure_gain: bool,
    /// Idle time after which sessions beyond the second are closed.
    pub idle_limit: Duration,
    /// Shows the targets of symbolic links instead of the links; dangling links are shown as links.
    pub follow_symlinks: bool,
    /// Requests [`base::InodeAttr`] from servers that know it.
    pub inode_attrs: bool,
    /// Sends one READDIR at a time.
    pub sync_readdir: bool,
    /// Longest READ in bytes; the server's limit applies too.
    pub max_read: Option<u32>,
    /// Longest WRITE in bytes; the server's limit applies too.
    pub max_write: Option<u32>,
    /// Creates no hard links (`ENOSYS`).
    pub disable_hardlink: bool,
    /// On a server without `posix-rename`: moves the target of a rename aside, renames, and removes
    /// the old target. Not atomic.
    pub rename_workaround: bool,
    /// Returns `EXDEV` if a rename fails for an unknown reason, so that `mv` copies.
    pub renamexdev_workaround: bool,
    /// On a server without `fsync`: the sync of a file succeeds when the server has received all
    /// writes, that of a directory always.
    pub fsync_workaround: bool,
    /// A session is ended if requests are outstanding and no byte was received for this time; ten
    /// times as long while an `fsync` or a server-side copy is outstanding.
    pub stall_limit: Duration,
    /// Reconnects after a connection was lost.
    pub reconnect: bool,
    /// Connects at the first operation, not in [`Host::connect`](crate::Host::connect).
    pub delay_connect: bool,
    /// Checks in [`Host::connect`](crate::Host::connect) that the base is a directory.
    pub check_root: bool,
    /// The use of the helper.
    pub helper: Helper,
    /// Compresses packets, if the helper serves and the connection does not compress them.
    pub compresses: bool,
    /// The use of direct connections.
    pub direct: Direct,
    /// The ports on which the helper may listen, the first one that is free; zero is any.
    pub direct_ports: (u16, u16),
    /// The name or the address for direct connections, and the port, in place of those that the
    /// helper reports.
    pub direct_address: Option<(String, Option<u16>)>,
    /// How long a reader of a direct connection polls before it sleeps, here and at the server.
    pub poll_limit: Duration,
}

/// The use of direct connections, which do not go through ssh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// None is made.
    #[default]
    No,
    /// They are made if the helper serves and can be reached.
    Yes,
    /// No session is used but direct ones.
    Require,
}

/// The use of the helper, sshoal's own SFTP server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Helper {
    /// It is not started. A server whose own SFTP server is the helper is used as such.
    #[default]
    No,
    /// It is used if it is found on the server.
    Auto,
    /// As [`Helper::Auto`]; if it is not found, it is installed.
    Install,
    /// The program at this path on the server is the helper; there is no session without it.
    At(String),
}

impl Default for Config {
    fn default() -> Config {
        Config {
            name: String::new(),
            base: Vec::new(),
            max_conns: 1,
            measure_gain: true,
            idle_limit: Duration::from_secs(180),
            follow_symlinks: false,
            inode_attrs: true,
            sync_readdir: false,
            max_read: None,
            max_write: None,
            disable_hardlink: false,
            rename_workaround: false,
            renamexdev_workaround: false,
            fsync_workaround: false,
            stall_limit: Duration::from_secs(60),
            reconnect: true,
            delay_connect: false,
            check_root: true,
            helper: Helper::No,
            compresses: false,
            direct: Direct::No,
            direct_ports: (0, 0),
            direct_address: None,
            poll_limit: Duration::from_micros(50),
        }
    }
}
