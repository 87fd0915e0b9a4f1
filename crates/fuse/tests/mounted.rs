//! Real mounts. Every test of [`everybody`] runs twice: as the user who runs the tests, and, by
//! [`as_root::an_unprivileged_user_can_mount`], as the user `nobody` through fusermount3. All of
//! them run once more over io_uring, by [`as_root::all_tests_pass_over_io_uring`].

mod enabled;
mod memory;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use fuse::{
    Cause, Config, End, Error, Mount, MountOptions, Notifier, Session, Visibility, unmount,
};
use memory::{LIMIT, Memory, ROOT};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

const TTL: Duration = Duration::from_secs(100);

/// Set for the tests over io_uring.
const OVER_IO_URING: &str = "FUSE_TEST_OVER_IO_URING";

/// The usual configuration, over the transport that is tested.
fn config() -> Config {
    let over_io_uring = std::env::var_os(OVER_IO_URING).is_some();
    Config { io_uring: over_io_uring.then_some(8), ..Config::default() }
}

/// A mounted [`Memory`]. [`Mounted::end`] has to be called before it is dropped, except by a panic.
struct Mounted {
    memory: Arc<Memory>,
    session: Option<JoinHandle<End>>,
    runtime: Runtime,
    dir: TempDir,
}

/// The file system type at `path` in `/proc/self/mountinfo`.
fn mounted_on(path: &Path) -> Option<String> {
    let all = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let of = format!(" {} ", path.display());
    all.lines().find(|line| line.contains(&of)).map(str::to_owned)
}

/// Waits until nothing is mounted on `path`.
fn wait_unmounted(path: &Path) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut mounts = File::open("/proc/self/mountinfo").unwrap();
    let deadline = Instant::now() + LIMIT;
    loop {
        // The kernel reports changes since the last read.
        mounts.seek(SeekFrom::Start(0)).unwrap();
        mounts.read_to_end(&mut Vec::new()).unwrap();
        if mounted_on(path).is_none() {
            return;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "still mounted on {}", path.display());
        let left = Timespec { tv_sec: left.as_secs() as i64 + 1, tv_nsec: 0 };
        poll(&mut [PollFd::new(&mounts, PollFlags::PRI)], Some(&left)).unwrap();
    }
}

impl Mounted {
    fn new() -> Mounted {
        Mounted::with(Memory::new(TTL), &MountOptions::default(), config())
    }

    fn with(memory: Arc<Memory>, options: &MountOptions, config: Config) -> Mounted {
        let dir = tempfile::tempdir().unwrap();
        // For tests of access by other users.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mount = Mount::new(dir.path(), options).unwrap();
        Mounted::over(memory, mount, config, dir)
    }

    fn over(memory: Arc<Memory>, mount: Mount, config: Config, dir: TempDir) -> Mounted {
        let runtime = Runtime::new().unwrap();
        let over_io_uring = config.io_uring.is_some();
        let session = runtime.block_on(Session::start(mount, memory.clone(), config)).unwrap();
        assert_eq!(session.started().negotiated.io_uring(), over_io_uring);
        let session = Some(runtime.spawn(session.run()));
        Mounted { memory, session, runtime, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn notifier(&self) -> Notifier {
        self.memory.started.get().unwrap().notifier.clone()
    }

    /// Unmounts, waits for the end of the session, and checks that nothing is left.
    fn end(mut self) -> Arc<Memory> {
        match unmount(self.dir.path(), false) {
            // Another test is starting a program, whose process has a copy of every descriptor
            // between fork and exec.
            Err(Error::Busy(_)) => unmount(self.dir.path(), true).unwrap(),
            other => other.unwrap(),
        }
        let session = self.session.take().unwrap();
        let end = self.runtime.block_on(async { tokio::time::timeout(LIMIT, session).await });
        let end = end.expect("no end: has another mount namespace a copy of the mount?").unwrap();
        assert!(matches!(end.cause, Cause::Unmounted), "{end:?}");
        assert_eq!(end.abandoned, 0);
        assert!(self.memory.destroyed());
        assert_eq!(mounted_on(self.dir.path()), None);
        self.memory.clone()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.session.is_some() {
            // A failed test must leave nothing behind, including blocked callers.
            self.memory.release_all();
            let _ = unmount(self.dir.path(), true);
        }
    }
}

/// Runs `body` on a thread and returns its result; panics if that takes too long.
fn in_time<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(body()));
    result.recv_timeout(LIMIT).expect("the file system hangs")
}

/// Waits for the end of a child, for a second at most.
fn reaped_within_a_second(child: Child) -> std::process::ExitStatus {
    reaped_within(Duration::from_secs(1), child)
}

fn reaped_within(limit: Duration, mut child: Child) -> std::process::ExitStatus {
    let (done, status) = mpsc::channel();
    thread::spawn(move || done.send(child.wait().unwrap()));
    status.recv_timeout(limit).expect("the caller was not freed in time")
}

/// How a blocked caller is ended.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    /// SIGKILL to a process.
    Kill,
    /// SIGINT to a process; dd has a handler for it, the others have none.
    Interrupt,
    /// SIGHUP with a handler: the call returns `EINTR` after the server was silent for a second.
    Handler,
}

