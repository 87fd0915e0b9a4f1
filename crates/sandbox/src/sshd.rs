//! A private OpenSSH server on the loopback interface, with keys that live as long as it does.
//!
//! Everything is in one temporary directory: host key, user key, `sshd_config`, `known_hosts`,
//! and an `ssh_config` with an alias, so that `ssh -F CONFIG ALIAS` logs in as the user who runs
//! the test. Nothing of the user's own ssh is read or changed.
//!
//! Invariants:
//! 1. As root the server lives in a mount namespace of its own, into which mounts made later do
//!    not spread: a tree served to a mount inside of that tree cannot wait for itself.
//! 2. When [`Sshd`] is dropped, the server and everything that its logins started are dead, but for
//!    what the kernel keeps for five seconds after SIGKILL. When this process dies without that,
//!    the kernel ends the server, and the logins end with their clients.
//! 3. No process gets a signal that was not a descendant of this server when it was found.
//!
//! It needs `sshd`, `ssh-keygen`, `setpriv` and `unshare` (openssh-server, openssh-client,
//! util-linux), and `perl` for passwords. It blocks; from async code start it before, or on a
//! thread for that.
//!
//! Without root there is no namespace of its own (a server in a user namespace cannot log anybody
//! in), and only the user himself can log in.

mod files;
mod keeper;
mod tree;

pub use tree::with_descendants;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::{namespace, private_dir, random_word};
use keeper::Keeper;

/// How often a port is tried that was free a moment ago.
const PORT_ATTEMPTS: u32 = 5;

/// How long a restart waits for its port.
const PORT_LIMIT: Duration = Duration::from_secs(20);

