//! The steps of the demo. Each fails if its statement is false.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use cli::{Problem, printable};
use rustix::process::{Pid, Signal, kill_process};
use sandbox::leftover;

use super::{HOST, MOUNTS, Scene, io_problem, is_mounted};

/// Bytes that the step with the stopped server reads: several requests, but quick to copy.
const BIG_BYTES: usize = 16 << 20;

/// How long the demo shows a reader hanging on a stopped server.
const HANGING: Duration = Duration::from_secs(1);

/// Within this time Ctrl-C must end the reader (promise A5).
const FREED_WITHIN: Duration = Duration::from_secs(1);

/// Within this time the mount must have reconnected.
const RECONNECTED_WITHIN: Duration = Duration::from_secs(15);

/// Within this time after an unmount the server must have no session any more.
const ENDED_WITHIN: Duration = Duration::from_secs(5);

/// Maximum files and bytes read and copied of a large tree, so that the demo stays short.
const READ_FILES: usize = 1_000;
const READ_BYTES: u64 = 32 << 20;

pub(super) fn play(scene: &Scene) -> Result<(), Problem> {
    let dir = scene.dir.path().display();
    scene.stage.note(&format!("A private sshd listens on 127.0.0.1 port {}.", scene.sshd.port()));
    scene.stage.note(&format!("Everything happens in {dir}"));
    mount(scene)?;
    list(scene)?;
    read(scene)?;
    write(scene)?;
    names(scene)?;
    unpack(scene)?;
    stopped_server(scene)?;
    killed_server(scene)
}

/// Reports a statement, or fails if it is false.
fn prove(scene: &Scene, is_so: bool, what: &str) -> Result<(), Problem> {
    if !is_so {
        return Err(Problem::new("demo", format!("check failed: {what}")));
    }
    scene.stage.proof(what);
    Ok(())
}

/// A path for the shell, quoted if necessary.
fn quoted(path: &Path) -> String {
    let word = base::shell::word(path.as_os_str().as_bytes());
    String::from_utf8_lossy(&word.unwrap_or_default()).into_owned()
}

fn mount(scene: &Scene) -> Result<(), Problem> {
    scene.stage.heading("Mount two directories of the server, one read-only and one writable");
    let tree = quoted(&scene.shown);
    let served = quoted(&scene.at("server"));
    scene.run(&format!("sshoal -F config {HOST}:{tree} tree -o ro"))?;
    scene.run(&format!("sshoal -F config {HOST}:{served} work"))?;
    let mounted = MOUNTS.iter().all(|name| is_mounted(&scene.at(name)));
    prove(scene, mounted, "both are mounted; the server needs only sshd and its sftp-server")
}

fn list(scene: &Scene) -> Result<(), Problem> {
    scene.stage.heading("List");
    scene.run("ls -l tree | head -n 6")?;
    let names = |dir: &Path| format!("cd {} && find . 2>/dev/null | LC_ALL=C sort", quoted(dir));
    let here = scene.run("find tree 2>/dev/null | wc -l")?;
    let same =
        scene.output_of(&names(&scene.at("tree")))? == scene.output_of(&names(&scene.shown))?;
    prove(scene, same, &format!("the same {} names as on the server", here.trim()))
}

fn read(scene: &Scene) -> Result<(), Problem> {
    scene.stage.heading("Read");
    let files = files_to_read(&scene.shown);
    let list = scene.at("files");
    fs::write(&list, files.names).map_err(|error| io_problem("list of files", &error))?;
    let digest = "xargs -0 sha256sum -- < ../files | sha256sum";
    let begun = Instant::now();
    let here = scene.run(&format!("cd tree && {digest}"))?;
    let took = begun.elapsed();
    let there = scene.output_of(&format!(
        "cd {} && {}",
        quoted(&scene.shown),
        digest.replace("../files", &quoted(&list))
    ))?;
    scene.stage.note("on the server:");
    scene.stage.output(&there);
    let what = format!(
        "the digests of {} files are equal ({:.1} MB in {:.1} s)",
        files.count,
        files.bytes as f64 / 1e6,
        took.as_secs_f64()
    );
    prove(scene, here == there && files.count > 0, &what)
}

/// Names of files below the tree, each followed by a NUL byte.
struct FilesToRead {
    names: Vec<u8>,
    count: usize,
    bytes: u64,
}

fn files_to_read(tree: &Path) -> FilesToRead {
    let mut found = FilesToRead { names: Vec::new(), count: 0, bytes: 0 };
    let mut dirs = vec![tree.to_owned()];
    while let Some(dir) = dirs.pop() {
        let mut entries: Vec<_> = fs::read_dir(dir).into_iter().flatten().flatten().collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let Ok(meta) = entry.metadata() else { continue };
            let path = entry.path();
            // The mount cannot read files that this user may not read.
            let readable = || rustix::fs::access(&path, rustix::fs::Access::READ_OK).is_ok();
            if meta.is_dir() {
                dirs.push(path);
            } else if meta.is_file()
                && found.count < READ_FILES
                && found.bytes + meta.size() <= READ_BYTES
                && readable()
                && let Ok(name) = path.strip_prefix(tree)
            {
                found.names.extend_from_slice(name.as_os_str().as_bytes());
                found.names.push(0);
                found.count += 1;
                found.bytes += meta.size();
            }
        }
    }
    found
}

fn write(scene: &Scene) -> Result<(), Problem> {
    scene.stage.heading("Write");
    scene.run("echo 'written through the mount' > work/note && sync work/note")?;
    let there = scene.run("cat server/note")?;
    prove(
        scene,
        there == "written through the mount\n",
        "after fsync the data is on the server's disk",
    )
}

