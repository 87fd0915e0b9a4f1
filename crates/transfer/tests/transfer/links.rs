//! Several names of one file, and holes.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use std::time::Duration;

use base::Errno;
use testkit::tree::Limits;
use testkit::{Call, FaultyRemote, MemRemote, path};
use transfer::{Job, Options, Source, Tree, Xattrs};

use crate::kit::{copy_with, local_dir, mem, run};

#[tokio::test]
async fn names_of_one_file_stay_names_of_one_file() {
    let (from, source) = local_dir();
    std::fs::create_dir(from.path().join("d")).unwrap();
    std::fs::write(from.path().join("d/one"), "content").unwrap();
    for name in ["two", "d/three"] {
        std::fs::hard_link(from.path().join("d/one"), from.path().join(name)).unwrap();
    }
    std::fs::write(from.path().join("alone"), "content").unwrap();
    let target = Arc::new(MemRemote::new());
    let source = Tree::local(source, from.path());
    let job = Job {
        sources: vec![Source { tree: source, to: path("") }],
        target: Tree::remote(target.clone()),
        options: Options { hard_links: true, ..Options::default() },
    };
    for again in [false, true] {
        let outcome = run(job.clone()).await;
        assert!(outcome.is_complete(), "{outcome:#?}");
        let made = if again { (0, 0) } else { (2, 2) };
        assert_eq!((outcome.counts.files_copied, outcome.counts.names_made), made);
        let ino = |name: &str| {
            target.edit(|tree| tree.lookup(&path(name), testkit::tree::Follow::No).unwrap())
        };
        assert_eq!(ino("d/one"), ino("two"));
        assert_eq!(ino("d/one"), ino("d/three"));
        assert_ne!(ino("d/one"), ino("alone"));
    }
    // A new version is one file again.
    std::fs::write(from.path().join("two"), "a longer content").unwrap();
    let outcome = run(job).await;
    assert_eq!((outcome.counts.files_copied, outcome.counts.names_made), (1, 2), "{outcome:#?}");
}

/// No link can be made to a file in a directory that its owner may not enter.
#[tokio::test(start_paused = true)]
async fn a_directory_gets_a_mode_that_closes_it_after_the_links_to_its_files() {
    for closed in ["d", "d/in"] {
        let limits = Limits { shows_inodes: true, ..Limits::default() };
        let options = testkit::mem::Options { limits, ..Default::default() };
        let source = Arc::new(MemRemote::with(options));
        source.put_file("d/in/one", "content");
        source.put_dir("other/deep/er");
        source.edit(|tree| tree.link(&path("d/in/one"), &path("other/deep/er/two"))).unwrap();
        source.set_perm(closed, 0o600);
        let target = mem(|_| {});
        let faulty = Arc::new(FaultyRemote::new(target.clone()));
        let link = faulty.hold(Call::Link, 1);
        let check = async {
            link.arrived().await;
            // Until nothing else is left to do.
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(target.attr(closed).perm, 0o700, "{closed}");
            link.release();
        };
        let options = Options { hard_links: true, ..Options::default() };
        let (outcome, ()) = tokio::join!(copy_with(&source, &faulty, options), check);
        assert!(outcome.is_complete(), "{outcome:#?}");
        assert_eq!(outcome.counts.names_made, 1);
        assert_eq!(target.attr(closed).perm, 0o600, "{closed}");
    }
}

/// File systems limit the number of names of a file. One without hard links returns `EPERM`, which
/// OpenSSH's server reports as `EACCES`. No file has names in two file systems.
#[tokio::test]
async fn a_name_that_cannot_be_a_link_becomes_a_file_of_its_own() {
    let (from, source) = local_dir();
    std::fs::write(from.path().join("one"), "content").unwrap();
    std::fs::hard_link(from.path().join("one"), from.path().join("two")).unwrap();
    for errno in [Errno::EMLINK, Errno::EPERM, Errno::EACCES, Errno::EXDEV] {
        let target = Arc::new(MemRemote::new());
        let faulty = Arc::new(FaultyRemote::new(target.clone()));
        faulty.fail_always(Call::Link, errno);
        let source = Tree::local(source.clone(), from.path());
        let options = Options { hard_links: true, ..Options::default() };
        let sources = vec![Source { tree: source, to: path("") }];
        let outcome = run(Job { sources, target: Tree::remote(faulty), options }).await;
        assert!(outcome.is_complete(), "{errno:?}: {outcome:#?}");
        for name in ["one", "two"] {
            assert_eq!(target.content(name), b"content");
        }
    }
}

