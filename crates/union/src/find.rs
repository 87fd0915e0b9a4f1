//! Looking things up: `lstat`, `readlink`, `locate`, and opening what is there.

use std::sync::Arc;
use std::time::Duration;

use base::{
    Attr, DigestEffort, DigestKind, Errno, FileKind, Location, OpenFlags, RemotePath, Result,
};
use bytes::Bytes;

use crate::branch::Live;
use crate::fan::{Call, Fan};
use crate::handles::InnerFile;
use crate::query::{Answer, End, Query, Trust, lstat_leaf};
use crate::steps::Steps;
use crate::tree::Tree;
use crate::view::View;

/// How long the attributes of a directory wait for those branches that come after the one which
/// is shown. They only tell the time of its last change, and one that has stopped answering, and
/// is not known to be away yet, must not stop whoever walks through the directory. Longer than
/// any way to a server takes.
const MERGE_LIMIT: Duration = Duration::from_secs(1);

/// The attributes of what the tree shows at `path`.
pub(crate) async fn lstat(tree: &Tree, path: &RemotePath) -> Result<Attr> {
    if let Some((live, at)) = tree.only(path) {
        return live.act(live.remote.lstat(&at)).await;
    }
    let query = Query::new(tree, path, Trust::Known);
    let mut fan = query.ask(&lstat_leaf);
    let mut verdict = query.verdict();
    let mut told = Vec::with_capacity(query.len());
    let mut left_out = 0;
    for index in 0..fan.len() {
        let mut answer = fan.take(index).await;
        if query.fixed {
            answer = answer.hide_unless(Attr::is_dir);
        }
        left_out += usize::from(matches!(answer.end, End::LeftOut));
        told.push(answer);
        match verdict.weigh(answer) {
            None => {}
            Some(Ok(attr)) if attr.is_dir() => {
                let merged = merge_rest(&query, &mut fan, attr, &mut told).await;
                query.learn(&told, |attr| Some(attr.is_dir()));
                return Ok(merged);
            }
            Some(result) => {
                query.learn(&told, |attr| Some(attr.is_dir()));
                return result;
            }
        }
    }
    query.learn(&told, |attr| Some(attr.is_dir()));
    let is_made_up = tree.placed_below(path).next().is_some() || left_out > 0;
    if query.fixed && is_made_up { Ok(tree.made_up()) } else { Err(verdict.nobody()) }
}

/// The attributes of a directory as the first branch has them, with the latest of all branches'
/// times of last change: so that a name which any of them gets is seen in it.
async fn merge_rest(
    query: &Query<'_>,
    fan: &mut Fan<'_, Answer<Attr>>,
    first: Attr,
    told: &mut Vec<Answer<Attr>>,
) -> Attr {
    let mut merged = first;
    let rest = async {
        for index in told.len()..fan.len() {
            let (_, live) = query.branch(index);
            // Waits, or fails; both are nothing to wait for.
            if live.remote.is_disconnected() {
                told.push(Answer { dirs: 0, end: End::LeftOut });
                continue;
            }
            let answer = fan.take(index).await;
            if let End::Found(attr) = &answer.end
                && attr.is_dir()
            {
                merged.mtime = merged.mtime.max(attr.mtime);
            }
            told.push(answer);
        }
    };
    if tokio::time::timeout(MERGE_LIMIT, rest).await.is_err() {
        tracing::debug!("{}: not every source has told of it in time", query.steps.path());
    }
    merged
}

/// The target of the link that the tree shows at `path`.
pub(crate) async fn readlink(tree: &Tree, path: &RemotePath) -> Result<Vec<u8>> {
    if tree.is_fixed(path) {
        return Err(Errno::EINVAL);
    }
    if let Some((live, at)) = tree.only(path) {
        return live.act(live.remote.readlink(&at)).await;
    }
    let query = Query::new(tree, path, Trust::Known);
    let leaf = |live: &Arc<Live>, at: RemotePath, _| -> Call<'static, Result<Vec<u8>>> {
        let remote = live.remote.clone();
        Box::pin(async move { remote.readlink(&at).await })
    };
    first(&query, query.ask(&leaf)).await
}

/// The first answer in the order of search that counts. Those after it are not waited for.
async fn first<T>(query: &Query<'_>, mut fan: Fan<'_, Answer<T>>) -> Result<T> {
    let mut verdict = query.verdict();
    for index in 0..fan.len() {
        if let Some(result) = verdict.weigh(fan.take(index).await) {
            return result;
        }
    }
    Err(verdict.nobody())
}

/// Opens what the tree shows at `path` without changing it: by opening it on all branches at once,
/// since mostly just one has it.
pub(crate) async fn open(
    tree: &Tree,
    path: &RemotePath,
    flags: OpenFlags,
) -> Result<(InnerFile, Attr)> {
    let query = Query::new(tree, path, Trust::Known);
    let leaf = |live: &Arc<Live>, at: RemotePath, _| -> Call<'static, Result<(InnerFile, Attr)>> {
        let live = live.clone();
        Box::pin(async move {
            if flags.access.writes() && !live.writable() {
                return Err(not_to_be_written(live.remote.lstat(&at).await?.kind));
            }
            InnerFile::open(&live, &at, flags).await
        })
    };
    first(&query, query.ask(&leaf)).await
}

/// What opening it for writing answers on a branch that is not to be changed.
pub(crate) fn not_to_be_written(kind: FileKind) -> Errno {
    match kind {
        FileKind::Directory => Errno::EISDIR,
        FileKind::Symlink => Errno::ELOOP,
        _ => Errno::EROFS,
    }
}

/// The digest of what the tree shows at `path`. Where more than one branch could show it, they are
/// asked which one does: a file that is hidden may have the same attributes.
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
    if let Some((live, at)) = tree.only(path) {
        return live.act(live.remote.digest(&at, &attr, kind, effort)).await;
    }
    let query = Query::new(tree, path, Trust::Known);
    let leaf = |live: &Arc<Live>, at: RemotePath, _| -> Call<'static, Result<Option<Bytes>>> {
        let remote = live.remote.clone();
        Box::pin(async move {
            if remote.lstat(&at).await? != attr {
                return Ok(None);
            }
            remote.digest(&at, &attr, kind, effort).await
        })
    };
    first(&query, query.ask(&leaf)).await
}

/// Everywhere where something is at `path`, what is shown first. A branch that has words of its own
/// for its places says them.
pub(crate) async fn locate(tree: &Tree, path: &RemotePath) -> Result<Vec<Location>> {
    let mut view = View::of(tree, path).await?;
    if tree.is_fixed(path) {
        view.holders.retain(|holder| holder.attr.is_dir());
    } else {
        view.must_show()?;
    }
    let steps = Steps::new(path);
    let places = view.holders.iter().map(|holder| -> Call<'_, Vec<Location>> {
        let live = tree.branch(holder.slot);
        let at = steps.inside(live.depth, steps.depth());
        Box::pin(async move {
            // A pool knows which of its hosts; what the branch is called here, only the tree.
            let told = live.act(live.remote.locate(&at)).await.unwrap_or_default();
            let host = told.into_iter().next().map_or_else(|| live.host.clone(), |it| it.host);
            vec![Location { source: live.name.clone(), host }]
        })
    });
    let places: Fan<'_, Vec<Location>> = places.collect();
    Ok(places.all().await.concat())
}
