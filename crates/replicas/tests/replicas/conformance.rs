//! The conformance suite over pools of any size in every mode.

use std::sync::Arc;

use replicas::Mode;
use testkit::conformance::Fixture;
use testkit::{Lagging, MemRemote};

use super::pool;

async fn ground(mode: Mode, gateways: usize) -> Fixture {
    let remote = Arc::new(MemRemote::new());
    let pool = pool::of(mode, (0..gateways).map(|_| remote.clone() as Arc<_>));
    Fixture::new(Arc::new(pool)).counting(move || remote.open_handles())
}

mod one_gateway {
    use super::*;

    async fn ground() -> Fixture {
        super::ground(Mode::Balance, 1).await
    }

    testkit::conformance!(ground);
}

mod two_by_hash {
    use super::*;

    async fn ground() -> Fixture {
        super::ground(Mode::Hash, 2).await
    }

    testkit::conformance!(ground);
}

mod three_balanced {
    use super::*;

    async fn ground() -> Fixture {
        super::ground(Mode::Balance, 3).await
    }

    testkit::conformance!(ground);
}

mod three_for_failover {
    use super::*;

    async fn ground() -> Fixture {
        super::ground(Mode::Failover, 3).await
    }

    testkit::conformance!(ground);
}

/// Answers come from another task, so that no call is ready at once.
mod slow_answers {
    use super::*;

    async fn ground() -> Fixture {
        let remote = Arc::new(MemRemote::new());
        remote.set_pending(true);
        let pool = pool::of(Mode::Balance, (0..3).map(|_| remote.clone() as Arc<_>));
        Fixture::new(Arc::new(pool)).counting(move || remote.open_handles())
    }

    testkit::conformance!(ground);
}

/// Each gateway shows for a minute the state it has seen once: only the gateway that made a change
/// shows it.
mod lagging {
    use super::*;

    async fn lagging(mode: Mode) -> Fixture {
        let remote = Arc::new(MemRemote::new());
        let gateway = || Arc::new(Lagging::new(remote.clone(), pool::LAG)) as Arc<_>;
        let pool = pool::of(mode, [gateway(), gateway(), gateway()]);
        Fixture::new(Arc::new(pool)).counting(move || remote.open_handles())
    }

    mod balanced {
        use super::*;

        async fn ground() -> Fixture {
            lagging(Mode::Balance).await
        }

        testkit::conformance!(ground);
    }

    mod by_hash {
        use super::*;

        async fn ground() -> Fixture {
            lagging(Mode::Hash).await
        }

        testkit::conformance!(ground);
    }
}
