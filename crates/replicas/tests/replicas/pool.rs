//! Pools of gateways, and short forms for the tests.

use std::sync::Arc;
use std::time::Duration;

use base::{Access, Create, Fh, OpenFlags, Remote};
use bytes::Bytes;
use replicas::{Config, Gateway, GatewayState, Mode, Replicas};
use testkit::{FaultyRemote, MemRemote, path};

/// How long a gateway may show the state before a change.
pub(crate) const LAG: Duration = Duration::from_secs(60);

pub(crate) const DEADLINE: Duration = Duration::from_secs(5);

/// Longer than any background work of a pool: probes and their pauses.
pub(crate) const LONG: Duration = Duration::from_secs(30);

pub(crate) fn of(mode: Mode, remotes: impl IntoIterator<Item = Arc<dyn Remote>>) -> Replicas {
    let gateways = remotes.into_iter().enumerate();
    let gateways =
        gateways.map(|(index, remote)| Gateway { name: format!("gw{}", index + 1), remote });
    let config = Config { mode, deadline: DEADLINE, lag: LAG };
    Replicas::new(gateways.collect(), config).unwrap()
}

/// A pool whose gateways can be made to fail.
pub(crate) struct Faulty {
    pub(crate) pool: Arc<Replicas>,
    pub(crate) gateways: Vec<Arc<FaultyRemote<MemRemote>>>,
    /// The server behind all gateways.
    pub(crate) server: Arc<MemRemote>,
}

impl Faulty {
    pub(crate) fn new(mode: Mode, count: usize) -> Faulty {
        let server = Arc::new(MemRemote::new());
        let gateway = || Arc::new(FaultyRemote::new(server.clone()));
        let gateways: Vec<_> = (0..count).map(|_| gateway()).collect();
        let pool = of(mode, gateways.iter().map(|gateway| gateway.clone() as Arc<_>));
        Faulty { pool: Arc::new(pool), gateways, server }
    }

    pub(crate) async fn open(&self, at: &str, access: Access) -> Fh {
        self.pool.open(&path(at), OpenFlags::existing(access)).await.unwrap().fh
    }

    pub(crate) async fn create(&self, at: &str) -> Fh {
        let flags =
            OpenFlags { create: Create::IfAbsent(0o644), ..OpenFlags::existing(Access::ReadWrite) };
        self.pool.open(&path(at), flags).await.unwrap().fh
    }

    pub(crate) async fn put(&self, fh: Fh, offset: u64, data: &'static [u8]) {
        self.pool.write(fh, offset, Bytes::from_static(data)).await.unwrap();
    }

    /// Waits until the gateway is in such a state. Paused time advances by itself.
    pub(crate) async fn until(&self, index: usize, is_so: impl Fn(GatewayState) -> bool) {
        let so = async {
            while !is_so(self.pool.status().gateways[index].state) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(LONG, so).await.expect("the gateway does not come to that");
    }

    /// The only gateway at which `call` was counted; the counts are reset before.
    pub(crate) fn who(&self, call: testkit::Call) -> Option<usize> {
        let mut asked = (0..self.gateways.len()).filter(|it| self.gateways[*it].calls(call) > 0);
        let who = asked.next()?;
        assert_eq!(asked.next(), None, "{call:?} went to several");
        Some(who)
    }

    pub(crate) fn reset_calls(&self) {
        self.gateways.iter().for_each(|gateway| gateway.reset_calls());
    }
}

pub(crate) fn is_left_out(state: GatewayState) -> bool {
    matches!(state, GatewayState::LeftOut(_))
}

/// `len` bytes that depend on their offset.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}