/// Its content is there, so that only the refusal is a problem.
#[tokio::test]
async fn a_file_whose_attributes_are_refused_gets_its_further_names() {
    let (from, source) = local_dir();
    let one = from.path().join("one");
    std::fs::write(&one, "content").unwrap();
    rustix::fs::setxattr(&one, "user.note", b"x", rustix::fs::XattrFlags::empty()).unwrap();
    std::fs::hard_link(&one, from.path().join("two")).unwrap();
    let target = Arc::new(MemRemote::new());
    let faulty = Arc::new(FaultyRemote::new(target.clone()));
    faulty.fail_always(Call::Setxattr, Errno::EOPNOTSUPP);
    let options = Options { hard_links: true, xattrs: Xattrs::Users, ..Options::default() };
    let sources = vec![Source { tree: Tree::local(source, from.path()), to: path("") }];
    let outcome = run(Job { sources, target: Tree::remote(faulty), options }).await;
    assert_eq!(outcome.problems.len(), 1, "{outcome:#?}");
    assert_eq!(outcome.counts.names_made, 1, "{outcome:#?}");
    assert_eq!(target.content("two"), b"content");
}

/// A name that is newer at the target keeps its content, and no other name is linked to it.
#[tokio::test]
async fn a_name_that_is_skipped_gets_no_further_names() {
    let (from, source) = local_dir();
    std::fs::write(from.path().join("one"), "content").unwrap();
    std::fs::hard_link(from.path().join("one"), from.path().join("two")).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1000);
    let file = std::fs::File::options().write(true).open(from.path().join("one")).unwrap();
    file.set_modified(time).unwrap();
    for skipped in ["one", "two"] {
        let target = Arc::new(MemRemote::new());
        target.put_file(skipped, "newer");
        target.set_mtime(skipped, 2000);
        let source = Tree::local(source.clone(), from.path());
        let options = Options { hard_links: true, update: true, ..Options::default() };
        let sources = vec![Source { tree: source, to: path("") }];
        let job = Job { sources, target: Tree::remote(target.clone()), options };
        let outcome = run(job).await;
        assert!(outcome.is_complete(), "{outcome:#?}");
        assert_eq!(target.content(skipped), b"newer");
        let other = if skipped == "one" { "two" } else { "one" };
        assert_eq!(target.content(other), b"content", "{outcome:#?}");
    }
}

#[tokio::test]
async fn blocks_of_zeros_become_holes() {
    let mut content = vec![0; 3 << 20];
    content[1 << 20..(1 << 20) + 5].copy_from_slice(b"solid");
    let (to, target) = local_dir();
    for (name, len) in [("large", content.len()), ("small", (1 << 20) + 5 - (960 << 10))] {
        let source = Arc::new(MemRemote::new());
        let content = &content[content.len() - len..];
        source.put_file(name, content);
        let job = Job {
            sources: vec![Source { tree: Tree::remote(source), to: path("") }],
            target: Tree::local(target.clone(), to.path()),
            options: Options { sparse: true, ..Options::default() },
        };
        let outcome = run(job).await;
        assert!(outcome.is_complete(), "{outcome:#?}");
        let made = to.path().join(name);
        assert_eq!(std::fs::read(&made).unwrap(), content);
        let blocks = std::fs::metadata(&made).unwrap().blocks();
        assert!(blocks * 512 < len as u64 / 2, "{name} takes {blocks} blocks");
    }
}
