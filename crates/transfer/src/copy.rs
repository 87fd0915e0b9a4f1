//! Contents of files, from one remote to another, and links.
//!
//! A file is written under a temporary name (`temporary`), and only its owner may read it. It gets
//! mode, owner and times while it is open, and its name last. Small files are one read and one
//! write. Where the target is a local directory, one thread does all of it (`sink`). Large files go
//! in pieces (`pieces`).
//!
//! A file that changed while it was read is copied once more, and then reported. The same holds if
//! another run has renamed the temporary file: over SFTP a run cannot distinguish another run in
//! progress from one that was killed.

mod large;
mod links;
mod pieces;
mod resume;
mod small;

use std::sync::Arc;

use base::{
    Access, Attr, AttrChange, Create, Data, Errno, Mutex, Name, OpenFlags, OwnedFh, Remote,
    RemotePath, RenameMode,
};
use tokio::sync::OwnedSemaphorePermit;

use crate::digest;
use crate::outcome::{Doing, Fault, Problem, Refused, is_refusal};
use crate::plan::is_same_second;
use crate::run::{Copied, Core, attributes, differing};
use crate::sink::Lock;
use crate::step::Step;
use crate::task::blocking;
use crate::temporary::Partial;
use crate::xattr;
pub(crate) use links::{hard_link, special, symlink};
pub(crate) use pieces::parts;

/// How often a file is read that changes meanwhile.
const ATTEMPTS: usize = 2;

/// Bits of a mode that give rights to others than the owner, who can set any.
const NOT_OWNERS: u32 = 0o7077;

/// The temporary files of a step in progress, for a run that is stopped, and the step's room.
pub(crate) struct Unfinished {
    paths: Mutex<Vec<RemotePath>>,
    room: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Unfinished {
    /// Of a step that has this room.
    pub(crate) fn new(room: OwnedSemaphorePermit) -> Unfinished {
        Unfinished { paths: Mutex::default(), room: Mutex::new(Some(room)) }
    }

    /// Sets the file that exists now and cannot be continued.
    fn set(&self, path: Option<RemotePath>) {
        *self.paths.lock() = Vec::from_iter(path);
    }

    /// Adds a further file that exists beside it.
    fn add(&self, path: RemotePath) {
        self.paths.lock().push(path);
    }

    /// Exchanges the room for other entries by one for entries that are compared, if there is one.
    fn leave_to_others(&self, core: &Core) {
        if let Ok(other) = core.comparing.clone().try_acquire_owned() {
            *self.room.lock() = Some(other);
        }
    }

    /// Gives the room back.
    pub(crate) fn leave(&self) {
        *self.room.lock() = None;
    }

    /// Removes the files, if the target can be reached.
    pub(crate) async fn remove(&self, core: &Core) {
        let paths = std::mem::take(&mut *self.paths.lock());
        for path in paths {
            if !core.job.target.remote.is_disconnected() {
                let _ = core.job.target.remote.unlink(&path).await;
            }
        }
    }
}

/// How an attempt ended that found no fault.
enum Attempt {
    Done(Copied),
    /// The source is not what it was when it was opened.
    Changed,
    /// Another run has taken what was written.
    Taken,
}

type Outcome<T> = Result<T, Problem>;

/// A file of a step that is being copied.
struct Copy<'a> {
    core: &'a Arc<Core>,
    step: &'a Step,
    left: &'a Unfinished,
    /// As the source had it when it was opened.
    attr: Attr,
    /// Its path at the target, and the last name of that.
    to: RemotePath,
    name: Name,
    from: Origin,
    /// What is left of an earlier run may be continued.
    may_resume: bool,
    refused: Mutex<Refused>,
}

/// Where the content comes from.
enum Origin {
    /// A file that is open at the source.
    Open(OwnedFh),
    /// The whole content, and its share of the memory bound.
    Read { data: Data, _room: OwnedSemaphorePermit },
}

/// A file at the target that is not whole.
struct Temporary {
    path: RemotePath,
    file: OwnedFh,
    /// Its owner at the target.
    uid: u32,
    /// Held where the target is a directory of this machine and the file may be continued.
    lock: Option<Lock>,
}

