//! Operations by path: queries, which continue at another gateway when one is lost, and changes,
//! which are made once, through one gateway, and recorded.

use std::sync::Arc;

use base::{Attr, Errno, Remote, RemotePath, Result};

use crate::gateways::{GatewaySet, RemoteFuture, Target};
use crate::member::{Member, Weight};
use crate::open_paths::Version;
use crate::recent_changes::{Begun, ChangeKind, RecentChanges};
use crate::replicas::Replicas;

/// A change in flight. It is recorded at the start, since it may happen even if the call is
/// dropped, and again at the end, since it may have happened as late as that.
#[must_use]
pub(crate) struct ChangeGuard<'a> {
    recent: &'a RecentChanges,
    path: &'a RemotePath,
    gateway: usize,
    /// The kind to record at the end, if any.
    kind: Option<ChangeKind>,
    begun: Begun,
}

impl ChangeGuard<'_> {
    /// Records the result of a change of the kind `kind`.
    pub(crate) fn finish<T>(mut self, kind: ChangeKind, answer: &Result<T>) {
        self.kind = match (answer, kind) {
            (Ok(_), kind) => Some(kind),
            (Err(errno), ChangeKind::Created) if errno.is_loss() => {
                Some(ChangeKind::Lost { exists: true })
            }
            (Err(errno), ChangeKind::Removed) if errno.is_loss() => {
                Some(ChangeKind::Lost { exists: false })
            }
            // The gateway may not show the name yet: requests go on to the one that does.
            (answer, _) if is_absence(answer) => {
                self.recent.restore(self.path, &self.begun);
                None
            }
            (Err(_), _) => return,
        };
    }
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        if let Some(kind) = self.kind {
            self.recent.note(self.path, self.gateway, kind);
        }
    }
}

/// Whether nothing was changed, since a name was not found.
fn is_absence<T>(answer: &Result<T>) -> bool {
    matches!(answer, Err(Errno::ENOENT | Errno::ENOTDIR))
}

