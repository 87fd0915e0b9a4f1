//! Notifies systemd (sd_notify(3)) for units of `Type=notify`.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Reports that the mount is ready, and its process id. Does nothing outside of such a unit.
///
/// A failure is only logged: the mount works without it, and systemd reports a time-out.
pub fn notify_ready() {
    let Some(socket) = env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else {
        return;
    };
    if let Err(error) = notify(&socket, &format!("READY=1\nMAINPID={}", std::process::id())) {
        tracing::warn!("cannot notify systemd that the mount is ready: {error}");
    }
}

/// A leading `@` denotes a name in the abstract namespace.
fn notify(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 100];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn a_path_and_an_abstract_name_are_reached() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        notify(path.as_os_str(), "READY=1").unwrap();
        assert_eq!(receive(&by_path), "READY=1");

        let name = format!("sshoal-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let by_name = UnixDatagram::bind_addr(&address).unwrap();
        notify(OsStr::new(&format!("@{name}")), "READY=1\nMAINPID=7").unwrap();
        assert_eq!(receive(&by_name), "READY=1\nMAINPID=7");
    }

    #[test]
    fn a_socket_without_a_listener_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(notify(dir.path().join("none").as_os_str(), "READY=1").is_err());
    }
}
