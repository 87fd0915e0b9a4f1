//! The command line of `sshoal bench`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use bench::link::LinkSpec;
use bench::plan::{Host, Request};
use bench::published::{PUBLISHED, Published};
use bench::size::{STEP_BYTES, Scale, Size};
use bench::units::{binary_size, parse_percent};
use clap::Args;
use cli::{OrProblem, Problem, parse_bytes, printable};

/// Longest deadline: a day.
const DEADLINE_LIMIT_S: u64 = 86_400;

/// All published comparisons.
const ALL: &str = "all";

const EXAMPLES: &str = "\
Examples:
  sshoal bench --quick                          sshoal and sshfs, under two minutes
  sshoal bench --peers all --link wan --out r   everything installed, over a long link
  sshoal bench --host me@server:/srv/tmp        a real server
  sshoal bench --target nfs=/mnt/nfs            a mounted directory
  sshoal bench --repeat nas --scale 0.1         a published comparison, with a tenth of its data
  sshoal bench --compare r                      this run, against an earlier one

Exit status: 0, or 1 if it could not run or measured nothing, 3 if wrong data were seen, sshoal
failed or a comparison shows a regression, 130 if it was interrupted.";

/// Options, as clap reads them.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Repeat a published comparison, or `all`, one after the other (`--list` shows them); options
    /// beside it have precedence
    #[arg(long, value_name = "NAME", value_parser = repeated(), help_heading = "How much")]
    repeat: Option<String>,
    /// Multiply the amounts of data of the published comparison
    #[arg(long, value_name = "FACTOR", requires = "repeat", default_value = "1",
        value_parser = factor, help_heading = "How much")]
    scale: f64,
    /// Small amounts of data: under two minutes for one peer
    #[arg(long, conflicts_with = "full", help_heading = "How much")]
    quick: bool,
    /// Amounts of data as in published comparisons: takes hours
    #[arg(long, help_heading = "How much")]
    full: bool,
    /// Only these works (`--list` shows all)
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "How much")]
    work: Option<Vec<String>>,
    /// Samples of each measure of each subject
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000),
        help_heading = "How much")]
    rounds: Option<u32>,
    /// Size of the large files, such as 16G
    #[arg(long, value_name = "BYTES", value_parser = file_size, help_heading = "How much")]
    size: Option<u64>,
    /// Time limit of a step; that of steps over large files grows with the files
    #[arg(long, value_name = "SECONDS", help_heading = "How much",
        value_parser = clap::value_parser!(u64).range(1..=DEADLINE_LIMIT_S))]
    deadline: Option<u64>,
    /// Ciphers with which large files are copied
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "How much")]
    ciphers: Option<Vec<String>>,
    /// A tree of files, in place of the one that `tree` would generate
    #[arg(long, value_name = "DIR", help_heading = "How much")]
    tree: Option<PathBuf>,
    /// Sources to build, in place of those that `build` would choose
    #[arg(long, value_name = "DIR", help_heading = "How much")]
    build_tree: Option<PathBuf>,
    /// Number of parallel compilers of the work `build` (default: 2)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000),
        help_heading = "How much")]
    jobs: Option<u32>,
    /// Seed of the random orders; the generated data are the same in all runs
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "How much")]
    seed: u64,

    /// Peers: names from `--list`, `floor`, `all` (all that are installed), or `none` (default:
    /// sshfs)
    #[arg(long, value_name = "LIST", help_heading = "Subjects")]
    peers: Option<String>,
    /// A program with sshfs's command line; `sshoal` is this one: `one=sshoal -o max_conns=1`
    #[arg(long, value_name = "NAME=COMMAND", help_heading = "Subjects")]
    subject: Vec<OsString>,
    /// A program that copies, as a shell command: `mine=cp2 "$@" "$FROM" "$TO"`; see
    /// docs/benchmarking.md
    #[arg(long, value_name = "NAME=SCRIPT", help_heading = "Subjects")]
    copier: Vec<OsString>,
    /// A directory that is already mounted, by NFS or SMB for example
    #[arg(long, value_name = "NAME=DIR", help_heading = "Subjects")]
    target: Vec<OsString>,
    /// Do not measure sshoal itself
    #[arg(long, help_heading = "Subjects")]
    no_sshoal: bool,
    /// The subject to which ratios refer (default: sshfs)
    #[arg(long, value_name = "NAME", help_heading = "Subjects")]
    reference: Option<String>,
    /// Do not measure the reference twice; then no difference is significant
    #[arg(long, help_heading = "Subjects")]
    no_control: bool,

    /// Link between client and server: loopback, lan, wan, intercontinental, or
    /// rtt=20ms,rate=100mbit
    #[arg(long, value_name = "SPEC", conflicts_with = "host", help_heading = "Server and link")]
    link: Option<String>,
    /// A real server instead of a private one
    #[arg(long, value_name = "[USER@]HOST[:DIR]", help_heading = "Server and link")]
    host: Option<String>,
    /// Configuration file of ssh for the host
    #[arg(
        short = 'F',
        long = "ssh-config",
        value_name = "FILE",
        requires = "host",
        help_heading = "Server and link"
    )]
    ssh_config: Option<PathBuf>,
    /// Port of the host
    #[arg(short, long, value_name = "PORT", requires = "host", help_heading = "Server and link")]
    port: Option<u16>,
    /// Local directory for data and mounts
    #[arg(long, value_name = "DIR", help_heading = "Server and link")]
    scratch: Option<PathBuf>,

    /// Sample the CPU of each process over time, for a chart
    #[arg(long, help_heading = "Results")]
    trace_cpu: bool,
    /// Write results.json, report.html and report.md into this directory
    #[arg(long, value_name = "DIR", help_heading = "Results")]
    pub(super) out: Option<PathBuf>,
    /// Compare with earlier results: a results.json, or the directory that it is in
    #[arg(long, value_name = "OLD", help_heading = "Results")]
    pub(super) compare: Option<PathBuf>,
    /// Compare OLD with these results, and measure nothing
    #[arg(long, value_name = "NEW", requires = "compare", help_heading = "Results")]
    pub(super) with: Option<PathBuf>,
    /// Largest loss that is not a regression in a comparison
    #[arg(long, value_name = "PERCENT", default_value = "10%", value_parser = parse_percent,
        help_heading = "Results")]
    pub(super) tolerance: f64,

    /// List subjects and works, what is installed, and which packages are missing
    #[arg(long, conflicts_with_all = ["advise", "compare"], help_heading = "Instead of a run")]
    pub(super) list: bool,
    /// Measure ciphers and link, and report which ssh settings would be faster
    #[arg(long, conflicts_with_all = ["compare", "out", "repeat"],
        help_heading = "Instead of a run")]
    pub(super) advise: bool,
}

