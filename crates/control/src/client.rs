//! The command's side: sends a request and waits for the reply with a deadline.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use base::RemotePath;
use cli::{OrProblem, Problem, printable};
use mountinfo::Mount;
use rustix::process::geteuid;

use crate::inside::about;
use crate::job::{self, Tally};
use crate::place::{Connection, Place};
use crate::probe;
use crate::profile::Profile;
use crate::record::{self, Found};
use crate::status::MountStatus;
use crate::{INVALID_REQUEST, MAX_REPLY_BYTES, PROTOCOL, Reply, Request, SOCKET, Wish};

/// A daemon that does not answer within this time is reported as hung. Usually the answer takes a
/// millisecond.
const DEADLINE: Duration = Duration::from_secs(2);

/// How long a mount may have no record.
const RECORD_LIMIT: Duration = Duration::from_millis(200);

/// How long a path may take to be resolved before the daemons of its mounts are queried.
const PATIENCE: Duration = Duration::from_secs(1);

/// Why there is no reply.
#[derive(Debug, thiserror::Error)]
pub enum Silence {
    /// The mount is another user's.
    #[error("mounted by user {0}; only that user and root may query it")]
    Foreign(u32),
    /// The daemon of the mount has ended.
    #[error("no daemon serves this mount; `sshoal umount` removes it")]
    NoRecord,
    /// The mount has no record that this command finds, and its daemon may be working.
    #[error(
        "its daemon is not known here (another XDG_RUNTIME_DIR, or it has no record); it may be \
         working"
    )]
    Unknown,
    /// The daemon has no socket: its version had none, or the socket could not be created.
    #[error("the daemon has no control socket; perhaps it is of an older version")]
    NoSocket,
    /// The daemon has just ended.
    #[error("the daemon has just ended")]
    Ended,
    /// The daemon does not reply.
    #[error("no reply within {} s", DEADLINE.as_secs())]
    Hangs,
    /// The reply is invalid.
    #[error("the reply of the daemon was invalid")]
    Garbled,
    /// The daemon refused the request, or it failed.
    #[error("{0}")]
    Refused(Problem),
    /// A system call failed.
    #[error("{0}")]
    Io(io::Error),
}

impl From<io::Error> for Silence {
    fn from(error: io::Error) -> Silence {
        match error.kind() {
            io::ErrorKind::NotFound => Silence::NoSocket,
            io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof => Silence::Ended,
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Silence::Hangs,
            _ => Silence::Io(error),
        }
    }
}

/// The mount of sshoal that is visible at `mountpoint`.
pub fn mount_at(mountpoint: &Path) -> Result<Mount, Problem> {
    let mount = any_mount_at(mountpoint)?;
    if record::is_ours(&mount) {
        Ok(mount)
    } else {
        let kind = printable(&mount.kind);
        Err(Problem::new(about(mountpoint), format!("not a mount of sshoal, but of type {kind}")))
    }
}

/// The mount of any file system that is visible at `mountpoint`.
pub fn any_mount_at(mountpoint: &Path) -> Result<Mount, Problem> {
    patiently(mountpoint, mountinfo::find)?.ok_or_else(|| {
        let nothing = Problem::new(about(mountpoint), "nothing is mounted here");
        match mountinfo::around(mountpoint).filter(record::is_ours) {
            None => nothing.hint("`sshoal status` lists the mounts"),
            Some(around) => match find(&around) {
                Ok(_) => {
                    nothing.hint(format!("it is inside the mount {}", about(&around.mountpoint)))
                }
                Err(silence) => problem(&around.mountpoint, silence),
            },
        }
    })
}

/// Why a path cannot be resolved. Of a dead mount, and of another user's, the system's error does
/// not name the cause.
pub fn unresolved(path: &Path, error: &io::Error) -> Problem {
    let around = || mountinfo::around(path).filter(record::is_ours);
    let silence = match rustix::io::Errno::from_io_error(error) {
        Some(rustix::io::Errno::NOTCONN) => around().map(|mount| (mount, Silence::NoRecord)),
        Some(rustix::io::Errno::ACCESS) => around().and_then(|mount| match find(&mount) {
            Err(foreign @ Silence::Foreign(_)) => Some((mount, foreign)),
            _ => None,
        }),
        _ => None,
    };
    match silence {
        Some((mount, silence)) => problem(&mount.mountpoint, silence),
        None => Problem::new(about(path), error.to_string()),
    }
}

