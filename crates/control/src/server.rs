//! The daemon's side: accepts requests and answers them.

use std::io;
use std::os::unix::net::UnixListener as BlockingListener;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::RemotePath;
use cli::Problem;
use rustix::process::geteuid;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::job::{CacheJob, Tally};
use crate::place::Place;
use crate::profile::Profile;
use crate::status::MountStatus;
use crate::{
    Change, INVALID_REQUEST, MAX_REQUEST_BYTES, PROTOCOL, Reply, Request, SOCKET, Setting, Wish,
};

/// Maximum number of connections. Further ones wait in the kernel until one is closed.
const MAX_CONNECTIONS: usize = 16;

/// How long a peer may take to send its request, and to receive the reply. The commands of this
/// program take a millisecond.
const PEER_LIMIT: Duration = Duration::from_secs(5);

/// The pause after a failed accept(2), for example when no descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// The requests that a mount answers.
#[async_trait]
pub trait Asked: Send + Sync + 'static {
    /// The status. Waits for nothing.
    fn status(&self) -> MountStatus;

    /// The status with the counters. Waits for nothing.
    fn stats(&self) -> MountStatus;

    /// Records requests for some seconds. May be dropped at any time, which ends the recording.
    async fn profile(&self, seconds: u32) -> Result<Profile, Problem>;

    /// Changes the branches. If the future is dropped, the change was made completely or not at all.
    async fn change(&self, change: Change) -> Result<(), Problem>;

    /// Runs a job of the disk cache, and sends the progress to `told`. May be dropped at any time.
    async fn cache(&self, job: CacheJob, told: watch::Sender<Tally>) -> Result<Tally, Problem>;

    /// Where a path of the mount is.
    async fn place(&self, path: RemotePath) -> Result<Place, Problem>;

    /// Waits until what was written to open files before is at the servers.
    async fn flush(&self);

    /// Invalidates everything that is cached of the servers in memory and in the kernel.
    async fn refresh(&self);

    /// The options that can be changed, with their present values.
    fn settings(&self) -> Vec<Setting>;

    /// Changes all of these options, or none.
    async fn set(&self, options: &[String], is_remount: bool) -> Result<(), Problem>;
}

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
        Ok(Server(tokio::spawn(serve(listener, mount))))
    }
}

async fn serve(listener: UnixListener, mount: Arc<dyn Asked>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(converse(stream, mount.clone()));
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection to the control socket");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Serves one connection.
async fn converse(stream: UnixStream, mount: Arc<dyn Asked>) {
    let allowed = stream.peer_cred().is_ok_and(|peer| is_allowed(peer.uid()));
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader.take(MAX_REQUEST_BYTES));
    let wish = match (allowed, tokio::time::timeout(PEER_LIMIT, request(&mut reader)).await) {
        (false, _) => Err(not_allowed()),
        // A silent peer gets no reply.
        (true, Err(_) | Ok(Err(Unheard::Gone))) => return,
        (true, Ok(Err(Unheard::Odd(why)))) => Err(Problem::new(SOCKET, why)),
        (true, Ok(Ok(wish))) => Ok(wish),
    };
    let reply = match wish {
        Err(problem) => Some(Reply::Refused(problem)),
        Ok(Wish::Status) => Some(Reply::Status(Box::new(mount.status()))),
        Ok(Wish::Stats) => Some(Reply::Status(Box::new(mount.stats()))),
        Ok(Wish::Profile { seconds }) => {
            let recorded = async |_| Ok(Reply::Profile(Box::new(mount.profile(seconds).await?)));
            work(&mut reader, &mut writer, recorded).await
        }
        Ok(Wish::Branch(change)) => {
            let changed = async |_| mount.change(change).await.map(|()| Reply::Done);
            work(&mut reader, &mut writer, changed).await
        }
        Ok(Wish::Cache(job)) => {
            let done = async |told| mount.cache(job, told).await.map(Reply::Tally);
            work(&mut reader, &mut writer, done).await
        }
        Ok(Wish::Place { path }) => {
            let found = async |_| Ok(Reply::Place(Box::new(mount.place(path.0).await?)));
            work(&mut reader, &mut writer, found).await
        }
        Ok(Wish::Flush) => {
            let flushed = async |_| {
                mount.flush().await;
                Ok(Reply::Done)
            };
            work(&mut reader, &mut writer, flushed).await
        }
        Ok(Wish::Refresh) => {
            let refreshed = async |_| {
                mount.refresh().await;
                Ok(Reply::Done)
            };
            work(&mut reader, &mut writer, refreshed).await
        }
        Ok(Wish::Settings) => Some(Reply::Settings(mount.settings())),
        Ok(Wish::Set { options, is_remount }) => {
            let set = async |_| mount.set(&options, is_remount).await.map(|()| Reply::Done);
            work(&mut reader, &mut writer, set).await
        }
    };
    if let Some(reply) = reply
        && let Err(error) = say(&mut writer, &reply).await
    {
        tracing::debug!(%error, "cannot send a reply over the control socket");
    }
}

/// Runs `task`, and sends its progress to the peer. `None` if the peer has closed the connection.
async fn work(
    reader: &mut (impl AsyncBufReadExt + Unpin),
    writer: &mut (impl AsyncWriteExt + Unpin),
    task: impl AsyncFnOnce(watch::Sender<Tally>) -> Result<Reply, Problem>,
) -> Option<Reply> {
    say(writer, &Reply::Working).await.ok()?;
    let (told, mut heard) = watch::channel(Tally::default());
    let mut task = std::pin::pin!(task(told));
    // The client sends nothing more, so anything received means that it has ended.
    let mut hung_up = std::pin::pin!(reader.read_u8());
    loop {
        tokio::select! {
            done = &mut task => return Some(done.unwrap_or_else(Reply::Refused)),
            _ = &mut hung_up => return None,
            Ok(()) = heard.changed() => {
                let tally = heard.borrow_and_update().clone();
                say(writer, &Reply::Progress(tally)).await.ok()?;
            }
        }
    }
}

/// Whether a process of this user is answered.
fn is_allowed(user: u32) -> bool {
    user == 0 || user == geteuid().as_raw()
}

fn not_allowed() -> Problem {
    Problem::new(SOCKET, "permission denied: only the owner of the mount and root may connect")
}

/// Why there is no request.
enum Unheard {
    /// The peer has closed the connection, or did not send a line.
    Gone,
    /// The request is invalid.
    Odd(String),
}

async fn request(reader: &mut (impl AsyncBufReadExt + Unpin)) -> Result<Wish, Unheard> {
    let mut line = Vec::new();
    let read = reader.read_until(b'\n', &mut line).await;
    if read.is_err() || line.last() != Some(&b'\n') {
        return Err(Unheard::Gone);
    }
    understood(&line).map_err(Unheard::Odd)
}

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
