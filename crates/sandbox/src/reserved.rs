//! Connections from ports that only root can have. A server that takes no others, as NFS servers
//! do, is closed to the other users of the machine.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

/// The first port that is for everybody.
const UNRESERVED: u16 = 1024;

/// The lowest port that is tried; the well-known services are below.
const LOWEST: u16 = 512;

/// Whether only root can have this port.
pub(crate) fn is_reserved(port: u16) -> bool {
    port < UNRESERVED
}

/// Connects to an address of the loopback interface from a reserved port.
///
/// # Errors
/// Those of connect(2); `EACCES` when this process may not have such a port.
pub fn connect_reserved(to: SocketAddr) -> io::Result<TcpStream> {
    // Ports of connections that have ended a minute ago are busy, too.
    for port in (LOWEST..UNRESERVED).rev() {
        let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        match bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, port))) {
            Err(Errno::ADDRINUSE) => continue,
            bound => bound?,
        }
        connect(&socket, &to)?;
        return Ok(socket.into());
    }
    Err(Errno::ADDRINUSE.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_port_of_the_client_is_reserved() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connected = connect_reserved(listener.local_addr().unwrap());
        if !rustix::process::geteuid().is_root() {
            assert_eq!(connected.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            return;
        }
        let _client = connected.unwrap();
        assert!(is_reserved(listener.accept().unwrap().1.port()));
        // The next one has another port.
        let _other = connect_reserved(listener.local_addr().unwrap()).unwrap();
    }
}
