//! Scaling of the sessions that carry content: opened while demand exceeds their capacity,
//! deactivated if they do not improve throughput, closed when idle.
//!
//! One task samples the traffic through [`Directions`] while there is any. The first session is for
//! metadata; content moves to the second session as soon as there is one. The [`Tuner`] decides how
//! many more there are, and the [`InflightLimit`] how many bytes are in flight over all of them.
//!
//! A further session that cannot be opened is not an error: the existing sessions continue, and
//! each attempt logs one warning.

mod inflight_limit;
mod tuner;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::flow_control::{
    MAX_DIRECT_WINDOW_BYTES, MAX_SLOTS, MAX_WINDOW_BYTES, MIN_WINDOW_BYTES, Slots,
};
use crate::handles::Handles;
use crate::pool::{Pool, Unavailable};
use inflight_limit::InflightLimit;
use tuner::{Advice, Sample, Tuner};

/// Round trips between two samples.
const SAMPLE_ROUND_TRIPS: u32 = 3;

/// Shortest and longest time between two samples.
const SAMPLE_MIN: Duration = Duration::from_millis(100);
const SAMPLE_MAX: Duration = Duration::from_millis(600);

/// Samples without traffic until sampling pauses.
const QUIET_SAMPLES: u32 = 20;

/// Sessions that are kept without traffic: the first, and one for content.
const MIN_SESSIONS: usize = 2;

/// Assumed throughput of a session in bytes a second, before it was measured; above that of ssh.
const ASSUMED_RATE: f64 = 250e6;

/// Readahead in flight as a factor of the windows, so that a request is always ready when room
/// becomes free.
const READAHEAD_FACTOR: f64 = 1.25;

/// The window of each session for this round trip, up to a largest one.
pub(crate) fn window_for(round_trip: Option<Duration>, most: u64) -> u64 {
    let product = round_trip.unwrap_or_default().as_secs_f64() * ASSUMED_RATE;
    (MIN_WINDOW_BYTES + product as u64).min(most)
}

/// The window of each session of a pool.
fn window_of(pool: &Pool) -> u64 {
    let is_direct = pool.live(0).is_some_and(|first| first.is_direct());
    let most = if is_direct { MAX_DIRECT_WINDOW_BYTES } else { MAX_WINDOW_BYTES };
    window_for(pool.round_trip(), most)
}

/// Samples and adjusts while the host exists.
pub(crate) async fn run(pool: Weak<Pool>, handles: Weak<Handles>) {
    let parts = pool.upgrade().map(|it| (it.flow.clone(), it.config.idle_limit, tuner(&it)));
    let Some((flow, idle_limit, tuner)) = parts else { return };
    let (read, write, sampled_at) =
        (InflightLimit::default(), InflightLimit::default(), Instant::now());
    let mut scaling = Scaling { pool, handles, tuner, read, write, opening: None, sampled_at };
    let mut quiet_samples = QUIET_SAMPLES;
    loop {
        let interval = scaling.sample_interval();
        let has_closable = scaling.has_closable();
        let pause = async {
            if quiet_samples < QUIET_SAMPLES {
                tokio::time::sleep(interval).await;
            } else {
                let traffic = flow.wait_for_traffic();
                // Only idle sessions have to be closed while there is none.
                match has_closable {
                    true => drop(tokio::time::timeout(idle_limit, traffic).await),
                    false => traffic.await,
                }
            }
        };
        // Opened sessions are used before the next sample, which may be far away on a link with a
        // long round trip.
        let opened = opened(&mut scaling.opening);
        tokio::select! {
            () = pause => {}
            opened = opened => match scaling.activate(opened) {
                Some(()) => continue,
                None => return,
            },
        }
        let Some(throughput) = scaling.adjust() else { return };
        quiet_samples = if throughput { 0 } else { quiet_samples.saturating_add(1) };
    }
}

/// The opened sessions, when all attempts have ended.
async fn opened(opening: &mut Option<oneshot::Receiver<Slots>>) -> Slots {
    match opening {
        None => std::future::pending().await,
        Some(opened) => {
            let opened = opened.await.unwrap_or_default();
            *opening = None;
            opened
        }
    }
}

