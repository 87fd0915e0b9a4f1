//! Locks between mounts and programs of the server.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::served_by_helper;
use crate::mount::umount;
use crate::process::{Process, eventually, run, succeed};
use crate::world::{World, is_big_run};

/// A program that locks a file.
struct Holder {
    process: Process,
    answers: BufReader<ChildStdout>,
}

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/helper");

impl Holder {
    fn of(file: &Path) -> Holder {
        let mut python = Command::new("python3");
        python.arg(format!("{SCRIPTS}/holder.py")).arg(file);
        let mut process = Process::spawn(python.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let answers = BufReader::new(process.child().stdout.take().unwrap());
        let mut holder = Holder { process, answers };
        assert_eq!(holder.answer(), "ready");
        holder
    }

    fn begin(&mut self, command: &str) {
        let stdin = self.process.child().stdin.as_mut().unwrap();
        stdin.write_all(format!("{command}\n").as_bytes()).unwrap();
    }

    #[track_caller]
    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "it has ended");
        line.trim_end().to_owned()
    }

    #[track_caller]
    fn call(&mut self, command: &str) -> String {
        self.begin(command);
        self.answer()
    }

    #[track_caller]
    fn ok(&mut self, command: &str) {
        assert_eq!(self.call(command), "ok", "{command}");
    }

    /// Whether the lock is free, now that nothing else is to come.
    fn is_free(&mut self) -> bool {
        match self.call("lock ex").as_str() {
            "ok" => {
                self.ok("unlock");
                true
            }
            answer => {
                assert_eq!(answer, "EAGAIN");
                false
            }
        }
    }
}

/// Two clients and a program of the server: each excludes each other one.
#[test]
fn all_clients_and_local_programs_exclude_each_other() {
    let world = served_by_helper("");
    fs::write(world.served("file"), "content").unwrap();
    let mounts = [world.mount(&[]), world.mount(&["-o", "max_conns=4"])];
    let places = [mounts[0].at("file"), mounts[1].at("file"), world.served("file")];
    let mut holders = places.each_ref().map(|place| Holder::of(place));
    for (one, other) in [(0, 1), (1, 2), (2, 0), (1, 0), (0, 2), (2, 1)] {
        let [one, other] = holders.get_disjoint_mut([one, other]).unwrap();
        one.ok("lock ex 10 10");
        assert_eq!(other.call("lock sh 19 1"), "EAGAIN");
        other.ok("lock ex 20 5");
        assert_eq!(one.call("lock ex 0 0"), "EAGAIN");
        one.ok("lock sh 10 10");
        other.ok("lock sh 10 10");
        assert_eq!(one.call("lock ex 10 1"), "EAGAIN");
        other.ok("unlock");
        one.ok("lock ex");
        // It waits until it is free.
        other.begin("wait ex 5 5");
        std::thread::sleep(Duration::from_millis(300));
        one.ok("unlock 0 7");
        std::thread::sleep(Duration::from_millis(50));
        let unlocked = Instant::now();
        one.ok("unlock");
        assert_eq!(other.answer(), "ok");
        assert!(unlocked.elapsed() < Duration::from_secs(5), "{:?}", unlocked.elapsed());
        assert_eq!(one.call("lock sh 9 1"), "EAGAIN");
        // As POSIX says, for better or worse: the close of any descriptor ends them.
        other.ok("closeother");
        one.ok("lock ex 9 1");
        one.ok("unlock");

        one.ok("flock ex");
        assert_eq!(other.call("flock sh"), "EAGAIN");
        other.ok("lock ex");
        other.ok("unlock");
        one.ok("flock sh");
        other.ok("flock sh");
        assert_eq!(other.call("flock ex"), "EAGAIN");
        // The failed conversion has cost the lock, as flock(2) says.
        one.ok("flock ex");
        other.begin("flockwait ex");
        std::thread::sleep(Duration::from_millis(300));
        one.ok("unflock");
        assert_eq!(other.answer(), "ok");
        other.ok("unflock");
    }
    // A lock of flock(2) ends with its last descriptor, and the next program sees that.
    for place in &places {
        let flock = || run(Command::new("flock").args(["-n", "-x"]).arg(place).arg("true"));
        // The kernel reports the last close after it, so another client may see it later.
        eventually(Duration::from_secs(5), "it is free", || flock().status.success());
        for _ in 0..20 {
            assert!(flock().status.success(), "{}", place.display());
        }
    }
    // So does what a killed program held, of either kind.
    for at in [0, 1] {
        let mut killed = Holder::of(&places[at]);
        killed.ok("lock ex");
        killed.ok("flock ex");
        killed.process.signal(Signal::KILL);
        killed.process.wait(Duration::from_secs(5));
        let other = &mut holders[1 - at];
        eventually(Duration::from_secs(5), "its locks end", || other.is_free());
        eventually(Duration::from_secs(5), "its locks end", || other.call("flock ex") == "ok");
        other.ok("unflock");
    }
}

