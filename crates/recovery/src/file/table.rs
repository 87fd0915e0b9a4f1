//! All open files of one [`Steady`](crate::Steady), by handle and by path.
//!
//! Bounded by the remote below, which gives only so many handles.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use base::{AttrChange, Create, Errno, Fh, OpenFlags, Opened, Remote, RemotePath, Result};

use super::same::Known;
use super::{Body, Handle, Slot};
use crate::Core;
use crate::change::Ticket;
use crate::expect::Expect;
use crate::log::Change;
use crate::recover::Fresh;

/// Paths before left-overs are looked for the first time.
const FIRST_SWEEP: usize = 64;

struct Table {
    next: u64,
    handles: HashMap<u64, Arc<Handle>>,
    /// A body that is gone is a left-over.
    bodies: HashMap<RemotePath, Weak<Body>>,
    /// Left-overs are swept when there are so many paths.
    sweep_at: usize,
}

/// See the [module](self).
pub(crate) struct Files {
    table: Mutex<Table>,
    inner: Arc<dyn Remote>,
    core: Weak<Core>,
}

/// What was known of a file when its path was about to be opened.
pub(crate) struct Before {
    body: Arc<Body>,
    /// `None` when none of its opens had been answered.
    expect: Option<Expect>,
    /// Number of the next change at that time, if nothing was under way.
    next: Option<u64>,
    /// The cut that the open brings with it.
    cut: Option<Ticket>,
}

impl Before {
    /// Whether the file was removed or replaced here.
    pub(crate) fn has_no_name(&self) -> bool {
        self.body.has_no_name()
    }
}

impl Table {
    fn insert(&mut self, path: &RemotePath, body: &Arc<Body>) {
        if self.bodies.len() >= self.sweep_at {
            self.bodies.retain(|_, body| body.strong_count() > 0);
            self.sweep_at = (2 * self.bodies.len()).max(FIRST_SWEEP);
        }
        self.bodies.insert(path.clone(), Arc::downgrade(body));
    }
}

