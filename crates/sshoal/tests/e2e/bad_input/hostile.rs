//! Servers that do not keep to the protocol, or that keep to it in bad faith.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::process::Signal;

use super::assert_says;
use super::server::{self, FILE_BYTES};
use crate::mount::Mount;
use crate::process::{Process, eventually, run_within};
use crate::world::program;

/// Most memory of a daemon that nobody gave anything to keep, in KiB. It takes about 15,000.
const SMALL_KIB: u64 = 64 << 10;

const SECOND: Duration = Duration::from_secs(1);

fn option(dir: &Path, manner: &str) -> String {
    format!("ssh_command={}", server::command(dir, manner).display())
}

/// A mount of a server with this manner.
pub(super) fn mount(dir: &Path, manner: &str, options: &[&str]) -> Mount {
    let place = dir.join("mnt");
    fs::create_dir(&place).unwrap();
    let mut command = program();
    command.args(["-f", "dummy:/"]).arg(&place).args(["-o", &option(dir, manner)]).args(options);
    Mount::start(command, place).with_errors()
}

#[test]
fn mounts_of_servers_that_do_not_greet_do_not_come_about() {
    for (manner, parts) in [
        // sshfs's own words, which its suite looks for.
        ("zero_length", &["bad reply len: 0"][..]),
        ("huge_length", &["bad reply len"]),
        ("cut_short", &["ended without a message"]),
        ("binary_noise", &[]),
        ("version_2", &["version"]),
        ("root_is_a_file", &["not a directory"]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("mnt");
        fs::create_dir(&place).unwrap();
        let mut command = program();
        command.args(["-f", "dummy:/"]).arg(&place).args(["-o", &option(dir.path(), manner)]);
        let ended = run_within(10 * SECOND, &mut command);
        assert_eq!(ended.status.code(), Some(1), "{manner}: {}", ended.stderr);
        assert!(!ended.stderr.contains("panicked"), "{manner}: {}", ended.stderr);
        assert_says(&ended.stderr, parts);
    }
}

#[test]
fn waiting_for_a_silent_server_can_be_ended() {
    let dir = tempfile::tempdir().unwrap();
    for foreground in [true, false] {
        let mut command = program();
        command.arg("dummy:/").arg(dir.path()).args(["-o", &option(dir.path(), "silent")]);
        command.args(foreground.then_some("-f")).stderr(Stdio::null());
        // As from a terminal, the signal goes to the whole group.
        use std::os::unix::process::CommandExt;
        command.process_group(0);
        let mut mounting = Process::spawn(&mut command);
        eventually(20 * SECOND, "the server runs", || {
            run_within(SECOND * 5, Command::new("pgrep").args(["-g", &mounting.pid().to_string()]))
                .stdout
                .lines()
                .count()
                >= 2
        });
        assert_eq!(mounting.try_wait(Duration::from_millis(200)), None);
        let group = rustix::process::Pid::from_raw(mounting.pid().cast_signed()).unwrap();
        rustix::process::kill_process_group(group, Signal::INT).unwrap();
        assert!(!mounting.wait(SECOND).success());
        sandbox::leftover::assert_none(dir.path());
    }
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn answers_against_the_protocol_end_the_connection_and_not_the_mount() {
    for manner in ["wrong_id", "wrong_type", "zero_length_later", "trailing_bytes", "flood"] {
        let dir = tempfile::tempdir().unwrap();
        let mount = mount(dir.path(), manner, &["-o", "dir_cache=no"]);
        for _ in 0..3 {
            let begun = Instant::now();
            let got = errno(fs::metadata(mount.at("file")));
            let failed = matches!(got, Some(libc::EIO | libc::EHOSTDOWN));
            // The first one of the flood was an answer.
            assert!(failed || manner == "flood" && got.is_none(), "{manner}: {got:?}");
            assert!(begun.elapsed() < 5 * SECOND, "{manner}: {:?}", begun.elapsed());
            // Other names are fine over the next connection.
            eventually(10 * SECOND, "a new connection", || fs::metadata(mount.at("dir")).is_ok());
        }
        assert!(mount.peak_memory_kib() < SMALL_KIB, "{manner}: {}", mount.peak_memory_kib());
    }
}

#[test]
fn an_unknown_status_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mount = mount(dir.path(), "lost_status", &[]);
    assert_eq!(errno(fs::metadata(mount.at("file"))), Some(libc::EIO));
    assert!(fs::metadata(mount.at("dir")).is_ok());
}

/// A4: what the server cannot promise is not promised here.
#[test]
fn fsync_fails_where_the_server_has_none() {
    let dir = tempfile::tempdir().unwrap();
    let mount = mount(dir.path(), "good", &[]);
    let file = File::options().write(true).open(mount.at("file")).unwrap();
    assert_eq!(errno(file.sync_all()), Some(libc::EINVAL));
    let dir = tempfile::tempdir().unwrap();
    let mount = self::mount(dir.path(), "good", &["-o", "workaround=fsync"]);
    let file = File::options().write(true).open(mount.at("file")).unwrap();
    file.sync_all().unwrap();
    File::open(mount.at("")).unwrap().sync_all().unwrap();
}

#[test]
fn a_handle_that_is_too_long_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mount = mount(dir.path(), "long_handle", &[]);
    let got = errno(File::open(mount.at("file")));
    assert!(matches!(got, Some(libc::EIO | libc::EHOSTDOWN)), "{got:?}");
}

