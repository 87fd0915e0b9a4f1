//! Single operations with names: one caller, one operation after the other, each timed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use sftp::codec::{FileAttrs, OpenFlags, RemoteHandle, Request};

use crate::corpus::content::Content;
use crate::failure::Failure;
use crate::worker::job::Invocation;
use crate::worker::sftp::Sftp;

use super::clock::{Latencies, used};
use super::job::{Done, Entry, NameJob, Operation, Target};
use super::walk::Walk;

/// What a name was found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// A file of that length.
    File(u64),
    Directory,
    Other,
}

/// A directory in which names are.
trait Directory {
    /// Makes the directory itself.
    fn make(&mut self) -> io::Result<()>;
    fn stat(&mut self, name: &str) -> io::Result<Found>;
    fn open_close(&mut self, name: &str) -> io::Result<()>;
    /// Creates exclusively.
    fn create(&mut self, name: &str, content: &[u8]) -> io::Result<()>;
    fn unlink(&mut self, name: &str) -> io::Result<()>;
    fn mkdir(&mut self, name: &str) -> io::Result<()>;
    fn rmdir(&mut self, name: &str) -> io::Result<()>;
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    /// Names in the directory of that name.
    fn list(&mut self, name: &str) -> io::Result<Vec<Vec<u8>>>;
}

/// Does the job.
pub(super) fn run(job: &NameJob) -> Result<Done, Failure> {
    match &job.target {
        Target::Path(path) => run_in(&mut Local::new(path), job),
        Target::Sftp { ssh, path } => run_in(&mut Remote::connect(ssh, path)?, job),
        Target::Stream { .. } => Err(Failure::failed("a stream has no names")),
    }
}

fn run_in(directory: &mut dyn Directory, job: &NameJob) -> Result<Done, Failure> {
    let of_directory = |error: io::Error| Failure::failed(format!("the directory: {error}"));
    if job.make_directory {
        directory.make().map_err(of_directory)?;
    }
    if job.warm {
        for number in 0..job.names {
            let name = NameJob::name(&job.prefix, number);
            directory.stat(&name).map_err(|error| failed(&name, &error))?;
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
        let prepared = Prepared::new(job, number);
        let begin = Instant::now();
        let outcome = prepared.perform(directory);
        let took = begin.elapsed();
        latencies.add(took);
        seconds += took.as_secs_f64();
        prepared.judge(outcome)?;
        operations += 1;
    }
    let verified = !changes(&job.operation);
    let latency = latencies.into_latency();
    Ok(Done { seconds, operations, latency, verified, before, ..Done::default() })
}

/// Whether only a look from elsewhere can tell that it was done.
fn changes(operation: &Operation) -> bool {
    match operation {
        Operation::Stat(_)
        | Operation::StatAbsent
        | Operation::OpenClose
        | Operation::List { .. } => false,
        Operation::Create(_)
        | Operation::Unlink
        | Operation::Mkdir
        | Operation::Rmdir
        | Operation::Rename { .. } => true,
    }
}

fn failed(name: &str, error: &io::Error) -> Failure {
    Failure::failed(format!("{name}: {error}"))
}

/// One operation, with all that it needs at hand, so that nothing but it is timed.
struct Prepared<'a> {
    operation: &'a Operation,
    name: String,
    /// Of a rename.
    to: String,
    /// Of a file that is created.
    content: Vec<u8>,
}

/// What an operation gave.
enum Outcome {
    Nothing,
    Found(Found),
    Names(Vec<Vec<u8>>),
}

impl Prepared<'_> {
    fn new<'a>(job: &'a NameJob, number: u32) -> Prepared<'a> {
        let (mut to, mut content) = (String::new(), Vec::new());
        match &job.operation {
            Operation::Rename { prefix } => to = NameJob::name(prefix, number),
            Operation::Create(entry) => content = content_of(entry, number),
            _ => {}
        }
        Prepared {
            operation: &job.operation,
            name: NameJob::name(&job.prefix, number),
            to,
            content,
        }
    }

    fn perform(&self, directory: &mut dyn Directory) -> io::Result<Outcome> {
        let name = &self.name;
        match self.operation {
            Operation::Stat(_) | Operation::StatAbsent => directory.stat(name).map(Outcome::Found),
            Operation::List { .. } => directory.list(name).map(Outcome::Names),
            Operation::OpenClose => directory.open_close(name).map(|()| Outcome::Nothing),
            Operation::Create(_) => {
                directory.create(name, &self.content).map(|()| Outcome::Nothing)
            }
            Operation::Unlink => directory.unlink(name).map(|()| Outcome::Nothing),
            Operation::Mkdir => directory.mkdir(name).map(|()| Outcome::Nothing),
            Operation::Rmdir => directory.rmdir(name).map(|()| Outcome::Nothing),
            Operation::Rename { .. } => directory.rename(name, &self.to).map(|()| Outcome::Nothing),
        }
    }

    fn judge(&self, outcome: io::Result<Outcome>) -> Result<(), Failure> {
        match (self.operation, outcome) {
            (Operation::StatAbsent, Err(error)) if error.kind() == io::ErrorKind::NotFound => {
                Ok(())
            }
            (Operation::StatAbsent, Ok(_)) => {
                Err(Failure::wrong(format!("{} is there, and should not be", self.name)))
            }
            (Operation::Stat(entry), Ok(Outcome::Found(found))) => judge(&self.name, entry, found),
            (Operation::List { prefix, names }, Ok(Outcome::Names(listed))) => {
                judge_names(listed, prefix, *names)
            }
            (_, Ok(_)) => Ok(()),
            (_, Err(error)) => Err(failed(&self.name, &error)),
        }
    }
}