/// Copies a regular file. Its directory exists.
pub(crate) async fn file(core: &Arc<Core>, step: &Step, left: &Unfinished) -> Outcome<Copied> {
    let to = core.job.target.path_of(&step.name);
    let Some(name) = to.file_name() else {
        return Err(failed(step, Doing::Make)(Errno::EISDIR));
    };
    let mut problem = Fault::Changed.of(&step.name);
    for attempt in 0..ATTEMPTS {
        let copy = |attr, from| {
            let (to, name, may_resume) = (to.clone(), name.clone(), attempt == 0);
            let refused = Mutex::default();
            Copy { core, step, left, attr, to, name, from, may_resume, refused }
        };
        if let Some((attr, from)) = read_here(core, step).await {
            let copy = copy(attr, from);
            if let Attempt::Done(copied) = copy.small().await? {
                return copy.end(copied).await;
            }
        }
        let remote = &core.job.sources[step.source].tree.remote;
        let flags = OpenFlags::existing(Access::Read);
        let opened = match remote.open(&step.from, flags).await {
            Err(Errno::ENOENT) => return Err(Fault::Vanished.of(&step.name)),
            opened => opened.map_err(failed(step, Doing::Open))?,
        };
        let copy = copy(opened.attr, Origin::Open(OwnedFh::new(remote.clone(), opened.fh)));
        let attempt = match opened.attr.size <= core.flow.piece_bytes() {
            true => copy.small().await?,
            false => copy.large().await?,
        };
        let copied = match attempt {
            Attempt::Done(copied) => copied,
            Attempt::Taken if copy.is_there().await => Copied::default(),
            Attempt::Taken => {
                problem = taken(step);
                continue;
            }
            Attempt::Changed => {
                problem = Fault::Changed.of(&step.name);
                continue;
            }
        };
        return copy.end(copied).await;
    }
    Err(problem)
}

/// Another run has renamed the temporary file of this one.
fn taken(step: &Step) -> Problem {
    let words = "another copy into the same place is at work; copy again when it has ended";
    Fault::Other { words: words.to_owned() }.of(&step.name)
}

/// Reads a small local file on one thread that may block: separate calls for open, stat and read
/// would each change threads. `None` for other files, and after an error: then the file is copied
/// as any other, which reports the error.
async fn read_here(core: &Core, step: &Step) -> Option<(Attr, Origin)> {
    let here = core.here.get(step.source)?.clone()?;
    let most = core.flow.piece_bytes();
    if step.attr.size > most {
        return None;
    }
    let room = core.flow.room(step.attr.size).await;
    let (path, size) = (step.from.clone(), step.attr.size);
    let read = blocking(move || here.read_whole(&path, size)).await;
    let (attr, content) = read.ok()??;
    Some((attr, Origin::Read { data: content.into(), _room: room }))
}

fn failed(step: &Step, doing: Doing) -> impl Fn(Errno) -> Problem + '_ {
    Problem::failed(&step.name, doing)
}

