//! Points in time in half the room of an [`Instant`]: there are several in each inode.
//!
//! Counted in nanoseconds from the first one that this process has made; past 292 years from that
//! they stay where they are.

use std::sync::LazyLock;
use std::time::Duration;

use tokio::time::Instant;

static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(i64);

impl Moment {
    /// Before all others.
    pub(crate) const NEVER: Moment = Moment(i64::MIN);

    /// `None` for [`Moment::NEVER`].
    pub(crate) fn instant(self) -> Option<Instant> {
        let distance = Duration::from_nanos(self.0.unsigned_abs());
        match self {
            Moment::NEVER => None,
            Moment(nanos) if nanos < 0 => EPOCH.checked_sub(distance),
            Moment(_) => EPOCH.checked_add(distance),
        }
    }
}

impl From<Instant> for Moment {
    fn from(instant: Instant) -> Moment {
        let nanos = |distance: Duration| i64::try_from(distance.as_nanos()).unwrap_or(i64::MAX);
        match instant.checked_duration_since(*EPOCH) {
            Some(after) => Moment(nanos(after)),
            None => Moment(-nanos(EPOCH.duration_since(instant))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_the_instant_that_it_was_made_of() {
        let now = Instant::now();
        let (far, before) = (now + Duration::from_secs(1 << 40), now - Duration::from_millis(7));
        for instant in [now, now + Duration::from_secs(365 * 24 * 3600), before] {
            assert_eq!(Moment::from(instant).instant(), Some(instant));
        }
        assert!(Moment::from(before) < Moment::from(now));
        assert!(Moment::from(now) < Moment::from(far) && Moment::NEVER < Moment::from(before));
        assert_eq!(Moment::NEVER.instant(), None);
        assert!(Moment::from(far).instant() < Some(far), "as far as it goes");
    }
}
