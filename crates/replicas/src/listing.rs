//! Open directories.
//!
//! A listing of which no entry was returned yet starts again at another gateway when its own is
//! lost. Later the loss is an error: only the caller knows which names were returned.
//!
//! A gateway may list a directory in the state before a recent change through another gateway,
//! which is left out now. Removed names are not returned then, and a listing that lacks a created
//! name is incomplete: it ends with `EHOSTDOWN`, until the gateway shows the change or the other
//! one is back.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Dh, DirEntry, Errno, Mutex, Name, OwnedDh, RemotePath, Result};

use crate::gateways::{GatewaySet, Target};
use crate::member::{Member, Weight};
use crate::replicas::Replicas;

/// A handle at a gateway; closed there when this is dropped.
pub(crate) struct Handle {
    member: Arc<Member>,
    lent: OwnedDh,
    /// Names created through another gateway that were not listed so far.
    missing: Mutex<HashSet<Name>>,
}

/// An open directory.
pub(crate) struct Listing {
    path: RemotePath,
    handle: Mutex<Arc<Handle>>,
    /// Entries were returned.
    begun: AtomicBool,
}

impl Listing {
    pub(crate) fn new(path: &RemotePath, handle: Handle) -> Listing {
        let handle = Mutex::new(Arc::new(handle));
        Listing { path: path.clone(), handle, begun: AtomicBool::new(false) }
    }

    fn handle(&self) -> Arc<Handle> {
        self.handle.lock().clone()
    }

    fn has_begun(&self) -> bool {
        self.begun.load(Ordering::SeqCst)
    }
}

impl Replicas {
    pub(crate) async fn open_dir_at(
        &self,
        path: &RemotePath,
        mut tried: GatewaySet,
    ) -> Result<Handle> {
        let list_gateway = self.recent.list_gateway(path).map(Target::Prefer);
        let target = list_gateway.unwrap_or_else(|| self.query_target(path));
        let mut failed = Errno::EHOSTDOWN;
        while let Some(member) = self.gateways.next(path, target, tried).await {
            tried = tried.with(member.index);
            let made = self.recent.created_in(path, member.index);
            let call = member.remote.opendir(path);
            match self.gateways.call_while_usable(member, Weight::Small, call).await {
                Err(errno) if errno.is_loss() => failed = errno,
                answer => {
                    // Closed if the answer is rejected.
                    let is_known = made.is_some();
                    let missing = Mutex::new(made.unwrap_or_default());
                    let handle = answer.map(|dh| {
                        let lent = OwnedDh::new(member.remote.clone(), dh);
                        Handle { member: member.clone(), lent, missing }
                    });
                    let handle = self.reject_stale(path, member.index, handle)?;
                    return if is_known { Ok(handle) } else { Err(Errno::EHOSTDOWN) };
                }
            }
        }
        Err(failed)
    }

    pub(crate) async fn next_entries(&self, dh: Dh) -> Result<Option<Vec<DirEntry>>> {
        let listing = self.listings.get(dh.0)?;
        let mut tried = GatewaySet::default();
        loop {
            let handle = listing.handle();
            let (member, call) = (&*handle.member, handle.member.remote.readdir(handle.lent.dh()));
            let answer = match listing.has_begun() {
                false => self.gateways.call_while_usable(member, Weight::Small, call).await,
                true => self.gateways.call_unless_lost(member, Weight::Small, call).await,
            };
            match answer {
                Err(errno) if errno.is_loss() && !listing.has_begun() => {
                    tried = tried.with(member.index);
                    let again = self.open_dir_at(&listing.path, tried).await;
                    *listing.handle.lock() = Arc::new(again.map_err(|_| errno)?);
                }
                Err(errno) => return Err(errno),
                Ok(None) => {
                    listing.begun.store(true, Ordering::SeqCst);
                    let lacks = |name: &Name| {
                        self.was_created_elsewhere(&listing.path.join(name), member.index)
                    };
                    let is_whole = !handle.missing.lock().iter().any(lacks);
                    return if is_whole { Ok(None) } else { Err(Errno::EHOSTDOWN) };
                }
                Ok(Some(mut entries)) => {
                    listing.begun.store(true, Ordering::SeqCst);
                    self.filter_entries(&listing.path, &handle, &mut entries);
                    return Ok(Some(entries));
                }
            }
        }
    }

    /// Whether `path` was created through another gateway than this, and not removed since.
    fn was_created_elsewhere(&self, path: &RemotePath, gateway: usize) -> bool {
        let changed = self.recent.get(path).filter(|changed| changed.exists == Some(true));
        changed
            .and_then(|changed| changed.name_gateway)
            .is_some_and(|name_gateway| name_gateway != gateway)
    }

    /// Removes names that were removed through another gateway, and attributes that another gateway
    /// has to provide: this gateway may show older ones than were returned before, or newer ones
    /// than the content of the open file.
    fn filter_entries(&self, directory: &RemotePath, handle: &Handle, entries: &mut Vec<DirEntry>) {
        if self.open_paths.is_empty() && self.recent.is_empty() {
            return;
        }
        let gateway = handle.member.index;
        entries.retain(|entry| {
            let changed = self.recent.get(&directory.join(&entry.name));
            let changed = changed.filter(|changed| changed.gateway != gateway);
            changed.is_none_or(|changed| changed.exists != Some(false))
        });
        {
            let mut missing = handle.missing.lock();
            for entry in entries.iter() {
                missing.remove(&entry.name);
            }
        }
        for entry in entries {
            let Some(attr) = &entry.attr else { continue };
            let path = directory.join(&entry.name);
            let open_path = self.open_paths.get(&path);
            let primary = open_path.as_ref().and_then(|open_path| open_path.primary());
            let teller = primary.or_else(|| {
                let changed = self.recent.get(&path)?.gateway;
                Some(changed).filter(|gateway| self.gateways.members[*gateway].is_usable())
            });
            let is_current =
                self.is_current(&path, gateway, attr) && !self.may_be_stale(&path, gateway);
            if !is_current || teller.is_some_and(|teller| teller != gateway) {
                entry.attr = None;
            } else if let Some(open_path) = open_path {
                open_path.note_shown(attr);
            }
        }
    }
}
