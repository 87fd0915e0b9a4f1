//! `rclone mount` over SFTP.
//!
//! rclone speaks SSH itself, so that it gets address, user and keys on its command line; jump
//! hosts and agents of the user's configuration do not reach it. Cached are all files on the local
//! disk (`--vfs-cache-mode full`, without which it can neither write at random nor open a file
//! for reading and writing), or written files (`writes`).
//!
//! It acknowledges `write`, `fsync` and `close` before anything was sent. Upload begins when a
//! file is closed rather than five seconds later (`--vfs-write-back 0s`), so that the workloads can
//! wait for it with [`Session::settle`], whose time counts. What single writes take is still the
//! local disk's affair, and a block that is written ten times is sent once.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::executor::Executor;
use crate::failure::{Failure, Result};
use crate::quoting::joined;
use crate::server::Endpoint;
use crate::subject::Started;

use super::catalog::Setting;
use super::mount::{Cache, Mount, MountSession};
use super::programs::RCLONE;

/// Longest time for rclone to say which options it knows.
const HELP_LIMIT: Duration = Duration::from_secs(10);

/// Interval of the checks for files to upload; rclone does not report their end.
const LOOK: Duration = Duration::from_millis(20);

/// What a user would choose; all else is its default.
fn choices(mode: &str) -> [&str; 5] {
    // Without a type of shell it starts one for some commands at each start.
    ["--vfs-cache-mode", mode, "--vfs-write-back", "0s", "--sftp-shell-type=unix"]
}

/// The command as a user would type it; `mode` of the cache is `full` or `writes`.
pub(super) fn command(mode: &str) -> String {
    format!("rclone mount {} :sftp:DIR MOUNTPOINT", choices(mode).join(" "))
}

/// Mounts the server's directory.
pub(super) fn start(
    mode: &str,
    setting: &Setting,
    scratch: &Path,
    cipher: Option<String>,
    executor: &Executor,
) -> Started {
    let program = RCLONE.find().ok_or_else(|| Failure::failed("rclone is gone"))?;
    let endpoint = setting.server.endpoint(executor)?;
    let known_hosts = scratch.join("known_hosts");
    let known = write_known_hosts(&endpoint, &known_hosts)?;
    // Nothing of the user's own configuration.
    let Endpoint { address, port, user, keys, .. } = endpoint;
    let mut words: Vec<OsString> = vec!["mount".into(), "--config".into(), "/dev/null".into()];
    words.extend(choices(mode).map(OsString::from));
    let mut option = |name: &str, value: OsString| words.extend([OsString::from(name), value]);
    option("--sftp-host", address.into());
    option("--sftp-port", port.to_string().into());
    option("--sftp-user", user.into());
    if let Some(key) = keys.first() {
        option("--sftp-key-file", key.into());
    }
    if known {
        option("--sftp-known-hosts-file", known_hosts.into());
    }
    if let Some(cipher) = cipher {
        if !can_choose_cipher(&program, executor) {
            let why = "this rclone cannot choose the cipher; 1.61 and later ones can";
            return Err(Failure::NotTried { why: why.to_owned() });
        }
        option("--sftp-ciphers", cipher.into());
    }
    words.push(joined(&[":sftp:".as_ref(), setting.server.storage().root().as_ref()]));
    let caches = scratch.canonicalize()?.join("cache");
    let cache = Cache::Rclone(caches.clone());
    let make = move |point: &Path, nth: u32| {
        let mut command = Command::new(&program);
        command.args(&words).arg(point).arg("--cache-dir").arg(caches.join(nth.to_string()));
        command.current_dir("/");
        command
    };
    Ok(Box::new(MountSession::start(scratch, setting.start_limit, executor, cache, make)?))
}

/// `--sftp-ciphers` is there since 1.61; ones before take what their library prefers.
fn can_choose_cipher(program: &Path, executor: &Executor) -> bool {
    let mut command = Command::new(program);
    command.args(["help", "backend", "sftp"]);
    let Ok(ran) = executor.run(command, HELP_LIMIT) else { return false };
    String::from_utf8_lossy(&ran.output.stdout).contains("--sftp-ciphers")
}