/// The result of `work` with `path`. It waits for a server as long as the mount does, but not for a
/// daemon that does not answer.
pub fn patiently<T: Send + 'static>(
    path: &Path,
    work: fn(&Path) -> io::Result<T>,
) -> Result<T, Problem> {
    let (sender, done) = mpsc::channel();
    let own_path = path.to_owned();
    thread::spawn(move || sender.send(work(&own_path)));
    loop {
        match done.recv_timeout(PATIENCE) {
            Ok(done) => return done.map_err(|error| unresolved(path, &error)),
            Err(RecvTimeoutError::Timeout) => check_around(path)?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(unresolved(path, &io::ErrorKind::Other.into()));
            }
        }
    }
}

/// Fails if `path` leads through a mount of this user whose daemon does not answer.
fn check_around(path: &Path) -> Result<(), Problem> {
    let path = std::path::absolute(path).or_problem(about(path))?;
    let reversed = |path: &Path| -> Vec<OsString> {
        path.components().rev().map(|it| it.as_os_str().to_owned()).collect()
    };
    // From the outside, so that nothing inside of such a mount is accessed.
    let (mut place, mut rest, mut links) = (PathBuf::new(), reversed(&path), 0);
    let mut answering = Vec::new();
    while let Some(name) = rest.pop() {
        match Path::new(&name).components().next() {
            Some(Component::ParentDir) => _ = place.pop(),
            // The root replaces all before it.
            _ => place.push(name),
        }
        let mount = mountinfo::containing(&place).ok().flatten().filter(record::is_ours);
        if let Some(mount) = mount.filter(|mount| !answering.contains(&mount.device)) {
            match find(&mount).and_then(|found| status(&found)) {
                Err(why @ Silence::Hangs) => return Err(problem(&mount.mountpoint, why)),
                // It may hang, too.
                Err(Silence::Foreign(_)) => return Ok(()),
                _ => answering.push(mount.device),
            }
        }
        if let Ok(target) = std::fs::read_link(&place) {
            links += 1;
            if links > mountinfo::MAX_LINKS {
                return Ok(());
            }
            place.pop();
            rest.extend(reversed(&target));
        }
    }
    Ok(())
}

/// The record of the daemon of `mount`, if this user may query it.
pub fn find(mount: &Mount) -> Result<Found, Silence> {
    let me = geteuid().as_raw();
    match mount.owner.filter(|owner| me != 0 && *owner != me) {
        Some(owner) => Err(Silence::Foreign(owner)),
        None => recorded(mount).ok_or_else(|| match is_here(mount) && !probe::is_dead(mount) {
            true => Silence::Unknown,
            false => Silence::NoRecord,
        }),
    }
}

/// Whether the mount is in the mount table.
pub(crate) fn is_here(mount: &Mount) -> bool {
    mountinfo::all().is_ok_and(|all| all.iter().any(|it| it.device == mount.device))
}

/// The record of a mount. A daemon that has just mounted is about to create it.
fn recorded(mount: &Mount) -> Option<Found> {
    let until = Instant::now() + RECORD_LIMIT;
    loop {
        let found = record::find(mount);
        if found.is_some() || Instant::now() >= until {
            return found;
        }
        thread::sleep(RECORD_LIMIT / 10);
    }
}

/// Succeeds for the owner of `mount`. For others, its daemon must not decide what runs here: the
/// error says that only the owner may `do_what`.
pub fn only_own(mount: &Mount, do_what: &str) -> Result<(), String> {
    let owner = match mount.owner {
        Some(owner) if owner == geteuid().as_raw() => return Ok(()),
        Some(owner) => owner.to_string(),
        None => "unknown".to_owned(),
    };
    Err(format!("mounted by user {owner}; only that user may {do_what}"))
}

/// The status with the counters of the mount of the record `found`.
pub fn stats(found: &Found) -> Result<Box<MountStatus>, Silence> {
    match ask(found, Wish::Stats, &mut |_| {}).map_err(|why| older(found, why, "statistics"))? {
        Reply::Status(status) if status.counters.is_some() => Ok(status),
        _ => Err(Silence::Garbled),
    }
}

/// A profile of the mount of the record `found`, recorded for some seconds.
pub fn profile(found: &Found, seconds: u32) -> Result<Box<Profile>, Silence> {
    let wish = Wish::Profile { seconds };
    let deadline = Instant::now() + Duration::from_secs(seconds.into()) + DEADLINE;
    let keep = |_: &UnixStream| Ok(Some(deadline));
    let reply = converse(&found.connect()?, wish, deadline, keep, &mut |_| {});
    match reply.map_err(|why| older(found, why, "profiles"))? {
        Reply::Profile(profile) => Ok(profile),
        _ => Err(Silence::Garbled),
    }
}

