//! Puts the helper on a server: a static build, by SFTP, into a private directory of the login.
//!
//! The file is written under a temporary name, compared by its digest, and started once. Only then
//! it gets its own name, in one step. If anything fails, the temporary file is removed, and a
//! helper that was installed before stays.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use base::{Access, AttrChange, Create, Errno, OpenFlags, OwnedFh, Remote, RemotePath, RenameMode};
use bytes::Bytes;
use cli::{OrProblem, Problem, printable};
use host::{Config, Helper, Host};
use tokio::io::AsyncReadExt;
use tokio::time::error::Elapsed;
use transfer::digest::{self, ShellDigester};
use transfer::{Running, Tree};

use super::place;
use super::static_build::{self, Architecture};
use crate::connector::SshConnector;

/// How long a command at the server may take, also a start of the helper.
pub const COMMAND_LIMIT: Duration = Duration::from_secs(20);

/// How long the removal of a temporary file may take.
const CLEANUP_LIMIT: Duration = Duration::from_secs(5);

/// Maximum bytes read of the output of `uname`, with what a login shell prints before.
const OUTPUT_MAX_BYTES: u64 = 64 * 1024;

const PRIVATE: u32 = 0o700;

/// What was installed.
pub struct Installed {
    /// The path on the server, relative to the home.
    pub path: String,
    /// The name of its architecture.
    pub architecture: &'static str,
}

/// Installs the helper at the host. `stopped` ends it early.
pub async fn install(
    connector: &Arc<SshConnector>,
    architecture: Option<&'static Architecture>,
    stopped: impl Future<Output = ()>,
) -> Result<Installed, Problem> {
    let mut stopped = std::pin::pin!(stopped);
    let interrupted = || Problem::new("helper", "interrupted, and not installed");
    let (host, architecture, content) = tokio::select! {
        biased;
        // First, since a signal may have come before.
        () = &mut stopped => return Err(interrupted()),
        prepared = prepare(connector, architecture) => prepared?,
    };
    let random = RandomState::new().hash_one(std::process::id());
    let temporary = path(&format!("{}/.{}.{random:016x}", place::own_directory(), place::NAME));
    let put = put(connector, &host, &temporary, content);
    let done = tokio::select! {
        biased;
        () = stopped => Err(interrupted()),
        done = put => done,
    };
    if let Err(problem) = done {
        let _ = tokio::time::timeout(CLEANUP_LIMIT, host.unlink(&temporary)).await;
        return Err(problem);
    }
    Ok(Installed { path: own_path(), architecture: architecture.name() })
}

/// Connects to the host, finds the program for it, and makes the directories for it.
async fn prepare(
    connector: &Arc<SshConnector>,
    architecture: Option<&'static Architecture>,
) -> Result<(Arc<Host>, &'static Architecture, Bytes), Problem> {
    let host = Arc::new(connect(connector, Helper::No).await?);
    let found = architecture_of_server(connector).await;
    let architecture = match (found, architecture) {
        (Ok(found), Some(wanted)) if found != wanted => {
            return Err(Problem::new(
                "option '--arch'",
                format!("the server is {}, not {}", found.name(), wanted.name()),
            ));
        }
        (_, Some(wanted)) => wanted,
        (found, None) => found?,
    };
    let content = Bytes::from(static_build::find(architecture)?);
    make_directories(&host).await?;
    Ok((host, architecture, content))
}

/// A connection to the host.
pub async fn connect(connector: &Arc<SshConnector>, helper: Helper) -> Result<Host, Problem> {
    let name = connector.name();
    let config =
        Config { name: name.clone(), helper, rename_workaround: true, ..Config::default() };
    let connected = Host::connect(connector.clone(), config).await;
    connected.or_problem(name)
}

/// Starts the helper at `path`, by a login that asks the user nothing.
pub async fn start(
    connector: &Arc<SshConnector>,
    path: String,
) -> Result<Result<Host, Problem>, Elapsed> {
    let again = Arc::new(connector.again());
    tokio::time::timeout(COMMAND_LIMIT, connect(&again, Helper::At(path))).await
}

/// The path of this version's helper.
fn own_path() -> String {
    format!("{}/{}", place::own_directory(), place::NAME)
}

fn path(text: &str) -> RemotePath {
    RemotePath::parse(text.as_bytes()).expect("a relative path")
}

