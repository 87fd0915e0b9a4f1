//! The settings that can be changed while the file system is in use.
//!
//! Each is an atomic of its own, so that an operation reads it without a lock. An operation that
//! reads two of them may see one before and one after a change, which does no harm: both are valid,
//! and a minimum is never returned above its maximum.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use crate::config::{Config, Prefetch, Timeout};

/// See the [module](self). The fields have the names of those of [`Config`].
#[derive(Default)]
pub(crate) struct Live {
    files: (Time, Time),
    dirs: (Time, Time),
    open_revalidate: Time,
    negative: Time,
    kernel_entry: Time,
    kernel_attr: Time,
    serve_stale: AtomicBool,
    readahead_bytes: AtomicU64,
    dirty_file_bytes: AtomicU64,
    prefetch: AtomicU8,
}

/// A duration in nanoseconds; the largest value stands for none.
#[derive(Default)]
struct Time(AtomicU64);

const NONE: u64 = u64::MAX;

impl Time {
    fn set(&self, time: Option<Duration>) {
        let nanoseconds = time
            .map_or(NONE, |time| u64::try_from(time.as_nanos()).unwrap_or(NONE - 1).min(NONE - 1));
        self.0.store(nanoseconds, Ordering::Relaxed);
    }

    fn get(&self) -> Option<Duration> {
        match self.0.load(Ordering::Relaxed) {
            NONE => None,
            nanoseconds => Some(Duration::from_nanos(nanoseconds)),
        }
    }
}

fn timeout((min, max): &(Time, Time)) -> Timeout {
    let (min, max) = (min.get().unwrap_or_default(), max.get().unwrap_or_default());
    Timeout { min: min.min(max), max }
}

impl Live {
    /// The settings of `config`, which must be the result of [`Config::effective`].
    pub(crate) fn new(config: &Config) -> Live {
        let live = Live::default();
        live.set(config);
        live
    }

    pub(crate) fn set(&self, config: &Config) {
        for ((min, max), time) in [(&self.files, config.files), (&self.dirs, config.dirs)] {
            min.set(Some(time.min));
            max.set(Some(time.max));
        }
        self.open_revalidate.set(Some(config.open_revalidate));
        self.negative.set(Some(config.negative));
        self.kernel_entry.set(config.kernel_entry);
        self.kernel_attr.set(config.kernel_attr);
        self.serve_stale.store(config.serve_stale, Ordering::Relaxed);
        self.readahead_bytes.store(config.readahead_bytes, Ordering::Relaxed);
        self.dirty_file_bytes.store(config.dirty_file_bytes, Ordering::Relaxed);
        self.prefetch.store(config.prefetch as u8, Ordering::Relaxed);
    }

    pub(crate) fn files(&self) -> Timeout {
        timeout(&self.files)
    }

    pub(crate) fn dirs(&self) -> Timeout {
        timeout(&self.dirs)
    }

    pub(crate) fn open_revalidate(&self) -> Duration {
        self.open_revalidate.get().unwrap_or_default()
    }

    pub(crate) fn negative(&self) -> Duration {
        self.negative.get().unwrap_or_default()
    }

    pub(crate) fn kernel_entry(&self) -> Option<Duration> {
        self.kernel_entry.get()
    }

    pub(crate) fn kernel_attr(&self) -> Option<Duration> {
        self.kernel_attr.get()
    }

    pub(crate) fn serve_stale(&self) -> bool {
        self.serve_stale.load(Ordering::Relaxed)
    }

    pub(crate) fn readahead_bytes(&self) -> u64 {
        self.readahead_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn dirty_file_bytes(&self) -> u64 {
        self.dirty_file_bytes.load(Ordering::Relaxed)
    }

    /// Whether `level` is prefetched.
    pub(crate) fn prefetches(&self, level: Prefetch) -> bool {
        self.prefetch.load(Ordering::Relaxed) >= level as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_those_of_the_last_configuration() {
        let live = Live::new(&Config::default());
        assert_eq!(live.files(), Config::default().files);
        assert_eq!((live.kernel_entry(), live.prefetches(Prefetch::All)), (None, true));
        let config = Config {
            files: Timeout::fixed(Duration::from_secs(1_000_000_000)),
            dirs: Timeout { min: Duration::ZERO, max: Duration::from_millis(1) },
            kernel_entry: Some(Duration::ZERO),
            prefetch: Prefetch::Listings,
            serve_stale: true,
            ..Config::default()
        };
        live.set(&config);
        assert_eq!((live.files(), live.dirs()), (config.files, config.dirs));
        assert_eq!(live.kernel_entry(), Some(Duration::ZERO));
        assert!(live.prefetches(Prefetch::Listings) && !live.prefetches(Prefetch::Metadata));
        assert!(live.serve_stale());
    }
}
