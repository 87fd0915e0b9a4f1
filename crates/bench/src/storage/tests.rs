use super::*;

use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::SystemTime;

/// A directory reached as by ssh, with `sh -c` in its place.
fn as_if_remote(root: &Path) -> Directory {
    by_ssh(root, &["sh", "-c"])
}

fn by_ssh(root: &Path, words: &[&str]) -> Directory {
    let reach = Reach::Ssh(words.iter().map(OsString::from).collect());
    Directory { reach, ..Directory::new("remote", root) }
}

fn each(root: &Path) -> [Directory; 3] {
    [Directory::new("here", root), Directory::new("mounted", root).mounted(), as_if_remote(root)]
}

/// A tree with all that is hard to list.
fn odd_tree(dir: &Path) -> PathBuf {
    let tree = dir.join("odd tree");
    fs::create_dir_all(tree.join("a b/-c")).unwrap();
    fs::create_dir(tree.join("empty")).unwrap();
    for name in ["plain", "-dash", "new\nline", "back\\slash", "a b/quote'\"$x", "a b/-c/\u{1b}e"] {
        fs::write(tree.join(name), name).unwrap();
    }
    fs::set_permissions(tree.join("plain"), fs::Permissions::from_mode(0o750)).unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    File::options().append(true).open(tree.join("plain")).unwrap().set_modified(old).unwrap();
    tree
}

#[test]
fn a_tree_arrives_whole_and_has_one_digest_everywhere() {
    let dir = tempfile::tempdir().unwrap();
    let tree = odd_tree(dir.path());
    let expected = corpus::digest(&tree).unwrap();
    for storage in each(&dir.path().join("root")) {
        storage.make_dir(Path::new("")).unwrap();
        let to = Path::new("deep/er/it's");
        storage.put(&tree, to).unwrap();
        let arrived = storage.root().join(to);
        let plain = fs::metadata(arrived.join("plain")).unwrap();
        assert_eq!(plain.permissions().mode() & 0o777, 0o750);
        assert_eq!(
            plain.modified().unwrap(),
            fs::metadata(tree.join("plain")).unwrap().modified().unwrap()
        );
        assert_eq!(storage.digest(to).unwrap(), expected, "{}", storage.name());
        storage.warm(to).unwrap();
        // A second one would be mixed with the first.
        assert!(storage.put(&tree, to).is_err());
        fs::write(arrived.join("plain"), "plaim").unwrap();
        assert_ne!(storage.digest(to).unwrap(), expected);
        symlink("plain", arrived.join("link")).unwrap();
        assert!(storage.digest(to).is_err());
        storage.remove(Path::new("deep")).unwrap();
        storage.remove(Path::new("deep")).unwrap();
        assert!(!storage.root().join("deep").exists());
    }
}

#[test]
fn a_file_arrives_whole_and_has_one_digest_everywhere() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, vec![7; 300_000]).unwrap();
    File::options().append(true).open(&file).unwrap().set_modified(corpus::last_changed()).unwrap();
    let expected = corpus::digest_file(&file).unwrap();
    for storage in each(&dir.path().join("root")) {
        let to = Path::new("new/na'me");
        storage.put(&file, to).unwrap();
        assert_eq!(fs::read(storage.root().join(to)).unwrap().len(), 300_000);
        assert_eq!(storage.digest(to).unwrap(), expected);
        let changed = fs::metadata(storage.root().join(to)).unwrap().modified().unwrap();
        assert_eq!(changed, corpus::last_changed());
        storage.remove(to).unwrap();
        assert!(storage.digest(to).is_err());
        assert!(storage.put(&dir.path().join("none"), to).is_err());
    }
}

#[test]
fn nothing_outside_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    for storage in each(&dir.path().join("root")) {
        storage.make_dir(Path::new("x")).unwrap();
        for path in ["/etc", "..", "x/../..", "x/../../y"] {
            assert!(storage.remove(Path::new(path)).is_err(), "{path}");
            assert!(storage.make_dir(Path::new(path)).is_err(), "{path}");
        }
        for path in ["", "."] {
            assert!(storage.remove(Path::new(path)).is_err(), "{path:?}");
        }
        assert!(storage.root().join("x").exists());
    }
}

#[test]
fn free_space_is_that_of_the_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let stat = rustix::fs::statvfs(dir.path()).unwrap();
    let expected = stat.f_bavail * stat.f_frsize;
    for storage in each(dir.path()) {
        let free = storage.free_bytes().unwrap();
        // Others write meanwhile.
        assert!(free.abs_diff(expected) < expected / 2, "{free} {expected}");
    }
}

#[test]
fn a_failed_errand_tells_why() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    for storage in each(dir.path()) {
        let failure = storage.make_dir(Path::new("file/below")).unwrap_err();
        assert!(failure.to_string().contains("mkdir"), "{failure}");
    }
    let nowhere = by_ssh(dir.path(), &["no-such-ssh"]);
    assert!(nowhere.free_bytes().unwrap_err().to_string().contains("cannot run no-such-ssh"));
}

#[test]
fn a_root_is_made_and_removed_at_the_other_end() {
    let dir = tempfile::tempdir().unwrap();
    let executor = Executor::new();
    let make = |parent: &str| {
        Directory::make_remote("remote", vec!["sh".into(), "-c".into()], parent, &executor)
    };
    let parent = dir.path().to_str().unwrap();
    let [one, other] = [(); 2].map(|()| make(parent).unwrap());
    let root = one.root();
    assert!(root != other.root() && root.is_dir() && root.starts_with(dir.path()));
    executor.interrupt();
    one.remove_root();
    assert!(!root.exists() && other.root().exists());
    let executor = Executor::new();
    let ssh = vec!["sh".into(), "-c".into()];
    let failure = Directory::make_remote("r", ssh, "/no/such/place", &executor).unwrap_err();
    assert!(failure.to_string().contains("/no/such/place"), "{failure}");
}
