//! What changes an open file: sent at once, and kept until it is answered.

use std::future::poll_fn;
use std::sync::Arc;

use base::{Errno, Fh, Remote, Result};

use crate::Core;
use crate::call::{Asked, Trouble};
use crate::file::{Body, Handle, Phase, State, Usable};
use crate::link::is_loss;
use crate::log::Change;
use crate::recover;
use crate::turn::Turn;
use crate::unsynced::Digest;

/// The place of a change in the log of its file; taken out when dropped.
pub(crate) struct Ticket {
    body: Arc<Body>,
    number: u64,
    over: bool,
}

impl Ticket {
    /// Takes a place for `change` through `handle`, if it is its turn and no flush has closed the
    /// handle. With the handle below, if it may be sent now.
    fn begin(
        handle: &Arc<Handle>,
        change: &Change,
        turn: Option<&Turn<'_>>,
    ) -> Result<Option<(Ticket, Option<Usable>)>> {
        let mut state = handle.body.lock();
        if let Some(errno) = state.kept_error.take() {
            return Err(errno);
        }
        let usable = crate::file::usable(&state, handle.number)?;
        let is_free = turn.is_some() || state.is_free_for(change.end());
        if !is_free || state.is_closed(handle.number) {
            return Ok(None);
        }
        let number = state.log.begin(change.clone(), Some(handle.clone()), usable.is_some());
        Ok(Some((Ticket { body: handle.body.clone(), number, over: false }, usable)))
    }

    /// Takes a place for a change that somebody else sends, and sends again, when it is its turn.
    pub(crate) async fn elsewhere(
        core: &Arc<Core>,
        body: &Arc<Body>,
        change: Change,
    ) -> Result<Ticket> {
        let take = |state: &mut State| {
            let number = state.log.begin(change.clone(), None, true);
            Ticket { body: body.clone(), number, over: false }
        };
        {
            let mut state = body.lock();
            if state.is_free_elsewhere(change.end()) {
                return Ok(take(&mut state));
            }
        }
        let _turn = Box::pin(core.turn(body, change.end(), None)).await?;
        Ok(take(&mut body.lock()))
    }

    /// The server has acknowledged it. `false` when its answer does not count any more, since it is
    /// being sent again.
    fn acknowledged(&mut self, core: &Arc<Core>, digest: Option<Digest>) -> bool {
        self.over = self.body.acknowledged(core, self.number, digest);
        self.over
    }

    /// The same, of what is only sent elsewhere.
    pub(crate) fn happened(mut self, core: &Arc<Core>) {
        self.acknowledged(core, None);
    }

    /// `change` has happened in the place of what was expected.
    pub(crate) fn happened_as(self, core: &Arc<Core>, change: &Change) {
        let (body, number) = (self.body.clone(), self.number);
        self.did_not_happen();
        body.happened_as(core, number, change);
    }

    /// Nothing of it has happened.
    pub(crate) fn did_not_happen(mut self) {
        let left = self.body.lock().log.end(self.number, false);
        drop(left);
        self.over = true;
    }

    /// Whether an error that its caller got is the answer.
    fn is_refused(&self) -> bool {
        self.body.lock().log.is_sent(self.number)
    }

    fn lost(&self, may_have_arrived: bool) {
        self.body.lock().log.lost(self.number, may_have_arrived);
    }

    /// How it has ended, if it was sent again.
    fn answered(&mut self) -> Option<Result<()>> {
        let mut state = self.body.lock();
        let result = state.log.answered(self.number)?;
        let left = state.log.end(self.number, result.is_ok());
        drop(state);
        drop(left);
        self.over = true;
        Some(result)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.over {
            self.body.take_out(self.number);
        }
    }
}

/// Sends a change through a handle below.
pub(crate) fn send<'a>(inner: &'a dyn Remote, fh: Fh, change: &Change) -> Asked<'a, ()> {
    match change {
        Change::Write { offset, data } => inner.write(fh, *offset, data.clone()),
        Change::Append { data, told } => inner.write(fh, 0, data.slice(*told..)),
        Change::Set(change) => inner.fsetattr(fh, *change),
        Change::SetByPath(_) | Change::Copy(_) => Box::pin(async { Err(Errno::EOPNOTSUPP) }),
    }
}

impl Core {
    /// Changes a file through one of our handles.
    pub(crate) async fn change(self: &Arc<Core>, fh: Fh, change: Change) -> Result<()> {
        let handle = self.files.handle(fh)?;
        let mut turn = None;
        let (mut ticket, usable) = match Ticket::begin(&handle, &change, None)? {
            Some(begun) => begun,
            // Again if a flush closes the handle at this very moment.
            None => loop {
                let mine = Box::pin(self.turn(&handle.body, change.end(), Some(&handle))).await?;
                if let Some(begun) = Ticket::begin(&handle, &change, Some(&mine))? {
                    turn = Some(mine);
                    break begun;
                }
            },
        };
        let mut lost = None;
        if let Some(Usable { fh, epoch }) = usable {
            let mut digest = None;
            let mut is_digested = !self.run.may_be_told();
            let mut call = send(&*self.inner, fh, &change);
            let answer = poll_fn(|context| {
                let polled = call.as_mut().poll(context);
                // It is on its way.
                drop(turn.take());
                if !is_digested {
                    // Once it is on its way, and its content still in the processor's caches.
                    is_digested = true;
                    digest = change.digest();
                }
                polled
            })
            .await;
            match answer {
                Ok(()) if ticket.acknowledged(self, digest) => return Ok(()),
                Ok(()) => {}
                Err(errno) if is_loss(errno) => {
                    ticket.lost(true);
                    handle.body.lost(epoch);
                    lost = Some(errno);
                }
                Err(errno) if handle.is_stale(fh, errno) => {
                    ticket.lost(false);
                    handle.body.lost(epoch);
                    lost = Some(Errno::ESTALE);
                }
                Err(errno) if ticket.is_refused() => return Err(errno),
                Err(_) => {}
            }
        }
        drop(turn);
        Box::pin(self.sent_again(&handle, ticket, lost)).await
    }

    /// Waits until the file is open again, and the change was sent in its turn.
    async fn sent_again(
        self: &Arc<Core>,
        handle: &Arc<Handle>,
        mut ticket: Ticket,
        mut lost: Option<Errno>,
    ) -> Result<()> {
        let mut trouble = Trouble::new(self);
        loop {
            trouble.after(lost.take()).await?;
            let attempt = trouble.within(recover::attempt(self, &handle.body)).await;
            if let Some(result) = ticket.answered() {
                return result;
            }
            match attempt {
                // It is open, and the answer to this is missing all the same: it was not opened like
                // this, closed by a flush, or lost again already.
                Ok(()) => {
                    handle.usable()?;
                    let open = {
                        let state = handle.body.lock();
                        (state.phase == Phase::Open).then_some(state.epoch)
                    };
                    if let Some(epoch) = open {
                        handle.body.lost(epoch);
                        lost = Some(Errno::ESTALE);
                    }
                }
                Err(errno) if trouble.goes_on_after(errno) => lost = Some(errno),
                Err(errno) => return Err(errno),
            }
            if handle.body.lock().phase == Phase::Dead {
                return Err(Errno::ESTALE);
            }
        }
    }
}