/// What was written before an unlock is visible after a lock, in the same second and at the same
/// size: no increment is lost.
#[test]
fn a_lock_shows_what_was_written_before_the_unlock() {
    const TIMES: u32 = 100;
    let world = served_by_helper("");
    fs::write(world.served("file"), format!("{:8}", 0)).unwrap();
    let mounts = [world.mount(&[]), world.mount(&["-o", "dcache_timeout=100"])];
    let places = [mounts[0].at("file"), mounts[1].at("file"), world.served("file")];
    let mut holders: Vec<Holder> = places.iter().map(|place| Holder::of(place)).collect();
    // Also between two programs of one mount.
    holders.push(Holder::of(&places[0]));
    holders.iter_mut().for_each(|holder| holder.begin(&format!("increment {TIMES}")));
    holders.iter_mut().for_each(|holder| assert_eq!(holder.answer(), "ok"));
    let content = fs::read_to_string(world.served("file")).unwrap();
    assert_eq!(content.trim(), (4 * TIMES).to_string());
}

/// A signal ends the waiting within a second, and leaves no lock behind.
#[test]
fn a_waiting_lock_is_ended_by_a_signal() {
    let world = served_by_helper("");
    fs::write(world.served("file"), "content").unwrap();
    let mount = world.mount(&[]);
    let (mut local, mut waiting) =
        (Holder::of(&world.served("file")), Holder::of(&mount.at("file")));
    for how in ["wait ex", "flockwait ex"] {
        let (lock, unlock) =
            if how == "wait ex" { ("lock ex", "unlock") } else { ("flock ex", "unflock") };
        local.ok(lock);
        waiting.ok("alarm 0.3");
        let begun = Instant::now();
        assert_eq!(waiting.call(how), "EINTR");
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(200) && took < Duration::from_secs(2), "{took:?}");
        let mut killed = Holder::of(&mount.at("file"));
        killed.begin(how);
        std::thread::sleep(Duration::from_millis(300));
        killed.process.signal(Signal::KILL);
        killed.process.wait(Duration::from_secs(2));
        local.ok(unlock);
        // A request that was forgotten would take it soon.
        for _ in 0..20 {
            local.ok(lock);
            local.ok(unlock);
            std::thread::sleep(Duration::from_millis(20));
        }
        // One that comes back is heard.
        waiting.ok(how);
        assert_eq!(local.call(lock), "EAGAIN");
        waiting.ok(unlock);
    }
}

/// All locks of a client end with its session.
#[test]
fn the_locks_of_a_killed_mount_are_released() {
    let world = served_by_helper("");
    fs::write(world.served("file"), "content").unwrap();
    let mut mount = world.mount(&[]).with_errors();
    let (mut holder, mut local) =
        (Holder::of(&mount.at("file")), Holder::of(&world.served("file")));
    holder.ok("lock ex");
    holder.ok("flock ex");
    assert!(!local.is_free());
    mount.daemon().signal(Signal::KILL);
    mount.wait_ended();
    eventually(Duration::from_secs(10), "the lock is free", || local.is_free());
    local.ok("flock ex");
    drop(holder);
    crate::mount::detach(mount.place());
}

