//! Single operations with names: one caller, one operation after the other, each timed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::{Failure, Result};

use super::job::{Done, Entry, NameJob, Operation};
use super::latencies::Latencies;
use super::used;
use super::walk::Walk;

/// Within this time each subject shows a change made at the server: sshfs does after 20 s.
const SHOWN_WITHIN: Duration = Duration::from_secs(60);

/// Time between two looks for a change: most of a processor stays free for the subject.
const LOOK_PAUSE: Duration = Duration::from_micros(200);

/// What a name was found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// A file of that length.
    File(u64),
    Directory,
    Other,
}

/// What an operation gave.
enum Outcome {
    Nothing,
    Found(Found),
    Names(Vec<Vec<u8>>),
}

/// Does the job.
pub(super) fn run(job: &NameJob) -> Result<Done> {
    let directory = &job.directory;
    if job.make_directory {
        let made = perform(&Operation::Mkdir, directory, directory);
        made.map_err(|error| Failure::failed(format!("the directory: {error}")))?;
    }
    if job.warm {
        for number in 0..job.names {
            let name = NameJob::name(&job.prefix, number);
            let path = directory.join(&name);
            perform(&Operation::StatAbsent, &path, &path).map_err(|error| failed(&name, &error))?;
        }
    }
    let before = used();
    let mut latencies = Latencies::new();
    let mut seconds = 0.0;
    let mut operations = 0;
    for number in Walk::new(job.order, job.names.into()).take(job.operations as usize) {
        // One at least, so that there is a figure.
        if operations > 0 && job.seconds.is_some_and(|limit| seconds >= limit) {
            break;
        }
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let name = NameJob::name(&job.prefix, number);
        // Both paths are made here, so that nothing but the operation is timed.
        let path = directory.join(&name);
        let to = match &job.operation {
            Operation::Rename { prefix } => directory.join(NameJob::name(prefix, number)),
            Operation::SeeChange { at } => at.join(&name),
            _ => path.clone(),
        };
        let begin = Instant::now();
        let outcome = perform(&job.operation, &path, &to);
        let took = begin.elapsed();
        latencies.add(took);
        seconds += took.as_secs_f64();
        judge(&job.operation, &name, outcome)?;
        operations += 1;
    }
    // Of changes only a look from elsewhere can tell that they were done.
    let verified = match &job.operation {
        Operation::Stat(_)
        | Operation::StatAbsent
        | Operation::OpenClose
        | Operation::SeeChange { .. }
        | Operation::List { .. } => true,
        Operation::Create
        | Operation::Unlink
        | Operation::Mkdir
        | Operation::Rmdir
        | Operation::Rename { .. } => false,
    };
    let latency = latencies.into_latency();
    Ok(Done { seconds, operations, latency, verified, before, ..Done::default() })
}

fn failed(name: &str, error: &io::Error) -> Failure {
    Failure::failed(format!("{name}: {error}"))
}

fn judge(operation: &Operation, name: &str, outcome: io::Result<Outcome>) -> Result<()> {
    match (operation, outcome) {
        (Operation::StatAbsent, Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        (Operation::StatAbsent, Ok(_)) => {
            Err(Failure::wrong(format!("{name} is there, and should not be")))
        }
        (Operation::Stat(entry), Ok(Outcome::Found(found))) => judge_entry(name, entry, found),
        (Operation::List { prefix, names }, Ok(Outcome::Names(listed))) => {
            judge_names(listed, prefix, *names)
        }
        (_, Ok(_)) => Ok(()),
        (_, Err(error)) => Err(failed(name, &error)),
    }
}

fn judge_entry(name: &str, entry: &Entry, found: Found) -> Result<()> {
    let is_right = match entry {
        Entry::EmptyFile => found == Found::File(0),
        Entry::Directory => found == Found::Directory,
    };
    if is_right {
        return Ok(());
    }
    Err(Failure::wrong(format!("{name} is {found:?}, and should be {entry:?}")))
}

fn judge_names(listed: Vec<Vec<u8>>, prefix: &str, count: u32) -> Result<()> {
    let entries = listed.len();
    let listed: BTreeSet<Vec<u8>> = listed.into_iter().collect();
    if listed.len() != entries {
        return Err(Failure::wrong("a name is listed twice"));
    }
    let expected = || (0..count).map(|number| NameJob::name(prefix, number).into_bytes());
    if let Some(missing) = expected().find(|name| !listed.contains(name)) {
        return Err(Failure::wrong(format!("{} is not listed", missing.escape_ascii())));
    }
    if listed.len() == count as usize {
        return Ok(());
    }
    let expected: BTreeSet<Vec<u8>> = expected().collect();
    let stranger = listed.iter().find(|name| !expected.contains(*name));
    let stranger = stranger.map(|name| name.escape_ascii().to_string()).unwrap_or_default();
    Err(Failure::wrong(format!("{stranger} is listed, and should not be there")))
}

/// `to` is the new name of a rename, and the file that is changed for [`Operation::SeeChange`].
fn perform(operation: &Operation, path: &Path, to: &Path) -> io::Result<Outcome> {
    match operation {
        Operation::Stat(_) | Operation::StatAbsent => {
            let found = fs::symlink_metadata(path)?;
            return Ok(Outcome::Found(match found.file_type() {
                kind if kind.is_file() => Found::File(found.len()),
                kind if kind.is_dir() => Found::Directory,
                _ => Found::Other,
            }));
        }
        Operation::List { .. } => {
            let names = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().into_vec()));
            return names.collect::<io::Result<_>>().map(Outcome::Names);
        }
        Operation::OpenClose => drop(File::open(path)?),
        Operation::SeeChange { .. } => {
            File::options().append(true).open(to)?.write_all(b"x")?;
            let (begin, len) = (Instant::now(), fs::metadata(to)?.len());
            while fs::metadata(path)?.len() != len {
                if begin.elapsed() > SHOWN_WITHIN {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "the change is not shown"));
                }
                thread::sleep(LOOK_PAUSE);
            }
        }
        Operation::Create => drop(File::create_new(path)?),
        Operation::Unlink => fs::remove_file(path)?,
        Operation::Mkdir => fs::create_dir(path)?,
        Operation::Rmdir => fs::remove_dir(path)?,
        Operation::Rename { .. } => fs::rename(path, to)?,
    }
    Ok(Outcome::Nothing)
}
