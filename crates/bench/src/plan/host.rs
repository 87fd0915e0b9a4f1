//! A machine of the user's that is measured against, in place of a private server.

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// A machine that is measured against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// `[user@]host`, as for ssh.
    pub destination: String,
    /// Where the run's directory is made on it.
    pub directory: Option<String>,
    /// Configuration for ssh, instead of the user's.
    pub config: Option<PathBuf>,
    /// Of its sshd, where the configuration does not say.
    pub port: Option<u16>,
}

impl Host {
    /// `[user@]host[:dir]`; an IPv6 address stands in brackets.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn parse(text: &str) -> Result<Host, String> {
        let wrong = || format!("'{}' is no [user@]host[:dir]", text.escape_debug());
        let (user, rest) = match text.rsplit_once('@') {
            Some((user, rest)) => (Some(user), rest),
            None => (None, text),
        };
        let (host, tail) = match rest.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or_else(wrong)?,
            None => rest.split_at(rest.find(':').unwrap_or(rest.len())),
        };
        let directory = match tail.strip_prefix(':') {
            Some(directory) => Some(directory).filter(|directory| !directory.is_empty()),
            None if tail.is_empty() => None,
            None => return Err(wrong()),
        };
        // What begins with '-' would be an option of ssh.
        if host.is_empty() || user == Some("") || text.starts_with('-') || host.starts_with('-') {
            return Err(wrong());
        }
        let destination = user.map_or_else(|| host.to_owned(), |user| format!("{user}@{host}"));
        let directory = directory.map(str::to_owned);
        Ok(Host { destination, directory, config: None, port: None })
    }

    /// The configuration for ssh, in `scratch` if one has to be made: what ssh finds first wins,
    /// so the port stands before all that is included.
    ///
    /// # Errors
    /// When it cannot be written, or the configuration named is not there.
    pub(super) fn ssh_config(&self, scratch: &Path) -> Result<Option<PathBuf>, Failure> {
        let named = match &self.config {
            Some(file) => Some(file.canonicalize().map_err(|error| {
                Failure::failed(format!("ssh's configuration {file:?}: {error}"))
            })?),
            None => None,
        };
        let Some(port) = self.port else { return Ok(named) };
        let included = match named {
            Some(file) => format!("Include \"{}\"\n", file.display()),
            // The user's own, and the system's, which ssh does not read when it is given a file.
            None => "Include ~/.ssh/config\nMatch all\nInclude /etc/ssh/ssh_config\n".to_owned(),
        };
        let file = scratch.join("host-ssh-config");
        fs::write(&file, format!("Port {port}\n{included}"))?;
        Ok(Some(file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        let host = |text| Host::parse(text).map(|host| (host.destination, host.directory));
        let some = |destination: &str, directory: Option<&str>| {
            Ok((destination.to_owned(), directory.map(str::to_owned)))
        };
        assert_eq!(host("h"), some("h", None));
        assert_eq!(host("me@h:"), some("me@h", None));
        assert_eq!(host("me@h:/srv/a:b"), some("me@h", Some("/srv/a:b")));
        assert_eq!(host("me@[::1]:dir"), some("me@::1", Some("dir")));
        assert_eq!(host("[fe80::1%eth0]"), some("fe80::1%eth0", None));
        for text in ["", ":dir", "@h", "-oProxyCommand=x", "me@-x", "[::1", "[::1]x", "me@"] {
            assert!(host(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_port_goes_before_the_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let mut host = Host::parse("h").unwrap();
        assert_eq!(host.ssh_config(dir.path()), Ok(None));
        host.port = Some(2222);
        let own = host.ssh_config(dir.path()).unwrap().unwrap();
        let text = fs::read_to_string(own).unwrap();
        assert!(text.starts_with("Port 2222\nInclude ~/.ssh/config\n"), "{text}");
        host.config = Some(dir.path().join("none"));
        assert!(host.ssh_config(dir.path()).is_err());
    }
}
