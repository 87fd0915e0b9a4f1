//! Opening files, and operations on their handles.
//!
//! A file that is only read, and was not changed here within the lag, is reopened through another
//! gateway when its primary is left out, if it shows the same size and mtime there. Any other loss
//! is returned as an error.

use std::sync::Arc;

use base::{
    Access, Create, Errno, Fh, FileKind, OnDrop, OpenFlags, Opened, Remote, RemotePath, Result,
};

use crate::files::{File, Handle};
use crate::gateways::{GatewaySet, RemoteFuture};
use crate::member::{Health, Weight};
use crate::open_paths::Version;
use crate::recent_changes::ChangeKind;
use crate::replicas::Replicas;

impl Replicas {
    pub(crate) async fn open_file(&self, path: &RemotePath, flags: OpenFlags) -> Result<Opened> {
        let makes = flags.create != Create::Never;
        let changes = makes || flags.truncate;
        let writes = flags.access.writes() || changes;
        let target = if writes { self.change_target(path) } else { self.query_target(path) };
        let mut open_path = self.open_paths.hold(path);
        let (mut tried, mut failed) = (GatewaySet::default(), Errno::EHOSTDOWN);
        while let Some(member) = self.gateways.next(path, target, tried).await {
            // A concurrent open of the same path uses the same gateway.
            let primary = open_path.claim_primary(member.index, |primary| {
                self.must_stay(primary, open_path.has_writers())
            });
            if tried.contains(primary) {
                return Err(failed);
            }
            tried = tried.with(primary);
            let member = &self.gateways.members[primary];
            if writes {
                open_path.register_writer();
            }
            // Has no effect if its answer is used; also if this future is dropped.
            let claimed = open_path.shared();
            let claim = OnDrop(|| claimed.reject_primary(primary));
            let call = member.remote.open(path, flags);
            if flags.truncate {
                open_path.begin_change_by_name();
            }
            // The attributes in the answer to a truncation do not count as those after it.
            let settled = open_path.settled();
            let answer = if changes {
                let kind = if makes { ChangeKind::InDoubt } else { ChangeKind::Content };
                let guard = self.begin_change(path, primary, kind);
                let answer = self.gateways.call_unless_lost(member, Weight::Small, call).await;
                guard
                    .finish(if makes { ChangeKind::Created } else { ChangeKind::Content }, &answer);
                answer
            } else {
                self.gateways.call_while_usable(member, Weight::Small, call).await
            };
            if flags.truncate {
                open_path.end_change(&answer);
            }
            match answer {
                Err(errno) if errno.is_loss() && !changes => failed = errno,
                answer => {
                    // A handle whose answer is rejected is closed.
                    let opened = |Opened { fh, attr }| (Handle::new(member, fh), attr);
                    let opened = match answer {
                        // The name may be absent, but it is its directory that was not found.
                        Err(Errno::ENOENT) if makes && self.is_moved(path) => Err(Errno::EHOSTDOWN),
                        answer => self.reject_stale(path, primary, answer.map(opened)),
                    };
                    let (handle, attr) = opened.and_then(|(handle, attr)| {
                        let stays = |it| self.must_stay(it, open_path.has_writers());
                        let is_used = self.is_current(path, primary, &attr)
                            && open_path.confirm_primary(primary, stays);
                        if is_used { Ok((handle, attr)) } else { Err(Errno::EHOSTDOWN) }
                    })?;
                    drop(claim);
                    // A gateway revalidates a file when it opens it.
                    if self.may_be_stale(path, primary) {
                        self.recent.note_version(path, primary, Version::of(&attr));
                        open_path.clear_change();
                    }
                    open_path.note_shown(&attr);
                    let file = File::new(handle, (&attr, settled), open_path, flags, &self.recent);
                    return Ok(Opened { fh: Fh(self.files.add(file)), attr });
                }
            }
        }
        Err(failed)
    }

