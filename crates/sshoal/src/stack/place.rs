//! Where a path of the mount is, how to run a command there, and how its hosts are reached.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use base::{Errno, RemotePath};
use cli::Problem;
use control::place::{Bytes, Connection, Host, Place};

use super::{Source, Stack};
use crate::sources::Origin;
use crate::stack::connect::Server;

impl Stack {
    /// The place of `path`, or of a name that its directory does not contain yet. In a union, that
    /// of the branch whose file is shown, or whose directory would get the name; in a pool, that of
    /// the gateway in use.
    pub async fn place(&self, path: &RemotePath) -> Result<Place, Problem> {
        let what = || format!("'{}'", base::printable(path.as_bytes()));
        let source = self.source_of(path).await.map_err(|errno| match errno {
            Errno::ENODATA => Problem::new(what(), "no branch has this directory").hint(
                "it only contains the places of branches; name a directory below one of them",
            ),
            errno => Problem::new(what(), errno.to_string()),
        })?;
        let below = source.below_place(path);
        match &source.spec.origin {
            Origin::Local(directory) => Ok(Place {
                source: source.spec.shown(),
                path: Bytes(joined(directory.as_os_str().as_bytes(), &below)),
                host: None,
            }),
            Origin::Hosts { gateways, directory } => {
                let (at, server) = source
                    .gateway_for(&below)
                    .ok_or_else(|| Problem::new(what(), "all gateways of its pool are left out"))?;
                let root = server.host.real_root().unwrap_or(directory);
                let gateway = &gateways[at];
                let ssh = server.connector.dialer.command().await;
                let bytes = |word: std::ffi::OsString| Bytes(word.into_vec());
                Ok(Place {
                    source: source.spec.shown(),
                    path: Bytes(joined(root, &below)),
                    host: Some(Host {
                        user: gateway.user().map(str::to_owned),
                        name: gateway.host().to_owned(),
                        port: gateway.port(),
                        ssh: ssh.map(|words| words.into_iter().map(bytes).collect()),
                    }),
                })
            }
        }
    }

    /// How each host of each source is reached.
    pub fn connections(&self) -> Vec<Connection> {
        let mut connections = Vec::new();
        for source in self.sources() {
            let Origin::Hosts { gateways, directory } = &source.spec.origin else { continue };
            for (gateway, server) in gateways.iter().zip(&source.hosts) {
                let config = server.connector.dialer.config();
                let is_ssh = config.transport == ssh::Transport::Ssh;
                let bytes = |word: &std::ffi::OsString| Bytes(word.as_bytes().to_vec());
                connections.push(Connection {
                    source: source.spec.shown(),
                    directory: Bytes(server.host.real_root().unwrap_or(directory).to_vec()),
                    user: gateway.user().map(str::to_owned),
                    name: gateway.host().to_owned(),
                    port: gateway.port(),
                    ssh_command: is_ssh.then(|| bytes(&config.ssh_command)),
                    arguments: config.args.iter().map(bytes).collect(),
                    sftp_server: config.sftp_server.clone(),
                    has_password: config.password.is_some()
                        || server.password_state() != ssh::PasswordState::Unneeded,
                });
            }
        }
        connections
    }

    /// The source that has `path`, or its directory. `ENODATA` for a directory that only contains
    /// the places of branches.
    async fn source_of(&self, path: &RemotePath) -> Result<Arc<Source>, Errno> {
        let sources = self.sources();
        if self.union.is_none() {
            return sources.into_iter().next().ok_or(Errno::ENODATA);
        }
        let located = match (self.remote.locate(path).await, path.parent()) {
            (Err(Errno::ENOENT), Some(parent)) => self.remote.locate(&parent).await,
            (located, _) => located,
        };
        let name = located?.into_iter().next().ok_or(Errno::ENODATA)?.source;
        sources.into_iter().find(|source| source.spec.shown() == name).ok_or(Errno::ENODATA)
    }
}

impl Source {
    /// The path below the source's own root.
    pub fn below_place(&self, path: &RemotePath) -> RemotePath {
        let mut rest = path.as_bytes();
        for _ in &self.spec.place {
            let end = rest.iter().position(|byte| *byte == b'/').map_or(rest.len(), |at| at + 1);
            rest = &rest[end..];
        }
        RemotePath::parse(rest).unwrap_or_default()
    }

    /// The gateway that a command for `path` should use, and its number.
    fn gateway_for(&self, path: &RemotePath) -> Option<(usize, &Server)> {
        let mut servers = self.hosts.iter().enumerate();
        match &self.replicas {
            None => servers.next(),
            Some(pool) => {
                let name = pool.gateway_of(path)?;
                servers.find(|(_, server)| server.name == name)
            }
        }
    }
}

/// `path` below the directory `root`; `root` is empty for the home directory.
fn joined(root: &[u8], path: &RemotePath) -> Vec<u8> {
    match (root, path.as_bytes()) {
        (root, b"") => root.to_vec(),
        (b"", path) => path.to_vec(),
        (root, path) => [root.strip_suffix(b"/").unwrap_or(root), b"/", path].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_joined() {
        let path = |text: &str| RemotePath::parse(text.as_bytes()).unwrap();
        assert_eq!(joined(b"/", &path("a/b")), b"/a/b");
        assert_eq!(joined(b"/r", &path("a")), b"/r/a");
        assert_eq!(joined(b"/r/", &path("a")), b"/r/a");
        assert_eq!(joined(b"", &path("a")), b"a");
        assert_eq!(joined(b"/r", &path("")), b"/r");
        assert_eq!(joined(b"", &path("")), b"");
    }
}
