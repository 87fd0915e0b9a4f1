//! Whether a local tree has large files: the counterpart of the server's `find`.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use base::{Name, RemotePath};

use super::script::BIG_BLOCKS;
use crate::options::Options;

/// More bytes than this, and several sessions together are faster than one stream.
pub const BIG_BYTES: u64 = BIG_BLOCKS * 512;

/// Entries that are looked at, at most: the server waits meanwhile. A tree of so many has mostly
/// small files.
const MAX_ENTRIES: usize = 100_000;

/// Whether such a file is at `path`, or below it, among those that are looked at. It becomes
/// `name`, which says what is left out. To be called on a thread that may block.
pub(super) fn is_in(path: &Path, name: &RemotePath, options: &Options) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let device = path.symlink_metadata().map(|stat| stat.dev()).ok();
    let mut left = MAX_ENTRIES;
    let mut todo = vec![(path.to_owned(), name.clone())];
    while let Some((path, name)) = todo.pop() {
        // The copy reports what cannot be read.
        let Ok(stat) = path.symlink_metadata() else { continue };
        if options.filter.excludes(&name, stat.is_dir())
            || options.one_file_system && Some(stat.dev()) != device
        {
            continue;
        }
        if left == 0 {
            return false;
        }
        left -= 1;
        if stat.is_file() && stat.len() > BIG_BYTES {
            return true;
        }
        if !stat.is_dir() {
            continue;
        }
        for entry in path.read_dir().into_iter().flatten().flatten() {
            if let Ok(last) = Name::new(entry.file_name().as_bytes()) {
                todo.push((entry.path(), name.join(&last)));
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::FilterBuilder;
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;

    #[test]
    fn a_large_file_is_found_where_it_is_copied() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        File::create(tree.join("a/b/just not")).unwrap().set_len(BIG_BYTES).unwrap();
        File::create(dir.path().join("large")).unwrap().set_len(BIG_BYTES + 1).unwrap();
        symlink("../large", tree.join("link")).unwrap();
        symlink(".", tree.join("a/circle")).unwrap();
        let top = RemotePath::root();
        let all = Options::default();
        assert!(!is_in(&tree, &top, &all));
        assert!(is_in(&dir.path().join("large"), &top, &all));
        assert!(!is_in(&dir.path().join("absent"), &top, &all));
        fs::rename(dir.path().join("large"), tree.join("a/b/large")).unwrap();
        assert!(is_in(&tree, &top, &all));
        let mut builder = FilterBuilder::default();
        builder.exclude("/a/b/");
        let options = Options { filter: builder.build().unwrap(), ..Options::default() };
        assert!(!is_in(&tree, &top, &options));
    }
}
