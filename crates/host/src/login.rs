//! User and group id of the login on the server.

use base::Errno;

use crate::host::Host;
use crate::session::Session;
use std::sync::Arc;

/// On Linux, the ids of the process that serves SFTP. The owner of `/proc/self` is not usable:
/// sftp-server disables tracing of itself, and the `/proc` files of such a process belong to root.
const STATUS: &[u8] = b"/proc/self/status";

/// Longest read of that file in bytes: its ids are within the first 300.
const STATUS_BYTES: u32 = 4096;

impl Host {
    /// User and group id of the login. SFTP has no request for them.
    ///
    /// They are the owner of the directory where sessions begin, usually the login's home. Root
    /// owns that directory for root, and for any login in a `ChrootDirectory`; then the ids of the
    /// server's process are used. `EOPNOTSUPP` if the server does not show them, as in any chroot
    /// without `/proc`.
    pub async fn login_ids(&self) -> Result<(u32, u32), Errno> {
        login_ids(&self.metadata().await?).await
    }
}

/// See [`Host::login_ids`].
pub(crate) async fn login_ids(session: &Arc<Session>) -> Result<(u32, u32), Errno> {
    let home = session.client.stat(b".").await.map_err(|_| Errno::EIO)?;
    let owner = home.owner.ok_or(Errno::EOPNOTSUPP)?;
    match owner.uid {
        0 => ids_of_server(session).await.ok_or(Errno::EOPNOTSUPP),
        uid => Ok((uid, owner.gid)),
    }
}

async fn ids_of_server(session: &Arc<Session>) -> Option<(u32, u32)> {
    parse(&session.read_small(STATUS, STATUS_BYTES).await.ok()?)
}

/// The effective ids in `/proc/PID/status`: real, effective, saved, of the file system.
fn parse(status: &[u8]) -> Option<(u32, u32)> {
    let text = std::str::from_utf8(status).ok()?;
    let effective = |keyword: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(keyword))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    Some((effective("Uid:")?, effective("Gid:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effective_ids_are_read() {
        let status = b"Name:\tsftp-server\nUmask:\t0022\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n";
        assert_eq!(parse(status), Some((2, 6)));
        for bad in [&b""[..], b"Uid:\t1\t2\n", b"Uid:\tx\ty\nGid:\t1\t2\n", b"Uid:\nGid:\n"] {
            assert_eq!(parse(bad), None, "{}", bad.escape_ascii());
        }
        let own = std::fs::read(std::ffi::OsStr::new("/proc/self/status")).unwrap();
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        assert_eq!(parse(&own), Some((uid.as_raw(), gid.as_raw())));
    }
}
