//! Connects to all hosts of a mount before the mount exists.
//!
//! The hosts are connected in parallel, so that mounting takes as long as the slowest host. ssh prompts
//! for passwords and new host keys on the terminal, where two cannot prompt at a time. So with several
//! hosts ssh may not prompt at first; hosts that failed for that reason are then connected one after
//! another, with ssh's prompts and messages on the terminal. A single host may prompt at once.
//!
//! An unreachable gateway of a pool is connected later if another one is reachable, and so is a host
//! whose source is optional. If a reached host refuses its source (no such directory), mounting always
//! fails.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use cli::Problem;
use host::{Connector, Host};
use tokio::task::JoinSet;

use crate::connector::SshConnector;

/// How long mounting waits for optional hosts. A login over a slow link with a jump host takes three
/// seconds.
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

/// The hosts of a source, connected or to be connected later.
pub(super) struct Reached {
    pub hosts: Vec<(String, Arc<Host>)>,
    /// Which of them are connected.
    pub connected: Vec<bool>,
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
pub(super) async fn all(sources: Vec<Wanted>, asking: Asking) -> Result<Vec<Reached>, Problem> {
    let count: usize = sources.iter().map(|source| source.targets.len()).sum();
    let at_once = asking == Asking::Terminal && count == 1;
    let mut running = JoinSet::new();
    for (index, source) in sources.iter().enumerate() {
        for target in &source.targets {
            target.connector.set_asking(at_once);
        }
        running.spawn(without_order(index, source));
    }
    let mut tried: Vec<Vec<Tried>> = sources.iter().map(|_| Vec::new()).collect();
    while let Some(joined) = running.join_next().await {
        let (index, result) =
            joined.map_err(|error| Problem::new("connecting", error.to_string()))?;
        tried[index] = result;
    }
    let mut reached = Vec::new();
    let mut missing: Option<Problem> = None;
    for (source, mut tried) in sources.into_iter().zip(tried) {
        if asking == Asking::Terminal && !at_once {
            ask(&source, &mut tried).await;
        }
        match judge(&source, tried).await {
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

/// Connects to all hosts of a source in parallel. Gives up slow hosts that are not needed.
fn without_order(
    index: usize,
    source: &Wanted,
) -> impl Future<Output = (usize, Vec<Tried>)> + use<> {
    let targets: Vec<(Arc<SshConnector>, host::Config)> = source
        .targets
        .iter()
        .map(|target| (target.connector.clone(), target.config.clone()))
        .collect();
    let is_optional = source.is_optional;
    async move {
        let mut tried: Vec<Tried> = targets.iter().map(|_| Err(Missed::Late)).collect();
        let mut running = JoinSet::new();
        for (index, (connector, config)) in targets.into_iter().enumerate() {
            running.spawn(async move { (index, connect(&connector, config).await) });
        }
        let limit = tokio::time::sleep(LIMIT);
        tokio::pin!(limit);
        let mut can_do_without = is_optional;
        loop {
            tokio::select! {
                joined = running.join_next() => match joined {
                    None => break,
                    Some(Ok((index, result))) => {
                        can_do_without |= result.is_ok();
                        tried[index] = result;
                    }
                    // The task has panicked; the host is reported as not answering.
                    Some(Err(error)) => tracing::error!(%error, "connecting"),
                },
                () = &mut limit, if can_do_without => break,
            }
        }
        (index, tried)
    }
}

async fn connect(connector: &Arc<SshConnector>, config: host::Config) -> Tried {
    let dyn_connector: Arc<dyn Connector> = connector.clone();
    Host::connect(dyn_connector, config)
        .await
        .map_err(|error| Missed::Failed { error, wants_answer: connector.wants_answer() })
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
        host::Error::Connect(_) | host::Error::Session { .. } | host::Error::Refused { .. } => {
            false
        }
        host::Error::Root { source, .. } => !source.ends_connection(),
        host::Error::RootMissing { .. }
        | host::Error::RootTooLong
        | host::Error::RootNotDirectory { .. }
        | host::Error::RootNotExpanded { .. } => true,
    }
}

/// Whether a source can be mounted with the connected hosts.
async fn judge(source: &Wanted, tried: Vec<Tried>) -> Result<Reached, Problem> {
    let about = |target: &Target, why: &Missed| match why {
        Missed::Failed { error, .. } => {
            let problem = Problem::new(&target.name, error.to_string());
            let problem = match (error, ends_like_a_word(&target.config.base)) {
                (host::Error::RootMissing { .. }, true) => problem.hint(WORDS),
                _ => problem,
            };
            if is_answer(error) { problem.of_source() } else { problem }
        }
        Missed::Late => {
            Problem::new(&target.name, format!("no answer within {} s", LIMIT.as_secs()))
        }
    };
    let one_lives = tried.iter().any(Result::is_ok);
    let mut reached = Reached { hosts: Vec::new(), connected: Vec::new() };
    for (target, tried) in source.targets.iter().zip(tried) {
        // From here on, as with any later connection, ssh's messages go to the log.
        target.connector.set_asking(true);
        let host = match tried {
            Ok(host) => {
                reached.connected.push(!target.config.delay_connect);
                host
            }
            Err(why) => {
                let speaks_of_source = match &why {
                    Missed::Failed { error: host::Error::Root { .. }, .. } => true,
                    Missed::Failed { error, .. } => is_answer(error),
                    Missed::Late => false,
                };
                let problem = about(target, &why);
                if speaks_of_source || !one_lives && !source.is_optional {
                    return Err(problem);
                }
                tracing::warn!("mounted without {problem}");
                reached.connected.push(false);
                later(target)
                    .await
                    .map_err(|error| Problem::new(&target.name, error.to_string()))?
            }
        };
        reached.hosts.push((target.name.clone(), Arc::new(host)));
    }
    Ok(reached)
}

/// The host without a connection; it connects when needed.
async fn later(target: &Target) -> Result<Host, host::Error> {
    let config = host::Config { delay_connect: true, ..target.config.clone() };
    let connector: Arc<dyn Connector> = target.connector.clone();
    Host::connect(connector, config).await
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
