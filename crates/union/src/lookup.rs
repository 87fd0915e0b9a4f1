//! Look-ups: `lstat`, `readlink`, `locate`, `digest`, and opening existing files.

use std::sync::Arc;
use std::time::Duration;

use base::{
    Attr, DigestEffort, DigestKind, Errno, FileKind, Location, OpenFlags, RemotePath, Result,
};
use bytes::Bytes;

use crate::branch::TreeBranch;
use crate::fan_out::{Call, FanOut};
use crate::handles::BranchFile;
use crate::query::{Answer, Outcome, Query, Trust, lstat_leaf};
use crate::tree::Tree;
use crate::view::View;

/// How long the attributes of a directory wait for the branches after the one that is shown. Those
/// contribute the mtime only, and a branch that has stopped answering, and is not known to be
/// unreachable yet, must not block a walk through the tree. Longer than any round trip.
const MERGE_LIMIT: Duration = Duration::from_secs(1);

/// The attributes of the entry shown at `path`.
pub(crate) async fn lstat(tree: &Tree, path: &RemotePath) -> Result<Attr> {
    if let Some((branch, at)) = tree.sole_branch(path) {
        return branch.call(branch.remote.lstat(&at)).await;
    }
    let query = Query::new(tree, path, Trust::Cached);
    let mut calls = query.send(&lstat_leaf);
    let mut resolver = query.resolver();
    let mut answers = Vec::with_capacity(query.len());
    let mut left_out = 0;
    for index in 0..calls.len() {
        let mut answer = calls.take(index).await;
        if query.fixed {
            answer = answer.hide_unless(Attr::is_dir);
        }
        left_out += usize::from(matches!(answer.outcome, Outcome::LeftOut));
        answers.push(answer);
        match resolver.add(answer) {
            None => {}
            Some(Ok(attr)) if attr.is_dir() => {
                let merged = merge_mtimes(&query, &mut calls, attr, &mut answers).await;
                query.record(&answers, |attr| Some(attr.is_dir()));
                return Ok(merged);
            }
            Some(result) => {
                query.record(&answers, |attr| Some(attr.is_dir()));
                return result;
            }
        }
    }
    query.record(&answers, |attr| Some(attr.is_dir()));
    let is_synthetic = tree.placed_below(path).next().is_some() || left_out > 0;
    if query.fixed && is_synthetic { Ok(tree.synthetic_attr()) } else { Err(resolver.not_found()) }
}

/// The attributes of a directory on the first branch, with the latest mtime of all branches, so
/// that a new name on any of them changes the mtime.
async fn merge_mtimes(
    query: &Query<'_>,
    calls: &mut FanOut<'_, Answer<Attr>>,
    first: Attr,
    answers: &mut Vec<Answer<Attr>>,
) -> Attr {
    let mut merged = first;
    let rest = async {
        for index in answers.len()..calls.len() {
            let (_, branch) = query.branch(index);
            // Its call would wait or fail.
            if branch.remote.is_disconnected() {
                answers.push(Answer { dirs: 0, outcome: Outcome::LeftOut });
                continue;
            }
            let answer = calls.take(index).await;
            if let Outcome::Found(attr) = &answer.outcome
                && attr.is_dir()
            {
                merged.mtime = merged.mtime.max(attr.mtime);
            }
            answers.push(answer);
        }
    };
    if tokio::time::timeout(MERGE_LIMIT, rest).await.is_err() {
        tracing::debug!("{}: not every source has answered in time", query.components.path());
    }
    merged
}

/// The target of the link shown at `path`.
pub(crate) async fn readlink(tree: &Tree, path: &RemotePath) -> Result<Vec<u8>> {
    if tree.is_fixed(path) {
        return Err(Errno::EINVAL);
    }
    if let Some((branch, at)) = tree.sole_branch(path) {
        return branch.call(branch.remote.readlink(&at)).await;
    }
    let query = Query::new(tree, path, Trust::Cached);
    let leaf = |branch: &Arc<TreeBranch>, at: RemotePath, _| -> Call<'static, Result<Vec<u8>>> {
        let remote = branch.remote.clone();
        Box::pin(async move { remote.readlink(&at).await })
    };
    first_answer(&query, query.send(&leaf)).await
}

