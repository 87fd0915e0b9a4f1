//! Records of mounts, by which other commands find the daemon: `sshoal umount` waits for its end
//! (unmounting ends only the kernel's side, and the daemon may still be writing), and `sshoal
//! status` queries it.
//!
//! A record is a small text file `DIRECTORY/MAJOR:MINOR` named after the mount's device number. Its
//! daemon holds an exclusive flock(2) on it from just after mounting to its end; the kernel
//! releases the lock with the process, so the lock, not the text, shows whether the daemon runs.
//! The socket `MAJOR:MINOR.sock` beside it accepts requests to the daemon; the head of this crate
//! has the protocol.
//!
//! Invariants:
//! 1. Only the owner has access to the directory (mode 0700), and other users cannot replace it (it
//!    is in the user's own runtime directory, `/run`, or `/tmp` with its sticky bit), so they
//!    cannot plant a record or a link there.
//! 2. A record gets its name only once it is locked and complete. The kernel reuses a device number
//!    as soon as a mount is gone, possibly before its daemon has ended: then the new mount's record
//!    takes the name, and the old record continues to exist without it.
//! 3. Names in the directory change only while the directory's lock is held. A process that waits
//!    for a record has it open, and can read its last line even when it has lost its name.
//! 4. The rules for the name of a record also hold for that of its socket, which is removed first.
//! 5. A command connects only to a socket of the mount's owner that has its name in the directory,
//!    and follows no link, so that the owner cannot lead root to the socket of another program.
//! 6. Without an `end=` line at the end of the record, the daemon was killed.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;

use cli::{OrProblem, Problem, printable};
use mountinfo::{Device, Mount};

/// The directory's name within a runtime directory.
const NAME: &str = "sshoal";

/// The suffix of the name of a socket.
const SOCKET: &str = ".sock";

/// Maximum length of a record in bytes, far more than source, mount point and reason take. A longer
/// file is not a record.
const MAX_RECORD_BYTES: u64 = 64 * 1024;

/// The problem of a path.
fn at<T>(path: &Path, result: io::Result<T>) -> Result<T, Problem> {
    result.or_problem(printable(path))
}

/// The daemon's side: held while the daemon serves the mount.
#[derive(Debug)]
pub struct Record {
    file: File,
    path: PathBuf,
    /// The name and the file of the socket, once it exists.
    socket: Option<(PathBuf, FileId)>,
}

/// Device and inode number.
type FileId = (u64, u64);

impl Record {
    /// Records that this process serves `mount` (see [`mountinfo::find`]), in the first directory
    /// that can be used. The error is that of the preferred one.
    pub fn create(mount: &Mount) -> Result<Record, Problem> {
        Record::create_in_one_of(&own_dirs(), mount)
    }

    fn create_in_one_of(dirs: &[PathBuf], mount: &Mount) -> Result<Record, Problem> {
        let mut created = dirs.iter().map(|dir| Record::create_in(dir, mount));
        let preferred = created.next().expect("there is a last resort");
        preferred.or_else(|error| created.find_map(Result::ok).ok_or(error))
    }

    fn create_in(dir: &Path, mount: &Mount) -> Result<Record, Problem> {
        make_private(dir)?;
        let path = dir.join(mount.device.to_string());
        // Only this process uses this name, and it creates one record at a time.
        let draft = dir.join(format!("{}.{}", mount.device, std::process::id()));
        let directory = lock(dir)?;
        clear_leftovers(dir, &directory);
        remove_leftover(&draft)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let mut file = at(&draft, options.open(&draft))?;
        let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        at(&draft, locked.map_err(io::Error::from))?;
        let text = format!(
            "pid={}\nsource={}\nmountpoint={}\n",
            std::process::id(),
            printable(&mount.source),
            printable(&mount.mountpoint)
        );
        at(&draft, file.write_all(text.as_bytes()))?;
        at(&path, std::fs::rename(&draft, &path))?;
        Ok(Record { file, path, socket: None })
    }

