//! The made tree is always the same, and like sources; a digest tells every change.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::listing::line;
use super::*;

fn digest(dir: &Path) -> io::Result<String> {
    Ok(survey(dir)?.digest)
}

fn made(files: u32, seed: u64) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    make(&dir.path().join("tree"), files, TreeShape::Sources, seed).unwrap();
    dir
}

fn below(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            all.extend(below(&path));
        }
        all.push(path);
    }
    all
}

fn sizes(dir: &Path) -> Vec<u64> {
    let mut sizes: Vec<u64> = below(dir)
        .iter()
        .map(|path| fs::symlink_metadata(path).unwrap())
        .filter(fs::Metadata::is_file)
        .map(|metadata| metadata.len())
        .collect();
    sizes.sort_unstable();
    sizes
}

/// Results of different versions are compared: this digest changes with [`make`], and then the
/// measures of trees need new names.
#[test]
fn the_made_tree_does_not_change_from_version_to_version() {
    let dir = made(300, 1);
    let tally = survey(&dir.path().join("tree")).unwrap();
    assert_eq!(tally.digest, "1f905dccfd2ccb73dac8742201333e02ee94a36573ef0a375aed62c9454cf126");
    assert_eq!((tally.files, tally.directories), (300, 25));
}

#[test]
fn equal_seeds_give_equal_trees_and_others_others() {
    let of = |files, seed| digest(&made(files, seed).path().join("tree")).unwrap();
    assert_eq!(of(40, 7), of(40, 7));
    assert_ne!(of(40, 7), of(40, 8));
    assert_ne!(of(40, 7), of(41, 7));
}

#[test]
fn sizes_are_those_of_sources() {
    for (files, seed) in [(400, 1), (400, 2), (2_000, 3)] {
        let dir = made(files, seed);
        let sizes = sizes(dir.path());
        assert_eq!(sizes.len(), files as usize);
        let median = sizes[sizes.len() / 2];
        assert!((3_900..4_400).contains(&median), "median {median}");
        let mean = sizes.iter().sum::<u64>() / u64::from(files);
        assert!((11_500..13_500).contains(&mean), "mean {mean}");
        let greatest = *sizes.last().unwrap();
        assert!((200_000..=300_000).contains(&greatest), "greatest {greatest}");
    }
}

#[test]
fn media_are_as_large_as_those_of_the_published_copy() {
    // 1.7 GB in 2,929 files. The sizes alone, since they would take long to write.
    let plan = plan(2_929, TreeShape::Media, &mut Random(1));
    let bytes: usize = plan.files.iter().map(|file| file.bytes).sum();
    assert!((590_000..610_000).contains(&(bytes / 2_929)), "{bytes}");
    let room = bytes_per_file(TreeShape::Media) * 2_929;
    assert!(room > bytes as u64 + 2_929 * 2_048 && room < bytes as u64 * 102 / 100);

    let dir = tempfile::tempdir().unwrap();
    make(&dir.path().join("tree"), 40, TreeShape::Media, 1).unwrap();
    let found = sizes(dir.path());
    assert_eq!(found.len(), 40);
    let files = files(&dir.path().join("tree")).unwrap();
    let contents: Vec<Vec<u8>> = files.iter().map(|path| fs::read(path).unwrap()).collect();
    let first = |contents: &Vec<u8>| contents[8..400].to_vec();
    let different: BTreeSet<_> = contents.iter().map(first).collect();
    assert_eq!(different.len(), 40, "two files have the same contents");
}

#[test]
fn small_trees_can_be_made_too() {
    for files in 0..5 {
        let dir = made(files, 1);
        assert_eq!(sizes(dir.path()).len(), files as usize);
    }
}

