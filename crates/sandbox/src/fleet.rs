//! Several private servers, each behind a link of its own, and one ssh configuration that knows
//! all of them.
//!
//! ```no_run
//! use sandbox::fleet::{Fleet, Plan};
//! let fleet = Fleet::start([Plan::new("alpha"), Plan::new("beta")]).unwrap();
//! // program -F CONFIG alpha:/tmp/…/alpha beta:/tmp/…/beta MOUNTPOINT
//! let sources = [fleet.source("alpha"), fleet.source("beta")];
//! let config = fleet.config_path();
//! fleet.link("beta").cut();
//! ```
//!
//! Each server has its own keys and serves a directory of its own below [`Fleet::dir`], or one
//! together with others, as gateways do ([`Plan::serving`]). The servers could reach each other's
//! directories: they are of one machine. Tests keep to [`Fleet::source`].
//!
//! As [`sshd`](crate::sshd), it blocks; nothing of it is left when it is dropped.

use std::fmt::Write;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::link::{Link, LinkOptions};
use crate::sshd::{Options, Sshd};

/// How one server is to be.
#[derive(Clone, Debug)]
pub struct Plan {
    name: String,
    directory: String,
    link: LinkOptions,
    options: Options,
}

impl Plan {
    /// A server that ssh knows by this name, with a directory of that name, behind a link without
    /// delay or bound.
    pub fn new(name: &str) -> Plan {
        let options = Options { alias: name.to_owned(), ..Options::default() };
        let link = LinkOptions::default();
        Plan { name: name.to_owned(), directory: name.to_owned(), link, options }
    }

    /// Serves this directory instead. Those with one directory are gateways to it.
    pub fn serving(mut self, directory: &str) -> Plan {
        directory.clone_into(&mut self.directory);
        self
    }

    /// Behind such a link.
    pub fn behind(mut self, link: LinkOptions) -> Plan {
        self.link = link;
        self
    }

    /// A server with these options, but for its alias.
    pub fn with(mut self, options: Options) -> Plan {
        self.options = Options { alias: self.name.clone(), ..options };
        self
    }
}

/// A server and what is before it.
#[derive(Debug)]
struct Member {
    name: String,
    directory: PathBuf,
    link: Link,
    sshd: Sshd,
}

/// Servers that run. See the [module](self).
#[derive(Debug)]
pub struct Fleet {
    members: Vec<Member>,
    /// Last, so that it is removed when nothing runs any more.
    dir: TempDir,
}

impl Fleet {
    /// Starts all of them; returns when all of them listen.
    ///
    /// # Errors
    /// As [`Sshd::start`] and [`Link::start`], and when directories or files cannot be made.
    pub fn start(plans: impl IntoIterator<Item = Plan>) -> io::Result<Fleet> {
        let dir = crate::private_dir("fleet-")?;
        let mut members = Vec::new();
        for Plan { name, directory, link, options } in plans {
            let directory = dir.path().join(directory);
            fs::create_dir_all(&directory)?;
            let sshd = Sshd::start(options)?;
            let link = Link::start(SocketAddr::from(([127, 0, 0, 1], sshd.port())), link)?;
            members.push(Member { name, directory, link, sshd });
        }
        let fleet = Fleet { members, dir };
        fs::write(fleet.config_path(), fleet.client_config())?;
        Ok(fleet)
    }

    /// ssh takes the first value that it sees, so the link's port stands before the server's own
    /// configuration.
    fn client_config(&self) -> String {
        let mut text = String::new();
        for Member { name, link, sshd, .. } in &self.members {
            let own = sshd.config_path();
            let _ =
                write!(text, "Host {name}\nPort {}\nInclude {}\n\n", link.port(), own.display());
        }
        text
    }

    /// The configuration for `ssh -F`, which knows each server by its name.
    pub fn config_path(&self) -> PathBuf {
        self.dir.path().join("ssh_config")
    }

    /// Where the directories of all servers are. Names that no server has are free to be used.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    #[track_caller]
    fn member(&self, name: &str) -> &Member {
        let member = self.members.iter().find(|member| member.name == name);
        member.unwrap_or_else(|| panic!("no server is called {name:?}"))
    }

    #[track_caller]
    fn member_mut(&mut self, name: &str) -> &mut Member {
        let member = self.members.iter_mut().find(|member| member.name == name);
        member.unwrap_or_else(|| panic!("no server is called {name:?}"))
    }

    /// The link before a server.
    ///
    /// # Panics
    /// This and all that take a name: when there is no server of that name.
    #[track_caller]
    pub fn link(&self, name: &str) -> &Link {
        &self.member(name).link
    }

    /// The server.
    #[track_caller]
    pub fn sshd(&self, name: &str) -> &Sshd {
        &self.member(name).sshd
    }

    /// The directory that a server serves, as it and this machine see it.
    #[track_caller]
    pub fn directory(&self, name: &str) -> &Path {
        &self.member(name).directory
    }

    /// `name:directory`, as a mount takes it.
    #[track_caller]
    pub fn source(&self, name: &str) -> String {
        format!("{name}:{}", self.directory(name).display())
    }

    /// Kills (SIGKILL) a server with all its sessions. Its port refuses until
    /// [`Fleet::restart`].
    #[track_caller]
    pub fn kill(&mut self, name: &str) {
        self.member_mut(name).sshd.end();
    }

    /// Starts a server again, on the same port with the same keys. One that runs is killed first.
    ///
    /// # Errors
    /// As [`Sshd::restart`].
    #[track_caller]
    pub fn restart(&mut self, name: &str) -> io::Result<()> {
        self.member_mut(name).sshd.restart()
    }

    /// A machine that hangs: its `sftp-server` processes are stopped (SIGSTOP), and so is what
    /// goes to and from it, so that new connections are taken and not answered.
    #[track_caller]
    pub fn stop(&self, name: &str) {
        let Member { link, sshd, .. } = self.member(name);
        sshd.stop();
        link.stall();
    }

    /// Ends [`Fleet::stop`].
    #[track_caller]
    pub fn cont(&self, name: &str) {
        let Member { link, sshd, .. } = self.member(name);
        sshd.cont();
        link.resume();
    }

    /// What all servers have logged so far.
    pub fn log(&self) -> String {
        let mut text = String::new();
        for Member { name, sshd, .. } in &self.members {
            let _ = write!(text, "--- {name}:\n{}", sshd.log());
        }
        text
    }
}

#[cfg(test)]
mod tests;
