//! The requests: what each claims, whether it may wait for a disk or a network, and its execution.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use base::{LockKind, Mutex};
use rustix::io::Errno;
use sftp::codec::{ExactAttrs, LockRequest, OpenFlags, Reply, Request, WatchRequest, XattrFlags};

use crate::digests::Digests;
use crate::handles::{File, Handles, Open, Room, early};
use crate::locks::Locks;
use crate::lost_locks::Change;
use crate::operations::names_by_id;
use crate::options::Options;
use crate::paths::{FileSystem, Paths};
use crate::schedule::{Claims, Mode, Resource};
use crate::status::{Failure, READ_ONLY, Result, success};
use crate::watches::Watches;

/// Longest READ and WRITE: OpenSSH's, whose clients use no more.
pub(crate) const MAX_IO_BYTES: u32 = 255 << 10;

/// The files that a client may use, and the handles of one of its connections.
#[derive(Debug)]
pub(crate) struct Server {
    /// The number of the connection.
    pub(crate) connection: u64,
    pub(crate) paths: Paths,
    pub(crate) handles: Handles,
    pub(crate) read_only: bool,
    pub(crate) locks: Arc<Locks>,
    pub(crate) digests: Mutex<Digests>,
    /// `None` on a system without inotify.
    pub(crate) watches: Option<Watches>,
    /// The fields of `attrs@sshoal` that the client wants.
    fields: AtomicU32,
    /// Requests may be compressed (`deflate@sshoal`).
    pub(crate) unpacks: AtomicBool,
    /// Replies may be compressed.
    pub(crate) packs: AtomicBool,
}

/// The answer to a request.
#[derive(Debug)]
pub(crate) enum Answer {
    Reply(Reply),
    /// The content of a file: this number of bytes in the buffer.
    Data(usize),
    /// The request would wait for a disk or for another process. Nothing has happened.
    WouldBlock,
    /// The request waits for a lock or for events, and is answered later.
    Waiting,
}

impl Server {
    pub(crate) fn new(options: &Options, room: Arc<Room>) -> rustix::io::Result<Server> {
        Ok(Server {
            connection: room.lost_locks.connection(),
            paths: Paths::new(options.root.as_deref())?,
            handles: Handles::new(room),
            read_only: options.read_only,
            locks: Arc::default(),
            digests: Mutex::default(),
            watches: Watches::new().ok(),
            fields: AtomicU32::new(0),
            unpacks: AtomicBool::new(false),
            packs: AtomicBool::new(false),
        })
    }

