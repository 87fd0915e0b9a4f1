//! `sshoal stats`, `sshoal profile` and the option `metrics`: known operations are counted right,
//! and nothing is shown to others.

use std::collections::{HashMap, HashSet};
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Signal, geteuid};
use serde_json::Value;

use crate::mount::{Mount, umount};
use crate::process::{Ended, Process, eventually, run};
use crate::world::{World, program, program_path};

/// How long a state may take to show.
const SHOWN: Duration = Duration::from_secs(60);

/// The kernel requests every name and every attribute, and the mount remembers them.
const COUNTED: &str = "entry_timeout=0,attr_timeout=0,cache_timeout=3600,prefetch=none";

fn stats(mount: &Mount, words: &[&str]) -> Ended {
    run(program().arg("stats").arg(mount.place()).args(words))
}

/// A mount that can be queried: it is in the kernel's table a little earlier.
#[track_caller]
fn mounted(world: &World, options: &[&str]) -> Mount {
    let mount = world.mount(options);
    eventually(SHOWN, "an answer", || stats(&mount, &["--total"]).status.success());
    mount
}

/// The sums since the mount began.
#[track_caller]
fn total(mount: &Mount) -> Value {
    let ended = stats(mount, &["--total", "--json"]);
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{ended:?}"))
}

/// A number of this document; an absent one is zero, as a kind that did not occur.
fn number(document: &Value, pointer: &str) -> u64 {
    document.pointer(pointer).map_or(0, |value| value.as_u64().unwrap())
}

/// What a number has grown by.
fn growth(before: &Value, after: &Value, pointer: &str) -> u64 {
    number(after, pointer) - number(before, pointer)
}

fn world_with_files(count: usize) -> World {
    let world = World::new();
    for index in 0..count {
        fs::write(world.served(format!("file{index}")), format!("content {index}")).unwrap();
    }
    world
}

#[test]
fn known_operations_are_counted_and_the_second_time_they_are_hits() {
    let world = world_with_files(100);
    let mount = mounted(&world, &["-o", COUNTED]);
    let stat_all = || {
        (0..100).for_each(|index| {
            fs::symlink_metadata(mount.at(format!("file{index}"))).unwrap();
        });
    };
    let start = total(&mount);
    assert_eq!(start["schema"], 1);
    assert_eq!(start["mountpoint"], mount.place().to_str().unwrap());
    stat_all();
    let first = total(&mount);
    stat_all();
    for index in 0..7 {
        let missing = mount.at(format!("missing{index}"));
        assert!(fs::symlink_metadata(missing).is_err());
    }
    let second = total(&mount);
    let lookups = "/operations/lookup/count";
    assert_eq!(growth(&start, &first, lookups), 100, "{start}\n{first}");
    assert_eq!(growth(&first, &second, lookups), 107, "{first}\n{second}");
    let cache = |part: &str| format!("/caches/lookup_{part}");
    let both = growth(&start, &first, &cache("hits")) + growth(&start, &first, &cache("misses"));
    assert_eq!(both, 100, "{first}");
    assert_eq!(growth(&first, &second, &cache("hits")), 100, "{second}");
    let sent =
        |document: &Value, kind: &str| number(document, &format!("/hosts/0/requests/{kind}"));
    let misses = growth(&start, &first, &cache("misses"));
    assert!(misses > 0 && sent(&first, "lstat") >= misses, "{first}");
    // Each absent name is one lookup, of one kind or the other.
    let absent =
        growth(&first, &second, &cache("absent_hits")) + growth(&first, &second, &cache("misses"));
    assert_eq!(absent, 7, "{second}");
    assert!(number(&second, "/all/p99_us") >= number(&second, "/all/p50_us"), "{second}");
    assert!(number(&second, "/hosts/0/received_bytes") > 100, "{second}");
    assert!(number(&second, "/hosts/0/small_requests/count") > 0, "{second}");
    assert_eq!(number(&second, "/in_flight"), 0, "{second}");
    mount.unmount();
}

