//! The output of a copy: each entry, progress, and the summary.
//!
//! Results go to standard output, everything else to standard error. Names are escaped. In JSON a
//! name is a string; if it is not UTF-8, a further member has its bytes.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::Mutex;
use cli::Problem;
use indicatif::ProgressBar;
use serde_json::{Value, json};
use transfer::strategy::{Copied, CopyError, Direction, Display};
use transfer::{Action, Entry, Events, Outcome, Progress, Skip, Stop, Why};

use super::arguments::Arguments;
use super::printer::Printer;
use crate::progress::{self, Frame};
use crate::quantity;

/// How often the bar is drawn.
const FRAME: Duration = Duration::from_millis(100);

/// Problems that are printed; further ones are counted.
const PROBLEMS_SHOWN: usize = 20;

/// What is shown, and where.
pub struct Show {
    mode: Mode,
    has_bar: bool,
    has_stats: bool,
    maps_owners: bool,
    dry_run: bool,
    began: Instant,
    watched: Mutex<Vec<Arc<Progress>>>,
    bar: ProgressBar,
    printer: Printer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Quiet,
    Usual,
    Verbose,
    Json,
}

/// Ends the drawing when it is dropped.
pub struct Drawing {
    task: Option<tokio::task::JoinHandle<()>>,
    bar: ProgressBar,
}

impl Drop for Drawing {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
        self.bar.finish_and_clear();
    }
}

impl Show {
    /// As the command line says.
    pub fn new(arguments: &Arguments) -> Show {
        let mode = match (arguments.json, arguments.quiet, arguments.verbose) {
            (true, _, _) => Mode::Json,
            (_, true, _) => Mode::Quiet,
            (_, _, true) => Mode::Verbose,
            // A dry run is for its output.
            _ if arguments.dry_run => Mode::Verbose,
            _ => Mode::Usual,
        };
        let has_terminal = io::stderr().is_terminal();
        let is_wanted = mode == Mode::Usual && has_terminal && !arguments.debug;
        let has_bar = is_wanted || arguments.progress || arguments.partial_progress;
        let bar = ProgressBar::hidden();
        // While the bar is suspended, nothing can draw it.
        let suspended = (has_bar && io::stdout().is_terminal()).then(|| bar.clone());
        let printer = Printer::new(move |text| match &suspended {
            Some(bar) => bar.suspend(|| write(text)),
            None => write(text),
        });
        Show {
            mode,
            has_bar,
            has_stats: arguments.stats,
            maps_owners: arguments.maps_owners(),
            dry_run: arguments.dry_run,
            began: Instant::now(),
            watched: Mutex::default(),
            bar,
            printer,
        }
    }

    /// Returns when the reader of standard output has closed it (`| head`).
    pub async fn closed(&self) {
        let mut unprinted = self.printer.failed().subscribe();
        // The sender is in `self`.
        let _ = unprinted.wait_for(|why| *why == Some(io::ErrorKind::BrokenPipe)).await;
    }

    /// Why standard output is not complete, if it is not.
    pub fn unprinted(&self) -> Option<io::ErrorKind> {
        *self.printer.failed().borrow()
    }

    /// The copy is to end: it no longer waits for the reader of standard output.
    pub fn end(&self) {
        self.printer.end();
    }

    /// Waits until everything is printed; false if the reader takes no more and the copy is to end.
    pub fn finish(&self) -> bool {
        self.printer.finish()
    }

    /// Draws the bar until the result is dropped. Must be called within a runtime.
    pub fn draw(self: Arc<Show>) -> Drawing {
        let bar = self.bar.clone();
        if !self.has_bar {
            return Drawing { task: None, bar };
        }
        bar.set_style(progress::style());
        bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
        let task = tokio::spawn(async move {
            let mut frames = tokio::time::interval(FRAME);
            loop {
                frames.tick().await;
                self.frame();
            }
        });
        Drawing { task: Some(task), bar }
    }