    /// A change of a file begins, unless locks were lost. It ends when the result is dropped.
    pub(crate) fn change(&self, file: &File) -> Result<Change<'_>> {
        let has_locks = || self.locks.protect(file.inode);
        self.handles.room.lost_locks.change(file, self.connection, has_locks)
    }

    /// A lock was set in this file.
    pub(crate) fn has_set_lock(&self, file: &File) {
        self.handles.room.lost_locks.set(file.inode, self.connection);
    }

    /// The locks in files of local file systems end, after the changes of these files that have
    /// begun. The session has ended.
    pub(crate) fn lose_local_locks(&self) {
        let (mut files, local) = (self.locks.files(), self.handles.local_files());
        files.retain(|file| local.contains(file));
        self.handles.room.lost_locks.lose(&files, self.connection);
        self.locks.release(&files);
    }

    /// Waits for changes of the other files with locks, which may end from now on.
    pub(crate) fn lose_locks(&self) {
        self.handles.room.lost_locks.lose(&self.locks.files(), self.connection);
        self.handles.room.lost_locks.forget(self.connection);
    }

    /// Ends all locks. This may wait for file systems that hang.
    pub(crate) fn release_locks(&self) {
        self.locks.release(&self.locks.files());
    }

    /// The fields of `attrs@sshoal` that replies have.
    pub(crate) fn fields(&self) -> u32 {
        self.fields.load(Ordering::Relaxed)
    }

    /// What the request with this id reads and changes.
    pub(crate) fn claims(&self, id: u32, request: &Request<'_>) -> Claims {
        let names = |mode| vec![(Resource::Names, mode)];
        match request {
            Request::Open { flags, .. } => {
                let creates = flags.contains(OpenFlags::CREATE);
                let mut claims = names(if creates { Mode::Change } else { Mode::Read });
                if flags.contains(OpenFlags::TRUNCATE) {
                    claims.push((Resource::Contents, Mode::Change));
                }
                claims
            }
            Request::Read { handle, .. }
            | Request::Fstat { handle }
            | Request::Fsync { handle }
            | Request::Lseek { handle, .. }
            | Request::Fstatvfs { handle } => self.file_claims(handle, Mode::ReadSome, Mode::Read),
            Request::Write { handle, .. }
            | Request::Fsetstat { handle, .. }
            | Request::Lock { handle, .. }
            | Request::Fallocate { handle, .. } => {
                self.file_claims(handle, Mode::ChangeSome, Mode::Change)
            }
            // It may wait for a request that hangs, and nothing else must wait for it.
            Request::Close { handle } => {
                let open = self.claimed(handle);
                open.map_or_else(Vec::new, |open| vec![(open, Mode::Change)])
            }
            Request::CopyData { from, to, .. } => {
                let mut claims = self.file_claims(to, Mode::ChangeSome, Mode::Change);
                for (resource, mode) in self.file_claims(from, Mode::ReadSome, Mode::Read) {
                    if !claims.iter().any(|(claimed, _)| *claimed == resource) {
                        claims.push((resource, mode));
                    }
                }
                claims
            }
            Request::Readdir { handle } => {
                let mut claims = names(Mode::Read);
                claims.push((Resource::Contents, Mode::Read));
                // The request that opens it may still wait.
                let listing = early(handle).map(Resource::Listing).or_else(|| self.claimed(handle));
                claims.extend(listing.map(|listing| (listing, Mode::Change)));
                claims
            }
            Request::Lstat { .. }
            | Request::Stat { .. }
            | Request::ReadFile { .. }
            | Request::Getxattr { .. }
            | Request::Dirxattrs { .. }
            | Request::Listxattr { .. } => {
                vec![(Resource::Names, Mode::Read), (Resource::Contents, Mode::Read)]
            }
            Request::Opendir { .. } => {
                vec![(Resource::Names, Mode::Read), (Resource::Listing(id), Mode::Change)]
            }
            Request::Readlink { .. }
            | Request::Realpath { .. }
            | Request::ExpandPath { .. }
            | Request::Watch(WatchRequest::Add { .. })
            | Request::Statvfs { .. } => names(Mode::Read),
            Request::Setstat { .. }
            | Request::Lsetstat { .. }
            | Request::Setxattr { .. }
            | Request::Removexattr { .. } => {
                vec![(Resource::Names, Mode::Change), (Resource::Contents, Mode::Change)]
            }
            Request::Remove { .. }
            | Request::Mkdir { .. }
            | Request::Rmdir { .. }
            | Request::Symlink { .. }
            | Request::Mknod { .. } => names(Mode::Change),
            // Other programs must not find a file under its new name before it is written.
            Request::Rename { .. }
            | Request::PosixRename { .. }
            | Request::Renameat2 { .. }
            | Request::Hardlink { .. } => {
                vec![(Resource::Names, Mode::Change), (Resource::Contents, Mode::Read)]
            }
            // Later replies have the fields, and earlier ones have not.
            Request::Attrs { .. } => {
                vec![(Resource::Names, Mode::Change), (Resource::Contents, Mode::Change)]
            }
            // The attributes in the reply say of which content a digest is; so a long computation
            // delays no other request.
            Request::Digest { .. }
            | Request::Limits
            | Request::Direct(_)
            | Request::Deflate { .. }
            | Request::Watch(_)
            | Request::HomeDirectory { .. }
            | Request::UsersGroupsById { .. }
            | Request::UnknownExtension { .. } => Vec::new(),
        }
    }

    fn file_claims(&self, handle: &[u8], contents: Mode, of_inode: Mode) -> Claims {
        let open = self.claimed(handle);
        open.map_or_else(Vec::new, |open| vec![(Resource::Contents, contents), (open, of_inode)])
    }

    fn claimed(&self, handle: &[u8]) -> Option<Resource> {
        Some(match self.handles.get(handle).ok()? {
            Open::File(file) => file.inode,
            Open::Directory(directory) => Resource::Listing(directory.opened_by),
        })
    }

    /// Whether the request needs no other machine, so that the thread that reads requests may
    /// execute it. A READ of a local file may still wait for a disk: see [`Answer::WouldBlock`].
    pub(crate) fn is_quick(&self, request: &Request<'_>) -> bool {
        match request {
            // Their replies are compressed.
            Request::Read { .. } | Request::ReadFile { .. } | Request::Readdir { .. }
                if self.packs.load(Ordering::Relaxed) =>
            {
                false
            }
            // They may ask a directory service, take long, or wait for the disk.
            Request::HomeDirectory { .. }
            | Request::UsersGroupsById { .. }
            | Request::ExpandPath { .. }
            | Request::CopyData { .. }
            | Request::Digest { .. }
            | Request::Dirxattrs { .. }
            | Request::Fallocate { .. }
            | Request::Fsync { .. } => false,
            _ => places(request).into_iter().all(|place| match place {
                Place::None => true,
                Place::Handle(handle) => match self.handles.named(handle) {
                    Ok(open) if open.file_system().is_some() => false,
                    Ok(Open::File(file)) => !frees_large(request, &file.fd),
                    Ok(Open::Directory(_)) | Err(_) => true,
                },
                Place::Path(path, follows) => match self.paths.local(path, follows) {
                    Some(Ok(found)) => !frees_large(request, &found),
                    Some(Err(_)) => true,
                    None => false,
                },
            }),
        }
    }

    /// The file system that the request is for, as far as that is known without a request to it.
    /// `None` if it is a local one.
    pub(crate) fn file_system(&self, request: &Request<'_>) -> Option<FileSystem> {
        places(request).into_iter().find_map(|place| match place {
            Place::None => None,
            Place::Handle(handle) => self.handles.named(handle).ok()?.file_system(),
            Place::Path(path, follows) => self.paths.file_system_at(path, follows),
        })
    }

    /// Executes the request with this id. Without `release`, a READ does not wait for the disk, and
    /// no request for another process's lease. Otherwise one calls it before it waits for a lease,
    /// or until a large file is freed: then later requests need not wait for this one, whose names
    /// are resolved. The content of a file goes into `buffer`, which has room for the longest READ.
    pub(crate) fn execute(
        &self,
        id: u32,
        request: &Request<'_>,
        release: Option<&dyn Fn()>,
        buffer: &mut [u8],
    ) -> Answer {
        let nowait = release.is_none();
        let result = match request {
            _ if self.read_only && changes(request) => Err(READ_ONLY),
            Request::Read { handle, offset, len } => {
                match self.read(handle, *offset, *len, nowait, buffer) {
                    Ok(Some(len)) => return Answer::Data(len),
                    Ok(None) => return Answer::WouldBlock,
                    Err(failure) => Err(failure),
                }
            }
            Request::ReadFile { path, max_bytes, follow } => {
                let read = self.read_file(path, *max_bytes, *follow, nowait, buffer);
                return unless_blocked(read);
            }
            Request::Open { path, flags, attrs } => {
                return unless_blocked(self.open(path, *flags, attrs, release));
            }
            Request::Setstat { path, attrs } => {
                return unless_blocked(self.setstat(path, attrs, true, release));
            }
            Request::Lsetstat { path, attrs } => {
                return unless_blocked(self.setstat(path, attrs, false, release));
            }
            Request::Opendir { path } => self.opendir(id, path),
            Request::Lock { handle, lock } => return now_or_later(self.lock(id, handle, *lock)),
            Request::Watch(watch) => return now_or_later(self.watch(id, *watch)),
            _ => self.reply(request, release),
        };
        Answer::Reply(result.unwrap_or_else(|failure| failure.reply()))
    }

    fn reply(&self, request: &Request<'_>, release: Option<&dyn Fn()>) -> Result<Reply> {
        let done = |result: Result<()>| result.map(|()| success());
        match request {
            // Their answers are of other kinds, or a session gives them.
            Request::Open { .. }
            | Request::Read { .. }
            | Request::ReadFile { .. }
            | Request::Setstat { .. }
            | Request::Lsetstat { .. }
            | Request::Opendir { .. }
            | Request::Lock { .. }
            | Request::Fsync { .. }
            | Request::Watch(_) => Err(crate::status::BAD_HANDLE),
            Request::Close { handle } => done(self.close(handle)),
            Request::Write { handle, offset, data } => done(self.write(handle, *offset, data)),
            Request::Lstat { path } => self.stat(path, false),
            Request::Stat { path } => self.stat(path, true),
            Request::Fstat { handle } => self.fstat(handle),
            Request::Fsetstat { handle, attrs } => done(self.fsetstat(handle, attrs, release)),
            Request::Readdir { handle } => self.readdir(handle),
            Request::Remove { path } => done(self.remove(path, release)),
            Request::Mkdir { path, attrs } => done(self.mkdir(path, attrs)),
            Request::Rmdir { path } => done(self.rmdir(path)),
            Request::Realpath { path } => self.realpath(path),
            Request::ExpandPath { path } => self.expand_path(path),
            Request::Rename { from, to } => done(self.rename_new(from, to)),
            Request::PosixRename { from, to } => done(self.rename(from, to, release)),
            Request::Readlink { path } => self.readlink(path),
            Request::Symlink { target, link } => done(self.symlink(target, link)),
            Request::Hardlink { existing, new } => done(self.hardlink(existing, new)),
            Request::Statvfs { path } => self.statvfs(path),
            Request::Fstatvfs { handle } => self.fstatvfs(handle),
            Request::CopyData { from, from_offset, len, to, to_offset } => {
                done(self.copy(from, *from_offset, *len, to, *to_offset))
            }
            Request::Limits => Ok(self.limits()),
            Request::Attrs { fields } => {
                self.fields.store(fields & ExactAttrs::ALL, Ordering::Relaxed);
                Ok(success())
            }
            Request::Deflate { replies } => {
                self.unpacks.store(true, Ordering::Relaxed);
                self.packs.store(*replies, Ordering::Relaxed);
                Ok(success())
            }
            Request::Getxattr { path, name, flags } => self.getxattr(path, name, *flags),
            Request::Setxattr { path, name, value, flags } => {
                done(self.setxattr(path, name, value, *flags))
            }
            Request::Listxattr { path, flags } => self.listxattr(path, *flags),
            Request::Removexattr { path, name, flags } => {
                done(self.removexattr(path, name, *flags))
            }
            Request::Dirxattrs { path } => self.dirxattrs(path),
            Request::Mknod { path, mode, major, minor } => {
                done(self.mknod(path, *mode, (*major, *minor)))
            }
            Request::Renameat2 { from, to, flags } => {
                done(self.renameat2(from, to, *flags, release))
            }
            Request::Fallocate { handle, mode, offset, len } => {
                done(self.fallocate(handle, *mode, *offset, *len))
            }
            Request::Lseek { handle, offset, whence } => self.lseek(handle, *offset, *whence),
            Request::Digest { path, algorithm } => self.digest(path, *algorithm),
            Request::HomeDirectory { user } => self.home_directory(user),
            Request::UsersGroupsById { uids, gids } => names_by_id(uids, gids),
            // A session answers it that may listen.
            Request::Direct(_) | Request::UnknownExtension { .. } => {
                let code = sftp::StatusCode::OP_UNSUPPORTED;
                let message = "the server does not know this extension";
                Err(Failure::Refused(code, Errno::OPNOTSUPP, message))
            }
        }
    }
}