#[test]
fn bytes_and_errors_are_counted() {
    let world = world_with_files(1);
    let mount = mounted(&world, &["-o", COUNTED]);
    let start = total(&mount);
    let content = vec![7; 3 << 20];
    fs::write(mount.at("large"), &content).unwrap();
    let written = total(&mount);
    assert_eq!(growth(&start, &written, "/written_bytes"), 3 << 20);
    assert_eq!(growth(&start, &written, "/operations/create/count"), 1);
    assert!(growth(&start, &written, "/hosts/0/sent_bytes") > 3 << 20, "{written}");
    assert!(number(&written, "/hosts/0/requests/write") > 0, "{written}");
    // Not in the kernel's pages.
    fs::write(world.served("other"), &content).unwrap();
    assert_eq!(fs::read(mount.at("other")).unwrap(), content);
    let read = total(&mount);
    assert_eq!(growth(&written, &read, "/read_bytes"), 3 << 20);
    assert!(growth(&written, &read, "/hosts/0/received_bytes") > 3 << 20, "{read}");
    let reads: u64 = ["hits", "waited", "misses", "prefetched"]
        .iter()
        .map(|part| growth(&written, &read, &format!("/caches/read_{part}")))
        .sum();
    assert_eq!(reads, growth(&written, &read, "/operations/read/count"), "{read}");
    assert!(fs::remove_dir(mount.at("other")).is_err());
    fs::create_dir(mount.at("dir")).unwrap();
    fs::write(mount.at("dir/f"), "").unwrap();
    assert!(fs::remove_dir(mount.at("dir")).is_err());
    let failed = total(&mount);
    assert_eq!(growth(&read, &failed, "/operations/rmdir/errors"), 1, "{failed}");
    mount.unmount();
}

#[test]
fn intervals_are_lines_or_json_and_several_mounts_are_named() {
    let world = world_with_files(3);
    let mount = mounted(&world, &[]);
    let ended = stats(&mount, &["--json", "-i", "0.1", "-n", "3"]);
    assert!(ended.status.success(), "{ended:?}");
    let lines: Vec<Value> =
        ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    // An interval that begins late is shorter.
    let intervals: Vec<u64> = lines.iter().map(|line| number(line, "/interval_ms")).collect();
    assert!(
        intervals.iter().all(|it| *it > 0) && intervals.iter().sum::<u64>() >= 200,
        "{ended:?}"
    );
    let ended = stats(&mount, &["-i", "0.1", "-n", "2"]);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(lines.len(), 4, "two of the header: {ended:?}");
    assert!(lines[1].trim_start().starts_with("ops/s") && lines[1].ends_with("waiting"));
    let other = mounted(&world, &[]);
    let mut command = program();
    command.arg("stats").arg(mount.place()).arg(other.place()).arg("--total");
    let ended = run(&mut command);
    for place in [mount.place(), other.place()] {
        assert!(ended.stdout.contains(&format!("  {}\n", place.display())), "{ended:?}");
    }
    for wrong in [&["-i", "0"][..], &["-n", "0"], &["--prometheus", "--json"]] {
        assert_eq!(stats(&mount, wrong).status.code(), Some(1), "{wrong:?}");
    }
    other.unmount();
    mount.unmount();
}

/// Parses Prometheus' text format; returns the values by their names and labels.
#[track_caller]
fn parsed(text: &str) -> HashMap<String, f64> {
    let mut samples = HashMap::new();
    let (mut family, mut kind) = (String::new(), String::new());
    let mut families = HashSet::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, words) = help.split_once(' ').unwrap();
            assert!(!words.is_empty() && families.insert(name.to_owned()), "{line}");
            family = name.to_owned();
        } else if let Some(declared) = line.strip_prefix("# TYPE ") {
            let (name, of) = declared.split_once(' ').unwrap();
            assert_eq!(name, family, "{line}");
            assert_eq!(of == "counter", name.ends_with("_total"), "{line}");
            kind = of.to_owned();
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = sample.split_once('{').unwrap();
            assert!(labels.ends_with("\"}"), "{line}");
            let base = match kind.as_str() {
                "histogram" => ["_bucket", "_sum", "_count"]
                    .iter()
                    .find_map(|suffix| name.strip_suffix(suffix))
                    .unwrap_or_else(|| panic!("{line}")),
                _ => name,
            };
            assert_eq!(base, family, "{line}");
            let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
            assert!(value >= 0.0 && value.is_finite(), "{line}");
            assert!(samples.insert(sample.to_owned(), value).is_none(), "twice: {line}");
        }
    }
    samples
}