    fn frame(&self) {
        let watched = self.watched.lock().clone();
        let sum = |counter: fn(&Progress) -> &AtomicU64| {
            watched.iter().map(|it| counter(it).load(Ordering::Relaxed)).sum::<u64>()
        };
        let planned = watched.last().is_some_and(|it| it.planned.load(Ordering::Relaxed));
        let (files, all) = (sum(|it| &it.files_done), sum(|it| &it.files_planned));
        let (bytes, total) = (sum(|it| &it.bytes_done), sum(|it| &it.bytes_planned));
        if all + sum(|it| &it.entries) == 0 {
            // ssh may be asking for a password in this line of the terminal.
            return;
        }
        let elapsed = self.began.elapsed();
        let done = Frame {
            files,
            all,
            bytes,
            total,
            moved: bytes,
            planned,
            elapsed,
            unit: quantity::bytes,
        };
        self.bar.set_message(done.line(progress::columns()));
    }

    /// Removes the bar, for an immediate exit.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }

    /// Prints the end of a copy that has started.
    pub fn summary(&self, direction: Direction, copied: &Copied) {
        let outcome = &copied.outcome;
        // The entries come before the problems, if both go to one place.
        self.printer.finish();
        match self.mode {
            Mode::Json => self.print_json(&summary_json(direction, copied)),
            Mode::Quiet => self.problems(outcome),
            Mode::Usual | Mode::Verbose => {
                self.problems(outcome);
                let seconds = self.began.elapsed().as_secs_f64();
                let mut text = summary(outcome, &copied.engines, self.dry_run, seconds);
                if self.has_stats {
                    text += &figures(outcome);
                    copied.notes.iter().for_each(|note| text += &format!("{note}\n"));
                }
                self.print(&text);
            }
        }
    }

    /// Prints why a copy could not start, or not go on.
    pub fn broken(&self, error: &CopyError) {
        eprintln!("sshoal: {error}");
        if self.mode == Mode::Json {
            let event = json!({"event": "broken", "why": error.to_string()});
            self.print_json(&event);
        }
    }

    /// Prints that the connection to a server is lost. The copy goes on when there is another one.
    pub fn lost(&self, name: &str) {
        self.bar.suspend(|| eprintln!("sshoal: {name}: the connection is lost; connecting again"));
    }

    fn problems(&self, outcome: &Outcome) {
        for problem in outcome.problems.iter().take(PROBLEMS_SHOWN) {
            eprintln!("sshoal: {}", shown(problem));
        }
        let more = outcome.problems_total.saturating_sub(PROBLEMS_SHOWN as u64);
        if more > 0 {
            eprintln!("sshoal: and {more} more; --json tells of all");
        }
        // As with rsync, this is expected unless the user maps owners.
        if outcome.owners_refused && self.maps_owners {
            eprintln!("sshoal: note: some owners were left, since the target refused them");
        }
        if outcome.links_unknown {
            eprintln!(
                "sshoal: note: it is not known which names are of one file at the source: they may be \
                 files of their own now"
            );
        }
        if outcome.deletions_limited {
            // They were counted only up to the limit.
            eprintln!("sshoal: nothing was deleted: --max-delete allows fewer entries");
        } else if outcome.deletions_withheld > 0 {
            let were = many(outcome.deletions_withheld, "entry was", "entries were");
            eprintln!("sshoal: {were} not deleted: nothing is deleted after a problem");
        }
        match outcome.stopped {
            Some(Stop::Lost(errno)) => {
                eprintln!("sshoal: the connection is lost: {errno}; run it again to go on");
            }
            // As other programs, that SIGPIPE ends.
            Some(Stop::Asked) if self.unprinted() == Some(io::ErrorKind::BrokenPipe) => {}
            Some(Stop::Asked) => eprintln!("sshoal: interrupted; run it again to go on"),
            None => {}
        }
    }

    /// Prints one value on a line of its own.
    fn print_json(&self, value: &Value) {
        self.print(&base::printable::printable_json(&format!("{value}\n")));
    }

    /// Prints to standard output, until that fails once.
    fn print(&self, text: &str) {
        self.printer.print(text);
    }
}

/// Writes to standard output, and reports an error that is not the reader's end.
fn write(text: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text).and_then(|()| stdout.flush());
    if let Err(error) = &written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        let problem = Problem::new("standard output", format!("cannot be written: {error}"));
        eprintln!("sshoal: {problem}");
    }
    written
}

impl Display for Show {
    fn watch(&self, progress: Arc<Progress>) {
        self.watched.lock().push(progress);
    }
}

