//! Points in time in half the size of an [`Instant`]: each inode has several.
//!
//! Counted in nanoseconds from the first one that this process has created; saturated at 292 years.

use std::sync::LazyLock;
use std::time::Duration;

use tokio::time::Instant;

static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CompactInstant(i64);

impl CompactInstant {
    /// Before all others.
    pub(crate) const NEVER: CompactInstant = CompactInstant(i64::MIN);

    /// For an atomic.
    pub(crate) fn to_raw(self) -> i64 {
        self.0
    }

    /// From [`CompactInstant::to_raw`].
    pub(crate) fn from_raw(raw: i64) -> CompactInstant {
        CompactInstant(raw)
    }

    /// `None` for [`CompactInstant::NEVER`].
    pub(crate) fn instant(self) -> Option<Instant> {
        let distance = Duration::from_nanos(self.0.unsigned_abs());
        match self {
            CompactInstant::NEVER => None,
            CompactInstant(nanos) if nanos < 0 => EPOCH.checked_sub(distance),
            CompactInstant(_) => EPOCH.checked_add(distance),
        }
    }
}

impl From<Instant> for CompactInstant {
    fn from(instant: Instant) -> CompactInstant {
        let nanos = |distance: Duration| i64::try_from(distance.as_nanos()).unwrap_or(i64::MAX);
        match instant.checked_duration_since(*EPOCH) {
            Some(after) => CompactInstant(nanos(after)),
            None => CompactInstant(-nanos(EPOCH.duration_since(instant))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compact_instant_converts_back_to_its_instant() {
        let now = Instant::now();
        let (far, before) = (now + Duration::from_secs(1 << 40), now - Duration::from_millis(7));
        for instant in [now, now + Duration::from_secs(365 * 24 * 3600), before] {
            assert_eq!(CompactInstant::from(instant).instant(), Some(instant));
        }
        assert!(CompactInstant::from(before) < CompactInstant::from(now));
        assert!(
            CompactInstant::from(now) < CompactInstant::from(far)
                && CompactInstant::NEVER < CompactInstant::from(before)
        );
        assert_eq!(CompactInstant::NEVER.instant(), None);
        assert!(CompactInstant::from(far).instant() < Some(far), "as far as it goes");
    }
}
