//! The sessions that carry content: opened when more is wanted than those that there are carry,
//! left when they bring nothing, closed when nobody needs them.
//!
//! One task looks at what passes the [`Gates`](crate::gates::Gates) while something does. The first
//! session is for metadata; as soon as there is another, content goes over that. How many more
//! there are to be is the [`Tuner`]'s decision.
//!
//! How much may be on its way over all of them is the [`Filling`]'s.
//!
//! A further session that cannot be had is no error for anybody: what there is goes on, and the
//! log says so once for each attempt.

mod filling;
mod tuner;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use crate::gate::{LONG_WAY_BYTES, SHORT_WAY_BYTES, Slots};
use crate::handles::Handles;
use crate::machine;
use crate::pool::{Pool, Unavailable};
use filling::Filling;
use tuner::{Advice, Sample, Tuner};

/// Round trips between two looks.
const LOOK_ROUND_TRIPS: u32 = 3;

/// Least and longest time between two looks.
const LOOK_MIN: Duration = Duration::from_millis(100);
const LOOK_MAX: Duration = Duration::from_millis(600);

/// Looks without anything to see before they stop.
const QUIET_LOOKS: u32 = 20;

/// Sessions that stay when nothing is carried: the first, and one for content.
const KEPT: usize = 2;

/// What a session may carry a second where nothing is known yet; more than ssh does.
const USUAL_RATE: f64 = 250e6;

/// What whoever reads ahead should have on its way beyond the windows, as a factor, so that there
/// is always one to go when room comes.
const AHEAD: f64 = 1.25;

/// What each session may have on its way, for a way of this length.
pub(crate) fn window_for(round_trip: Option<Duration>) -> u64 {
    let product = round_trip.unwrap_or_default().as_secs_f64() * USUAL_RATE;
    (SHORT_WAY_BYTES + product as u64).min(LONG_WAY_BYTES)
}

/// Looks for as long as there is a host.
pub(crate) async fn run(pool: Weak<Pool>, handles: Weak<Handles>, mut wanted: watch::Receiver<()>) {
    let parts = pool.upgrade().map(|it| (it.gates.clone(), it.config.idle_limit, tuner(&it)));
    let Some((gates, idle_limit, tuner)) = parts else { return };
    let (read, write, looked) = (Filling::default(), Filling::default(), Instant::now());
    let mut growth = Growth { pool, handles, tuner, read, write, opening: None, looked };
    let mut quiet_looks = QUIET_LOOKS;
    loop {
        let next_look = growth.pause();
        let pause = async {
            if quiet_looks < QUIET_LOOKS {
                tokio::time::sleep(next_look).await;
            } else {
                let passes = gates.something_passes();
                let _ = tokio::time::timeout(idle_limit, passes).await;
            }
        };
        // Sessions that have come are not to wait for a look, which over a long way is rare.
        let come = opened(&mut growth.opening);
        tokio::select! {
            () = pause => {}
            come = come => match growth.join(come) {
                Some(()) => continue,
                None => return,
            },
            _ = wanted.changed() => return,
        }
        let Some(carried) = growth.look() else { return };
        quiet_looks = if carried { 0 } else { quiet_looks.saturating_add(1) };
    }
}

/// Which of the sessions that are being opened have come, when all have that will.
async fn opened(opening: &mut Option<oneshot::Receiver<Slots>>) -> Slots {
    match opening {
        None => std::future::pending().await,
        Some(come) => {
            let come = come.await.unwrap_or_default();
            *opening = None;
            come
        }
    }
}

struct Growth {
    pool: Weak<Pool>,
    handles: Weak<Handles>,
    tuner: Tuner,
    /// What may be on its way in each direction.
    read: Filling,
    write: Filling,
    /// Tells which of the sessions that are being opened have come.
    opening: Option<oneshot::Receiver<Slots>>,
    looked: Instant,
}

impl Growth {
    fn pause(&self) -> Duration {
        let round_trip = self.pool.upgrade().and_then(|pool| pool.round_trip());
        (round_trip.unwrap_or_default() * LOOK_ROUND_TRIPS).clamp(LOOK_MIN, LOOK_MAX)
    }

    /// Looks once; whether anything was carried, `None` when there is no host any more.
    fn look(&mut self) -> Option<bool> {
        let pool = self.pool.upgrade()?;
        let now = Instant::now();
        let took = now - std::mem::replace(&mut self.looked, now);
        let round_trip = pool.round_trip().unwrap_or_default();
        self.close_idle(&pool);
        pool.drop_dead();
        let window_bytes = window_for(pool.round_trip());
        if window_bytes != pool.gates.window() {
            pool.gates.set_window(window_bytes);
        }
        let (read, write) = pool.gates.take_carried();
        let lanes = pool.active().len();
        let ready = pool.connector.ready();
        let sample = |carried, limit_bytes| Sample {
            carried,
            took,
            lanes,
            window_bytes,
            limit_bytes,
            round_trip,
            ready,
        };
        let read = sample(read, self.read.limit());
        let write = sample(write, self.write.limit());
        // Sessions are for the direction that fills them more.
        let sample = if read.under_way() >= write.under_way() { &read } else { &write };
        match self.tuner.observe(sample, now) {
            Advice::Stay => {}
            Advice::Grow(number) => self.opening = Some(open(&pool, number)),
            Advice::Use(number) => {
                let kept = pool.active().iter().take(number);
                pool.set_active(kept.fold(Slots::default(), Slots::with));
                tracing::debug!(number, "more sessions bring nothing");
            }
        }
        // More sessions show what they bring only without a bound.
        let is_trying = self.tuner.is_trying();
        let directions = [
            (&mut self.read, &read, &pool.gates.read),
            (&mut self.write, &write, &pool.gates.write),
        ];
        for (filling, sample, gate) in directions {
            if is_trying {
                filling.lift();
            } else {
                filling.observe(sample, now);
            }
            if filling.limit() != sample.limit_bytes {
                gate.set_limit(filling.limit());
                tracing::debug!(limit = ?filling.limit(), "what may be on its way");
            }
        }
        self.suggest(&pool, now);
        Some(read.carried.bytes + write.carried.bytes > 0)
    }