/// Blocks of 512 bytes that are freed at once. Many more may take minutes: on ext4, and on slow
/// disks.
const MANY_BLOCKS: u64 = if cfg!(test) { 1 << 11 } else { 1 << 21 };

/// Whether a file has more than [`MANY_BLOCKS`].
#[allow(clippy::unnecessary_cast, reason = "on some machines this field has another width")]
pub(crate) fn is_large(file: &OwnedFd) -> bool {
    rustix::fs::fstat(file).is_ok_and(|found| found.st_blocks as u64 > MANY_BLOCKS)
}

/// Whether the request may free the blocks of this file, which is a local and large one.
fn frees_large(request: &Request<'_>, file: &OwnedFd) -> bool {
    let may_free = match request {
        Request::Open { flags, .. } => flags.contains(OpenFlags::TRUNCATE),
        Request::Setstat { attrs, .. }
        | Request::Lsetstat { attrs, .. }
        | Request::Fsetstat { attrs, .. } => attrs.size.is_some(),
        Request::Close { .. } => rustix::fs::fstat(file).is_ok_and(|found| found.st_nlink == 0),
        Request::Remove { .. } | Request::PosixRename { .. } | Request::Renameat2 { .. } => true,
        _ => false,
    };
    may_free && is_large(file)
}

