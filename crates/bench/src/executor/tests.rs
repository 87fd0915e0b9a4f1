use super::*;

use std::fs;
use std::io::Read;

const LONG: Duration = Duration::from_secs(30);

fn sh(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// A program with a pipe as standard output, whose end is seen when all its processes are dead.
fn lifeline(command: Command) -> (Program, std::io::PipeReader) {
    let (reader, writer) = std::io::pipe().unwrap();
    (Program::from(command).stdout(writer), reader)
}

fn assert_all_dead(mut lifeline: std::io::PipeReader) {
    assert!(wait_readable(&[&lifeline], Duration::from_secs(5)), "somebody lives");
    lifeline.read_to_end(&mut Vec::new()).unwrap();
}

/// Waits until a program in the background has printed something.
fn wait_for_words(background: &Background) {
    let deadline = Instant::now() + LONG;
    while background.words().is_empty() {
        assert!(background.is_running() && Instant::now() < deadline, "it has printed nothing");
        std::thread::yield_now();
    }
}

#[test]
fn status_words_and_seconds_are_told() {
    let ran = Executor::new().run(sh("echo out; echo err >&2; sleep 0.05; exit 3"), LONG).unwrap();
    assert_eq!(ran.output.status.code(), Some(3));
    assert_eq!((&ran.output.stdout[..], &ran.output.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
    assert!(ran.seconds >= 0.05 && ran.seconds < 25.0, "{}", ran.seconds);
    assert!(ran.usage.peak_memory_bytes > 100_000, "{:?}", ran.usage);
    assert!(ran.usage.context_switches > 0, "{:?}", ran.usage);
}

#[test]
fn what_is_not_set_is_empty_and_what_is_set_stays() {
    let executor = Executor::new();
    let ran = executor.succeed(Command::new("cat"), LONG).unwrap();
    assert_eq!(ran.output.stdout, b"");
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in"), dir.path().join("out"));
    fs::write(&input, "words").unwrap();
    let program = Program::from(Command::new("cat"))
        .stdin(fs::File::open(&input).unwrap())
        .stdout(fs::File::create(&output).unwrap());
    let ran = executor.succeed(program, LONG).unwrap();
    assert_eq!(ran.output.stdout, b"");
    assert_eq!(fs::read(&output).unwrap(), b"words");
}

#[test]
fn a_failure_quotes_the_last_words() {
    let executor = Executor::new();
    let script =
        "for i in 1 2 3 4 5 6 7 8; do echo line $i >&2; done; printf 'a\\033b' >&2; exit 1";
    let failure = executor.succeed(sh(script), LONG).unwrap_err();
    let text = failure.to_string();
    assert!(text.starts_with("sh failed (exit status: 1): line 4\n"), "{text}");
    assert!(text.ends_with("line 8\na\\u{1b}b"), "{text}");
    let failure = executor.succeed(sh("echo only this; exit 2"), LONG).unwrap_err();
    assert_eq!(failure.to_string(), "sh failed (exit status: 2): only this");
    let failure = executor.succeed(Command::new("no-such-program"), LONG).unwrap_err();
    let text = failure.to_string();
    assert!(text.starts_with("cannot run no-such-program: No such file"), "{text}");
}

#[test]
fn more_than_a_pipe_holds_is_kept_whole_from_both_streams() {
    let script =
        "head -c 5000000 /dev/zero; head -c 3000000 /dev/zero | tr '\\0' x >&2; echo end >&2";
    let ran = Executor::new().succeed(sh(script), LONG).unwrap();
    assert_eq!(ran.output.stdout.len(), 5_000_000);
    assert_eq!(ran.output.stderr.len(), 1 << 20);
    assert!(ran.output.stderr.ends_with(b"xend\n"));
}

#[test]
fn too_much_output_is_a_failure() {
    let failure = Executor::new().run(sh("head -c 70000000 /dev/zero"), LONG).unwrap_err();
    assert_eq!(failure.to_string(), "sh printed more than 64 MiB");
}

#[test]
fn a_deadline_kills_the_whole_group() {
    // It ignores what it can, and has a child and a grandchild.
    let command = sh("trap '' TERM INT HUP; sleep 1000 & (sleep 1000; true)");
    let (command, lifeline) = lifeline(command);
    let start = Instant::now();
    let limit = Duration::from_millis(200);
    let failure = Executor::new().run(command, limit).unwrap_err();
    assert_eq!(failure, Failure::timed_out(limit));
    assert!(start.elapsed() >= limit && start.elapsed() < LONG, "{:?}", start.elapsed());
    assert_all_dead(lifeline);
}

#[test]
fn an_interrupt_wakes_who_waits_and_refuses_who_comes() {
    let executor = Executor::new();
    let (command, mut lifeline) = lifeline(sh("echo up; sleep 1000"));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| executor.run(command, LONG));
        lifeline.read_exact(&mut [0; 3]).unwrap();
        assert!(!executor.is_interrupted());
        executor.interrupt();
        assert_eq!(waiting.join().unwrap().unwrap_err(), Failure::Interrupted);
    });
    assert_all_dead(lifeline);
    assert!(executor.is_interrupted());
    assert_eq!(executor.run(sh("true"), LONG).unwrap_err(), Failure::Interrupted);
    assert_eq!(executor.spawn(sh("true")).unwrap_err(), Failure::Interrupted);
    executor.for_cleanup().succeed(sh("true"), LONG).unwrap();
}

