//! Whether a tree of this machine has large files: the counterpart of the far side's `find`.

use std::path::Path;

use base::{Name, RemotePath};

use super::script::BIG_BLOCKS;
use crate::filter::Filter;

/// More bytes than this, and several sessions together are faster than one stream.
const BIG_BYTES: u64 = BIG_BLOCKS * 512;

/// Whether such a file is at `path`, or below it. It becomes `name`, which says what is left out. To
/// be called on a thread that may block.
pub(super) fn is_in(path: &Path, name: &RemotePath, filter: &Filter) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let mut todo = vec![(path.to_owned(), name.clone())];
    while let Some((path, name)) = todo.pop() {
        // What cannot be looked at is told by who copies it.
        let Ok(stat) = path.symlink_metadata() else { continue };
        if filter.excludes(&name, stat.is_dir()) {
            continue;
        }
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
        let all = Filter::default();
        assert!(!is_in(&tree, &top, &all));
        assert!(is_in(&dir.path().join("large"), &top, &all));
        assert!(!is_in(&dir.path().join("absent"), &top, &all));
        fs::rename(dir.path().join("large"), tree.join("a/b/large")).unwrap();
        assert!(is_in(&tree, &top, &all));
        let mut builder = FilterBuilder::default();
        builder.exclude("/a/b/");
        assert!(!is_in(&tree, &top, &builder.build().unwrap()));
    }
}
