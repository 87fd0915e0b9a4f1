//! The files of `idmap=file`: they map remote ids to local users and groups.
//!
//! A line is `name:remote id`, or a line of the remote's passwd(5) or group(5); the name is looked
//! up on the local machine. As in sshfs, a file that other users can write is refused, since it
//! determines the owners of files.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use base::Errno;
use cli::{Problem, printable};
use nix::unistd::{Group, User};
use rustix::process::getuid;

use super::request::IdMap;
use crate::trusted_file;

/// Maximum size of a file in bytes. The passwd file of a large site has some ten thousand lines of
/// about 100 bytes.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Finds the local id of a name; `None` if there is none.
type Lookup = fn(&str) -> io::Result<Option<u32>>;

/// The table of `idmap=file`, from its files.
pub fn load(idmap: &IdMap) -> Result<vfs::IdMap, Problem> {
    let ids = |file: &Option<PathBuf>, lookup: Lookup| {
        let Some(file) = file else { return Ok(vfs::Ids::Same) };
        let local_ids = parse(&read(file)?, file, lookup)?;
        Ok(vfs::Ids::Table { local_ids, others_same: idmap.others_same })
    };
    Ok(vfs::IdMap {
        uids: ids(&idmap.users, |name| Ok(User::from_name(name)?.map(|user| user.uid.as_raw())))?,
        gids: ids(&idmap.groups, |name| Ok(Group::from_name(name)?.map(|it| it.gid.as_raw())))?,
    })
}

fn about(file: &Path) -> String {
    format!("id file '{}'", printable(file))
}

/// Reads a file, which must be owned by the user and not writable by others.
fn read(path: &Path) -> Result<Vec<u8>, Problem> {
    let what = about(path);
    let content = trusted_file::read(path, &what, MAX_FILE_BYTES, |owner| {
        let me = getuid().as_raw();
        match owner == me {
            true => Ok(()),
            false => Err(Problem::new(&what, format!("not owned by user {me}"))),
        }
    })?;
    content.ok_or_else(|| Problem::new(what, Errno::ENOENT.to_string()))
}

/// Maps the remote id to the local id for each line whose name exists locally. Of two lines with
/// the same remote id the last is used.
fn parse(text: &[u8], path: &Path, lookup: Lookup) -> Result<HashMap<u32, u32>, Problem> {
    let mut ids = HashMap::new();
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        let what = format!("{}, line {}", about(path), index + 1);
        let (name, remote) = name_and_id(line).ok_or_else(|| {
            Problem::new(&what, "must be 'name:id' or a line of passwd(5) or group(5)")
        })?;
        let account = name.escape_ascii();
        // Local names are text.
        match std::str::from_utf8(name).map_or(Ok(None), lookup) {
            Ok(Some(local)) => drop(ids.insert(remote, local)),
            // getpwnam(3): these errors may also mean "not found".
            Err(error) if !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {
                let why = format!("cannot look up account '{account}': {error}");
                return Err(Problem::new(what, why));
            }
            Ok(None) | Err(_) => tracing::debug!("{what}: no local account '{account}'"),
        }
    }
    Ok(ids)
}

/// Name and id of a line: of two fields, the second is the id; of more, the third.
fn name_and_id(line: &[u8]) -> Option<(&[u8], u32)> {
    let mut fields = line.split(|byte| *byte == b':');
    let name = fields.next().filter(|name| !name.is_empty())?;
    let second = fields.next()?;
    let id = std::str::from_utf8(fields.next().unwrap_or(second)).ok()?;
    Some((name, id.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    const FILE: &str = "/etc/map";

    fn known(name: &str) -> io::Result<Option<u32>> {
        Ok(match name {
            "ann" => Some(1),
            "ben" => Some(2),
            _ => None,
        })
    }

    #[test]
    fn both_formats_and_blank_lines_are_read() {
        let text = b"ann:1001\n\nben:x:1002:100:Ben:/home/ben:/bin/sh\nzoe:1003\n";
        let ids = parse(text, Path::new(FILE), known).unwrap();
        assert_eq!(ids, HashMap::from([(1001, 1), (1002, 2)]));
        assert_eq!(parse(b"ann:1", Path::new(FILE), known).unwrap(), HashMap::from([(1, 1)]));
        assert!(parse(b"", Path::new(FILE), known).unwrap().is_empty());
    }

    #[test]
    fn a_line_that_is_neither_is_named() {
        for text in ["ann:1\nben", "ann:1\nben:two", "ann:1\n:5", "ann:1\nben:x:", "ann:1\nb:-4"] {
            let problem = parse(text.as_bytes(), Path::new(FILE), known).unwrap_err().to_string();
            assert!(problem.starts_with("id file '/etc/map', line 2: "), "{problem}");
        }
        let failing: Lookup = |_| Err(io::Error::other("no answer"));
        let problem = parse(b"ann:1", Path::new(FILE), failing).unwrap_err().to_string();
        assert_eq!(problem, "id file '/etc/map', line 1: cannot look up account 'ann': no answer");
    }

    #[test]
    fn names_are_looked_up_here_and_files_of_others_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "root:77\n").unwrap();
        let path = || Some(file.path().to_owned());
        let map = IdMap { users: path(), groups: path(), ..IdMap::default() };
        let ids = vfs::Ids::Table { local_ids: [(77, 0)].into(), others_same: false };
        let wanted = vfs::IdMap { uids: ids.clone(), gids: ids };
        assert_eq!(load(&map).unwrap(), wanted);
        std::fs::write(file.path(), "no such name:1\nro\0ot:2\n:3\n").unwrap();
        assert!(load(&map).unwrap_err().to_string().contains(", line 3: must be 'name:id'"));
        std::fs::write(file.path(), b"no such name:1\nro\0ot:2\n\xff:3\n").unwrap();
        let none = vfs::Ids::Table { local_ids: HashMap::new(), others_same: false };
        let wanted = vfs::IdMap { uids: none.clone(), gids: none };
        assert_eq!(load(&map).unwrap(), wanted);

        std::fs::set_permissions(file.path(), Permissions::from_mode(0o620)).unwrap();
        let problem = load(&map).unwrap_err().to_string();
        assert!(problem.contains("writable by others\n  chmod go-w"), "{problem}");
        let problem = read(Path::new("/no/file")).unwrap_err().to_string();
        assert!(problem.contains("No such file"), "{problem}");
    }

    #[test]
    fn a_fifo_is_refused_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).unwrap();
        assert!(read(&fifo).unwrap_err().to_string().ends_with("not a regular file"));
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        let own = rustix::process::getuid().is_root();
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = if own {
            std::os::unix::fs::chown(file.path(), Some(1), None).unwrap();
            file.path()
        } else {
            Path::new("/etc/passwd")
        };
        let problem = read(path).unwrap_err().to_string();
        assert!(problem.contains("not owned by user"), "{problem}");
    }
}