/// How the mount of the record `found` connects to its hosts.
pub fn connections(found: &Found) -> Result<Vec<Connection>, Silence> {
    let asked = ask(found, Wish::Connections, &mut |_| {});
    match asked.map_err(|why| older(found, why, "checks of its hosts"))? {
        Reply::Connections(connections) => Ok(connections),
        _ => Err(Silence::Garbled),
    }
}

/// Where a path of the mount of the record `found` is.
pub fn place(found: &Found, path: RemotePath) -> Result<Place, Silence> {
    match ask(found, Wish::Place { path: job::Path(path) }, &mut |_| {})? {
        Reply::Place(place) => Ok(*place),
        _ => Err(Silence::Garbled),
    }
}

/// Explains a request that the daemon did not understand.
fn older(found: &Found, why: Silence, what: &str) -> Silence {
    match why {
        Silence::Refused(problem) if problem == Problem::new(SOCKET, INVALID_REQUEST) => {
            let version = status(found).map(|status| format!(" ({})", status.version));
            let version = version.unwrap_or_default();
            Silence::Refused(
                Problem::new(
                    "daemon of the mount",
                    format!("its version{version} is older and has no {what}"),
                )
                .hint("unmount and mount again to use the installed version"),
            )
        }
        why => why,
    }
}

/// The status of the mount of the record `found`.
pub fn status(found: &Found) -> Result<Box<MountStatus>, Silence> {
    match ask(found, Wish::Status, &mut |_| {})? {
        Reply::Status(status) => Ok(status),
        _ => Err(Silence::Garbled),
    }
}

/// Sends a request to the daemon of the mount at `mountpoint`. `expected` extracts the value from
/// the reply. `progress` is called with the progress of a job.
pub fn ask_mount<T>(
    mountpoint: &Path,
    wish: Wish,
    progress: &mut dyn FnMut(&Tally),
    expected: impl FnOnce(Reply) -> Option<T>,
) -> Result<T, Problem> {
    let mount = mount_at(mountpoint)?;
    let reply = find(&mount).and_then(|found| ask(&found, wish, progress));
    reply
        .and_then(|reply| expected(reply).ok_or(Silence::Garbled))
        .map_err(|why| problem(mountpoint, why))
}

/// Sends a request whose reply is [`Reply::Done`] to the daemon of the mount at `mountpoint`.
pub fn order(mountpoint: &Path, wish: Wish) -> Result<(), Problem> {
    let done = |reply| matches!(reply, Reply::Done).then_some(());
    ask_mount(mountpoint, wish, &mut |_| {}, done)
}

/// Sends a request that a secret follows, which `send` writes when the daemon is ready for it.
pub fn confide(
    mountpoint: &Path,
    found: &Found,
    wish: Wish,
    send: impl FnOnce(&UnixStream) -> io::Result<()>,
) -> Result<(), Problem> {
    let send = |stream: &UnixStream| send(stream).map(|()| None);
    let confided =
        || converse(&found.connect()?, wish, Instant::now() + DEADLINE, send, &mut |_| {});
    match confided().map_err(|why| older(found, why, "logins")) {
        Ok(Reply::Done) => Ok(()),
        Ok(_) => Err(problem(mountpoint, Silence::Garbled)),
        Err(why) => Err(problem(mountpoint, why)),
    }
}

/// The problem of a mount whose daemon did not answer.
pub fn problem(mountpoint: &Path, why: Silence) -> Problem {
    match why {
        Silence::Refused(problem) => problem.escaped(),
        why => Problem::new(about(mountpoint), why.to_string()),
    }
}

/// Sends a request. A long job is waited for without a limit once the daemon has replied, within
/// [`DEADLINE`], that it is working.
fn ask(found: &Found, wish: Wish, progress: &mut dyn FnMut(&Tally)) -> Result<Reply, Silence> {
    converse(&found.connect()?, wish, Instant::now() + DEADLINE, |_| Ok(None), progress)
}

/// Sends a request and waits for the reply. When the daemon has replied that it is working,
/// `working` is called, and returns the deadline from then on.
fn converse(
    mut stream: &UnixStream,
    wish: Wish,
    deadline: Instant,
    working: impl FnOnce(&UnixStream) -> io::Result<Option<Instant>>,
    progress: &mut dyn FnMut(&Tally),
) -> Result<Reply, Silence> {
    let mut line = serde_json::to_vec(&Request { protocol: PROTOCOL, wish })
        .map_err(|error| Silence::Io(error.into()))?;
    line.push(b'\n');
    stream.set_write_timeout(Some(DEADLINE))?;
    stream.write_all(&line)?;
    let limited = Limited { stream, deadline: Some(deadline) };
    let mut reader = BufReader::new(limited.take(MAX_REPLY_BYTES));
    let mut working = Some(working);
    loop {
        match (reply(&mut reader)?, working.take()) {
            (Reply::Working, Some(working)) => {
                reader.get_mut().get_mut().deadline = working(stream)?;
            }
            (Reply::Progress(tally), _) => progress(&tally),
            (Reply::Refused(problem), _) => return Err(Silence::Refused(problem)),
            (reply, _) => return Ok(reply),
        }
        reader.get_mut().set_limit(MAX_REPLY_BYTES);
    }
}