impl Arguments {
    /// The published comparisons to repeat; none for an ordinary run.
    pub(super) fn repeated(&self) -> Vec<&'static Published> {
        match self.repeat.as_deref() {
            Some(ALL) => PUBLISHED.iter().collect(),
            Some(name) => Published::named(name).into_iter().collect(),
            None => Vec::new(),
        }
    }

    /// The request for a run of `sshoal`, which repeats a published comparison or is an ordinary
    /// one.
    pub(super) fn request(
        &self,
        sshoal: PathBuf,
        repeats: Option<&'static Published>,
    ) -> Result<Request, Problem> {
        let scale = match (self.quick, self.full || repeats.is_some()) {
            (true, _) => Scale::Quick,
            (_, true) => Scale::Full,
            _ => Scale::Normal,
        };
        // As the user typed it, without the words that name the program.
        let words = std::env::args_os().skip_while(|word| word != "bench");
        let command = |option: &'static str, form: &'static str| {
            move |word: &OsString| {
                let (name, command) = pair(option, word, form)?;
                let command = command.into_string().map_err(|command| {
                    let what = format!("{option} '{}'", printable(name.as_str()));
                    Problem::new(what, format!("not UTF-8: {}", printable(command)))
                })?;
                Ok((name, command))
            }
        };
        let subject = command("--subject", "NAME=COMMAND");
        let copier = command("--copier", "NAME=SCRIPT");
        let target = |word: &OsString| {
            let (name, dir) = pair("--target", word, "NAME=DIR")?;
            Ok((name, dir.into()))
        };
        let link = |link: &String| {
            link.parse::<LinkSpec>().or_problem(format!("--link '{}'", printable(link)))
        };
        let request = Request {
            scale,
            without_ours: self.no_sshoal,
            peers: self.peers.clone().map(|list| if list == "none" { String::new() } else { list }),
            commands: self.subject.iter().map(subject).collect::<Result<_, Problem>>()?,
            copiers: self.copier.iter().map(copier).collect::<Result<_, Problem>>()?,
            targets: self.target.iter().map(target).collect::<Result<_, Problem>>()?,
            works: self.work.as_deref().map(names),
            link: self.link.as_ref().map(link).transpose()?,
            host: self.host()?,
            rounds: self.rounds,
            file_bytes: self.size,
            jobs: self.jobs,
            deadline: self.deadline.map(Duration::from_secs),
            reference: self.reference.clone(),
            without_control: self.no_control,
            seed: self.seed,
            scratch: self.scratch.clone().unwrap_or_else(std::env::temp_dir),
            ciphers: self.ciphers.as_deref().map(names),
            tree: self.tree.clone(),
            build_tree: self.build_tree.clone(),
            program: sshoal,
            version: format!("sshoal {}", env!("CARGO_PKG_VERSION")),
            command: ["sshoal".to_owned()].into_iter().chain(words.map(printable)).collect(),
            trace_cpu: self.trace_cpu,
            ..Request::default()
        };
        Ok(match repeats {
            Some(published) => published.fill(request, self.scale),
            None => request,
        })
    }

    fn host(&self) -> Result<Option<Host>, Problem> {
        let Some(text) = &self.host else { return Ok(None) };
        let host = Host::parse(text).map_err(|why| Problem::new("--host", why))?;
        Ok(Some(Host { config: self.ssh_config.clone(), port: self.port, ..host }))
    }
}

