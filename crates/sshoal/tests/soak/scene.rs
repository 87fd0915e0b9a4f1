//! What a lane has for itself: a server behind a link, and places to mount it.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sandbox::link::{Link, LinkOptions};
use sandbox::sshd::{Options, SftpServer, Sshd};
use tempfile::TempDir;

use crate::Soak;
use crate::mount::{Mount, detach, umount};
use crate::world::{program, program_path};

/// How long sessions may take to end after their client was killed, before they are killed, too.
const SESSION_GRACE: Duration = Duration::from_secs(2);

/// How long a mount may be busy when nobody uses it.
const BUSY_LIMIT: Duration = Duration::from_secs(60);

/// Last lines of a daemon's words that are printed.
const MOST_LINES: usize = 40;

/// Of what it says about its connections, which end all the time.
const ORDINARY: [&str; 6] = [
    "session ended: ",
    "direct connection ended: ",
    "the network or the server failed",
    "client_loop: ",
    "Connection ",
    "note: ",
];

/// See the [module](self).
pub struct Scene<'a> {
    pub soak: &'a Soak,
    pub lane: &'static str,
    /// One for each client.
    links: Vec<Link>,
    sshd: Sshd,
    mounts: AtomicU32,
    /// Notes of the tally of which the daemons' words were printed.
    notes: AtomicU64,
    /// Whether what is served is a disk of the server's own.
    has_disk: bool,
    /// Options of all mounts.
    options: String,
    dir: TempDir,
}