struct Scaling {
    pool: Weak<Pool>,
    handles: Weak<Handles>,
    tuner: Tuner,
    /// The limit on bytes in flight in each direction.
    read: InflightLimit,
    write: InflightLimit,
    /// Receives the opened sessions when all attempts have ended.
    opening: Option<oneshot::Receiver<Slots>>,
    sampled_at: Instant,
}

impl Scaling {
    fn sample_interval(&self) -> Duration {
        let round_trip = self.pool.upgrade().and_then(|pool| pool.round_trip());
        (round_trip.unwrap_or_default() * SAMPLE_ROUND_TRIPS).clamp(SAMPLE_MIN, SAMPLE_MAX)
    }

    /// Takes one sample and adjusts. Returns whether anything was transferred; `None` if the host
    /// was dropped.
    fn adjust(&mut self) -> Option<bool> {
        let pool = self.pool.upgrade()?;
        let now = Instant::now();
        let elapsed = now - std::mem::replace(&mut self.sampled_at, now);
        let round_trip = pool.round_trip().unwrap_or_default();
        self.tuner.set_most(pool.max_sessions() - 1);
        self.close_idle(&pool);
        pool.deactivate_lost();
        let window_bytes = window_of(&pool);
        if window_bytes != pool.flow.window_bytes() {
            pool.flow.set_window(window_bytes);
        }
        let (read, write) = pool.flow.take_throughput();
        let sessions = pool.active().len();
        let ready = pool.connector.ready();
        let sample = |throughput, limit_bytes| Sample {
            throughput,
            elapsed,
            sessions,
            window_bytes,
            limit_bytes,
            round_trip,
            ready,
        };
        let read = sample(read, self.read.limit());
        let write = sample(write, self.write.limit());
        // The direction that fills the sessions more decides.
        let sample = if read.inflight_bytes() >= write.inflight_bytes() { &read } else { &write };
        match self.tuner.observe(sample, now) {
            Advice::Keep => {}
            Advice::Open(number) => self.opening = Some(open(&pool, number)),
            Advice::Use(number) => {
                pool.set_active(pool.active().iter().take(number).collect());
                tracing::debug!(number, "more sessions do not improve throughput");
            }
        }
        // A limit would hide the gain of new sessions.
        let is_trying = self.tuner.is_trying();
        let directions =
            [(&mut self.read, &read, &pool.flow.read), (&mut self.write, &write, &pool.flow.write)];
        for (limit, sample, flow) in directions {
            if is_trying {
                limit.remove_limit();
            } else {
                limit.observe(sample, now);
            }
            if limit.limit() != sample.limit_bytes {
                flow.set_limit(limit.limit());
                tracing::debug!(limit = ?limit.limit(), "limit of bytes in flight");
            }
        }
        self.suggest(&pool, now);
        Some(read.throughput.bytes + write.throughput.bytes > 0)
    }

    /// Starts to use the opened sessions; `None` if the host was dropped.
    fn activate(&mut self, opened: Slots) -> Option<()> {
        let pool = self.pool.upgrade()?;
        for slot in opened.iter() {
            pool.flow.note_opened(slot);
        }
        pool.set_active(pool.active().union(opened));
        let now = Instant::now();
        self.tuner.joined(opened.len(), pool.round_trip().unwrap_or_default(), now);
        self.suggest(&pool, now);
        Some(())
    }

    /// Publishes how many bytes a caller should have in flight, including those for the sessions
    /// that would be opened next.
    fn suggest(&self, pool: &Pool, now: Instant) {
        let (sessions, round_trip) = (pool.active().len().max(1), pool.round_trip());
        let next = self.tuner.would_try(sessions, round_trip.unwrap_or_default(), now);
        pool.suggest(suggested(sessions + next, window_of(pool)));
    }

    /// Whether there are sessions that are closed when they are idle.
    fn has_closable(&self) -> bool {
        let Some(pool) = self.pool.upgrade() else { return true };
        (MIN_SESSIONS..MAX_SLOTS).any(|slot| pool.live(slot).is_some())
    }

