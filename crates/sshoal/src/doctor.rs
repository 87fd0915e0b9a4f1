//! `sshoal doctor`: checks this machine, and a server or a mount, in the order in which a mount
//! needs them. Each check is fine, or says what is wrong and what fixes it.
//!
//! | module | contents |
//! |---|---|
//! | [`machine`] | FUSE, programs, dead mounts, the disk cache |
//! | [`mount`] | a mount, as its daemon reports it |
//! | [`server`] | ssh's settings, network, SFTP, clock, speed |
//! | [`login`] | the login, and why it fails |
//! | [`authentication`] | keys, agent, and what the server says to the keys |
//! | [`report`] | the file for a bug report, with names hidden on request |
//!
//! Nothing is changed, on this machine or on the server.

mod authentication;
mod login;
mod machine;
mod mount;
mod report;
mod server;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;

use cli::{Document, EXIT_FAILURE, EXIT_OK, Problem, printable};
use serde::Serialize;

use crate::mount::request::MountRequest;
use crate::mount::server_arguments::ServerArguments;
use crate::process;

/// Version of the JSON form. Fields are only added.
const SCHEMA: u32 = 1;

/// The words of the command line.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// A source, as for `sshoal mount`, or a mount point. Without it, only this machine is checked.
    #[arg(value_name = "SOURCE | MOUNTPOINT")]
    target: Option<OsString>,
    #[command(flatten)]
    server: ServerArguments,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Also write a report for a bug report. It contains no keys, passwords or contents of files.
    #[arg(long, value_name = "FILE")]
    bundle: Option<PathBuf>,
    /// Replace users, hosts and paths by hashes in the report.
    #[arg(long, requires = "bundle")]
    hide_names: bool,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Fine,
    /// Mounts work, but less well than they could.
    Note,
    Wrong,
    /// It could not be checked.
    Unknown,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Fine => "fine",
            Verdict::Note => "note",
            Verdict::Wrong => "WRONG",
            Verdict::Unknown => "unknown",
        }
    }
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was checked.
    pub what: String,
    /// The result.
    pub verdict: Verdict,
    /// What was found, escaped.
    pub found: String,
    /// What fixes it.
    pub remedy: Option<String>,
    /// Names in it that the user may want to hide in a report.
    #[serde(skip)]
    names: Vec<String>,
}

impl Check {
    fn new(what: &str, verdict: Verdict, found: impl AsRef<str>) -> Check {
        let lines: Vec<String> =
            found.as_ref().lines().map(|line| printable(line.trim_start())).collect();
        let found = lines.join("\n");
        Check { what: what.to_owned(), verdict, found, remedy: None, names: Vec::new() }
    }

    pub fn fine(what: &str, found: impl AsRef<str>) -> Check {
        Check::new(what, Verdict::Fine, found)
    }

    pub fn note(what: &str, found: impl AsRef<str>) -> Check {
        Check::new(what, Verdict::Note, found)
    }

    pub fn wrong(what: &str, found: impl AsRef<str>) -> Check {
        Check::new(what, Verdict::Wrong, found)
    }

    pub fn unknown(what: &str, found: impl AsRef<str>) -> Check {
        Check::new(what, Verdict::Unknown, found)
    }

    pub fn remedy(self, remedy: impl Into<String>) -> Check {
        Check { remedy: Some(remedy.into()), ..self }
    }

    /// Adds a name that it contains.
    pub fn naming(mut self, name: impl Into<String>) -> Check {
        self.names.push(name.into());
        self
    }
}

