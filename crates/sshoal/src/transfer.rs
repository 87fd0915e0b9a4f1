//! `sshoal pull` and `sshoal push`: the commands around the crate of that name.
//!
//! | module | what it is |
//! |---|---|
//! | [`arguments`] | the command line |
//! | [`place`] | what operands mean |
//! | [`shell`] | commands on the far side |
//! | [`carry`] | which engine, in which order, and what follows on what |
//! | [`show`] | what is seen of it: entries, progress, summary |
//!
//! Exit codes: 0 all is there, [`EXIT_PARTIAL`], [`EXIT_USAGE`], [`EXIT_BROKEN`],
//! [`EXIT_INTERRUPTED`].

pub mod arguments;
mod carry;
mod place;
mod shell;
mod show;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, WaitOptions, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::mount::command_line::{self, Wish};
use crate::mount::request::MountRequest;
use crate::program::Program;
use crate::report::{EXIT_OK, Problem};
pub use arguments::Arguments;
use carry::Carrier;
use show::Show;

/// Some entries failed; the others are there.
const EXIT_PARTIAL: u8 = 1;

/// The command line is wrong.
pub const EXIT_USAGE: u8 = 2;

/// It could not begin, or a connection was lost for good.
const EXIT_BROKEN: u8 = 3;

/// As a shell has it for a program that Ctrl-C has ended.
const EXIT_INTERRUPTED: u8 = 130;

/// How long is waited at the end for what goes on, and then for programs that were told to end.
const FAREWELL: Duration = Duration::from_millis(200);

/// Threads beside those that read or write files: one for each direction of a connection.
const WORKERS: usize = 2;

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From there to here.
    Pull,
    /// From here to there.
    Push,
}

impl Way {
    /// The command's name.
    fn name(self) -> &'static str {
        match self {
            Way::Pull => "pull",
            Way::Push => "push",
        }
    }
}

/// A command line that clap has refused, with this command's exit code.
pub fn misused(program: Program, explained: anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    Ok(explained.unwrap_or_else(|error| {
        eprintln!("{}: {error:#}", program.name);
        ExitCode::from(EXIT_USAGE)
    }))
}

/// Does what is asked for.
pub fn run(way: Way, arguments: &Arguments) -> ExitCode {
    let wrong = |problem: &Problem| {
        eprintln!("sshoal: {}: {problem}", way.name());
        ExitCode::from(EXIT_USAGE)
    };
    if arguments.debug {
        let level = tracing::Level::DEBUG;
        let to = std::io::stderr;
        let _ = tracing_subscriber::fmt().with_max_level(level).with_writer(to).try_init();
    }
    let prepared = connection(arguments)
        .and_then(|request| Carrier::new(way, arguments, request, Arc::new(Show::new(arguments))));
    let carrier = match prepared {
        Ok(carrier) => carrier,
        Err(problem) => return wrong(&problem),
    };
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(problem) => return wrong(&problem),
    };
    // On one of the threads that carry out its steps: from outside, each step would wake one.
    let carrying = runtime.spawn(carried(way, carrier));
    let code = match runtime.block_on(carrying) {
        Ok(code) => code,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    // Whatever still hangs in a system call must not keep the process.
    runtime.shutdown_timeout(FAREWELL);
    await_children();
    ExitCode::from(code)
}

/// Waits a little for the programs that were told to end: what they have used counts for this
/// command where somebody waits for them, as `time` and the bench show it. Nobody else waits for them any more.
fn await_children() {
    let until = Instant::now() + FAREWELL;
    while Instant::now() < until {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            // There is none.
            Err(_) => return,
        }
    }
}

/// What the words about the connection ask for, in the form of a mount that is never made.
fn connection(arguments: &Arguments) -> Result<MountRequest, Problem> {
    let cwd = std::env::current_dir()
        .map_err(|error| Problem::new("current directory", error.to_string()))?;
    let mut words = arguments.ssh_words();
    words.extend(["--", "host:", "/"].map(OsString::from));
    let program = Program { name: "sshoal", helper: false };
    match command_line::parse(program, words, cwd, None)? {
        Wish::Mount(request, notes) => {
            notes.iter().for_each(|note| eprintln!("sshoal: note: {note}"));
            Ok(*request)
        }
        Wish::Help | Wish::Version => Err(Problem::new("options", "not for a copy")),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Problem> {
    crate::allocator::share_one_heap();
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        raised.unwrap_or_else(|error| tracing::debug!(%error, "no more descriptors than usual"));
    }
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .map_err(|error| Problem::new("cannot start", error.to_string()))
}

async fn carried(way: Way, carrier: Carrier) -> u8 {
    let (asked, stop) = watch::channel(false);
    let show = carrier.show();
    let interrupts = tokio::spawn(interrupts(asked, show.clone()));
    let drawing = show.clone().draw();
    let ended = carrier.carry(stop).await;
    interrupts.abort();
    drop(drawing);
    match ended {
        Ok(ended) => {
            show.summary(way, &ended);
            let outcome = ended.outcome;
            match outcome.stopped {
                Some(transfer::Stop::Asked) => EXIT_INTERRUPTED,
                Some(transfer::Stop::Lost(_)) => EXIT_BROKEN,
                None if outcome.is_complete() => EXIT_OK,
                None => EXIT_PARTIAL,
            }
        }
        Err(problem) => {
            show.broken(&problem);
            EXIT_BROKEN
        }
    }
}

/// The first signal asks for an orderly end, the second one is the end.
async fn interrupts(asked: watch::Sender<bool>, show: Arc<Show>) {
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = kinds.map(signal) else {
        tracing::warn!("cannot wait for signals");
        return;
    };
    loop {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
        if asked.send_replace(true) {
            show.clear();
            // What is not whole has a name that says so.
            std::process::exit(EXIT_INTERRUPTED.into());
        }
    }
}
