//! Several names of one file, and holes.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use testkit::{MemRemote, path};
use transfer::{Job, Options, Source, Tree};

use crate::kit::{local_dir, run};

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
