//! Runs the operations, and compares the whole tree after each.

use std::sync::Arc;

use base::{
    Access, AttrChange, Create, Errno, FileKind, Name, OpenFlags, Remote, RemotePath, Result,
};
use testkit::{MemRemote, path};
use union::{ActionPolicy, Mode, Presence, Union};

use super::apply::{Op, PERM, TARGET};
use super::generate::{Case, Seed};
use super::merge::{Branch, Node, Nodes, below, dump, is_fixed, merge};

fn plant(remote: &MemRemote, seed: Seed) {
    let (Seed::Dir(at) | Seed::File(at, _) | Seed::Link(at, _)) = seed;
    // Only where each parent is a directory or absent, and the name is free.
    let ancestors = at.match_indices('/').map(|(end, _)| &at[..end]);
    let blocked = |at: &str| remote.exists(at) && !remote.attr(at).is_dir();
    if remote.exists(at) || ancestors.into_iter().any(blocked) {
        return;
    }
    match seed {
        Seed::Dir(at) => remote.put_dir(at),
        Seed::File(at, content) => remote.put_file(at, [content]),
        Seed::Link(at, target) => remote.put_symlink(at, target),
    }
}

/// The branches of a case, their union, and their present state.
pub(crate) struct Ground<'c> {
    case: &'c Case,
    remotes: Vec<Arc<MemRemote>>,
    union: Union,
    before: Vec<Branch>,
}

impl<'c> Ground<'c> {
    /// With `above` between each branch and the union.
    pub(crate) fn new(
        case: &'c Case,
        above: impl Fn(Arc<MemRemote>) -> Arc<dyn Remote>,
    ) -> Ground<'c> {
        let remotes: Vec<Arc<MemRemote>> =
            case.branches.iter().map(|_| Arc::new(MemRemote::new())).collect();
        let branches = case.branches.iter().zip(&remotes).enumerate();
        let branches = branches.map(|(index, ((place, mode, seeds), remote))| {
            seeds.iter().for_each(|seed| plant(remote, *seed));
            union::Branch {
                name: format!("host{index}:/d"),
                host: format!("host{index}"),
                place: path(place).names().map(|name| Name::new(name).unwrap()).collect(),
                remote: above(remote.clone()),
                mode: *mode,
                presence: Presence::Required,
            }
        });
        let union = Union::new(branches.collect(), case.policies).unwrap();
        let mut ground = Ground { case, remotes, union, before: Vec::new() };
        ground.before = ground.look();
        ground
    }

    fn look(&self) -> Vec<Branch> {
        let branches = self.case.branches.iter().zip(&self.remotes).enumerate();
        let branches = branches.map(|(index, ((place, mode, _), remote))| Branch {
            place,
            mode: *mode,
            nodes: dump(index, remote),
        });
        branches.collect()
    }

    /// The union shows the merge of its branches.
    pub(crate) async fn compare(&self, when: &str) {
        compare(&merge(&self.before), &walk(&self.union).await, when);
    }

    /// Looks up the names of an operation, as the kernel does before it.
    pub(crate) async fn look_up(&self, op: &Op) {
        for name in op.paths() {
            let _ = self.union.lstat(&path(name)).await;
        }
    }

    /// Runs an operation together with `meanwhile`, and checks the result after `then`.
    pub(crate) async fn step(
        &mut self,
        op: &Op,
        meanwhile: impl Future<Output = ()>,
        then: impl FnOnce(),
    ) {
        if op.goes_through_link(&merge(&self.before)) {
            return;
        }
        // The fault is in place before the operation begins.
        let ((), result) = tokio::join!(biased; meanwhile, run(&self.union, op));
        then();
        let after = self.look();
        judge(self.case, op, result, &self.before, &after);
        self.before = after;
        self.compare(&format!("after {op:?}, which was {result:?}")).await;
    }

    /// The number of open files and directories in the branches.
    pub(crate) fn open_handles(&self) -> usize {
        self.remotes.iter().map(|remote| remote.open_handles()).sum()
    }
}

/// Runs a case.
pub(crate) async fn check(case: &Case) {
    let mut ground = Ground::new(case, |remote| remote);
    ground.compare("at first").await;
    for op in &case.ops {
        ground.step(op, std::future::ready(()), || {}).await;
    }
    assert_eq!(ground.open_handles(), 0, "handles leaked");
}