    /// Opens the socket for requests about the mount. It is removed with the record.
    pub fn listen(&mut self) -> Result<UnixListener, Problem> {
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        let named = |ending: &str| {
            let mut path = self.path.clone().into_os_string();
            path.push(ending);
            PathBuf::from(path)
        };
        // As with the record: first a name that only this process uses, then the final one.
        let draft = named(&format!(".{}{SOCKET}", std::process::id()));
        let name = named(SOCKET);
        let directory = lock(dir)?;
        remove_leftover(&draft)?;
        let listener = at(&draft, UnixListener::bind(short(&directory, &draft)))?;
        at(&draft, std::fs::set_permissions(&draft, PermissionsExt::from_mode(0o600)))?;
        let id = file_id(&at(&draft, std::fs::symlink_metadata(&draft))?);
        at(&name, std::fs::rename(&draft, &name))?;
        self.socket = Some((name, id));
        Ok(listener)
    }

    /// Ends the record: all data is on the server.
    pub fn ended(self) {
        self.end("end=ok\n");
    }

    /// Ends the record: acknowledged data could not be written to the server, for this reason,
    /// which `sshoal umount` prints.
    pub fn failed(self, reason: &str) {
        self.end(&format!("end=failed\nreason={}\n", printable(reason)));
    }

    fn end(mut self, last_words: &str) {
        let written = self.file.write_all(last_words.as_bytes());
        if let Err(error) = at(&self.path, written).and_then(|()| self.remove()) {
            tracing::warn!("{error}");
        }
        // Closing the file releases the lock.
    }

    /// Removes the names, unless a later mount with the same device number has taken them.
    fn remove(&self) -> Result<(), Problem> {
        let _directory = self.path.parent().map(lock).transpose()?;
        if let Some((name, id)) = &self.socket
            && std::fs::symlink_metadata(name).is_ok_and(|there| file_id(&there) == *id)
        {
            at(name, std::fs::remove_file(name))?;
        }
        if is_at(&self.file, &self.path) {
            at(&self.path, std::fs::remove_file(&self.path))?;
        }
        Ok(())
    }
}

/// Removes a draft of an earlier process with the same id, if there is one.
fn remove_leftover(draft: &Path) -> Result<(), Problem> {
    match std::fs::remove_file(draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => at(draft, Err(error)),
        _ => Ok(()),
    }
}

/// The lock for changes of names in the directory. It is held only during a change.
fn lock(dir: &Path) -> Result<File, Problem> {
    let directory = at(dir, File::open(dir))?;
    let locked = flock(&directory, FlockOperation::LockExclusive);
    at(dir, locked.map_err(io::Error::from))?;
    Ok(directory)
}

/// Maximum number of names in the directory that are checked for leftovers: more than a machine has
/// mounts. The next mount removes the rest.
const MAX_LEFTOVERS: usize = 1024;

/// Removes the leftovers of killed daemons: records that no process has locked, drafts of them, and
/// sockets without a locked record. The caller holds the `directory`'s lock, so that no process is
/// about to lock a record.
fn clear_leftovers(dir: &Path, directory: &File) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    let names = entries.flatten().take(MAX_LEFTOVERS).map(|entry| entry.file_name());
    let names: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
    for name in &names {
        let record = name.strip_suffix(SOCKET).unwrap_or(name);
        if is_record_name(record) && !is_held(directory, record) {
            let removed = std::fs::remove_file(dir.join(name));
            tracing::debug!(name, ?removed, "removed the record of a dead mount");
        }
    }
}

/// Whether it is `MAJOR:MINOR`, with `.PID` after it for a draft.
fn is_record_name(name: &str) -> bool {
    let (device, pid) = name.split_once('.').unwrap_or((name, "0"));
    pid.parse::<u32>().is_ok() && Device::parse(device).is_some()
}

/// Opens the record of this name, without following a link.
fn open_record(directory: &File, name: &str) -> rustix::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty()).map(File::from)
}

/// Whether a running daemon holds the record of this name, or that cannot be determined.
fn is_held(directory: &File, name: &str) -> bool {
    match open_record(directory, name) {
        Err(rustix::io::Errno::NOENT) => false,
        Err(_) => true,
        Ok(file) => flock(&file, FlockOperation::NonBlockingLockShared).is_err(),
    }
}

/// The command's side: the record of the daemon of a mount.
#[derive(Debug)]
pub struct Found {
    file: File,
    /// The directory that was checked to be private, open so that it cannot be replaced.
    directory: File,
    device: Device,
}

/// How a daemon ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It wrote all data.
    Complete,
    /// It could not write all data, for this reason.
    Failed(String),
    /// It was killed or crashed.
    Vanished,
}