#[test]
fn the_exposition_has_the_same_numbers() {
    let world = world_with_files(5);
    let mount = mounted(&world, &["-o", COUNTED]);
    for index in 0..5 {
        fs::symlink_metadata(mount.at(format!("file{index}"))).unwrap();
    }
    let ended = stats(&mount, &["--prometheus"]);
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    let samples = parsed(&ended.stdout);
    let place = mount.place().display();
    let name = "sshoal_fuse_request_duration_seconds";
    let labels = format!("mountpoint=\"{place}\",operation=\"lookup\"");
    assert_eq!(samples[&format!("{name}_count{{{labels}}}")], 5.0, "{}", ended.stdout);
    assert_eq!(samples[&format!("{name}_bucket{{{labels},le=\"+Inf\"}}")], 5.0);
    assert!(samples[&format!("{name}_sum{{{labels}}}")] > 0.0);
    assert!(samples.keys().any(|key| {
        key.starts_with("sshoal_sftp_requests_total{") && key.ends_with("request=\"lstat\"}")
    }));
    mount.unmount();
}

/// What a server answers to one request.
fn http(mut stream: impl Read + Write, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut heard = String::new();
    stream.read_to_string(&mut heard).unwrap();
    heard
}

const GET: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

#[test]
fn metrics_are_served_to_this_user() {
    let world = world_with_files(1);
    fs::set_permissions(world.local(""), Permissions::from_mode(0o755)).unwrap();
    let socket = world.local("metrics.socket");
    let option = format!("metrics=unix:{}", socket.display());
    let mut mount = mounted(&world, &["-o", &option]);
    eventually(SHOWN, "the socket is served", || UnixStream::connect(&socket).is_ok());
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let heard = http(UnixStream::connect(&socket).unwrap(), GET);
    let (head, body) = heard.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("version=0.0.4"), "{head}");
    assert!(parsed(body).contains_key(&format!(
        "sshoal_uptime_seconds{{mountpoint=\"{}\"}}",
        mount.place().display()
    )));
    let heard = http(UnixStream::connect(&socket).unwrap(), "GET / HTTP/1.1\r\n\r\n");
    assert!(heard.starts_with("HTTP/1.1 404 "), "{heard}");
    // A client that says nothing does not keep others out.
    let _silent: Vec<_> = (0..3).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    assert!(http(UnixStream::connect(&socket).unwrap(), GET).contains("200 OK"));
    if geteuid().is_root() {
        let connect = "exit(IO::Socket::UNIX->new($ARGV[0]) ? 0 : $!{EACCES} ? 13 : 1)";
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "5", "--regid", "60", "--clear-groups", "--", "perl"]);
        command.args(["-MErrno", "-MIO::Socket::UNIX", "-e", connect]).arg(&socket);
        assert_eq!(run(&mut command).status.code(), Some(13), "another user");
    }
    // A second mount cannot have it; one after a crash can.
    let place = world.mountpoint();
    let refused = world.refusal(&[&world.source(), place.to_str().unwrap(), "-o", &option]);
    assert!(refused.contains("another process listens on this socket"), "{refused}");
    mount.daemon().signal(Signal::KILL);
    mount.wait_ended();
    assert!(umount(&[], mount.place()).status.success());
    assert!(socket.exists(), "a killed process removes nothing");
    let mount = mounted(&world, &["-o", &option]);
    eventually(SHOWN, "the socket is served", || UnixStream::connect(&socket).is_ok());
    mount.unmount();
    assert!(!socket.exists());
    // What is not a socket stays.
    fs::write(&socket, "text").unwrap();
    let refused = world.refusal(&[&world.source(), place.to_str().unwrap(), "-o", &option]);
    assert!(refused.contains("is not a socket"), "{refused}");
    assert_eq!(fs::read_to_string(&socket).unwrap(), "text");
}