/// Number of runs of the handler.
static HANDLED: AtomicUsize = AtomicUsize::new(0);

/// Installs a handler for SIGUSR1 and SIGHUP that does nothing, without `SA_RESTART`.
fn handle_signals() {
    extern "C" fn count(_signal: libc::c_int) {
        HANDLED.fetch_add(1, Ordering::SeqCst);
    }
    // SAFETY: a zeroed sigaction is a valid one, and the handler is safe to run at any time.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as *const () as usize;
        for signal in [libc::SIGUSR1, libc::SIGHUP] {
            assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
        }
    }
}

/// Blocks a call in `operation`, ends its caller, and checks that it was freed at once with the
/// right error, and that the operation was dropped.
fn free_blocked(
    mounted: &Mounted,
    operation: &'static str,
    by: By,
    command: &[&str],
    call: impl FnOnce() -> io::Result<()> + Send + 'static,
) {
    let memory = &mounted.memory;
    let (begun, dropped) = (memory.begun(operation), memory.dropped(operation));
    memory.hold(operation);
    match by {
        By::Kill | By::Interrupt => {
            let mut child = Command::new(command[0]);
            child.args(&command[1..]).stdout(Stdio::null()).stderr(Stdio::null());
            let child = child.spawn().unwrap();
            memory.wait_begun(operation, begun + 1);
            let signal = if by == By::Kill { libc::SIGKILL } else { libc::SIGINT };
            let pid = rustix::process::Pid::from_child(&child);
            let number = rustix::process::Signal::from_named_raw(signal).unwrap();
            rustix::process::kill_process(pid, number).unwrap();
            let handles = by == By::Interrupt && command[0] == "dd";
            let limit = Duration::from_secs(if handles { 2 } else { 1 });
            let status = reaped_within(limit, child);
            assert_eq!(status.signal(), Some(signal), "{operation} {by:?}: {status}");
        }
        By::Handler => {
            let (tell, received) = mpsc::channel();
            let caller = thread::spawn(move || {
                // SAFETY: has no preconditions.
                tell.send(unsafe { libc::pthread_self() }).unwrap();
                call()
            });
            let thread_id = received.recv().unwrap();
            memory.wait_begun(operation, begun + 1);
            let (done, result) = mpsc::channel();
            let joined = thread::spawn(move || {
                let result = caller.join().unwrap();
                // After a failure the receiver is gone.
                let _ = done.send(result);
            });
            // The kernel reports only the first one.
            for signal in [libc::SIGUSR1, libc::SIGHUP] {
                // SAFETY: the thread has not been joined, since its call has not been answered.
                assert_eq!(unsafe { libc::pthread_kill(thread_id, signal) }, 0);
                let early = result.recv_timeout(Duration::from_millis(800));
                assert!(early.is_err(), "{operation}: signal {signal}: {early:?}");
            }
            let result = result
                .recv_timeout(Duration::from_millis(1200))
                .expect("the caller was not freed within two seconds");
            joined.join().unwrap();
            let error = result.expect_err("a call that was interrupted succeeded");
            assert_eq!(error.raw_os_error(), Some(libc::EINTR), "{operation}");
        }
    }
    memory.wait_dropped(operation, dropped + 1);
    memory.release_held(operation);
}

/// A read that bypasses the page cache.
fn read_direct(path: &Path) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let mut data = vec![0; 4096];
    let len = file.read_at(&mut data, 0)?;
    data.truncate(len);
    Ok(data)
}

mod everybody {
    use super::*;

