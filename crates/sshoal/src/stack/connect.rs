//! Connects to all hosts of a mount before the mount exists.
//!
//! The hosts are connected in parallel, so that mounting takes as long as the slowest host. ssh
//! prompts for passwords and new host keys on the terminal, where two cannot prompt at a time. So
//! with several hosts ssh may not prompt at first; hosts that failed for that reason are then
//! connected one after another, with ssh's prompts and messages on the terminal. A single host may
//! prompt at once.
//!
//! An unreachable gateway of a pool is connected later if another one is reachable, and so is a
//! host whose source is optional. If a reached host refuses its source (no such directory),
//! mounting always fails.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use cli::{OrProblem, Problem};
use host::Host;
use tokio::task::JoinSet;

use crate::connector::SshConnector;

/// How long mounting waits for optional hosts. A login over a slow link with a jump host takes
/// three seconds.
const LIMIT: Duration = Duration::from_secs(10);

/// One host to be connected.
pub(super) struct Target {
    /// The name as the user wrote it.
    pub name: String,
    pub connector: Arc<SshConnector>,
    pub config: host::Config,
}

/// The hosts of one source.
pub(super) struct Wanted {
    pub targets: Vec<Target>,
    /// The mount works without them.
    pub is_optional: bool,
}

/// A host of a source.
pub struct Server {
    /// The name as the user wrote it.
    pub name: String,
    pub host: Arc<Host>,
    /// Whether it was connected when the source was opened.
    pub(super) connected: bool,
    pub(super) connector: Arc<SshConnector>,
}

impl Server {
    /// Whether the prompts of its first login can be answered again.
    pub fn password_state(&self) -> ssh::PasswordState {
        self.connector.dialer.password_state()
    }

    /// Whether it is connected, and another program than `sshoal helper` serves it.
    pub fn lacks_helper(&self) -> bool {
        self.host.server().is_some_and(|server| !server.is_helper)
    }
}

/// Whether ssh may prompt for passwords.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asking {
    /// On the terminal.
    Terminal,
    /// Never.
    Nobody,
}

enum Missed {
    Failed {
        error: host::Error,
        wants_answer: bool,
    },
    /// It had not answered when the wait was given up.
    Late,
}

type Tried = Result<Host, Missed>;

/// Connects to the hosts of all sources. Keeps their order.
pub(super) async fn all(sources: Vec<Wanted>, asking: Asking) -> Result<Vec<Vec<Server>>, Problem> {
    let count: usize = sources.iter().map(|source| source.targets.len()).sum();
    let at_once = asking == Asking::Terminal && count == 1;
    let tried = in_parallel(&sources, at_once).await;
    let mut reached = Vec::new();
    let mut missing: Option<Problem> = None;
    for (source, mut tried) in sources.into_iter().zip(tried) {
        if asking == Asking::Terminal && !at_once {
            ask(&source, &mut tried).await;
        }
        match judge(source, tried).await {
            Ok(source) => reached.push(source),
            // Reports all failures, so that the user can fix them together.
            Err(problem) => {
                missing = Some(match missing {
                    None => problem,
                    Some(first) => first.hint_too(&problem.to_string()),
                });
            }
        }
    }
    missing.map_or(Ok(reached), Err)
}

/// Connects to all hosts in parallel. Gives up slow hosts if only such are left that are not
/// needed.
async fn in_parallel(sources: &[Wanted], may_ask: bool) -> Vec<Vec<Tried>> {
    let late = |source: &Wanted| source.targets.iter().map(|_| Err(Missed::Late)).collect();
    let mut tried: Vec<Vec<Tried>> = sources.iter().map(late).collect();
    let mut running = JoinSet::new();
    for (at, source) in sources.iter().enumerate() {
        for (index, target) in source.targets.iter().enumerate() {
            target.connector.set_asking(may_ask);
            let (connector, config) = (target.connector.clone(), target.config.clone());
            running.spawn(async move { (at, index, connect(&connector, config).await) });
        }
    }
    let mut limit = std::pin::pin!(tokio::time::sleep(LIMIT));
    loop {
        let can_do_without = sources.iter().zip(&tried).all(|(source, tried)| {
            source.is_optional
                || tried.iter().any(Result::is_ok)
                || !tried.iter().any(|tried| matches!(tried, Err(Missed::Late)))
        });
        tokio::select! {
            joined = running.join_next() => match joined {
                None => return tried,
                Some(Ok((at, index, result))) => tried[at][index] = result,
                // The task has panicked; the host is reported as not answering.
                Some(Err(error)) => tracing::error!(%error, "connecting"),
            },
            () = &mut limit, if can_do_without => return tried,
        }
    }
}