/// The record of the daemon that serves `mount`. Root also finds those of other users.
pub fn find(mount: &Mount) -> Option<Found> {
    let me = geteuid().as_raw();
    let owner = mount.owner.unwrap_or(me);
    if owner != me && me != 0 {
        return None;
    }
    let own = if owner == me { own_dirs() } else { Vec::new() };
    let mut dirs = own.into_iter().chain(usual_dirs(owner));
    dirs.find_map(|dir| find_in(&dir, mount.device, owner))
}

fn find_in(dir: &Path, device: Device, owner: u32) -> Option<Found> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = File::from(rustix::fs::open(dir, flags, Mode::empty()).ok()?);
    if !is_private(&directory.metadata().ok()?, owner) {
        return None;
    }
    let file = open_record(&directory, &device.to_string()).ok()?;
    // Without a lock, it is a leftover of another mount with the same number.
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(rustix::io::Errno::WOULDBLOCK) => Some(Found { file, directory, device }),
        _ => None,
    }
}

/// Whether it is a mount of sshoal. The type can be chosen (`subtype`), but only sshoal creates
/// records.
pub fn is_ours(mount: &Mount) -> bool {
    mount.kind == "fuse.sshoal" || find(mount).is_some()
}

/// The mounts that processes of this user serve, from their records: also those that are no longer
/// in the mount table of this namespace.
pub fn served() -> Vec<Mount> {
    let me = geteuid().as_raw();
    let mut mounts: Vec<Mount> = Vec::new();
    for dir in own_dirs().into_iter().chain(usual_dirs(me)) {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        for device in names.take(MAX_LEFTOVERS).filter_map(|name| Device::parse(&name)) {
            let is_new = mounts.iter().all(|mount| mount.device != device);
            if is_new && let Some(found) = find_in(&dir, device, me) {
                mounts.extend(found.mount(me));
            }
        }
    }
    mounts
}

impl Found {
    /// The mount, as it was when the record was created.
    fn mount(&self, owner: u32) -> Option<Mount> {
        let text = self.text().ok()?;
        Some(Mount {
            device: self.device,
            root: "/".into(),
            mountpoint: field(&text, "mountpoint")?.into(),
            kind: "fuse.sshoal".into(),
            source: field(&text, "source")?.into(),
            owner: Some(owner),
            options: "".into(),
        })
    }

    /// The daemon's process id, for messages.
    pub fn pid(&self) -> Option<u32> {
        field(&self.text().ok()?, "pid")?.parse().ok()
    }

    /// Connects to the socket of the daemon. `NotFound` if it has none, `ConnectionRefused` if it
    /// has ended, `WouldBlock` if so many connections are waiting that it must hang. Does not wait.
    pub fn connect(&self) -> io::Result<UnixStream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let name = format!("{}{SOCKET}", self.device);
        // connect(2) follows links, and the owner of the mount may have planted one for root.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(&self.directory, name, flags, Mode::empty())?);
        let metadata = file.metadata()?;
        if !metadata.file_type().is_socket() || metadata.uid() != self.directory.metadata()?.uid() {
            return Err(io::ErrorKind::NotFound.into());
        }
        connect(&socket, &SocketAddrUnix::new(open_path(&file))?)?;
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        Ok(stream)
    }

    /// Waits until the daemon has ended, and returns how.
    pub fn wait_released(&self) -> io::Result<End> {
        retry_on_intr(|| flock(&self.file, FlockOperation::LockShared))?;
        let text = self.text()?;
        Ok(match field(&text, "end") {
            Some("ok") => End::Complete,
            Some(_) => End::Failed(field(&text, "reason").unwrap_or("no reason given").to_owned()),
            None => End::Vanished,
        })
    }

    fn text(&self) -> io::Result<String> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(0))?;
        let mut bytes = Vec::new();
        file.take(MAX_RECORD_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// A name for `path` in `directory` that fits into a socket's address, for any length of the path.
fn short(directory: &File, path: &Path) -> PathBuf {
    open_path(directory).join(path.file_name().unwrap_or_default())
}

/// A path of an open file that stays valid when it is renamed.
fn open_path(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// The value of the last line with this key.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().rev().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
}

/// The directories of this user's records, the preferred one first.
fn own_dirs() -> Vec<PathBuf> {
    let me = geteuid().as_raw();
    let from_login = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let mut dirs = dirs_of(me, from_login.filter(|dir| dir.is_absolute()));
    let [_, last_resort] = usual_dirs(me);
    let is_own = |dir: &Path| dir.parent().is_some_and(|around| is_owned_by(around, me));
    dirs.retain(|dir| *dir == last_resort || is_own(dir));
    dirs
}

/// The directories of the records of a user whose login has the directory `from_login`, the
/// preferred one first. Root's are always below `/run`, so that a mount made at boot is found from a
/// login of root, which has one.
///
/// An ordinary user's usual directory is removed with the user's last login. A process without a
/// login (of cron, sudo, a system service) does not keep it, and so prefers the last resort.
fn dirs_of(user: u32, from_login: Option<PathBuf>) -> Vec<PathBuf> {
    let [usual, last_resort] = usual_dirs(user);
    match from_login {
        _ if user == 0 => vec![usual, last_resort],
        Some(dir) => vec![dir.join(NAME), usual, last_resort],
        None => vec![last_resort, usual],
    }
}

/// The default directories of a user's records: that of the user's logins, or of root, and the last
/// resort.
fn usual_dirs(user: u32) -> [PathBuf; 2] {
    let usual = match user {
        0 => format!("/run/{NAME}"),
        _ => format!("/run/user/{user}/{NAME}"),
    };
    [usual.into(), format!("/tmp/{NAME}-{user}").into()]
}

/// Whether `dir` is owned by this user and no other user can change names in it.
fn is_owned_by(dir: &Path, user: u32) -> bool {
    std::fs::metadata(dir)
        .is_ok_and(|dir| dir.is_dir() && dir.uid() == user && dir.mode() & 0o022 == 0)
}

/// Creates `dir` if it is missing, and accepts it only if no other user has access.
fn make_private(dir: &Path) -> Result<(), Problem> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => at(dir, Err(error))?,
        _ => {}
    }
    if is_private(&at(dir, std::fs::symlink_metadata(dir))?, geteuid().as_raw()) {
        Ok(())
    } else {
        Err(Problem::new(printable(dir), "not a directory of mode 0700 of this user"))
    }
}

