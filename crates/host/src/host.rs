//! A host and its connection.

use std::sync::{Arc, OnceLock};

use base::{Errno, FileKind, Owner, RemotePath};
use sftp::StatusCode;
use tokio::sync::Semaphore;

use crate::config::Config;
use crate::connector::{ConnectError, Connector};
use crate::error::Error;
use crate::handles::Handles;
use crate::helper::RootAnswers;
use crate::locks::{LockHolders, MAX_WAITING};
use crate::pool::{Pool, Unavailable};
use crate::session::Session;
use crate::watches::HostWatches;
use crate::{attr, digest, scaling};

/// One remote host as a [`base::Remote`].
///
/// It has to be used within the tokio runtime in which it was connected.
pub struct Host {
    pub(crate) pool: Arc<Pool>,
    pub(crate) handles: Arc<Handles>,
    /// A permit for each request that waits for a lock at the server.
    pub(crate) lock_waiters: Semaphore,
    pub(crate) lock_holders: Arc<LockHolders>,
    /// A permit for each request for a digest.
    pub(crate) digests: Semaphore,
    pub(crate) watches: Arc<HostWatches>,
    /// Dropping it cancels all attempts to connect.
    _owner: Owner,
}

impl Host {
    /// Connects and checks the root, unless the configuration delays the connection or disables the
    /// check.
    pub async fn connect(connector: Arc<dyn Connector>, config: Config) -> Result<Host, Error> {
        let owner = Owner::default();
        let pool = Pool::new(connector, config, owner.lifetime());
        let handles = Arc::<Handles>::default();
        let scaling = scaling::run(Arc::downgrade(&pool), Arc::downgrade(&handles));
        let lifetime = owner.lifetime();
        tokio::spawn(async move { lifetime.run(scaling).await });
        let lock_waiters = Semaphore::new(MAX_WAITING);
        let lock_holders = Arc::default();
        let digests = Semaphore::new(digest::MAX_REQUESTS);
        let watches = Arc::new(HostWatches::new(pool.clone()));
        let host =
            Host { pool, handles, lock_waiters, lock_holders, digests, watches, _owner: owner };
        if host.config().delay_connect {
            return Ok(host);
        }
        let session = match host.pool.session(0).await {
            Ok(session) => session,
            Err(Unavailable::Failed(why)) => return Err(why),
            // The session was lost right after it began.
            Err(Unavailable::Lost) => {
                let message = "the connection was lost at once".into();
                return Err(Error::Connect(ConnectError { message, permanent: false }));
            }
        };
        host.check_root(&session)?;
        scaling::start(&host.pool);
        Ok(host)
    }

    /// The root as an absolute path without links, as the server resolves it; used to rewrite
    /// absolute links. `None` while it is not known, for instance before a delayed connection.
    pub fn real_root(&self) -> Option<&[u8]> {
        self.pool.real_root.get().map(Vec::as_slice)
    }

    /// The value of [`Host::real_root`], which is set at the first connection, before any request
    /// is answered.
    pub fn real_root_once_known(&self) -> Arc<OnceLock<Vec<u8>>> {
        self.pool.real_root.clone()
    }

    /// Notes that a connection has failed, which another one had tried: nothing waits for a host
    /// that is known to be unreachable.
    pub fn set_unreachable(&self, why: String) {
        self.pool.set_unreachable(why);
    }

    /// If the last attempt to connect failed: the reason, in words for the user.
    pub fn connection_error(&self) -> Option<String> {
        self.pool.connection_error()
    }

    /// Lets the next caller connect, although attempts have failed: the user has changed something.
    pub fn retry_now(&self) {
        self.pool.retry_now();
    }

    /// Changes [`Config::max_conns`]. Sessions beyond it are closed with the next traffic.
    pub fn set_max_conns(&self, number: usize) {
        self.pool.set_max_sessions(number);
    }

    pub(crate) fn config(&self) -> &Config {
        &self.pool.config
    }

    /// The metadata session; connects if necessary.
    pub(crate) async fn metadata(&self) -> Result<Arc<Session>, Errno> {
        Ok(self.pool.metadata().await?)
    }

    fn check_root(&self, session: &Session) -> Result<(), Error> {
        let shown = || match self.config().base.as_slice() {
            b"" => "the home directory".to_owned(),
            base => base.escape_ascii().to_string(),
        };
        session.path(&RemotePath::root()).map_err(|_| Error::RootTooLong)?;
        // Requested when the session began.
        let Some(RootAnswers { attrs, .. }) = self.pool.root_answers.lock().take() else {
            return Ok(());
        };
        match attrs {
            _ if !self.config().check_root => Ok(()),
            Ok(attrs) => match attr::kind(&attrs) {
                Some(FileKind::Directory) => Ok(()),
                // A server that reports no file types could not be used later either.
                _ => Err(Error::RootNotDirectory { path: shown() }),
            },
            Err(error) if error.status() == Some(StatusCode::NO_SUCH_FILE) => {
                Err(Error::RootMissing { path: shown() })
            }
            Err(source) => Err(Error::Root { path: shown(), source }),
        }
    }
}
