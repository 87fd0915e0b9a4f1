//! NFS version 4 without a kernel client: nfs-ganesha serves the private server's directory, and
//! our own generator speaks to it ([`crate::worker`]).
//!
//! It shows what the protocol and a server without a kernel part do, on machines whose kernel has
//! no NFS client. It is no measurement of a mount: there are no page cache, no readahead and no
//! write-back. A mount by the kernel's client is measured as a target.
//!
//! The server has configuration, port and state of its own, and needs no rpcbind. It finds files by
//! `open_by_handle_at`, for which it has to be root's. As with other NFS servers the requests carry
//! no secret; so that no other user of the machine can use it, it takes connections only from ports
//! that are root's.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use sandbox::link::Link;
use sandbox::write_private;

use crate::executor::{Background, Executor};
use crate::failure::{Failure, Result};
use crate::quoting::shown;
use crate::results::{LeftOut, SubjectInfo, Wire};
use crate::server::{Server, wire_of};
use crate::step::ServerMeter;
use crate::storage::Storage;
use crate::subject::{Access, Session, Started, Subject, Tuning};

use super::daemons::{self, END_LIMIT};
use super::identity::Identity;
use super::programs::GANESHA;

/// The name of the directory in the server's root.
const EXPORT: &str = "bench";

/// Where Debian has the library for directories of the local file systems.
const LIBRARY: &str = "libfsalvfs.so";
const LIBRARIES: [&str; 2] = ["/usr/lib", "/usr/lib64"];

/// nfs-ganesha, and the generator as its client.
pub(super) struct Nfs {
    name: String,
    server: Arc<Server>,
    identity: Identity,
}

impl Nfs {
    pub(super) fn new(name: String, server: Arc<Server>) -> Nfs {
        Nfs { name, server, identity: Identity::default() }
    }
}

impl Subject for Nfs {
    fn info(&self) -> SubjectInfo {
        let command = "nfs-ganesha, and the bench's own client of NFSv4: without kernel client";
        self.identity.info(&self.name, "floor", command)
    }

    fn check(&self, executor: &Executor) -> Result<(), LeftOut> {
        let left_out =
            |why: &str, remedy: &str| Err(LeftOut::new(&self.name, why).with_remedy(remedy));
        GANESHA.require(&self.name)?;
        if !has_library() {
            return left_out("nfs-ganesha lacks its VFS", "install the package nfs-ganesha-vfs");
        }
        if !self.server.is_private() {
            let why = "it is a daemon of the bench's own, which starts nothing but ssh on a host";
            return left_out(why, "mount the host's NFS, and name the mount by --target");
        }
        if !rustix::process::geteuid().is_root() {
            return left_out("nfs-ganesha opens files by handles, as only root may", "run as root");
        }
        let root = self.server.storage().root();
        if root.to_str() != Some(&shown(root)) || shown(root).contains(['"', '\\']) {
            return left_out(
                "its configuration cannot name the scratch directory",
                "--scratch DIR",
            );
        }
        self.identity.version(|| GANESHA.version(executor));
        Ok(())
    }

    fn storage(&self) -> &dyn Storage {
        self.server.storage()
    }

    fn start(&self, scratch: &Path, _: &Tuning, executor: &Executor) -> Started {
        let program = GANESHA.find().ok_or_else(|| Failure::failed("nfs-ganesha is gone"))?;
        let (root, scratch) = (daemons::root(&self.server)?, scratch.canonicalize()?);
        let (daemon, link, port) = daemons::start(&self.server, executor, |own| {
            let file = scratch.join("ganesha.conf");
            let text = configuration(own.ip(), own.port(), &root, &scratch);
            write_private(&file, text.as_bytes())?;
            let mut command = Command::new(program);
            command.args(["-F", "-L", "/dev/stdout", "-N", "NIV_CRIT", "-f"]).arg(file);
            command.arg("-p").arg(scratch.join("ganesha.pid")).current_dir("/");
            Ok(command)
        })?;
        if let Some(link) = &link {
            link.reserve();
        }
        Ok(Box::new(NfsSession { daemon, link, port }))
    }
}

/// Whether the library is where distributions have it.
fn has_library() -> bool {
    LIBRARIES.iter().any(|dir| {
        let triples = fs::read_dir(dir).into_iter().flatten().flatten();
        let mut places = triples.map(|entry| entry.path()).chain([dir.into()]);
        places.any(|place| place.join("ganesha").join(LIBRARY).exists())
    })
}

/// `ganesha.conf`. No grace period, since no client has state of an earlier server; no delegations,
/// which our client could not give back; no Kerberos, for which it would write outside of its
/// directory.
fn configuration(address: std::net::IpAddr, port: u16, root: &Path, scratch: &Path) -> String {
    let (root, scratch) = (shown(root), shown(scratch));
    format!(
        "NFS_CORE_PARAM {{ Protocols = 4; Bind_addr = {address}; NFS_Port = {port}; \
         Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; }}\n\
         NFSv4 {{ Graceless = true; Minor_Versions = 0; Delegations = false; \
         RecoveryRoot = \"{scratch}\"; Only_Numeric_Owners = true; }}\n\
         NFS_KRB5 {{ Active_krb5 = false; CCacheDir = \"{scratch}\"; }}\n\
         EXPORT {{ Export_Id = 1; Path = \"{root}\"; Pseudo = \"/{EXPORT}\"; Protocols = 4; \
         Transports = TCP; SecType = sys; Access_Type = RW; Squash = None; \
         PrivilegedPort = true; FSAL {{ Name = VFS; }} }}\n"
    )
}

struct NfsSession {
    daemon: Background,
    /// It is closed when this is dropped.
    link: Option<Link>,
    port: u16,
}

impl Session for NfsSession {
    fn access(&self) -> Access<'_> {
        Access::Nfs { port: self.port, export: EXPORT.as_ref() }
    }

    fn server_pids(&self) -> Vec<u32> {
        self.daemon.running_pid().into_iter().collect()
    }

    fn wire(&self, _: &dyn ServerMeter) -> Option<Wire> {
        wire_of(self.link.iter())
    }

    fn abandon(&mut self) {
        self.daemon.stop(END_LIMIT);
    }
}
