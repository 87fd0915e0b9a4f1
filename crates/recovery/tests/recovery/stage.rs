//! The fixture of most tests: a `Recovering` over a faulty remote in memory.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use base::{Access, Create, Errno, Fh, OpenFlags, Remote};
use bytes::Bytes;
use recovery::{Config, Recovering, RetryPolicy};
use replicas::Replicas;
use testkit::{FaultyRemote, MemRemote, path};

/// See the [module](self).
pub(crate) struct Stage {
    pub(crate) recovering: Arc<Recovering>,
    pub(crate) faulty: Arc<FaultyRemote<MemRemote>>,
}

/// A call that may be polled before it is awaited.
pub(crate) type Started<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Polls a call once.
pub(crate) fn poll_once<T>(call: &mut Started<'_, T>) -> Poll<T> {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Lets all other tasks run for a while.
pub(crate) async fn others_run() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

impl Stage {
    pub(crate) fn new() -> Stage {
        Stage::with(RetryPolicy::Hard)
    }

    pub(crate) fn with(retry_policy: RetryPolicy) -> Stage {
        let config = Config { retry_policy, ..Config::default() };
        Stage::configured(MemRemote::new(), config)
    }

    pub(crate) fn over(memory: MemRemote) -> Stage {
        Stage::configured(memory, Config::default())
    }

    fn configured(memory: MemRemote, config: Config) -> Stage {
        let faulty = Arc::new(FaultyRemote::new(Arc::new(memory)));
        Stage { recovering: Recovering::new(faulty.clone(), config), faulty }
    }

    /// Over two gateways of one server. The first one, with the link `faulty`, serves all calls.
    /// Both have a write verifier.
    pub(crate) fn pool() -> Stage {
        let server = Arc::new(MemRemote::new());
        let links = [0, 1].map(|_| Arc::new(FaultyRemote::new(server.clone())));
        links.iter().for_each(|link| link.set_write_verifier("its first"));
        let gateways = links.iter().map(|link| {
            let name = "gateway".to_owned();
            replicas::Gateway { name, remote: link.clone() }
        });
        let config =
            replicas::Config { mode: replicas::Mode::Failover, ..replicas::Config::default() };
        let pool = Arc::new(Replicas::new(gateways.collect(), config).unwrap());
        let [faulty, _] = links;
        Stage { recovering: Recovering::new(pool, Config::default()), faulty }
    }

    pub(crate) fn server(&self) -> &MemRemote {
        self.faulty.inner()
    }

    pub(crate) async fn open(&self, at: &str, flags: OpenFlags) -> Fh {
        self.recovering.open(&path(at), flags).await.unwrap().fh
    }

    pub(crate) async fn create(&self, at: &str) -> Fh {
        self.open(at, making()).await
    }

    pub(crate) async fn read(&self, fh: Fh) -> Result<Vec<u8>, Errno> {
        Ok(self.recovering.read(fh, 0, 1 << 20).await?.to_vec())
    }

    pub(crate) async fn put(&self, fh: Fh, offset: u64, text: &'static str) -> Result<(), Errno> {
        self.recovering.write(fh, offset, Bytes::from(text)).await
    }

    pub(crate) fn content(&self, at: &str) -> String {
        String::from_utf8(self.server().content(at)).unwrap()
    }

    /// Breaks the link, and restores it after `time`.
    pub(crate) fn cut_for(&self, time: Duration) {
        self.faulty.cut();
        let faulty = self.faulty.clone();
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            faulty.restore_without_handles(Errno::ESTALE);
        });
    }

    /// A short break, after which all handles are stale.
    pub(crate) fn blink(&self) {
        self.faulty.cut();
        self.faulty.restore_without_handles(Errno::ESTALE);
    }

    /// No handle is open at the server.
    pub(crate) async fn nothing_leaked(&self) {
        others_run().await;
        assert_eq!(self.server().open_handles(), 0, "handles leaked");
    }
}

pub(crate) fn making() -> OpenFlags {
    OpenFlags { create: Create::IfAbsent(0o644), ..OpenFlags::existing(Access::ReadWrite) }
}

pub(crate) fn appending() -> OpenFlags {
    OpenFlags { append: true, ..making() }
}
