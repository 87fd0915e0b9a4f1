//! A large file that a broken stream has begun is gone on with.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use base::RemotePath;
use local::Local;
use transfer::tar::Streamed;
use transfer::{Job, Options, Silent, Source, Tree, engine};

use super::round_trip::pull_of;
use super::shell::{LocalShell, streaming};

const BYTES: usize = 12 << 20;

fn content() -> Vec<u8> {
    (0..BYTES as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn temporaries(dir: &Path) -> usize {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().contains(".sshoal-")).count()
}

/// Pulls until the stream breaks after so many bytes. What there is is in `tree` below `to`.
async fn broken(from: &Path, to: &Path, bytes: usize, options: &Options) {
    let programs = tempfile::tempdir().unwrap();
    let tar = format!("$real \"$@\" | head -c {bytes}; exit 0");
    let shell = LocalShell::with_tar(programs.path(), &tar);
    let pull = pull_of(from, Some("tree"), to, "tree");
    let told = streaming(shell, options.clone()).pull(&pull).await.unwrap();
    assert!(matches!(told, Streamed::Partly(_)), "{told:?}");
}

async fn the_rest(from: &Path, to: &Path, options: &Options) -> transfer::Outcome {
    let tree = |dir: &Path| Arc::new(Local::open(dir).unwrap());
    let path = RemotePath::parse(b"tree").unwrap();
    let source = Source { tree: Tree::remote(tree(from)).at(path.clone()), to: path };
    let target = Tree::local(tree(to), to);
    let job = Job { sources: vec![source], target, options: options.clone() };
    engine::copy(job, Arc::new(Silent)).await.unwrap()
}

#[tokio::test]
async fn what_has_come_of_a_large_file_does_not_come_again() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(from.path().join("tree")).unwrap();
    fs::write(from.path().join("tree/large"), content()).unwrap();
    broken(from.path(), to.path(), 10 << 20, &Options::default()).await;
    assert_eq!(temporaries(&to.path().join("tree")), 1);
    assert!(!to.path().join("tree/large").exists());
    let outcome = the_rest(from.path(), to.path(), &Options::default()).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    // All but the last of it, which is not relied on.
    assert!(outcome.counts.bytes_resumed > 8 << 20, "{outcome:#?}");
    assert!(fs::read(to.path().join("tree/large")).unwrap() == content());
    assert_eq!(temporaries(&to.path().join("tree")), 0);
}

#[tokio::test]
async fn what_has_come_of_another_version_is_not_gone_on_with() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(from.path().join("tree")).unwrap();
    fs::write(from.path().join("tree/large"), content()).unwrap();
    broken(from.path(), to.path(), 10 << 20, &Options::default()).await;
    let mut other = content();
    other.reverse();
    other.push(1);
    fs::write(from.path().join("tree/large"), &other).unwrap();
    let outcome = the_rest(from.path(), to.path(), &Options::default()).await;
    assert_eq!(outcome.counts.bytes_resumed, 0);
    assert!(fs::read(to.path().join("tree/large")).unwrap() == other);
    assert_eq!(temporaries(&to.path().join("tree")), 0);
}

#[tokio::test]
async fn nothing_is_left_where_that_is_not_wanted() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(from.path().join("tree")).unwrap();
    fs::write(from.path().join("tree/large"), content()).unwrap();
    let options = Options { no_partial: true, ..Options::default() };
    broken(from.path(), to.path(), 10 << 20, &options).await;
    assert_eq!(temporaries(&to.path().join("tree")), 0);
}