/// Writes the keys that ssh knows the host by for a client that knows nothing of aliases.
/// `false` when ssh knows none, so that none can be asked for.
fn write_known_hosts(endpoint: &Endpoint, to: &Path) -> io::Result<bool> {
    let mut lines = String::new();
    for file in &endpoint.known_hosts {
        lines.push_str(&fs::read_to_string(file).unwrap_or_default());
        lines.push('\n');
    }
    let known = renamed(&lines, &endpoint.known_as, &endpoint.address, endpoint.port);
    fs::write(to, &known)?;
    Ok(!known.trim().is_empty())
}

/// All lines, and those of the alias once more by address and port.
fn renamed(lines: &str, alias: &str, address: &str, port: u16) -> String {
    let mut known = lines.to_owned();
    for line in lines.lines() {
        let mut fields = line.splitn(2, ' ');
        if let (Some(names), Some(key)) = (fields.next(), fields.next())
            && names.split(',').any(|name| name == alias)
        {
            known.push_str(&format!("[{address}]:{port} {key}\n"));
        }
    }
    known
}

/// Waits until all is uploaded. A file that was removed while it waited for its upload may be
/// noted as such for ever.
pub(super) fn settle(
    caches: &Path,
    mount: &Mount,
    executor: &Executor,
    limit: Duration,
) -> Result<()> {
    let deadline = Instant::now() + limit;
    while has_dirty(caches)? {
        if mount.pid().is_none() {
            return Err(Failure::failed("it has ended with files that were not uploaded"));
        }
        if executor.is_interrupted() {
            return Err(Failure::Interrupted);
        }
        if Instant::now() >= deadline {
            return Err(Failure::timed_out(limit));
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

/// Whether a file of the caches is newer than the server's: rclone notes it for each file in
/// `vfsMeta`.
fn has_dirty(caches: &Path) -> io::Result<bool> {
    let mut directories = vec![caches.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = match fs::read_dir(&directory) {
            // Files come and go under us.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries.flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                // The data themselves are in a directory beside.
                if entry.file_name() != "vfs" {
                    directories.push(path);
                }
            } else if fs::read(&path).is_ok_and(|note| is_dirty(&note)) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn is_dirty(note: &[u8]) -> bool {
    let note = serde_json::from_slice::<serde_json::Value>(note);
    // One that is being written is that of a file that is being written.
    note.map_or(true, |note| note["Dirty"].as_bool().unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_an_alias_are_known_by_address_too() {
        let lines = "other ssh-ed25519 AAAA\nbenchhost,x ssh-ed25519 BBBB comment\n";
        let known = renamed(lines, "benchhost", "127.0.0.1", 2022);
        assert_eq!(known.lines().last(), Some("[127.0.0.1]:2022 ssh-ed25519 BBBB comment"));
        assert_eq!(known.lines().count(), 3);
        assert_eq!(renamed("", "benchhost", "127.0.0.1", 22), "");
    }

    #[test]
    fn notes_of_unsent_files_are_understood() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!has_dirty(&dir.path().join("none")).unwrap());
        let notes = dir.path().join("0/vfsMeta/:sftp/x");
        let data = dir.path().join("0/vfs/:sftp/x");
        fs::create_dir_all(&notes).unwrap();
        fs::create_dir_all(&data).unwrap();
        fs::write(data.join("f"), "not a note").unwrap();
        fs::write(notes.join("f"), r#"{"Size":5,"Dirty":false}"#).unwrap();
        assert!(!has_dirty(dir.path()).unwrap());
        fs::write(notes.join("g"), r#"{"Size":5,"Dirty":true}"#).unwrap();
        assert!(has_dirty(dir.path()).unwrap());
        fs::write(notes.join("g"), r#"{"Size":5,"Dir"#).unwrap();
        assert!(has_dirty(dir.path()).unwrap());
    }
}