/// The first final answer in the order of search. Later ones are not waited for.
async fn first_answer<T>(query: &Query<'_>, mut calls: FanOut<'_, Answer<T>>) -> Result<T> {
    let mut resolver = query.resolver();
    for index in 0..calls.len() {
        if let Some(result) = resolver.add(calls.take(index).await) {
            return result;
        }
    }
    Err(resolver.not_found())
}

/// Opens the file shown at `path` without creating or truncating it, on all branches at once, since
/// mostly just one has it.
pub(crate) async fn open(
    tree: &Tree,
    path: &RemotePath,
    flags: OpenFlags,
) -> Result<(BranchFile, Attr)> {
    let query = Query::new(tree, path, Trust::Cached);
    let leaf = |branch: &Arc<TreeBranch>,
                at: RemotePath,
                _|
     -> Call<'static, Result<(BranchFile, Attr)>> {
        let branch = branch.clone();
        Box::pin(async move {
            if flags.access.writes() && !branch.writable() {
                return Err(read_only_error(branch.remote.lstat(&at).await?.kind));
            }
            BranchFile::open(&branch, &at, flags).await
        })
    };
    first_answer(&query, query.send(&leaf)).await
}

/// The error of opening an entry for writing on a read-only branch.
pub(crate) fn read_only_error(kind: FileKind) -> Errno {
    match kind {
        FileKind::Directory => Errno::EISDIR,
        FileKind::Symlink => Errno::ELOOP,
        _ => Errno::EROFS,
    }
}

/// The digest of the file shown at `path`. Where several branches could show it, all are queried: a
/// hidden file may have the same attributes.
pub(crate) async fn digest(
    tree: &Tree,
    path: &RemotePath,
    attr: Attr,
    kind: DigestKind,
    effort: DigestEffort,
) -> Result<Option<Bytes>> {
    if tree.is_fixed(path) {
        return Ok(None);
    }
    if let Some((branch, at)) = tree.sole_branch(path) {
        return branch.call(branch.remote.digest(&at, &attr, kind, effort)).await;
    }
    let query = Query::new(tree, path, Trust::Cached);
    let leaf =
        |branch: &Arc<TreeBranch>, at: RemotePath, _| -> Call<'static, Result<Option<Bytes>>> {
            let remote = branch.remote.clone();
            Box::pin(async move {
                if remote.lstat(&at).await? != attr {
                    return Ok(None);
                }
                remote.digest(&at, &attr, kind, effort).await
            })
        };
    first_answer(&query, query.send(&leaf)).await
}

/// All locations of the entry at `path`, the shown one first. A branch may report its own host
/// name.
pub(crate) async fn locate(tree: &Tree, path: &RemotePath) -> Result<Vec<Location>> {
    let mut view = View::of(tree, path).await?;
    if tree.is_fixed(path) {
        view.holders.retain(|holder| holder.attr.is_dir());
    } else {
        view.require_shown()?;
    }
    let places = view.holders.iter().map(|holder| -> Call<'_, Vec<Location>> {
        let branch = tree.branch(holder.slot);
        let at = branch.subpath(path);
        Box::pin(async move {
            // A pool reports the host that serves the path; the source's name is the tree's.
            let locations = branch.call(branch.remote.locate(&at)).await.unwrap_or_default();
            let host =
                locations.into_iter().next().map_or_else(|| branch.host.clone(), |it| it.host);
            vec![Location { source: branch.name.clone(), host }]
        })
    });
    let places: FanOut<'_, Vec<Location>> = places.collect();
    Ok(places.all().await.concat())
}
