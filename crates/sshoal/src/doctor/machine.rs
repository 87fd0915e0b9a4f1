//! This machine: FUSE, the programs that a mount starts, mounts without a daemon, the disk cache.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::geteuid;

use cli::{printable, word};
use control::seen::{self, Daemon, SeenMount};

use super::{Check, Checks, Verdict};
use crate::quantity::{bytes, count};
use crate::stack::disk;

/// What later kernels have, with the version that brought it.
const FEATURES: [((u32, u32), &str); 4] = [
    ((5, 6), "local directories, copies, and file watchers that see changes of servers"),
    ((6, 9), "reads of cached files without this program (passthrough)"),
    ((6, 16), "one request to drop all names"),
    ((6, 18), "bounded memory for directories"),
];

/// The oldest that was tested, and the first with the version of FUSE that mounts need. Some
/// distributions add that to an older one.
const OLDEST_TESTED: (u32, u32) = (5, 4);

/// The name of the checks of a disk cache.
pub const CACHE: &str = "disk cache";

/// Free space below which the disk cache soon removes what it has.
const LITTLE_SPACE: u64 = 1 << 30;

/// How much of the disk cache is verified.
const SAMPLE: cache::SampleLimits =
    cache::SampleLimits { bytes: 64 << 20, time: Duration::from_secs(2) };

pub fn check(checks: &mut Checks) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    checks.add(kernel(&release));
    checks.add(device(Path::new("/dev/fuse")));
    checks.add(fusermount());
    checks.add(allow_other(fs::read_to_string("/etc/fuse.conf")));
    checks.add(ssh());
    let mounts = seen::all().unwrap_or_default();
    for (mount, state) in mounts.iter().zip(seen::look(&mounts)) {
        let check = dead(&state, &mount.mountpoint).or_else(|| mute(&state));
        check.into_iter().for_each(|check| checks.add(check));
    }
    match disk::default_dir() {
        Ok(directory) => check_cache(checks, &directory),
        Err(problem) => checks.add(Check::note(CACHE, problem.to_string())),
    }
}

/// Checks the disk cache of a mount, unless it is the default one, which was checked.
pub fn check_other_cache(checks: &mut Checks, directory: &Path) {
    if disk::default_dir().ok().as_deref() != Some(directory) {
        check_cache(checks, directory);
    }
}

fn check_cache(checks: &mut Checks, directory: &Path) {
    let cache = cache(directory);
    let sample = (cache.verdict != Verdict::Wrong).then(|| cache_sample(directory)).flatten();
    for check in [Some(cache), sample].into_iter().flatten() {
        checks.add(check.naming(printable(directory)));
    }
}

/// A command about the cache in `directory`.
fn cache_command(command: &str, directory: &Path) -> String {
    let dir = match disk::default_dir().ok().as_deref() == Some(directory) {
        true => String::new(),
        false => format!(" --dir {}", word(directory)),
    };
    format!("sshoal cache {command}{dir}")
}

fn kernel(release: &str) -> Check {
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse().ok());
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
        return Check::unknown("kernel", release);
    };
    let missing = FEATURES.iter().filter(|(since, _)| (major, minor) < *since);
    let missing: Vec<String> =
        missing.map(|((major, minor), what)| format!("since {major}.{minor}: {what}")).collect();
    let missing = missing.join(", ");
    match (major, minor) {
        old if old < OLDEST_TESTED => Check::unknown(
            "kernel",
            format!("{release}: not tested, mounts need FUSE 7.31 of 5.4; not there: {missing}"),
        ),
        _ if missing.is_empty() => Check::fine("kernel", release),
        _ => Check::note("kernel", format!("{release}; not there: {missing}")),
    }
}