/// Locks survive a lost connection, where nobody takes them meanwhile.
#[test]
fn locks_are_set_again_after_a_lost_connection() {
    let world = served_by_helper("");
    fs::write(world.served("file"), "before").unwrap();
    let mount = world.mount(&[]).with_errors();
    let (mut holder, mut local) =
        (Holder::of(&mount.at("file")), Holder::of(&world.served("file")));
    holder.ok("lock ex 0 10");
    holder.ok("lock sh 20 10");
    holder.ok("flock ex");
    holder.ok("write first!");
    world.sshd().kill_sessions();
    holder.ok("write second");
    holder.ok("fsync");
    assert_eq!(fs::read_to_string(world.served("file")).unwrap(), "second");
    assert_eq!(local.call("lock sh 5 1"), "EAGAIN");
    assert_eq!(local.call("lock ex 25 1"), "EAGAIN");
    local.ok("lock sh 25 1");
    local.ok("lock ex 10 10");
    assert_eq!(local.call("flock sh"), "EAGAIN");
    local.ok("unlock");
    holder.ok("unlock");
    holder.ok("unflock");
    local.ok("lock ex");
    local.ok("flock ex");
    local.ok("unlock");
    // One that waits when the connection breaks waits on.
    local.ok("lock ex");
    holder.begin("wait ex");
    std::thread::sleep(Duration::from_millis(300));
    world.sshd().kill_sessions();
    std::thread::sleep(Duration::from_millis(300));
    local.ok("unlock");
    assert_eq!(holder.answer(), "ok");
    assert!(!local.is_free());
}

/// Another has taken the lock meanwhile: the holder learns it at its next call, and can begin anew.
#[test]
fn a_lock_that_another_took_meanwhile_is_an_error() {
    let world = served_by_helper("");
    fs::write(world.served("file"), "before").unwrap();
    let mut mount = world.mount(&["-o", "soft=2"]).with_errors();
    let (mut holder, mut local) =
        (Holder::of(&mount.at("file")), Holder::of(&world.served("file")));
    holder.ok("lock ex");
    assert_eq!(holder.call("read"), "before");
    local.begin("wait ex");
    std::thread::sleep(Duration::from_millis(300));
    world.sshd().kill_sessions();
    assert_eq!(local.answer(), "ok");
    local.ok("write theirs");
    // Also what the kernel has in its cache is not shown any more.
    eventually(Duration::from_secs(20), "the loss is noticed", || holder.call("read") == "EIO");
    // The error of a write comes with it, or with the next call.
    let written = holder.call("write mine!!");
    assert!(written == "EIO" || written == "ok" && holder.call("fsync") == "EIO", "{written}");
    assert_eq!(holder.call("fsync"), "EIO");
    assert_eq!(holder.call("lock ex 0 1"), "EIO");
    local.ok("unlock");
    // Not by itself, but when it has given up what it believes to have.
    assert_eq!(holder.call("read"), "EIO");
    assert_eq!(fs::read_to_string(world.served("file")).unwrap(), "theirs");
    let mut another = Holder::of(&mount.at("file"));
    another.ok("lock ex");
    assert_eq!(another.call("read"), "theirs");
    another.ok("unlock");
    drop(holder);
    assert!(another.is_free());
    drop(another);
    // What was written behind is reported once more.
    let ended = umount(&[], mount.place());
    assert!(ended.status.success() || written == "ok", "{ended:?}");
    mount.wait_ended();
}

