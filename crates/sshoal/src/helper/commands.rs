//! `sshoal helper install`, `status` and `remove`: the helper on a server.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use base::{DirGuard, Errno, FileKind, Remote, RemotePath};
use cli::signals::EndSignals;
use cli::{EXIT_FAILURE, EXIT_OK, OrProblem, Problem, printable};
use host::{Connector, Helper, Server};

use super::static_build::Architecture;
use super::{install, place};
use crate::connector::SshConnector;
use crate::mount::server_arguments::ServerArguments;
use crate::process;
use crate::stack;

/// What is to be done.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Put this version of the helper on a server.
    Install {
        /// Architecture of the server, as `uname -m` prints it (default: what the server prints).
        #[arg(long, value_name = "ARCH")]
        arch: Option<String>,
        #[command(flatten)]
        target: Target,
    },
    /// Show whether the helper serves on a server, or why not.
    Status(Target),
    /// Remove all versions of the helper that were installed on a server.
    Remove(Target),
}

/// A server, and how to connect to it.
#[derive(Debug, clap::Args)]
pub struct Target {
    /// The server, as for ssh.
    #[arg(value_name = "HOST")]
    host: OsString,
    #[command(flatten)]
    server: ServerArguments,
}

/// The helper at a host.
pub enum State {
    /// It is the host's SFTP server.
    Subsystem(Server),
    /// The program at `path` is the helper.
    Serves { path: String, server: Server },
    /// No program is in any of the places.
    Absent,
    /// The program at `path` does not serve.
    Unfit { path: String, why: String },
}

/// Runs the command at each host. The exit code is 1 if one failed, or if the helper does not serve
/// at one.
pub fn run(command: &Command) -> anyhow::Result<ExitCode> {
    let (Command::Install { target, .. } | Command::Status(target) | Command::Remove(target)) =
        command;
    let architecture = match command {
        Command::Install { arch: Some(name), .. } => {
            Some(Architecture::named(name).ok_or_else(|| {
                Problem::new(
                    "option '--arch'",
                    format!("no such architecture: '{}'", printable(name)),
                )
                .hint(format!("one of {}", Architecture::all_names().join(", ")))
            })?)
        }
        _ => None,
    };
    let (connectors, option) = connectors(target)?;
    let runtime = process::runtime(1)?;
    let done = runtime.block_on(async {
        // For all hosts: once they exist, signals do not end the program by themselves. Otherwise an
        // installation would leave a file, and a prompt for a password a terminal without echo.
        let mut signals = EndSignals::new().ok();
        let mut is_stopped = false;
        let mut code = EXIT_OK;
        for connector in &connectors {
            let name = connector.name();
            let stopped = stopped(signals.as_mut(), &mut is_stopped);
            let done = match command {
                Command::Install { .. } => install(&name, connector, architecture, stopped).await,
                Command::Status(_) => until(stopped, status(&name, connector, &option)).await,
                Command::Remove(_) => until(stopped, remove(&name, connector)).await,
            };
            match &done {
                Ok((text, _)) => {
                    cli::print(text)?;
                }
                Err(problem) => eprintln!("sshoal: {problem}"),
            }
            if !done.is_ok_and(|(_, is_good)| is_good) {
                code = EXIT_FAILURE;
            }
            if is_stopped {
                process::children_ended().await;
                break;
            }
        }
        anyhow::Ok(code)
    });
    // A thread that hangs in a system call must not keep the process.
    runtime.shutdown_background();
    Ok(ExitCode::from(done?))
}

/// A connector to each host of the source, and the option `helper=`.
fn connectors(target: &Target) -> Result<(Vec<Arc<SshConnector>>, Helper), Problem> {
    let Target { host, server } = target;
    let mut source = host.clone();
    if !host.as_encoded_bytes().contains(&b':') {
        source.push(":");
    }
    let request = server.request(&source)?;
    if request.ssh.transport != ssh::Transport::Ssh {
        return Err(Problem::new(
            printable(host),
            "the helper is started by ssh, which this connection does not use",
        ));
    }
    let mut connectors = Vec::new();
    for spec in &request.sources {
        for config in stack::ssh_configs(&request, spec)? {
            // One prompt for the password is enough.
            let typed_password = request.ssh.typed_password;
            let config = ssh::Config { typed_password, ..config };
            connectors.push(Arc::new(SshConnector::new(config)?));
        }
    }
    match connectors.is_empty() {
        true => Err(Problem::new(printable(host), "not a host")),
        false => Ok((connectors, request.host.helper)),
    }
}

/// What was done at a host, and whether it is good.
type Done = Result<(String, bool), Problem>;

/// Waits for a signal, and sets `is_stopped` when it comes.
async fn stopped(signals: Option<&mut EndSignals>, is_stopped: &mut bool) {
    match signals {
        Some(signals) => drop(signals.next().await),
        None => std::future::pending().await,
    }
    *is_stopped = true;
}

