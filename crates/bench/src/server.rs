//! The server: a private sshd on this machine, or a real host.
//!
//! A private server is OpenSSH's sshd with its defaults (`MaxStartups` too: of more than ten logins
//! at a time some may be refused, as at any server), in front of it the link. Its directory is in
//! the run's scratch directory, so that workloads lay out their data without ssh.
//!
//! Invariants:
//! 1. No ssh of a run asks for a password, and none shares a connection with another
//!    (`BatchMode`, `ControlPath none`): each subject pays for its own.
//! 2. When a [`Server`] is dropped, its directory on a host is removed, its sshd and all that it
//!    started are dead, and its link is closed.

mod handshake;
mod tuned;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use sandbox::link::{Link, LinkOptions};
use sandbox::sshd::{Options, Sshd};

use crate::account;
use crate::executor::Executor;
use crate::failure::{Failure, Result};
use crate::link::{self, LinkSpec};
use crate::quoting::shown;
use crate::results::{LeftOut, LinkReport, Usage, Wire};
use crate::step::ServerMeter;
use crate::storage::{Directory, Storage};

pub(crate) use handshake::Handshake;
pub(crate) use tuned::Tuned;

/// The private server's name in its configuration.
const ALIAS: &str = "bench-server";

/// The same by a second way: a link of its own.
const SECOND: &str = "bench-server-2";

/// Where a run's directory on a host is made, unless the user names another one.
const HOST_DIRECTORY: &str = "/tmp";

/// A server and the directory on it in which the run may write. Dropping it ends it.
pub struct Server {
    /// `None` for a host.
    private: Option<Private>,
    destination: String,
    options: Vec<OsString>,
    storage: Directory,
    link_report: LinkReport,
}

/// Fields are dropped in their order: the links before the server to which they lead.
struct Private {
    links: [Option<Link>; 2],
    direct: Option<DirectLink>,
    sshd: Sshd,
    /// The second server, or why there is none, once a subject needs it.
    tuned: OnceLock<Result<Tuned, String>>,
    link: Option<LinkOptions>,
    /// Lines of `sshd_config`.
    settings: Vec<String>,
}

impl Private {
    /// The server with other TCP settings, if a subject has needed it.
    fn started_tuned(&self) -> Option<&Tuned> {
        self.tuned.get()?.as_ref().ok()
    }
}

/// The link for connections that do not go through ssh, to one port of the server.
struct DirectLink {
    link: Link,
    port: u16,
}

impl DirectLink {
    fn start(options: LinkOptions) -> io::Result<DirectLink> {
        // Free again when this returns: the server listens there for each session anew.
        let target = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?;
        Ok(DirectLink { link: Link::start(target, options)?, port: target.port() })
    }
}

impl Server {
    /// A private server on this machine, with a link in front of it unless that is `loopback`, and
    /// these lines of `sshd_config`. Its directory is in `scratch`, which has to be an absolute
    /// path. The link is measured on the way: a second or two.
    ///
    /// # Errors
    /// When sshd cannot be started, or refuses a line; its words are in the failure.
    pub fn private(link: &LinkSpec, settings: Vec<String>, scratch: &Path) -> Result<Server> {
        let root = scratch.join("server");
        fs::create_dir(&root)
            .map_err(|error| Failure::failed(format!("cannot make {}: {error}", shown(&root))))?;
        let alias = ALIAS.to_owned();
        let options = Options { alias, settings: settings.clone(), ..Options::default() };
        let sshd = Sshd::start(options).map_err(|error| {
            let hint = "it needs openssh-server and openssh-client";
            Failure::failed(format!("cannot start a private sshd: {error} ({hint})"))
        })?;
        let (forwarder, figures) = link::through_tcp(link.options())?;
        if let Some(forwarder) = &forwarder {
            forwarder.set_target(([127, 0, 0, 1], sshd.port()).into());
        }
        let target = ([127, 0, 0, 1], sshd.port()).into();
        let second = link.options().map(|options| Link::start(target, options)).transpose()?;
        let direct = link.options().map(DirectLink::start).transpose()?;
        let links = [forwarder, second];
        let ports = links.each_ref().map(|it| it.as_ref().map_or(sshd.port(), Link::port));
        let config = scratch.join("ssh_config");
        write_config(&config, &sshd.config_path(), ports)?;
        let (options, tuned) = (link.options(), OnceLock::new());
        Ok(Server {
            private: Some(Private { links, direct, sshd, tuned, link: options, settings }),
            destination: ALIAS.to_owned(),
            options: options_with(Some(&config)),
            storage: Directory::new("server", root),
            link_report: link.report(figures),
        })
    }

