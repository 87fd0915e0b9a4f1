//! Remembers at which hosts the helper serves, so that one login is enough there.
//!
//! One small file for each login at a host, in `$XDG_STATE_HOME/sshoal/helper`, named after a
//! digest of the destination. Nothing depends on the files: without one, the first mount has a
//! second login.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::place;

/// Before the path, in the first line.
const KEY: &str = "helper ";

/// Maximum bytes read of a file; a longer one is not from here.
const MAX_BYTES: u64 = 64 * 1024;

/// The path of the helper for this destination ([`ssh::Dialer::place`]). Only the places of this
/// version are used: after an upgrade, the helper is looked for again.
pub async fn read(destination: String) -> Option<String> {
    let found = blocking(move || {
        let mut text = String::new();
        let file = fs::File::open(file(&directory()?, &destination)).ok()?;
        file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
        let (first, rest) = text.split_once('\n')?;
        (rest == destination).then(|| first.strip_prefix(KEY).map(str::to_owned)).flatten()
    });
    found.await.flatten().filter(|path| place::all().contains(path))
}

/// Sets the path for this destination, or removes it.
pub async fn write(destination: String, path: Option<String>) {
    let written = blocking(move || {
        let Some(directory) = directory() else { return Ok(()) };
        let file = file(&directory, &destination);
        match path {
            Some(path) => put(&directory, &file, &format!("{KEY}{path}\n{destination}")),
            None => match fs::remove_file(file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
        }
    });
    if let Some(Err(error)) = written.await {
        tracing::debug!(%error, "the place of the helper is not remembered");
    }
}

fn put(directory: &Path, file: &Path, text: &str) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let mut new = tempfile::NamedTempFile::new_in(directory)?;
    new.write_all(text.as_bytes())?;
    new.persist(file)?;
    Ok(())
}

fn file(directory: &Path, destination: &str) -> PathBuf {
    directory.join(blake3::hash(destination.as_bytes()).to_hex().as_str())
}

fn directory() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // A mount of fstab has no `HOME`.
    let user = || nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten();
    let home = || var("HOME").or_else(|| Some(user()?.dir));
    let state = var("XDG_STATE_HOME").or_else(|| Some(home()?.join(".local/state")))?;
    Some(state.join("sshoal/helper"))
}

/// Files in the home directory may be on a network.
async fn blocking<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(task).await.ok()
}