impl Events for Show {
    fn entry(&self, entry: Entry<'_>) {
        let changes = !matches!(entry.action, Action::Nothing | Action::Skip(_));
        match self.mode {
            Mode::Json => self.print_json(&entry_json(&entry)),
            Mode::Verbose if changes && entry.problem.is_none() => self.print(&line(&entry)),
            _ => {}
        }
    }

    fn problem(&self, problem: &transfer::Problem) {
        if self.mode == Mode::Json {
            self.print_json(&problem_json(problem));
        }
    }
}

/// The action on an entry, in one word.
fn word(action: &Action) -> &'static str {
    match action {
        Action::MakeDir => "make",
        Action::Copy(Why::New) => "new",
        Action::Copy(_) => "update",
        Action::MakeLink(_) => "link",
        Action::HardLink { .. } => "name",
        Action::SetAttr(_) => "attr",
        Action::Nothing => "same",
        Action::Skip(_) => "skip",
        Action::Delete => "delete",
    }
}

fn why(action: &Action) -> Option<&'static str> {
    let (Action::Copy(why) | Action::MakeLink(why)) = action else {
        let Action::Skip(why) = action else { return None };
        return Some(match why {
            Skip::Newer => "newer at the target",
            Skip::Absent => "not at the target",
            Skip::Special => "a device, pipe or socket",
        });
    };
    Some(match why {
        Why::New => "new",
        Why::Kind => "of another kind",
        Why::Size => "size",
        Why::Time => "time",
        Why::Digest => "content",
    })
}

fn line(entry: &Entry<'_>) -> String {
    let name = if entry.name.is_root() { ".".to_owned() } else { entry.name.to_string() };
    let slash = if entry.kind == base::FileKind::Directory { "/" } else { "" };
    let reason = match entry.action {
        Action::Copy(Why::Size | Why::Time | Why::Digest | Why::Kind) => {
            format!(" ({})", why(entry.action).unwrap_or_default())
        }
        _ => String::new(),
    };
    format!("{:<7}{name}{slash}{reason}\n", word(entry.action))
}

fn name_json(name: &[u8]) -> (Value, Option<Value>) {
    match std::str::from_utf8(name) {
        Ok(text) => (json!(text), None),
        Err(_) => (json!(String::from_utf8_lossy(name)), Some(json!(name))),
    }
}

fn entry_json(entry: &Entry<'_>) -> Value {
    let (name, bytes) = name_json(entry.name.as_bytes());
    let mut event = json!({
        "event": "entry",
        "name": name,
        "kind": format!("{:?}", entry.kind).to_lowercase(),
        "action": word(entry.action),
        "bytes": entry.bytes,
    });
    if let Some(bytes) = bytes {
        event["name_bytes"] = bytes;
    }
    if let Some(why) = why(entry.action) {
        event["why"] = json!(why);
    }
    if let Some(problem) = entry.problem {
        event["problem"] = json!(shown(problem));
    }
    event
}

/// A problem, with a word for the top of the copy, which has no name.
fn shown(problem: &transfer::Problem) -> String {
    let top = if problem.name.is_root() { "the target" } else { "" };
    format!("{top}{problem}")
}

fn problem_json(problem: &transfer::Problem) -> Value {
    let (name, bytes) = name_json(problem.name.as_bytes());
    let mut event = json!({"event": "problem", "name": name, "problem": shown(problem)});
    if let Some(bytes) = bytes {
        event["name_bytes"] = bytes;
    }
    event
}

fn summary_json(direction: Direction, copied: &Copied) -> Value {
    let Copied { outcome, engines, notes, .. } = copied;
    let mut summary = json!(outcome.counts);
    let stopped = outcome.stopped.map(|stop| match stop {
        Stop::Asked => "interrupted".to_owned(),
        Stop::Lost(errno) => errno.to_string(),
    });
    for (name, value) in [
        ("event", json!("summary")),
        ("command", json!(direction.name())),
        ("engines", json!(engines)),
        ("complete", json!(outcome.is_complete())),
        ("stopped", json!(stopped)),
        ("hard_links_unknown", json!(outcome.links_unknown)),
        ("problems", json!(outcome.problems_total)),
        ("deletions_withheld", json!(outcome.deletions_withheld)),
        ("deletions_limited", json!(outcome.deletions_limited)),
        ("seconds", json!(outcome.elapsed.as_secs_f64())),
        ("notes", json!(notes)),
    ] {
        summary[name] = value;
    }
    summary
}