#[test]
fn a_server_that_falls_silent_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let options = "request_timeout=1,dir_cache=no,soft=1";
    let mount = mount(dir.path(), "silent_later", &["-o", options]);
    let begun = Instant::now();
    let got = errno(fs::metadata(mount.at("file")));
    assert!(matches!(got, Some(libc::ETIMEDOUT | libc::EHOSTDOWN)), "{got:?}");
    assert!(begun.elapsed() < 8 * SECOND, "{:?}", begun.elapsed());
}

fn names(dir: &Path) -> io::Result<Vec<Vec<u8>>> {
    let names = fs::read_dir(dir)?.map(|it| Ok(it?.file_name().into_encoded_bytes()));
    let mut names: Vec<Vec<u8>> = names.collect::<io::Result<_>>()?;
    names.sort();
    Ok(names)
}

#[test]
fn names_that_are_none_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let mount = mount(dir.path(), "bad_names", &[]);
    let mut found = names(mount.place()).unwrap();
    found.dedup();
    let long = vec![b'n'; 256];
    assert_eq!(found, [&b"\x1b[2J"[..], b"good", &long]);
    let words = mount.words();
    assert!(words.contains("left out"), "{words}");
    assert!(!words.contains('\x1b'), "{words:?}");
}

#[test]
fn attributes_that_cannot_be_are_errors_or_harmless() {
    let dir = tempfile::tempdir().unwrap();
    let mount = mount(dir.path(), "good", &[]);
    for name in ["endless_size", "negative_size", "no_kind", "strange_kind", "no_attributes"] {
        assert_eq!(errno(fs::metadata(mount.at(name))), Some(libc::EIO), "{name}");
    }
    let largest = File::open(mount.at("largest_size")).unwrap();
    assert_eq!(largest.metadata().unwrap().len(), i64::MAX as u64);
    assert_eq!(largest.read_at(&mut [0; 100], FILE_BYTES).unwrap(), 0);
    let far = i64::MAX as u64 - 50;
    let got = largest.read_at(&mut [0; 100], far);
    assert!(matches!(got, Ok(0) | Err(_)), "{got:?}");
    // Devices and set-user-id programs of a server do nothing here.
    assert!(errno(File::open(mount.at("device"))).is_some());
    // A pipe is one of this machine: the server is not asked for what is in it.
    let pipe = rustix::fs::open(mount.at("pipe"), OFlags::RDONLY | OFlags::NONBLOCK, 0.into());
    assert_eq!(rustix::io::read(pipe.unwrap(), &mut [0_u8; 10][..]), Ok(0));
    assert_ne!(fs::metadata(mount.at("suid")).unwrap().mode() & 0o4000, 0);
    let flags = rustix::fs::statvfs(mount.place()).unwrap().f_flag;
    let safe = rustix::fs::StatVfsMountFlags::NOSUID | rustix::fs::StatVfsMountFlags::NODEV;
    assert!(flags.contains(safe), "{flags:?}");
}

#[test]
fn replies_with_other_data_than_requested_are_errors() {
    for manner in ["read_too_much", "read_nothing", "read_cut_short"] {
        let dir = tempfile::tempdir().unwrap();
        let mount = mount(dir.path(), manner, &[]);
        let begun = Instant::now();
        let got = errno(fs::read(mount.at("file")));
        let is_failure = matches!(got, Some(libc::EIO | libc::EHOSTDOWN | libc::ESTALE));
        assert!(is_failure, "{manner}: {got:?}");
        assert!(begun.elapsed() < 10 * SECOND, "{manner}: {:?}", begun.elapsed());
        assert!(mount.peak_memory_kib() < SMALL_KIB, "{manner}: {}", mount.peak_memory_kib());
    }
}

#[test]
fn data_in_single_bytes_is_right_and_can_be_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let mount = mount(dir.path(), "read_a_byte", &["-o", "direct_io"]);
    let file = File::open(mount.at("file")).unwrap();
    let mut some = [0; 100];
    file.read_exact_at(&mut some, FILE_BYTES - 100).unwrap();
    assert_eq!(some, [b'x'; 100]);
    let mut cat = Process::spawn(Command::new("cat").arg(mount.at("file")).stdout(Stdio::null()));
    cat.try_wait(Duration::from_millis(300));
    cat.signal(Signal::INT);
    cat.wait(SECOND);
    assert!(mount.peak_memory_kib() < SMALL_KIB);
}

#[test]
fn an_endless_listing_can_be_interrupted() {
    for (manner, bound_kib) in [
        ("endless_listing", 4 * SMALL_KIB),
        ("endless_empty_listing", SMALL_KIB),
        ("endless_bad_names", SMALL_KIB),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mount = mount(dir.path(), manner, &[]);
        let mut ls = Process::spawn(
            Command::new("ls")
                .arg("-U")
                .arg(mount.place())
                .stdout(Stdio::null())
                .stderr(Stdio::null()),
        );
        let ended = ls.try_wait(2 * SECOND);
        if manner == "endless_listing" {
            assert_eq!(ended, None, "{manner}");
        }
        ls.signal(Signal::INT);
        ls.wait(SECOND);
        let peak = mount.peak_memory_kib();
        eprintln!("{manner}: {peak} KiB, {ended:?}");
        assert!(peak < bound_kib, "{manner}: {peak} KiB");
        assert!(fs::metadata(mount.at("file")).is_ok(), "the mount works on");
    }
}

#[test]
fn a_name_without_a_kind_does_not_hide_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let mount = mount(dir.path(), "strange_listing", &[]);
    // Its kind cannot be told, so either it is left out or the listing says that it is not whole.
    match names(mount.place()) {
        Ok(found) => assert!(found.contains(&b"file".to_vec()), "{found:?}"),
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EIO)),
    }
}