/// What a request is for.
#[derive(Clone, Copy, Debug)]
enum Place<'a> {
    None,
    Handle(&'a [u8]),
    /// A path, and whether a symbolic link in its last component is followed.
    Path(&'a [u8], bool),
}

fn places<'a>(request: &Request<'a>) -> [Place<'a>; 2] {
    let one = match *request {
        Request::Watch(WatchRequest::Add { path })
        | Request::Open { path, .. }
        | Request::Stat { path }
        | Request::Setstat { path, .. }
        | Request::Opendir { path }
        | Request::Realpath { path }
        | Request::ExpandPath { path }
        | Request::Dirxattrs { path }
        | Request::Statvfs { path } => Place::Path(path, true),
        Request::Lstat { path }
        | Request::Lsetstat { path, .. }
        | Request::Remove { path }
        | Request::Mkdir { path, .. }
        | Request::Rmdir { path }
        | Request::Readlink { path }
        | Request::Mknod { path, .. }
        | Request::Digest { path, .. }
        | Request::Symlink { link: path, .. } => Place::Path(path, false),
        Request::ReadFile { path, follow, .. } => Place::Path(path, follow),
        Request::Getxattr { path, flags, .. }
        | Request::Setxattr { path, flags, .. }
        | Request::Listxattr { path, flags }
        | Request::Removexattr { path, flags, .. } => {
            Place::Path(path, flags.0 & XattrFlags::FOLLOW != 0)
        }
        Request::Rename { from, to }
        | Request::PosixRename { from, to }
        | Request::Renameat2 { from, to, .. }
        | Request::Hardlink { existing: from, new: to } => {
            return [Place::Path(from, false), Place::Path(to, false)];
        }
        Request::CopyData { from, to, .. } => return [Place::Handle(from), Place::Handle(to)],
        Request::Read { handle, .. }
        | Request::Write { handle, .. }
        | Request::Fstat { handle }
        | Request::Fsetstat { handle, .. }
        | Request::Fstatvfs { handle }
        | Request::Fsync { handle }
        | Request::Fallocate { handle, .. }
        | Request::Lseek { handle, .. }
        | Request::Lock { handle, .. }
        | Request::Readdir { handle }
        | Request::Close { handle } => Place::Handle(handle),
        Request::Limits
        | Request::Attrs { .. }
        | Request::Direct(_)
        | Request::Deflate { .. }
        | Request::Watch(_)
        | Request::HomeDirectory { .. }
        | Request::UsersGroupsById { .. }
        | Request::UnknownExtension { .. } => Place::None,
    };
    [one, Place::None]
}