async fn run(union: &Union, op: &Op) -> Result<()> {
    match *op {
        Op::Create { path: at, exclusive } => {
            let create = if exclusive { Create::Exclusive(0o644) } else { Create::IfAbsent(0o644) };
            let flags = OpenFlags { create, ..OpenFlags::existing(Access::ReadWrite) };
            let opened = union.open(&path(at), flags).await?;
            union.close(opened.fh);
            Ok(())
        }
        Op::Mkdir { path: at } => union.mkdir(&path(at), PERM).await,
        Op::Symlink { path: at } => union.symlink(TARGET.as_bytes(), &path(at)).await,
        Op::Unlink { path: at } => union.unlink(&path(at)).await,
        Op::Rmdir { path: at } => union.rmdir(&path(at)).await,
        Op::Rename { from, to, mode } => union.rename(&path(from), &path(to), mode).await,
        Op::Link { existing, new } => union.link(&path(existing), &path(new)).await,
        Op::Chmod { path: at, perm } => {
            if !union.lstat(&path(at)).await?.is_dir() {
                return Ok(());
            }
            let change = AttrChange { perm: Some(perm), ..AttrChange::default() };
            union.setattr(&path(at), change).await
        }
    }
}

/// Everything that the union shows, by all operations that show it.
async fn walk(union: &Union) -> Nodes {
    let mut shown = Nodes::new();
    let mut todo = vec![String::new()];
    while let Some(at) = todo.pop() {
        let here = path(&at);
        let attr =
            union.lstat(&here).await.unwrap_or_else(|errno| panic!("lstat {at:?}: {errno:?}"));
        let node = match attr.kind {
            FileKind::Directory => {
                for (name, listed) in list(union, &here).await {
                    let below = below(&at, &name);
                    if let Some(listed) = listed {
                        assert_eq!(Ok(listed), union.lstat(&path(&below)).await, "listed {below}");
                    }
                    todo.push(below);
                }
                let absent = here.join(&Name::new(b"absent").unwrap());
                assert_eq!(union.lstat(&absent).await, Err(Errno::ENOENT), "in {at:?}");
                Node::Dir { perm: attr.perm }
            }
            FileKind::Symlink => {
                Node::Link { target: union.readlink(&here).await.unwrap(), id: None }
            }
            _ => {
                let opened = union.open(&here, OpenFlags::existing(Access::Read)).await.unwrap();
                assert_eq!(opened.attr, attr, "{at:?}");
                let content = union.read(opened.fh, 0, 1_000).await.unwrap().to_vec();
                union.close(opened.fh);
                let inside = here.join(&Name::new(b"x").unwrap());
                assert_eq!(union.lstat(&inside).await, Err(Errno::ENOTDIR), "below {at:?}");
                Node::File { content, id: None }
            }
        };
        assert!(shown.insert(at.clone(), node).is_none(), "{at:?} is listed twice");
    }
    shown
}

async fn list(union: &Union, at: &RemotePath) -> Vec<(String, Option<base::Attr>)> {
    let dh = union.opendir(at).await.unwrap_or_else(|errno| panic!("opendir {at}: {errno:?}"));
    let mut entries = Vec::new();
    while let Some(batch) = union.readdir(dh).await.unwrap() {
        assert!(!batch.is_empty());
        entries.extend(batch.into_iter().map(|entry| (entry.name.to_string(), entry.attr)));
    }
    union.closedir(dh);
    entries
}

/// Without the ids of hard links.
fn plain(nodes: &Nodes) -> Nodes {
    let plain = |node: &Node| match node {
        Node::File { content, .. } => Node::File { content: content.clone(), id: None },
        Node::Link { target, .. } => Node::Link { target: target.clone(), id: None },
        node => node.clone(),
    };
    nodes.iter().map(|(path, node)| (path.clone(), plain(node))).collect()
}

fn compare(expected: &Nodes, got: &Nodes, when: &str) {
    assert_eq!(&plain(expected), got, "{when}: what it must be, and what it shows");
}

