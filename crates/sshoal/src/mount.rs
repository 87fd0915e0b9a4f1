//! The mount command: parses the command line into a request, and goes to the background.

pub mod command_line;
pub mod disk;
mod draft;
mod flag_table;
pub mod help;
mod idmap;
mod occupied;
pub mod option_string;
pub mod option_table;
pub mod request;
mod saved;
pub mod server_arguments;
pub mod settings;
pub mod ssh_keywords;
pub mod suggestion;
pub mod wiring;

#[cfg(test)]
pub mod documentation_tests;
#[cfg(test)]
mod message_tests;
#[cfg(test)]
pub mod option_tests;
#[cfg(test)]
mod source_tests;

pub use draft::{check_sources, one_password_for_several_hosts};

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use cli::{EXIT_OK, Problem, printable, word};

use crate::background::{self, Side};
use crate::config_file::{Configuration, Places};
use crate::log;
use crate::process::current_directory;
use crate::program::Program;
use command_line::Wish;
use request::{IdMapKind, MountRequest};

/// Runs the command line given by the words after `argv[0]`. `is_command`: `mount` came before
/// them, so that they may name a mount of the configuration file.
pub fn run(program: Program, words: Vec<OsString>, is_command: bool) -> anyhow::Result<ExitCode> {
    if is_command && words.iter().any(|word| word == "--all") {
        return saved::mount_all(&words);
    }
    if let Some(remounted) = settings::remount(program, &words) {
        remounted?;
        return Ok(ExitCode::from(EXIT_OK));
    }
    let cwd = current_directory()?;
    let find = |name: &OsStr| Configuration::load(&Places::of_environment())?.find(name);
    let may_be_name = is_command || program.helper && !program.is_sshfs();
    let saved: Option<command_line::Saved<'_>> = if may_be_name { Some(&find) } else { None };
    match command_line::parse(program, words, cwd, saved)? {
        Wish::Help => cli::print(&help::short(program)),
        Wish::Version => cli::print(&help::version(program)),
        Wish::Mount(request, notes) => mount(program, *request, &notes),
    }
}

fn mount(
    program: Program,
    mut request: MountRequest,
    notes: &[String],
) -> anyhow::Result<ExitCode> {
    if !request.run.fake && !is_open_descriptor(&request.mountpoint) {
        let what = mount_point(&request.mountpoint);
        let note = |text: &str| tell(program, &[text.to_owned()]);
        occupied::clear(&request.mountpoint, request.run.nonempty, &what, note)?;
    }
    resolve_mountpoint(&mut request)?;
    if request.idmap.kind == IdMapKind::File {
        request.vfs.idmap = idmap::load(&request.idmap)?;
    }
    if request.run.fake {
        return Ok(ExitCode::from(EXIT_OK));
    }
    let run = &request.run;
    match background::enter(run.foreground, run.log.file(), program.name)? {
        Side::Parent(code) => {
            if code == EXIT_OK {
                tell(program, notes);
            }
            Ok(ExitCode::from(code))
        }
        Side::Mount(ready) => {
            if ready.is_foreground() {
                tell(program, notes);
            }
            match log::start(&request) {
                Ok(()) => wiring::run(request, ready),
                Err(problem) => Ok(wiring::give_up(ready, &problem)),
            }
        }
    }
}

fn tell(program: Program, notes: &[String]) {
    for note in notes {
        eprintln!("{}: note: {note}", program.name);
    }
}

/// Makes the mount point absolute, with symbolic links resolved, as the kernel will show it.
/// `/dev/fd/N` denotes a mount that the caller has made, and stays unchanged.
fn resolve_mountpoint(request: &mut MountRequest) -> Result<(), Problem> {
    let typed = &request.mountpoint;
    if is_open_descriptor(typed) {
        return Ok(());
    }
    let what = || mount_point(typed);
    let resolved = typed.canonicalize().and_then(|path| Ok((path.metadata()?, path)));
    let (metadata, path) = resolved.map_err(|error| {
        let errno = base::Errno::from(error);
        let problem = Problem::new(what(), errno.to_string());
        match errno {
            base::Errno::ENOTCONN => match fuse_mount_around(typed) {
                Some((place, command)) => problem.hint(format!(
                    "a dead mount whose daemon has ended; `{command} {}` removes it",
                    word(place)
                )),
                None => problem,
            },
            base::Errno::ENOENT => problem.hint(format!("mkdir {}", word(typed))),
            _ => problem,
        }
    })?;
    if !metadata.is_dir() {
        return Err(Problem::new(what(), "not a directory"));
    }
    let paths = [Some(path.clone()), logical(typed)].into_iter().flatten();
    request.vfs.mount_points = paths.map(|path| path.into_os_string().into_vec()).collect();
    request.mountpoint = path;
    Ok(())
}

/// The absolute path of `typed` as shells show it: with the symbolic links that were typed.
fn logical(typed: &Path) -> Option<PathBuf> {
    let directory = PathBuf::from(std::env::var_os("PWD").unwrap_or_default());
    let path: PathBuf = directory.join(typed).components().collect();
    let leads_there = path.is_absolute() && path.canonicalize().ok() == typed.canonicalize().ok();
    let is_plain = !path.components().any(|part| part == Component::ParentDir);
    (leads_there && is_plain).then_some(path)
}

/// A mount point in messages.
fn mount_point(path: &Path) -> String {
    format!("mount point '{}'", printable(path))
}

/// The innermost FUSE mount that contains `path`, and the command that unmounts it.
fn fuse_mount_around(path: &Path) -> Option<(PathBuf, &'static str)> {
    let mount = mountinfo::around(path)?;
    let command = occupied::unmount_command(&mount, false);
    mountinfo::is_fuse(&mount.kind).then_some((mount.mountpoint, command))
}

/// Whether a mount point is `/dev/fd/N`, which denotes a mount that the caller has made.
pub fn is_open_descriptor(path: &Path) -> bool {
    let number = path.to_str().and_then(|path| path.strip_prefix("/dev/fd/"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(path: &Path) -> Result<std::path::PathBuf, String> {
        let mut request = MountRequest { mountpoint: path.to_owned(), ..MountRequest::default() };
        resolve_mountpoint(&mut request).map_err(|problem| problem.to_string())?;
        Ok(request.mountpoint)
    }

    #[test]
    fn a_mount_point_is_an_existing_directory_or_an_open_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert_eq!(resolve(&link), Ok(real));
        assert_eq!(resolve(Path::new("/dev/fd/3")), Ok("/dev/fd/3".into()));
        let missing = resolve(&dir.path().join("no\ndir")).unwrap_err();
        assert!(missing.contains("/no\\ndir': No such file"), "{missing}");
        assert!(missing.contains("\n  mkdir $'"), "{missing}");
        let file = resolve(Path::new("/etc/passwd")).unwrap_err();
        assert_eq!(file, "mount point '/etc/passwd': not a directory");
        assert!(!is_open_descriptor(Path::new("/dev/fd/")));
        assert!(!is_open_descriptor(Path::new("/dev/fd/3/x")));
    }
}
