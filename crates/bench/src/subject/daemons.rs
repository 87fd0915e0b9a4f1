//! The daemons of programs that copy without ssh: that of rsync, and vsftpd for lftp.
//!
//! The daemons are started beside the private sshd, each behind a link of its own that is like the
//! server's. A secret that is made for the session keeps other users of this machine out.
//!
//! vsftpd runs as the user of the bench and changes neither user nor root directory, so that it
//! works without root and without any of the system's configuration. Each file has a connection of
//! its own, to a port that the daemon names. With a simulated link that is always the same port,
//! and a second link, with delay and rate of its own, leads to it.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use sandbox::link::Link;
use sandbox::{random_word, write_private};

use crate::executor::{Background, Executor};
use crate::failure::{Failure, Result};
use crate::quoting::joined;
use crate::server::Server;

use super::programs::VSFTPD;

/// Longest time for a daemon to listen.
const LISTEN_LIMIT: Duration = Duration::from_secs(10);

/// Longest time for a daemon to end.
pub(super) const END_LIMIT: Duration = Duration::from_secs(5);

/// Interval of the attempts to connect to it.
const LOOK: Duration = Duration::from_millis(20);

/// Where daemons listen to whose ports a link leads: the link itself is at 127.0.0.1.
const BEHIND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// The name of the user of rsync's daemon, and of its one module.
const BENCH: &str = "bench";