impl<'a> Copy<'a> {
    fn failed(&self, doing: Doing) -> impl Fn(Errno) -> Problem + 'a {
        failed(self.step, doing)
    }

    /// The source's remote, and the handle of the file that is open there.
    fn source(&self) -> Outcome<(&'a Arc<dyn Remote>, base::Fh)> {
        let remote = &self.core.job.sources[self.step.source].tree.remote;
        match &self.from {
            Origin::Open(file) => Ok((remote, file.fh())),
            Origin::Read { .. } => Err(self.failed(Doing::Read)(Errno::EBADF)),
        }
    }

    /// The file has its name.
    async fn end(&self, copied: Copied) -> Outcome<Copied> {
        remove_stale(self.core, self.step).await;
        let refused = *self.refused.lock();
        refused.of(&self.step.name).map(|()| copied)
    }

    /// The extended attributes that the file is to have.
    async fn xattrs(&self) -> Outcome<xattr::List> {
        let Step { source, from, attr, .. } = self.step;
        match self.core.copies_xattrs(*source) {
            false => Ok(xattr::List::new()),
            true => {
                let read = xattr::read(self.core, *source, from, attr).await;
                read.map_err(self.failed(Doing::Read))
            }
        }
    }

    /// Gives the file at `path` its extended attributes, and before that its owner and size, since
    /// these changes take capabilities away. What is left of the change follows: its mode may
    /// forbid to write.
    async fn set_xattrs(
        &self,
        path: &RemotePath,
        file: &OwnedFh,
        change: &mut AttrChange,
    ) -> Outcome<()> {
        let list = self.xattrs().await?;
        if list.is_empty() {
            return Ok(());
        }
        let AttrChange { uid, gid, size, .. } = *change;
        (change.uid, change.gid, change.size) = (None, None, None);
        let first = AttrChange { uid, gid, size, ..AttrChange::default() };
        if !first.is_empty() {
            let (get, set) = (
                async || self.target().fstat(file.fh()).await,
                |change| self.target().fsetattr(file.fh(), change),
            );
            let set = self.core.set_attributes(&self.attr, first, set, get).await;
            set.map_err(self.failed(Doing::SetAttr))?;
        }
        let refused = xattr::write(&**self.target(), path, &list).await;
        let refused = refused.map_err(self.failed(Doing::SetAttr))?;
        self.refused.lock().xattrs = refused;
        Ok(())
    }

    fn target(&self) -> &'a Arc<dyn Remote> {
        &self.core.job.target.remote
    }

    /// The path of `name` beside the file.
    fn beside(&self, name: &Name) -> RemotePath {
        self.to.parent().unwrap_or_default().join(name)
    }

    /// Whether the source's attributes say that the content is still that of `self.attr`.
    fn is_unchanged(&self, now: &Attr) -> bool {
        (now.size, now.mtime) == (self.attr.size, self.attr.mtime)
    }

    /// Makes the temporary file `path`.
    async fn make(&self, path: RemotePath) -> Outcome<Temporary> {
        let remote = self.target();
        let create = Create::Exclusive(0o600);
        let flags = OpenFlags { create, ..OpenFlags::existing(Access::Write) };
        let opened = remote.open(&path, flags).await.map_err(self.failed(Doing::Make))?;
        let file = OwnedFh::new(remote.clone(), opened.fh);
        Ok(Temporary { path, file, uid: opened.attr.uid, lock: None })
    }

    /// Whether the target has the file as it should be: another run has copied it.
    async fn is_there(&self) -> bool {
        let options = &self.core.job.options;
        let Ok(there) = self.target().lstat(&self.to).await else { return false };
        !options.verify
            && !options.checksum
            && (there.kind, there.size) == (self.attr.kind, self.attr.size)
            && is_same_second(there.mtime, self.attr.mtime)
            && differing(self.core, &self.attr, &there).is_empty()
    }

    /// Sets the attributes of the open file, and returns its attributes after that. Sent after the
    /// writes of the file, and takes effect behind them. The file is closed in the same burst,
    /// unless more may have to be done with it.
    async fn apply_metadata(&self, made: &Temporary, size: Option<u64>) -> Outcome<Attr> {
        let Temporary { path, file, .. } = made;
        let (core, fh, target) = (self.core, file.fh(), self.target());
        let mut change = AttrChange { size, ..attributes(core, &self.attr) };
        self.set_xattrs(path, file, &mut change).await?;
        let is_last = change.uid.is_none()
            && core.set_ids_of(&self.attr).is_none()
            && !core.job.options.fsync;
        let get = async || target.fstat(fh).await;
        let set = |change| target.fsetattr(fh, change);
        let set = core.set_attributes(&self.attr, change, set, get);
        let finish = async {
            match is_last {
                true => file.finish().await,
                false => Ok(()),
            }
        };
        let (set, now, finished) = tokio::join!(biased; set, target.fstat(fh), finish);
        let now = now.map_err(self.failed(Doing::Verify))?;
        finished.map_err(self.failed(Doing::Write))?;
        match set {
            Err(errno) if is_refusal(errno) => self.without_times(path, change, now, errno).await,
            set => set.map(|()| now).map_err(self.failed(Doing::SetAttr)),
        }
    }

    /// Goes on with a file of which the target refuses a change of attributes with `errno`: it may
    /// get those besides the times. It is not given to others with more rights than it is to have.
    async fn without_times(
        &self,
        path: &RemotePath,
        change: AttrChange,
        now: Attr,
        errno: Errno,
    ) -> Outcome<Attr> {
        let others = AttrChange { atime: None, mtime: None, ..change };
        let _ = self.core.set_by_name(path, &self.attr, others).await;
        let now = self.target().lstat(path).await.unwrap_or(now);
        if now.perm & !self.attr.perm & NOT_OWNERS != 0 {
            return Err(self.failed(Doing::SetAttr)(errno));
        }
        self.refused.lock().attributes = Some(errno);
        Ok(now)
    }

    /// Checks what is at the target, and gives it its name; `false` where another run has taken it
    /// away.
    async fn place(&self, temporary: Temporary, now: &Attr) -> Outcome<bool> {
        let Temporary { path, file, lock, .. } = temporary;
        if self.core.job.options.fsync {
            self.target().fsync(file.fh()).await.map_err(self.failed(Doing::Sync))?;
        }
        // Some servers report a full disk or an exceeded quota only here.
        file.finish().await.map_err(self.failed(Doing::Write))?;
        let differs = |what| Fault::Differs { what }.of(&self.step.name);
        if now.size != self.attr.size {
            return Err(differs("size"));
        }
        if self.core.job.options.verify && !self.is_equal(&path, now).await? {
            return Err(differs("digest"));
        }
        self.remove_obstacle().await?;
        let renamed = self.target().rename(&path, &self.to, RenameMode::Replace).await;
        drop(lock);
        match renamed {
            Err(Errno::ENOENT) => Ok(false),
            renamed => renamed.map(|()| true).map_err(self.failed(Doing::Rename)),
        }
    }

    /// Whether the digests of the source and of what is at `path`, with these attributes, are
    /// equal.
    async fn is_equal(&self, path: &RemotePath, now: &Attr) -> Outcome<bool> {
        let source = &self.core.job.sources[self.step.source].tree;
        let reading = &self.core.reading;
        // One command makes the digests of many files. Handles that the source has open are limited
        // by the room.
        if let Origin::Read { .. } = self.from {
            self.left.leave_to_others(self.core);
        }
        let (read, written) = tokio::join!(
            digest::of_known(source, &self.step.from, &self.attr, reading),
            digest::of_known(&self.core.job.target, path, now, reading),
        );
        let read = read.map_err(self.failed(Doing::Read))?;
        Ok(read == written.map_err(self.failed(Doing::Verify))?)
    }

    async fn remove_obstacle(&self) -> Outcome<()> {
        remove_obstacle(self.core, self.step, &self.to).await
    }
}

