//! The commands `sshoal pull` and `sshoal push`: arguments, connections, what is shown, exit codes.
//!
//! How a copy is made is decided in [`transfer::strategy`].
//!
//! | module | contents |
//! |---|---|
//! | [`arguments`] | the command line |
//! | [`operand`] | remote sources and targets, parsed |
//! | [`connections`], [`shell`] | connections and commands at the servers, by ssh |
//! | [`show`], [`printer`] | what is shown: entries, progress, summary; standard output |
//!
//! Exit codes: 0 everything was copied, [`EXIT_PARTIAL`], [`EXIT_USAGE`], [`EXIT_BROKEN`],
//! [`EXIT_INTERRUPTED`], [`EXIT_CLOSED`].

pub mod arguments;
mod connections;
pub mod operand;
mod printer;
pub mod shell;
mod show;

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use host::Direct;
use rustix::process::WaitOptions;
use tokio::sync::watch;
use transfer::Stop;
pub use transfer::strategy::Direction;
use transfer::strategy::operand::{LocalOperand, RemoteOperand};
use transfer::strategy::{self, CopyRequest, Engine};
use transfer::tar::Compress;

use cli::signals::EndSignals;
use cli::{EXIT_OK, Problem, printable};

use crate::mount::one_password_for_several_hosts;
use crate::mount::request::MountRequest;
use crate::mount::server_arguments;
use crate::process;
pub use arguments::Arguments;
use connections::Connections;
use operand::{ParsedOperand, is_remote};
use show::Show;

/// Some entries failed; the others are there. Or standard output could not be written.
const EXIT_PARTIAL: u8 = 1;

/// The command line is wrong.
pub const EXIT_USAGE: u8 = 2;

/// The copy could not begin, or a connection was lost for good.
const EXIT_BROKEN: u8 = 3;

/// What a shell reports of a program that Ctrl-C has ended.
const EXIT_INTERRUPTED: u8 = 130;

/// What a shell reports of a program that SIGPIPE has ended.
const EXIT_CLOSED: u8 = 141;

/// How long the command waits at its end for threads, and then for the programs that it has ended.
const END_WAIT: Duration = Duration::from_millis(200);

/// Threads beside those that read or write files: one for each direction of a connection.
const WORKERS: usize = 2;

/// Copies as the command line says.
pub fn run(direction: Direction, arguments: &Arguments) -> ExitCode {
    let wrong = |problem: String| {
        eprintln!("sshoal: {}: {problem}", direction.name());
        ExitCode::from(EXIT_USAGE)
    };
    if arguments.debug {
        let level = tracing::Level::DEBUG;
        let to = std::io::stderr;
        let _ = tracing_subscriber::fmt().with_max_level(level).with_writer(to).try_init();
    }
    let show = Arc::new(Show::new(arguments));
    let (request, connections) = match copy_request(direction, arguments, show.clone()) {
        Ok(parsed) => parsed,
        Err(problem) => return wrong(problem.to_string()),
    };
    if let Err(error) = request.check() {
        return wrong(error.to_string());
    }
    let runtime = match process::runtime(WORKERS) {
        Ok(runtime) => runtime,
        Err(problem) => {
            eprintln!("sshoal: {}: {problem}", direction.name());
            return ExitCode::from(EXIT_BROKEN);
        }
    };
    // On one of the threads of the runtime: from outside, each step would wake one of them.
    let copying = runtime.spawn(copy(request, connections, show));
    let code = match runtime.block_on(copying) {
        Ok(code) => code,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    // A thread that hangs in a system call must not keep the process.
    runtime.shutdown_timeout(END_WAIT);
    await_children();
    ExitCode::from(code)
}

/// Waits a little for the programs that were ended. The time they have used is added to that of
/// this command only if this process waits for them; `time` and the bench show it.
fn await_children() {
    let until = Instant::now() + END_WAIT;
    while Instant::now() < until {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            // There is none.
            Err(_) => return,
        }
    }
}

/// What the command line says, and the connections for it.
fn copy_request(
    direction: Direction,
    arguments: &Arguments,
    show: Arc<Show>,
) -> Result<(CopyRequest, Connections), Problem> {
    let mount_request = connection(arguments)?;
    if let Some(refused) = arguments.refused() {
        return Err(refused);
    }
    let operands = arguments.operands.split_last();
    let Some((target, sources)) = operands.filter(|(_, sources)| !sources.is_empty()) else {
        let usage = format!("usage: sshoal {} [OPTIONS] SOURCE... TARGET", direction.name());
        return Err(Problem::new("target", "missing").hint(usage));
    };
    let (mut remote, mut local) = (Vec::new(), Vec::new());
    let is_push = direction == Direction::Push;
    let mut operands: Vec<_> = sources.iter().map(|word| (word, "source")).collect();
    // The operand at the server is checked first.
    operands.insert(if is_push { 0 } else { sources.len() }, (target, "target"));
    for (word, role) in operands {
        let is_target = role == "target";
        let is_far = is_target == is_push;
        if is_remote(word) != is_far {
            return Err(wrong_side(word, role, is_far, direction));
        }
        // As with rsync. A script whose variable is not set would fill, or empty, the wrong place.
        if word.is_empty() {
            return Err(Problem::new(format!("{role} ''"), "an empty name")
                .hint("the current directory is written '.'"));
        }
        if is_far {
            remote.push(ParsedOperand::parse(word, is_target)?);
        } else {
            local.push(if is_target {
                LocalOperand::of_target(word)
            } else {
                LocalOperand::of(word)
            });
        }
    }
    let mut hosts = remote.iter().map(|it| it.spec.gateways()).filter(|it| !it.is_empty());
    let first = hosts.next();
    if mount_request.ssh.password_stdin && hosts.any(|others| Some(others) != first) {
        return Err(one_password_for_several_hosts());
    }
    let may_own = direction == Direction::Push || rustix::process::geteuid().is_root();
    let options = arguments.transfer_options(may_own)?;
    let engine = engine(arguments, &mount_request)?;
    let operands = remote.iter().map(RemoteOperand::from).collect();
    let connections = Connections::new(mount_request, remote, show);
    let request = CopyRequest {
        direction,
        engine,
        // Compressed data does not get smaller when ssh compresses it once more.
        compress: match arguments.ssh_compression && arguments.compress == Compress::Auto {
            true => Compress::Never,
            false => arguments.compress,
        },
        options,
        remote: operands,
        local,
        target_is_directory: target.as_encoded_bytes().ends_with(b"/"),
        logins: connections.logins(),
    };
    Ok((request, connections))
}