impl<'a> Scene<'a> {
    /// A server of one client, with a directory of this machine.
    pub fn new(soak: &'a Soak, lane: &'static str) -> Scene<'a> {
        let dir = tempfile::Builder::new().prefix("soak-").tempdir().unwrap();
        fs::create_dir(dir.path().join("served")).unwrap();
        Scene::start(soak, lane, dir, 1, false, Options::default().sftp_server)
    }

    /// A server of one client, with the helper and direct connections, which have a link of their
    /// own.
    pub fn direct(soak: &'a Soak, lane: &'static str) -> Scene<'a> {
        let dir = tempfile::Builder::new().prefix("soak-").tempdir().unwrap();
        fs::create_dir(dir.path().join("served")).unwrap();
        let helper = SftpServer::Command(format!("exec {} helper\n", program_path().display()));
        let mut scene = Scene::start(soak, lane, dir, 1, false, helper);
        let any = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = any.local_addr().unwrap();
        let link = Link::start(target, LinkOptions::default()).unwrap();
        let (port, at) = (target.port(), link.port());
        scene.options =
            format!("direct=yes,direct_ports={port}-{port},direct_address=127.0.0.1:{at}");
        scene.links.push(link);
        scene
    }

    /// A server of several clients, with a disk of this size.
    pub fn with_disk(soak: &'a Soak, lane: &'static str, clients: usize, bytes: u64) -> Scene<'a> {
        let dir = tempfile::Builder::new().prefix("soak-").tempdir().unwrap();
        // In the namespace of the server, which outlives each of its sessions. The directory on
        // which it lies has to stay: with it the kernel would take the disk away.
        let script = format!(
            "exec 9>{lock} && flock 9 && mkdir -p {place} && {{ mountpoint -q {place} || \
             mount -t tmpfs -o size={bytes} tmpfs {place}; }} && exec 9>&- && \
             exec /usr/lib/openssh/sftp-server\n",
            lock = dir.path().join("lock").display(),
            place = dir.path().join("served").display()
        );
        Scene::start(soak, lane, dir, clients, true, SftpServer::Command(script))
    }

    fn start(
        soak: &'a Soak,
        lane: &'static str,
        dir: TempDir,
        clients: usize,
        has_disk: bool,
        sftp_server: SftpServer,
    ) -> Scene<'a> {
        let sshd = Sshd::start(Options { sftp_server, ..Options::default() }).unwrap();
        assert!(!has_disk || sshd.is_isolated(), "a disk of the server's own needs root");
        let mut links = Vec::new();
        for client in 0..clients {
            let target = SocketAddr::from(([127, 0, 0, 1], sshd.port()));
            let link = Link::start(target, LinkOptions::default()).unwrap();
            // ssh takes the first value that it sees.
            let own = sshd.config_path();
            let (name, port) = (sshd.alias(), link.port());
            let text = format!("Host {name}\nPort {port}\nInclude {}\n", own.display());
            fs::write(dir.path().join(format!("ssh_config{client}")), text).unwrap();
            links.push(link);
        }
        Scene {
            soak,
            lane,
            links,
            sshd,
            mounts: AtomicU32::new(0),
            notes: AtomicU64::new(0),
            has_disk,
            options: String::new(),
            dir,
        }
    }

    /// The links, one for each client.
    pub fn links(&self) -> Vec<&Link> {
        self.links.iter().collect()
    }

    pub fn sshd(&self) -> &Sshd {
        &self.sshd
    }

    /// A path below what the server shows, as this machine sees it.
    pub fn served(&self, name: impl AsRef<Path>) -> PathBuf {
        let place = self.dir.path().join("served");
        if !self.has_disk {
            return place.join(name);
        }
        let pid = self.sshd.pid().unwrap();
        PathBuf::from(format!("/proc/{pid}/root{}", place.display())).join(name)
    }

    /// A path on this machine that no server shows.
    pub fn local(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Mounts what the server shows, for one of the clients.
    pub fn mount(&self, client: usize, options: &str) -> Mount {
        let number = self.mounts.fetch_add(1, Ordering::Relaxed);
        let place = self.local(format!("mnt{number}"));
        fs::create_dir(&place).unwrap();
        let source = format!("{}:{}", self.sshd.alias(), self.local("served").display());
        let mut command = program();
        command.arg("-F").arg(self.local(format!("ssh_config{client}")));
        command.arg("-f").arg(source).arg(&place);
        // So that no cache of this user is used.
        let cache = self.local(format!("cache{client}"));
        command.args(["-o", &format!("cache_dir={}", cache.display())]);
        for options in [&self.options, options].into_iter().filter(|it| !it.is_empty()) {
            command.args(["-o", options]);
        }
        Mount::start(command, place).with_errors()
    }

    pub fn divergence(&self, what: &str) {
        self.soak.tally.divergence(self.lane, what);
    }

    /// Prints the end of what a daemon has said, if something was noted meanwhile.
    fn show_words(&self, mount: &Mount) {
        let notes = self.soak.tally.notes();
        if self.notes.swap(notes, Ordering::Relaxed) < notes {
            let words = mount.words();
            let is_ordinary = |line: &str| ORDINARY.iter().any(|words| line.contains(words));
            let lines: Vec<_> = words.lines().filter(|line| !is_ordinary(line)).collect();
            for line in &lines[lines.len().saturating_sub(MOST_LINES)..] {
                println!("    {}: {line}", self.lane);
            }
        }
    }

    /// Unmounts in the ordinary way, which has to go well.
    pub fn unmount(&self, mut mount: Mount) {
        self.soak.tally.memory_of(&mount);
        self.show_words(&mount);
        let deadline = Instant::now() + BUSY_LIMIT;
        loop {
            let ended = umount(&[], mount.place());
            if ended.status.success() {
                break;
            }
            // A child of another lane that has not become its program yet has a copy of all files
            // that are open here.
            if !ended.stderr.contains("busy") || Instant::now() > deadline {
                self.divergence(&format!("umount: {ended:?}"));
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        if let Some(code) = mount.wait_ended().filter(|code| *code != 0) {
            self.divergence(&format!("the daemon ended with {code}: {}", mount.words()));
        }
        fs::remove_dir(mount.place()).unwrap();
    }

    /// Kills a daemon. Calls of its mount fail from now on.
    pub fn kill(&self, mount: &Mount) {
        self.soak.tally.memory_of(mount);
        mount.daemon().signal(rustix::process::Signal::KILL);
        self.soak.tally.daemon_kills.add(1);
    }

    /// Takes away the mount of a daemon that was killed, and returns when what it had sent has
    /// been done by the server.
    pub fn clear(&self, mut mount: Mount) {
        mount.wait_ended();
        self.show_words(&mount);
        detach(mount.place());
        fs::remove_dir(mount.place()).unwrap();
        let deadline = Instant::now() + SESSION_GRACE;
        while !self.sshd().session_pids().is_empty() {
            if Instant::now() > deadline {
                self.sshd().kill_sessions();
                self.soak.tally.server_kills.add(1);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the lane: nothing of it may be left.
    pub fn end(self) {
        self.soak.tally.leftovers_of(self.lane, self.dir.path());
    }
}