/// A daemon that listens, the links to it, and variables for the script of its client.
pub(super) struct Daemon {
    pub(super) process: Background,
    pub(super) links: [Option<Link>; 2],
    pub(super) variables: Vec<(&'static str, String)>,
}

/// Starts a daemon for the directory of a server; the second one is for its configuration.
pub(super) type StartDaemon = fn(&Server, &Path, &Executor) -> Result<Daemon>;

/// Starts a daemon and the link to it; `command` receives its address and port, which was free a
/// moment ago. Returns the port of 127.0.0.1 that clients connect to.
pub(super) fn start(
    server: &Server,
    executor: &Executor,
    command: impl FnOnce(SocketAddr) -> Result<Command>,
) -> Result<(Background, Option<Link>, u16)> {
    let options = server.link_options();
    let address = if options.is_some() { BEHIND } else { Ipv4Addr::LOCALHOST };
    let own = TcpListener::bind((address, 0))?.local_addr()?;
    let daemon = executor.spawn(command(own)?)?;
    let deadline = Instant::now() + LISTEN_LIMIT;
    while TcpStream::connect(own).is_err() {
        if !daemon.is_running() {
            let words = daemon.words();
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
    let link = options.map(|options| Link::start(own, options)).transpose()?;
    let port = link.as_ref().map_or(own.port(), Link::port);
    Ok((daemon, link, port))
}

pub(super) fn root(server: &Server) -> Result<PathBuf> {
    server.storage().local().ok_or_else(|| Failure::failed("not private"))
}

/// Starts rsync's daemon.
pub(super) fn rsyncd(server: &Server, scratch: &Path, executor: &Executor) -> Result<Daemon> {
    let (root, scratch) = (root(server)?, scratch.canonicalize()?);
    let password = random_word()?;
    let secrets = scratch.join("secrets");
    write_private(&secrets, format!("{BENCH}:{password}\n").as_bytes())?;
    let is_root = rustix::process::geteuid().is_root();
    let (process, link, port) = start(server, executor, |own| {
        let file = scratch.join("rsyncd.conf");
        write_private(&file, rsyncd_conf(own, &root, &secrets, is_root).as_encoded_bytes())?;
        let mut command = Command::new("rsync");
        command.args(["--daemon", "--no-detach", "--config"]).arg(file).current_dir("/");
        Ok(command)
    })?;
    let variables = vec![("PORT", port.to_string()), ("RSYNC_PASSWORD", password)];
    Ok(Daemon { process, links: [link, None], variables })
}

/// `rsyncd.conf`. Links are kept as they are, which a daemon without `chroot` does not do by
/// itself; without `use chroot = no` it needs root.
fn rsyncd_conf(own: SocketAddr, root: &Path, secrets: &Path, is_root: bool) -> OsString {
    let identity = if is_root { "uid = 0\ngid = 0\n" } else { "" };
    let head = format!(
        "address = {}\nport = {}\nlog file = /dev/null\nreverse lookup = no\n\
         [{BENCH}]\nread only = no\nuse chroot = no\nmunge symlinks = no\n\
         auth users = {BENCH}\n{identity}",
        own.ip(),
        own.port()
    );
    with_paths(head, " = ", &[("path", root), ("secrets file", secrets)])
}

/// Settings, and behind them some whose values are paths.
fn with_paths(head: String, between: &str, paths: &[(&str, &Path)]) -> OsString {
    let mut text = OsString::from(head);
    for (key, path) in paths {
        text.push(joined(&[key.as_ref(), between.as_ref(), path.as_ref(), "\n".as_ref()]));
    }
    text
}

/// Starts vsftpd.
pub(super) fn ftp(server: &Server, scratch: &Path, executor: &Executor) -> Result<Daemon> {
    let program = VSFTPD.find().ok_or_else(|| Failure::failed("vsftpd is gone"))?;
    let (root, scratch) = (root(server)?, scratch.canonicalize()?);
    let password = random_word()?;
    let passwords = scratch.join("passwords");
    write_private(&passwords, format!("{password}\n").as_bytes())?;
    fs::create_dir(scratch.join("empty"))?;
    // A link at a port to the same port of the daemon, which names it to its clients. The target is
    // known with the port.
    let data = server.link_options().map(|options| Link::start((BEHIND, 0).into(), options));
    let data = data.transpose()?;
    if let Some(link) = &data {
        link.set_target((BEHIND, link.port()).into());
    }
    let (process, link, port) = start(server, executor, |own| {
        let file = scratch.join("vsftpd.conf");
        let data_port = data.as_ref().map(Link::port);
        let text = vsftpd_conf(own, data_port, &root, &passwords, &scratch.join("empty"));
        write_private(&file, text.as_encoded_bytes())?;
        let mut command = Command::new(program);
        command.arg(file).current_dir("/");
        Ok(command)
    })?;
    let variables = vec![("PORT", port.to_string()), ("PASSWORD", password)];
    Ok(Daemon { process, links: [link, data], variables })
}

/// `vsftpd.conf`. The anonymous user is the user of the daemon, with the password in place of a
/// mail address. With a `data_port` that is the one port of data connections, to be reached at
/// 127.0.0.1.
fn vsftpd_conf(
    own: SocketAddr,
    data_port: Option<u16>,
    root: &Path,
    passwords: &Path,
    empty: &Path,
) -> OsString {
    let mut settings = format!(
        "listen=YES\nlisten_address={}\nlisten_port={}\nbackground=NO\n\
         run_as_launching_user=YES\nseccomp_sandbox=NO\nisolate=NO\nisolate_network=NO\n\
         local_enable=NO\nanonymous_enable=YES\nsecure_email_list_enable=YES\n\
         write_enable=YES\nanon_upload_enable=YES\nanon_mkdir_write_enable=YES\n\
         anon_other_write_enable=YES\nanon_world_readable_only=NO\nanon_umask=022\n\
         connect_from_port_20=NO\nxferlog_enable=NO\nidle_session_timeout=3600\n",
        own.ip(),
        own.port()
    );
    if let Some(port) = data_port {
        settings += &format!("pasv_min_port={port}\npasv_max_port={port}\n");
        settings += "pasv_address=127.0.0.1\n";
    }
    let paths =
        [("anon_root", root), ("email_password_file", passwords), ("secure_chroot_dir", empty)];
    with_paths(settings, "=", &paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_names_directory_and_user() {
        let text =
            rsyncd_conf(([127, 0, 0, 2], 873).into(), "/srv/x y".as_ref(), "/s".as_ref(), true);
        let text = text.to_str().unwrap();
        for line in [
            "address = 127.0.0.2",
            "port = 873",
            "[bench]",
            "uid = 0",
            "path = /srv/x y",
            "secrets file = /s",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in {text}");
        }
        let unprivileged =
            rsyncd_conf(([127, 0, 0, 2], 873).into(), "/srv".as_ref(), "/s".as_ref(), false);
        assert!(!unprivileged.to_str().unwrap().contains("uid"));
    }
}
