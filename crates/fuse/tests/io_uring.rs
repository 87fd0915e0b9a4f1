//! What is special about requests through io_uring: a limited number of entries, threads of their
//! own, and a kernel that waits for them. Other tests run over both transports (`mounted.rs`).

mod enabled;
mod memory;

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fuse::{Cause, Config, End, Mount, MountOptions, Session, Stopper, unmount};
use memory::{LIMIT, Memory};
use rustix::fs::{FlockOperation, fcntl_lock};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const DEPTH: u16 = 4;

/// A mounted [`Memory`] whose calls reach it each time.
struct Mounted {
    memory: Arc<Memory>,
    session: tokio::task::JoinHandle<End>,
    stopper: Stopper,
    runtime: Runtime,
    dir: TempDir,
}

impl Mounted {
    fn new(config: Config) -> Mounted {
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory::new(Duration::ZERO);
        memory.add("file", b"content");
        let mount = Mount::new(dir.path(), &MountOptions::default()).unwrap();
        let runtime = Runtime::new().unwrap();
        let config = Config { io_uring: Some(DEPTH), ..config };
        let session = runtime.block_on(Session::start(mount, memory.clone(), config)).unwrap();
        assert!(session.started().negotiated.io_uring());
        let stopper = session.stopper();
        let session = runtime.spawn(session.run());
        Mounted { memory, session, stopper, runtime, dir }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("file")
    }

    /// Waits for the end of the session.
    fn ended(self) -> End {
        let ended = async { tokio::time::timeout(LIMIT, self.session).await };
        self.runtime.block_on(ended).expect("the session does not end").unwrap()
    }

    fn unmount(self) {
        unmount(self.dir.path(), true).unwrap();
        let end = self.ended();
        assert!(matches!(end.cause, Cause::Unmounted), "{end:?}");
    }
}

/// A call on a thread.
fn call<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> mpsc::Receiver<T> {
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(body()));
    result
}

#[track_caller]
fn in_time<T>(result: &mpsc::Receiver<T>) -> T {
    result.recv_timeout(LIMIT).expect("the call hangs")
}

/// Threads that run on one processor, and so use one queue.
fn on_one_processor<T: Send + 'static>(
    count: usize,
    body: impl Fn() -> T + Clone + Send + 'static,
) -> Vec<JoinHandle<T>> {
    let start = move || {
        let body = body.clone();
        thread::spawn(move || {
            let mut one = rustix::thread::CpuSet::new();
            let allowed = rustix::thread::sched_getaffinity(None).unwrap();
            let cpu = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu));
            one.set(cpu.unwrap());
            rustix::thread::sched_setaffinity(None, &one).unwrap();
            body()
        })
    };
    (0..count).map(|_| start()).collect()
}

/// More calls wait than a queue has entries: they are served as others end.
#[test]
fn requests_wait_for_an_entry() {
    let Some(_enabled) = enabled::io_uring("requests_wait_for_an_entry") else { return };
    let mounted = Mounted::new(Config::default());
    mounted.memory.hold("open");
    let file = mounted.file();
    let calls = on_one_processor(5 * usize::from(DEPTH), move || fs::read(&file).unwrap());
    mounted.memory.wait_begun("open", DEPTH.into());
    assert_eq!(mounted.memory.begun("open"), usize::from(DEPTH));
    mounted.memory.release_held("open");
    let joined =
        call(move || calls.into_iter().for_each(|it| assert_eq!(it.join().unwrap(), b"content")));
    in_time(&joined);
    mounted.unmount();
}