    /// The same, with errands to its directory that end when this executor is interrupted. A host's
    /// do so anyway.
    pub fn with_executor(mut self, executor: &Executor) -> Server {
        self.storage = self.storage.clone().with_executor(executor);
        self
    }

    /// A real host, as the user's ssh knows it. The run's directory is made below `directory`,
    /// which is there, or below `/tmp`, and is removed with this. ssh over the link is measured on
    /// the way: some seconds.
    ///
    /// # Errors
    /// In ssh's own words; also when the run was interrupted.
    pub fn host(
        destination: &str,
        directory: Option<&str>,
        ssh_config: Option<&Path>,
        port: Option<u16>,
        executor: &Executor,
    ) -> Result<Server> {
        if destination.is_empty() || destination.starts_with('-') {
            return Err(Failure::failed(format!("'{}' is no host", shown(destination))));
        }
        let mut options = options_with(ssh_config);
        options.extend(port.into_iter().flat_map(|it| ["-o".into(), format!("Port={it}").into()]));
        let words = [&["ssh".into()], &options[..], &[destination.into()]].concat();
        let parent = directory.unwrap_or(HOST_DIRECTORY);
        let mut server = Server {
            private: None,
            destination: destination.to_owned(),
            options,
            storage: Directory::make_remote("server", words, parent, executor)?,
            link_report: LinkReport { name: format!("host {destination}"), ..Default::default() },
        };
        let figures = link::through_ssh(|| server.ssh(None))?;
        server.link_report.measured_rtt_us = Some(figures.rtt_us);
        server.link_report.measured_bytes_per_s = Some(figures.bytes_per_s);
        Ok(server)
    }

    /// An `ssh` with all options and the host, ready for the remote command.
    pub fn ssh(&self, cipher: Option<&str>) -> Command {
        let mut command = Command::new("ssh");
        command.args(self.ssh_options(cipher)).arg(&self.destination);
        command
    }

    /// `-F FILE -o KEY=VALUE …`, as ssh, scp and sftp take them. Each is a word of its own, which
    /// may have spaces in it.
    pub fn ssh_options(&self, cipher: Option<&str>) -> Vec<OsString> {
        with_cipher(&self.options, cipher)
    }

    /// The host as scp, sshfs and rsync want it.
    pub fn destination(&self) -> &str {
        &self.destination
    }

    /// The name of the same machine over a second link that is as fast as the first; `None` for a
    /// host.
    pub fn second_destination(&self) -> Option<&str> {
        self.is_private().then_some(SECOND)
    }

    /// The same server with other TCP settings, for `subject`. It is started by the first call.
    ///
    /// # Errors
    /// Why there is none here.
    pub(crate) fn tuned(&self, subject: &str) -> Result<&Tuned, LeftOut> {
        let left_out = |why: &str, remedy: &str| LeftOut::new(subject, why).with_remedy(remedy);
        let Some(Private { tuned, link, settings, .. }) = &self.private else {
            let why = "the TCP settings of a host are not changed";
            return Err(left_out(why, "set them on both machines and measure sshfs:opt1"));
        };
        if !rustix::process::geteuid().is_root() {
            let why = "TCP settings of its own need a network namespace, and that needs root";
            return Err(left_out(why, "run the bench as root"));
        }
        let start = || Tuned::start(*link, settings.clone()).map_err(|error| error.to_string());
        tuned.get_or_init(start).as_ref().map_err(|error| {
            let remedy = "it needs unshare, nsenter, ip (util-linux, iproute2); in a container, \
                          the capability CAP_SYS_ADMIN";
            left_out(&format!("no network namespace with other TCP settings: {error}"), remedy)
        })
    }

