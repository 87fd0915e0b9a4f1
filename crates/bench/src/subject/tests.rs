//! Every subject that is installed, over a private server: it starts, shows and copies what it has
//! to, and leaves nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::catalog::{self, Setting, parse};
use super::mounted::Mounted;
use super::{Access, Copier, Direction, Session, Subject, Tuning, target};
use crate::corpus;
use crate::executor::Executor;
use crate::failure::Failure;
use crate::link::LinkSpec;
use crate::results::LeftOut;
use crate::server::Server;
use crate::step::ServerMeter;
use crate::worker::{self, Check, Done, Job, Target, Transfer, Until};

const LIMIT: Duration = Duration::from_secs(30);

/// Names that shells, patterns and quotes could spoil.
const ODD: &str = "it's a [odd] \"name\" * $HOME";

struct World {
    server: Arc<Server>,
    executor: Executor,
    /// Last, so that it is removed when nothing uses it any more.
    dir: TempDir,
}

impl World {
    fn new(link: &str) -> World {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("server")).unwrap();
        let link: LinkSpec = link.parse().unwrap();
        let server = Server::private(&link, Vec::new(), &dir.path().join("server")).unwrap();
        assert!(server.is_private());
        World { server: Arc::new(server), executor: Executor::new(), dir }
    }

    fn setting(&self) -> Setting {
        Setting {
            server: self.server.clone(),
            sshoal: "/nonexistent/sshoal".into(),
            scratch: self.dir.path().join("disk"),
            start_limit: LIMIT,
        }
    }

    fn subjects(&self, list: &str) -> Vec<Box<dyn Subject>> {
        let setting = self.setting();
        parse(list).unwrap().iter().map(|spec| spec.make(&setting).unwrap()).collect()
    }

    /// An empty directory.
    fn fresh(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name.replace([':', '/'], "-"));
        fs::create_dir(&path).unwrap();
        path
    }

    /// Where the server's files really are.
    fn root(&self) -> PathBuf {
        self.server.storage().local().unwrap()
    }

    fn program(&self, script: &str) -> PathBuf {
        let path = self.dir.path().join("program");
        sandbox::write_program(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        path
    }

    fn mounted(&self, program: PathBuf, limit: Duration) -> Mounted {
        Mounted::new("fake", program, Vec::new(), self.server.clone(), limit)
    }

    fn shell(&self, script: &str, words: &[&Path]) -> Result<Vec<u8>, Failure> {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).args(words);
        Ok(self.executor.succeed(command, LIMIT)?.output.stdout)
    }
}

/// Fails when a mount below the world's directory is left.
impl Drop for World {
    fn drop(&mut self) {
        let left = crate::mount_table::below(self.dir.path()).unwrap();
        if !std::thread::panicking() {
            assert!(left.is_empty(), "left mounted: {left:?}");
        }
    }
}

fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("sub/deep")).unwrap();
    fs::write(root.join(ODD), "odd").unwrap();
    fs::write(root.join("sub/deep/data"), vec![7; 300_000]).unwrap();
    fs::write(root.join("sub/empty"), "").unwrap();
}

/// Names to contents; a link's is its target.
fn content(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_owned();
            let kind = fs::symlink_metadata(&path).unwrap().file_type();
            if kind.is_dir() {
                directories.push(path);
            } else if kind.is_symlink() {
                let to = fs::read_link(&path).unwrap();
                found.insert(name, to.into_os_string().into_encoded_bytes());
            } else {
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}

fn is_alive(pid: u32) -> bool {
    // One that is only not yet reaped is dead.
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().trim().starts_with('Z'))
}

