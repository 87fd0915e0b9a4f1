//! Translates paths of the command line to paths in mounts.

use std::io;
use std::path::{Path, PathBuf};

use cli::Problem;
use control::client;
use control::job::{self, CacheJob, Tally};
use control::{Reply, Wish};

use control::inside::{self, Inside};
use rustix::io::Errno;

/// Maximum bytes of paths in one request: half of what a daemon accepts.
const MAX_PATHS_BYTES: usize = 32 << 10;

/// Paths of one mount, as many as one request has.
struct Places {
    mountpoint: PathBuf,
    paths: Vec<job::Path>,
    /// In the request: as hexadecimal digits, in quotes, and with a comma.
    bytes: usize,
}

/// Resolves the symbolic links in a path.
pub type Resolve = fn(&Path) -> io::Result<PathBuf>;

/// Resolves a path that exists.
pub fn existing(path: &Path) -> io::Result<PathBuf> {
    path.canonicalize()
}

/// Resolves a path as far as it exists. The rest is as it was typed.
pub fn perhaps_removed(path: &Path) -> io::Result<PathBuf> {
    let error = match path.canonicalize() {
        Err(error) => error,
        resolved => return resolved,
    };
    // `EIO`: the mount is offline, and does not know the path.
    let may_be_removed = Errno::from_io_error(&error)
        .is_some_and(|errno| [Errno::NOENT, Errno::NOTDIR, Errno::IO].contains(&errno));
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) if may_be_removed => {
            let parent = if parent == Path::new("") { Path::new(".") } else { parent };
            Ok(perhaps_removed(parent)?.join(name))
        }
        _ => Err(error),
    }
}

/// Finds the mounts that contain `paths`. Accesses the mounted file systems to resolve them. A path
/// that is not found is a failure in `all`.
///
/// # Errors
/// That of the last path, if none is found.
fn find(paths: &[PathBuf], resolve: Resolve, all: &mut Tally) -> Result<Vec<Places>, Problem> {
    let mut found: Vec<Places> = Vec::new();
    for (number, typed) in paths.iter().enumerate() {
        let resolved = client::patiently(typed, resolve);
        let Inside { mount, path } = match resolved.and_then(|path| inside::find(&path, typed)) {
            Ok(inside) => inside,
            Err(problem) if found.is_empty() && number + 1 == paths.len() => return Err(problem),
            Err(problem) => {
                all.failed += 1;
                all.tell(problem.to_string());
                continue;
            }
        };
        let (mountpoint, bytes) = (mount.mountpoint, 2 * path.as_bytes().len() + 3);
        let last = found.iter_mut().rfind(|places| places.mountpoint == mountpoint);
        match last.filter(|places| places.bytes + bytes <= MAX_PATHS_BYTES) {
            Some(places) => {
                places.paths.push(job::Path(path));
                places.bytes += bytes;
            }
            None => found.push(Places { mountpoint, paths: vec![job::Path(path)], bytes }),
        }
    }
    Ok(found)
}

/// Runs a job on `paths` by the daemons of their mounts. `progress` is called with the total so
/// far.
pub fn ask(
    paths: &[PathBuf],
    resolve: Resolve,
    job: impl Fn(Vec<job::Path>) -> CacheJob,
    progress: &mut dyn FnMut(&Tally),
) -> Result<Tally, Problem> {
    let mut all = Tally::default();
    for Places { mountpoint, paths, .. } in find(paths, resolve, &mut all)? {
        let before = all.clone();
        let mut told = |tally: &Tally| {
            let mut sum = before.clone();
            sum.add(tally);
            progress(&sum);
        };
        let wish = Wish::Cache(job(paths));
        let tally = client::ask_mount(&mountpoint, wish, &mut told, |reply| match reply {
            Reply::Tally(tally) => Some(tally),
            _ => None,
        })?;
        all.add(&tally);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_path_is_resolved_as_far_as_it_exists() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::os::unix::fs::symlink(".", real.join("link")).unwrap();
        std::fs::write(real.join("file"), "").unwrap();
        for (typed, resolved) in [
            ("link/a/b", Some("a/b")),
            ("link/file", Some("file")),
            ("file/a", Some("file/a")),
            ("a/..", None),
        ] {
            let found = perhaps_removed(&real.join(typed)).ok();
            assert_eq!(found, resolved.map(|path| real.join(path)), "{typed}");
        }
    }
}