/// Prepares the namespace of a server for the user `$1`: hides the helpers of sshoal that are
/// installed on this machine, so that a client finds none, and mounts the home `$2` if there is
/// one.
const OWN_HOME: &str = r#"
home=$(getent passwd "$1" | cut -d: -f6)
for program in /usr/bin/sshoal /usr/local/bin/sshoal "$home"/.local/bin/sshoal \
    "$home"/.cache/sshoal/helper/*/sshoal; do
    [ ! -f "$program" ] || mount --bind /dev/null "$program" || exit
done
[ -z "$2" ] || mount --bind "$2" "$home" || exit
shift 2
exec "$@"
"#;

/// What serves SFTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SftpServer {
    /// This program, a process of its own for each session, which can be stopped and killed.
    External(PathBuf),
    /// The one inside of sshd.
    Internal,
    /// A script for `sh`.
    Command(String),
    /// Nothing: the server has no subsystem `sftp`.
    Disabled,
}

impl SftpServer {
    /// OpenSSH's program where a distribution has it (Debian, Fedora, Arch, openSUSE, Alpine), or
    /// else the one inside of sshd.
    fn installed() -> SftpServer {
        let places = ["lib/openssh", "libexec/openssh", "lib/ssh", "libexec/ssh", "libexec"];
        let mut programs =
            places.iter().map(|place| Path::new("/usr").join(place).join("sftp-server"));
        programs.find(|it| it.exists()).map_or(SftpServer::Internal, SftpServer::External)
    }
}

/// How the server is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// What serves SFTP.
    pub sftp_server: SftpServer,
    /// Lines of `sshd_config`, which win over those that this module writes. `LogLevel` must not
    /// be lower than `INFO`, or the server's start goes unnoticed.
    pub settings: Vec<String>,
    /// The name by which the client's configuration knows the server.
    pub alias: String,
    /// Allows the user to log in with a password made for this server ([`Sshd::password`]), and
    /// with no key, for SFTP alone. Only as root: the server's namespace gets an `/etc/shadow` of
    /// its own.
    pub takes_password: bool,
    /// A directory that logins have as their home. Only as root: it is mounted in the server's
    /// namespace.
    pub home: Option<PathBuf>,
    /// Words before the server's command: those of a [`Network`](crate::network::Network), for a
    /// server in that namespace.
    pub prefix: Vec<OsString>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            sftp_server: SftpServer::installed(),
            settings: Vec::new(),
            alias: "testhost".to_owned(),
            takes_password: false,
            home: None,
            prefix: Vec::new(),
        }
    }
}

/// A running server.
#[derive(Debug)]
pub struct Sshd {
    options: Options,
    user: String,
    password: String,
    port: u16,
    isolated: bool,
    keeper: Option<Keeper>,
    /// Those that were stopped and never went on since. When their login ends without them they
    /// have no parent any more, and would stay for ever.
    stopped: Mutex<Vec<tree::Process>>,
    /// Last, so that it is removed when nothing runs any more.
    dir: TempDir,
}

impl Sshd {
    /// Makes keys and configuration and starts the server; returns when it listens.
    ///
    /// # Errors
    /// When a program is missing, when sshd refuses its settings (its words are in the error), or
    /// when no port is to be had.
    pub fn start(options: Options) -> io::Result<Sshd> {
        let dir = private_dir("sshd-")?;
        let isolated = is_root() && can_unshare();
        if (options.takes_password || options.home.is_some()) && !isolated {
            return Err(io::Error::other("a password or a home needs root and a mount namespace"));
        }
        if is_root() {
            // Debian's sshd wants it; its service makes it at the start of the system.
            fs::create_dir_all("/run/sshd")?;
        }
        let user = files::user_name()?;
        files::write_keys(dir.path(), &options.alias)?;
        let mut password = String::new();
        if options.takes_password {
            password = random_word()?;
            files::write_shadow(dir.path(), &user, &password)?;
        }
        let stopped = Mutex::default();
        let mut sshd =
            Sshd { options, user, password, port: 0, isolated, keeper: None, stopped, dir };
        for attempt in 1.. {
            sshd.port = free_port()?;
            match sshd.run() {
                Ok(()) => break,
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse && attempt < PORT_ATTEMPTS => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sshd)
    }

    /// Starts the server on the port that is already chosen.
    fn run(&mut self) -> io::Result<()> {
        let Sshd { options, user, port, dir, .. } = self;
        files::write_client_config(dir.path(), options, user, *port)?;
        let config = files::write_server_config(dir.path(), options, user, *port)?;
        let mut command = Command::new("setpriv");
        // The kernel ends it with the thread that keeps it.
        command.args(["--pdeathsig", "TERM", "--"]).args(&self.options.prefix);
        if self.isolated {
            command.args(namespace::of_its_own());
            command.args(["sh", "-c", OWN_HOME, "sh", user.as_str()]);
            command.arg(self.options.home.as_deref().unwrap_or(Path::new("")));
        }
        if self.options.takes_password {
            let shadow = dir.path().join("shadow");
            let script = "mount --bind \"$1\" /etc/shadow && shift && exec \"$@\"";
            command.args(["sh", "-c", script, "sh"]).arg(shadow);
        }
        command.args([files::SSHD, "-D", "-e", "-f"]).arg(&config).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        match Keeper::start(command, dir.path().join("sshd.log"))? {
            Ok(keeper) => {
                self.keeper = Some(keeper);
                Ok(())
            }
            Err(words) if words.contains("Address already in use") => {
                Err(io::ErrorKind::AddrInUse.into())
            }
            Err(words) => Err(io::Error::other(format!("sshd ended: {words}"))),
        }
    }

    /// The client's configuration, for `ssh -F`.
    pub fn config_path(&self) -> PathBuf {
        self.dir.path().join(files::CLIENT_CONFIG)
    }

    /// The host's name in that configuration.
    pub fn alias(&self) -> &str {
        &self.options.alias
    }

    /// The user who may log in: the one who runs this.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The password of the user, empty where none is taken.
    pub fn password(&self) -> &str {
        &self.password
    }

    /// Gives the user another password; the present one is no longer accepted.
    pub fn change_password(&mut self) -> io::Result<()> {
        self.password = random_word()?;
        files::write_shadow(self.dir.path(), &self.user, &self.password)
    }

    /// The port on 127.0.0.1. The host's key is known by the alias, so that a
    /// [`Link`](crate::link::Link) to this port may be connected to with `-p`.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's own process, while it runs; all it starts is below it.
    pub fn pid(&self) -> Option<u32> {
        self.keeper.as_ref().map(Keeper::pid)
    }

    /// Where keys, configuration and log (`sshd.log`) are.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Whether the server is in a mount namespace of its own.
    pub fn is_isolated(&self) -> bool {
        self.isolated
    }

    /// What the server has logged so far.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.dir.path().join("sshd.log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The log as soon as it contains `text`, or as it is after ten seconds. A line may come later
    /// than the reply that the client got.
    pub fn log_with(&self, text: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let log = self.log();
            if log.contains(text) || Instant::now() > deadline {
                return log;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The server's processes for its connections, one for each.
    pub fn session_pids(&self) -> Vec<u32> {
        let server = self.pid();
        self.descendants().iter().filter(|it| Some(it.parent) == server).map(|it| it.pid).collect()
    }

    /// The `sftp-server` processes, or those of the helper.
    pub fn sftp_server_pids(&self) -> Vec<u32> {
        self.sftp_servers().iter().map(|process| process.pid).collect()
    }

    /// Kills (SIGKILL) whatever serves connections now, and returns when it is dead. The server
    /// itself goes on and takes new connections.
    ///
    /// # Panics
    /// When a process stays for five seconds after SIGKILL.
    pub fn kill_sessions(&self) {
        assert_none(&tree::kill(|| self.descendants()));
    }

    /// Kills (SIGKILL) the `sftp-server` processes alone, as a crash would.
    ///
    /// # Panics
    /// When a process stays for five seconds after SIGKILL.
    pub fn kill_sftp_servers(&self) {
        assert_none(&tree::kill(|| self.sftp_servers()));
    }

    /// Stops (SIGSTOP) the `sftp-server` processes: the connections stand, but nothing answers.
    pub fn stop(&self) {
        let servers = self.sftp_servers();
        servers.iter().for_each(|process| process.signal(Signal::STOP));
        self.stopped().extend(servers);
    }

    /// Lets stopped `sftp-server` processes go on.
    pub fn cont(&self) {
        self.stopped().drain(..).for_each(|process| process.signal(Signal::CONT));
    }

    fn stopped(&self) -> MutexGuard<'_, Vec<tree::Process>> {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the server and all connections. Its port refuses from now on.
    pub fn end(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            keeper.end();
        }
        self.stopped().drain(..).for_each(|process| process.signal(Signal::KILL));
    }

    /// Ends the server and all connections, and starts it anew on the same port with the same
    /// keys.
    ///
    /// # Errors
    /// As [`Sshd::start`], also if another process has taken the port and keeps it.
    pub fn restart(&mut self) -> io::Result<()> {
        self.end();
        let began = Instant::now();
        loop {
            match self.run() {
                // A connection from here to somewhere may have got the port for a while.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    if began.elapsed() > PORT_LIMIT {
                        return Err(error);
                    }
                    thread::sleep(Duration::from_millis(100));
                }
                done => return done,
            }
        }
    }

    /// Gives the server another host key, which no client knows, and restarts it.
    ///
    /// # Errors
    /// As [`Sshd::restart`].
    pub fn change_host_key(&mut self) -> io::Result<()> {
        self.end();
        files::generate_key(&self.dir.path().join(files::HOST_KEY))?;
        self.run()
    }

    fn descendants(&self) -> Vec<tree::Process> {
        self.pid().map(tree::descendants).unwrap_or_default()
    }

    fn sftp_servers(&self) -> Vec<tree::Process> {
        let mut servers = self.descendants();
        servers.retain(|process| ["sftp-server", "sshoal"].contains(&process.name.as_str()));
        servers
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.end();
    }
}

/// # Panics
/// When a process has stayed after SIGKILL.
fn assert_none(stay: &[tree::Process]) {
    assert!(stay.is_empty(), "these stay after SIGKILL: {stay:?}");
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether this root may make mount namespaces; in many containers he may not.
fn can_unshare() -> bool {
    let args = ["-m", "--propagation", "private", "true"];
    let quiet = Command::new("unshare").args(args).stderr(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}

/// A port that was free a moment ago.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

#[cfg(test)]
mod tests;
