//! Finds the mount that contains a path, and the path inside of it.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use base::RemotePath;
use cli::{OrProblem, Problem, printable};
use mountinfo::Mount;

use crate::place::Place;
use crate::{Wish, client, record};

/// A path in a mount of sshoal.
#[derive(Debug)]
pub struct Inside {
    /// The mount.
    pub mount: Mount,
    /// The path below the root of the file system.
    pub path: RemotePath,
}

/// A path as it was typed, in messages.
pub fn about(path: &Path) -> String {
    format!("'{}'", printable(path))
}

/// The mount that contains `path`, which is absolute and without symbolic links except for the last
/// name. `typed` is the path in messages.
pub fn find(path: &Path, typed: &Path) -> Result<Inside, Problem> {
    let mount = mountinfo::containing(path).or_problem("mount table")?;
    let is_ours = |mount: &Mount| mountinfo::is_fuse(&mount.kind) && record::is_ours(mount);
    let mount = mount.filter(is_ours).ok_or_else(|| {
        Problem::new(about(typed), "not in a mount of sshoal")
            .hint("`sshoal status` lists the mounts")
    })?;
    let below = path.strip_prefix(&mount.mountpoint).unwrap_or(Path::new(""));
    let root = mount.root.strip_prefix("/").unwrap_or(&mount.root);
    let path =
        RemotePath::parse(root.join(below).as_os_str().as_bytes()).or_problem(about(typed))?;
    Ok(Inside { mount, path })
}

/// `path` without symbolic links except for the last name, which need not exist.
pub fn resolve(path: &Path) -> Result<PathBuf, Problem> {
    // After a slash, the last name is a directory, and so is the target of a link.
    match path.as_os_str().as_bytes().ends_with(b"/") {
        true => canonical(path),
        false => client::patiently(path, mountinfo::without_links_in_parent),
    }
}

/// `path` without symbolic links.
pub fn canonical(path: &Path) -> Result<PathBuf, Problem> {
    client::patiently(path, Path::canonicalize)
}

impl Inside {
    /// Sends a request to the daemon of the mount, which is answered when it is carried out.
    pub fn order(&self, wish: Wish) -> Result<(), Problem> {
        client::order(&self.mount.mountpoint, wish)
    }

    /// Where the path is.
    pub fn place(&self) -> Result<Place, Problem> {
        // Of this mount, and not of one that is at its place by now.
        let found = client::find(&self.mount);
        let place = found.and_then(|found| client::place(&found, self.path.clone()));
        place.map_err(|why| client::problem(&self.mount.mountpoint, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_name_is_not_resolved() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::os::unix::fs::symlink("/usr", real.join("link")).unwrap();
        assert_eq!(resolve(&real.join("link")).unwrap(), real.join("link"));
        assert_eq!(resolve(&real.join("new")).unwrap(), real.join("new"));
        assert_eq!(resolve(&real.join("link/..")).unwrap(), Path::new("/"));
        assert_eq!(resolve(&real.join("link/")).unwrap(), Path::new("/usr"));
        assert!(resolve(&real.join("no/new")).is_err());
        let other = find(Path::new("/proc"), Path::new("proc")).unwrap_err().to_string();
        assert!(other.starts_with("'proc': not in a mount of sshoal\n"), "{other}");
    }
}