fn device(path: &Path) -> Check {
    let what = "/dev/fuse";
    let no_driver = |found: &str| Check::wrong(what, found).remedy("as root: modprobe fuse");
    let found = match fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return no_driver("not there"),
        Err(error) => return Check::wrong(what, error.to_string()),
    };
    if !found.file_type().is_char_device() {
        return no_driver("no device");
    }
    let mode = format!("mode {:04o}", found.permissions().mode() & 0o7777);
    match fs::OpenOptions::new().read(true).write(true).open(path) {
        Ok(_) => Check::fine(what, mode),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let remedy = format!("as root: chmod 0666 {}", path.display());
            Check::wrong(what, format!("{mode}: {error}")).remedy(remedy)
        }
        Err(error) => no_driver(&format!("{mode}: {error}")),
    }
}

/// The program with this name in `PATH`.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let programs = std::env::split_paths(&path).map(|directory| directory.join(name));
    programs.into_iter().find(|program| program.is_file())
}

fn fusermount() -> Check {
    let what = "fusermount3";
    let is_root = geteuid().is_root();
    let Some(program) = find(what) else {
        return match is_root {
            true => Check::note(what, "not found; only ordinary users need it"),
            false => Check::wrong(what, "not found"),
        }
        .remedy("install it: apt install fuse3, dnf install fuse3, pacman -S fuse3");
    };
    let shown = program.display().to_string();
    match fs::metadata(&program) {
        Ok(found) if is_root || (found.uid() == 0 && found.mode() & 0o4000 != 0) => {
            Check::fine(what, shown)
        }
        Ok(_) => Check::wrong(what, format!("{shown} does not run as root"))
            .remedy(format!("as root: chown root {0} && chmod u+s {0}", word(&program))),
        Err(error) => Check::wrong(what, format!("{shown}: {error}")),
    }
}

fn allow_other(config: io::Result<String>) -> Check {
    let what = "allow_other";
    let is_set = |text: &str| text.lines().any(|line| line.trim() == "user_allow_other");
    let is_allowed = geteuid().is_root() || config.as_ref().is_ok_and(|text| is_set(text));
    match is_allowed {
        true => Check::fine(what, "allowed"),
        false => Check::note(what, "only root may let other users into a mount")
            .remedy("to allow it to all, as root: echo user_allow_other >> /etc/fuse.conf"),
    }
}

