//! Open directories.
//!
//! A listing of which nothing was given out yet begins anew at another gateway when its own is
//! lost. Later its loss is told: which names were given out only the caller knows.
//!
//! A gateway may list a directory as it was before a change that was made here through another one,
//! which is left out by now. Names that were removed are not given out then, and a listing that
//! lacks a name which was made is not complete: it ends with `EHOSTDOWN`, until the gateway shows
//! the change or the other one is back.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{Dh, DirEntry, Errno, Name, RemotePath, Result};

use crate::gateways::{Set, Target, is_loss};
use crate::member::{Member, Weight};
use crate::recent::Made;
use crate::replicas::Replicas;

/// A handle at a gateway; closed there when this is dropped.
struct Handle {
    member: Arc<Member>,
    dh: Dh,
    /// Names that were made through another gateway, and were not listed so far.
    awaited: Mutex<HashSet<Name>>,
}

impl Handle {
    fn awaited(&self) -> MutexGuard<'_, HashSet<Name>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.member.remote.closedir(self.dh);
    }
}

/// An open directory.
pub(crate) struct Listing {
    path: RemotePath,
    handle: Mutex<Arc<Handle>>,
    /// Something was given out.
    begun: AtomicBool,
}

impl Listing {
    fn lock(&self) -> MutexGuard<'_, Arc<Handle>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self) -> Arc<Handle> {
        self.lock().clone()
    }

    fn has_begun(&self) -> bool {
        self.begun.load(Ordering::SeqCst)
    }
}

impl Replicas {
    pub(crate) async fn open_dir(&self, path: &RemotePath) -> Result<Dh> {
        let handle = self.open_dir_at(path, Set::default()).await?;
        let handle = Mutex::new(Arc::new(handle));
        let listing = Listing { path: path.clone(), handle, begun: AtomicBool::new(false) };
        Ok(Dh(self.listings.add(listing)))
    }

    async fn open_dir_at(&self, path: &RemotePath, mut tried: Set) -> Result<Handle> {
        let lister = self.recent.lister(path).map(Target::Rather);
        let target = lister.unwrap_or_else(|| self.target_of_look(path));
        let mut failed = Errno::EHOSTDOWN;
        while let Some(member) = self.gateways.next(path, target, tried).await {
            tried = tried.with(member.index);
            let made = self.recent.made_in(path, member.index);
            let call = member.remote.opendir(path);
            match self.gateways.ask_while_usable(member, Weight::Small, call).await {
                Err(errno) if is_loss(errno) => failed = errno,
                answer => {
                    let handle = |dh, awaited| {
                        let awaited = Mutex::new(awaited);
                        Handle { member: member.clone(), dh, awaited }
                    };
                    let handle = answer.map(|dh| match made {
                        Made::Names(names) => Some(handle(dh, names)),
                        Made::Any => {
                            // Closes it.
                            drop(handle(dh, HashSet::new()));
                            None
                        }
                    });
                    let handle = self.believed(path, member.index, handle)?;
                    return handle.ok_or(Errno::EHOSTDOWN);
                }
            }
        }
        Err(failed)
    }

    pub(crate) async fn next_entries(&self, dh: Dh) -> Result<Option<Vec<DirEntry>>> {
        let listing = self.listings.get(dh.0)?;
        let mut tried = Set::default();
        loop {
            let handle = listing.handle();
            let (member, call) = (&*handle.member, handle.member.remote.readdir(handle.dh));
            let answer = match listing.has_begun() {
                false => self.gateways.ask_while_usable(member, Weight::Small, call).await,
                true => self.gateways.ask_unless_lost(member, Weight::Small, call).await,
            };
            match answer {
                Err(errno) if is_loss(errno) && !listing.has_begun() => {
                    tried = tried.with(member.index);
                    let again = self.open_dir_at(&listing.path, tried).await;
                    *listing.lock() = Arc::new(again.map_err(|_| errno)?);
                }
                Err(errno) => return Err(errno),
                Ok(None) => {
                    listing.begun.store(true, Ordering::SeqCst);
                    let lacks = |name: &Name| self.has_made(&listing.path.join(name), member.index);
                    let is_whole = !handle.awaited().iter().any(lacks);
                    return if is_whole { Ok(None) } else { Err(Errno::EHOSTDOWN) };
                }
                Ok(Some(mut entries)) => {
                    listing.begun.store(true, Ordering::SeqCst);
                    self.check(&listing.path, &handle, &mut entries);
                    return Ok(Some(entries));
                }
            }
        }
    }

    /// Whether `path` was made through another gateway than this, and is there still.
    fn has_made(&self, path: &RemotePath, gateway: usize) -> bool {
        let changed = self.recent.of(path).filter(|changed| changed.there == Some(true));
        changed.and_then(|changed| changed.namer).is_some_and(|namer| namer != gateway)
    }

    /// Takes away names that were removed through another gateway, and attributes that another one
    /// is to tell: this one may show older ones than were shown, or newer ones than the content of
    /// the open file.
    fn check(&self, directory: &RemotePath, handle: &Handle, entries: &mut Vec<DirEntry>) {
        if self.names.is_empty() && self.recent.is_empty() {
            return;
        }
        let gateway = handle.member.index;
        entries.retain(|entry| {
            let changed = self.recent.of(&directory.join(&entry.name));
            let changed = changed.filter(|changed| changed.gateway != gateway);
            changed.is_none_or(|changed| changed.there != Some(false))
        });
        {
            let mut awaited = handle.awaited();
            for entry in entries.iter() {
                awaited.remove(&entry.name);
            }
        }
        for entry in entries {
            let Some(attr) = &entry.attr else { continue };
            let path = directory.join(&entry.name);
            let named = self.names.get(&path);
            let home = named.as_ref().and_then(|named| named.home());
            let teller = home.or_else(|| {
                let changed = self.recent.of(&path)?.gateway;
                Some(changed).filter(|gateway| self.gateways.members[*gateway].is_usable())
            });
            let is_current =
                self.is_current(&path, gateway, attr) && !self.is_doubtful(&path, gateway);
            if !is_current || teller.is_some_and(|teller| teller != gateway) {
                entry.attr = None;
            } else if let Some(named) = named {
                named.shown(attr);
            }
        }
    }

    pub(crate) fn close_dir(&self, dh: Dh) {
        self.listings.remove(dh.0);
    }
}