/// The answer to a request that may block.
fn unless_blocked(result: Result<Option<Reply>>) -> Answer {
    match result.transpose() {
        None => Answer::WouldBlock,
        Some(reply) => Answer::Reply(reply.unwrap_or_else(|failure| failure.reply())),
    }
}

/// The answer to a request that may wait.
fn now_or_later(result: Result<Option<Reply>>) -> Answer {
    match result.transpose() {
        None => Answer::Waiting,
        Some(reply) => Answer::Reply(reply.unwrap_or_else(|failure| failure.reply())),
    }
}

/// Whether others need not wait for the request for long: it only returns what is there, or shows
/// how far it has come. What an OPEN returns decides what is changed later.
pub(crate) fn may_be_overtaken(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::CopyData { .. }
            | Request::Read { .. }
            | Request::Fstat { .. }
            | Request::Lseek { .. }
            | Request::Fstatvfs { .. }
            | Request::Lstat { .. }
            | Request::Stat { .. }
            | Request::Readlink { .. }
            | Request::Realpath { .. }
            | Request::ExpandPath { .. }
            | Request::Statvfs { .. }
            | Request::Opendir { .. }
            | Request::Readdir { .. }
            | Request::ReadFile { .. }
            | Request::Getxattr { .. }
            | Request::Listxattr { .. }
            | Request::Dirxattrs { .. }
    )
}