/// What is in the file of a number.
fn content_of(entry: &Entry, number: u32) -> Vec<u8> {
    match *entry {
        Entry::File { bytes, seed } => {
            let mut block = Content::new(seed).block(number.into()).to_vec();
            block.truncate(bytes as usize);
            block
        }
        Entry::Directory => Vec::new(),
    }
}

fn judge(name: &str, entry: &Entry, found: Found) -> Result<(), Failure> {
    let is_right = match entry {
        Entry::File { bytes, .. } => found == Found::File((*bytes).into()),
        Entry::Directory => found == Found::Directory,
    };
    if is_right {
        return Ok(());
    }
    Err(Failure::wrong(format!("{name} is {found:?}, and should be {entry:?}")))
}

fn judge_names(listed: Vec<Vec<u8>>, prefix: &str, count: u32) -> Result<(), Failure> {
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

/// A directory by its path.
#[derive(Debug)]
struct Local<'a> {
    path: &'a Path,
}

impl Local<'_> {
    fn new(path: &Path) -> Local<'_> {
        Local { path }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Directory for Local<'_> {
    fn make(&mut self) -> io::Result<()> {
        fs::create_dir(self.path)
    }

    fn stat(&mut self, name: &str) -> io::Result<Found> {
        let found = fs::symlink_metadata(self.at(name))?;
        Ok(match found.file_type() {
            kind if kind.is_file() => Found::File(found.len()),
            kind if kind.is_dir() => Found::Directory,
            _ => Found::Other,
        })
    }

    fn open_close(&mut self, name: &str) -> io::Result<()> {
        File::open(self.at(name)).map(drop)
    }

    fn create(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        let mut file = File::create_new(self.at(name))?;
        // An empty one needs no call.
        if content.is_empty() { Ok(()) } else { file.write_all(content) }
    }

    fn unlink(&mut self, name: &str) -> io::Result<()> {
        fs::remove_file(self.at(name))
    }

    fn mkdir(&mut self, name: &str) -> io::Result<()> {
        fs::create_dir(self.at(name))
    }

    fn rmdir(&mut self, name: &str) -> io::Result<()> {
        fs::remove_dir(self.at(name))
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.at(from), self.at(to))
    }

    fn list(&mut self, name: &str) -> io::Result<Vec<Vec<u8>>> {
        fs::read_dir(self.at(name))?.map(|entry| Ok(entry?.file_name().into_vec())).collect()
    }
}

const KIND: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;

/// A directory by the server's name of it.
#[derive(Debug)]
struct Remote {
    sftp: Sftp,
    path: Vec<u8>,
}

impl Remote {
    fn connect(ssh: &Invocation, path: &Path) -> Result<Remote, Failure> {
        Ok(Remote { sftp: Sftp::connect(ssh)?, path: path.as_os_str().as_bytes().to_vec() })
    }

    fn at(&self, name: &str) -> Vec<u8> {
        [&self.path[..], b"/", name.as_bytes()].concat()
    }

    fn all_names(&mut self, handle: &RemoteHandle) -> io::Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        while let Some(some) = self.sftp.names(handle)? {
            let some = some.into_iter().map(|entry| entry.name.to_vec());
            names.extend(some.filter(|name| name != b"." && name != b".."));
        }
        Ok(names)
    }
}

impl Directory for Remote {
    fn make(&mut self) -> io::Result<()> {
        let attrs = FileAttrs::with_permissions(0o755);
        self.sftp.status(&Request::Mkdir { path: &self.path, attrs })
    }

    fn stat(&mut self, name: &str) -> io::Result<Found> {
        let attrs = self.sftp.attrs(&Request::Lstat { path: &self.at(name) })?;
        Ok(match attrs.permissions.map(|mode| mode & KIND) {
            Some(REGULAR) => Found::File(attrs.size.unwrap_or(0)),
            Some(DIRECTORY) => Found::Directory,
            _ => Found::Other,
        })
    }

    fn open_close(&mut self, name: &str) -> io::Result<()> {
        let handle = self.sftp.open(&self.at(name), OpenFlags::READ)?;
        self.sftp.close(&handle)
    }

    fn create(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        let flags = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUSIVE;
        let handle = self.sftp.open(&self.at(name), flags)?;
        if !content.is_empty() {
            let write = Request::Write { handle: handle.as_bytes(), offset: 0, data: content };
            self.sftp.status(&write)?;
        }
        self.sftp.close(&handle)
    }

    fn unlink(&mut self, name: &str) -> io::Result<()> {
        self.sftp.status(&Request::Remove { path: &self.at(name) })
    }

    fn mkdir(&mut self, name: &str) -> io::Result<()> {
        let attrs = FileAttrs::with_permissions(0o755);
        self.sftp.status(&Request::Mkdir { path: &self.at(name), attrs })
    }

    fn rmdir(&mut self, name: &str) -> io::Result<()> {
        self.sftp.status(&Request::Rmdir { path: &self.at(name) })
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.sftp.status(&Request::PosixRename { from: &self.at(from), to: &self.at(to) })
    }

    fn list(&mut self, name: &str) -> io::Result<Vec<Vec<u8>>> {
        let handle = self.sftp.handle(&Request::Opendir { path: &self.at(name) })?;
        let names = self.all_names(&handle)?;
        self.sftp.close(&handle)?;
        Ok(names)
    }
}