fn is_private(dir: &std::fs::Metadata, user: u32) -> bool {
    dir.is_dir() && dir.uid() == user && dir.mode() & 0o077 == 0
}

/// Whether `path` denotes `file`.
fn is_at(file: &File, path: &Path) -> bool {
    let same = || -> io::Result<bool> {
        let (open, named) = (file.metadata()?, std::fs::symlink_metadata(path)?);
        Ok(file_id(&open) == file_id(&named))
    };
    same().unwrap_or(false)
}

fn file_id(metadata: &std::fs::Metadata) -> FileId {
    (metadata.dev(), metadata.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Stdio};
    use std::sync::mpsc;
    use std::thread;

    const DEVICE: Device = Device { major: 0, minor: 99 };

    fn mount() -> Mount {
        Mount {
            device: DEVICE,
            root: "/".into(),
            mountpoint: "/mnt/with\nnewline".into(),
            kind: "fuse.sshoal".into(),
            source: "host:/dir".into(),
            owner: Some(me()),
            options: "".into(),
        }
    }

    fn me() -> u32 {
        geteuid().as_raw()
    }

    fn fresh_dir() -> (tempfile::TempDir, PathBuf) {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("records");
        (outer, dir)
    }

    #[test]
    fn whoever_waits_learns_how_the_daemon_ended() {
        type Finish = fn(Record);
        let cases: [(Finish, End); 3] = [
            (Record::ended, End::Complete),
            (|record| record.failed("no space\nleft"), End::Failed("no space\\nleft".to_owned())),
            (drop, End::Vanished),
        ];
        for (finish, expected) in cases {
            let (_outer, dir) = fresh_dir();
            let record = Record::create_in(&dir, &mount()).unwrap();
            let found = find_in(&dir, DEVICE, me()).unwrap();
            assert_eq!(found.pid(), Some(std::process::id()));
            let (sender, receiver) = mpsc::channel();
            let waiting = thread::spawn(move || {
                sender.send(()).unwrap();
                found.wait_released().unwrap()
            });
            receiver.recv().unwrap();
            assert!(!waiting.is_finished(), "it must wait while the daemon lives");
            finish(record);
            assert_eq!(waiting.join().unwrap(), expected);
        }
    }

    #[test]
    fn a_clean_end_leaves_nothing() {
        let (_outer, dir) = fresh_dir();
        Record::create_in(&dir, &mount()).unwrap().ended();
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        assert!(find_in(&dir, DEVICE, me()).is_none());
    }

    #[test]
    fn the_socket_is_found_by_the_mount_and_goes_with_the_record() {
        // Longer than a socket's address.
        let outer = tempfile::Builder::new().prefix(&"long".repeat(40)).tempdir().unwrap();
        let dir = outer.path().join("records");
        let mut record = Record::create_in(&dir, &mount()).unwrap();
        let found = find_in(&dir, DEVICE, me()).unwrap();
        assert_eq!(found.connect().unwrap_err().kind(), io::ErrorKind::NotFound);
        let listener = record.listen().unwrap();
        let mode = |name: &str| dir.join(name).symlink_metadata().unwrap().mode() & 0o777;
        assert_eq!(mode("0:99.sock"), 0o600);
        let mut client = found.connect().unwrap();
        client.write_all(b"?").unwrap();
        let mut heard = [0];
        listener.accept().unwrap().0.read_exact(&mut heard).unwrap();
        assert_eq!(heard, *b"?");
        drop(listener);
        assert_eq!(found.connect().unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        record.ended();
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    }

    #[test]
    fn nothing_but_a_socket_in_the_directory_is_connected_to() {
        let (_outer, dir) = fresh_dir();
        let _record = Record::create_in(&dir, &mount()).unwrap();
        let found = find_in(&dir, DEVICE, me()).unwrap();
        let (_other, elsewhere) = fresh_dir();
        let _listener = UnixListener::bind(&elsewhere).unwrap();
        let name = dir.join("0:99.sock");
        let refused = || found.connect().unwrap_err().kind();
        std::os::unix::fs::symlink(&elsewhere, &name).unwrap();
        assert_eq!(refused(), io::ErrorKind::NotFound, "a link");
        std::fs::remove_file(&name).unwrap();
        std::fs::write(&name, "").unwrap();
        assert_eq!(refused(), io::ErrorKind::NotFound, "a file");
        std::fs::remove_file(&name).unwrap();
        // Of another user, which only root can make.
        let _listener = UnixListener::bind(&name).unwrap();
        assert!(found.connect().is_ok());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&name, Some(me() + 5), None).unwrap();
            assert_eq!(refused(), io::ErrorKind::NotFound, "another user's");
        }
    }

    #[test]
    fn the_socket_of_a_new_mount_with_the_same_number_stays() {
        let (_outer, dir) = fresh_dir();
        let mut ending = Record::create_in(&dir, &mount()).unwrap();
        let _old = ending.listen().unwrap();
        let mut record = Record::create_in(&dir, &mount()).unwrap();
        let listener = record.listen().unwrap();
        ending.ended();
        find_in(&dir, DEVICE, me()).unwrap().connect().unwrap();
        listener.accept().unwrap();
        record.ended();
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        // A killed one leaves its names, which the next takes over.
        let mut killed = Record::create_in(&dir, &mount()).unwrap();
        drop(killed.listen().unwrap());
        drop(killed);
        let mut record = Record::create_in(&dir, &mount()).unwrap();
        let _listener = record.listen().unwrap();
        find_in(&dir, DEVICE, me()).unwrap().connect().unwrap();
        record.ended();
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    }

    #[test]
    fn a_daemon_that_hears_nobody_keeps_nobody_waiting() {
        let (_outer, dir) = fresh_dir();
        let mut record = Record::create_in(&dir, &mount()).unwrap();
        let _listener = record.listen().unwrap();
        let found = find_in(&dir, DEVICE, me()).unwrap();
        let mut waiting = Vec::new();
        let error = loop {
            match found.connect() {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
            assert!(waiting.len() < 10_000, "the kernel has no bound for them");
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn what_a_killed_daemon_left_is_no_record_and_is_taken_over() {
        let (_outer, dir) = fresh_dir();
        drop(Record::create_in(&dir, &mount()).unwrap());
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        assert!(find_in(&dir, DEVICE, me()).is_none());
        let record = Record::create_in(&dir, &mount()).unwrap();
        let text = std::fs::read_to_string(&record.path).unwrap();
        assert_eq!(field(&text, "source"), Some("host:/dir"));
        assert_eq!(field(&text, "mountpoint"), Some("/mnt/with\\nnewline"));
    }

    #[test]
    fn what_killed_daemons_left_is_cleared_by_the_next_mount() {
        let (_outer, dir) = fresh_dir();
        let at = |minor| Mount { device: Device { major: 0, minor }, ..mount() };
        let mut living = Record::create_in(&dir, &at(1)).unwrap();
        let _living = living.listen().unwrap();
        // Killed together, so that none clears what another has left.
        let killed: Vec<_> = (2..5)
            .map(|minor| {
                let mut record = Record::create_in(&dir, &at(minor)).unwrap();
                (record.listen().unwrap(), record)
            })
            .collect();
        drop(killed);
        std::fs::write(dir.join("0:9.4711"), "").unwrap();
        std::fs::write(dir.join("0:8.4711.sock"), "").unwrap();
        std::fs::write(dir.join("notes"), "not ours").unwrap();
        let names = || {
            let entries = std::fs::read_dir(&dir).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names().len(), 2 + 6 + 3);
        let record = Record::create_in(&dir, &mount()).unwrap();
        assert_eq!(names(), ["0:1", "0:1.sock", "0:99", "notes"]);
        find_in(&dir, at(1).device, me()).unwrap().connect().unwrap();
        record.ended();
        living.ended();
        assert_eq!(names(), ["notes"]);
    }

    #[test]
    fn a_new_mount_takes_the_number_of_one_whose_daemon_is_still_ending() {
        let (_outer, dir) = fresh_dir();
        let ending = Record::create_in(&dir, &mount()).unwrap();
        let found_before = find_in(&dir, DEVICE, me()).unwrap();
        let other = Mount { source: "other:".into(), ..mount() };
        let record = Record::create_in(&dir, &other).unwrap();
        ending.failed("no space");
        let reason = "no space".to_owned();
        assert_eq!(found_before.wait_released().unwrap(), End::Failed(reason));
        // The name is the new mount's, and goes with it.
        let found = find_in(&dir, DEVICE, me()).unwrap();
        record.ended();
        assert_eq!(found.wait_released().unwrap(), End::Complete);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    }

    #[test]
    fn the_lock_of_another_process_counts() {
        let (_outer, dir) = fresh_dir();
        drop(Record::create_in(&dir, &mount()).unwrap());
        let mut holder = Command::new("flock")
            .arg(dir.join(DEVICE.to_string()))
            .args(["-c", "echo locked; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0; 6];
        holder.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        let found = find_in(&dir, DEVICE, me()).unwrap();
        drop(holder.stdin.take());
        assert_eq!(found.wait_released().unwrap(), End::Vanished);
        assert!(holder.wait().is_ok());
    }

    #[test]
    fn a_directory_open_to_others_is_not_trusted() {
        let (_outer, dir) = fresh_dir();
        std::fs::create_dir(&dir).unwrap();
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o770)).unwrap();
        let refused = || Record::create_in(&dir, &mount()).unwrap_err().to_string();
        assert!(refused().ends_with(": not a directory of mode 0700 of this user"));
        std::fs::remove_dir(&dir).unwrap();
        let (_other, elsewhere) = fresh_dir();
        std::fs::create_dir(&elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &dir).unwrap();
        assert!(refused().ends_with(": not a directory of mode 0700 of this user"));
        assert!(find_in(&dir, DEVICE, me()).is_none());
    }

    #[test]
    fn a_directory_that_cannot_be_used_is_passed_over() {
        let (_outer, dir) = fresh_dir();
        let unusable = || PathBuf::from("/proc/sshoal");
        let record = Record::create_in_one_of(&[unusable(), dir.clone()], &mount()).unwrap();
        assert!(find_in(&dir, DEVICE, me()).is_some());
        record.ended();
        let error = Record::create_in_one_of(&[unusable(), "/dev/null/x".into()], &mount());
        assert!(error.unwrap_err().to_string().starts_with("/proc/sshoal: "));
    }

    #[test]
    fn records_are_below_a_directory_of_the_user() {
        let dirs = own_dirs();
        let [_, last_resort] = usual_dirs(me());
        assert!(dirs.contains(&last_resort));
        assert!(dirs.iter().all(|dir| dir.is_absolute()));
        let (usual, last) = ("/run/user/7/sshoal", "/tmp/sshoal-7");
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(dirs_of(7, Some("/r".into())), paths(&["/r/sshoal", usual, last]));
        // The usual one may be removed while the process runs.
        assert_eq!(dirs_of(7, None), paths(&[last, usual]));
        for from_login in [None, Some("/run/user/0".into())] {
            assert_eq!(dirs_of(0, from_login), paths(&["/run/sshoal", "/tmp/sshoal-0"]));
        }
    }
}