fn names(scene: &Scene) -> Result<(), Problem> {
    scene.stage.heading("Names, permissions, times");
    scene.run("mkdir work/dir && mv work/note work/dir/renamed && ln -s renamed work/dir/link")?;
    scene.run("chmod 640 work/dir/renamed && touch -d 2001-02-03T04:05:06Z work/dir/renamed")?;
    let line = "stat -c '%A %y %N' work/dir/renamed work/dir/link";
    scene.run(line)?;
    let there = fs::metadata(scene.at("server/dir/renamed"))
        .map_err(|error| io_problem("the renamed file", &error))?;
    let link = fs::read_link(scene.at("server/dir/link"));
    let same = there.mode() & 0o7777 == 0o640
        && there.mtime() == 981_173_106
        && link.is_ok_and(|target| target == Path::new("renamed"));
    prove(scene, same, "the server has the same name, link, bits and time")
}

fn unpack(scene: &Scene) -> Result<(), Problem> {
    scene.stage.heading("Copy a tree from one mount to the other");
    let begun = Instant::now();
    scene.run("(cd tree && tar -c --null -T ../files) | tar -C work/dir -x")?;
    let took = begun.elapsed();
    let compare =
        r#"xargs -0 sh -c 'for f; do cmp -- "$f" "../server/dir/$f"; done' sh < ../files"#;
    let output = scene.output_of(&format!("cd tree && {compare}"))?;
    let what =
        format!("the copy on the server is identical; written in {:.1} s", took.as_secs_f64());
    prove(scene, output.is_empty(), &what)
}

fn stopped_server(scene: &Scene) -> Result<(), Problem> {
    scene.stage.heading("The server hangs, and Ctrl-C still works");
    fs::write(scene.at("server/big"), vec![b'x'; BIG_BYTES])
        .map_err(|error| io_problem("big file", &error))?;
    scene.stage.command("kill -STOP $(pidof sftp-server)    # the demo's own, on the server");
    scene.sshd.stop();
    scene.stage.command("cat work/big");
    let mut reader = Command::new("cat")
        .arg(scene.at("work/big"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| io_problem("cat", &error))?;
    thread::sleep(HANGING);
    let hangs = reader.try_wait().is_ok_and(|ended| ended.is_none());
    let begun = Instant::now();
    // A job in the background ignores Ctrl-C, and so do its children.
    let signal = if ignores_interrupts() { Signal::TERM } else { Signal::INT };
    let _ = kill_process(Pid::from_child(&reader), signal);
    let freed = loop {
        match reader.try_wait() {
            Ok(Some(_)) => break true,
            _ if begun.elapsed() > FREED_WITHIN => break false,
            _ => thread::sleep(Duration::from_millis(1)),
        }
    };
    let took = begun.elapsed();
    if !freed {
        // The server must answer before this waits for the reader.
        scene.sshd.cont();
        let _ = reader.kill();
        let _ = reader.wait();
    }
    scene.stage.note("^C");
    prove(scene, hangs && freed, &format!("the reader ended {} ms later", took.as_millis()))?;
    scene.stage.command("kill -CONT $(pidof sftp-server)");
    scene.sshd.cont();
    let size = scene.run("wc -c < work/big")?;
    prove(scene, size.trim() == BIG_BYTES.to_string(), "the mount still works")
}

/// Whether this process ignores SIGINT.
fn ignores_interrupts() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 << (Signal::INT.as_raw() - 1) != 0)
}

fn killed_server(scene: &Scene) -> Result<(), Problem> {
    scene.stage.heading("The connection breaks");
    scene.stage.command("kill -KILL $(pgrep sshd)    # the demo's own, on the server");
    scene.sshd.kill_sessions();
    let line = "ls work/dir/renamed tree > /dev/null";
    let begun = Instant::now();
    scene.stage.command(line);
    // A request at the moment of the loss may fail; later ones wait.
    while let Err(problem) = scene.output_of(line) {
        scene.check_interrupts()?;
        if begun.elapsed() > RECONNECTED_WITHIN {
            return Err(problem);
        }
        thread::sleep(Duration::from_millis(100));
    }
    let took = begun.elapsed().as_millis();
    prove(scene, true, &format!("works again after {took} ms, over a new connection"))
}

/// Unmounts with the commands of a user.
pub(super) fn close(scene: &Scene) -> Result<(), Problem> {
    scene.stage.heading("Unmount");
    for name in MOUNTS {
        scene.run(&format!("sshoal umount {name}"))?;
    }
    let gone = !MOUNTS.iter().any(|name| is_mounted(&scene.at(name)));
    let begun = Instant::now();
    // The server is notified by the closed connections.
    while !scene.sshd.session_pids().is_empty() && begun.elapsed() < ENDED_WITHIN {
        thread::sleep(Duration::from_millis(10));
    }
    let gone = gone && scene.sshd.session_pids().is_empty();
    prove(scene, gone, "all data is written; the daemons and their ssh processes have ended")
}

/// Call this after the scene was dropped.
pub(super) fn check_nothing_is_left(dir: &Path) -> Result<(), Problem> {
    let left = leftover::find(dir).map_err(|error| io_problem("what is left", &error))?;
    if left.is_empty() && !dir.exists() {
        println!("\n   Nothing is left: no mount, no process, no file.");
        return Ok(());
    }
    let dir = printable(dir);
    Err(Problem::new("demo", format!("files were left below {dir}: {left:?}")))
}