fn is_dead_soon(pid: u32) -> bool {
    let deadline = Instant::now() + Duration::from_secs(5);
    while is_alive(pid) {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// Those that can be measured here; the others are named.
fn measurable(world: &World, list: &str) -> Vec<Box<dyn Subject>> {
    let mut subjects = world.subjects(list);
    subjects.retain(|subject| match subject.check(&world.executor) {
        Ok(()) => true,
        Err(LeftOut { name, why, remedy }) => {
            eprintln!("{name} left out: {why} ({remedy:?})");
            false
        }
    });
    subjects
}

fn installed(world: &World, list: &str) -> Vec<Box<dyn Subject>> {
    let subjects = measurable(world, list);
    assert!(!subjects.is_empty(), "nothing of {list} is installed");
    subjects
}

#[test]
fn mounts_show_and_take_files_and_leave_nothing() {
    let world = World::new("loopback");
    make_tree(&world.root().join("tree"));
    for subject in installed(&world, "sshfs,sshfs:opt1,sshfs:opt4,rclone,rclone:writes") {
        let name = subject.info().name;
        let scratch = world.fresh(&name);
        let mut session =
            subject.start(&scratch, &Tuning::default(), &world.executor).expect(&name);
        let pids = session.client_pids();
        // sshfs has an ssh that is not its child.
        assert_eq!(pids.len(), if name.starts_with("sshfs") { 2 } else { 1 }, "{name}");
        let Access::Directory(point) = session.access() else { panic!("{name} is a directory") };
        let point = point.to_owned();
        let shown = world.shell(r#"cat "$1/tree/sub/deep/data""#, &[&point]).expect(&name);
        assert_eq!(shown, vec![7; 300_000], "{name}");

        let new = PathBuf::from(format!("new {name}"));
        let from = world.root().join("tree/sub/deep/data");
        world.shell(r#"cp "$1" "$2""#, &[&from, &point.join(&new)]).expect(&name);
        session.settle(&world.executor).expect(&name);
        assert_eq!(scratch.join("cache/0").exists(), name.starts_with("rclone"), "{name}");
        assert_eq!(fs::read(world.root().join(&new)).unwrap(), vec![7; 300_000], "{name}");

        assert_eq!(session.forget(&world.executor), Ok(true), "{name}");
        assert_ne!(session.client_pids(), pids, "{name} is mounted anew");
        assert!(!scratch.join("cache/0").exists(), "{name} keeps no cache of the mount before");
        world.shell(r#"cmp "$1" "$2""#, &[&from, &point.join(&new)]).expect(&name);
        session.stop(&world.executor).expect(&name);
        assert!(session.client_pids().is_empty() && pids.iter().all(|&pid| !is_alive(pid)));
        assert_eq!(crate::mount_table::at(&point).unwrap(), None, "{name}");
        assert_ne!(subject.info().version, "", "{name}");
    }
}

#[test]
fn the_cipher_of_a_connection_is_the_one_that_was_asked_for() {
    let world = World::new("loopback");
    for subject in installed(&world, "sshfs:aes,scp,ssh-cat") {
        let name = subject.info().name;
        let scratch = world.fresh(&name);
        let mut session =
            subject.start(&scratch, &Tuning::default(), &world.executor).expect(&name);
        session.stop(&world.executor).expect(&name);
        let cipher = subject.info().cipher.expect(&name);
        if name == "sshfs:aes" {
            assert_eq!(cipher, "aes128-gcm@openssh.com");
        } else {
            assert!(cipher.contains("chacha20") || cipher.contains("aes"), "{cipher}");
        }
    }
    // What no server has shows that the tuning arrives, over the subject's own too.
    let none = Tuning { cipher: Some("3des-cbc".to_owned()) };
    for subject in installed(&world, "sshfs:aes") {
        let failure = subject.start(&world.fresh("none"), &none, &world.executor).err().unwrap();
        assert!(failure.to_string().contains("ended"), "{failure}");
    }
    for subject in installed(&world, "scp,sftp,rsync,tar,ssh-cat") {
        let name = subject.info().name;
        let scratch = world.fresh(&format!("none-{name}"));
        let session = subject.start(&scratch, &none, &world.executor).expect(&name);
        fs::write(world.root().join("file"), "x").unwrap();
        let to = scratch.join("to");
        let command = copier(&*session).copy(Direction::Out, false, "file".as_ref(), &to);
        let ran = world.executor.run(command, LIMIT).unwrap();
        let words = String::from_utf8_lossy(&ran.output.stderr).into_owned();
        assert!(!ran.output.status.success() && words.contains("no matching cipher"), "{words}");
    }
}

fn copier(session: &dyn Session) -> &dyn Copier {
    match session.access() {
        Access::Copier(copier) | Access::Stream(copier) => copier,
        _ => panic!("not a copier"),
    }
}

/// Copies file and tree both ways, and the tree once more onto itself after a change.
fn copies(world: &World, subject: &dyn Subject) {
    let name = subject.info().name;
    let scratch = world.fresh(&name);
    let mut session = subject.start(&scratch, &Tuning::default(), &world.executor).expect(&name);
    let executor = &world.executor;
    let run = |command: Command| {
        executor.succeed(command, LIMIT).unwrap_or_else(|failure| panic!("{name}: {failure}"))
    };
    // Only these keep a link as a link.
    let keeps_links = ["rsync", "rsync:-W", "rsyncd", "tar"].contains(&name.as_str());
    let source = world.root().join("tree");
    let link = source.join("sub/link");
    if keeps_links {
        symlink("../sub/empty", &link).unwrap();
    }
    let odd_file = Path::new("tree").join(ODD);
    let local = world.fresh(&format!("{name}-local"));

    run(copier(&*session).copy(Direction::Out, false, &odd_file, &local.join(ODD)));
    assert_eq!(fs::read(local.join(ODD)).unwrap(), b"odd", "{name}");
    let plain = name.replace([':', '/'], "-");
    let pushed = PathBuf::from(format!("{plain} {ODD}"));
    run(copier(&*session).copy(Direction::In, false, &pushed, &local.join(ODD)));
    assert_eq!(fs::read(world.root().join(&pushed)).unwrap(), b"odd", "{name}");

    if !matches!(session.access(), Access::Stream(_)) {
        run(copier(&*session).copy(Direction::Out, true, "tree".as_ref(), &local.join("tree")));
        assert_eq!(content(&local.join("tree")), content(&source), "{name} out");
        let there = PathBuf::from(format!("{plain}-tree"));
        run(copier(&*session).copy(Direction::In, true, &there, &local.join("tree")));
        assert_eq!(content(&world.root().join(&there)), content(&source), "{name} in");
        fs::write(local.join("tree/sub/added"), "more").unwrap();
        fs::write(local.join("tree/sub/empty"), "no more").unwrap();
        run(copier(&*session).copy(Direction::In, true, &there, &local.join("tree")));
        let now = content(&local.join("tree"));
        assert_eq!(content(&world.root().join(&there)), now, "{name} in again");
    }
    if keeps_links {
        fs::remove_file(link).unwrap();
    }
    assert_eq!(session.forget(executor), Ok(true), "{name}");
    let daemons = session.server_pids();
    session.stop(executor).expect(&name);
    assert!(daemons.into_iter().all(is_dead_soon), "{name}");
}

#[test]
fn copiers_copy_files_and_trees_both_ways() {
    let world = World::new("loopback");
    make_tree(&world.root().join("tree"));
    for subject in installed(&world, "scp,sftp,rsync,rsync:-W,rsyncd,tar,ftp,ssh-cat") {
        copies(&world, &*subject);
    }
}

#[test]
fn a_program_that_copies_can_be_given_by_its_command() {
    for script in [
        r#"exec rsync -as -e "$RSYNC_RSH" "$FROM" "$TO""#,
        r#"case $DIRECTION in
pull) exec rsync -as -e "ssh $OPTIONS" "$HOST:$REMOTE$SLASH" "$LOCAL" ;;
push) exec rsync -as -e "ssh $OPTIONS" "$LOCAL$SLASH" "$HOST:$REMOTE" ;;
esac"#,
    ] {
        let world = World::new("loopback");
        make_tree(&world.root().join("tree"));
        let subject = catalog::given("rsync", script, &world.setting());
        assert_eq!(subject.check(&world.executor), Ok(()));
        copies(&world, &*subject);
    }
    let world = World::new("loopback");
    make_tree(&world.root().join("tree"));
    let setting = world.setting();
    let given = |script: &str| catalog::given("given", script, &setting);
    let without = given(r#"rsync "$FROM" "$TO""#);
    let cipher = Tuning { cipher: Some("aes128-ctr".to_owned()) };
    let started = without.start(&world.fresh("cipher"), &cipher, &world.executor);
    assert!(matches!(started, Err(Failure::NotTried { .. })));

    let shown = given(r#"printf '%s\n' "$LOGIN@$ADDRESS:$PORT" >"$TO""#);
    let scratch = world.fresh("shown");
    let session = shown.start(&scratch, &Tuning::default(), &world.executor).unwrap();
    let to = scratch.join("to");
    let command = copier(&*session).copy(Direction::Out, false, "tree/sub/empty".as_ref(), &to);
    world.executor.succeed(command, LIMIT).unwrap();
    let endpoint = world.server.endpoint(&world.executor).unwrap();
    let wanted = format!("{}@{}:{}\n", endpoint.user, endpoint.address, endpoint.port);
    assert_eq!(fs::read_to_string(to).unwrap(), wanted);
}

/// The words that a subject, which copies by this program, gives it.
fn words_of_own(world: &World, name: &str) -> String {
    let sshoal = world.program(r#"printf '%s\n' "$@""#);
    let setting = Setting { sshoal, ..world.setting() };
    let subject = parse(name).unwrap()[0].make(&setting).unwrap();
    let scratch = world.fresh(name);
    let session = subject.start(&scratch, &Tuning::default(), &world.executor).unwrap();
    let to = scratch.join("to");
    let command = copier(&*session).copy(Direction::Out, false, "x".as_ref(), &to);
    let printed = world.executor.succeed(command, LIMIT).unwrap().output.stdout;
    String::from_utf8(printed).unwrap()
}

#[test]
fn options_are_passed_on() {
    let world = World::new("loopback");
    let words = words_of_own(&world, "sshoal-copy:tar:Compression=yes");
    assert!(words.starts_with("pull\n-q\n-o\nhelper=no\n--engine\ntar\n"), "{words}");
    assert!(words.contains("\n-o\nCompression=yes\n--\n"), "{words}");
    let words = words_of_own(&world, "sshoal-copy:two");
    assert!(words.contains("\n--\nbench-server,bench-server-2:/"), "{words}");
    let info = world.subjects("scp:Compression=yes")[0].info();
    assert!(info.command.contains("Compression=yes"), "{}", info.command);
}

#[test]
fn programs_that_copy_use_the_ssh_that_is_given() {
    let world = World::new("loopback");
    make_tree(&world.root().join("tree"));
    let log = world.fresh("logs").join("log");
    let ssh = world.program(&format!("echo used >>{}; exec ssh \"$@\"", log.display()));
    let option = format!("ssh_command={}", ssh.display());
    for name in ["scp", "sftp", "rsync", "tar"] {
        copies(&world, &*world.subjects(&format!("{name}:{option}"))[0]);
        let used = fs::read_to_string(&log).unwrap_or_default().lines().count();
        assert!(used >= 5, "{name}: {used}");
        fs::remove_file(&log).unwrap();
    }
    let words = words_of_own(&world, &format!("sshoal-copy:{option}"));
    assert!(words.contains(&format!("\n-o\n{option}\n--\n")), "{words}");
    let absent = &world.subjects("scp:ssh_command=/no/such/ssh")[0];
    assert!(absent.check(&world.executor).is_err());
}

#[test]
fn a_daemon_beside_the_server_is_behind_the_same_link() {
    let world = World::new("rtt=20ms");
    make_tree(&world.root().join("tree"));
    for subject in installed(&world, "rsyncd,ftp") {
        let name = subject.info().name;
        let scratch = world.fresh(&name);
        let mut session =
            subject.start(&scratch, &Tuning::default(), &world.executor).expect(&name);
        assert_eq!(session.server_pids().len(), 1, "{name}");
        let to = scratch.join("to");
        let command = copier(&*session).copy(Direction::Out, true, "tree".as_ref(), &to);
        let seconds = world.executor.succeed(command, LIMIT).expect(&name).seconds;
        // Greeting, log-in, list and files are more than two round trips.
        assert!(seconds > 0.04, "{name}: {seconds} s through 20 ms");
        let of_server = world.server.wire();
        let own = session.wire(&*world.server).expect("its own links count");
        assert!(own.from_server_bytes > 0 && own.to_server_bytes > 0, "{name}: {own:?}");
        assert_eq!(world.server.wire(), of_server, "{name}: nothing goes by the server's link");
        assert_eq!(content(&to), content(&world.root().join("tree")), "{name}");
        session.stop(&world.executor).expect(&name);
    }
}

#[test]
fn sftp_is_spoken_by_the_floor() {
    let world = World::new("loopback");
    let subjects = installed(&world, "sftp-raw");
    let scratch = world.fresh("scratch");
    let mut session = subjects[0].start(&scratch, &Tuning::default(), &world.executor).unwrap();
    let Access::Sftp(command) = session.access() else { panic!("it is sftp") };
    let mut ssh = command().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // INIT of version 3, answered by VERSION.
    let mut input = ssh.stdin.take().unwrap();
    input.write_all(&[0, 0, 0, 5, 1, 0, 0, 0, 3]).unwrap();
    let mut answer = [0; 9];
    ssh.stdout.take().unwrap().read_exact(&mut answer).unwrap();
    assert_eq!(answer[4..], [2, 0, 0, 0, 3]);
    drop(input);
    ssh.wait().unwrap();
    session.stop(&world.executor).unwrap();
}

/// Does a job with a file of a session that is NFS.
fn by_nfs(session: &dyn Session, file: &str, job: impl FnOnce(Target) -> Job) -> Done {
    try_by_nfs(session, file, job).unwrap_or_else(|failure| panic!("{file}: {failure}"))
}

fn try_by_nfs(
    session: &dyn Session,
    file: &str,
    job: impl FnOnce(Target) -> Job,
) -> Result<Done, Failure> {
    let Access::Nfs { port, export } = session.access() else { panic!("it is NFS") };
    worker::run(&job(Target::Nfs { port, path: export.join(file) }))
}

const FILE_BYTES: u64 = (1 << 20) + 3 * 4096;

fn in_sequence(target: Target) -> Transfer {
    Transfer { depth: 32, ..Transfer::pass(target, FILE_BYTES, 64 << 10) }
}

fn at_random(target: Target, depth: u32) -> Transfer {
    Transfer { depth, ..Transfer::at_random(target, FILE_BYTES, 7, Until::Pass) }
}

#[test]
fn files_are_read_and_written_by_nfs_and_wrong_data_are_found() {
    let world = World::new("loopback");
    for subject in measurable(&world, "nfs-user") {
        let info = subject.info();
        assert_eq!(info.kind, "floor");
        assert!(info.command.contains("without kernel client"), "{}", info.command);
        let before = content_names("/var/run".as_ref());
        let path = corpus::file(&world.root(), "sub/file", FILE_BYTES, 1).unwrap();
        let scratch = world.fresh("a");
        let mut session = subject.start(&scratch, &Tuning::default(), &world.executor).unwrap();
        let right = Check::Content { seed: 1 };
        let check = || right.clone();
        let read = |make: &dyn Fn(Target) -> Transfer| {
            try_by_nfs(&*session, "sub/file", |it| Job::Read { transfer: make(it), check: check() })
        };
        let done = read(&in_sequence).unwrap();
        assert_eq!((done.bytes, done.operations, done.verified), (FILE_BYTES, 17, true));
        for depth in [1, 32] {
            let done = read(&|it| at_random(it, depth)).unwrap();
            assert_eq!((done.bytes, done.operations), (FILE_BYTES, FILE_BYTES / 4096));
            assert_eq!(done.latency.unwrap().count, done.operations);
        }
        assert!(read(&|it| Transfer { file_bytes: FILE_BYTES - 4096, ..in_sequence(it) }).is_err());

        // A new file, then the same over it at random places.
        let write = |seed, create, depth| {
            move |target: Target| {
                let transfer = match create {
                    true => in_sequence(target),
                    false => at_random(target, depth),
                };
                Job::Write { transfer, seed, create }
            }
        };
        let new = world.root().join("sub/new");
        by_nfs(&*session, "sub/new", write(2, true, 32));
        assert_eq!(corpus::digest(&new).unwrap(), corpus::digest_content(2, FILE_BYTES));
        let exists = try_by_nfs(&*session, "sub/new", write(2, true, 32)).unwrap_err();
        assert!(exists.to_string().contains("File exists"), "{exists}");
        for (seed, depth) in [(3, 1), (4, 32)] {
            by_nfs(&*session, "sub/new", write(seed, false, depth));
            assert_eq!(corpus::digest(&new).unwrap(), corpus::digest_content(seed, FILE_BYTES));
        }
        let absent = try_by_nfs(&*session, "sub/absent", write(2, false, 1)).unwrap_err();
        assert!(absent.to_string().contains("No such file"), "{absent}");

        // The server has kept nothing of the file that was changed behind its back.
        let mut bytes = fs::read(&path).unwrap();
        bytes[700_001] ^= 1;
        fs::write(&path, bytes).unwrap();
        let flipped = read(&in_sequence).unwrap_err();
        assert_eq!(flipped, Failure::wrong("other data at offset 700001"));

        let pids = session.server_pids();
        assert_eq!(pids.len(), 1);
        session.stop(&world.executor).unwrap();
        assert!(is_dead_soon(pids[0]));
        assert_eq!(content_names("/var/run".as_ref()), before, "it has left something");
    }
}

#[test]
fn nfs_is_behind_the_link_and_closed_to_other_users() {
    let world = World::new("rtt=20ms");
    for subject in measurable(&world, "nfs-user") {
        corpus::file(&world.root(), "file", FILE_BYTES, 1).unwrap();
        let scratch = world.fresh("a");
        let mut session = subject.start(&scratch, &Tuning::default(), &world.executor).unwrap();
        let done = by_nfs(&*session, "file", |target| Job::Read {
            transfer: in_sequence(target),
            check: Check::Content { seed: 1 },
        });
        // OPEN, its confirmation, the data and CLOSE are four round trips.
        assert!(done.seconds > 0.08, "{} s through 20 ms", done.seconds);
        let Access::Nfs { port, .. } = session.access() else { panic!("it is NFS") };
        // This port is anybody's: the link ends the connection at once.
        let mut stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stranger.set_read_timeout(Some(LIMIT)).unwrap();
        assert_eq!(stranger.read(&mut [0]).unwrap(), 0);
        session.stop(&world.executor).unwrap();
    }
}

#[test]
fn a_program_that_does_not_mount_is_a_failure_in_its_own_words() {
    let world = World::new("loopback");
    let subject = world.mounted(world.program("echo no route to anything >&2; exit 3"), LIMIT);
    let tuning = Tuning::default();
    let failure = subject.start(&world.fresh("a"), &tuning, &world.executor).err().unwrap();
    let words = failure.to_string();
    assert!(words.contains("no route to anything") && words.contains('3'), "{words}");

    let limit = Duration::from_millis(300);
    let pid = world.dir.path().join("pid");
    let sleeper = format!("echo $$ >'{}'; exec sleep 600", pid.display());
    let subject = world.mounted(world.program(&sleeper), limit);
    let failure = subject.start(&world.fresh("b"), &tuning, &world.executor).err().unwrap();
    assert_eq!(failure, Failure::timed_out(limit));
    let pid: u32 = fs::read_to_string(pid).unwrap().trim().parse().unwrap();
    assert!(is_dead_soon(pid));

    let subject = world.mounted("/nonexistent/program".into(), LIMIT);
    assert!(subject.check(&world.executor).unwrap_err().why.contains("not installed"));
}

#[test]
fn a_daemon_that_leaves_the_foreground_is_found_and_killed() {
    let world = World::new("loopback");
    let pid = world.dir.path().join("pid");
    // The mount point is its last argument; setsid leads it out of the group of the program.
    let daemon = "trap : TERM; while :; do sleep 1; done";
    let script = format!(
        "for point; do :; done; setsid sh -c 'echo $$ >\"$1\"; {daemon}' sh '{pid}' \"$point\" & \
         while [ ! -s '{pid}' ]; do sleep 0.01; done",
        pid = pid.display()
    );
    let subject = world.mounted(world.program(&script), LIMIT);
    let failure = subject.start(&world.fresh("a"), &Tuning::default(), &world.executor);
    assert!(failure.err().unwrap().to_string().contains("ended"));
    let pid: u32 = fs::read_to_string(pid).unwrap().trim().parse().unwrap();
    assert!(is_dead_soon(pid), "process {pid} is left");
}

#[test]
fn however_a_mount_ends_nothing_is_left() {
    let world = World::new("loopback");
    let subject = installed(&world, "sshfs").remove(0);
    let start = |name: &str| {
        let scratch = world.fresh(name);
        subject.start(&scratch, &Tuning::default(), &world.executor).unwrap()
    };
    let signal = |pid: u32, signal: Signal| {
        kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
    };

    // Its daemon is stopped, and a reader waits in it for ever.
    let mut session = start("stopped");
    let Access::Directory(point) = session.access() else { panic!("it is a directory") };
    let point = point.to_owned();
    let pid = session.client_pids()[0];
    signal(pid, Signal::STOP);
    let mut look = Command::new("ls");
    look.arg(&point);
    let limit = Duration::from_millis(200);
    assert_eq!(world.executor.run(look, limit).map(drop), Err(Failure::timed_out(limit)));
    let begin = Instant::now();
    session.abandon();
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    assert_eq!(crate::mount_table::at(&point).unwrap(), None);
    assert!(is_dead_soon(pid));

    // Its daemon has died.
    let mut session = start("dead");
    let pid = session.client_pids()[0];
    signal(pid, Signal::KILL);
    assert!(is_dead_soon(pid));
    let words = session.stop(&world.executor).unwrap_err().to_string();
    assert!(words.contains("ended"), "{words}");

    // It is dropped.
    let session = start("dropped");
    let pids = session.client_pids();
    drop(session);
    assert!(pids.into_iter().all(is_dead_soon));

    // The run was interrupted.
    let mut session = start("interrupted");
    world.executor.interrupt();
    session.stop(&world.executor).unwrap();
    let again = subject.start(&world.fresh("again"), &Tuning::default(), &world.executor);
    assert_eq!(again.err(), Some(Failure::Interrupted));
}

/// sshfs that keeps something in a cache on the disk: a line for each mount.
const CACHING: &str = r#"mkdir -p "$XDG_CACHE_HOME" && echo >>"$XDG_CACHE_HOME/mounts" || exit
exec sshfs "$@""#;

#[test]
fn what_is_forgotten_is_forgotten_on_the_disk_too() {
    let world = World::new("loopback");
    installed(&world, "sshfs");
    let program = world.program(CACHING);
    let subject = world.mounted(program, LIMIT);
    let scratch = world.fresh("session");
    let mut session = subject.start(&scratch, &Tuning::default(), &world.executor).unwrap();
    let mounts = || fs::read_to_string(scratch.join("cache/mounts")).unwrap().len();
    assert_eq!(mounts(), 1);
    assert!(session.remount(&world.executor).unwrap());
    assert_eq!(mounts(), 2);
    assert!(session.forget(&world.executor).unwrap());
    assert_eq!(mounts(), 1);
    session.stop(&world.executor).unwrap();

    // One that keeps nothing.
    let subject = world.subjects("sshfs").remove(0);
    let mut session =
        subject.start(&world.fresh("without"), &Tuning::default(), &world.executor).unwrap();
    assert!(session.remount(&world.executor).unwrap());
    session.stop(&world.executor).unwrap();
}

/// A helper of this machine would serve what is to be measured over plain SFTP.
#[test]
fn only_those_that_ask_for_the_helper_are_served_by_it() {
    let world = World::new("rtt=1ms");
    let sshoal = world.program("exit 1");
    let setting = Setting { sshoal: sshoal.clone(), ..world.setting() };
    let command = |name: &str| parse(name).unwrap()[0].make(&setting).unwrap().info().command;
    for name in ["sshoal", "sshoal:ro", "sshoal-union", "sshoal:opt1", "sshoal:cache=disk"] {
        assert!(command(name).contains(" -o helper=no "), "{}", command(name));
    }
    for name in ["sshoal:helper=auto", "sshoal:direct=yes"] {
        assert!(!command(name).contains(" -o helper=no "), "{}", command(name));
    }
    // The private server hides what is installed.
    let copy = setting.scratch.join("helper/sshoal");
    let served = format!(" -o helper={} ", copy.display());
    for name in ["sshoal-helper", "sshoal-direct", "sshoal:served=helper,consistency=watch"] {
        assert!(command(name).contains(&served), "{}", command(name));
        assert!(!command(name).contains("helper=no"), "{}", command(name));
    }
    assert_eq!(fs::read(copy).unwrap(), fs::read(sshoal).unwrap());
    assert!(words_of_own(&world, "sshoal-copy").contains("\n-o\nhelper=no\n"));
}

#[test]
fn sshfs_with_other_tcp_settings_shows_the_same_storage() {
    let world = World::new("rtt=2ms");
    installed(&world, "sshfs");
    let subject = world.subjects("sshfs:opt2").remove(0);
    if let Err(left_out) = subject.check(&world.executor) {
        assert_eq!(left_out.name, "sshfs:opt2");
        assert!(left_out.remedy.is_some(), "{left_out:?}");
        return;
    }
    make_tree(&world.root().join("tree"));
    let scratch = world.fresh("session");
    for cipher in [None, Some("aes256-ctr".to_owned())] {
        let mut session = subject.start(&scratch, &Tuning { cipher }, &world.executor).unwrap();
        let Access::Directory(point) = session.access() else { panic!("it is a directory") };
        assert_eq!(world.shell(r#"cat "$1/tree/sub/deep/data""#, &[point]).unwrap(), [7; 300_000]);
        // Its ssh is in the namespace, and sshfs is not.
        let namespace = |pid: &u32| fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
        let namespaces: Vec<_> = session.client_pids().iter().map(namespace).collect();
        let own = fs::read_link("/proc/self/ns/net").unwrap();
        assert_eq!(namespaces[0], own);
        assert!(namespaces.iter().any(|it| *it != own), "{namespaces:?}");
        session.stop(&world.executor).unwrap();
        fs::remove_dir_all(scratch.join("mnt")).unwrap();
    }
    assert_eq!(subject.info().cipher.as_deref(), Some("aes128-gcm@openssh.com"));
}

#[test]
fn a_mounted_directory_is_a_target_and_other_directories_are_not() {
    let world = World::new("loopback");
    let sshfs = installed(&world, "sshfs").remove(0);
    let mut session = sshfs.start(&world.fresh("a"), &Tuning::default(), &world.executor).unwrap();
    let Access::Directory(point) = session.access() else { panic!("it is a directory") };
    let point = point.to_owned();
    let find = |path: &Path| target("nas", path, Some(world.server.clone()), &world.executor);

    let subject = find(&point).unwrap();
    let info = subject.info();
    assert_eq!((info.kind.as_str(), info.version.as_str()), ("target", "fuse.sshfs"));
    let inside = content_names(&world.root());
    assert!(inside.len() == 1 && inside[0].starts_with(".sshoal-bench-"), "{inside:?}");
    let mut of_target =
        subject.start(&world.fresh("b"), &Tuning::default(), &world.executor).unwrap();
    let Access::Directory(dir) = of_target.access() else { panic!("it is a directory") };
    world.shell(r#"echo hello >"$1/file""#, &[dir]).unwrap();
    of_target.stop(&world.executor).unwrap();
    drop(of_target);
    drop(subject);
    assert_eq!(content_names(&world.root()), [""; 0]);

    let refused = |path: &Path| find(path).err().unwrap().why;
    assert!(refused(&world.fresh("plain")).contains("is not a mount point"));
    assert!(refused(&world.dir.path().join("absent")).contains("cannot be used"));
    session.stop(&world.executor).unwrap();

    let read_only = Mounted::new(
        "ro",
        "sshfs".into(),
        vec!["-o".to_owned(), "ro".to_owned()],
        world.server.clone(),
        LIMIT,
    );
    let mut session =
        read_only.start(&world.fresh("c"), &Tuning::default(), &world.executor).unwrap();
    let Access::Directory(point) = session.access() else { panic!("it is a directory") };
    assert!(refused(point).contains("read-only"));
    session.stop(&world.executor).unwrap();
}

fn content_names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn command_lines_are_shown_as_a_user_would_type_them() {
    let world = World::new("loopback");
    let shown = |list: &str| {
        let infos = world.subjects(list).into_iter().map(|subject| subject.info());
        infos.map(|info| (info.name, info.kind, info.command)).collect::<Vec<_>>()
    };
    let wanted = |name: &str, command: &str| {
        vec![(name.to_owned(), "mount".to_owned(), format!("{command} HOST:DIR MOUNTPOINT"))]
    };
    assert_eq!(
        shown("sshoal:ro,max_conns=2"),
        wanted("sshoal:ro,max_conns=2", "sshoal -o helper=no -o ro -o max_conns=2")
    );
    assert_eq!(
        shown("sshfs:opt1"),
        wanted(
            "sshfs:opt1",
            "sshfs -o kernel_cache -o auto_cache -o max_read=65536 -o max_write=65536 \
             -o Compression=no -o Ciphers=aes128-gcm@openssh.com"
        )
    );
    // Settings of TCP are no option of the program.
    let ours = shown("sshoal:ro,tcp=tuned");
    assert_eq!(ours, wanted("sshoal:ro,tcp=tuned", "sshoal -o helper=no -o ro"));
    let several = shown("sshoal-union,sshoal-places,sshoal-pool,sshfsm-union");
    let commands: Vec<&str> = several.iter().map(|(_, _, command)| command.as_str()).collect();
    assert_eq!(
        commands,
        [
            "sshoal -o helper=no HOST:DIR HOST2:DIR2 MOUNTPOINT",
            "sshoal -o helper=no data=HOST:DIR empty=HOST2:DIR2 MOUNTPOINT",
            "sshoal -o helper=no HOST,HOST2:DIR MOUNTPOINT",
            "sshfsm HOST:DIR HOST2:DIR2 MOUNTPOINT"
        ]
    );
    let of_user = Mounted::new(
        "mine",
        "/opt/my fs".into(),
        vec!["-o".to_owned(), "a b".to_owned()],
        world.server.clone(),
        LIMIT,
    );
    assert_eq!(of_user.info().command, "'/opt/my fs' -o 'a b' HOST:DIR MOUNTPOINT");
}

#[test]
fn the_local_disk_forgets_data_and_keeps_files() {
    let world = World::new("loopback");
    let subject = world.subjects("local").remove(0);
    let root = subject.storage().root().to_owned();
    make_tree(&root.join("tree"));
    let mut session =
        subject.start(&world.fresh("a"), &Tuning::default(), &world.executor).unwrap();
    let Access::Directory(dir) = session.access() else { panic!("it is a directory") };
    assert_eq!(dir, root);
    let before = content(&root);
    session.forget(&world.executor).unwrap();
    assert_eq!(content(&root), before);
    session.stop(&world.executor).unwrap();
}
