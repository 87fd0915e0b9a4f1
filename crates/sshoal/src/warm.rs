//! `sshoal warm`: prefetches files of a mount into its disk cache.
//!
//! The daemon fetches them, and stops when this command ends.

use std::ffi::OsStr;
use std::io::{IsTerminal, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use cli::{EXIT_FAILURE, EXIT_OK, OrProblem, Problem, printable};
use control::job::{CacheJob, Tally};
use indicatif::{ProgressBar, ProgressDrawTarget};

use crate::cache_command::places;
use crate::progress::{self, Frame};
use crate::quantity::{bytes, count, duration, millis};

/// How often the progress bar is drawn, per second.
const DRAWN_PER_S: u8 = 8;

/// The words of the command line.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Files, or directories and all below them, in mounts with `cache=disk`.
    paths: Vec<PathBuf>,
    /// Number of files to fetch in parallel.
    #[arg(short = 'j', long = "jobs", value_name = "N", default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(1..))]
    at_once: u32,
    /// Read more paths from FILE, one per line, or separated by NUL bytes; - is standard input.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Fetches the files. The exit code is 1 when a file could not be fetched, or was not cached.
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { mut paths, at_once, from, json } = arguments;
    if let Some(from) = from {
        paths.extend(listed(&from)?);
    }
    if paths.is_empty() {
        return Err(Problem::new("warm", "no paths given")
            .hint("`sshoal warm MOUNTPOINT` fetches all files of a mount")
            .into());
    }
    let begun = Instant::now();
    let bar = bar();
    let mut progress = |tally: &Tally| {
        bar.set_message(frame(tally, begun.elapsed()).line(progress::columns()));
    };
    let job = |paths| CacheJob::Warm { paths, at_once };
    let told = places::ask(&paths, places::existing, job, &mut progress);
    bar.finish_and_clear();
    let all = told?;
    for problem in &all.problems {
        eprintln!("sshoal: {}", printable(problem));
    }
    cli::print_as(json, &all, || summary(&all, millis(begun.elapsed())))?;
    let well = all.failed == 0 && all.not_kept_files == 0;
    Ok(ExitCode::from(if well { EXIT_OK } else { EXIT_FAILURE }))
}

/// The paths in the file `from`.
fn listed(from: &Path) -> Result<Vec<PathBuf>, Problem> {
    let mut text = Vec::new();
    let read = match from.to_str() {
        Some("-") => std::io::stdin().lock().read_to_end(&mut text).map(drop),
        _ => std::fs::read(from).map(|read| text = read),
    };
    read.or_problem(format!("'{}'", printable(from)))?;
    let end = if text.contains(&0) { 0 } else { b'\n' };
    let lines = text.split(|byte| *byte == end).filter(|line| !line.is_empty());
    Ok(lines.map(|line| PathBuf::from(OsStr::from_bytes(line))).collect())
}

/// The progress bar; hidden unless standard error is a terminal.
fn bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let target = ProgressDrawTarget::stderr_with_hz(DRAWN_PER_S);
    ProgressBar::with_draw_target(None, target).with_style(progress::style())
}

/// The state of the bar: cached files count with all their bytes, a file that is being fetched with
/// the bytes received.
fn frame(tally: &Tally, elapsed: Duration) -> Frame {
    Frame {
        files: tally.done_files,
        all: tally.files,
        bytes: tally.present_bytes.max(tally.fetched_bytes),
        total: tally.bytes,
        moved: tally.fetched_bytes,
        planned: true,
        elapsed,
        unit: bytes,
    }
}

fn summary(tally: &Tally, ms: u64) -> String {
    let files = count(tally.files, "file");
    let mut out = format!(
        "{files} ({}): {} fetched ({}) in {}, {} already cached\n",
        bytes(tally.bytes),
        tally.fetched_files,
        bytes(tally.fetched_bytes),
        duration(ms),
        tally.whole_files - tally.fetched_files.min(tally.whole_files),
    );
    if tally.not_kept_files > 0 {
        let words = count(tally.not_kept_files, "file");
        out += &format!(
            "{words} not cached: changed while being fetched, too large, or the cache is full or \
             cannot be written to\n"
        );
    }
    if tally.failed > 0 {
        out += &format!("{} failed\n", tally.failed);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_at_a_time_is_the_least() {
        let parse = |number| {
            use clap::Args;
            let command = Arguments::augment_args(clap::Command::new("warm"));
            command.try_get_matches_from(["warm", "-j", number, "/m"])
        };
        assert!(parse("1").is_ok());
        assert!(parse("0").unwrap_err().to_string().contains("invalid value '0'"));
    }

    #[test]
    fn lists_have_lines_or_nuls() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("list");
        for (text, paths) in
            [(&b"a b\n/c\n\n"[..], &["a b", "/c"][..]), (b"a\nb\0c\0", &["a\nb", "c"]), (b"", &[])]
        {
            std::fs::write(&file, text).unwrap();
            let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
            assert_eq!(listed(&file).unwrap(), paths);
        }
        let missing = listed(&dir.path().join("none")).unwrap_err().to_string();
        assert!(missing.contains("No such file"), "{missing}");
    }

    #[test]
    fn a_bar_has_all_its_figures_in_80_columns() {
        let tally = Tally {
            files: 3006,
            bytes: 1260 << 20,
            done_files: 1002,
            present_bytes: 600 << 20,
            fetched_bytes: 60 << 20,
            ..Tally::default()
        };
        assert_eq!(
            frame(&tally, Duration::from_secs(60)).line(79),
            "######--------  600 MiB of 1.2 GiB  1 MiB/s  11:00 left  1002 of 3006 files"
        );
    }

    #[test]
    fn a_summary_tells_what_was_fetched_and_what_was_not() {
        let tally = Tally {
            files: 5,
            bytes: 5 << 20,
            done_files: 5,
            whole_files: 4,
            fetched_files: 3,
            fetched_bytes: 3 << 20,
            not_kept_files: 1,
            failed: 2,
            ..Tally::default()
        };
        assert_eq!(
            summary(&tally, 1_500),
            "5 files (5 MiB): 3 fetched (3 MiB) in 1.5 s, 1 already cached\n\
             1 file not cached: changed while being fetched, too large, or the cache is full or \
             cannot be written to\n\
             2 failed\n"
        );
    }
}