impl Files {
    pub(crate) fn new(inner: Arc<dyn Remote>, core: Weak<Core>) -> Files {
        let table = Table {
            next: 1,
            handles: HashMap::new(),
            bodies: HashMap::new(),
            sweep_at: FIRST_SWEEP,
        };
        Files { table: Mutex::new(table), inner, core }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn handle(&self, fh: Fh) -> Result<Arc<Handle>> {
        self.lock().handles.get(&fh.0).cloned().ok_or(Errno::EBADF)
    }

    /// The file that is open by this path, of which something is known.
    pub(crate) fn body(&self, path: &RemotePath) -> Option<Arc<Body>> {
        let body = self.lock().bodies.get(path)?.upgrade();
        body.filter(|body| body.lock().is_seen)
    }

    pub(crate) fn bodies(&self) -> Vec<Arc<Body>> {
        self.lock().bodies.values().filter_map(Weak::upgrade).collect()
    }

    /// To be called before `path` is opened. From now on the file is in the table, so that another
    /// open of it, a change by path, and a rename meet the same body.
    pub(crate) async fn about_to_open(
        &self,
        core: &Arc<Core>,
        path: &RemotePath,
        flags: OpenFlags,
    ) -> Result<Before> {
        let body = self.body_or_new(path);
        let empty = AttrChange { size: Some(0), ..AttrChange::default() };
        // Also of the first open: another one may begin before this is answered.
        let cut = match flags.truncate {
            true => Some(Ticket::elsewhere(core, &body, Change::SetByPath(empty)).await?),
            false => None,
        };
        let (next, is_seen) = {
            let state = body.lock();
            (state.quiet_next(u64::from(cut.is_some())), state.is_seen)
        };
        let expect = is_seen.then(|| body.expect());
        Ok(Before { body, expect, next, cut })
    }

    /// The body at `path`, made if there is none.
    pub(crate) fn body_or_new(&self, path: &RemotePath) -> Arc<Body> {
        let mut table = self.lock();
        match table.bodies.get(path).and_then(Weak::upgrade) {
            Some(body) => body,
            None => {
                let body = Body::new(path.clone(), self.core.clone());
                table.insert(path, &body);
                body
            }
        }
    }

    /// An open has failed, with an error that says that nothing was cut.
    pub(crate) fn not_opened(before: Before) {
        if let Some(cut) = before.cut {
            cut.did_not_happen();
        }
    }

    /// Takes over what was opened below.
    pub(crate) async fn opened(
        &self,
        core: &Arc<Core>,
        path: &RemotePath,
        flags: OpenFlags,
        opened: &Opened,
        before: Before,
    ) -> Fh {
        // Closed if the caller gives up.
        let fresh = Fresh::new(&*core.inner, opened.fh);
        if flags.access.writes() {
            // Known, most likely, when the first write is acknowledged.
            let _ = core.run.now(core);
        }
        let body = self.body_of(core, path, flags, opened, before).await;
        let mut table = self.lock();
        let number = table.next;
        table.next += 1;
        let handle = Arc::new(Handle::new(number, body, flags, self.inner.clone()));
        {
            let mut state = handle.body.lock();
            let epoch = state.epoch;
            let weak = Arc::downgrade(&handle);
            let slot = Slot { handle: weak, fh: fresh.take(), epoch, closed: false, refused: None };
            state.slots.insert(number, slot);
        }
        table.handles.insert(number, handle);
        Fh(number)
    }

    /// The body of a file that was opened: one that is there, if it is that file.
    async fn body_of(
        &self,
        core: &Arc<Core>,
        path: &RemotePath,
        flags: OpenFlags,
        opened: &Opened,
        before: Before,
    ) -> Arc<Body> {
        let Before { body, expect, next, cut } = before;
        let was_cut = cut.is_some();
        if let Some(cut) = cut {
            cut.happened(core);
        }
        let name = body.lock().name.clone();
        let same_name = name.as_ref() == Some(path);
        let moved = name.filter(|_| !same_name);
        // What was renamed meanwhile was opened before that: a later open finds nothing, unless it
        // makes something new.
        let followed = moved.is_some() && (flags.create == Create::Never || body.lock().is_seen);
        let known = Known { expect, next, was_cut };
        if (same_name || followed) && body.is_file(core, opened, Some(known)).await {
            return body;
        }
        if let Some(other) = self.body(path).filter(|other| !Arc::ptr_eq(other, &body))
            && other.is_file(core, opened, None).await
        {
            return other;
        }
        let mut table = self.lock();
        let new = Body::new(path.clone(), self.core.clone());
        new.lock().first_seen(&opened.attr, true);
        new.lock().perhaps = moved;
        let replaced = table.bodies.get(path).and_then(Weak::upgrade);
        table.insert(path, &new);
        drop(table);
        if let Some(replaced) = replaced.filter(|replaced| !Arc::ptr_eq(replaced, &new)) {
            // Another file has been put in its place.
            replaced.is_removed();
        }
        new
    }

    pub(crate) fn close(&self, fh: Fh) {
        // Dropped, and so closed, without the lock.
        drop(self.take(fh));
    }

    /// Takes a handle out of the table; it is closed below when its last user is gone.
    pub(crate) fn take(&self, fh: Fh) -> Result<Arc<Handle>> {
        self.lock().handles.remove(&fh.0).ok_or(Errno::EBADF)
    }

    /// The path leads to no file any more, or to another one.
    pub(crate) fn removed(&self, path: &RemotePath) {
        let body = self.lock().bodies.remove(path);
        if let Some(body) = body.and_then(|body| body.upgrade()) {
            body.is_removed();
        }
    }

    /// The path, and all below it, may be called otherwise now.
    pub(crate) fn perhaps_renamed(&self, from: &RemotePath, to: &RemotePath) {
        let moved: Vec<_> = {
            let table = self.lock();
            let moved = table
                .bodies
                .iter()
                .filter_map(|(path, body)| Some((path.moved(from, to)?, body.upgrade()?)));
            moved.collect()
        };
        for (perhaps, body) in moved {
            body.lock().may_be_called(perhaps);
        }
    }

    /// A rename that was in doubt has not happened.
    pub(crate) fn not_renamed(&self, from: &RemotePath, to: &RemotePath) {
        for body in self.bodies() {
            let mut state = body.lock();
            let name = state.name.as_ref().and_then(|name| name.moved(from, to));
            if name.is_some() && state.perhaps == name {
                state.perhaps = None;
            }
        }
    }

    /// The path, and all below it, is called otherwise now.
    pub(crate) fn renamed(&self, from: &RemotePath, to: &RemotePath) {
        let mut replaced = Vec::new();
        {
            let mut table = self.lock();
            if table.bodies.is_empty() || from == to {
                return;
            }
            let touched: Vec<_> = table
                .bodies
                .extract_if(|path, _| {
                    path.moved(from, to).is_some() || path.moved(to, from).is_some()
                })
                .collect();
            for (path, weak) in touched {
                let Some(body) = weak.upgrade() else { continue };
                match path.moved(from, to) {
                    Some(path) => {
                        let mut state = body.lock();
                        state.is_called(path.clone());
                        drop(state);
                        table.bodies.insert(path, weak);
                        // Dropped without the table's lock, as it may be the last share.
                        replaced.push((false, body));
                    }
                    None => replaced.push((true, body)),
                }
            }
        }
        replaced.iter().filter(|(gone, _)| *gone).for_each(|(_, body)| body.is_removed());
    }
}