/// Whether the result is right, given the branches before and after.
fn judge(case: &Case, op: &Op, result: Result<()>, before: &[Branch], after: &[Branch]) {
    for (old, new) in before.iter().zip(after) {
        let keys = |branch: &Branch| branch.nodes.keys().cloned().collect::<Vec<_>>();
        match old.mode {
            Mode::Ro => assert_eq!(old, new, "{op:?} has changed a branch that is ro"),
            Mode::NoCreate if op.creates() => {
                assert_eq!(keys(old), keys(new), "{op:?} has put something in a branch that is nc");
            }
            _ => {}
        }
    }
    if result.is_err() {
        assert_eq!(before, after, "{op:?} has failed with {result:?}, and changed something");
    }
    let mut expected = merge(before);
    let posix = op.apply(&mut expected);
    if op.paths().iter().any(|path| is_fixed(before, path)) {
        // These operations have rules of their own; the tree that is shown must be right all the
        // same.
        if result.is_ok() && posix.is_ok() {
            assert_eq!(plain(&expected), plain(&merge(after)), "{op:?}");
        }
        return;
    }
    match (posix, result) {
        (Ok(()), Ok(())) => assert_eq!(plain(&expected), plain(&merge(after)), "{op:?}"),
        (Err(why), Err(errno)) if why == errno => {}
        // A single branch is not queried for an operation that its mode forbids.
        (Err(_), Err(Errno::EROFS)) if is_alone(op, before) => {}
        // Whether a directory is empty, the server checks last.
        (Ok(()) | Err(Errno::ENOTEMPTY), Err(errno)) => {
            assert!(is_justified(case, op, errno, before), "{op:?} is {errno:?}")
        }
        (posix, result) => panic!("{op:?} is {result:?} instead of {posix:?}"),
    }
}

/// Whether a path of the operation leads to one branch only, whose mode forbids something.
fn is_alone(op: &Op, branches: &[Branch]) -> bool {
    op.paths().iter().any(|path| {
        let covers = |branch: &&Branch| {
            let rest = path.strip_prefix(branch.place);
            branch.place.is_empty() || rest.is_some_and(|rest| rest.starts_with('/'))
        };
        let covering: Vec<&Branch> = branches.iter().filter(covers).collect();
        covering.len() == 1 && covering[0].mode != Mode::Rw
    })
}

/// Whether the branches justify this error for an operation that succeeds on one file system.
fn is_justified(case: &Case, op: &Op, errno: Errno, branches: &[Branch]) -> bool {
    let holders = |path: &str| branches.iter().filter(|branch| branch.at(path).is_some()).count();
    match errno {
        Errno::EROFS => {
            let parent_is_made_up = || {
                let parent = op.paths()[0].rsplit_once('/').map_or("", |(parent, _)| parent);
                let has = |branch: &Branch| branch.at(parent).is_some_and(Node::is_dir);
                op.creates() && !branches.iter().any(has)
            };
            branches.iter().any(|branch| branch.mode != Mode::Rw) || parent_is_made_up()
        }
        Errno::EBUSY => match *op {
            Op::Unlink { path: at } | Op::Rename { from: at, .. } => {
                let of_one_kind = || {
                    let kinds =
                        branches.iter().filter_map(|branch| branch.at(at).map(Node::is_dir));
                    let kinds: Vec<bool> = kinds.collect();
                    kinds.iter().all(|kind| *kind == kinds[0])
                };
                let renamed_over = matches!(op, Op::Rename { to, .. } if holders(to) > 1);
                holders(at) > 1
                    && (case.policies.action == ActionPolicy::First
                        || !of_one_kind()
                        || renamed_over)
            }
            Op::Rmdir { path } => holders(path) > 1,
            _ => false,
        },
        Errno::EXDEV => match *op {
            // Unless all copies are on one branch, which has the target directory too.
            Op::Rename { from, to, .. } | Op::Link { existing: from, new: to } => {
                let parent = to.rsplit_once('/').map_or("", |(parent, _)| parent);
                let is_home = |branch: &Branch| {
                    let elsewhere = branches.iter().filter(|other| !std::ptr::eq(*other, branch));
                    branch.at(from).is_some()
                        && branch.at(parent).is_some_and(Node::is_dir)
                        && elsewhere
                            .into_iter()
                            .all(|other| other.at(from).is_none() && other.at(to).is_none())
                };
                !branches.iter().any(is_home)
            }
            _ => false,
        },
        _ => false,
    }
}