#[test]
fn metrics_are_served_to_this_machine_only() {
    let world = World::new();
    let place = world.mountpoint();
    let words = [&world.source(), place.to_str().unwrap(), "-o", "metrics=0.0.0.0:9464"];
    let refused = world.refusal(&words);
    assert!(refused.contains("must be a loopback address"), "{refused}");
    // A port that is free, and in use while this listens.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let option = format!("metrics={address}");
    let refused = world.refusal(&[&world.source(), place.to_str().unwrap(), "-o", &option]);
    assert!(refused.contains(&option) && refused.contains("in use"), "{refused}");
    drop(listener);
    let mount = mounted(&world, &["-o", &option]);
    eventually(SHOWN, "the port is served", || TcpStream::connect(address).is_ok());
    let heard = http(TcpStream::connect(address).unwrap(), GET);
    assert!(heard.contains("\nsshoal_uptime_seconds{"), "{heard}");
    mount.unmount();
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn a_profile_names_the_process_and_the_directory() {
    let world = World::new();
    fs::create_dir(world.served("d\u{1b}[2Jir")).unwrap();
    fs::write(world.served("d\u{1b}[2Jir/file"), "content").unwrap();
    let mount = mounted(&world, &["-o", "entry_timeout=0,attr_timeout=0,cache_timeout=0"]);
    let tool = world.local("a-known-tool");
    sandbox::copy_program("/usr/bin/stat".as_ref(), &tool).unwrap();
    let profile = |words: &[&str]| {
        let mut command = program();
        command.arg("profile").arg(mount.place()).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Process::spawn(&mut command)
    };
    // Until the profile ends, so that it sees some.
    let watched = |mut recording: Process| {
        while recording.try_wait(Duration::ZERO).is_none() {
            run(Command::new(&tool).arg(mount.at("d\u{1b}[2Jir/file")));
        }
        let mut text = String::new();
        recording.child().stdout.take().unwrap().read_to_string(&mut text).unwrap();
        text
    };
    run(Command::new(&tool).args(vec![mount.at("d\u{1b}[2Jir/file"); 500]));
    let lookups = |document: &Value| number(document, "/caches/lookup_misses");
    let before = lookups(&total(&mount));
    assert!(before >= 500, "{before}");
    let recording = profile(&["-t", "3", "--json"]);
    let told: Value = serde_json::from_str(&watched(recording)).unwrap();
    let within = lookups(&total(&mount)) - before;
    assert!((1..=within).contains(&lookups(&told)), "{within}: {told}");
    assert_eq!(told["disk"], Value::Null);
    let entry = |list: &str, name: &str| {
        let entries = told[list].as_array().unwrap();
        let found = entries.iter().find(|entry| entry["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}: {told}")).clone()
    };
    let process = entry("processes", "a-known-tool");
    assert!(process["pid"].as_u64() > Some(1) && number(&process, "/operations/lookup") > 0);
    assert!(number(&process, "/requests") > 0 && number(&process, "/waited_us") > 0, "{told}");
    let directory = entry("directories", "/d\\u{1b}[2Jir");
    let path = entry("paths", "/d\\u{1b}[2Jir/file");
    assert!(number(&path, "/operations/lookup") > 0, "{told}");
    assert!(number(&directory, "/operations/lookup") >= number(&path, "/operations/lookup"));
    assert_eq!(told["is_incomplete"], false);
    let text = watched(profile(&["-t", "2"]));
    assert!(text.contains(" cache\n") && text.contains(" lookup\n"), "{text}");
    assert!(text.contains("a-known-tool (") && text.contains("/d\\u{1b}[2Jir/file"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");

    // One at a time; it ends with its client.
    let mut endless = profile(&["-t", "600"]);
    let another = || run(program().arg("profile").arg(mount.place()).args(["-t", "1"]));
    eventually(SHOWN, "refused", || {
        // The other one may have been first.
        if endless.try_wait(Duration::ZERO).is_some() {
            endless = profile(&["-t", "600"]);
        }
        another().stderr.contains("another profile")
    });
    endless.signal(Signal::INT);
    endless.wait(SHOWN);
    eventually(SHOWN, "free again", || another().status.success());
    mount.unmount();
}

#[test]
fn a_daemon_that_hangs_or_is_dead_and_other_users_are_told() {
    let world = World::new();
    fs::set_permissions(world.local(""), Permissions::from_mode(0o755)).unwrap();
    let mut mount = mounted(&world, &[]);
    if geteuid().is_root() {
        let copy = world.local("sshoal");
        sandbox::copy_program(program_path().as_ref(), &copy).unwrap();
        for command in ["stats", "profile"] {
            let mut other = Command::new("setpriv");
            other.args(["--reuid", "5", "--regid", "60", "--clear-groups", "--"]).arg(&copy);
            let ended = run(other.arg(command).arg(mount.place()).env_remove("XDG_RUNTIME_DIR"));
            assert_eq!(ended.status.code(), Some(1), "{ended:?}");
            assert!(ended.stderr.contains("mounted by user 0; only that user"), "{ended:?}");
        }
    }
    let place = mount.place().to_owned();
    let refused = |words: &[&str], said: &str| {
        let ended = run(program().arg(words[0]).arg(&place).args(&words[1..]));
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        assert!(ended.stderr.contains(said), "{words:?}: {ended:?}");
    };
    mount.daemon().stop();
    refused(&["stats", "--total"], "no reply within 2 s");
    refused(&["stats", "-n", "1", "-i", "0.1"], "no reply within 2 s");
    refused(&["profile", "-t", "1"], "no reply within");
    mount.daemon().signal(Signal::CONT);
    assert!(stats(&mount, &["--total"]).status.success());
    mount.daemon().signal(Signal::KILL);
    mount.wait_ended();
    for words in [&["stats", "--total"][..], &["stats", "-n", "5"], &["profile"]] {
        refused(words, "`sshoal umount` removes it");
    }
    // Also while another mount answers.
    let other = mounted(&world, &[]);
    let ended = stats(&other, &[place.to_str().unwrap(), "-n", "1", "-i", "0.1"]);
    assert_eq!((ended.status.code(), ended.stdout.lines().count()), (Some(1), 3), "{ended:?}");
    other.unmount();
    assert!(umount(&[], &place).status.success());
    refused(&["stats"], "nothing is mounted here");
}

/// The live view in a terminal of its own, of which `log` gets everything.
fn live(mount: &Mount, log: &Path) -> Process {
    let _ = fs::remove_file(log);
    let mut command = Command::new("script");
    let shown = format!(
        "stty cols 100 rows 35; exec {} stats {} -i 0.1",
        program_path().display(),
        mount.place().display()
    );
    command.args(["-q", "-e", "-f", "-c", &shown]).arg(log).env("TERM", "xterm-256color");
    command.env_remove("XDG_RUNTIME_DIR");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let live = Process::spawn(&mut command);
    eventually(SHOWN, "the view is drawn", || text(log).contains("lookup"));
    live
}

fn text(log: &Path) -> String {
    String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned()
}

const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";

#[test]
fn the_live_view_restores_the_terminal_at_every_end() {
    let world = world_with_files(3);
    let mount = mounted(&world, &[]);
    let log = world.local("log");
    let was_restored = || text(&log).contains(ENTER) && text(&log).contains(LEAVE);

    let mut view = live(&mount, &log);
    assert!(!was_restored());
    view.child().stdin.as_mut().unwrap().write_all(b"q").unwrap();
    assert_eq!(view.wait(SHOWN).code(), Some(0));
    assert!(was_restored() && text(&log).contains("operations"), "{}", text(&log));

    let mut view = live(&mount, &log);
    let shown = mount.place().to_str().unwrap().to_owned();
    // `script` runs it as its child.
    let child = || {
        fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
            let words = fs::read(entry.path().join("cmdline")).ok()?;
            let words: Vec<_> = words.split(|byte| *byte == 0).collect();
            let is_it = words.len() > 2 && words[1] == b"stats" && words[2] == shown.as_bytes();
            is_it.then(|| entry.file_name().to_str()?.parse::<i32>().ok()).flatten()
        })
    };
    let pid = rustix::process::Pid::from_raw(child().unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(view.wait(SHOWN).code(), Some(143));
    assert!(was_restored(), "{}", text(&log));

    // The terminal is closed.
    let mut view = live(&mount, &log);
    view.signal(Signal::KILL);
    view.wait(SHOWN);
    eventually(SHOWN, "the view has ended", || child().is_none());

    let mut view = live(&mount, &log);
    mount.unmount();
    assert_eq!(view.wait(SHOWN).code(), Some(1));
    assert!(was_restored(), "{}", text(&log));
    assert!(text(&log).contains(": unmounted"), "{}", text(&log));
}