impl Replicas {
    /// Records a change of `path` that is about to be sent.
    pub(crate) fn begin_change<'a>(
        &'a self,
        path: &'a RemotePath,
        gateway: usize,
        kind: ChangeKind,
    ) -> ChangeGuard<'a> {
        let begun = self.recent.begin(path, gateway, kind);
        ChangeGuard { recent: &self.recent, path, gateway, kind: Some(kind), begun }
    }

    /// Queries `path`.
    pub(crate) async fn query<'a, T>(
        &'a self,
        path: &RemotePath,
        call: impl Fn(&'a dyn Remote) -> RemoteFuture<'a, T>,
    ) -> Result<T> {
        self.query_with_gateway(path, call).await?.1
    }

    /// Queries `path`; returns the gateway that has answered too.
    async fn query_with_gateway<'a, T>(
        &'a self,
        path: &RemotePath,
        call: impl Fn(&'a dyn Remote) -> RemoteFuture<'a, T>,
    ) -> Result<(usize, Result<T>)> {
        let target = self.query_target(path);
        let (gateway, answer) = self.gateways.query(path, target, call).await?;
        Ok((gateway, self.reject_stale(path, gateway, answer)))
    }

    pub(crate) async fn lstat_path(&self, path: &RemotePath) -> Result<Attr> {
        for _ in 0..=self.gateways.members.len() {
            let unseen = self.recent.unseen(path);
            let before = self.open_paths.get(path);
            let settled = before.as_ref().map(|open_path| open_path.settled());
            let (gateway, answer) =
                self.query_with_gateway(path, |remote| remote.lstat(path)).await?;
            // Attributes that may lack a change of an open file are not the version after it.
            if let Some(change) = unseen.filter(|change| change.gateway == gateway)
                && settled != Some(None)
                && matches!(answer, Ok(_) | Err(Errno::ENOENT))
            {
                let version = answer.as_ref().ok().map(Version::of);
                self.recent.note_seen(path, change, version);
                if let (Some(open_path), Some(settled)) = (before, settled) {
                    open_path.note_recorded(settled);
                }
            }
            let attr = answer?;
            if !self.is_current(path, gateway, &attr) || self.may_be_stale(path, gateway) {
                return Err(Errno::EHOSTDOWN);
            }
            let Some(open_path) = self.open_paths.get(path) else { return Ok(attr) };
            // If the primary is left out, the gateway whose answer is returned becomes the primary.
            let writing = open_path.has_writers();
            if open_path.confirm_primary(gateway, |primary| self.must_stay(primary, writing)) {
                open_path.note_shown(&attr);
                return Ok(attr);
            }
            // The path was opened at another gateway meanwhile.
        }
        Err(Errno::EHOSTDOWN)
    }

    /// Makes a change of these paths, each of the kind beside it. A gateway that does not find a
    /// name has changed nothing; then those are tried that recently changed one of the paths, or a
    /// directory above it.
    pub(crate) async fn change<'a>(
        &'a self,
        target: Target,
        paths: &[(&RemotePath, ChangeKind)],
        call: impl Fn(&'a dyn Remote) -> RemoteFuture<'a, ()>,
    ) -> Result<()> {
        let first = paths.first().map(|(path, _)| *path).ok_or(Errno::EINVAL)?;
        let mut tried = GatewaySet::default();
        let mut next = self.gateways.next(first, target, tried).await;
        let mut answer = Err(Errno::EHOSTDOWN);
        while let Some(member) = next {
            tried = tried.with(member.index);
            answer = self.change_through(member, paths, call(&*member.remote)).await;
            if !is_absence(&answer) {
                return answer;
            }
            next = self.changed_through(paths, tried);
        }
        if self.may_exist_elsewhere(paths, tried) { Err(Errno::EHOSTDOWN) } else { answer }
    }

    /// A usable gateway, not one of `tried`, that recently changed one of these paths or a directory
    /// above it.
    fn changed_through(
        &self,
        paths: &[(&RemotePath, ChangeKind)],
        tried: GatewaySet,
    ) -> Option<&Arc<Member>> {
        let changed = self.recent.gateways_of(paths.iter().map(|(path, _)| *path));
        let others = changed.difference(tried).iter();
        others.map(|index| &self.gateways.members[index]).find(|member| member.is_usable())
    }

    /// Whether a name that this change needs may exist, though the gateways in `tried` do not find
    /// it: the answer of each of them is rejected, as for a query.
    fn may_exist_elsewhere(&self, paths: &[(&RemotePath, ChangeKind)], tried: GatewaySet) -> bool {
        let mut needed = paths.iter().filter_map(|(path, kind)| match kind {
            ChangeKind::Created => path.parent(),
            _ => Some((*path).clone()),
        });
        let is_rejected = |path: &RemotePath, gateway| {
            self.reject_stale(path, gateway, Err::<(), _>(Errno::ENOENT)) != Err(Errno::ENOENT)
        };
        needed.any(|path| tried.iter().all(|gateway| is_rejected(&path, gateway)))
    }

    async fn change_through(
        &self,
        member: &Member,
        paths: &[(&RemotePath, ChangeKind)],
        call: RemoteFuture<'_, ()>,
    ) -> Result<()> {
        let guards: Vec<_> = paths
            .iter()
            .map(|(path, kind)| match kind {
                ChangeKind::Content => self.begin_change(path, member.index, ChangeKind::Content),
                _ => self.begin_change(path, member.index, ChangeKind::InDoubt),
            })
            .collect();
        let answer = self.gateways.call_unless_lost(member, Weight::Small, call).await;
        // The last one first, since each restores the entries from before it.
        for (guard, (_, kind)) in guards.into_iter().zip(paths).rev() {
            guard.finish(*kind, &answer);
        }
        answer
    }

    /// Makes a change of the attributes of `path`, or of an extended one, which may be its access
    /// list.
    pub(crate) async fn change_attrs<'a>(
        &'a self,
        path: &RemotePath,
        call: impl Fn(&'a dyn Remote) -> RemoteFuture<'a, ()>,
    ) -> Result<()> {
        let open_path = self.open_paths.get(path);
        if let Some(open_path) = &open_path {
            open_path.begin_change_by_name();
        }
        let answer = self.change_one(path, ChangeKind::Content, call).await;
        if let Some(open_path) = open_path {
            open_path.end_change(&answer);
        }
        answer
    }

    /// Makes a change of one path.
    pub(crate) async fn change_one<'a>(
        &'a self,
        path: &RemotePath,
        kind: ChangeKind,
        call: impl Fn(&'a dyn Remote) -> RemoteFuture<'a, ()>,
    ) -> Result<()> {
        self.change(self.change_target(path), &[(path, kind)], call).await
    }
}

/// The first target, unless it is any gateway.
pub(crate) fn first_specific(first: Target, second: Target) -> Target {
    if first == Target::Any { second } else { first }
}