fn ssh() -> Check {
    match Command::new("ssh").arg("-V").output() {
        Ok(output) => Check::fine("ssh", String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => Check::wrong("ssh", error.to_string())
            .remedy("install it: apt install openssh-client, dnf install openssh-clients"),
    }
}

/// A check of a mount at `place` whose daemon does not answer.
pub fn dead(mount: &SeenMount, place: &Path) -> Option<Check> {
    let (found, flag) = match mount.daemon {
        Daemon::Dead => ("its process has ended", ""),
        // It would be waited for.
        Daemon::Hangs => ("its process does not answer", "-z "),
        _ => return None,
    };
    let check = Check::wrong("mount", format!("{}: {found}", mount.mountpoint));
    Some(check.remedy(format!("sshoal umount {flag}{}", word(place))))
}

/// A check of a mount whose daemon cannot be queried.
fn mute(mount: &SeenMount) -> Option<Check> {
    let why = mount.why.as_ref().filter(|_| mount.daemon == Daemon::Mute)?;
    Some(Check::unknown("mount", format!("{}: {why}", mount.mountpoint)))
}

fn cache(directory: &Path) -> Check {
    let what = CACHE;
    let shown = directory.display();
    let wrong = |error: io::Error| {
        Check::wrong(what, format!("{shown}: {error}"))
            .remedy("name another directory with -o cache_dir=DIR")
    };
    let found = fs::metadata(directory);
    let is_used = !matches!(&found, Err(error) if error.kind() == io::ErrorKind::NotFound);
    // Where it would be made, if it is not there.
    let place = directory.ancestors().find(|place| place.exists()).unwrap_or(directory);
    let permitted = rustix::fs::access(place, rustix::fs::Access::WRITE_OK);
    if let Err(error) = permitted.map_err(io::Error::from) {
        return wrong(error);
    }
    let mode = match found {
        Err(_) if !is_used => 0,
        Ok(found) if !found.is_dir() => return wrong(rustix::io::Errno::NOTDIR.into()),
        Ok(found) if found.uid() != geteuid().as_raw() => {
            return Check::wrong(what, format!("{shown} belongs to another user"))
                .remedy("name another directory with -o cache_dir=DIR");
        }
        Ok(found) => found.mode() & 0o777,
        Err(error) => return wrong(error),
    };
    if mode & 0o077 != 0 {
        return Check::wrong(what, format!("{shown} has mode {mode:04o}: others could read it"))
            .remedy(format!("chmod 0700 {}", word(directory)));
    }
    let space = rustix::fs::statvfs(place).map(|space| space.f_bavail * space.f_frsize);
    match space {
        Ok(free) if free < LITTLE_SPACE => {
            Check::note(what, format!("{shown}: {} free", bytes(free))).remedy(format!(
                "{} removes what is not needed; {} shows it",
                cache_command("gc", directory),
                cache_command("status", directory)
            ))
        }
        Ok(_) if !is_used => Check::fine(what, format!("{shown}: not used so far")),
        Ok(free) => Check::fine(what, format!("{shown}: {} free", bytes(free))),
        Err(error) => wrong(error.into()),
    }
}

/// Compares a random sample of the cache with its checksums. `None` if there is nothing in it.
fn cache_sample(directory: &Path) -> Option<Check> {
    let what = "cache sample";
    let sample = match cache::Sample::take(directory, SAMPLE) {
        Ok(sample) => sample,
        Err(error) => return Some(Check::unknown(what, error.to_string())),
    };
    let sum = |contents, directories| {
        let (contents, directories) = (count(contents, "content"), count(directories, "directory"));
        format!("{contents} and the names of {directories}")
    };
    let checked = sum(
        sample.contents + sample.damaged_contents,
        sample.directories + sample.damaged_directories,
    );
    let read = bytes(sample.bytes);
    Some(match sample.is_clean() {
        true if sample == cache::Sample::default() => return None,
        true => Check::fine(what, format!("{checked} ({read}): all as they were written")),
        false => {
            let damaged = sum(sample.damaged_contents, sample.damaged_directories);
            Check::wrong(what, format!("damaged: {damaged}, of {checked} ({read})")).remedy(
                format!(
                    "{} checks all and removes what is damaged; check the disk, too",
                    cache_command("verify", directory)
                ),
            )
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_lacks_what_came_after_it() {
        assert_eq!(kernel("6.18.3-amd64").verdict, Verdict::Fine);
        let old = kernel("6.1.0-28-amd64");
        assert_eq!(old.verdict, Verdict::Note);
        assert!(old.found.contains("since 6.9") && old.found.contains("since 6.18"), "{old:?}");
        assert!(!old.found.contains("since 5.6") && !old.found.contains("not tested"), "{old:?}");
        assert!(!kernel("6.12.1").found.contains("since 6.9"));
        let oldest = kernel("5.4.0-216-generic");
        assert_eq!(oldest.verdict, Verdict::Note);
        assert!(oldest.found.contains("since 5.6") && !oldest.found.contains("not tested"));
        let untested = kernel("4.19.0-27-amd64");
        assert_eq!(untested.verdict, Verdict::Unknown);
        assert!(untested.found.contains("not tested") && untested.found.contains("since 5.6"));
        assert_eq!(kernel("strange").verdict, Verdict::Unknown);
    }

    #[test]
    fn a_device_that_is_missing_or_a_file_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let missing = device(&dir.path().join("fuse"));
        assert_eq!(missing.verdict, Verdict::Wrong);
        assert!(missing.remedy.unwrap().contains("modprobe"));
        fs::write(dir.path().join("fuse"), "").unwrap();
        assert_eq!(device(&dir.path().join("fuse")).verdict, Verdict::Wrong);
    }
}
