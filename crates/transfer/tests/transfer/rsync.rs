//! What is to be done is what `rsync -a` would do.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use base::{AttrChange, Remote, RemotePath, Timestamp};
use local::Local;
use proptest::prelude::*;
use transfer::{Action, Job, Options, Owners, Source, Tree};

use crate::kit::{Notes, watched};

/// One name in one of a few directories: the same names are in both trees often.
#[derive(Clone, Debug)]
struct Planned {
    path: &'static str,
    /// 0: a directory, 1: a link, else a file of so many bytes.
    body: usize,
    perm: u32,
    secs: i64,
}

const PATHS: [&str; 12] =
    ["a", "b", "c", "a/x", "a/y", "a/y/f", "b/x", "b/y", "b/y/f", "c/f", "d", "d/f"];

fn planned() -> impl Strategy<Value = Vec<Planned>> {
    let perm = prop::sample::select(&[0o644, 0o600, 0o755][..]);
    let entry = (prop::sample::select(&PATHS[..]), 0usize..5, perm, 1_000_000i64..1_000_003);
    let entry = entry.prop_map(|(path, body, perm, secs)| Planned { path, body, perm, secs });
    prop::collection::vec(entry, 0..16)
}

async fn make(root: &Path, plan: &[Planned]) {
    let mut made = Vec::new();
    for entry in plan {
        let path = root.join(entry.path);
        let parent = path.parent().unwrap();
        if path.symlink_metadata().is_ok() || !parent.symlink_metadata().is_ok_and(|m| m.is_dir()) {
            continue;
        }
        match entry.body {
            0 => std::fs::create_dir(&path).unwrap(),
            1 => std::os::unix::fs::symlink(format!("to-{}", entry.secs), &path).unwrap(),
            len => std::fs::write(&path, vec![1; len]).unwrap(),
        }
        if entry.body != 1 {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(entry.perm)).unwrap();
        }
        made.push(entry);
    }
    let local = Local::open(root).unwrap();
    let root = Planned { path: "", body: 0, perm: 0o755, secs: 1_000_000 };
    for entry in made.into_iter().rev().chain([&root]) {
        let time = Some(Timestamp::from_secs(entry.secs));
        let change = AttrChange { atime: time, mtime: time, ..AttrChange::default() };
        local.setattr(&testkit::path(entry.path), change).await.unwrap();
    }
}

/// What is to be done, as pairs of a letter and a name.
type Deeds = BTreeSet<(char, String)>;

fn by_rsync(from: &Path, to: &Path) -> Deeds {
    let slash = |path: &Path| format!("{}/", path.display());
    let output = Command::new("rsync")
        .args(["-a", "-n", "--delete", "--out-format=%i|%n"])
        .args([slash(from), slash(to)])
        .output()
        .expect("rsync has to be installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let deed = |line: &str| {
        let (item, name) = line.split_once('|').unwrap();
        let name = name.trim_end_matches('/');
        let name = if name == "." { "" } else { name };
        let letter = match item.trim_end() {
            "*deleting" => 'x',
            item if item.starts_with('.') => 'a',
            // The link itself is right, only its time is not.
            item if item.starts_with("cL..t") => 'a',
            _ => 'c',
        };
        (letter, name.to_owned())
    };
    text.lines().map(deed).collect()
}

async fn by_us(from: &Path, to: &Path) -> Deeds {
    let open = |path: &Path| Tree::local(Arc::new(Local::open(path).unwrap()), path);
    let job = Job {
        sources: vec![Source { tree: open(from), to: RemotePath::root() }],
        target: open(to),
        options: Options {
            dry_run: true,
            delete: true,
            owners: Owners::Numbers,
            ..Options::default()
        },
    };
    let notes = Arc::new(Notes::default());
    let outcome = watched(job, notes.clone()).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    let deed = |(name, action): (String, Action)| {
        let letter = match action {
            Action::Delete => 'x',
            Action::SetAttr(_) => 'a',
            _ => 'c',
        };
        (letter, name)
    };
    notes.changes().into_iter().map(deed).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn what_is_to_be_done_is_what_rsync_would_do(before in planned(), after in planned()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            for (root, plan) in [(&to, &before), (&from, &after)] {
                let perm = PermissionsExt::from_mode(0o755);
                std::fs::set_permissions(root.path(), perm).unwrap();
                make(root.path(), plan).await;
            }
            let (rsync, us) = (by_rsync(from.path(), to.path()), by_us(from.path(), to.path()).await);
            // A directory that makes room for a file is deleted too, which rsync does not list.
            let room = |deed: &(char, String)| {
                deed.0 == 'x' && us.contains(&('c', deed.1.clone()))
            };
            let us: Deeds = us.iter().filter(|deed| !room(deed)).cloned().collect();
            prop_assert_eq!(rsync, us);
            Ok(())
        })?;
    }
}