    /// The directory on it.
    pub fn storage(&self) -> &dyn Storage {
        &self.storage
    }

    /// The link as it was asked for and measured. Of a host it is ssh over the link that was
    /// measured: the round trip of a byte through `ssh HOST cat`, and what
    /// `ssh HOST 'cat /dev/zero'` brings.
    pub fn link_report(&self) -> LinkReport {
        self.link_report.clone()
    }

    /// The simulated link, for another program beside the server.
    pub(crate) fn link_options(&self) -> Option<LinkOptions> {
        self.private.as_ref()?.link
    }

    /// Mount options for direct connections over a link that is as fast as the first.
    pub(crate) fn direct_options(&self) -> Vec<String> {
        let direct = self.private.as_ref().and_then(|private| private.direct.as_ref());
        let options = direct.map(|DirectLink { link, port }| {
            [format!("direct_ports={port}"), format!("direct_address=127.0.0.1:{}", link.port())]
        });
        options.into_iter().flatten().collect()
    }

    /// Whether it is a private one, on this machine.
    pub fn is_private(&self) -> bool {
        self.private.is_some()
    }

    /// What ssh would do, as `ssh -G` prints it.
    pub(crate) fn settings(&self, executor: &Executor) -> Result<String> {
        let words = [vec!["-G".into()], self.ssh_options(None), vec![(&self.destination).into()]];
        query_ssh(&words.concat(), executor)
    }

    /// Where it is, by `ssh -G`.
    ///
    /// # Errors
    /// In ssh's own words.
    pub fn endpoint(&self, executor: &Executor) -> Result<Endpoint> {
        let mut endpoint = parse(&self.settings(executor)?, std::env::var_os("HOME"))
            .ok_or_else(|| Failure::failed("what ssh -G says is not understood"))?;
        endpoint.keys.retain(|path| path.exists());
        endpoint.known_hosts.retain(|path| path.exists());
        Ok(endpoint)
    }
}

/// Bytes through all links together; nothing is known of a host.
impl ServerMeter for Server {
    fn pids(&self) -> Vec<u32> {
        let Some(private) = &self.private else { return Vec::new() };
        let tuned = private.started_tuned().and_then(Tuned::pid);
        private.sshd.pid().into_iter().chain(tuned).collect()
    }

    fn usage(&self) -> Option<Usage> {
        let pids = self.pids();
        (!pids.is_empty()).then(|| account::tree_usage(&pids))
    }

    fn wire(&self) -> Option<Wire> {
        let Private { links, direct, .. } = self.private.as_ref()?;
        let links = links.iter().flatten().chain(direct.iter().map(|it| &it.link));
        let tuned = self.private.as_ref()?.started_tuned().and_then(Tuned::wire);
        wire_of(links).into_iter().chain(tuned).reduce(Wire::plus)
    }

    fn second_link(&self) -> Option<&Link> {
        self.private.as_ref()?.links[1].as_ref()
    }
}

/// Bytes through some links together; `None` where there is no link.
pub(crate) fn wire_of<'a>(links: impl Iterator<Item = &'a Link>) -> Option<Wire> {
    let wires = links.map(|link| Wire {
        to_server_bytes: link.bytes_to_target(),
        from_server_bytes: link.bytes_from_target(),
    });
    wires.reduce(Wire::plus)
}

impl Drop for Server {
    fn drop(&mut self) {
        // That of a private one goes with the scratch directory.
        if !self.is_private() {
            self.storage.remove_root();
        }
    }
}