#[test]
fn the_end_counts_though_others_hold_the_output() {
    // The child in the background keeps both pipes open.
    let ran = Executor::new().succeed(sh("sleep 1000 & echo $!"), LONG).unwrap();
    let pid: i32 = String::from_utf8(ran.output.stdout).unwrap().trim().parse().unwrap();
    assert!(ran.seconds < 20.0);
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn the_end_counts_though_others_go_on_printing() {
    let (executor, dir) = (Executor::new(), tempfile::tempdir().unwrap());
    let pid_file = dir.path().join("pid");
    let script = format!("yes & echo $! > '{}'; exec true", pid_file.display());
    let end_yes = || {
        let pid: i32 = std::fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    };
    let ran = executor.succeed(sh(&script), LONG).unwrap();
    end_yes();
    assert!(ran.output.stdout.is_empty() || ran.output.stdout.starts_with(b"y\n"));
    let background = executor.spawn(sh(&script)).unwrap();
    assert!(background.wait(LONG).unwrap().success());
    end_yes();
}

#[test]
fn cpu_of_a_program_includes_what_it_waited_for() {
    let busy = "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done";
    let executor = Executor::new();
    let cpu = |ran: Ran| ran.usage.user_s + ran.usage.system_s;
    let idle = cpu(executor.succeed(sh("true"), LONG).unwrap());
    let direct = cpu(executor.succeed(sh(busy), LONG).unwrap());
    let below = cpu(executor.succeed(sh(&format!("sh -c '{busy}'; true")), LONG).unwrap());
    assert!(idle > 0.0 && direct > idle, "{idle} {direct}");
    assert!(below > direct / 4.0 && below < direct * 4.0 + 0.05, "{direct} {below}");
}

#[test]
fn one_in_the_background_ends_when_it_is_asked() {
    let executor = Executor::new();
    let script = "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.01; done";
    let mut background = executor.spawn(sh(script)).unwrap();
    wait_for_words(&background);
    assert!(background.is_running());
    assert!(Path::new(&format!("/proc/{}", background.pid())).exists());
    assert!(background.stop(LONG));
    assert_eq!(background.ended().unwrap().code(), Some(7));
    // The shell may say that its `sleep` was terminated.
    let words = background.words();
    assert!(words.starts_with("up\n") && words.ends_with("bye"), "{words}");
    assert_eq!(executor.left_behind(), Vec::<String>::new());
}

#[test]
fn one_in_the_background_that_ignores_the_asking_is_killed_with_its_group() {
    let executor = Executor::new();
    // Its child holds a pipe whose end is seen when both are dead.
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    executor.succeed(sh(&format!("mkfifo '{}'", fifo.display())), LONG).unwrap();
    let script = "exec 3>\"$0\"; trap '' TERM; (trap '' TERM; sleep 1000) & echo up; sleep 1000";
    let mut command = sh(script);
    command.arg(&fifo);
    let mut background = executor.spawn(command).unwrap();
    let mut held = fs::File::open(&fifo).unwrap();
    wait_for_words(&background);
    assert!(!background.stop(Duration::from_millis(100)));
    assert!(!background.is_running());
    assert_eq!(held.read(&mut [0]).unwrap(), 0);
}

#[test]
fn one_in_the_background_dies_with_its_owner_and_by_itself() {
    let executor = Executor::new();
    let background = executor.spawn(sh("exec sleep 1000")).unwrap();
    let pid = rustix::process::Pid::from_raw(background.pid() as i32).unwrap();
    drop(background);
    assert!(rustix::process::test_kill_process(pid).is_err());
    let background = executor.spawn(sh("echo no >&2; exit 5")).unwrap();
    assert_eq!(background.wait(LONG).unwrap().code(), Some(5));
    assert_eq!(background.words(), "no");
    let failure = executor.spawn(Command::new("no-such-program")).unwrap_err();
    assert!(failure.to_string().starts_with("cannot run no-such-program"), "{failure}");
}

#[test]
fn programs_are_found_as_a_shell_finds_them() {
    assert!(find_program("sh").is_some_and(|path| path.is_absolute()));
    assert_eq!(find_program("/bin/sh"), Some("/bin/sh".into()));
    assert_eq!(find_program("/etc/passwd"), None);
    assert_eq!(find_program("no-such-program"), None);
    let quiet = Command::new(find_program("true").unwrap());
    let quiet = Program::from(quiet).stdout(Stdio::null());
    Executor::new().succeed(quiet, LONG).unwrap();
}

/// Waits for the event of a change of the mount table until `path` is a mount point.
fn wait_mounted(path: &Path) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut table = fs::File::open("/proc/self/mountinfo").unwrap();
    let deadline = Instant::now() + LONG;
    loop {
        let mut text = String::new();
        std::io::Seek::rewind(&mut table).unwrap();
        table.read_to_string(&mut text).unwrap();
        if text.lines().any(|line| line.split(' ').nth(4) == path.to_str()) {
            return;
        }
        assert!(Instant::now() < deadline, "{} is no mount point", path.display());
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        let _ = poll(&mut [PollFd::new(&table, PollFlags::PRI)], Some(&second));
    }
}