#[test]
fn text_compresses_like_sources() {
    let dir = made(200, 5);
    let output = Command::new("sh")
        .args(["-c", r#"tar -C "$1" -cf - . | gzip -6 | wc -c"#, "sh"])
        .arg(dir.path())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let compressed: u64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    let ratio = sizes(dir.path()).iter().sum::<u64>() as f64 / compressed as f64;
    assert!((3.5..4.5).contains(&ratio), "{ratio}");
}

#[test]
fn there_are_depth_and_scripts() {
    let dir = made(1_000, 2);
    let root = dir.path().join("tree");
    let all = below(&root);
    let depth = |path: &PathBuf| path.strip_prefix(&root).unwrap().components().count();
    let deepest = all.iter().map(depth).max().unwrap();
    assert!((5..=8).contains(&deepest), "{deepest}");

    for path in all.iter().filter(|path| path.is_file()) {
        let executable = fs::metadata(path).unwrap().permissions().mode() & 0o111 != 0;
        assert_eq!(executable, path.extension().unwrap() == "sh", "{}", path.display());
    }
}

#[test]
fn the_rare_word_is_in_one_file_of_fifty_once() {
    let dir = made(500, 3);
    let found: usize = below(dir.path())
        .iter()
        .filter(|path| path.is_file())
        .map(|path| fs::read_to_string(path).unwrap().matches(RARE_WORD).count())
        .sum();
    assert_eq!(found, 10);
}

#[test]
fn what_is_there_is_not_overwritten() {
    let dir = made(20, 1);
    let error = make(&dir.path().join("tree"), 20, TreeShape::Sources, 1).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
}

/// A way to change a tree.
type Change = (&'static str, fn(&Path));

#[test]
fn a_digest_tells_every_change() {
    let changes: &[Change] = &[
        ("nothing", |_| ()),
        ("a byte", |tree| fs::write(tree.join("a/file"), "contenT").unwrap()),
        ("a shorter file", |tree| fs::write(tree.join("a/file"), "conten").unwrap()),
        ("a missing file", |tree| fs::remove_file(tree.join("a/file")).unwrap()),
        ("one more file", |tree| fs::write(tree.join("a/more"), "").unwrap()),
        ("another name", |tree| fs::rename(tree.join("a/file"), tree.join("a/else")).unwrap()),
        ("another place", |tree| fs::rename(tree.join("a/file"), tree.join("b/file")).unwrap()),
        ("a missing directory", |tree| fs::remove_dir(tree.join("b")).unwrap()),
        ("one more directory", |tree| fs::create_dir(tree.join("c")).unwrap()),
        ("a directory for a file", |tree| {
            fs::remove_file(tree.join("a/file")).unwrap();
            fs::create_dir(tree.join("a/file")).unwrap();
        }),
    ];
    let mut seen = BTreeSet::new();
    for (name, change) in changes {
        let tree = small_tree();
        change(tree.path());
        assert!(seen.insert(digest(tree.path()).unwrap()), "{name}");
    }
}

fn small_tree() -> TempDir {
    let tree = tempfile::tempdir().unwrap();
    fs::create_dir(tree.path().join("a")).unwrap();
    fs::create_dir(tree.path().join("b")).unwrap();
    fs::write(tree.path().join("a/file"), "content").unwrap();
    tree
}

/// The form that other ways to list a tree have to give: what stands here is the definition.
#[test]
fn a_listing_is_sorted_by_path_and_says_kind_and_digest() {
    let tree = small_tree();
    let sha256sum = |text: &str| {
        let shell = r#"printf %s "$1" | sha256sum | cut -d ' ' -f 1"#;
        let output = Command::new("sh").args(["-c", shell, "sh", text]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let listing = format!("d - a\nf {} a/file\nd - b\n", sha256sum("content"));
    assert_eq!(digest(tree.path()).unwrap(), sha256sum(&listing));

    let mut other_order = Listing::default();
    other_order.directory(b"b");
    other_order.file(b"a/file", &sha256sum("content"));
    other_order.directory(b"a");
    assert_eq!(other_order.digest(), sha256sum(&listing));
}

#[test]
fn a_name_cannot_pass_for_two_lines() {
    assert_eq!(line("d - ", b"a\nd - b"), b"d - a\\nd - b\n");
    assert_eq!(line("f 00 ", b"a\\n"), b"f 00 a\\\\n\n");
}

#[test]
fn a_link_and_a_special_file_are_named() {
    let tree = small_tree();
    symlink("a", tree.path().join("link")).unwrap();
    let error = digest(tree.path()).unwrap_err().to_string();
    assert!(error.contains("link: neither a file"), "{error}");
    fs::remove_file(tree.path().join("link")).unwrap();

    let fifo = tree.path().join("fifo\x1b[1m");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let error = digest(tree.path()).unwrap_err().to_string();
    assert!(error.contains(r"fifo\u{1b}[1m: neither a file"), "{error}");
}
