//! Daemons of other protocols beside the private sshd: a port, the same link in front of it, and
//! a secret, against other users of this machine.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use sandbox::link::{Link, LinkOptions};

use crate::executor::{Background, Executor};
use crate::failure::Failure;
use crate::results::{LeftOut, LinkReport};
use crate::server::Server;
use crate::subject::{Access, Copier, Session};

/// Longest time for a daemon to listen.
const LISTEN_LIMIT: Duration = Duration::from_secs(10);

/// Longest time for a daemon to end.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Interval of the attempts to connect to it.
const LOOK: Duration = Duration::from_millis(20);

/// Where daemons listen to whose ports a link leads: the link itself is at 127.0.0.1.
pub(super) const BEHIND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A daemon that listens, and the link to it. Dropping it ends both.
pub(super) struct Daemon {
    process: Background,
    /// Of 127.0.0.1: where clients connect to.
    port: u16,
    _link: Option<Link>,
}

impl Daemon {
    /// Starts a daemon; `command` receives its address and port, which was free a moment ago.
    pub(super) fn start(
        server: &Server,
        executor: &Executor,
        command: impl FnOnce(SocketAddr) -> Result<Command, Failure>,
    ) -> Result<Daemon, Failure> {
        let options = options(&server.link_report());
        let address = if options.is_some() { BEHIND } else { Ipv4Addr::LOCALHOST };
        let own = TcpListener::bind((address, 0))?.local_addr()?;
        let process = executor.spawn(command(own)?)?;
        wait_until_listening(&process, own, executor)?;
        let link = options.map(|options| Link::start(own, options)).transpose()?;
        let port = link.as_ref().map_or(own.port(), Link::port);
        Ok(Daemon { process, port, _link: link })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// `None` when it has ended.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.is_running().then(|| self.process.pid())
    }

    /// Ends it in order.
    pub(super) fn stop(&mut self) {
        self.process.stop(END_LIMIT);
    }
}

/// A program that copies, and the daemon to which it does. It keeps nothing between two copies.
pub(super) struct DaemonSession<C> {
    pub(super) daemon: Daemon,
    /// To a second port of it.
    pub(super) _data: Option<Link>,
    pub(super) copier: C,
}

impl<C: Copier> Session for DaemonSession<C> {
    fn access(&self) -> Access<'_> {
        Access::Copier(&self.copier)
    }

    fn server_pids(&self) -> Vec<u32> {
        self.daemon.pid().into_iter().collect()
    }

    fn forget(&mut self, _: &Executor) -> Result<bool, Failure> {
        Ok(true)
    }

    fn stop(&mut self, _: &Executor) -> Result<(), Failure> {
        self.daemon.stop();
        Ok(())
    }

    fn abandon(&mut self) {
        self.daemon.stop();
    }
}

/// A link at a port to the same port of [`BEHIND`], for a protocol that names ports to its
/// clients; `None` where there is nothing between them.
pub(super) fn same_port(server: &Server) -> Result<Option<Link>, Failure> {
    let Some(options) = options(&server.link_report()) else { return Ok(None) };
    // The target is known with the port.
    let link = Link::start((BEHIND, 0).into(), options)?;
    link.set_target((BEHIND, link.port()).into());
    Ok(Some(link))
}

fn wait_until_listening(
    process: &Background,
    address: SocketAddr,
    executor: &Executor,
) -> Result<(), Failure> {
    let deadline = Instant::now() + LISTEN_LIMIT;
    while TcpStream::connect(address).is_err() {
        if !process.is_running() {
            let words = process.words();
            return Err(Failure::failed(format!("the daemon ended at once: {}", words.trim())));
        }
        if executor.is_interrupted() {
            return Err(Failure::Interrupted);
        }
        if Instant::now() >= deadline {
            return Err(Failure::timed_out(LISTEN_LIMIT));
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

/// The link that was asked for, if it adds anything.
pub(super) fn options(report: &LinkReport) -> Option<LinkOptions> {
    let rtt = report.asked_rtt_us.map(|us| Duration::from_secs_f64(us.max(0.0) / 1e6));
    // A rate is a whole number of bytes far below 2^53.
    let rate = report.asked_bytes_per_s.map(|rate| rate as u64);
    if rtt.unwrap_or_default().is_zero() && rate.is_none() {
        return None;
    }
    Some(LinkOptions { rtt: rtt.unwrap_or_default(), rate_bytes_per_s: rate })
}

/// Daemons are started for the private server only.
pub(super) fn require_private(name: &str, server: &Server) -> Result<(), LeftOut> {
    if server.is_private() {
        return Ok(());
    }
    Err(LeftOut {
        name: name.to_owned(),
        why: "it needs a daemon on the server, and the bench starts nothing but ssh on a host"
            .to_owned(),
        remedy: Some("measure it without --host".to_owned()),
    })
}

/// A password that lives as long as a session.
pub(super) fn secret() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Writes a file that only this user may read.
pub(super) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_put_in_front_where_one_was_asked_for() {
        let report = LinkReport::default();
        assert_eq!(options(&report), None);
        assert_eq!(options(&LinkReport { asked_rtt_us: Some(0.0), ..report.clone() }), None);
        let lan = LinkReport {
            asked_rtt_us: Some(500.0),
            asked_bytes_per_s: Some(125e6),
            ..LinkReport::default()
        };
        let wanted =
            LinkOptions { rtt: Duration::from_micros(500), rate_bytes_per_s: Some(125_000_000) };
        assert_eq!(options(&lan), Some(wanted));
    }

    #[test]
    fn secrets_differ_and_are_kept() {
        use std::os::unix::fs::PermissionsExt;
        let (one, other) = (secret().unwrap(), secret().unwrap());
        assert_eq!(one.len(), 32);
        assert_ne!(one, other);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        write_private(&path, one.as_bytes()).unwrap();
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
