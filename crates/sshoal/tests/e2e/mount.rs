//! A mount, from the start of its daemon to the proof that it ended well.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::process::{self, Process, is_ready, run_within};
use crate::world;

/// How long a mount may take to come about.
const MOUNT_LIMIT: Duration = Duration::from_secs(60);

/// How long a daemon may take to end after its mount is gone: more than it gives calls under way
/// and a silent server (30 s and 45 s), so that what is slow can be told from what hangs.
const END_LIMIT: Duration = Duration::from_secs(100);

/// How long a mount may be in use after everything in it was closed.
const BUSY_LIMIT: Duration = Duration::from_secs(10);

/// How long a test may keep one mount. Past it the mount is cut off, so that a hang is a failure
/// with a message.
const LIFE_LIMIT: Duration = Duration::from_secs(900);

/// The same where tests may take long.
const LONG_LIFE_LIMIT: Duration = Duration::from_secs(3_600);

/// What the daemon must not say in a test that goes well; sshfs's own suite forbids the same.
const FORBIDDEN: [&str; 10] = [
    "exception",
    "error",
    "warning",
    "fatal",
    "traceback",
    "fault",
    "crash",
    "abort",
    "uninitialised",
    "panicked",
];

/// A mounted directory. When it is dropped it is unmounted, and its daemon has to end with code 0
/// and without a bad word.
pub struct Mount {
    place: PathBuf,
    daemon: Process,
    errors: PathBuf,
    words_allowed: bool,
    ended: bool,
    watchdog: Option<Watchdog>,
}

impl Mount {
    /// Runs a mount in the foreground, and returns when it is in the table of mounts.
    #[track_caller]
    pub fn start(mut command: Command, place: PathBuf) -> Mount {
        let errors = place.with_extension("stderr");
        let file = File::create(&errors).unwrap();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        let mut daemon = Process::spawn(&mut command);
        wait_mounted(&mut daemon, &place, &errors);
        let watchdog = Some(Watchdog::start(&daemon, &place));
        Mount { place, daemon, errors, words_allowed: false, ended: false, watchdog }
    }

    /// A path in the mount.
    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.place.join(name)
    }

    pub fn place(&self) -> &Path {
        &self.place
    }

    pub fn daemon(&self) -> &Process {
        &self.daemon
    }

    /// What the daemon has said.
    pub fn words(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.errors).unwrap()).into_owned()
    }

    /// The daemon may tell of errors, since the test makes some.
    pub fn with_errors(mut self) -> Mount {
        self.words_allowed = true;
        self
    }

    /// Most memory that the daemon has ever had, in KiB.
    pub fn peak_memory_kib(&self) -> u64 {
        self.daemon.status_field("VmHWM")
    }

    pub fn is_mounted(&self) -> bool {
        is_mounted(&self.place)
    }

    /// Unmounts, and checks how the daemon ended.
    #[track_caller]
    pub fn unmount(mut self) {
        self.end();
    }

    /// Waits for a daemon that ends by itself, or by what the test has done; gives its exit code.
    #[track_caller]
    pub fn wait_ended(&mut self) -> Option<i32> {
        self.ended = true;
        let status = self.daemon.wait(END_LIMIT);
        self.watchdog.take();
        status.code()
    }

    #[track_caller]
    fn end(&mut self) {
        self.ended = true;
        let umount = || run_within(END_LIMIT, world::program().arg("umount").arg(&self.place));
        let mut ended = umount();
        // A child of another test has our descriptors from its fork to its exec.
        let deadline = Instant::now() + BUSY_LIMIT;
        while ended.stderr.contains("Device or resource busy") && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(50));
            ended = umount();
        }
        assert!(ended.status.success(), "{ended:?}\n--- the daemon's words:\n{}", self.words());
        // It may tell that it waits, as it does on a busy machine, or that a program of another
        // test has a copy of all mounts, and is not to be waited for.
        let usual = ["unmounted; waiting for", "mount namespace"];
        let is_usual = |line: &&str| usual.iter().any(|words| line.contains(words));
        let told = ended.stderr.lines().filter(|line| !is_usual(line));
        assert_eq!(told.count(), 0, "{}", ended.stderr);
        // `umount` has waited for it, but for its last instruction.
        let has_copy = ended.stderr.contains("mount namespace");
        let limit = if has_copy { END_LIMIT } else { Duration::from_secs(5) };
        let status = self.daemon.wait(limit);
        self.watchdog.take();
        let words = self.words();
        assert_eq!(status.code(), Some(0), "the daemon said: {words}");
        assert!(!is_mounted(&self.place));
        self.check_words(&words);
    }

    #[track_caller]
    fn check_words(&self, words: &str) {
        assert!(!words.contains("panicked"), "{words}");
        if !self.words_allowed {
            let small = words.to_lowercase();
            let bad = FORBIDDEN.iter().find(|word| small.contains(**word));
            assert_eq!(bad, None, "the daemon said: {words}");
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- the daemon's words:\n{}---", self.words());
            self.daemon.signal(Signal::KILL);
            detach(&self.place);
        } else if !self.ended {
            self.end();
        } else {
            self.check_words(&self.words());
        }
    }
}

/// Cuts the mount off when it has been there for too long.
struct Watchdog {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    fn start(daemon: &Process, place: &Path) -> Watchdog {
        let (stop, stopped) = mpsc::channel::<()>();
        let pid = Pid::from_raw(daemon.pid().cast_signed()).unwrap();
        let daemon = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let place = place.to_owned();
        let thread = thread::spawn(move || {
            let limit = if world::is_big_run() { LONG_LIFE_LIMIT } else { LIFE_LIMIT };
            if stopped.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{}: cut off after {limit:?}", place.display());
                let _ = pidfd_send_signal(&daemon, Signal::KILL);
                detach(&place);
            }
        });
        Watchdog { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Takes whatever is mounted there out of the tree.
pub fn detach(place: &Path) {
    if rustix::process::geteuid().is_root() {
        let _ = rustix::mount::unmount(place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
    } else {
        let mut command = Command::new("fusermount3");
        let _ = command.args(["-u", "-z", "-q", "--"]).arg(place).status();
    }
}

#[track_caller]
fn wait_mounted(daemon: &mut Process, place: &Path, errors: &Path) {
    let deadline = Instant::now() + MOUNT_LIMIT;
    // The kernel tells by POLLPRI that the table has changed since it was opened or last polled.
    let table = OwnedFd::from(File::open("/proc/self/mountinfo").unwrap());
    while !is_mounted(place) {
        let words = || String::from_utf8_lossy(&fs::read(errors).unwrap()).into_owned();
        assert!(Instant::now() < deadline, "not mounted in {MOUNT_LIMIT:?}: {}", words());
        let waited_for = [(&table, PollFlags::PRI), (daemon.handle(), PollFlags::IN)];
        is_ready(&waited_for, deadline);
        if let Some(status) = daemon.try_wait(Duration::ZERO) {
            panic!("the daemon ended: {status}: {}", words());
        }
    }
}

pub fn is_mounted(place: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    // As the table has it.
    let place = place.to_str().unwrap().replace(' ', "\\040").replace('\n', "\\012");
    table.lines().any(|line| line.split(' ').nth(4) == Some(&*place))
}

/// Runs `sshoal umount` with these words.
pub fn umount(words: &[&str], place: &Path) -> process::Ended {
    run_within(END_LIMIT, world::program().arg("umount").args(words).arg(place))
}