/// The engine. A stream of `tar` goes through ssh, so it is not chosen beside direct connections;
/// and it has the rights of the login, while an SFTP server that the user has named may have
/// others.
fn engine(arguments: &Arguments, connection: &MountRequest) -> Result<Engine, Problem> {
    let direct = connection.host.direct;
    let bypasses_login = direct != Direct::No || connection.ssh.sftp_server.is_some();
    match (Engine::from(arguments.engine), direct) {
        (Engine::Auto, _) if bypasses_login => Ok(Engine::Sftp),
        (Engine::Tar, Direct::Require) => {
            Err(Problem::new("--engine=tar", "goes through ssh, which direct=require excludes"))
        }
        (engine, _) => Ok(engine),
    }
}

/// The problem of an operand that has to be on another machine, or on this one (`is_far`).
fn wrong_side(word: &OsStr, role: &str, is_far: bool, direction: Direction) -> Problem {
    let other = if direction == Direction::Pull { Direction::Push } else { Direction::Pull };
    let machine = if is_far { "another" } else { "this" };
    let why = format!("the {role} of a {} is on {machine} machine", direction.name());
    let hint = format!("host:path names one; `sshoal {}` goes the other way", other.name());
    let problem = Problem::new(format!("'{}'", printable(word)), why).hint(hint);
    match is_far {
        true => problem,
        false => problem.hint_too("a name with a colon in it is written ./name"),
    }
}

/// The options of the connection, in the form of a mount that is never made.
fn connection(arguments: &Arguments) -> Result<MountRequest, Problem> {
    let words = arguments.ssh_words();
    let (mut request, notes) =
        server_arguments::request(words, OsStr::new("host:"), Path::new("/"))?;
    notes.iter().for_each(|note| eprintln!("sshoal: note: {note}"));
    if request.disk.as_ref().is_some_and(|disk| disk.offline) {
        let hint = "copy out of a mount with offline instead, by cp -a";
        return Err(Problem::new("option 'offline'", "a copy contacts the host").hint(hint));
    }
    request.ssh.typed_password = ssh::TypedPassword::Unseen;
    Ok(*request)
}

async fn copy(request: CopyRequest, connections: Connections, show: Arc<Show>) -> u8 {
    let (stopping, stop) = watch::channel(false);
    let direction = request.direction;
    let closed = tokio::spawn({
        let (stopping, show) = (stopping.clone(), show.clone());
        async move {
            show.closed().await;
            show.end();
            stopping.send_replace(true);
        }
    });
    let interrupts = tokio::spawn(interrupts(stopping, show.clone()));
    let drawing = show.clone().draw();
    let copied = strategy::copy(request, Arc::new(connections), show.clone(), stop).await;
    drop(drawing);
    let code = match copied {
        Ok(copied) => {
            show.summary(direction, &copied);
            let outcome = copied.outcome;
            match outcome.stopped {
                Some(Stop::Asked) => EXIT_INTERRUPTED,
                Some(Stop::Lost(_)) => EXIT_BROKEN,
                None if outcome.is_complete() => EXIT_OK,
                None => EXIT_PARTIAL,
            }
        }
        Err(error) => {
            show.broken(&error);
            EXIT_BROKEN
        }
    };
    // A signal also ends the wait for a reader.
    let is_printed = show.finish();
    interrupts.abort();
    closed.abort();
    match (show.unprinted(), code) {
        (None, _) if !is_printed => EXIT_INTERRUPTED,
        (None, code) => code,
        (Some(io::ErrorKind::BrokenPipe), EXIT_OK | EXIT_INTERRUPTED) => EXIT_CLOSED,
        (Some(_), EXIT_OK) => EXIT_PARTIAL,
        (Some(_), code) => code,
    }
}

/// The first request ends the copy in order, the second one ends the process at once.
async fn interrupts(stopping: watch::Sender<bool>, show: Arc<Show>) {
    let Ok(mut signals) = EndSignals::new() else {
        tracing::warn!("cannot wait for signals");
        return;
    };
    loop {
        signals.next().await;
        show.end();
        if stopping.send_replace(true) {
            show.clear();
            // Files that are not whole have temporary names.
            std::process::exit(EXIT_INTERRUPTED.into());
        }
    }
}
