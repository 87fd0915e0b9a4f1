//! The daemon's side: accepts requests and answers them.

use std::future::poll_fn;
use std::io;
use std::os::unix::net::UnixListener as BlockingListener;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use cli::{OrProblem, Problem};
use rustix::process::geteuid;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader, Take};
use tokio::net::unix::OwnedReadHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::job::Tally;
use crate::{INVALID_REQUEST, MAX_REQUEST_BYTES, PROTOCOL, Reply, Request, SOCKET, Wish};

/// Maximum number of connections. Further ones wait in the kernel until one is closed, and their
/// peers take this process for hung; so it is more than scripts have commands at a time.
const MAX_CONNECTIONS: usize = 128;

/// Maximum number of jobs of the disk cache at a time. Further ones wait for their turn.
const MAX_JOBS: usize = 16;

/// How long a peer may take to send its request, and to receive the reply. The commands of this
/// program take a millisecond.
const PEER_LIMIT: Duration = Duration::from_secs(5);

/// The pause after a failed accept(2), for example when no descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// A mount that answers requests.
#[async_trait]
pub trait Asked: Send + Sync + 'static {
    /// The reply to a request. Waits for nothing if the request [is quick](Wish::is_quick). The
    /// progress of a job is sent to `told`. May be dropped at any time: a change was then made
    /// completely or not at all.
    async fn answer(&self, wish: Wish, told: watch::Sender<Tally>) -> Result<Reply, Problem>;

    /// Receives the password that is the next line of `secret`; returns the login with it at a
    /// host, which keeps it.
    async fn log_in(
        &self,
        host: String,
        secret: &mut (dyn AsyncRead + Send + Unpin),
    ) -> Result<Login<'_>, Problem>;
}

/// A login, which may be dropped at any time: the password is then not kept.
pub type Login<'a> = Pin<Box<dyn Future<Output = Result<(), Problem>> + Send + 'a>>;

/// Answers requests until it is dropped.
#[derive(Debug)]
pub struct Server(JoinHandle<()>);

impl Drop for Server {
    fn drop(&mut self) {
        // The task owns the connections.
        self.0.abort();
    }
}

impl Server {
    /// Answers requests on `listener`. Must be called within a tokio runtime.
    pub fn start(listener: BlockingListener, mount: Arc<dyn Asked>) -> io::Result<Server> {
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let jobs = Arc::new(Semaphore::new(MAX_JOBS));
        Ok(Server(tokio::spawn(serve_connections(
            MAX_CONNECTIONS,
            move |context| listener.poll_accept(context),
            move |(stream, _)| converse(stream, mount.clone(), jobs.clone()),
        ))))
    }
}

