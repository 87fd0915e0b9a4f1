//! The log of a mount: where its messages go, and what they look like there.
//!
//! - While mounting, and always in the foreground: standard error.
//! - In the background: what `log=` names. By default that is the systemd journal, else syslog,
//!   else nothing ([`LogTarget::Automatic`]).
//!
//! Invariants:
//! 1. An event is one line: line ends, control and format characters are escaped, so that no text
//!    of a server or of ssh can look like another line.
//! 2. Each kind of event (one place in the code) has at most [`limit::LINES`] lines a minute in the
//!    background; one line then gives the number of the others.
//! 3. A line for the journal or syslog never waits: if the socket is full or gone, the line is
//!    dropped, and the next one that arrives gives the number of those that were dropped.

pub mod limit;
mod socket;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Instant;

use base::Mutex;
use cli::{Problem, printable};
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, reload};

use crate::mount::request::{LogLevel, MountRequest};
use limit::{Limiter, Verdict};
pub use socket::Service;
use socket::Socket;

/// Where the messages of a background process go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogTarget {
    /// The journal if there is one, else syslog, else nothing.
    #[default]
    Automatic,
    /// One of the two, which must exist.
    Service(Service),
    /// Appended to this file.
    File(PathBuf),
    /// Nowhere.
    None,
}

impl LogTarget {
    /// The file, if it is one.
    pub fn file(&self) -> Option<&Path> {
        match self {
            LogTarget::File(path) => Some(path),
            _ => None,
        }
    }
}

/// The filter of the log. What it rejects costs as little as with a fixed filter.
static FILTER: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

/// The log of this process, if it is in the background or will be.
static LOG: OnceLock<Log> = OnceLock::new();

struct Log {
    /// `None`: standard error, which is the log file or `/dev/null` then.
    socket: Option<Socket>,
    /// The mount point, with which every line begins.
    mountpoint: String,
    /// Lines that are shown on the terminal while mounting.
    terminal_level: LevelFilter,
    limiter: Mutex<Limiter<Identifier>>,
    /// Runs the timers after which suppressed lines are reported; set when the terminal is left.
    runtime: OnceLock<tokio::runtime::Handle>,
}

/// Starts logging, to standard error until [`left_terminal`] is called.
pub fn start(request: &MountRequest) -> Result<(), Problem> {
    let run = &request.run;
    let (reloadable, handle) = reload::Layer::new(filter(run.log_level()));
    let filtered = tracing_subscriber::registry().with(reloadable);
    // A process has one log.
    let _ = FILTER.set(handle);
    if run.foreground {
        let ansi = rustix::termios::isatty(io::stderr());
        let lines = tracing_subscriber::fmt::layer().with_target(false).with_ansi(ansi);
        filtered.with(lines.with_writer(io::stderr)).init();
        return Ok(());
    }
    let mountpoint = printable(&request.mountpoint);
    let log = Log {
        socket: socket(&run.log)?,
        mountpoint,
        terminal_level: filter(run.terminal_level()),
        limiter: Mutex::default(),
        runtime: OnceLock::new(),
    };
    let log = LOG.get_or_init(|| log);
    filtered.with(log).init();
    // Standard error may be `/dev/null` then.
    std::panic::set_hook(Box::new(|panic| tracing::error!("internal error: {panic}")));
    Ok(())
}

/// Changes what is logged.
pub fn set_level(level: LogLevel) {
    if let Some(Err(error)) = FILTER.get().map(|log| log.reload(filter(level))) {
        tracing::warn!(%error, "cannot change the log level");
    }
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Warning => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    }
}

fn socket(target: &LogTarget) -> Result<Option<Socket>, Problem> {
    let open = |service: Service| {
        let refused = |error: io::Error| {
            Problem::new(format!("log={service}"), format!("{}: {error}", service.path()))
        };
        Socket::open(service).map(Some).map_err(refused)
    };
    match target {
        LogTarget::File(_) | LogTarget::None => Ok(None),
        LogTarget::Service(service) => open(*service),
        LogTarget::Automatic => {
            Ok(open(Service::Journal).or_else(|_| open(Service::Syslog)).unwrap_or(None))
        }
    }
}

/// The process has left the terminal: from here on lines go to the log. Must be called within a
/// tokio runtime. Has no effect in the foreground.
pub fn left_terminal() {
    if let Some(log) = LOG.get() {
        let _ = log.runtime.set(tokio::runtime::Handle::current());
    }
}

/// Writes the numbers of suppressed lines: the process ends.
pub fn finish() {
    if let Some(log) = LOG.get() {
        let rest = log.limiter.lock().finish();
        rest.into_iter().for_each(|(level, text)| log.put(level, &text));
    }
}

/// Shows text of ssh: as it is on the terminal, as lines of the log afterwards.
pub fn pass_on(words: &str) {
    if LOG.get().is_some_and(Log::has_left_terminal) {
        for line in words.lines().map(str::trim).filter(|line| !line.is_empty()) {
            tracing::warn!("ssh: {line}");
        }
    } else {
        let _ = io::stderr().write_all(words.as_bytes());
    }
}

impl Log {
    fn has_left_terminal(&self) -> bool {
        self.runtime.get().is_some()
    }

    /// Writes one line that the limiter has let pass.
    fn put(&self, level: Level, text: &str) {
        let text = format!("{}: {text}", self.mountpoint);
        match &self.socket {
            Some(socket) => socket.send(level, &text, &self.mountpoint),
            None => print_line(level, &text),
        }
    }

    fn log(&'static self, metadata: &'static Metadata<'static>, text: String) {
        let (level, kind) = (*metadata.level(), metadata.callsite());
        let verdict = self.limiter.lock().admit(kind.clone(), level, &text, Instant::now());
        match verdict {
            Verdict::Pass { report } => {
                if let Some(report) = report {
                    self.put(level, &report);
                }
                self.put(level, &text);
            }
            Verdict::Drop { report_after: None } => (),
            Verdict::Drop { report_after: Some(time) } => {
                let report = move || self.limiter.lock().report(&kind, Instant::now());
                let Some(runtime) = self.runtime.get() else { return };
                drop(runtime.spawn(async move {
                    tokio::time::sleep(time).await;
                    if let Some(report) = report() {
                        self.put(level, &report);
                    }
                }));
            }
        }
    }
}

/// Prints a line to standard error as any program's messages, by one call.
fn print_line(level: Level, text: &str) {
    let mut line = String::new();
    let _ = SystemTime.format_time(&mut Writer::new(&mut line));
    line += &format!(" {level:>5} {text}\n");
    let _ = io::stderr().write_all(line.as_bytes());
}

/// The text of an event as one line: line ends become `; `, all else is escaped.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    printable(lines.collect::<Vec<_>>().join("; "))
}

impl<S: Subscriber> Layer<S> for &'static Log {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = DefaultFields::new().format_fields(Writer::new(&mut text), event);
        if self.has_left_terminal() {
            self.log(metadata, one_line(&text));
        } else if *metadata.level() <= self.terminal_level {
            print_line(*metadata.level(), &text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_without_control_characters() {
        let forged = "lost: x\n  a hint\n\n2026-01-01 ERROR forged\u{1b}[2J\r\u{202e}";
        assert_eq!(
            one_line(forged),
            "lost: x; a hint; 2026-01-01 ERROR forged\\u{1b}[2J\\r\\u{202e}"
        );
    }
}