fn reply(reader: &mut impl BufRead) -> Result<Reply, Silence> {
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line)?;
    match line.last() {
        None => Err(Silence::Ended),
        Some(b'\n') => serde_json::from_slice(&line).map_err(|_| Silence::Garbled),
        Some(_) => Err(Silence::Garbled),
    }
}

/// A stream with one deadline for all its reads.
struct Limited<'a> {
    stream: &'a UnixStream,
    deadline: Option<Instant>,
}

impl Read for Limited<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = match self.deadline {
            None => None,
            Some(deadline) => match deadline.saturating_duration_since(Instant::now()) {
                Duration::ZERO => return Err(io::ErrorKind::TimedOut.into()),
                left => Some(left),
            },
        };
        self.stream.set_read_timeout(left)?;
        self.stream.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask_over(
        stream: UnixStream,
        deadline: Instant,
        progress: &mut dyn FnMut(&Tally),
    ) -> Result<Reply, Silence> {
        converse(&stream, Wish::Status, deadline, |_| Ok(None), progress)
    }

    /// A daemon that reads the request, says `words` and then does nothing more until the client
    /// has gone.
    fn asked(words: &'static [u8], patience: Duration) -> Result<Reply, Silence> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let daemon = thread::spawn(move || {
            let mut reader = BufReader::new(&theirs);
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            assert_eq!(line, "{\"protocol\":1,\"wish\":\"status\"}\n");
            let _ = (&theirs).write_all(words);
            let _ = reader.read_to_end(&mut Vec::new());
        });
        let result = ask_over(ours, Instant::now() + patience, &mut |_| {});
        daemon.join().unwrap();
        result
    }

    #[test]
    fn a_daemon_is_heard_or_told_to_hang() {
        let long = Duration::from_secs(60);
        assert_eq!(asked(b"\"done\"\n", long).unwrap(), Reply::Done);
        assert_eq!(asked(b"\"working\"\n\"done\"\n", long).unwrap(), Reply::Done);
        assert!(matches!(asked(b"nonsense\n", long), Err(Silence::Garbled)));
        let short = Duration::from_millis(50);
        for words in [&b""[..], b"\"do", b"{\"refused\":"] {
            assert!(matches!(asked(words, short), Err(Silence::Hangs)), "{words:?}");
        }
    }

    #[test]
    fn what_is_told_meanwhile_is_heard() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let daemon = thread::spawn(move || {
            let words = b"\"working\"\n{\"progress\":{\"files\":3}}\n{\"tally\":{\"files\":4}}\n";
            (&theirs).write_all(words).unwrap();
            let _ = (&theirs).read_to_end(&mut Vec::new());
        });
        let mut heard = Vec::new();
        let mut progress = |tally: &Tally| heard.push(tally.files);
        let reply = ask_over(ours, Instant::now() + DEADLINE, &mut progress).unwrap();
        assert_eq!(reply, Reply::Tally(Tally { files: 4, ..Tally::default() }));
        assert_eq!(heard, [3]);
        daemon.join().unwrap();
    }

    #[test]
    fn an_endless_answer_is_left() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let daemon = thread::spawn(move || {
            let block = [b' '; 64 << 10];
            while (&theirs).write_all(&block).is_ok() {}
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        let result = ask_over(ours, deadline, &mut |_| {});
        assert!(matches!(result, Err(Silence::Garbled)), "{result:?}");
        daemon.join().unwrap();
    }

    #[test]
    fn what_is_no_mount_of_ours_is_refused() {
        let other = mount_at(Path::new("/proc")).unwrap_err().to_string();
        assert!(other.contains("not a mount of sshoal, but of type proc"), "{other}");
        let dir = tempfile::tempdir().unwrap();
        let nothing = mount_at(dir.path()).unwrap_err().to_string();
        assert!(nothing.contains("nothing is mounted here\n  `sshoal status`"), "{nothing}");
    }

    #[test]
    fn a_daemon_that_ends_is_told_so() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let result = ask_over(ours, Instant::now() + DEADLINE, &mut |_| {});
        assert!(matches!(result, Err(Silence::Ended)), "{result:?}");
    }
}