    /// Closes sessions beyond [`MIN_SESSIONS`] that were idle for the configured time, and those
    /// beyond the maximum.
    fn close_idle(&self, pool: &Arc<Pool>) {
        if self.opening.is_some() {
            return;
        }
        let excess = (pool.max_sessions()..MAX_SLOTS).collect();
        let candidates = (MIN_SESSIONS..MAX_SLOTS).collect();
        let idle = pool.flow.idle_for(candidates, pool.config.idle_limit).union(excess);
        let mut idle: Slots = idle.iter().filter(|slot| pool.live(*slot).is_some()).collect();
        pool.set_active(pool.active().difference(idle));
        if let Some(handles) = self.handles.upgrade() {
            idle = idle.difference(handles.close_stripes_on(idle));
        }
        if idle.is_empty() {
            return;
        }
        for slot in idle.iter() {
            pool.vacate(slot);
        }
        tracing::debug!("{} idle sessions closed", idle.len());
    }
}

/// Sets the window and the suggestion by the round trip of the first session.
pub(crate) fn start(pool: &Pool) {
    let round_trip = pool.round_trip();
    let window_bytes = window_of(pool);
    pool.flow.set_window(window_bytes);
    let next = tuner(pool).would_try(1, round_trip.unwrap_or_default(), Instant::now());
    pool.suggest(suggested(1 + next, window_bytes));
}

fn tuner(pool: &Pool) -> Tuner {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Tuner::new(pool.max_sessions() - 1, cores, pool.config.measure_gain)
}

/// The suggestion for this number of sessions.
pub(crate) fn suggested(sessions: usize, window_bytes: u64) -> u64 {
    (sessions as f64 * window_bytes as f64 * READAHEAD_FACTOR) as u64
}

/// Opens this number of sessions, all at once. Sessions that were deactivated but not closed are
/// used first and count as opened.
fn open(pool: &Arc<Pool>, number: usize) -> oneshot::Receiver<Slots> {
    let all: Slots = (1..pool.max_sessions()).collect();
    let chosen = all.difference(pool.active());
    let attempts: Vec<_> = chosen
        .iter()
        .take(number)
        .map(|slot| {
            let pool = pool.clone();
            let attempt = tokio::spawn(async move {
                let opened = pool.lifetime.run(attempt(&pool, slot)).await;
                opened.unwrap_or_else(|| Err("nobody wants it any more".into()))
            });
            (slot, attempt)
        })
        .collect();
    let (sender, opening) = oneshot::channel();
    let session_count = pool.active().len() + 1;
    tokio::spawn(async move {
        let (mut opened, mut refused) = (Slots::default(), None);
        for (slot, attempt) in attempts {
            match attempt.await {
                Ok(Ok(())) => opened = opened.with(slot),
                Ok(Err(why)) => refused = Some(why),
                Err(_) => {}
            }
        }
        // Without a receiver the host was dropped.
        if sender.send(opened).is_ok()
            && let Some(why) = refused
        {
            tracing::warn!(
                "cannot open more sessions, continuing with {}: {why}",
                session_count + opened.len()
            );
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
    let Some(first) = pool.live(0) else {
        return Err("the first session was lost".into());
    };
    let why = match first.is_same_machine(&session).await {
        Ok(true) => return Ok(()),
        Ok(false) => "it reaches another machine than the first one".into(),
        Err(error) => format!("it is unknown which machine it reaches: {error}"),
    };
    pool.vacate(slot);
    Err(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_grows_with_the_round_trip_up_to_a_maximum() {
        let window = |micros| window_for(Some(Duration::from_micros(micros)), MAX_WINDOW_BYTES);
        let unknown = window_for(None, MAX_WINDOW_BYTES);
        assert_eq!((unknown, window(0)), (MIN_WINDOW_BYTES, MIN_WINDOW_BYTES));
        assert!(window(500) > MIN_WINDOW_BYTES && window(500) < MIN_WINDOW_BYTES * 5 / 4);
        assert_eq!((window(100_000), window(60_000_000)), (MAX_WINDOW_BYTES, MAX_WINDOW_BYTES));
    }
}