/// Callers that wait for a lock leave entries for the request that releases it.
#[test]
fn locks_leave_entries_for_others() {
    let Some(_enabled) = enabled::io_uring("locks_leave_entries_for_others") else { return };
    let mounted = Mounted::new(Config { posix_locks: true, ..Config::default() });
    mounted.memory.hold("setlk");
    let file = mounted.file();
    let held = mounted.memory.clone();
    let calls = on_one_processor(usize::from(DEPTH), move || {
        let file = File::options().write(true).open(&file).unwrap();
        let result = fcntl_lock(file.as_fd(), FlockOperation::LockExclusive);
        if result == Err(rustix::io::Errno::NOLCK) {
            // All others wait; an unlock is served.
            held.wait_begun("setlk", usize::from(DEPTH) / 2);
            fcntl_lock(file.as_fd(), FlockOperation::Unlock).unwrap();
            held.release_held("setlk");
        }
        result.is_ok()
    });
    let joined = call(move || calls.into_iter().map(|it| it.join().unwrap()).collect::<Vec<_>>());
    let locked = in_time(&joined);
    // Those that came after the unlock got a lock, too.
    assert!(locked.contains(&false), "{locked:?}");
    assert!(locked.iter().filter(|it| **it).count() >= usize::from(DEPTH) / 2, "{locked:?}");
    mounted.unmount();
}

fn wait_for(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "it does not happen");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The kernel sends no INTERRUPT for a signal that arrives before the queue's thread has taken over
/// the request.
#[test]
fn a_caller_that_is_killed_before_its_request_is_received_is_freed() {
    let test = "a_caller_that_is_killed_before_its_request_is_received_is_freed";
    let Some(_enabled) = enabled::io_uring(test) else { return };
    let mounted = Mounted::new(Config::default());
    // The kernel looks up one name once at a time.
    mounted.memory.add("other", b"content");
    let dir = mounted.dir.path().to_owned();
    let start = |program: &str, name: &str| {
        let mut command = Command::new("taskset");
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let cpu = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap();
        command.args(["-c", &cpu.to_string(), program]).arg(dir.join(name)).stdout(Stdio::null());
        let child = command.spawn().unwrap();
        let place = format!("/proc/{}/wchan", child.id());
        wait_for(|| fs::read_to_string(&place).unwrap().contains("request_wait_answer"));
        child
    };
    mounted.memory.hold("lookup");
    let killed = mounted.memory.stalled(|| {
        // Its request blocks the thread of the queue.
        let mut first = start("stat", "file");
        let mut second = start("cat", "other");
        second.kill().unwrap();
        first.kill().unwrap();
        call(move || (first.wait(), second.wait()))
    });
    let (first, second) = in_time(&killed);
    assert!(first.is_ok() && second.is_ok());
    mounted.memory.release_held("lookup");
    mounted.unmount();
}

/// The end of the session frees the callers of requests that it has, and of those that wait for an
/// entry.
#[test]
fn a_stopped_session_frees_its_callers() {
    let Some(_enabled) = enabled::io_uring("a_stopped_session_frees_its_callers") else { return };
    let mounted = Mounted::new(Config::default());
    mounted.memory.hold("open");
    let file = mounted.file();
    let calls = on_one_processor(3 * usize::from(DEPTH), move || fs::read(&file));
    mounted.memory.wait_begun("open", DEPTH.into());
    mounted.stopper.stop();
    let detached = call({
        let dir = mounted.dir.path().to_owned();
        move || {
            while fs::read_to_string("/proc/self/mountinfo")
                .unwrap()
                .contains(dir.to_str().unwrap())
            {
                thread::yield_now();
            }
        }
    });
    in_time(&detached);
    // Ends the wait for the running operations.
    mounted.stopper.stop();
    let end = mounted.ended();
    assert!(matches!(end.cause, Cause::Stopped), "{end:?}");
    assert!(end.abandoned > 0, "{end:?}");
    let joined = call(move || calls.into_iter().all(|it| it.join().unwrap().is_err()));
    assert!(in_time(&joined));
}

/// With callers in it, a mount is detached, and the session ends with the last of them.
#[test]
fn a_mount_with_requests_in_flight_is_detached() {
    let Some(_enabled) = enabled::io_uring("a_mount_with_requests_in_flight_is_detached") else {
        return;
    };
    let mounted = Mounted::new(Config::default());
    mounted.memory.hold("read");
    let file = mounted.file();
    let reader = call(move || fs::read(file));
    mounted.memory.wait_begun("read", 1);
    unmount(mounted.dir.path(), true).unwrap();
    assert!(reader.try_recv().is_err());
    mounted.memory.release_held("read");
    assert_eq!(in_time(&reader).unwrap(), b"content");
    let end = mounted.ended();
    assert!(matches!(end.cause, Cause::Unmounted), "{end:?}");
}

