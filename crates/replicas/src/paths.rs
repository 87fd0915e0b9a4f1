//! Operations by path: queries, which continue at another gateway when one is lost, and changes,
//! which are made once, through one gateway, and recorded.

use base::{Attr, Errno, Remote, RemotePath, Result};

use crate::gateways::{GatewaySet, RemoteFuture, Target, is_loss};
use crate::member::Weight;
use crate::open_paths::Version;
use crate::recent_changes::{ChangeKind, RecentChanges};
use crate::replicas::Replicas;

/// A change in flight. It is recorded at the start, since it may happen even if the call is
/// dropped, and again at the end, since it may have happened as late as that.
#[must_use]
pub(crate) struct ChangeGuard<'a> {
    recent: &'a RecentChanges,
    path: &'a RemotePath,
    gateway: usize,
    kind: ChangeKind,
}

impl ChangeGuard<'_> {
    /// Records the result of a change of the kind `kind`.
    pub(crate) fn finish<T>(mut self, kind: ChangeKind, answer: &Result<T>) {
        self.kind = match (answer, kind) {
            (Ok(_), kind) => kind,
            (Err(errno), ChangeKind::Created) if is_loss(*errno) => {
                ChangeKind::Lost { exists: true }
            }
            (Err(errno), ChangeKind::Removed) if is_loss(*errno) => {
                ChangeKind::Lost { exists: false }
            }
            (Err(_), _) => return,
        };
    }
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        self.recent.note(self.path, self.gateway, self.kind);
    }
}

impl Replicas {
    /// Records a change of `path` that is about to be sent.
    pub(crate) fn begin_change<'a>(
        &'a self,
        path: &'a RemotePath,
        gateway: usize,
        kind: ChangeKind,
    ) -> ChangeGuard<'a> {
        self.recent.note(path, gateway, kind);
        ChangeGuard { recent: &self.recent, path, gateway, kind }
    }

    /// Queries `path`.
    pub(crate) async fn query<'a, T>(
        &'a self,
        path: &RemotePath,
        call: impl Fn(&'a dyn Remote) -> RemoteFuture<'a, T>,
    ) -> Result<T> {
        self.query_with_gateway(path, call).await.map(|(_, answer)| answer)
    }

    /// Queries `path`; returns the gateway that has answered too.
    async fn query_with_gateway<'a, T>(
        &'a self,
        path: &RemotePath,
        call: impl Fn(&'a dyn Remote) -> RemoteFuture<'a, T>,
    ) -> Result<(usize, T)> {
        let target = self.query_target(path);
        let (gateway, answer) = self.gateways.query(path, target, call).await?;
        Ok((gateway, self.reject_stale(path, gateway, answer)?))
    }

    pub(crate) async fn lstat_path(&self, path: &RemotePath) -> Result<Attr> {
        for _ in 0..=self.gateways.members.len() {
            let unseen = self.recent.unseen(path);
            let (gateway, attr) =
                self.query_with_gateway(path, |remote| remote.lstat(path)).await?;
            if let Some(change) = unseen.filter(|change| change.gateway == gateway) {
                self.recent.note_seen(path, change, Version::of(&attr));
            }
            if !self.is_current(path, gateway, &attr) || self.may_be_stale(path, gateway) {
                return Err(Errno::EHOSTDOWN);
            }
            let Some(open_path) = self.open_paths.get(path) else { return Ok(attr) };
            // If the primary is left out, the gateway whose answer is returned becomes the primary.
            let writing = open_path.has_writers();
            if open_path.claim_primary(gateway, |primary| self.must_stay(primary, writing))
                == gateway
            {
                open_path.note_shown(&attr);
                return Ok(attr);
            }
            // The path was opened at another gateway meanwhile.
        }
        Err(Errno::EHOSTDOWN)
    }

    /// Makes a change of these paths, each of the kind beside it.
    pub(crate) async fn change<'a>(
        &'a self,
        target: Target,
        paths: &[(&RemotePath, ChangeKind)],
        call: impl FnOnce(&'a dyn Remote) -> RemoteFuture<'a, ()>,
    ) -> Result<()> {
        let first = paths.first().map(|(path, _)| *path).ok_or(Errno::EINVAL)?;
        let member = self.gateways.next(first, target, GatewaySet::default()).await;
        let member = member.ok_or(Errno::EHOSTDOWN)?;
        let guards: Vec<_> = paths
            .iter()
            .map(|(path, kind)| match kind {
                ChangeKind::Content => self.begin_change(path, member.index, ChangeKind::Content),
                _ => self.begin_change(path, member.index, ChangeKind::InDoubt),
            })
            .collect();
        let call = call(&*member.remote);
        let answer = self.gateways.call_unless_lost(member, Weight::Small, call).await;
        for (guard, (_, kind)) in guards.into_iter().zip(paths) {
            guard.finish(*kind, &answer);
        }
        answer
    }

    /// Makes a change of an extended attribute of `path`, which may be its access list.
    pub(crate) async fn change_xattr<'a>(
        &'a self,
        path: &RemotePath,
        call: impl FnOnce(&'a dyn Remote) -> RemoteFuture<'a, ()>,
    ) -> Result<()> {
        if let Some(open_path) = self.open_paths.get(path) {
            open_path.note_change();
        }
        self.change_one(path, ChangeKind::Content, call).await
    }

    /// Makes a change of one path.
    pub(crate) async fn change_one<'a>(
        &'a self,
        path: &RemotePath,
        kind: ChangeKind,
        call: impl FnOnce(&'a dyn Remote) -> RemoteFuture<'a, ()>,
    ) -> Result<()> {
        self.change(self.change_target(path), &[(path, kind)], call).await
    }
}

/// The first target, unless it is any gateway.
pub(crate) fn first_specific(first: Target, second: Target) -> Target {
    if first == Target::Any { second } else { first }
}