    fn use_files(mounted: &Mounted) {
        let path = mounted.path("file");
        // Longer than several requests, and not a multiple of any size.
        let data: Vec<u8> = (0..3_333_333u32).map(|at| (at % 251) as u8).collect();
        fs::write(&path, &data).unwrap();
        assert!(fs::read(&path).unwrap() == data);
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.write_all_at(b"changed", 100_000).unwrap();
        let mut changed = [0; 9];
        file.read_exact_at(&mut changed, 99_999).unwrap();
        assert_eq!(&changed[1..8], b"changed");
        file.set_len(200_000).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 200_000);
        drop(file);
        fs::rename(&path, mounted.path("renamed")).unwrap();
        assert_eq!(fs::read(&path).unwrap_err().raw_os_error(), Some(libc::ENOENT));
        std::os::unix::fs::symlink("renamed", mounted.path("link")).unwrap();
        assert_eq!(fs::read(mounted.path("link")).unwrap().len(), 200_000);
        fs::hard_link(mounted.path("renamed"), mounted.path("again")).unwrap();
        fs::set_permissions(mounted.path("again"), fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(fs::metadata(mounted.path("renamed")).unwrap().mode(), 0o100_600);
        let mut names: Vec<_> = fs::read_dir(mounted.dir.path())
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                (entry.file_name().into_string().unwrap(), entry.file_type().unwrap().is_symlink())
            })
            .collect();
        names.sort();
        let expected = [("again", false), ("link", true), ("renamed", false)];
        assert_eq!(names, expected.map(|(name, link)| (name.to_owned(), link)));
        for name in ["again", "link", "renamed"] {
            fs::remove_file(mounted.path(name)).unwrap();
        }
        assert_eq!(fs::read_dir(mounted.dir.path()).unwrap().count(), 0);
        assert_eq!(rustix::fs::statfs(mounted.dir.path()).unwrap().f_blocks, 12345);
    }

    #[test]
    fn files_are_created_read_written_listed_and_removed() {
        let mounted = Mounted::new();
        let mounted = in_time(move || {
            use_files(&mounted);
            mounted
        });
        mounted.end();
    }

    #[test]
    fn files_work_with_two_readers() {
        let config = Config { readers: 2, ..config() };
        let mounted = Mounted::with(Memory::new(Duration::ZERO), &MountOptions::default(), config);
        let mounted = in_time(move || {
            use_files(&mounted);
            thread::scope(|scope| {
                for number in 0..8 {
                    let path = mounted.path(&format!("of thread {number}"));
                    scope.spawn(move || {
                        for round in 0..100u32 {
                            fs::write(&path, round.to_string()).unwrap();
                            assert_eq!(fs::read_to_string(&path).unwrap(), round.to_string());
                        }
                    });
                }
            });
            mounted
        });
        mounted.end();
    }

    #[test]
    fn a_long_listing_is_split_and_has_its_lookups() {
        let mounted = Mounted::new();
        for number in 0..1000 {
            mounted.memory.add(&format!("a file with a long name and the number {number:04}"), b"");
        }
        let dir = mounted.dir.path().to_owned();
        let sizes = in_time(move || {
            let entries = fs::read_dir(dir).unwrap();
            entries.map(|entry| entry.unwrap().metadata().unwrap().len()).collect::<Vec<_>>()
        });
        assert_eq!(sizes, [0; 1000]);
        // None, except for names that the kernel has dropped meanwhile, which another test causes.
        assert!(mounted.memory.begun("lookup") < 500);
        assert!(mounted.memory.begun("readdirplus") > 1);
        mounted.end();
    }

    #[test]
    fn a_blocked_caller_can_always_be_freed() {
        handle_signals();
        let mounted =
            Mounted::with(Memory::new(Duration::ZERO), &MountOptions::default(), config());
        mounted.memory.add("file", &[7; 8192]);
        let path = mounted.path("file");
        let text = path.to_str().unwrap();
        let input = format!("if={text}");
        let (dd, cat, stat) = (
            ["dd", &*input, "of=/dev/null", "bs=4096", "count=1", "iflag=direct"],
            ["cat", text],
            ["stat", text],
        );
        for by in [By::Kill, By::Interrupt, By::Handler] {
            let at = path.clone();
            free_blocked(&mounted, "lookup", by, &stat, move || fs::metadata(at).map(drop));
            let at = path.clone();
            free_blocked(&mounted, "getattr", by, &stat, move || fs::metadata(at).map(drop));
            let at = path.clone();
            free_blocked(&mounted, "open", by, &cat, move || {
                // The standard library's open would retry.
                let flags = rustix::fs::OFlags::RDONLY;
                Ok(rustix::fs::open(at, flags, rustix::fs::Mode::empty()).map(drop)?)
            });
            let at = path.clone();
            free_blocked(&mounted, "read", by, &dd, move || read_direct(&at).map(drop));
        }
        // The mount still works.
        assert_eq!(in_time(move || read_direct(&path)).unwrap(), [7; 4096]);
        mounted.end();
    }

    #[test]
    fn a_caller_killed_in_close_is_freed() {
        let mounted = Mounted::new();
        mounted.memory.add("file", b"x");
        mounted.memory.hold("flush");
        let path = mounted.path("file");
        let mut child = Command::new("cat").arg(&path).stdout(Stdio::null()).spawn().unwrap();
        mounted.memory.wait_begun("flush", 1);
        child.kill().unwrap();
        assert_eq!(reaped_within_a_second(child).signal(), Some(libc::SIGKILL));
        mounted.memory.release_held("flush");
        mounted.end();
    }

    /// A caller that gets signals at random times, with two readers, so that interrupts are also
    /// early and late. Its calls end normally: these signals end no process.
    #[test]
    fn signals_in_quick_succession_fail_no_call() {
        handle_signals();
        let config = Config { readers: 2, ..config() };
        let mounted = Mounted::with(Memory::new(Duration::ZERO), &MountOptions::default(), config);
        mounted.memory.add("file", &[7; 4096]);
        let path = mounted.path("file");
        let other = mounted.path("other");
        let (tell, received) = mpsc::channel();
        let (done, finished) = mpsc::channel::<io::Result<()>>();
        let handled = HANDLED.load(Ordering::SeqCst);
        let caller = thread::spawn(move || {
            // SAFETY: has no preconditions.
            tell.send(unsafe { libc::pthread_self() }).unwrap();
            let calls = || -> io::Result<()> {
                while HANDLED.load(Ordering::SeqCst) < handled + 2000 {
                    assert_eq!(read_direct(&path)?, [7; 4096]);
                    fs::write(&other, b"other")?;
                    fs::rename(&other, other.with_extension("moved"))?;
                    fs::remove_file(other.with_extension("moved"))?;
                }
                Ok(())
            };
            done.send(calls()).unwrap();
            // The thread has to stay while it gets signals, until the receiver is gone.
            while done.send(Ok(())).is_ok() {
                thread::yield_now();
            }
        });
        let thread_id = received.recv().unwrap();
        let deadline = Instant::now() + LIMIT;
        loop {
            assert!(Instant::now() < deadline, "the caller hangs, or gets no signals");
            // SAFETY: the thread has not been joined.
            assert_eq!(unsafe { libc::pthread_kill(thread_id, libc::SIGUSR1) }, 0);
            match finished.recv_timeout(Duration::from_micros(50)) {
                Ok(result) => break result.unwrap(),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(error) => panic!("{error}"),
            }
        }
        drop(finished);
        caller.join().unwrap();
        mounted.end();
    }

    #[test]
    fn direct_and_cached_opens_of_a_file_see_the_same() {
        let mounted = Mounted::new();
        let ino = mounted.memory.add("file", &[1; 8192]);
        let path = mounted.path("file");
        in_time(move || {
            let mut options = OpenOptions::new();
            let cached = options.read(true).write(true).open(&path).unwrap();
            let direct = options.custom_flags(libc::O_DIRECT).open(&path).unwrap();
            let read = |file: &File| {
                let mut data = vec![0; 4096];
                file.read_exact_at(&mut data, 4096).unwrap();
                data
            };
            assert_eq!(read(&cached), [1; 4096]);
            direct.write_all_at(&[2; 4096], 4096).unwrap();
            assert_eq!(read(&cached), [2; 4096]);
            cached.write_all_at(&[3; 4096], 4096).unwrap();
            assert_eq!(read(&direct), [3; 4096]);
            assert_eq!(read(&cached), [3; 4096]);
            // A mapping too: its pages belong to the cached open.
            drop(direct);
            let again = File::options()
                .read(true)
                .write(true)
                .custom_flags(libc::O_DIRECT)
                .open(&path)
                .unwrap();
            again.write_all_at(&[4; 4096], 4096).unwrap();
            assert_eq!(read(&cached), [4; 4096]);
        });
        assert_eq!(mounted.memory.content(ino)[4096..], [4; 4096]);
        mounted.end();
    }

    #[test]
    fn notifications_invalidate_the_kernels_caches() {
        let mounted = Mounted::new();
        let memory = mounted.memory.clone();
        let ino = memory.add("file", b"old");
        let path = mounted.path("file");
        let text = |path: &Path| {
            let path = path.to_owned();
            in_time(move || fs::read_to_string(path)).map_err(|error| error.raw_os_error())
        };
        let notifier = mounted.notifier();
        let settle = || mounted.runtime.block_on(notifier.settled());
        assert_eq!(text(&path).unwrap(), "old");
        memory.change(ino, b"new");
        assert_eq!(text(&path).unwrap(), "old", "the kernel was to keep it");
        assert!(notifier.inval_inode(ino, 0, 0));
        settle();
        assert_eq!(text(&path).unwrap(), "new");
        // A name.
        memory.remove("file");
        assert_eq!(text(&path).unwrap(), "new");
        assert!(notifier.inval_entry(ROOT, b"file"));
        settle();
        assert_eq!(text(&path), Err(Some(libc::ENOENT)));
        // A negative entry.
        memory.add("file", b"back");
        assert_eq!(text(&path), Err(Some(libc::ENOENT)));
        assert!(notifier.inval_entry(ROOT, b"file"));
        // Entries that the kernel has not cached are no error.
        assert!(notifier.inval_inode(9999, 0, 0));
        settle();
        assert_eq!(text(&path).unwrap(), "back");
        mounted.end();
    }

    /// The queue waits for the lock of the directory, which a LOOKUP holds that is not answered.
    #[test]
    fn data_is_invalidated_while_other_notifications_are_blocked() {
        let mounted = Mounted::new();
        let (memory, notifier) = (mounted.memory.clone(), mounted.notifier());
        let ino = memory.add("file", b"old");
        let file = {
            let path = mounted.path("file");
            in_time(move || File::open(path)).unwrap()
        };
        let mut text = [0; 3];
        file.read_exact_at(&mut text, 0).unwrap();
        memory.hold("lookup");
        let absent = mounted.path("absent");
        let blocked = thread::spawn(move || absent.symlink_metadata().is_ok());
        memory.wait_begun("lookup", 2);
        assert!(notifier.expire_entry(ROOT, b"other"));
        memory.change(ino, b"new");
        let invalidated = mounted.runtime.block_on(async {
            tokio::time::timeout(LIMIT, notifier.inval_data(ino)).await.is_ok()
        });
        assert!(invalidated, "it waits for the queue");
        file.read_exact_at(&mut text, 0).unwrap();
        assert_eq!(&text, b"new");
        memory.release_all();
        assert!(!blocked.join().unwrap());
        drop(file);
        mounted.end();
    }

    #[test]
    fn all_names_expire_at_once() {
        let mounted = Mounted::with(
            Memory::new(Duration::from_secs(3600)),
            &MountOptions::default(),
            config(),
        );
        let memory = mounted.memory.clone();
        memory.add("gone", b"there");
        let is_there = |name: &str| {
            let path = mounted.path(name);
            in_time(move || path.symlink_metadata().is_ok())
        };
        assert!(is_there("gone") && !is_there("come"));
        memory.remove("gone");
        memory.add("come", b"");
        assert!(is_there("gone") && !is_there("come"), "the kernel was to keep both");
        let started = memory.started.get().unwrap();
        assert_eq!(mounted.notifier().expire_all_names(), started.negotiated.epochs);
        if started.negotiated.epochs {
            mounted.runtime.block_on(mounted.notifier().settled());
            assert!(!is_there("gone") && is_there("come"));
        } else {
            eprintln!("skipped: this kernel's FUSE has no epochs (Linux 6.16)");
        }
        mounted.end();
    }

    #[test]
    fn an_entry_in_use_keeps_its_name_when_it_expires() {
        let mounted = Mounted::with(
            Memory::new(Duration::from_secs(3600)),
            &MountOptions::default(),
            config(),
        );
        mounted.memory.add("used", b"");
        let path = mounted.path("used");
        let open = {
            let path = path.clone();
            in_time(move || fs::File::open(path)).unwrap()
        };
        let name = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
        let looked_up = || mounted.memory.begun("lookup");
        let before = looked_up();
        assert!(mounted.notifier().expire_entry(ROOT, b"used"));
        mounted.runtime.block_on(mounted.notifier().settled());
        assert_eq!(fs::read_link(&name).unwrap(), path);
        let again = path.clone();
        in_time(move || again.symlink_metadata()).unwrap();
        assert_eq!(looked_up(), before + 1);
        assert_eq!(fs::read_link(&name).unwrap(), path);
        // Whereas a dropped name is one that was deleted.
        assert!(mounted.notifier().inval_entry(ROOT, b"used"));
        mounted.runtime.block_on(mounted.notifier().settled());
        assert_ne!(fs::read_link(&name).unwrap(), path);
        drop(open);
        mounted.end();
    }

    #[test]
    fn unused_inodes_are_forgotten_by_prune() {
        let mounted = Mounted::with(
            Memory::new(Duration::from_secs(3600)),
            &MountOptions::default(),
            config(),
        );
        let memory = mounted.memory.clone();
        if !mounted.notifier().prunes() {
            eprintln!("skipped: this kernel's FUSE cannot prune (Linux 6.18)");
            return drop(mounted.end());
        }
        let inos: Vec<u64> =
            (0..1000).map(|at| memory.add(&format!("f{at}"), b"content")).collect();
        let open = mounted.path("f7");
        let all = mounted.dir.path().to_owned();
        let open = in_time(move || {
            for entry in fs::read_dir(all).unwrap() {
                fs::read(entry.unwrap().path()).unwrap();
            }
            File::open(open).unwrap()
        });
        let known = |inos: &[u64]| inos.iter().filter(|ino| memory.lookups(**ino) > 0).count();
        assert_eq!(known(&inos), 1000);
        // Unknown inodes and the root are ignored.
        assert!(mounted.notifier().prune(&[inos.clone(), vec![9999, ROOT]].concat()));
        let busy = inos[7];
        memory.wait_forgotten(|ino| ino != busy);
        assert_eq!(known(&inos), 1);
        let text = in_time(move || io::read_to_string(open).unwrap());
        assert_eq!(text, "content");
        mounted.end();
    }

    /// The cost of extended attributes for writers.
    #[test]
    fn with_handle_killpriv_the_capability_is_requested_once() {
        const WRITES: usize = 20;
        let asked = |handle_killpriv: bool| {
            let config = Config { handle_killpriv, ..config() };
            let memory = Memory::new(Duration::from_secs(3600));
            let mounted = Mounted::with(memory.clone(), &MountOptions::default(), config);
            memory.add("file", b"");
            let file = OpenOptions::new().write(true).open(mounted.path("file")).unwrap();
            let file = in_time(move || {
                for at in 0..WRITES {
                    file.write_all_at(b"x", at as u64).unwrap();
                }
                file
            });
            drop(file);
            mounted.end();
            memory.begun("getxattr")
        };
        assert_eq!((asked(true), asked(false)), (1, WRITES));
    }

    #[test]
    fn a_mount_in_use_is_busy_and_can_be_detached() {
        let mut mounted = Mounted::new();
        mounted.memory.add("file", b"still here");
        let mut file = File::open(mounted.path("file")).unwrap();
        let busy = unmount(mounted.dir.path(), false).unwrap_err();
        assert!(matches!(busy, Error::Busy(_)), "{busy}");
        unmount(mounted.dir.path(), true).unwrap();
        assert_eq!(mounted_on(mounted.dir.path()), None);
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "still here");
        drop(file);
        let end = mounted.runtime.block_on(mounted.session.take().unwrap()).unwrap();
        assert!(matches!(end.cause, Cause::Unmounted), "{end:?}");
        let error = unmount(mounted.dir.path(), false).unwrap_err();
        assert!(matches!(error, Error::Unmount { .. } | Error::Fusermount(_)), "{error}");
    }

    #[test]
    fn dropped_mounts_and_stopped_sessions_are_unmounted() {
        let dir = tempfile::tempdir().unwrap();
        let mount = Mount::new(dir.path(), &MountOptions::default()).unwrap();
        assert!(mounted_on(dir.path()).is_some());
        drop(mount);
        assert_eq!(mounted_on(dir.path()), None);

        let runtime = Runtime::new().unwrap();
        let mount = Mount::new(dir.path(), &MountOptions::default()).unwrap();
        let memory = Memory::new(TTL);
        let session = runtime.block_on(Session::start(mount, memory, config())).unwrap();
        let stopper = session.stopper();
        let session = runtime.spawn(session.run());
        let _open = File::open(dir.path()).unwrap();
        stopper.stop();
        let end = runtime.block_on(session).unwrap();
        assert!(matches!(end.cause, Cause::Stopped), "{end:?}");
        assert_eq!(mounted_on(dir.path()), None);
    }

    #[test]
    fn a_mount_has_the_requested_name_and_options() {
        let options = MountOptions {
            fsname: "host:/a,b\\c d".into(),
            subtype: "kind".into(),
            read_only: true,
            exec: false,
            default_permissions: true,
            max_read: Some(65_536),
            ..MountOptions::default()
        };
        let mounted = Mounted::with(Memory::new(TTL), &options, config());
        let line = mounted_on(mounted.dir.path()).unwrap();
        for part in [
            " ro,nosuid,nodev,noexec,",
            " fuse.kind host:/a,b\\134c\\040d ",
            "default_permissions",
            "max_read=65536",
        ] {
            assert!(line.contains(part), "{part:?} is not in {line:?}");
        }
        let error = fs::write(mounted.path("file"), "").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EROFS));
        mounted.end();
    }

    #[test]
    fn an_invalid_mount_point_is_explained() {
        let dir = tempfile::tempdir().unwrap();
        let mount = |path: &Path| Mount::new(path, &MountOptions::default()).unwrap_err();
        let missing = mount(&dir.path().join("none"));
        assert!(matches!(missing, Error::MountPointMissing(_)), "{missing}");
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let file = mount(&file);
        assert!(matches!(file, Error::MountPointNotADirectory(_)), "{file}");
        let wrong = mount(Path::new("/dev/fd/987"));
        assert!(matches!(wrong, Error::NotADevice(987)), "{wrong}");
    }

    #[test]
    fn other_users_are_admitted_only_if_allowed() {
        let options = MountOptions { visibility: Visibility::Everybody, ..MountOptions::default() };
        let configured = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
        let allowed = rustix::process::geteuid().is_root()
            || configured.lines().any(|line| line.trim() == "user_allow_other");
        let dir = tempfile::tempdir().unwrap();
        match Mount::new(dir.path(), &options) {
            Ok(_) => assert!(allowed),
            Err(error) => {
                assert!(!allowed && matches!(error, Error::AllowOtherNotPermitted), "{error}");
            }
        }
        assert_eq!(mounted_on(dir.path()), None);
    }

    /// Configures [`mounts_and_is_killed`] in its process.
    const AUTO_UNMOUNT: &str = "FUSE_TEST_AUTO_UNMOUNT";
    const MOUNT_ON: &str = "FUSE_TEST_MOUNT_ON";

    /// Mounts, if run by [`killed_after_mounting`], and waits to be killed.
    #[test]
    fn mounts_and_is_killed() {
        let Some(dir) = std::env::var_os(MOUNT_ON) else { return };
        let auto_unmount = std::env::var_os(AUTO_UNMOUNT).is_some();
        let options = MountOptions { auto_unmount, ..MountOptions::default() };
        let _mount = Mount::new(Path::new(&dir), &options).unwrap();
        eprintln!("mounted");
        loop {
            thread::park();
        }
    }

    /// Mounts on `dir` in another process and kills that.
    fn killed_after_mounting(dir: &Path, auto_unmount: bool) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "everybody::mounts_and_is_killed", "--nocapture"])
            .env(MOUNT_ON, dir)
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        if auto_unmount {
            command.env(AUTO_UNMOUNT, "1");
        }
        let mut child = command.spawn().unwrap();
        let mut word = [0; 7];
        child.stderr.take().unwrap().read_exact(&mut word).unwrap();
        assert_eq!(&word, b"mounted");
        assert!(mounted_on(dir).is_some());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Has the test [`stops_twice`] mount on this directory.
    const STOP_ON: &str = "FUSE_TEST_STOP_ON";

    /// Serves a mount and stops it twice, if run by [`a_second_stop_ends_an_unmount_that_hangs`].
    #[test]
    fn stops_twice() {
        let Some(dir) = std::env::var_os(STOP_ON) else { return };
        let runtime = Runtime::new().unwrap();
        let mount = Mount::new(Path::new(&dir), &MountOptions::default()).unwrap();
        let session = Session::start(mount, Memory::new(TTL), Config::default());
        let session = runtime.block_on(session).unwrap();
        let stopper = session.stopper();
        let mut end = runtime.spawn(session.run());
        stopper.stop();
        let mut in_time =
            |limit| runtime.block_on(async { tokio::time::timeout(limit, &mut end).await.is_ok() });
        let ended_at_once = in_time(Duration::from_millis(500));
        stopper.stop();
        eprintln!("{ended_at_once} {}", in_time(Duration::from_secs(5)));
        std::process::exit(0);
    }

    #[test]
    fn a_second_stop_ends_an_unmount_that_hangs() {
        if rustix::process::geteuid().is_root() {
            return eprintln!("skipped: root unmounts without fusermount3");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = std::env::var("PATH").unwrap();
        let found = path.split(':').map(|dir| Path::new(dir).join("fusermount3"));
        let real = found.into_iter().find(|program| program.exists()).unwrap();
        let bin = tempfile::tempdir().unwrap();
        let script =
            format!("#!/bin/sh\n[ \"$1\" = -u ] && exec sleep 8\nexec {} \"$@\"\n", real.display());
        let program = bin.path().join("fusermount3");
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let mut server = Command::new(std::env::current_exe().unwrap());
        server
            .args(["--exact", "everybody::stops_twice", "--nocapture"])
            .env(STOP_ON, dir.path())
            .env("PATH", format!("{}:{path}", bin.path().display()));
        // Not read to the end: the hanging program has it open, too.
        let mut server = server.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut words = [0; 11];
        server.stderr.take().unwrap().read_exact(&mut words).unwrap();
        server.wait().unwrap();
        let _ = unmount(dir.path(), true);
        assert_eq!(&words, b"false true\n");
    }

    /// Has the test [`serves_and_is_killed`] mount on this directory.
    const SERVE_ON: &str = "FUSE_TEST_SERVE_ON";

    /// Serves a mount, if run by [`a_kill_during_a_notification_frees_all`], answers no LOOKUP, and
    /// expires a name while the kernel holds the lock of the directory for one.
    #[test]
    fn serves_and_is_killed() {
        let Some(dir) = std::env::var_os(SERVE_ON) else { return };
        let memory = Memory::new(TTL);
        memory.hold("lookup");
        let runtime = Runtime::new().unwrap();
        let mount = Mount::new(Path::new(&dir), &MountOptions::default()).unwrap();
        let session = runtime.block_on(Session::start(mount, memory.clone(), Config::default()));
        let session = session.unwrap();
        let notifier = memory.started.get().unwrap().notifier.clone();
        runtime.spawn(session.run());
        eprintln!("mounted");
        memory.wait_begun("lookup", 1);
        notifier.expire_entry(ROOT, b"x");
        // The thread is in the kernel by then.
        thread::sleep(Duration::from_millis(200));
        eprintln!("blocked");
        loop {
            thread::park();
        }
    }

    #[test]
    fn a_kill_during_a_notification_frees_all() {
        let dir = tempfile::tempdir().unwrap();
        let mut server = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "everybody::serves_and_is_killed", "--nocapture"])
            .env(SERVE_ON, dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut words = server.stderr.take().unwrap();
        let mut word = [0; 8];
        words.read_exact(&mut word).unwrap();
        let caller = Command::new("stat")
            .arg(dir.path().join("file"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        words.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"blocked\n");
        server.kill().unwrap();
        let freed = thread::spawn(move || reaped_within_a_second(caller));
        let ended = thread::spawn(move || reaped_within_a_second(server));
        let result = (freed.join(), ended.join());
        // If they are not freed, only the abort of the connection frees them.
        if result.0.is_err() && rustix::process::geteuid().is_root() {
            let _ = rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::FORCE);
        }
        let _ = unmount(dir.path(), true);
        assert!(result.0.is_ok_and(|status| !status.success()) && result.1.is_ok());
    }

    #[test]
    fn auto_unmount_unmounts_after_a_kill() {
        let dir = tempfile::tempdir().unwrap();
        killed_after_mounting(dir.path(), true);
        wait_unmounted(dir.path());
        // The watcher does not disturb a regular end.
        let options = MountOptions { auto_unmount: true, ..MountOptions::default() };
        let mounted = Mounted::with(Memory::new(TTL), &options, config());
        mounted.end();
    }

    #[test]
    fn a_dead_mount_is_explained_and_can_be_unmounted() {
        let dir = tempfile::tempdir().unwrap();
        killed_after_mounting(dir.path(), false);
        let error = Mount::new(dir.path(), &MountOptions::default()).unwrap_err();
        let text = error.to_string();
        unmount(dir.path(), false).unwrap();
        assert!(matches!(error, Error::MountPointDead(_)), "{error}");
        assert!(text.contains("fusermount3 -u /"), "{text}");
        assert_eq!(mounted_on(dir.path()), None);
    }
}