    /// Takes the sessions into use that have come; `None` when there is no host any more.
    fn join(&mut self, come: Slots) -> Option<()> {
        let pool = self.pool.upgrade()?;
        for slot in come.iter() {
            pool.gates.opened(slot);
        }
        pool.set_active(Slots::from_bits(pool.active().bits() | come.bits()));
        let now = Instant::now();
        self.tuner.joined(come.len(), pool.round_trip().unwrap_or_default(), now);
        self.suggest(&pool, now);
        Some(())
    }

    /// Says how much is worth having on its way, with the sessions that would be tried next.
    fn suggest(&self, pool: &Pool, now: Instant) {
        let (lanes, round_trip) = (pool.active().len().max(1), pool.round_trip());
        let next = self.tuner.would_try(lanes, round_trip.unwrap_or_default(), now);
        pool.suggest(suggested(lanes + next, window_for(round_trip)));
    }

    /// Closes what nobody has used for long.
    fn close_idle(&self, pool: &Arc<Pool>) {
        if self.opening.is_some() {
            return;
        }
        let candidates = (KEPT..pool.size()).fold(Slots::default(), Slots::with);
        let idle = pool.gates.idle_for(candidates, pool.config.idle_limit);
        let idle = idle.iter().filter(|slot| pool.living(*slot).is_some());
        let idle = idle.fold(Slots::default(), Slots::with);
        if idle.is_empty() {
            return;
        }
        pool.set_active(pool.active().without(idle));
        if let Some(handles) = self.handles.upgrade() {
            handles.leave_sessions(idle);
        }
        for slot in idle.iter() {
            pool.vacate(slot);
        }
        tracing::debug!("{} idle sessions closed", idle.len());
    }
}

/// Takes into account what the first session has shown of the way.
pub(crate) fn begin(pool: &Pool) {
    let round_trip = pool.round_trip();
    let window_bytes = window_for(round_trip);
    pool.gates.set_window(window_bytes);
    let next = tuner(pool).would_try(1, round_trip.unwrap_or_default(), Instant::now());
    pool.suggest(suggested(1 + next, window_bytes));
}

fn tuner(pool: &Pool) -> Tuner {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Tuner::new(pool.size().saturating_sub(1), cores, pool.config.measure_gain)
}

/// The suggestion for so many sessions.
pub(crate) fn suggested(sessions: usize, window_bytes: u64) -> u64 {
    (sessions as f64 * window_bytes as f64 * AHEAD) as u64
}

/// Opens so many sessions, all at once. Those that are there and were left count as opened.
fn open(pool: &Arc<Pool>, number: usize) -> oneshot::Receiver<Slots> {
    let all = (1..pool.size()).fold(Slots::default(), Slots::with);
    let chosen = all.without(pool.active());
    let attempts: Vec<_> = chosen
        .iter()
        .take(number)
        .map(|slot| {
            let (pool, mut wanted) = (pool.clone(), pool.wanted.clone());
            let attempt = tokio::spawn(async move {
                tokio::select! {
                    come = attempt(&pool, slot) => come,
                    _ = wanted.changed() => Err("nobody wants it any more".into()),
                }
            });
            (slot, attempt)
        })
        .collect();
    let (told, opening) = oneshot::channel();
    let there = pool.active().len() + 1;
    tokio::spawn(async move {
        let (mut come, mut refused) = (Slots::default(), None);
        for (slot, attempt) in attempts {
            match attempt.await {
                Ok(Ok(())) => come = come.with(slot),
                Ok(Err(why)) => refused = Some(why),
                Err(_) => {}
            }
        }
        // Not when the host is gone.
        if told.send(come).is_ok()
            && let Some(why) = refused
        {
            tracing::warn!("no more sessions now, going on with {}: {why}", there + come.len());
        }
    });
    opening
}

async fn attempt(pool: &Arc<Pool>, slot: usize) -> Result<(), String> {
    let session = match pool.session(slot).await {
        Ok(session) => session,
        Err(Unavailable::Lost) => return Err("a lost session is not to be opened again".into()),
        Err(Unavailable::Failed(why)) => return Err(why.to_string()),
    };
    let Some(first) = pool.living(0) else {
        return Err("the first session was lost".into());
    };
    if !machine::same(&first, &session).await {
        pool.vacate(slot);
        return Err("it reaches another machine than the first one".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_grows_with_the_way_and_has_an_end() {
        let window = |micros| window_for(Some(Duration::from_micros(micros)));
        assert_eq!((window_for(None), window(0)), (SHORT_WAY_BYTES, SHORT_WAY_BYTES));
        assert!(window(500) > SHORT_WAY_BYTES && window(500) < SHORT_WAY_BYTES * 5 / 4);
        assert_eq!((window(100_000), window(60_000_000)), (LONG_WAY_BYTES, LONG_WAY_BYTES));
    }
}