async fn connect(connector: &Arc<SshConnector>, config: host::Config) -> Tried {
    let name = config.name.clone();
    let host = Host::connect(connector.clone(), config)
        .await
        .map_err(|error| Missed::Failed { error, wants_answer: connector.wants_answer() })?;
    if connector.dialer.password_state() == ssh::PasswordState::Needed {
        tracing::warn!(
            "{name}: what was typed for this login is not kept: no further session, and no new \
             connection when this one is lost; {}",
            connector.type_again()
        );
    }
    Ok(host)
}

/// Retries, one after another and with ssh's prompts on the terminal, the hosts whose ssh could not
/// prompt. Optional hosts are retried only if there is a terminal.
async fn ask(source: &Wanted, tried: &mut [Tried]) {
    let has_terminal = || File::open("/dev/tty").is_ok();
    for (target, tried) in source.targets.iter().zip(tried) {
        let wants_answer = matches!(tried, Err(Missed::Failed { wants_answer: true, .. }));
        if wants_answer && (!source.is_optional || has_terminal()) {
            target.connector.set_asking(true);
            *tried = connect(&target.connector, target.config.clone()).await;
        }
    }
}

/// The hint for a missing directory whose name ends like a list of words.
const WORDS: &str = "words behind a source are rw, ro, nc, required, optional; \
    and of a pool balance, hash, failover";

/// Whether a path ends like a list of words after a source.
fn ends_like_a_word(path: &[u8]) -> bool {
    let last = path.rsplit(|byte| *byte == b'=').next().unwrap_or_default();
    last.len() < path.len()
        && !last.is_empty()
        && last.iter().all(|byte| byte.is_ascii_alphabetic() || b",-_".contains(byte))
}

/// Whether the error is an answer of a host, not a failed connection.
fn is_answer(error: &host::Error) -> bool {
    match error {
        host::Error::Connect(_)
        | host::Error::Session { .. }
        | host::Error::Refused { .. }
        | host::Error::NoHelper { .. }
        | host::Error::NoDirect { .. }
        | host::Error::HelperGone { .. } => false,
        host::Error::Root { source, .. } => !source.ends_connection(),
        host::Error::RootMissing { .. }
        | host::Error::RootTooLong
        | host::Error::RootNotDirectory { .. }
        | host::Error::RootNotExpanded { .. } => true,
    }
}

/// The hosts of a source, if it can be mounted with those that are connected.
async fn judge(source: Wanted, tried: Vec<Tried>) -> Result<Vec<Server>, Problem> {
    let one_lives = tried.iter().any(Result::is_ok);
    let mut servers = Vec::new();
    for (target, tried) in source.targets.into_iter().zip(tried) {
        // From here on, as with any later connection, ssh's messages go to the log.
        target.connector.set_asking(true);
        let mut connected = !target.config.delay_connect;
        let host = match tried {
            Ok(host) => host,
            Err(missed) => {
                let why = missed.why();
                let (problem, speaks_of_source) = missed.explain(&target);
                if speaks_of_source || !one_lives && !source.is_optional {
                    return Err(problem);
                }
                tracing::warn!("mounted without {problem}");
                connected = false;
                // It connects when needed.
                let config = host::Config { delay_connect: true, ..target.config };
                let host = Host::connect(target.connector.clone(), config).await;
                host.inspect(|host| host.set_unreachable(why)).or_problem(&target.name)?
            }
        };
        let (name, connector) = (target.name, target.connector);
        servers.push(Server { name, host: Arc::new(host), connected, connector });
    }
    Ok(servers)
}

impl Missed {
    fn why(&self) -> String {
        match self {
            Missed::Failed { error, .. } => error.to_string(),
            Missed::Late => format!("no answer within {} s", LIMIT.as_secs()),
        }
    }

    /// The message, and whether the host was reached and refused its source.
    fn explain(&self, target: &Target) -> (Problem, bool) {
        let mut problem = Problem::new(&target.name, self.why());
        let Missed::Failed { error, .. } = self else { return (problem, false) };
        if matches!(error, host::Error::RootMissing { .. }) && ends_like_a_word(&target.config.base)
        {
            problem = problem.hint(WORDS);
        }
        match is_answer(error) {
            true => (problem.of_source(), true),
            false => (problem, matches!(error, host::Error::Root { .. })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ends_like_a_word;

    #[test]
    fn a_mistyped_word_is_told_from_a_path() {
        for path in ["/dir=readonly", "/dir=opt-ional", "/a=b=roo", "=Ro,optinal"] {
            assert!(ends_like_a_word(path.as_bytes()), "{path}");
        }
        for path in ["/dir", "", "readonly", "/dir=", "/dir=a/b", "/dir=1"] {
            assert!(!ends_like_a_word(path.as_bytes()), "{path}");
        }
    }
}
