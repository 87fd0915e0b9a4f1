//! The private server once more, with TCP settings as in the published tables' OPT2.
//!
//! The kernel keeps TCP settings by network namespace. So both ends are put into one that is the
//! run's own: a second sshd, the link in front of it, and the subject's ssh, which enters the
//! namespace before it connects. All else is as with the first server: the same directory, the
//! loopback interface, the same link.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use sandbox::link::{Link, LinkOptions};
use sandbox::network::Network;
use sandbox::sshd::{Options, Sshd};

use crate::executor::find_program;
use crate::results::Wire;

use super::{ALIAS, options_with, wire_of, with_cipher, write_config};

/// The settings: buffers that are larger than those of any distribution, from the start and at
/// most, and what makes use of them switched on.
const SETTINGS: [(&str, &str); 5] = [
    ("net/ipv4/tcp_rmem", "4096 1048576 67108864"),
    ("net/ipv4/tcp_wmem", "4096 1048576 67108864"),
    ("net/ipv4/tcp_window_scaling", "1"),
    ("net/ipv4/tcp_timestamps", "1"),
    ("net/ipv4/tcp_sack", "1"),
];

/// A server with other TCP settings, and the way to it. Fields are dropped in their order.
pub(crate) struct Tuned {
    link: Option<Link>,
    sshd: Sshd,
    options: Vec<OsString>,
    ssh: OsString,
    _network: Network,
}

impl Tuned {
    /// Starts it, with such a link in front of it.
    pub(super) fn start(link: Option<LinkOptions>, settings: Vec<String>) -> io::Result<Tuned> {
        let ssh = find_program("ssh").ok_or_else(|| io::Error::other("there is no ssh"))?;
        let network = Network::start(&SETTINGS)?;
        let prefix = network.words();
        let mut words = prefix.clone();
        words.push(ssh.into());
        let alias = ALIAS.to_owned();
        let sshd = Sshd::start(Options { alias, settings, prefix, ..Options::default() })?;
        let target = ([127, 0, 0, 1], sshd.port()).into();
        let start = || link.map(|options| Link::start(target, options)).transpose();
        let link = network.within(start)??;
        let config = sshd.dir().join("ssh_config_tuned");
        let port = link.as_ref().map_or(sshd.port(), Link::port);
        write_config(&config, &sshd.config_path(), [port; 2])
            .map_err(|failure| io::Error::other(failure.to_string()))?;
        let ssh = write_command(&sshd.dir().join("ssh"), &words)?;
        Ok(Tuned { link, sshd, options: options_with(Some(&config)), ssh, _network: network })
    }

    /// As [`super::Server::ssh_options`], for its own sshd.
    pub(crate) fn ssh_options(&self, cipher: Option<&str>) -> Vec<OsString> {
        with_cipher(&self.options, cipher)
    }

    /// An `ssh` that reaches it, as the option `ssh_command` of sshfs has it.
    pub(crate) fn ssh_command(&self) -> &OsString {
        &self.ssh
    }

    /// Bytes through its link.
    pub(super) fn wire(&self) -> Option<Wire> {
        wire_of(self.link.iter())
    }

    /// Of its sshd.
    pub(super) fn pid(&self) -> Option<u32> {
        self.sshd.pid()
    }
}

/// Writes a program that runs these words with its own arguments behind them. It has the name
/// `ssh`, by which programs know what options it takes. Its path, as an option has it.
fn write_command(path: &Path, words: &[OsString]) -> io::Result<OsString> {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let words = shlex::try_join(words.iter().map(AsRef::as_ref)).map_err(io::Error::other)?;
    sandbox::write_program(path, format!("#!/bin/sh\nexec {words} \"$@\"\n"))?;
    fs::set_permissions(path, Permissions::from_mode(0o700))?;
    Ok(path.to_string_lossy().replace(' ', "\\ ").into())
}