#[test]
fn a_reader_of_a_dead_mount_costs_its_deadline_and_little_more() {
    let dir = tempfile::tempdir().unwrap();
    let (mount, scratch) = (dir.path().join("mount"), dir.path().join("scratch"));
    fs::create_dir(&mount).unwrap();
    fs::create_dir(&scratch).unwrap();
    fs::write(scratch.join("file"), "words").unwrap();
    let sshd = sandbox::sshd::Sshd::start(sandbox::sshd::Options::default()).unwrap();
    let executor = Executor::new();
    let mut sshfs = Command::new("sshfs");
    let source = format!("{}:{}", sshd.alias(), scratch.display());
    sshfs.arg("-f").arg("-F").arg(sshd.config_path()).arg(source).arg(&mount);
    let mut daemon = executor.spawn(sshfs).unwrap();
    wait_mounted(&mount);
    // sshfs mounts before its ssh is connected, and only a server that is there can be stopped.
    let mut look = Command::new("stat");
    look.arg(&mount);
    executor.succeed(look, LONG).unwrap();
    sshd.stop();
    let mut reader = Command::new("cat");
    reader.arg(mount.join("file"));
    let start = Instant::now();
    let limit = Duration::from_millis(300);
    assert_eq!(executor.run(reader, limit).unwrap_err(), Failure::timed_out(limit));
    // Whether the reader dies at once is the kernel's to say; it is not waited for.
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    // With its daemon the mount is dead, and a reader that is left dies of its signal.
    daemon.kill();
    let mut unmount = Command::new("umount");
    unmount.arg("-l").arg(&mount);
    executor.succeed(unmount, LONG).unwrap();
    drop(sshd);
    sandbox::leftover::assert_none(dir.path());
}
