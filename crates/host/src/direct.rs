//! Direct connections: TLS to the helper at the server, beside the ssh session that has started it.
//!
//! Over the ssh session, which stays, each side learns the digest of the other's fresh key, and the
//! client learns where the helper listens (`direct@sshoal`). Sessions over direct connections are
//! like those over ssh: the first one, and further ones for content.
//!
//! Invariants:
//! 1. A direct session has a *carrier*, the ssh session over which it was arranged, and ends with
//!    it.
//! 2. The first session is direct if that could be arranged right after its ssh session began. If
//!    it is lost while its carrier is alive, another one replaces it; if none can be made, the
//!    carrier itself does, for the rest of its life. Requests in flight fail as with any lost
//!    session.
//! 3. With [`Direct::Require`] no session but carriers goes through ssh.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base::Mutex;
use direct::{Digest, Identity};
use sftp::codec::DirectRequest;
use sftp::{Counters, Extension};

use crate::config::{Config, Direct};
use crate::connector::Connection;
use crate::error::Error;
use crate::pool::Pool;
use crate::session::Session;

/// Time for a direct connection: a lost packet is sent again after one second, and after three.
const LIMIT: Duration = Duration::from_secs(4);

/// The use of direct connections by a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectUse {
    /// The first session goes to this address.
    At(SocketAddr),
    /// All sessions go through ssh, for this reason. May contain the server's text; not escaped.
    Unused(String),
}

/// How to make direct connections to a helper.
struct Path {
    carrier: Arc<Session>,
    identity: Identity,
    peer: Digest,
    address: SocketAddr,
}

/// The direct connections of a host.
#[derive(Default)]
pub(crate) struct DirectState {
    path: Mutex<Option<Arc<Path>>>,
    unused: Mutex<Option<String>>,
}

impl DirectState {
    /// `None` if none was attempted yet.
    pub(crate) fn used(&self) -> Option<DirectUse> {
        let unused = || self.unused.lock().clone().map(DirectUse::Unused);
        self.live_path().map(|path| DirectUse::At(path.address)).or_else(unused)
    }

    fn live_path(&self) -> Option<Arc<Path>> {
        self.path.lock().clone().filter(|path| path.carrier.is_alive())
    }

    fn set_path(&self, path: Arc<Path>) {
        let before = self.path.lock().replace(path);
        *self.unused.lock() = None;
        drop(before);
    }

    fn set_unused(&self, why: &str) {
        let before = self.path.lock().take();
        *self.unused.lock() = Some(why.to_owned());
        drop(before);
    }
}

impl Path {
    /// Begins a session over a direct connection.
    async fn begin(
        &self,
        slot: usize,
        config: &Config,
        counters: &Arc<Counters>,
    ) -> Result<Arc<Session>, String> {
        let begin = async {
            let Path { address, identity, peer, .. } = self;
            let connected =
                direct::connect(*address, identity, *peer, LIMIT, config.poll_limit).await;
            let (reader, writer) = connected.map_err(|error| error.to_string())?;
            let link = writer.link();
            let mut connection = Connection::from_halves(reader, writer, Box::new(|| None));
            connection.link = Some(Arc::new(link));
            let carrier = Some(self.carrier.clone());
            let begun = Session::begin(connection, slot, config, counters, true, carrier).await;
            begun.map_err(|error| error.to_string())
        };
        let begun = tokio::time::timeout(LIMIT, begin).await;
        let begun =
            begun.unwrap_or_else(|_| Err(format!("no answer within {} s", LIMIT.as_secs())));
        begun.map_err(|why| format!("{}: {why}", self.address))
    }
}

/// What was arranged over an ssh session that may become the first one.
pub(crate) struct Arranged {
    carrier: Arc<Session>,
    /// How to make direct connections, if the helper listens.
    path: Option<Arc<Path>>,
    /// The first of them, or why there is none; the carrier itself with [`Direct::No`].
    first: Result<Arc<Session>, String>,
}

impl Pool {
    /// The session that replaces `session`, the first one, if a direct one can.
    ///
    /// # Errors
    /// When none can, and one is required.
    pub(crate) async fn prefer_direct(&self, session: Arc<Session>) -> Result<Arc<Session>, Error> {
        self.adopt_direct(self.arrange_direct(session).await)
    }

    /// Makes a direct connection over a new ssh session. Nothing else is done over it until the
    /// result is [adopted](Pool::adopt_direct); if it is dropped, that session ends.
    pub(crate) async fn arrange_direct(&self, carrier: Arc<Session>) -> Arranged {
        if self.config.direct == Direct::No {
            return Arranged { path: None, first: Ok(carrier.clone()), carrier };
        }
        match self.listening(&carrier).await {
            Ok(path) => {
                let first = path.begin(0, &self.config, self.counters()).await;
                Arranged { carrier, path: Some(Arc::new(path)), first }
            }
            Err(why) => Arranged { carrier, path: None, first: Err(why) },
        }
    }

