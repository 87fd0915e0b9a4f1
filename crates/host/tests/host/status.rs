//! The reported state of a host's sessions.

use std::sync::atomic::Ordering;
use std::time::Duration;

use base::Remote;
use host::{Config, SessionState};

use super::peer::{Real, path};

/// Far more than any step takes.
const LIMIT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn the_status_shows_each_session_or_its_error() {
    let real = Real::with(Config { max_conns: 3, ..Config::default() }).await;
    real.host.lstat(&path("")).await.unwrap();
    let status = real.host.status();
    assert_eq!((status.max_sessions, status.sessions.len()), (3, 1));
    assert!(status.round_trip.is_some());
    let first = &status.sessions[0];
    assert_eq!(first.slot, 0);
    assert!(matches!(first.state, SessionState::Up { in_flight: 0, .. }), "{first:?}");

    real.servers.refuse.store(usize::MAX, Ordering::SeqCst);
    real.servers.kill_all().await;
    let refused = async {
        loop {
            assert!(real.host.lstat(&path("")).await.is_err());
            let status = real.host.status();
            assert_eq!((status.round_trip, status.sessions.len()), (None, 1));
            match &status.sessions[0].state {
                SessionState::Down { why, failures, .. } => {
                    assert!(why.contains("refused by the test") && *failures > 0, "{why}");
                    return;
                }
                SessionState::Lost { why } => assert!(!why.is_empty()),
                SessionState::Connecting => {}
                up @ SessionState::Up { .. } => panic!("{up:?}"),
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, refused).await.unwrap();
}