/// Tests that only root can run.
mod as_root {
    use super::*;

    fn assert_root() {
        assert!(rustix::process::geteuid().is_root(), "this test has to be run by root");
    }

    /// A command that runs as `nobody`.
    fn nobody(program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program);
        command
    }

    #[test]
    fn an_unprivileged_user_can_mount() {
        run_as_nobody(false);
    }

    /// Runs the tests of [`everybody`] as `nobody`.
    fn run_as_nobody(over_io_uring: bool) {
        assert_root();
        // The mode that udev sets; without udev the kernel's default is for root only.
        fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666)).unwrap();
        // A directory that `nobody` can reach.
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let program = dir.path().join("mounted");
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let mut command = nobody(&program);
        command.arg("everybody::").current_dir("/").env_remove("TMPDIR");
        if over_io_uring {
            command.env(OVER_IO_URING, "1");
        }
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("a_blocked_caller_can_always_be_freed ... ok"), "{text}");
    }

    #[test]
    fn all_tests_pass_over_io_uring() {
        assert_root();
        let Some(_enabled) = enabled::io_uring("all_tests_pass_over_io_uring") else { return };
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--skip", "an_unprivileged_user_can_mount", "--skip", "over_io_uring"])
            .env(OVER_IO_URING, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("a_blocked_caller_can_always_be_freed ... ok"), "{text}");
        run_as_nobody(true);
    }

    #[test]
    fn all_lookups_and_handles_are_returned() {
        assert_root();
        let mounted = Mounted::new();
        for number in 0..300 {
            mounted.memory.add(&format!("file {number}"), b"content");
        }
        let dir = mounted.dir.path().to_owned();
        in_time(move || {
            for entry in fs::read_dir(&dir).unwrap() {
                assert_eq!(fs::read(entry.unwrap().path()).unwrap(), b"content");
            }
            fs::write(dir.join("new"), "x").unwrap();
            fs::hard_link(dir.join("new"), dir.join("again")).unwrap();
            std::os::unix::fs::symlink("new", dir.join("link")).unwrap();
            assert!(fs::metadata(dir.join("none")).is_err());
            // Drops unused dentries and inodes.
            fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
        });
        mounted.memory.wait_balanced();
        mounted.end();
    }

    #[test]
    fn reads_pass_through_to_the_backing_file() {
        assert_root();
        let memory = Memory::new(TTL);
        let ino = memory.add("file", &[0; 6]);
        let mut backing = tempfile::tempfile().unwrap();
        backing.write_all(b"backed").unwrap();
        *memory.backing.lock().unwrap() = Some(backing.try_clone().unwrap().into());
        let config = Config { passthrough: true, ..config() };
        let mounted = Mounted::with(memory, &MountOptions::default(), config);
        assert!(mounted.memory.started.get().unwrap().negotiated.passthrough());
        let path = mounted.path("file");
        in_time(move || {
            let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
            let mut data = [0; 6];
            file.read_exact_at(&mut data, 0).unwrap();
            assert_eq!(&data, b"backed");
            file.write_all_at(b"BA", 0).unwrap();
        });
        let mut data = String::new();
        backing.seek(SeekFrom::Start(0)).unwrap();
        backing.read_to_string(&mut data).unwrap();
        assert_eq!(data, "BAcked");
        let memory = mounted.end();
        assert_eq!((memory.begun("read"), memory.begun("write")), (0, 0));
        assert_eq!(memory.content(ino), [0; 6]);
    }

    #[test]
    fn allow_root_keeps_others_out() {
        assert_root();
        for (visibility, gets_in) in
            [(Visibility::OwnerAndRoot, false), (Visibility::Everybody, true)]
        {
            let options = MountOptions { visibility, ..MountOptions::default() };
            let mounted = Mounted::with(Memory::new(TTL), &options, config());
            mounted.memory.add("file", b"");
            let output = nobody("stat").arg(mounted.path("file")).output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.success(), gets_in, "{error}");
            assert_eq!(error.contains("Permission denied"), !gets_in, "{error}");
            assert!(fs::metadata(mounted.path("file")).is_ok());
            mounted.end();
        }
    }

    #[test]
    fn a_mount_by_another_process_is_served() {
        assert_root();
        let dir = tempfile::tempdir().unwrap();
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
        let number = device.as_fd().as_raw_fd();
        let data = format!("fd={number},rootmode=40000,user_id=0,group_id=0");
        let data = std::ffi::CString::new(data).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("other", dir.path(), "fuse", flags, Some(&*data)).unwrap();
        // Ownership is passed on.
        let _ = std::os::fd::IntoRawFd::into_raw_fd(device);
        let point = PathBuf::from(format!("/dev/fd/{number}"));
        let mount = Mount::new(&point, &MountOptions::default()).unwrap();
        assert_eq!(mount.path(), None);
        let mounted = Mounted::over(Memory::new(TTL), mount, config(), dir);
        let path = mounted.path("file");
        in_time(move || fs::write(path, "x")).unwrap();
        mounted.end();
    }
}