/// Whether the request closes a handle, or ends or cancels a lock.
pub(crate) fn releases(request: &Request<'_>) -> bool {
    use LockRequest::{Cancel, Set};
    matches!(
        request,
        Request::Close { .. } | Request::Lock { lock: Set { kind: None, .. } | Cancel { .. }, .. }
    )
}

/// Whether the request could change a file.
fn changes(request: &Request<'_>) -> bool {
    match request {
        Request::Open { flags, .. } => {
            let changing =
                [OpenFlags::WRITE, OpenFlags::APPEND, OpenFlags::CREATE, OpenFlags::TRUNCATE];
            changing.into_iter().any(|flag| flags.contains(flag))
        }
        Request::Write { .. }
        | Request::Setstat { .. }
        | Request::Lsetstat { .. }
        | Request::Fsetstat { .. }
        | Request::Remove { .. }
        | Request::Mkdir { .. }
        | Request::Rmdir { .. }
        | Request::Rename { .. }
        | Request::PosixRename { .. }
        | Request::Symlink { .. }
        | Request::Hardlink { .. }
        | Request::CopyData { .. }
        | Request::Setxattr { .. }
        | Request::Removexattr { .. }
        | Request::Mknod { .. }
        | Request::Renameat2 { .. }
        | Request::Fallocate { .. } => true,
        // Readers need locks, too, but must not exclude each other.
        Request::Lock { lock, .. } => {
            matches!(lock, LockRequest::Set { kind: Some(LockKind::Write), .. })
        }
        // All others are named, so that a new request is not forgotten here.
        Request::Close { .. }
        | Request::Read { .. }
        | Request::Lstat { .. }
        | Request::Fstat { .. }
        | Request::Opendir { .. }
        | Request::Readdir { .. }
        | Request::Realpath { .. }
        | Request::Stat { .. }
        | Request::ReadFile { .. }
        | Request::Readlink { .. }
        | Request::Statvfs { .. }
        | Request::Fstatvfs { .. }
        | Request::Fsync { .. }
        | Request::Limits
        | Request::Attrs { .. }
        | Request::Getxattr { .. }
        | Request::Listxattr { .. }
        | Request::Dirxattrs { .. }
        | Request::Lseek { .. }
        | Request::Digest { .. }
        | Request::Direct(_)
        | Request::Deflate { .. }
        | Request::Watch(_)
        | Request::ExpandPath { .. }
        | Request::HomeDirectory { .. }
        | Request::UsersGroupsById { .. }
        | Request::UnknownExtension { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::ffi::OsStrExt;

    use rustix::mount::{MountFlags, mount};
    use sftp::codec::{FileAttrs, RenameFlags};
    use testkit::own_process::is_inside;

    use super::*;
    use crate::schedule::Schedule;

    /// To free the blocks of a large file may take minutes.
    #[test]
    fn a_large_file_that_is_freed_delays_no_other_request() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { root: Some(dir.path().to_owned()), ..Options::default() };
        let server = Server::new(&options, Arc::new(Room::new(10))).unwrap();
        let (path, none) = (&b"f"[..], FileAttrs::default());
        let attrs = FileAttrs { size: Some(0), ..none };
        let truncating = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::TRUNCATE;
        let flags = RenameFlags::default();
        let content = vec![7; 2 << 20];
        for (len, is_large) in [(content.len(), true), (9, false)] {
            for request in [
                Request::Open { path, flags: truncating, attrs: none },
                Request::Setstat { path, attrs },
                Request::Lsetstat { path, attrs },
                Request::Remove { path },
                Request::PosixRename { from: b"new", to: path },
                Request::Renameat2 { from: b"new", to: path, flags },
            ] {
                std::fs::write(dir.path().join("f"), &content[..len]).unwrap();
                std::fs::write(dir.path().join("new"), "").unwrap();
                assert_eq!(server.is_quick(&request), !is_large, "{request:?}");
                let released = Cell::new(false);
                let answer = server.execute(1, &request, Some(&|| released.set(true)), &mut []);
                assert!(!matches!(answer, Answer::Reply(Reply::Status { errno: Some(_), .. })));
                assert_eq!(released.get(), is_large, "{request:?}: {answer:?}");
                let left = std::fs::read(dir.path().join("f")).unwrap_or_default();
                assert!(left.is_empty(), "{request:?}");
            }
            // By its handle.
            std::fs::write(dir.path().join("f"), &content[..len]).unwrap();
            let open = Request::Open { path, flags: OpenFlags::WRITE, attrs: none };
            let Answer::Reply(Reply::Handle(handle)) = server.execute(1, &open, None, &mut [])
            else {
                panic!("not opened")
            };
            let handle = handle.as_bytes();
            assert!(server.is_quick(&Request::Fsetstat { handle, attrs: none }));
            assert!(server.is_quick(&Request::Close { handle }));
            std::fs::remove_file(dir.path().join("f")).unwrap();
            assert_eq!(server.is_quick(&Request::Close { handle }), !is_large);
            let request = Request::Fsetstat { handle, attrs };
            assert_eq!(server.is_quick(&request), !is_large);
            let released = Cell::new(false);
            server.execute(1, &request, Some(&|| released.set(true)), &mut []);
            assert_eq!(released.get(), is_large);
        }
    }

    /// Then no later request may be executed before it, which might give the name to another file.
    #[test]
    fn a_large_file_is_truncated_also_without_proc() {
        let test = "server::tests::a_large_file_is_truncated_also_without_proc";
        if !is_inside(sandbox::namespace::command(), test) {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        mount("none", "/proc", "tmpfs", MountFlags::empty(), None).unwrap();
        // A root needs it.
        let server = Server::new(&Options::default(), Arc::new(Room::new(10))).unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, vec![7; 2 << 20]).unwrap();
        let path = file.as_os_str().as_bytes();
        let flags = OpenFlags::WRITE | OpenFlags::TRUNCATE;
        let request = Request::Open { path, flags, attrs: FileAttrs::default() };
        let released = Cell::new(false);
        let answer = server.execute(1, &request, Some(&|| released.set(true)), &mut []);
        assert!(matches!(answer, Answer::Reply(Reply::Handle(_))), "{answer:?}");
        assert!(!released.get());
        assert_eq!(std::fs::metadata(&file).unwrap().len(), 0);
    }

    /// In one burst: WRITE, CLOSE, and the rename to the final name.
    #[test]
    fn a_rename_waits_for_the_writes_before_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("new"), "").unwrap();
        let options = Options { root: Some(dir.path().to_owned()), ..Options::default() };
        let server = Server::new(&options, Arc::new(Room::new(1))).unwrap();
        let open = Request::Open { path: b"new", flags: OpenFlags::WRITE, attrs: <_>::default() };
        let Answer::Reply(Reply::Handle(handle)) = server.execute(1, &open, None, &mut []) else {
            panic!("not opened")
        };
        let handle = handle.as_bytes();
        let (from, to) = (&b"new"[..], &b"final"[..]);
        for rename in [Request::PosixRename { from, to }, Request::Rename { from, to }] {
            let mut schedule = Schedule::default();
            let mut add = |request: &Request<'_>| {
                schedule.add(server.claims(2, request), may_be_overtaken(request), None, ())
            };
            let (written, now) = add(&Request::Write { handle, offset: 0, data: b"x" });
            assert!(now.is_some());
            assert!(add(&Request::Close { handle }).1.is_none());
            let (renamed, now) = add(&rename);
            assert!(now.is_none(), "{rename:?}");
            assert!(schedule.finish(written).contains(&(renamed, ())));
        }
    }
}