/// The line of `sshd_config` with which a server offers all ciphers that the OpenSSH of this
/// machine has, CBC included. By default it offers none of CBC.
///
/// # Errors
/// Those of `ssh -Q cipher`.
pub fn all_ciphers(executor: &Executor) -> Result<String> {
    let ciphers = query_ssh(&["-Q", "cipher"], executor)?;
    Ok(format!("Ciphers +{}", ciphers.split_whitespace().collect::<Vec<_>>().join(",")))
}

/// What `ssh -G` or `ssh -Q` prints.
pub(crate) fn query_ssh(words: &[impl AsRef<OsStr>], executor: &Executor) -> Result<String> {
    let mut ssh = Command::new("ssh");
    ssh.args(words);
    let printed = executor.succeed(ssh, LIMIT)?.output.stdout;
    Ok(String::from_utf8_lossy(&printed).into_owned())
}

/// Options of all ssh programs of a run.
fn options_with(config: Option<&Path>) -> Vec<OsString> {
    let mut options: Vec<OsString> = Vec::new();
    if let Some(config) = config {
        options.extend(["-F".into(), config.into()]);
    }
    for option in ["BatchMode=yes", "ControlMaster=no", "ControlPath=none"] {
        options.extend(["-o".into(), option.into()]);
    }
    options
}

fn with_cipher(options: &[OsString], cipher: Option<&str>) -> Vec<OsString> {
    let mut options = options.to_vec();
    if let Some(cipher) = cipher {
        options.extend(["-o".into(), format!("Ciphers={cipher}").into()]);
    }
    options
}

/// A configuration that differs from the server's own in the ports, of which ssh takes the first
/// that it sees, and has another name for the second of them.
fn write_config(path: &Path, of_server: &Path, ports: [u16; 2]) -> Result<()> {
    let names = format!("Host {ALIAS} {SECOND}\n");
    let own = fs::read_to_string(of_server)?.replacen(&format!("Host {ALIAS}\n"), &names, 1);
    let [first, second] = ports;
    let text = format!("Host {ALIAS}\nPort {first}\nHost {SECOND}\nPort {second}\n{own}");
    fs::write(path, text).map_err(Failure::from)
}

/// It only reads files.
const LIMIT: Duration = Duration::from_secs(30);

/// Where the server is, for programs that bring an ssh of their own (rclone).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// Address or name to connect to.
    pub address: String,
    /// Of TCP; of the link, where there is one.
    pub port: u16,
    /// Who logs in.
    pub user: String,
    /// Private keys that exist.
    pub keys: Vec<PathBuf>,
    /// Files of known hosts that exist.
    pub known_hosts: Vec<PathBuf>,
    /// The name under which those know the host.
    pub known_as: String,
}

/// Lines `keyword value`, keywords in small letters (ssh(1), -G).
fn parse(text: &str, home: Option<OsString>) -> Option<Endpoint> {
    let path = |text: &str| match (text.strip_prefix("~/"), &home) {
        (Some(rest), Some(home)) => PathBuf::from(home).join(rest),
        _ => PathBuf::from(text),
    };
    let mut endpoint = Endpoint::default();
    let mut alias = None;
    for (keyword, value) in text.lines().filter_map(|line| line.split_once(' ')) {
        match keyword {
            "hostname" => value.clone_into(&mut endpoint.address),
            "port" => endpoint.port = value.parse().ok()?,
            "user" => value.clone_into(&mut endpoint.user),
            "identityfile" => endpoint.keys.push(path(value)),
            "userknownhostsfile" | "globalknownhostsfile" => {
                endpoint.known_hosts.extend(value.split(' ').map(path));
            }
            "hostkeyalias" => alias = Some(value.to_owned()),
            _ => (),
        }
    }
    endpoint.known_as = alias.unwrap_or_else(|| endpoint.address.clone());
    let known = !endpoint.address.is_empty() && endpoint.port != 0 && !endpoint.user.is_empty();
    known.then_some(endpoint)
}

#[cfg(test)]
mod tests;
