//! A host, and how it is connected to.

use std::sync::{Arc, OnceLock};

use base::{Errno, FileKind, RemotePath};
use sftp::StatusCode;
use tokio::sync::watch;

use crate::config::Config;
use crate::connector::{ConnectError, Connector};
use crate::error::Error;
use crate::handles::Handles;
use crate::pool::{Pool, Unavailable};
use crate::session::Session;
use crate::{attr, gather, growth};

/// One remote host as a [`base::Remote`].
///
/// To be used within the tokio runtime in which it was connected.
pub struct Host {
    pub(crate) pool: Arc<Pool>,
    pub(crate) handles: Arc<Handles>,
    real_root: OnceLock<Vec<u8>>,
    /// Its end tells attempts to connect that nobody wants them any more.
    _wants: watch::Sender<()>,
}

impl Host {
    /// Connects, unless that is to be delayed, and checks the root, unless that is not wanted.
    pub async fn connect(connector: Arc<dyn Connector>, config: Config) -> Result<Host, Error> {
        let (wants, wanted) = watch::channel(());
        let pool = Pool::new(connector, config, wanted.clone());
        let handles = Arc::new(Handles::new());
        tokio::spawn(growth::run(Arc::downgrade(&pool), Arc::downgrade(&handles), wanted));
        let host = Host { pool, handles, real_root: OnceLock::new(), _wants: wants };
        if host.config().delay_connect {
            return Ok(host);
        }
        let session = match host.pool.session(0).await {
            Ok(session) => session,
            Err(Unavailable::Failed(why)) => return Err(why),
            // It died within the moment since it began.
            Err(Unavailable::Lost) => {
                let message = "the connection was lost at once".into();
                return Err(Error::Connect(ConnectError { message, lasting: false }));
            }
        };
        host.find_root(&session).await?;
        growth::begin(&host.pool);
        Ok(host)
    }

    /// The root as an absolute path without links in it, as the server resolves it. For the
    /// rewriting of absolute links. `None` when it is not known, as before a delayed connect.
    #[must_use]
    pub fn real_root(&self) -> Option<&[u8]> {
        self.real_root.get().map(Vec::as_slice)
    }

    /// Why there is no connection, in words for the user, when the last attempt to make one has
    /// failed.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.pool.trouble()
    }

    pub(crate) fn config(&self) -> &Config {
        &self.pool.config
    }

    /// The session for metadata, living, connecting if need be.
    pub(crate) async fn metadata(&self) -> Result<Arc<Session>, Errno> {
        match self.pool.living(0) {
            Some(session) => Ok(session),
            None => Ok(self.pool.session(0).await?),
        }
    }

    async fn find_root(&self, session: &Session) -> Result<(), Error> {
        let shown = || match self.config().base.as_slice() {
            b"" => "the home directory".to_owned(),
            base => base.escape_ascii().to_string(),
        };
        let path = session.path(&RemotePath::root()).map_err(|_| Error::RootTooLong)?;
        // A root that is a link to a directory is as good as the directory.
        let (stat, real) =
            gather::both(session.client.stat(&path), session.client.realpath(&path)).await;
        match stat {
            _ if !self.config().check_root => {}
            Ok(attrs) => match attr::kind(&attrs) {
                Some(FileKind::Directory) => {}
                // A server that tells no kinds could not be used further on either.
                _ => return Err(Error::RootNotDirectory { path: shown() }),
            },
            Err(error) if error.status() == Some(StatusCode::NO_SUCH_FILE) => {
                return Err(Error::RootMissing { path: shown() });
            }
            Err(source) => return Err(Error::Root { path: shown(), source }),
        }
        if let Ok(real) = real {
            let _ = self.real_root.set(real.to_vec());
        }
        Ok(())
    }
}