/// Replies of many threads, with payloads of all sizes.
#[test]
fn concurrent_callers_get_their_own_replies() {
    let Some(_enabled) = enabled::io_uring("concurrent_callers_get_their_own_replies") else {
        return;
    };
    let mounted = Mounted::new(Config::default());
    let dir = mounted.dir.path().to_owned();
    let calls: Vec<_> = (0..8u8)
        .map(|number| {
            let path = dir.join(number.to_string());
            thread::spawn(move || {
                for round in 0..40usize {
                    let content = vec![number + 1; round * round * 1000];
                    fs::write(&path, &content).unwrap();
                    assert!(fs::read(&path).unwrap() == content);
                }
            })
        })
        .collect();
    let joined = call(move || calls.into_iter().all(|it| it.join().is_ok()));
    assert!(in_time(&joined));
    mounted.unmount();
}

const MOUNT_ON: &str = "FUSE_TEST_MOUNT_ON";

/// Mounts, if run by [`callers_of_a_killed_daemon_are_freed`], and waits to be killed.
#[test]
fn mounts_and_is_killed() {
    let Some(dir) = std::env::var_os(MOUNT_ON) else { return };
    let memory = Memory::new(Duration::ZERO);
    memory.add("file", b"content");
    memory.hold("open");
    let mount = Mount::new(Path::new(&dir), &MountOptions::default()).unwrap();
    let runtime = Runtime::new().unwrap();
    let config = Config { io_uring: Some(DEPTH), ..Config::default() };
    let session = runtime.block_on(Session::start(mount, memory.clone(), config)).unwrap();
    let _session = runtime.spawn(session.run());
    eprintln!("mounted");
    memory.wait_begun("open", DEPTH.into());
    eprintln!("blocked");
    loop {
        thread::park();
    }
}

#[test]
fn callers_of_a_killed_daemon_are_freed() {
    let Some(_enabled) = enabled::io_uring("callers_of_a_killed_daemon_are_freed") else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "mounts_and_is_killed", "--nocapture"])
        .env(MOUNT_ON, dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut words = child.stderr.take().unwrap();
    let mut word = [0; 8];
    words.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"mounted\n");
    let file = dir.path().join("file");
    let calls = on_one_processor(3 * usize::from(DEPTH), move || fs::read(&file));
    words.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"blocked\n");
    child.kill().unwrap();
    let ended = call(move || child.wait());
    in_time(&ended).unwrap();
    let results = call(move || {
        let joined = calls.into_iter().map(|it| it.join().unwrap());
        joined.map(|it: io::Result<_>| it.is_err()).collect::<Vec<_>>()
    });
    assert_eq!(in_time(&results), [true; 3 * DEPTH as usize]);
    unmount(dir.path(), true).unwrap();
}

/// Without the switch the mount is served over `/dev/fuse`.
#[test]
fn without_the_kernels_switch_a_mount_works() {
    let mounted = {
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory::new(Duration::ZERO);
        memory.add("file", b"content");
        let mount = Mount::new(dir.path(), &MountOptions::default()).unwrap();
        let runtime = Runtime::new().unwrap();
        let config = Config { io_uring: Some(DEPTH), ..Config::default() };
        let session = runtime.block_on(Session::start(mount, memory.clone(), config)).unwrap();
        // Another test may have turned it on.
        let stopper = session.stopper();
        let session = runtime.spawn(session.run());
        Mounted { memory, session, stopper, runtime, dir }
    };
    let file = mounted.file();
    assert_eq!(in_time(&call(move || fs::read(file))).unwrap(), b"content");
    mounted.unmount();
}
