//! Random trees, there and back again.

use std::sync::Arc;

use base::{AttrChange, FileKind, Name, Remote, RemotePath, Timestamp};
use proptest::prelude::*;
use testkit::{Call, MemRemote};
use transfer::{Options, Source, Tree};

use crate::kit::{assert_equal, content, copy_well, local_dir, run, snapshot};

#[derive(Clone, Debug)]
enum Body {
    Dir,
    File(usize, u32),
    Zeros(usize),
    Link(Vec<u8>),
}

#[derive(Clone, Debug)]
struct Planned {
    /// Which of the directories made so far it is in.
    within: prop::sample::Index,
    name: Vec<u8>,
    body: Body,
    perm: u32,
    secs: u32,
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_filter("no / and NUL", |byte| !matches!(byte, 0 | b'/'));
    prop_oneof![
        4 => "[a-c]{1,2}".prop_map(String::into_bytes),
        2 => prop::collection::vec(byte, 1..20),
        1 => "\\PC{1,60}".prop_map(|text| text.replace('/', "-").into_bytes()),
        1 => (250usize..=255).prop_map(|len| vec![b'n'; len]),
        1 => Just(b".a.sshoal-0123456789ab14000000000000000001".to_vec()),
    ]
}

fn body() -> impl Strategy<Value = Body> {
    prop_oneof![
        3 => Just(Body::Dir),
        4 => (0usize..200, any::<u32>()).prop_map(|(len, seed)| Body::File(len, seed)),
        1 => (100_000usize..700_000, any::<u32>()).prop_map(|(len, seed)| Body::File(len, seed)),
        1 => (0usize..300_000).prop_map(Body::Zeros),
        2 => prop::collection::vec(1u8..=255, 1..30).prop_map(Body::Link),
    ]
}

fn planned() -> impl Strategy<Value = Vec<Planned>> {
    // Set-ID bits have tests of their own.
    let perm = prop_oneof![Just(0o644), Just(0o755), Just(0), 0u32..0o2000];
    let entry = (any::<prop::sample::Index>(), name(), body(), perm, any::<u32>());
    let entry = entry.prop_map(|(within, name, body, perm, secs)| Planned {
        within,
        name,
        body,
        perm,
        secs,
    });
    prop::collection::vec(entry, 0..25)
}

/// Makes the tree; entries whose name is taken are left out.
async fn make(plan: &[Planned]) -> Arc<MemRemote> {
    let remote = Arc::new(MemRemote::new());
    let mut dirs = vec![RemotePath::root()];
    let mut made = Vec::new();
    for entry in plan {
        let Ok(name) = Name::new(&entry.name) else {
            continue;
        };
        let path = entry.within.get(&dirs).join(&name);
        if remote.lstat(&path).await.is_ok() {
            continue;
        }
        match &entry.body {
            Body::Dir => {
                remote.mkdir(&path, 0o755).await.unwrap();
                dirs.push(path.clone());
            }
            Body::File(len, seed) => put(&remote, &path, content(*len, *seed)),
            Body::Zeros(len) => put(&remote, &path, vec![0; *len]),
            Body::Link(target) => remote.symlink(target, &path).await.unwrap(),
        }
        made.push((path, entry));
    }
    // The deepest first, since what is made in a directory changes its time.
    for (path, entry) in made.iter().rev() {
        let time = Some(Timestamp::from_secs(i64::from(entry.secs)));
        let perm = (!matches!(entry.body, Body::Link(_))).then_some(entry.perm);
        let change = AttrChange { perm, atime: time, mtime: time, ..AttrChange::default() };
        remote.setattr(path, change).await.unwrap();
    }
    remote
}

fn put(remote: &MemRemote, path: &RemotePath, content: Vec<u8>) {
    remote.edit(|tree| {
        let follow = testkit::tree::Follow::No;
        let create = base::Create::Exclusive(0o644);
        let (ino, _) = tree.open_or_create(path, follow, create).unwrap();
        tree.write(ino, 0, &content).unwrap();
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_tree_is_the_same_at_the_target_and_stays_so(plan in planned()) {
        runtime().block_on(async {
            let source = make(&plan).await;
            let target = Arc::new(MemRemote::new());
            copy_well(&source, &target).await;
            assert_equal(&*source, &*target).await;
            target.reset_calls();
            let again = copy_well(&source, &target).await;
            prop_assert_eq!(again.counts.unchanged, again.counts.entries);
            for call in [Call::Open, Call::Mkdir, Call::Symlink, Call::Setattr, Call::Rename] {
                prop_assert_eq!(target.calls(call), 0, "{:?}", call);
            }
            prop_assert_eq!((source.open_handles(), target.open_handles()), (0, 0));
            Ok(())
        })?;
    }

    #[test]
    fn a_tree_comes_back_from_a_local_directory_as_it_was(plan in planned(), sparse: bool) {
        runtime().block_on(async {
            let source = make(&plan).await;
            let (dir, local) = local_dir();
            let options = Options { sparse, ..Options::default() };
            let pull = transfer::Job {
                sources: vec![Source { tree: Tree::remote(source.clone()), to: RemotePath::root() }],
                target: Tree::local(local.clone(), dir.path()),
                options,
            };
            let outcome = run(pull).await;
            assert!(outcome.is_complete(), "{outcome:#?}");
            assert_equal(&*source, &*local).await;
            let back = Arc::new(MemRemote::new());
            copy_well(&local, &back).await;
            assert_equal(&*source, &*back).await;
        });
    }

    #[test]
    fn any_tree_becomes_any_other_with_delete(before in planned(), after in planned()) {
        runtime().block_on(async {
            let (target, source) = (make(&before).await, make(&after).await);
            let options = Options { delete: true, ..Options::default() };
            let outcome = crate::kit::copy_with(&source, &target, options).await;
            assert!(outcome.is_complete(), "{outcome:#?}");
            // Files of equal size and time count as the same, whatever is in them.
            let (source, target) = (snapshot(&*source).await, snapshot(&*target).await);
            prop_assert!(source.keys().eq(target.keys()));
            for (name, seen) in &source {
                let there = &target[name];
                prop_assert_eq!(seen.kind, there.kind, "{}", name);
                if seen.kind != FileKind::Regular {
                    prop_assert_eq!(seen, there, "{}", name);
                }
                let size = (seen.perm, seen.secs, seen.content.len());
                prop_assert_eq!(size, (there.perm, there.secs, there.content.len()), "{}", name);
            }
            Ok(())
        })?;
    }
}