    /// Runs a query through the primary, and through another gateway when that is left out. Returns
    /// the handle that has answered too.
    pub(crate) async fn through_primary<T>(
        &self,
        file: &Arc<File>,
        weight: Weight,
        call: impl for<'a> Fn(&'a dyn Remote, Fh) -> RemoteFuture<'a, T>,
    ) -> Result<(Arc<Handle>, T)> {
        let mut tried = GatewaySet::default();
        loop {
            let handle = file.primary();
            let member = &*handle.member;
            let may_move = file.may_move();
            let is_primary = file.is_primary(&handle);
            if !(is_primary && member.is_usable()) && may_move && !tried.contains(member.index) {
                tried = tried.with(member.index);
                if self.move_primary(file, &handle, tried).await {
                    continue;
                }
            }
            let answer = self.call_primary(file, &handle, weight, &call, may_move).await;
            let failed = match answer {
                Err(errno) if errno.is_loss() || errno == Errno::ESTALE => errno,
                answer => return answer.map(|answer| (handle, answer)),
            };
            if tried.contains(member.index) || !file.may_move() {
                return Err(failed);
            }
            tried = tried.with(member.index);
            // A gateway that answers, but not for this handle, may still have the file.
            let not = if failed == Errno::ESTALE { tried.without(member.index) } else { tried };
            if self.move_primary(file, &handle, not).await {
                continue;
            }
            if member.health() != Health::Silent {
                return Err(failed);
            }
            // No other gateway has it, so this one is waited for without a limit.
            let answer = self.call_primary(file, &handle, weight, &call, false).await;
            return answer.map(|answer| (handle.clone(), answer));
        }
    }

    /// Runs a call through one handle; if it `may_move`, the call is given up when the gateway is
    /// left out.
    pub(crate) async fn call_primary<T>(
        &self,
        file: &File,
        handle: &Handle,
        weight: Weight,
        call: impl for<'a> Fn(&'a dyn Remote, Fh) -> RemoteFuture<'a, T>,
        may_move: bool,
    ) -> Result<T> {
        let member = &*handle.member;
        let reached = match file.is_primary(handle) {
            true => self.gateways.ensure_up(member).await,
            // Another gateway's answer was returned while this one was left out.
            false => Err(Errno::ESTALE),
        };
        let answer = match reached {
            Err(errno) => Err(errno),
            Ok(()) => {
                let call = call(&*member.remote, handle.fh());
                match may_move {
                    true => self.gateways.call_while_usable(member, weight, call).await,
                    false => self.gateways.call_unless_lost(member, weight, call).await,
                }
            }
        };
        let is_dead = answer.as_ref().is_err_and(|errno| *errno == Errno::ESTALE);
        if is_dead || member.health() == Health::Lost {
            file.handle_lost();
        }
        answer
    }

    /// Replaces the unusable handle `old` by another one as the primary. Returns whether there is
    /// one.
    async fn move_primary(
        &self,
        file: &Arc<File>,
        old: &Arc<Handle>,
        mut tried: GatewaySet,
    ) -> bool {
        let _alone = file.reopen_lock.lock().await;
        if !Arc::ptr_eq(&file.primary(), old) {
            return true;
        }
        if let Some(stripe) =
            file.any_stripe().filter(|stripe| !tried.contains(stripe.member.index))
        {
            return file.move_to(stripe);
        }
        let Some(name) = file.open_path.name() else { return false };
        while file.may_move() {
            let primary = file.open_path.primary().filter(|primary| !tried.contains(*primary));
            let primary = primary.map(|primary| &self.gateways.members[primary]);
            let primary = primary.filter(|primary| primary.is_usable());
            let Some(member) = primary.or_else(|| self.gateways.choose(&name, tried)) else {
                break;
            };
            tried = tried.with(member.index);
            let call = member.remote.open(&name, OpenFlags::existing(Access::Read));
            let opened = self.gateways.call_while_usable(member, Weight::Small, call).await;
            let Ok(Opened { fh, attr }) = opened else { continue };
            let handle = Arc::new(Handle::new(member, fh));
            if attr.kind == FileKind::Regular && Version::of(&attr) == file.version() {
                tracing::debug!(gateway = ?member.name, "moving an open file to this gateway");
                return file.move_to(handle);
            }
        }
        false
    }

    /// Runs a call through the primary, and no other gateway: each has locks of its own, unless
    /// their file system shares them, and only this one can sync what was written through it.
    pub(crate) async fn through_primary_only<T>(
        &self,
        file: &File,
        weight: Weight,
        call: impl for<'a> Fn(&'a dyn Remote, Fh) -> RemoteFuture<'a, T>,
    ) -> Result<T> {
        self.call_primary(file, &file.primary(), weight, call, false).await
    }

    /// Makes a change through the primary, and no other gateway.
    pub(crate) async fn change_file<T>(
        &self,
        file: &File,
        weight: Weight,
        call: impl for<'a> Fn(&'a dyn Remote, Fh) -> RemoteFuture<'a, T>,
    ) -> Result<T> {
        file.begin_change();
        let answer = match self.gateways.ensure_up(&file.primary().member).await {
            Ok(()) => self.through_primary_only(file, weight, call).await,
            // The handle is lost with its gateway, and nothing was sent.
            Err(_) => {
                file.handle_lost();
                Err(Errno::ESTALE)
            }
        };
        file.open_path.end_change(&answer);
        answer
    }
}
