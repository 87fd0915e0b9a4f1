//! The source of file times: the machine's clock, or one set by a test.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use base::Timestamp;

/// A source of file times, in whole seconds as in SFTP version 3.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The machine's clock.
    #[default]
    System,
    /// A clock that stands still until it is set.
    Manual(ManualClock),
}

impl Clock {
    /// The time of a change made now.
    pub fn now(&self) -> Timestamp {
        match self {
            Clock::System => Timestamp::from_secs(Timestamp::now().secs),
            Clock::Manual(clock) => Timestamp::from_secs(clock.secs()),
        }
    }
}

impl From<ManualClock> for Clock {
    fn from(clock: ManualClock) -> Clock {
        Clock::Manual(clock)
    }
}

/// A clock that stands still until it is set. Its clones are the same clock.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// A clock that shows `secs` seconds since 1970.
    pub fn at(secs: i64) -> ManualClock {
        ManualClock(Arc::new(AtomicI64::new(secs)))
    }

    /// The current time, in seconds since 1970.
    pub fn secs(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Sets the time to `secs` seconds since 1970, earlier or later.
    pub fn set(&self, secs: i64) {
        self.0.store(secs, Ordering::SeqCst);
    }

    /// Advances the time by `secs` seconds.
    pub fn advance(&self, secs: i64) {
        self.0.fetch_add(secs, Ordering::SeqCst);
    }
}