/// Accepts connections, at most `max` at a time, and serves each. Further ones wait in the kernel.
/// Never returns; the connections are closed when this is dropped.
pub async fn serve_connections<S, F: Future<Output = ()> + Send + 'static>(
    max: usize,
    poll_accept: impl Fn(&mut Context<'_>) -> Poll<io::Result<S>>,
    serve: impl Fn(S) -> F,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = poll_fn(&poll_accept), if connections.len() < max => match accepted {
                Ok(stream) => drop(connections.spawn(serve(stream))),
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Serves one connection.
async fn converse(stream: UnixStream, mount: Arc<dyn Asked>, jobs: Arc<Semaphore>) {
    let allowed = stream.peer_cred().is_ok_and(|peer| is_allowed(peer.uid()));
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader.take(MAX_REQUEST_BYTES));
    let mut line = Vec::new();
    let request = reader.read_until(b'\n', &mut line);
    let heard = tokio::time::timeout(PEER_LIMIT, request).await;
    let is_whole = heard.is_ok_and(|read| read.is_ok()) && line.ends_with(b"\n");
    let wish = match (allowed, is_whole) {
        (false, _) => Err(not_allowed()),
        // A silent peer gets no reply.
        (true, false) => return,
        (true, true) => understood(&line).or_problem(SOCKET),
    };
    let reply = match wish {
        Err(problem) => Some(Reply::Refused(problem)),
        Ok(Wish::Login { host }) => log_in(&mut reader, &mut writer, &*mount, host).await,
        Ok(wish) => work(&mut reader, &mut writer, &*mount, &jobs, wish).await,
    };
    if let Some(reply) = reply
        && let Err(error) = say(&mut writer, &reply).await
    {
        tracing::debug!(%error, "cannot send a reply over the control socket");
    }
}

/// The reply of the mount; sends its progress to the peer. `None` if the peer has closed the
/// connection.
async fn work(
    reader: &mut (impl AsyncBufReadExt + Unpin),
    writer: &mut (impl AsyncWriteExt + Unpin),
    mount: &dyn Asked,
    jobs: &Semaphore,
    wish: Wish,
) -> Option<Reply> {
    if !wish.is_quick() {
        say(writer, &Reply::Working).await.ok()?;
    }
    let (told, mut heard) = watch::channel(Tally::default());
    let mut task = std::pin::pin!(async {
        let _turn = match wish {
            Wish::Cache(_) => jobs.acquire().await.ok(),
            _ => None,
        };
        mount.answer(wish, told).await
    });
    // The client sends nothing more, so anything received means that it has ended.
    let mut hung_up = std::pin::pin!(reader.read_u8());
    loop {
        tokio::select! {
            // The reply to a quick request is there at the first poll.
            biased;
            done = &mut task => return Some(done.unwrap_or_else(Reply::Refused)),
            _ = &mut hung_up => return None,
            Ok(()) = heard.changed() => {
                let tally = heard.borrow_and_update().clone();
                say(writer, &Reply::Progress(tally)).await.ok()?;
            }
        }
    }
}

/// The reply to [`Wish::Login`]. `None` if the peer has closed the connection.
async fn log_in(
    reader: &mut BufReader<Take<OwnedReadHalf>>,
    writer: &mut (impl AsyncWriteExt + Unpin),
    mount: &dyn Asked,
    host: String,
) -> Option<Reply> {
    say(writer, &Reply::Working).await.ok()?;
    // Past the buffer, in which the secret would stay. It is empty: the client has waited.
    let secret = reader.get_mut().get_mut();
    let done = match mount.log_in(host, secret).await {
        Err(problem) => Err(problem),
        Ok(login) => tokio::select! {
            done = login => done,
            // As in `work`.
            _ = secret.read_u8() => return None,
        },
    };
    Some(done.map_or_else(Reply::Refused, |()| Reply::Done))
}

/// Whether a process of this user is answered.
fn is_allowed(user: u32) -> bool {
    user == 0 || user == geteuid().as_raw()
}

fn not_allowed() -> Problem {
    Problem::new(SOCKET, "permission denied: only the owner of the mount and root may connect")
}

/// The request in a line. The error is the reason.
fn understood(line: &[u8]) -> Result<Wish, String> {
    /// The field that every version has.
    #[derive(Deserialize)]
    struct Version {
        protocol: u32,
    }
    let version: Version = serde_json::from_slice(line).map_err(|_| INVALID_REQUEST)?;
    if version.protocol != PROTOCOL {
        let (asked, ours) = (version.protocol, PROTOCOL);
        return Err(format!(
            "the request uses version {asked} of the protocol, but the daemon of this mount (sshoal \
             {}) version {ours}",
            env!("CARGO_PKG_VERSION")
        ));
    }
    let request: Request = serde_json::from_slice(line).map_err(|_| INVALID_REQUEST)?;
    Ok(request.wish)
}

async fn say(writer: &mut (impl AsyncWriteExt + Unpin), reply: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    tokio::time::timeout(PEER_LIMIT, writer.write_all(&line)).await?
}

#[cfg(test)]
mod tests;