/// Checks, and prints each result as it is known. The exit code is 1 if anything is wrong.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let target = target(arguments)?;
    if let Some(file) = &arguments.bundle {
        report::may_create(file)?;
    }
    let mut checks =
        Checks { shown: !arguments.json, all: Vec::new(), names: Vec::new(), printed: Ok(()) };
    machine::check(&mut checks);
    match &target {
        None => {}
        Some(Target::Mount(place)) => mount::check(&mut checks, place)?,
        Some(Target::Server(request)) => {
            let dir = request.disk.as_ref().and_then(|disk| disk.dir.as_deref());
            dir.into_iter().for_each(|dir| machine::check_other_cache(&mut checks, dir));
            let runtime = process::runtime(1)?;
            runtime.block_on(server::check(&mut checks, request));
            runtime.shutdown_background();
        }
    }
    let is_wrong = checks.all.iter().any(|check| check.verdict == Verdict::Wrong);
    if let Some(file) = &arguments.bundle {
        let names = arguments.hide_names.then_some(&checks.names[..]);
        report::write(file, target.as_ref(), &checks.all, names)?;
        if !arguments.json {
            cli::print(&format!("\nThe report is in {}.\n", printable(file)))?;
        }
    }
    checks.printed?;
    if arguments.json {
        let content = BTreeMap::from([("checks", checks.all)]);
        cli::print(&cli::json(&Document { schema: SCHEMA, content })?)?;
    }
    Ok(ExitCode::from(if is_wrong { EXIT_FAILURE } else { EXIT_OK }))
}

/// What is checked beside this machine.
enum Target {
    Mount(PathBuf),
    Server(Box<MountRequest>),
}

fn target(arguments: &Arguments) -> Result<Option<Target>, Problem> {
    let source = arguments.target.as_ref().filter(|word| is_source(word));
    if let Some(source) = source {
        return Ok(Some(Target::Server(arguments.server.request(source)?)));
    }
    if !arguments.server.is_empty() {
        return Err(Problem::new("options", "only for a source")
            .hint("-p, -F and -o describe a connection; a mount has its own"));
    }
    Ok(arguments.target.as_ref().map(|place| Target::Mount(place.into())))
}

/// Whether it is a source. As for scp, `./a:b` is a path.
fn is_source(word: &OsStr) -> bool {
    let bytes = word.as_encoded_bytes();
    let is_path = [&b"/"[..], b"./", b"../"].iter().any(|begin| bytes.starts_with(begin));
    !is_path && bytes.contains(&b':')
}

/// The results so far.
pub struct Checks {
    /// Each is printed as it is added.
    shown: bool,
    all: Vec<Check>,
    /// Names of hosts, users and paths that the checks have found out.
    names: Vec<String>,
    /// The first error of printing. The checks go on: there may be a report to write.
    printed: Result<(), Problem>,
}

impl Checks {
    pub fn add(&mut self, mut check: Check) {
        self.names.append(&mut check.names);
        if self.shown && self.printed.is_ok() {
            self.printed = cli::print_bytes(text(&check).as_bytes()).map(drop);
        }
        self.all.push(check);
    }
}

/// Aligned columns; further lines are below the third column.
fn text(check: &Check) -> String {
    let mut lines = check.found.lines();
    let first = lines.next().unwrap_or_default();
    let mut text = format!("{:<8} {:<20} {first}\n", check.verdict.word(), check.what);
    for line in lines.chain(check.remedy.iter().flat_map(|remedy| remedy.lines())) {
        text.push_str(&format!("{:30}{line}\n", ""));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_no_source() {
        for source in ["host:", "host:/dir", "P/Q=host:dir", "ssh://host/dir"] {
            assert!(is_source(OsStr::new(source)), "{source}");
        }
        for path in ["/mnt/a:b", "./a:b", "../a:b", "mnt"] {
            assert!(!is_source(OsStr::new(path)), "{path}");
        }
    }

    #[test]
    fn a_check_is_one_line_and_its_remedy_is_below() {
        let check = Check::wrong("/dev/fuse", "not there\x1b[2J").remedy("modprobe fuse");
        let text = text(&check);
        assert_eq!(
            text,
            "WRONG    /dev/fuse            not there\\u{1b}[2J\n                              modprobe fuse\n"
        );
    }
}
