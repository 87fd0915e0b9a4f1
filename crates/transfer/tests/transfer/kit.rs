//! What the tests copy, and how they look at it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use base::{Access, Attr, AttrChange, FileKind, OpenFlags, Remote, RemotePath, Timestamp};
use local::Local;
use testkit::{MemRemote, path};
use transfer::{
    Action, Entry, Events, Job, Options, Outcome, Problem, Silent, Source, Tree, engine,
};

/// What a copy must keep of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) kind: FileKind,
    pub(crate) perm: u32,
    pub(crate) secs: i64,
    pub(crate) content: Vec<u8>,
}

pub(crate) type Snapshot = BTreeMap<String, Seen>;

/// All below the root of `remote`, and the root itself.
pub(crate) async fn snapshot(remote: &dyn Remote) -> Snapshot {
    let mut seen = Snapshot::new();
    let mut dirs = vec![RemotePath::root()];
    seen.insert(String::new(), look(remote, &RemotePath::root()).await);
    while let Some(dir) = dirs.pop() {
        let dh = remote.opendir(&dir).await.unwrap();
        while let Some(batch) = remote.readdir(dh).await.unwrap() {
            for entry in batch {
                let path = dir.join(&entry.name);
                let found = look(remote, &path).await;
                if found.kind == FileKind::Directory {
                    dirs.push(path.clone());
                }
                seen.insert(format!("{path:?}"), found);
            }
        }
        remote.closedir(dh);
    }
    seen
}

/// The names of all below the root of `remote`, as [`snapshot`] has them, without the root's.
pub(crate) async fn names(remote: &dyn Remote) -> Vec<String> {
    snapshot(remote).await.into_keys().filter(|name| !name.is_empty()).collect()
}

async fn look(remote: &dyn Remote, path: &RemotePath) -> Seen {
    let attr = remote.lstat(path).await.unwrap();
    let Attr { kind, perm, mtime, .. } = attr;
    let content = match kind {
        FileKind::Regular => read(remote, path).await,
        FileKind::Symlink => remote.readlink(path).await.unwrap(),
        _ => Vec::new(),
    };
    // A link's mode is the system's.
    let perm = if kind == FileKind::Symlink { 0o777 } else { perm };
    Seen { kind, perm, secs: mtime.secs, content }
}

/// The content of a file.
pub(crate) async fn read(remote: &dyn Remote, path: &RemotePath) -> Vec<u8> {
    let opened = remote.open(path, OpenFlags::existing(Access::Read)).await.unwrap();
    let mut content = Vec::new();
    loop {
        let data = remote.read(opened.fh, content.len() as u64, 1 << 20).await.unwrap();
        if data.is_empty() {
            break;
        }
        content.extend(data.to_vec());
    }
    remote.close(opened.fh);
    content
}

/// A remote in memory, filled by `fill`.
pub(crate) fn mem(fill: impl FnOnce(&MemRemote)) -> Arc<MemRemote> {
    let remote = Arc::new(MemRemote::new());
    fill(&remote);
    remote
}

/// Sets the time of last change, in seconds.
pub(crate) async fn set_time(remote: &dyn Remote, at: &str, secs: i64) {
    let time = Some(Timestamp::from_secs(secs));
    let change = AttrChange { atime: time, mtime: time, ..AttrChange::default() };
    remote.setattr(&path(at), change).await.unwrap();
}

/// Sets the permission bits.
pub(crate) async fn set_perm(remote: &dyn Remote, at: &str, perm: u32) {
    let change = AttrChange { perm: Some(perm), ..AttrChange::default() };
    remote.setattr(&path(at), change).await.unwrap();
}

/// All of `from` into `to`, as with a trailing slash.
pub(crate) fn job(from: Arc<dyn Remote>, to: Arc<dyn Remote>, options: Options) -> Job {
    let source = Source { tree: Tree::remote(from), to: RemotePath::root() };
    Job { sources: vec![source], target: Tree::remote(to), options }
}

/// Copies all of `from` into `to`.
pub(crate) async fn copy_with(
    from: &Arc<impl Remote>,
    to: &Arc<impl Remote>,
    options: Options,
) -> Outcome {
    run(job(from.clone(), to.clone(), options)).await
}

/// As [`copy_with`], with the options that everybody has.
pub(crate) async fn copy(from: &Arc<impl Remote>, to: &Arc<impl Remote>) -> Outcome {
    copy_with(from, to, Options::default()).await
}

/// Runs a job, and checks that its books add up.
pub(crate) async fn run(job: Job) -> Outcome {
    watched(job, Arc::new(Silent)).await
}

/// As [`run`], with somebody who looks.
pub(crate) async fn watched(job: Job, events: Arc<dyn Events>) -> Outcome {
    let outcome = engine::copy(job, events).await.unwrap();
    if outcome.stopped.is_none() {
        assert_eq!(outcome.counts.ended(), outcome.counts.entries, "{outcome:#?}");
    }
    outcome
}

/// Copies, and expects that all went well.
pub(crate) async fn copy_well(from: &Arc<impl Remote>, to: &Arc<impl Remote>) -> Outcome {
    let outcome = copy(from, to).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    outcome
}

/// Expects that both have the same in them.
pub(crate) async fn assert_equal(a: &dyn Remote, b: &dyn Remote) {
    let (a, b) = (snapshot(a).await, snapshot(b).await);
    let names = |tree: &Snapshot| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&a), names(&b));
    for (name, seen) in &a {
        let other = &b[name];
        assert_eq!(
            (seen.kind, seen.perm, seen.secs),
            (other.kind, other.perm, other.secs),
            "{name}"
        );
        assert!(seen.content == other.content, "{name}: contents differ");
    }
}

/// An empty directory of this machine.
pub(crate) fn local_dir() -> (tempfile::TempDir, Arc<Local>) {
    let dir = tempfile::tempdir().unwrap();
    let local = Arc::new(Local::open(dir.path()).unwrap());
    (dir, local)
}

/// The names of temporary files in `snapshot`.
pub(crate) fn temporaries(snapshot: &Snapshot) -> Vec<&String> {
    snapshot.keys().filter(|name| name.contains(".sshoal-")).collect()
}

/// Bytes that do not repeat within a piece.
pub(crate) fn content(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).max(1);
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as u8
        })
        .collect()
}

/// Notes all events.
#[derive(Default)]
pub(crate) struct Notes(Mutex<Vec<(String, Action, bool)>>, Mutex<Vec<Problem>>);

impl Notes {
    /// What was done with which entry, in the order of names; those that changed nothing left out.
    pub(crate) fn changes(&self) -> Vec<(String, Action)> {
        let mut changes: Vec<_> = self
            .0
            .lock()
            .unwrap()
            .iter()
            .filter(|(_, action, _)| !matches!(action, Action::Nothing | Action::Skip(_)))
            .map(|(name, action, _)| (name.clone(), action.clone()))
            .collect();
        changes.sort_by(|a, b| a.0.cmp(&b.0));
        changes
    }

    /// The problems that are not those of entries.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        self.1.lock().unwrap().clone()
    }
}

impl Events for Notes {
    fn entry(&self, entry: Entry<'_>) {
        let failed = entry.problem.is_some();
        self.0.lock().unwrap().push((entry.name.to_string(), entry.action.clone(), failed));
    }

    fn problem(&self, problem: &Problem) {
        self.1.lock().unwrap().push(problem.clone());
    }
}