/// What is done, unless a signal comes before.
async fn until(stopped: impl Future<Output = ()>, done: impl Future<Output = Done>) -> Done {
    tokio::select! {
        biased;
        () = stopped => Err(Problem::new("helper", "interrupted")),
        done = done => done,
    }
}

async fn install(
    name: &str,
    connector: &Arc<SshConnector>,
    architecture: Option<&'static Architecture>,
    stopped: impl Future<Output = ()>,
) -> Done {
    let installed = install::install(connector, architecture, stopped).await?;
    connector.record_helper(Some(&installed.path)).await;
    let (path, architecture) = (installed.path, installed.architecture);
    Ok((format!("{name}: installed {path} (version {}, {architecture})\n", place::VERSION), true))
}

/// The helper at the host of `connector` that a mount with this option `helper=` would use.
pub async fn state(connector: &Arc<SshConnector>, option: &Helper) -> Result<State, Problem> {
    let host = install::connect(connector, Helper::No).await?;
    if let Some(server) = host.server().filter(|server| server.is_helper) {
        return Ok(State::Subsystem(server));
    }
    if let Helper::At(path) = option {
        return Ok(trial(connector, path.clone()).await);
    }
    let found = host.find_helper(place::all()).await;
    let name = || connector.name();
    let found = found.or_problem(name())?;
    let path = match found {
        None => return Ok(State::Absent),
        Some((path, Some(why))) => return Ok(State::Unfit { path, why }),
        Some((path, None)) => path,
    };
    Ok(trial(connector, path).await)
}

/// Whether the program at `path` serves.
async fn trial(connector: &Arc<SshConnector>, path: String) -> State {
    match install::start(connector, path.clone()).await {
        Err(_) => {
            let limit = install::COMMAND_LIMIT.as_secs();
            State::Unfit { path, why: format!("no answer within {limit} s") }
        }
        Ok(Err(problem)) => State::Unfit { path, why: problem.to_string() },
        Ok(Ok(host)) => match host.server() {
            Some(server) => State::Serves { path, server },
            None => State::Unfit { path, why: "the session ended at once".to_owned() },
        },
    }
}

async fn status(name: &str, connector: &Arc<SshConnector>, option: &Helper) -> Done {
    let serves = |path: &str, server: &Server| {
        format!(
            "{name}: the helper serves\n  path        {path}\n  version     {}\n  extensions  {}\n",
            version(server),
            server.extensions.join(", ")
        )
    };
    Ok(match state(connector, option).await? {
        State::Subsystem(server) => (serves("(the server's SFTP subsystem)", &server), true),
        State::Serves { path, server } => (serves(&path, &server), true),
        State::Absent => (format!("{name}: no helper; {INSTALL}\n"), false),
        State::Unfit { path, why } => (
            format!(
                "{name}: the helper does not serve\n  path        {path}\n  why         {why}\n"
            ),
            false,
        ),
    })
}

/// What a user can do where no helper is.
pub const INSTALL: &str = "`sshoal helper install` puts it there";

/// The version of a server, for the user.
pub fn version(server: &Server) -> String {
    printable(server.version.as_deref().unwrap_or("unknown"))
}

async fn remove(name: &str, connector: &Arc<SshConnector>) -> Done {
    let host = install::connect(connector, Helper::No).await?;
    let top = RemotePath::parse(place::DIRECTORY.as_bytes()).expect("a relative path");
    let failed = |error: Errno| {
        Problem::new("helper", format!("{name}: {} cannot be removed: {error}", place::DIRECTORY))
    };
    let removed = match names(&host, &top).await {
        Err(Errno::ENOENT) => 0,
        Err(error) => return Err(failed(error)),
        Ok(versions) => {
            for version in &versions {
                remove_version(&host, version).await.map_err(failed)?;
            }
            host.rmdir(&top).await.map_err(failed)?;
            versions.len()
        }
    };
    connector.record_helper(None).await;
    Ok(match removed {
        0 => (format!("{name}: no helper was installed\n"), true),
        _ => (format!("{name}: removed {}\n", place::DIRECTORY), true),
    })
}

/// Removes the directory of a version, with the files in it.
async fn remove_version(host: &dyn Remote, version: &RemotePath) -> base::Result<()> {
    if host.lstat(version).await?.kind != FileKind::Directory {
        return host.unlink(version).await;
    }
    for file in names(host, version).await? {
        host.unlink(&file).await?;
    }
    host.rmdir(version).await
}

/// The paths of the entries of a directory.
async fn names(host: &dyn Remote, directory: &RemotePath) -> base::Result<Vec<RemotePath>> {
    let dir = DirGuard::new(host, host.opendir(directory).await?);
    let mut names = Vec::new();
    while let Some(entries) = host.readdir(dir.dh()).await? {
        names.extend(entries.iter().map(|entry| directory.join(&entry.name)));
    }
    Ok(names)
}