/// What `uname` prints at the server.
async fn architecture_of_server(
    connector: &SshConnector,
) -> Result<&'static Architecture, Problem> {
    let about = || connector.name();
    let asked = async {
        let running = connector.shell().start(b"uname -sm").await.or_problem(about())?;
        let Running { stdin, stdout, exit } = running;
        drop(stdin);
        let mut text = Vec::new();
        stdout.take(OUTPUT_MAX_BYTES).read_to_end(&mut text).await.or_problem(about())?;
        // It reports a login that failed.
        exit.await.or_problem(about())?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    };
    let limit = COMMAND_LIMIT.as_secs();
    let late = |_| Err(Problem::new(about(), format!("no answer to `uname` within {limit} s")));
    let text = tokio::time::timeout(COMMAND_LIMIT, asked).await.unwrap_or_else(late)?;
    // A login shell may print other lines before.
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    match last.split_once(' ') {
        Some(("Linux", machine)) => Architecture::named(machine).ok_or_else(|| {
            let machine = printable(machine);
            Problem::new(about(), format!("there is no build for its architecture, {machine}"))
        }),
        Some((system @ ("FreeBSD" | "OpenBSD" | "NetBSD" | "Darwin" | "SunOS"), _)) => {
            Err(Problem::new(about(), format!("the helper needs Linux, and this is {system}")))
        }
        _ => Err(Problem::new(about(), "the server does not run commands for this login")
            .hint("it allows file transfers only, so no helper can be started; plain SFTP works")),
    }
}

async fn make_directories(host: &Host) -> Result<(), Problem> {
    let own = place::own_directory();
    let ends = own.match_indices('/').map(|(at, _)| at).chain([own.len()]);
    for directory in ends.map(|end| &own[..end]) {
        match host.mkdir(&path(directory), PRIVATE).await {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(failed("create", directory, error)),
        }
    }
    let change = AttrChange { perm: Some(PRIVATE), ..AttrChange::default() };
    for directory in [place::DIRECTORY, &own] {
        let set = host.setattr(&path(directory), change).await;
        set.map_err(|error| failed("make private", directory, error))?;
    }
    Ok(())
}

fn failed(doing: &str, path: impl std::fmt::Display, error: Errno) -> Problem {
    Problem::new("helper", format!("cannot {doing} {path} on the server: {error}"))
}

/// Writes the program under a temporary name, checks it, and gives it its own name.
async fn put(
    connector: &Arc<SshConnector>,
    host: &Arc<Host>,
    temporary: &RemotePath,
    content: Bytes,
) -> Result<(), Problem> {
    let cannot = |doing| move |error| failed(doing, own_path(), error);
    let remote: Arc<dyn Remote> = host.clone();
    let flags =
        OpenFlags { create: Create::Exclusive(0o600), ..OpenFlags::existing(Access::Write) };
    let opened = host.open(temporary, flags).await.map_err(cannot("create"))?;
    let file = OwnedFh::new(remote.clone(), opened.fh);
    host.write(file.fh(), 0, content.clone()).await.map_err(cannot("write"))?;
    match host.fsync(file.fh()).await {
        Ok(()) | Err(Errno::EOPNOTSUPP) => {}
        Err(error) => return Err(cannot("write")(error)),
    }
    file.finish().await.map_err(cannot("write"))?;
    let digester = ShellDigester::new(connector.shell(), Vec::new());
    let tree = Tree { digester: Some(Arc::new(digester)), ..Tree::remote(remote) };
    let found = digest::of_file(&tree, temporary).await.map_err(cannot("read"))?;
    if found != digest::of_bytes(&content) {
        return Err(Problem::new(
            "helper",
            format!("{} on the server differs from what was sent", own_path()),
        )
        .hint("check the server's disk, and install again"));
    }
    let change = AttrChange { perm: Some(PRIVATE), ..AttrChange::default() };
    host.setattr(temporary, change).await.map_err(cannot("make executable"))?;
    prove(connector, temporary).await?;
    host.rename(temporary, &path(&own_path()), RenameMode::Replace).await.map_err(cannot("rename"))
}

/// Starts the program once.
async fn prove(connector: &Arc<SshConnector>, program: &RemotePath) -> Result<(), Problem> {
    let program = String::from_utf8_lossy(program.as_bytes()).into_owned();
    let limit = COMMAND_LIMIT.as_secs();
    let late = |_| Problem::new("helper", format!("it does not answer within {limit} s"));
    let started = start(connector, program).await.map_err(late)?;
    let started = started.map_err(|problem| {
        problem.hint_too("the home directory may be mounted noexec; plain SFTP works")
    })?;
    let version = started.server().and_then(|server| server.version);
    if version.as_deref() == Some(place::VERSION) {
        return Ok(());
    }
    let version = printable(version.unwrap_or_else(|| "unknown".to_owned()));
    Err(Problem::new(
        "helper",
        format!("the static build is of version {version}, and this is {}", place::VERSION),
    )
    .hint("build both from the same sources"))
}
