//! What `ssh -vv` reports about a login: the server's version, its offer, and the chosen cipher.

use std::process::Command;
use std::time::Duration;

use crate::executor::Executor;
use crate::failure::{Failure, Result};

/// Longest time for one login.
const LOGIN_LIMIT: Duration = Duration::from_secs(60);

/// One negotiated connection. The offers are those of the server, for data sent to the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Handshake {
    /// `OpenSSH_9.2p1 Debian-2`. Printable.
    pub(crate) version: String,
    /// The cipher that was chosen for data from the server to the client.
    pub(crate) cipher: String,
    /// In the server's order of preference.
    pub(crate) ciphers: Vec<String>,
    /// `none`, `zlib@openssh.com`.
    pub(crate) compression: Vec<String>,
}

impl Handshake {
    /// Logs in once with an `ssh HOST` command.
    pub(crate) fn of(mut ssh: Command, executor: &Executor) -> Result<Handshake> {
        // The offer is logged from -vv on.
        ssh.args(["-vv", "true"]);
        let log = executor.succeed(ssh, LOGIN_LIMIT)?.output.stderr;
        let handshake = Handshake::parse(&String::from_utf8_lossy(&log));
        if handshake.cipher.is_empty() {
            return Err(Failure::failed("ssh -vv does not report the cipher"));
        }
        Ok(handshake)
    }

    /// Reads ssh's log. The proposals of both sides have the same lines below their headings.
    pub(crate) fn parse(log: &str) -> Handshake {
        let list = |names: &str| names.split(',').map(str::to_owned).collect::<Vec<_>>();
        let mut handshake = Handshake::default();
        let mut of_server = false;
        for line in log.lines() {
            let Some((_, line)) = line.split_once(": ") else { continue };
            let line = line.trim_end();
            if let Some(chosen) = line.strip_prefix("kex: server->client cipher: ") {
                chosen.split(' ').next().unwrap_or_default().clone_into(&mut handshake.cipher);
            } else if let Some((_, version)) = line.split_once("remote software version ") {
                handshake.version = version.escape_debug().to_string();
            } else if line.ends_with("KEXINIT proposal") {
                of_server = line.starts_with("peer server");
            } else if of_server && let Some(names) = line.strip_prefix("ciphers stoc: ") {
                handshake.ciphers = list(names);
            } else if of_server && let Some(names) = line.strip_prefix("compression stoc: ") {
                handshake.compression = list(names);
            }
        }
        handshake
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offer_is_that_of_the_server_and_not_of_the_client() {
        let log = "debug1: Remote protocol version 2.0, remote software version Op\u{7}en\r\n\
            debug2: local client KEXINIT proposal\r\ndebug2: ciphers stoc: mine\r\n\
            debug2: peer server KEXINIT proposal\r\ndebug2: KEX algorithms: x\r\n\
            debug2: ciphers ctos: up\r\ndebug2: ciphers stoc: a,b\r\ndebug2: MACs stoc: m\r\n\
            debug2: compression stoc: none,zlib@openssh.com\r\n\
            debug1: kex: server->client cipher: b MAC: <implicit> compression: none\r\n\
            debug1: kex: client->server cipher: c MAC: umac-64@openssh.com compression: none\r\n";
        let list = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let expected = Handshake {
            version: "Op\\u{7}en".into(),
            cipher: "b".into(),
            ciphers: list(&["a", "b"]),
            compression: list(&["none", "zlib@openssh.com"]),
        };
        assert_eq!(Handshake::parse(log), expected);
        assert_eq!(Handshake::parse("Permission denied (publickey)."), Handshake::default());
    }
}
