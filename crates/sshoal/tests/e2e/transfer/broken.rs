//! Copies that are cut off, killed, interrupted, or run out of room; and the next one.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use sandbox::link::{Link, LinkOptions};
use sandbox::sshd::Options;
use serde_json::Value;

use super::{assert_same, command, ends, far, kept, make_tree, temporaries};
use crate::process::{LIMIT, Process, eventually, run, shell};
use crate::world::World;

/// A link on which the tree of these tests takes seconds.
pub(super) fn slow_link(world: &World) -> Link {
    let target = SocketAddr::from((Ipv4Addr::LOCALHOST, world.sshd().port()));
    let rate_bytes_per_s = Some(2 << 20);
    Link::start(target, LinkOptions { rtt: Duration::from_millis(1), rate_bytes_per_s }).unwrap()
}

/// The copies of these tests: words for each way.
pub(super) fn copies(
    world: &World,
    engine: &str,
) -> [(&'static str, Vec<String>, std::path::PathBuf); 2] {
    let source = world.served("source");
    let (pulled, pushed) =
        (world.local(format!("pulled-{engine}")), world.served(format!("pushed-{engine}")));
    let words = |from: String, to: String| vec![from, to, "--compress=never".to_owned()];
    [
        ("pull", words(format!("{}/", far(world, &source)), pulled.display().to_string()), pulled),
        ("push", words(format!("{}/", source.display()), far(world, &pushed)), pushed),
    ]
}

/// Begins that copy over the link, and returns when a part of it has passed.
pub(super) fn begun(
    world: &World,
    link: &Link,
    way: &str,
    words: &[String],
    engine: &str,
) -> Process {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut command = command(world, way, &words);
    command.args(["--engine", engine, "-p", &link.port().to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let before = link.bytes_to_target() + link.bytes_from_target();
    let process = Process::spawn(&mut command);
    eventually(LIMIT, "a part of it", || {
        link.bytes_to_target() + link.bytes_from_target() > before + (1 << 20)
    });
    process
}

/// Whatever has a final name is whole.
#[track_caller]
fn assert_whole_so_far(target: &Path, source: &Path) {
    if !target.exists() {
        return;
    }
    let original = kept(source);
    for (name, (mode, _, _, content)) in kept(target) {
        let is_file = mode & 0o170_000 == 0o100_000;
        if is_file && !name.windows(8).any(|part| part == b".sshoal-") {
            assert!(original[&name].3 == content, "{} is not whole", name.escape_ascii());
        }
    }
}

/// Ends copies in their midst by a signal, checks what they leave, and copies again.
fn ended_by(signal: Signal, code: Option<i32>) {
    let world = World::new();
    let source = world.served("source");
    make_tree(&source);
    let link = slow_link(&world);
    for engine in ["tar", "sftp"] {
        for (way, words, target) in copies(&world, engine) {
            let mut process = begun(&world, &link, way, &words, engine);
            process.signal(signal);
            assert_eq!(process.wait(LIMIT).code(), code, "{way} {engine}");
            // What is on its way still arrives.
            eventually(LIMIT, "the end of its logins", || world.sshd().session_pids().is_empty());
            assert_whole_so_far(&target, &source);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            ends(&world, way, &words, 0);
            assert_same(&target, &source);
            assert_eq!(temporaries(target.parent().unwrap()), [""; 0], "{way} {engine}");
        }
    }
}

#[test]
fn a_copy_that_is_killed_is_gone_on_with() {
    ended_by(Signal::KILL, None);
}

#[test]
fn a_copy_that_is_interrupted_ends_in_order_and_is_gone_on_with() {
    ended_by(Signal::INT, Some(130));
}

#[test]
fn a_second_interruption_ends_a_copy_that_waits_for_its_server() {
    let world = World::new();
    make_tree(&world.served("source"));
    let link = slow_link(&world);
    let [_, (way, words, _)] = copies(&world, "sftp");
    let mut process = begun(&world, &link, way, &words, "sftp");
    link.stall();
    process.signal(Signal::INT);
    // It would tidy up, which nobody answers.
    if process.try_wait(Duration::from_secs(2)).is_none() {
        process.signal(Signal::INT);
    }
    assert_eq!(process.wait(Duration::from_secs(20)).code(), Some(130));
    link.resume();
}

#[test]
fn a_copy_continues_after_its_link_was_cut() {
    let world = World::new();
    make_tree(&world.served("source"));
    let link = slow_link(&world);
    for engine in ["tar", "sftp"] {
        for (way, words, target) in copies(&world, engine) {
            let mut process = begun(&world, &link, way, &words, engine);
            link.cut();
            assert_eq!(process.wait(LIMIT).code(), Some(0), "{way} {engine}");
            assert_same(&target, &world.served("source"));
        }
    }
}

/// Copies over a link that is cut when so many bytes have passed; what is told of it in the end.
fn cut_after(world: &World, link: &Link, way: &str, words: &[&str], bytes: u64) -> Value {
    let told = world.local("told");
    let mut command = command(world, way, words);
    command.args(["--json", "--compress", "never", "-p", &link.port().to_string()]);
    command.stdin(Stdio::null()).stdout(fs::File::create(&told).unwrap());
    let passed = || link.bytes_to_target() + link.bytes_from_target();
    let before = passed();
    let mut process = Process::spawn(&mut command);
    eventually(LIMIT, "a part of it", || passed() > before + bytes);
    link.cut();
    assert_eq!(process.wait(LIMIT).code(), Some(0), "{way} {words:?}");
    let told = fs::read_to_string(&told).unwrap();
    serde_json::from_str(told.lines().last().unwrap()).unwrap()
}

#[test]
fn a_large_file_that_a_stream_has_begun_is_gone_on_with() {
    // What has passed is 7 MiB, and what is buffered on the way 6: the rest is left to be cut off.
    let world = World::new();
    let source = world.served("source");
    fs::create_dir(&source).unwrap();
    let content: Vec<u8> = (0..16u32 << 20).map(|at| (at.wrapping_mul(at) >> 11) as u8).collect();
    fs::write(source.join("large"), content).unwrap();
    let link = slow_link(&world);
    for (way, words, target) in copies(&world, "tar") {
        let words = [&words[0][..], &words[1], "--engine", "tar"];
        let told = cut_after(&world, &link, way, &words, 7 << 20);
        assert_same(&target, &source);
        assert!(told["bytes_resumed"].as_u64().unwrap() > 4 << 20, "{way}: {told}");
    }
}

/// libarchive's tar makes a file that was cut off look whole.
#[test]
fn a_file_that_a_server_cut_off_silently_is_detected() {
    if !Path::new("/usr/bin/bsdtar").exists() {
        return;
    }
    let programs = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/usr/bin/bsdtar", programs.path().join("tar")).unwrap();
    let force = format!(
        "ForceCommand PATH={}:$PATH; export PATH; exec sh -c \"$SSH_ORIGINAL_COMMAND\"",
        programs.path().display()
    );
    let world = World::with(Options { settings: vec![force], ..Options::default() });
    let source = world.served("source");
    make_tree(&source);
    fs::write(source.join("large"), vec![7; 8 << 20]).unwrap();
    let link = slow_link(&world);
    let target = world.served("target");
    let words = [&format!("{}/", source.display())[..], &far(&world, &target), "--engine", "tar"];
    cut_after(&world, &link, "push", &words, 3 << 20);
    assert_same(&target, &source);
}

#[test]
fn a_pull_to_a_full_disk_is_completed_when_there_is_room() {
    let world = World::new();
    assert!(world.sshd().is_isolated(), "this test needs root");
    let source = world.served("source");
    make_tree(&source);
    let place = world.local("small");
    fs::create_dir(&place).unwrap();
    // A disk that only this shell sees; what is on it is looked at before it is gone.
    let script = r#"small=$1 out=$2 errors=$3; shift 3
        mount -t tmpfs -o size=2m tmpfs "$small"
        "$@" "$small/copy" 2>"$errors"; echo $?; cp -a "$small/copy" "$out-part"
        mount -o remount,size=64m "$small"
        "$@" "$small/copy"; echo $?; cp -a "$small/copy" "$out""#;
    for engine in ["tar", "sftp"] {
        let (out, errors) = (world.local(format!("out-{engine}")), world.local("errors"));
        let mut inside = sandbox::namespace::command();
        inside.args(["sh", "-c", script, "sh"]).arg(&place).arg(&out).arg(&errors);
        inside.arg(crate::world::program_path()).arg("pull");
        inside.arg("-F").arg(world.sshd().config_path()).arg("-q");
        inside.arg(format!("{}/", far(&world, &source)));
        // Only the first of them has an empty place; a stream goes on by SFTP.
        if engine == "sftp" {
            inside.args(["--engine", "sftp"]);
        }
        let ended = run(&mut inside);
        assert_eq!(ended.stdout, "1\n0\n", "{engine}: {ended:?}");
        let errors = fs::read_to_string(errors).unwrap();
        assert!(errors.contains("No space left"), "{errors}");
        let part = world.local(format!("out-{engine}-part"));
        assert_whole_so_far(&part, &source);
        assert_same(&out, &source);
    }
}

#[test]
fn a_push_to_a_full_disk_is_completed_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let small = dir.path().join("small");
    // A disk that only the server's logins see, whatever they run.
    let force = format!(
        "ForceCommand mkdir -p {0}; mountpoint -q {0} || mount -t tmpfs -o size=2m tmpfs {0}; \
         exec sh -c \"$SSH_ORIGINAL_COMMAND\"",
        small.display()
    );
    let world = World::with(Options { settings: vec![force], ..Options::default() });
    assert!(world.sshd().is_isolated(), "this test needs root");
    let source = world.local("source");
    make_tree(&source);
    let on_server = |script: &str| {
        let mut ssh = Command::new("ssh");
        ssh.arg("-F").arg(world.sshd().config_path()).arg(world.sshd().alias()).arg(script);
        let output = ssh.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
        output.stdout
    };
    let fetched = |name: &str, to: &Path| {
        let archive = on_server(&format!("tar -C {} -cf - {name}", small.display()));
        fs::create_dir(to).unwrap();
        fs::write(to.join("archive"), archive).unwrap();
        shell("cd \"$1\" && tar -xf archive", &[to]);
    };
    for engine in ["auto", "sftp"] {
        let to = far(&world, &small.join(engine));
        let from = format!("{}/", source.display());
        let ended = ends(&world, "push", &[&from, &to, "--engine", engine], 1);
        assert!(ended.stderr.contains("No space left"), "{ended:?}");
        let part = world.local(format!("{engine}-part"));
        fetched(engine, &part);
        assert_whole_so_far(&part.join(engine), &source);
        on_server(&format!("mount -o remount,size=64m {}", small.display()));
        ends(&world, "push", &[&from, &to, "--engine", engine], 0);
        let whole = world.local(format!("{engine}-whole"));
        fetched(engine, &whole);
        assert_same(&whole.join(engine), &source);
        on_server(&format!("rm -r {0}/* && mount -o remount,size=2m {0}", small.display()));
    }
}