fn summary(outcome: &Outcome, engines: &[&str], dry_run: bool, seconds: f64) -> String {
    let counts = &outcome.counts;
    let would = if dry_run { "would be " } else { "" };
    let mut parts = vec![format!(
        "{} {would}copied ({})",
        many(counts.files_copied, "file", "files"),
        quantity::bytes(counts.bytes_copied)
    )];
    for (count, one, more) in [
        (counts.dirs_made, "directory", "directories"),
        (counts.links_made, "link", "links"),
        (counts.names_made, "hard link", "hard links"),
        (counts.attrs_set, "change of attributes", "changes of attributes"),
        (counts.deleted, "deleted", "deleted"),
        (counts.unchanged, "unchanged", "unchanged"),
        (counts.skipped, "skipped", "skipped"),
        (counts.failed, "failed", "failed"),
    ] {
        if count > 0 {
            parts.push(many(count, one, more));
        }
    }
    // A dry run copies nothing.
    let rate = match counts.bytes_copied {
        0 => String::new(),
        _ if dry_run => String::new(),
        bytes => format!(", {}/s", quantity::bytes((bytes as f64 / seconds.max(1e-3)) as u64)),
    };
    let by = match engines {
        [] => String::new(),
        engines => format!(" by {}", engines.join(" and ")),
    };
    format!("{}; {seconds:.2} s{rate}{by}\n", parts.join(", "))
}

fn figures(outcome: &Outcome) -> String {
    let counts = &outcome.counts;
    format!(
        "entries: {}, of {}; already there from an earlier run: {}\n",
        counts.entries,
        quantity::bytes(counts.bytes),
        quantity::bytes(counts.bytes_resumed),
    )
}

fn many(count: u64, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args as _, FromArgMatches as _};
    use transfer::Outcome;

    /// A prompt of ssh stays where it is until there is something to show.
    #[test]
    fn nothing_is_drawn_before_there_are_files() {
        let words = ["pull", "srv:a", "b"];
        let command = Arguments::augment_args(clap::Command::new("pull"));
        let arguments = Arguments::from_arg_matches(&command.get_matches_from(words)).unwrap();
        let show = Show::new(&arguments);
        let progress = Arc::<Progress>::default();
        show.watch(progress.clone());
        show.frame();
        assert_eq!(show.bar.message(), "");
        progress.files_planned.store(1, Ordering::Relaxed);
        show.frame();
        assert!(show.bar.message().ends_with("0 of 1+ files"), "{}", show.bar.message());
    }

    #[test]
    fn json_has_each_problem_and_the_deletions_that_were_withheld() {
        let name = base::RemotePath::parse(b"a\xff").unwrap();
        let event = problem_json(&transfer::Fault::Vanished.of(&name));
        assert_eq!((&event["event"], &event["name_bytes"]), (&json!("problem"), &json!(b"a\xff")));
        assert!(event["problem"].as_str().unwrap().contains("vanished"), "{event}");
        let top = transfer::Fault::Vanished.of(&base::RemotePath::root());
        assert!(shown(&top).starts_with("the target: "), "{}", shown(&top));
        let outcome =
            Outcome { deletions_withheld: 2, deletions_limited: true, ..Outcome::default() };
        let copied = Copied { outcome, engines: Vec::new(), notes: Vec::new() };
        let summary = summary_json(Direction::Pull, &copied);
        assert_eq!(summary["deletions_withheld"], 2);
        assert_eq!(summary["deletions_limited"], true);
    }

    #[test]
    fn a_summary_has_singulars_and_plurals() {
        let mut outcome = Outcome::default();
        let counts = &mut outcome.counts;
        (counts.files_copied, counts.dirs_made, counts.attrs_set) = (1, 1, 1);
        let line = summary(&outcome, &["sftp"], false, 1.0);
        assert_eq!(
            line,
            "1 file copied (0 B), 1 directory, 1 change of attributes; 1.00 s by sftp\n"
        );
        let counts = &mut outcome.counts;
        (counts.files_copied, counts.dirs_made, counts.links_made) = (2, 2, 1);
        let line = summary(&outcome, &[], true, 1.0);
        let wanted = "2 files would be copied (0 B), 2 directories, 1 link, 1 change of attributes";
        assert!(line.starts_with(wanted), "{line}");
        assert!(line.ends_with("; 1.00 s\n"), "{line}");
    }
}