/// Removes what earlier runs and streams have left of the step's file. What another run is at work
/// on stays, where that can be detected.
pub(crate) async fn remove_stale(core: &Core, step: &Step) {
    remove_partials(core, step, |_| true).await;
}

/// As [`remove_stale`], of what cannot be continued. It is removed before the step begins: it takes
/// room on the disk, and the step may fail.
pub(crate) async fn remove_useless(core: &Core, step: &Step) {
    remove_partials(core, step, |partial| !partial.lasts()).await;
}

async fn remove_partials(core: &Core, step: &Step, which: impl Fn(&Partial) -> bool) {
    let directory = core.job.target.path_of(&step.name).parent().unwrap_or_default();
    for partial in step.partials.iter().filter(|partial| which(partial)) {
        let path = directory.join(&partial.file);
        // Held until it is removed.
        let lock = match partial.lasts() {
            true => resume::lock(core, &path).await,
            false => Some(None),
        };
        if lock.is_some() {
            let _ = core.job.target.remote.unlink(&path).await;
        }
    }
}

/// Removes an empty directory that has the name.
pub(crate) async fn remove_obstacle(
    core: &Core,
    step: &Step,
    to: &RemotePath,
) -> Result<(), Problem> {
    if !step.there.is_some_and(|there| there.is_dir()) {
        return Ok(());
    }
    match core.job.target.remote.rmdir(to).await {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(Errno::ENOTEMPTY | Errno::EEXIST) => Err(Fault::DirectoryInTheWay.of(&step.name)),
        Err(errno) => Err(failed(step, Doing::Delete)(errno)),
    }
}
