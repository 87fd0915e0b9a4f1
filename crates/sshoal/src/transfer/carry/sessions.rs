//! Logins that are begun before anybody needs them.
//!
//! Over a long way one session is bound by ssh's window, and a login takes a dozen round trips. What
//! carries a large file there needs several, and they log in side by side with the first one, or as
//! soon as it is known that they will be needed, and not one after another when the first is full.
//!
//! Only begun here: which of them are used, and when, is the host's to decide (`host::scaling`). What
//! nobody asks for ends with the copy.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use transfer::tar::{BIG_BYTES, Compress, LONG_ROUND_TRIP};

use super::Carrier;
use crate::connector::{Begun, SshConnector};
use crate::stack;
use crate::transfer::Way;
use crate::transfer::arguments::Engine;

/// What OpenSSH has on its way in one session at most.
const WINDOW_BYTES: f64 = 2.0 * 1024.0 * 1024.0;

/// A rate that is worth having, in bytes a second: 1 Gbit/s.
const WANTED_RATE: f64 = 125e6;

/// A file of so many bytes is worth logins before anything is known of the way: ten seconds of one
/// session over 100 ms.
const LARGE_BYTES: u64 = 192 << 20;

/// A file of so many bytes takes two round trips of ssh's window, and a login takes a dozen.
const SMALL_BYTES: u64 = 4 << 20;

/// A login that takes longer than this goes over a long way: a dozen round trips of 40 ms. Over a
/// short one it takes a quarter of it.
const LONG_LOGIN: Duration = Duration::from_millis(500);

/// Logins under way at most, with the first one: OpenSSH drops some of more than ten (`MaxStartups`),
/// and others log in, too.
const LOGINS: usize = 8;

/// Logins that are begun before the first one is over. Should that be one that asks for a password,
/// they fail: for each of these OpenSSH (9.8 and later) turns the address away for five seconds more,
/// from fifteen on (`PerSourcePenalties`).
const BLIND_LOGINS: usize = 2;

/// The sessions of one host beside its first.
#[derive(Default)]
pub(super) struct Sessions {
    begun: Begun,
    number: AtomicUsize,
}

impl Sessions {
    /// What is begun, and what will be.
    pub(super) fn begun(&self) -> Begun {
        self.begun.clone()
    }
}

/// How many further sessions a way of this length needs.
pub(super) fn needed(round_trip: Duration) -> usize {
    let product = round_trip.as_secs_f64() * WANTED_RATE;
    match product > WINDOW_BYTES {
        // One more, since the first is for what is not content.
        true => (product / WINDOW_BYTES).ceil().min(LOGINS as f64) as usize + 1,
        false => 0,
    }
}

impl Carrier {
    /// Begins so many further sessions, with those that were begun before. They must not ask for
    /// anything: where the first one had to, they end, and the host tries again when it needs them.
    pub(super) fn begin_sessions(&self, number: usize) {
        let [far] = &self.far[..] else { return };
        let most = self.request.host.max_conns.map_or(host::AUTOMATIC_CONNS, |most| most as usize);
        let number = number.min(most.min(LOGINS).saturating_sub(1));
        let before = self.sessions.number.fetch_max(number, Ordering::Relaxed);
        if number <= before || self.request.ssh.password_stdin {
            return;
        }
        let config = match stack::ssh_configs(&self.request, &far.spec).as_deref() {
            Ok([config]) if config.transport == ssh::Transport::Ssh => config.clone(),
            _ => return,
        };
        let Ok(connector) = SshConnector::new(config) else { return };
        let begun = self.sessions.begun();
        tracing::debug!("{} further sessions are begun", number - before);
        tokio::spawn(async move {
            for slot in before..number {
                // Whoever needs it learns of it by himself.
                if let Err(error) = connector.begin(slot + 1, &begun).await {
                    tracing::debug!("no session ahead: {}", error.message);
                }
            }
        });
    }

    /// Waits for `work`, which begins with the first login. Where a large file is to go there and
    /// the login takes long (it is not `over` soon), further sessions are begun meanwhile.
    pub(super) async fn patiently<T>(
        &self,
        work: impl Future<Output = T>,
        over: impl Future<Output = ()>,
    ) -> T {
        let mut work = std::pin::pin!(work);
        if self.has_large_file() {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = over => {}
                () = tokio::time::sleep(LONG_LOGIN) => self.begin_sessions(BLIND_LOGINS),
            }
        }
        work.await
    }

    /// Whether all that is to go there is one large file, as far as several sessions may bring it.
    fn has_large_file(&self) -> bool {
        let [near] = &self.near[..] else { return false };
        self.way == Way::Push
            && self.may_prefer_sessions()
            && near
                .path()
                .symlink_metadata()
                .is_ok_and(|it| it.is_file() && it.len() >= LARGE_BYTES)
    }

    /// Whether several sessions bring a file of that length sooner than one stream, where an answer
    /// takes so long.
    pub(super) fn prefers_sessions(&self, bytes: u64, round_trip: Duration) -> bool {
        self.may_prefer_sessions() && bytes > BIG_BYTES && round_trip > LONG_ROUND_TRIP
    }

    /// Whether a file of that length is sooner copied by the session that is there than a stream has
    /// logged in. Over a short way a login is quick, and a stream has the file's time exactly.
    pub(super) fn prefers_session(&self, bytes: u64, round_trip: Duration) -> bool {
        self.may_prefer_sessions() && bytes <= SMALL_BYTES && round_trip > LONG_ROUND_TRIP
    }

    /// What only streams can do is not asked for.
    fn may_prefer_sessions(&self) -> bool {
        let is_compressed = matches!(self.compress, Compress::Always(_));
        self.engine != Engine::Tar && !self.options.xattrs.any() && !is_compressed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_way_needs_several_sessions_and_a_short_one_none() {
        let needed = |millis| needed(Duration::from_millis(millis));
        assert_eq!((needed(0), needed(1), needed(10)), (0, 0, 0));
        assert_eq!((needed(20), needed(50), needed(100)), (3, 4, 7));
        assert!(needed(10_000) > 1 && needed(10_000) <= LOGINS + 1);
    }
}
