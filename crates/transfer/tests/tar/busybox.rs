//! A server whose programs are busybox's, as on small systems: its tar keeps too little of a file
//! for a stream, and all others are good enough for one.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;
use transfer::tar::{Compress, Declined, Method, Streamed};
use transfer::{Options, Owners};

use super::by_name::{assert_same, copy, places, push};
use super::round_trip::{pull_of, push_of};
use super::shell::{LocalShell, streaming};
use super::trees::{kept, make};

const BUSYBOX: [&str; 2] = ["/usr/bin/busybox", "/bin/busybox"];

/// What the commands of a stream use, beside the shell's own.
const OTHERS: [&str; 11] =
    ["gzip", "head", "find", "wc", "rm", "mv", "mkdir", "grep", "tr", "xargs", "printf"];

fn plain() -> Options {
    Options { owners: Owners::Numbers, ..Options::default() }
}

/// A shell that finds busybox's programs first; `None` where there is no busybox.
fn shell(applets: &[&str]) -> Option<(TempDir, Arc<LocalShell>)> {
    let busybox = BUSYBOX.iter().find(|path| Path::new(path).exists())?;
    let dir = tempfile::tempdir().unwrap();
    for applet in applets {
        symlink(busybox, dir.path().join(applet)).unwrap();
    }
    let programs = Some(dir.path().to_owned());
    Some((dir, Arc::new(LocalShell { programs, instead: None, umask: None })))
}

#[tokio::test]
async fn its_tar_declines_a_stream_and_the_run_brings_all() {
    let Some((_programs, shell)) = shell(&["tar"]) else { return };
    let (from, to) = places();
    let streaming = streaming(shell.clone(), plain());
    let pulled = streaming.pull(&pull_of(from.path(), None, to.path(), "")).await.unwrap();
    assert!(matches!(pulled, Streamed::Declined(Declined::NoTar)), "{pulled:?}");
    let pushed = streaming.push(&push_of(from.path(), to.path(), "tree")).await.unwrap();
    assert!(matches!(pushed, Streamed::Declined(Declined::NoTar)), "{pushed:?}");
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0, "and nothing was begun");
    for is_push in [false, true] {
        let to = tempfile::tempdir().unwrap();
        let (outcome, entries) = match is_push {
            true => push(from.path(), to.path(), shell.clone(), &plain()).await,
            false => copy(from.path(), to.path(), shell.clone(), &plain()).await,
        };
        assert!(outcome.is_complete(), "{outcome:#?}");
        assert_eq!(entries, 0);
        assert_same(from.path(), to.path());
    }
}

#[tokio::test]
async fn its_other_programs_serve_a_stream() {
    let Some((_programs, shell)) = shell(&OTHERS) else { return };
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    make(&tree);
    // Several blocks of what is compressed here, of which some do not shrink.
    let mut large = fs::read(std::env::current_exe().unwrap()).unwrap();
    large.truncate(5 << 20);
    fs::write(tree.join("large"), large).unwrap();
    for compress in [Compress::Never, Compress::Always(Method::Gzip)] {
        let (there, back) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut streaming = streaming(shell.clone(), plain());
        streaming.compress = compress;
        let pushed = streaming.push(&push_of(&tree, there.path(), "copy")).await.unwrap();
        assert!(matches!(pushed, Streamed::Whole(_)), "{pushed:?}");
        assert_eq!(kept(&there.path().join("copy")), kept(&tree));
        let pull = pull_of(there.path(), Some("copy"), back.path(), "again");
        let pulled = streaming.pull(&pull).await.unwrap();
        assert!(matches!(pulled, Streamed::Whole(_)), "{pulled:?}");
        assert_eq!(kept(&back.path().join("again")), kept(&tree));
        // By names, into what is there.
        fs::remove_dir_all(there.path().join("copy/sub")).unwrap();
        let copy = there.path().join("copy");
        let (outcome, entries) = push(&tree, &copy, shell.clone(), &plain()).await;
        assert!(outcome.is_complete() && entries > 0, "{outcome:#?}");
        assert_same(&tree, &copy);
    }
}
