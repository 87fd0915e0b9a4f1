//! All open files of one [`Steady`](crate::Steady), by handle and by path.
//!
//! Bounded by the remote below, which gives only so many handles.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use base::{AttrChange, Errno, Fh, OpenFlags, Opened, Remote, RemotePath, Result};

use super::{Body, Handle, Slot};
use crate::Core;
use crate::change::Ticket;
use crate::expect::Expect;
use crate::log::Change;

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

/// What was known of an open file when its path was about to be opened once more.
pub(crate) struct Before {
    body: Arc<Body>,
    expect: Expect,
    /// Number of the next change at that time.
    next: u64,
    /// The cut that the open brings with it.
    cut: Option<Ticket>,
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

    /// The file that is open by this path.
    pub(crate) fn body(&self, path: &RemotePath) -> Option<Arc<Body>> {
        self.lock().bodies.get(path)?.upgrade()
    }

    pub(crate) fn bodies(&self) -> Vec<Arc<Body>> {
        self.lock().bodies.values().filter_map(Weak::upgrade).collect()
    }

    /// To be called before `path` is opened.
    pub(crate) async fn about_to_open(
        &self,
        core: &Arc<Core>,
        path: &RemotePath,
        flags: OpenFlags,
    ) -> Result<Option<Before>> {
        let Some(body) = self.body(path) else { return Ok(None) };
        let empty = AttrChange { size: Some(0), ..AttrChange::default() };
        let cut = match flags.truncate {
            true => Some(Ticket::elsewhere(core, &body, Change::SetByPath(empty)).await?),
            false => None,
        };
        let next = cut.as_ref().map_or_else(|| body.lock().log.next(), Ticket::number);
        let expect = body.expect();
        Ok(Some(Before { body, expect, next, cut }))
    }

    /// An open has failed, with an error that says that nothing was cut.
    pub(crate) fn not_opened(before: Option<Before>) {
        if let Some(cut) = before.and_then(|before| before.cut) {
            cut.did_not_happen();
        }
    }

    /// Takes over what was opened below.
    pub(crate) fn opened(
        &self,
        core: &Arc<Core>,
        path: &RemotePath,
        flags: OpenFlags,
        opened: &Opened,
        before: Option<Before>,
    ) -> Fh {
        if flags.access.writes() {
            // Known, most likely, when the first write is acknowledged.
            let _ = core.run.now(core);
        }
        let body = self.body_of(core, path, opened, before);
        let mut table = self.lock();
        let number = table.next;
        table.next += 1;
        let handle = Arc::new(Handle::new(number, body, flags, self.inner.clone()));
        {
            let mut state = handle.body.lock();
            let epoch = state.epoch;
            let weak = Arc::downgrade(&handle);
            let slot = Slot { handle: weak, fh: opened.fh, epoch, refused: None };
            state.slots.insert(number, slot);
        }
        table.handles.insert(number, handle);
        Fh(number)
    }

    /// The body of a file that was opened: one that is there, if it is that file.
    fn body_of(
        &self,
        core: &Arc<Core>,
        path: &RemotePath,
        opened: &Opened,
        before: Option<Before>,
    ) -> Arc<Body> {
        if let Some(Before { body, expect, next, cut }) = before {
            let may_be = expect.or(body.expect());
            let was_cut = cut.is_some();
            if let Some(cut) = cut {
                cut.happened(core);
            }
            let mut state = body.lock();
            let same_name = state.name.as_ref() == Some(path);
            if same_name && (was_cut || may_be.explains(&opened.attr)) {
                let changes = state.log.next() - next;
                if state.log.is_idle() && changes == u64::from(was_cut) {
                    state.seen(&opened.attr);
                }
                drop(state);
                return body;
            }
            if same_name {
                // Somebody has put another file in its place.
                state.name = None;
            }
        }
        let body = Body::new(path.clone(), &opened.attr, self.core.clone());
        let mut table = self.lock();
        if table.bodies.len() >= table.sweep_at {
            table.bodies.retain(|_, body| body.strong_count() > 0);
            table.sweep_at = (2 * table.bodies.len()).max(FIRST_SWEEP);
        }
        table.bodies.insert(path.clone(), Arc::downgrade(&body));
        body
    }

    pub(crate) fn close(&self, fh: Fh) {
        let handle = self.lock().handles.remove(&fh.0);
        // Dropped, and so closed, without the lock.
        drop(handle);
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
        let bodies: Vec<_> =
            self.lock().bodies.iter().map(|(path, body)| (path.clone(), body.clone())).collect();
        for (path, body) in bodies {
            if let (Some(moved), Some(body)) = (path.moved(from, to), body.upgrade()) {
                body.lock().perhaps = Some(moved);
            }
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
                        state.name = Some(path.clone());
                        state.perhaps = None;
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