/// Names of published comparisons.
fn repeated() -> clap::builder::PossibleValuesParser {
    PUBLISHED.iter().map(|published| published.name).chain([ALL]).collect::<Vec<_>>().into()
}

/// A factor for amounts of data.
fn factor(text: &str) -> Result<f64, String> {
    let factor = text.parse::<f64>().ok().filter(|factor| (1e-6..=100.0).contains(factor));
    factor.ok_or_else(|| format!("'{}' is not a number up to 100", text.escape_debug()))
}

/// The size of a large file: whole records of all works.
fn file_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{}' is not a size such as 64M or 16G", text.escape_debug());
    let size = parse_bytes(text).filter(|&bytes| bytes > 0).ok_or_else(wrong)?;
    match Size::whole_records(size) {
        0 => Err(format!("{text} is less than a record of {}", binary_size(STEP_BYTES))),
        size => Ok(size),
    }
}

/// Words of a list, without blanks, and none that are empty.
fn names(words: &[String]) -> Vec<String> {
    words.iter().map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect()
}

/// `NAME=REST`, where the name is one that a report can show.
fn pair(option: &str, word: &OsString, form: &str) -> Result<(String, OsString), Problem> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let bytes = word.as_bytes();
    let parts =
        bytes.iter().position(|&byte| byte == b'=').map(|at| (&bytes[..at], &bytes[at + 1..]));
    let parts = parts.filter(|(name, rest)| !name.is_empty() && !rest.is_empty());
    let Some((name, rest)) = parts else {
        let what = format!("{option} '{}'", printable(word));
        return Err(Problem::new(what, format!("not of the form {form}")));
    };
    match std::str::from_utf8(name) {
        Ok(name) if name.chars().all(|char| !char.is_control() && char != ',') => {
            Ok((name.to_owned(), OsString::from_vec(rest.to_vec())))
        }
        _ => {
            let what = format!("{option} '{}'", printable(word));
            Err(Problem::new(what, "the name has a comma or what cannot be printed in it"))
        }
    }
}
