//! Files that are copied in one piece.

use std::sync::Arc;

use base::{Data, Errno};

use super::{Attempt, Copy, Origin, Outcome, Temporary, pieces};
use crate::events::Progress;
use crate::outcome::{Doing, Fault};
use crate::run::{Copied, attributes};
use crate::sink::{Finish, Sink};
use crate::task::blocking;
use crate::temporary::{self, MachineRun};

impl<'a> Copy<'a> {
    /// Copies the file at once.
    pub(super) async fn small(&self) -> Outcome<Attempt> {
        let _room = match self.from {
            Origin::Open(_) => Some(self.core.flow.room(self.attr.size).await),
            Origin::Read { .. } => None,
        };
        if let (Some(sink), false) = (&self.core.sink, self.core.job.options.verify) {
            let Some(data) = self.read().await? else {
                return Ok(Attempt::Changed);
            };
            return self.put(sink.clone(), data).await;
        }
        // Made while the content is on its way.
        let file = temporary::name(&self.name, &self.attr, 0, MachineRun::UNKNOWN);
        let path = self.beside(&file);
        self.left.set(Some(path.clone()));
        let (data, made) = tokio::join!(biased; self.read(), self.make(path.clone()));
        let end = match (data, made) {
            (Ok(Some(data)), Ok(made)) => self.fill(data, made).await,
            (Ok(None), Ok(_)) => Ok(Attempt::Changed),
            (Ok(_), Err(problem)) | (Err(problem), _) => Err(problem),
        };
        if !matches!(end, Ok(Attempt::Done(_))) {
            self.left.remove(self.core).await;
        }
        self.left.set(None);
        end
    }

    /// All of the content; `None` when it is not what it was.
    async fn read(&self) -> Outcome<Option<Data>> {
        let (remote, fh) = match &self.from {
            Origin::Read { data, .. } => return Ok(Some(data.clone())),
            Origin::Open(_) => self.source()?,
        };
        // One more than there should be, so that a file that has grown is seen.
        let len = self.attr.size as u32 + 1;
        let read = async {
            match self.attr.size {
                0 => Ok(Data::new()),
                _ => remote.read(fh, 0, len).await,
            }
        };
        let (data, now) = tokio::join!(biased; read, remote.fstat(fh));
        let data = data.map_err(self.failed(Doing::Read))?;
        let now = now.map_err(self.failed(Doing::Read))?;
        let whole = data.len() as u64 == self.attr.size && self.is_unchanged(&now);
        Ok(whole.then_some(data))
    }

    /// Writes the content, and gives the file its name.
    async fn fill(&self, data: Data, made: Temporary) -> Outcome<Attempt> {
        let bytes = data.len() as u64;
        let sparse = self.core.job.options.sparse;
        let write = pieces::write(&**self.target(), made.file.fh(), 0, &data, sparse);
        let size = sparse.then_some(bytes);
        let (written, now) = match self.core.copies_xattrs(self.step.source) {
            // A write after that would take capabilities away.
            true => (write.await, self.apply_metadata(&made, size).await),
            false => tokio::join!(biased; write, self.apply_metadata(&made, size)),
        };
        written.map_err(self.failed(Doing::Write))?;
        if !self.place(made, &now?).await? {
            return Ok(Attempt::Taken);
        }
        Progress::add(&self.core.progress.bytes_done, bytes);
        Ok(Attempt::Done(Copied { bytes, resumed: 0 }))
    }

    /// Writes the file by system calls, all of them on one thread.
    async fn put(&self, sink: Arc<Sink>, data: Data) -> Outcome<Attempt> {
        self.remove_obstacle().await?;
        let wanted = attributes(self.core, &self.attr);
        let owner = wanted.uid.zip(wanted.gid);
        let finish = Finish {
            perm: self.attr.perm,
            set_ids: self.core.set_ids_of(&self.attr),
            owner,
            mtime: Some(self.attr.mtime),
            fsync: self.core.job.options.fsync,
            xattrs: self.xattrs().await?,
            ..Finish::default()
        };
        let (path, attr, bytes) = (self.to.clone(), self.attr, data.len() as u64);
        let sparse = self.core.job.options.sparse;
        let put = move || sink.put(&path, &attr, data.pieces(), &finish, sparse);
        let finished = blocking(put).await;
        let finished = finished.map_err(|errno| match errno {
            Errno::EISDIR => Fault::DirectoryInTheWay.of(&self.step.name),
            Errno::ESTALE => super::taken(self.step),
            errno => self.failed(Doing::Write)(errno),
        })?;
        self.refused.lock().xattrs = finished.xattrs_refused;
        if finished.owner_refused {
            self.core.refuse_owner(owner);
        }
        Progress::add(&self.core.progress.bytes_done, bytes);
        Ok(Attempt::Done(Copied { bytes, resumed: 0 }))
    }
}