/// A database in rollback mode, in two mounts and on the server at once.
#[test]
fn a_database_is_used_by_all_at_once() {
    let times = if is_big_run() { 500 } else { 60 };
    let world = served_by_helper("");
    let create = "import sqlite3, sys; d = sqlite3.connect(sys.argv[1]); d.executescript('''\
                  create table rows (name text, number integer, count integer); \
                  create table total (count integer); insert into total values (0); \
                  create table big as with recursive n(i) as (select 1 union all select i + 1 \
                  from n where i < 2000) select printf('%0200d', i) as text from n;'''); \
                  d.close()";
    succeed(Command::new("python3").args(["-c", create]).arg(world.served("bank.db")));
    let mounts = [world.mount(&[]), world.mount(&[])];
    let places = [mounts[0].at("bank.db"), mounts[1].at("bank.db"), world.served("bank.db")];
    std::thread::scope(|scope| {
        for (name, place) in ["one", "two", "server"].iter().zip(&places) {
            let mut bank = Command::new("python3");
            bank.arg(format!("{SCRIPTS}/bank.py")).arg(place).arg(name).arg(times.to_string());
            scope.spawn(move || succeed(&mut bank));
        }
    });
    let check = "import sqlite3, sys; d = sqlite3.connect(sys.argv[1]); \
                 print(d.execute('pragma integrity_check').fetchone()[0], \
                 d.execute('select count from total').fetchone()[0], \
                 d.execute('select count(distinct count) from rows').fetchone()[0], \
                 d.execute(\"select count(*) from big where text <> 'lost'\").fetchone()[0], \
                 *[row[0] for row in d.execute('select count(*) from rows group by name')])";
    let is_whole = |place: &Path| {
        let found = succeed(Command::new("python3").args(["-c", check]).arg(place));
        assert_eq!(found.trim(), format!("ok {0} {0} 2000 {1} {1} {1}", 3 * times, times));
    };
    places.iter().for_each(|place| is_whole(place));
    // One dies, and another one finds its journal and rolls back, wherever it is.
    for (dies, finds) in [(0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (2, 1)] {
        is_whole(&places[finds]);
        let crash = format!("{SCRIPTS}/crash.py");
        let ended = run(Command::new("python3").arg(crash).arg(&places[dies]));
        assert_eq!(ended.status.signal(), Some(9), "{ended:?}");
        is_whole(&places[finds]);
        is_whole(&places[dies]);
    }
    drop(mounts);
    assert!(!world.served("bank.db-journal").exists());
}

/// In a tree of a server and a directory of this machine, each file is locked where it is.
#[test]
fn a_tree_with_a_local_directory_has_locks() {
    let world = served_by_helper("");
    fs::write(world.served("file"), "content").unwrap();
    fs::create_dir(world.local("here")).unwrap();
    fs::write(world.local("here/near"), "content").unwrap();
    let place = world.mountpoint();
    let mut command = world.command();
    command.arg("-f").arg(format!("{}=rw", world.source()));
    command.arg(format!("local:{}=rw", world.local("here").display())).arg(&place);
    let mount = crate::mount::Mount::start(command, place);
    for (name, there) in [("file", world.served("file")), ("near", world.local("here/near"))] {
        let (mut holder, mut local) = (Holder::of(&mount.at(name)), Holder::of(&there));
        holder.ok("lock ex");
        holder.ok("flock ex");
        assert!(!local.is_free());
        assert_eq!(local.call("flock sh"), "EAGAIN");
        local.begin("wait ex");
        std::thread::sleep(Duration::from_millis(100));
        drop(holder);
        assert_eq!(local.answer(), "ok", "{name}");
        let mut second = Holder::of(&mount.at(name));
        second.ok("alarm 0.3");
        assert_eq!(second.call("wait ex"), "EINTR");
        local.ok("unlock");
        assert!(second.is_free());
    }
}

/// A helper that changes nothing permits what does not exclude readers.
#[test]
fn a_read_only_helper_sets_read_locks_only() {
    let world = served_by_helper("-R");
    fs::write(world.served("file"), "content").unwrap();
    let mount = world.mount(&[]);
    let flock = |mode: &str| {
        let file = mount.at("file");
        run(Command::new("flock").args(["-n", mode]).arg(file).arg("true")).status.success()
    };
    assert!(flock("-s") && !flock("-x"));
    let mut local = Holder::of(&world.served("file"));
    local.ok("flock ex");
    assert!(!flock("-s"));
}

/// Without the helper, or if the user wants it so, locks are those of this machine, as they were.
#[test]
fn without_the_helper_locks_are_local() {
    are_local(&World::new(), &[]);
    are_local(&served_by_helper(""), &["-o", "no_remote_lock"]);
}

fn are_local(world: &World, options: &[&str]) {
    fs::write(world.served("file"), "content").unwrap();
    let mount = world.mount(options);
    let mut holders =
        [mount.at("file"), mount.at("file"), world.served("file")].map(|place| Holder::of(&place));
    holders[0].ok("lock ex");
    holders[0].ok("flock ex");
    assert_eq!(holders[1].call("lock ex"), "EAGAIN");
    assert_eq!(holders[1].call("flock ex"), "EAGAIN");
    holders[2].ok("lock ex");
    holders[2].ok("flock ex");
}