    /// Whether this can be adopted.
    pub(crate) fn is_adoptable(&self, arranged: &Arranged) -> Result<(), Error> {
        match &arranged.first {
            Err(why) if self.config.direct == Direct::Require => {
                Err(Error::NoDirect { why: why.clone() })
            }
            _ => Ok(()),
        }
    }

    /// From now on direct connections are made as it was arranged. Returns the first session.
    ///
    /// # Errors
    /// When there is no direct one, and one is required.
    pub(crate) fn adopt_direct(&self, arranged: Arranged) -> Result<Arc<Session>, Error> {
        let Arranged { carrier, path, first } = arranged;
        let address = path.as_ref().map(|path| path.address);
        path.into_iter().for_each(|path| self.direct.set_path(path));
        match first {
            Ok(first) => {
                if let Some(address) = address {
                    tracing::info!("{}: direct connection to {address}", self.config.name);
                }
                Ok(first)
            }
            Err(why) => {
                self.give_up_direct(&why)?;
                Ok(carrier)
            }
        }
    }

    /// A further session, or the first one anew, while an ssh session for direct ones is alive.
    /// `None` if it has to be made by ssh.
    ///
    /// # Errors
    /// When there can be none, and one is required.
    pub(crate) async fn begin_direct(&self, slot: usize) -> Result<Option<Arc<Session>>, Error> {
        let is_required = self.config.direct == Direct::Require;
        let Some(path) = self.direct.live_path() else {
            let why = "the ssh session for it has ended".to_owned();
            return if slot > 0 && is_required { Err(Error::NoDirect { why }) } else { Ok(None) };
        };
        match path.begin(slot, &self.config, self.counters()).await {
            Ok(session) => Ok(Some(session)),
            Err(why) if slot > 0 && !is_required => {
                tracing::debug!(session = slot, "no direct connection: {why}");
                Ok(None)
            }
            Err(why) if slot > 0 => Err(Error::NoDirect { why }),
            Err(why) => {
                self.give_up_direct(&why)?;
                Ok(Some(path.carrier.clone()))
            }
        }
    }

    /// With [`Direct::Require`], the next attempt needs no login while the carrier is alive.
    fn give_up_direct(&self, why: &str) -> Result<(), Error> {
        let name = &self.config.name;
        if self.config.direct == Direct::Require {
            return Err(Error::NoDirect { why: why.to_owned() });
        }
        self.direct.set_unused(why);
        tracing::warn!("{name}: no direct connection, but ssh: {why}");
        Ok(())
    }

    /// Lets the helper of this session listen.
    async fn listening(&self, session: &Arc<Session>) -> Result<Path, String> {
        if !session.offers(Extension::Direct) {
            return Err(match session.is_helper() {
                true => "the helper at the server allows none",
                false => "only the helper offers it, and another SFTP server answers",
            }
            .to_owned());
        }
        let identity = Identity::fresh().map_err(|error| error.to_string())?;
        let request = DirectRequest {
            key: identity.digest().0,
            ports: self.config.direct_ports,
            poll_us: self.config.poll_limit.as_micros().try_into().unwrap_or(u32::MAX),
        };
        let offer = session.client.direct(request).await.map_err(refusal)?;
        let address = match &self.config.direct_address {
            None => SocketAddr::new(offer.address, offer.port),
            Some((name, port)) => {
                let found = resolve(name, port.unwrap_or(offer.port), offer.address);
                let found = tokio::time::timeout(LIMIT, found).await;
                found.unwrap_or_else(|_| Err(format!("{}: no address", name.escape_debug())))?
            }
        };
        let (carrier, peer) = (session.clone(), Digest(offer.key));
        Ok(Path { carrier, identity, peer, address })
    }
}

/// The server's reason for not listening.
fn refusal(error: sftp::Error) -> String {
    match error {
        sftp::Error::Status { message, .. } => {
            format!("the server cannot listen: {}", message.escape_debug())
        }
        error => error.to_string(),
    }
}

/// The address of a name, of the same kind as the one that the server reports if there is one.
async fn resolve(name: &str, port: u16, reported: IpAddr) -> Result<SocketAddr, String> {
    let failed = |why: String| format!("{}: {why}", name.escape_debug());
    let found = tokio::net::lookup_host((name, port)).await;
    let found: Vec<_> = found.map_err(|error| failed(error.to_string()))?.collect();
    let same = found.iter().find(|address| address.is_ipv4() == reported.is_ipv4());
    same.or(found.first()).copied().ok_or_else(|| failed("no address".to_owned()))
}
