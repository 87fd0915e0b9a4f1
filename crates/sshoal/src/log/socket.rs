//! The sockets of the systemd journal and of syslog.
//!
//! A datagram is sent to the socket's path each time, so a service that was restarted gets the next
//! line. Neither the path, which is on a tmpfs, nor a full socket makes the sender wait.

use std::fmt;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::Level;

/// The name of the program in the log.
const IDENTIFIER: &str = "sshoal";

/// syslog's facility of daemons.
const FACILITY: u8 = 3;

/// Longest text in bytes. RFC 3164 limits a datagram of syslog to 1024.
const JOURNAL_MAX_BYTES: usize = 4096;
const SYSLOG_MAX_BYTES: usize = 960;

/// A service of the system that keeps logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Journal,
    Syslog,
}

impl Service {
    /// Its socket.
    pub fn path(self) -> &'static str {
        match self {
            Service::Journal => "/run/systemd/journal/socket",
            Service::Syslog => "/dev/log",
        }
    }
}

/// As in the option `log`.
impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Service::Journal => "journal",
            Service::Syslog => "syslog",
        })
    }
}

/// A socket of this process from which lines are sent to a service.
pub struct Socket {
    service: Service,
    path: &'static str,
    socket: UnixDatagram,
    /// Lines that could not be sent since the last one that could.
    dropped: AtomicU64,
}

impl Socket {
    /// Fails if the service does not exist.
    pub fn open(service: Service) -> io::Result<Socket> {
        Socket::to(service, service.path())
    }

    fn to(service: Service, path: &'static str) -> io::Result<Socket> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        // Checks that a service listens, without sending anything.
        UnixDatagram::unbound()?.connect(path)?;
        Ok(Socket { service, path, socket, dropped: AtomicU64::new(0) })
    }

    /// Sends a line; it is dropped and counted if that is not possible at once.
    pub fn send(&self, level: Level, text: &str, mountpoint: &str) {
        let dropped = self.dropped.load(Ordering::Relaxed);
        if dropped > 0 {
            let report = format!("{mountpoint}: lines that could not be logged: {dropped}");
            if self.try_send(Level::WARN, &report, mountpoint) {
                self.dropped.fetch_sub(dropped, Ordering::Relaxed);
            }
        }
        if !self.try_send(level, text, mountpoint) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn try_send(&self, level: Level, text: &str, mountpoint: &str) -> bool {
        let datagram = match self.service {
            Service::Journal => journal(level, text, mountpoint),
            Service::Syslog => syslog(level, text),
        };
        self.socket.send_to(datagram.as_bytes(), self.path).is_ok()
    }
}

/// A datagram of the journal's native protocol: a field a line. The texts have no line ends.
fn journal(level: Level, text: &str, mountpoint: &str) -> String {
    let (severity, pid) = (severity(level), std::process::id());
    let text = beginning(text, JOURNAL_MAX_BYTES);
    format!(
        "PRIORITY={severity}\nSYSLOG_FACILITY={FACILITY}\nSYSLOG_IDENTIFIER={IDENTIFIER}\n\
         SYSLOG_PID={pid}\nSSHOAL_MOUNT={mountpoint}\nMESSAGE={text}\n"
    )
}

/// A datagram of RFC 3164 without time and host, which the service on this machine adds.
fn syslog(level: Level, text: &str) -> String {
    let priority = FACILITY * 8 + severity(level);
    let (pid, text) = (std::process::id(), beginning(text, SYSLOG_MAX_BYTES));
    format!("<{priority}>{IDENTIFIER}[{pid}]: {text}")
}

/// syslog's number of a level.
fn severity(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// At most the first `max` bytes.
fn beginning(text: &str, max: usize) -> &str {
    let end = (0..=text.len().min(max)).rfind(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaked(path: std::path::PathBuf) -> &'static str {
        path.into_os_string().into_string().unwrap().leak()
    }

    fn received(service: &UnixDatagram) -> String {
        let mut buffer = [0; 8192];
        let read = service.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..read].to_vec()).unwrap()
    }

    #[test]
    fn a_line_has_its_level_and_a_bounded_length() {
        let pid = std::process::id();
        assert_eq!(syslog(Level::WARN, "/m: lost"), format!("<28>sshoal[{pid}]: /m: lost"));
        let long = "ä".repeat(JOURNAL_MAX_BYTES);
        assert!(syslog(Level::INFO, &long).len() <= 1024);
        let datagram = journal(Level::ERROR, &long, "/m");
        let lines: Vec<&str> = datagram.lines().collect();
        assert_eq!(lines[0], "PRIORITY=3");
        assert_eq!(lines[4], "SSHOAL_MOUNT=/m");
        assert_eq!(lines[5].len(), "MESSAGE=".len() + JOURNAL_MAX_BYTES);
        assert_eq!(lines.len(), 6);
    }

    #[test]
    fn a_full_or_dead_service_does_not_block_and_is_told_what_it_missed() {
        let dir = tempfile::tempdir().unwrap();
        let path = leaked(dir.path().join("log"));
        assert!(Socket::to(Service::Syslog, path).is_err(), "nothing listens");
        let service = UnixDatagram::bind(path).unwrap();
        let socket = Socket::to(Service::Syslog, path).unwrap();
        let mut sent = 0;
        while socket.dropped.load(Ordering::Relaxed) < 3 {
            socket.send(Level::WARN, "/m: lost", "/m");
            sent += 1;
            assert!(sent < 1_000_000, "the socket is never full");
        }
        for _ in 0..sent - 3 {
            assert!(received(&service).ends_with(": /m: lost"));
        }
        drop(service);
        std::fs::remove_file(path).unwrap();
        socket.send(Level::WARN, "/m: lost", "/m");
        let restarted = UnixDatagram::bind(path).unwrap();
        socket.send(Level::INFO, "/m: back", "/m");
        assert!(received(&restarted).ends_with("/m: lines that could not be logged: 4"));
        assert!(received(&restarted).ends_with("/m: back"));
    }
}
