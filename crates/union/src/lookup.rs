//! Look-ups: `lstat`, `readlink`, `locate`, `digest`, and opening existing files.

use std::sync::{Arc, Weak};
use std::time::Duration;

use base::{
    Attr, DigestEffort, DigestKind, Errno, FileKind, Location, OpenFlags, RemotePath, Result,
};
use bytes::Bytes;

use crate::branch::TreeBranch;
use crate::dir_cache::Report;
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
        let attr = branch.call(branch.remote.lstat(&at)).await?;
        return Ok(branch.translated(attr));
    }
    let query = Query::new(tree, path, Trust::Cached);
    let mut calls = query.send(&lstat_leaf);
    let mut resolver = query.resolver();
    let (mut reports, mut left_out) = (Vec::with_capacity(calls.len()), 0);
    for index in 0..calls.len() {
        let mut answer = calls.take(index).await;
        if query.fixed {
            answer = answer.hide_unless(Attr::is_dir);
        }
        left_out += usize::from(matches!(answer.outcome, Outcome::LeftOut));
        reports.extend(query.report(index, &answer, Attr::is_dir));
        if let Some(mut result) = resolver.add(answer) {
            if let Ok(attr) = &mut result
                && attr.is_dir()
            {
                // It stays the same directory when branches come and go.
                attr.inode = None;
                merge_mtimes(&query, &mut calls, index + 1, attr, &mut reports).await;
            }
            query.record(&reports);
            return result;
        }
    }
    query.record(&reports);
    let is_synthetic = tree.placed_below(path).next().is_some() || left_out > 0;
    if query.fixed && is_synthetic { Ok(tree.synthetic_attr()) } else { Err(resolver.not_found()) }
}

/// Adds the latest mtime of the branches from `first` on to the attributes of a directory, so that
/// a new name on any of them changes the mtime.
async fn merge_mtimes(
    query: &Query<'_>,
    calls: &mut FanOut<'_, Answer<Attr>>,
    first: usize,
    merged: &mut Attr,
    reports: &mut Vec<Report>,
) {
    let rest = async {
        for index in first..calls.len() {
            // Its call would wait or fail.
            if query.branch(index).1.remote.is_disconnected() {
                continue;
            }
            let answer = calls.take(index).await;
            if let Outcome::Found(attr) = &answer.outcome
                && attr.is_dir()
            {
                merged.mtime = merged.mtime.max(attr.mtime);
            }
            reports.extend(query.report(index, &answer, Attr::is_dir));
        }
    };
    if tokio::time::timeout(MERGE_LIMIT, rest).await.is_err() {
        tracing::debug!("{}: not every source has answered in time", query.components.path());
        let watched_by = query.branch(0).1.watched_by.get().and_then(Weak::upgrade);
        if let Some(watches) = watched_by {
            watches.note_incomplete(query.components.path());
        }
    }
}

/// The target of the link shown at `path`.
pub(crate) async fn readlink(tree: &Tree, path: &RemotePath) -> Result<Vec<u8>> {
    if tree.is_fixed(path) {
        return Err(Errno::EINVAL);
    }
    if let Some((branch, at)) = tree.sole_branch(path) {
        return branch.call(branch.remote.readlink(&at)).await;
    }
    first_answer(tree, path, |branch, at| async move { branch.remote.readlink(&at).await }).await
}

/// The first final answer to `request` in the order of search. Later ones are not waited for.
async fn first_answer<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
    tree: &Tree,
    path: &RemotePath,
    request: impl Fn(Arc<TreeBranch>, RemotePath) -> F + Sync,
) -> Result<T> {
    let query = Query::new(tree, path, Trust::Cached);
    let leaf = |branch: &Arc<TreeBranch>, at: RemotePath, _: bool| -> Call<'static, Result<T>> {
        Box::pin(request(branch.clone(), at))
    };
    let (mut calls, mut resolver) = (query.send(&leaf), query.resolver());
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
    first_answer(tree, path, move |branch, at| async move {
        if flags.access.writes() && !branch.writable() {
            return Err(read_only_error(branch.remote.lstat(&at).await?.kind));
        }
        BranchFile::open(&branch, &at, flags).await
    })
    .await
}

/// Opens the file shown at `path`, which has these attributes, if its content is stored on this
/// machine. A file on another branch does not have them, since they identify the file.
pub(crate) async fn open_stored(
    tree: &Tree,
    path: &RemotePath,
    attr: Attr,
) -> Option<(BranchFile, Attr)> {
    attr.id()?;
    for (_, branch) in tree.covering(path) {
        let native = branch.translated(attr);
        if let Some(opened) = branch.remote.open_stored(&branch.subpath(path), &native).await {
            return Some(BranchFile::new(branch, opened, false));
        }
    }
    None
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
        let attr = branch.translated(attr);
        return branch.call(branch.remote.digest(&at, &attr, kind, effort)).await;
    }
    first_answer(tree, path, move |branch, at| async move {
        let attr = branch.translated(attr);
        let found = branch.remote.lstat(&at).await?;
        // A read may have changed the atime since.
        if (Attr { atime: attr.atime, ..found }) != attr {
            return Ok(None);
        }
        branch.remote.digest(&at, &attr, kind, effort).await
    })
    .await
}

/// All locations of the entry at `path`, the shown one first. A branch may report its own host
/// name.
pub(crate) async fn locate(tree: &Tree, path: &RemotePath) -> Result<Vec<Location>> {
    let view = View::existing(tree, path).await?;
    let locations = view.holders.iter().map(async |holder| {
        let branch = tree.branch(holder.slot);
        let at = branch.subpath(path);
        // A pool reports the host that serves the path; the source's name is the tree's.
        let locations = branch.call(branch.remote.locate(&at)).await.unwrap_or_default();
        let host = locations.into_iter().next().map_or_else(|| branch.host.clone(), |it| it.host);
        Location { source: branch.name.clone(), host }
    });
    Ok(FanOut::of(locations).all().await)
}
