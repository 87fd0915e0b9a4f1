//! What all parts of a run share, and its counters.

use std::collections::{BTreeMap, HashSet};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base::{Attr, AttrChange, Errno, FileKind, Mutex, Remote, RemotePath, Result};
use tokio::sync::{OnceCell, Semaphore, watch};

use super::Copied;
use crate::deletion::DeferredDeletions;
use crate::digest;
use crate::dir::Last;
use crate::events::{Entry, Events, Progress};
use crate::flow::Flow;
use crate::job::{Job, Source};
use crate::outcome::{Fault, Outcome, Problem, Side, Stop, is_refusal};
use crate::setid;
use crate::sink::Sink;
use crate::step::{Action, Step};
use crate::task::AbortOnDrop;
use crate::temporary::MachineRun;
use crate::unseen::{Asked, Links};

/// Entries that wait for their contents to be compared, at most. One command makes the digests of
/// all of them, and a login for it takes as long as some thousand small files.
const COMPARING: usize = 4096;

/// Refused owners that are remembered: of more, each entry costs one more call. Some 1 MB.
const REFUSED_OWNERS_LIMIT: usize = 1 << 16;

/// What all parts of a run share.
pub(crate) struct Core {
    pub(crate) job: Job,
    pub(crate) events: Arc<dyn Events>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) flow: Flow,
    /// The target by system calls, if it is a local directory.
    pub(crate) sink: Option<Arc<Sink>>,
    /// The sources by system calls, if they are local directories.
    pub(crate) here: Vec<Option<Arc<Sink>>>,
    /// Owners with groups that the target has refused: they are left.
    refused_owners: Mutex<HashSet<(u32, u32)>>,
    /// The target sets no attributes of links: they are left, and not compared.
    links_lack_attributes: AtomicBool,
    /// Hard links were to be preserved, and a file was copied without knowing its other names.
    pub(crate) links_unknown: AtomicBool,
    /// Hard links were to be preserved, and of the files whose other names are not known some are
    /// copied, and others are not.
    unlinked: [AtomicBool; 2],
    /// Of each source, the files with several names, if SFTP does not report them.
    links: Vec<OnceCell<Option<Links>>>,
    pub(crate) deferred: Mutex<DeferredDeletions>,
    /// Bytes of the extended attributes that are kept for directories ([`Dir::xattrs`]).
    ///
    /// [`Dir::xattrs`]: crate::dir::Dir::xattrs
    pub(crate) kept_xattr_bytes: AtomicUsize,
    /// Room for entries that wait for their contents to be compared.
    pub(crate) comparing: Arc<Semaphore>,
    /// Room for files that are read for their digests.
    pub(crate) reading: Semaphore,
    target_run: OnceCell<MachineRun>,
    /// The queries of sources whose directories are listed by their remotes.
    unseen: Mutex<BTreeMap<usize, Asked>>,
    /// The outcome so far: counts, problems and deletions.
    totals: Mutex<Outcome>,
    stop: watch::Sender<Option<Stop>>,
    begun: Instant,
}

/// Whether the remote is lost, if this is its error, so that the run cannot go on.
pub(crate) fn is_lost(remote: &dyn Remote, errno: Errno) -> bool {
    errno.is_loss() && remote.may_be_lost()
}

impl Core {
    pub(crate) fn new(job: Job, events: Arc<dyn Events>) -> Arc<Core> {
        let mut ends: Vec<_> =
            job.sources.iter().map(|source| source.tree.remote.clone()).collect();
        ends.push(job.target.remote.clone());
        let sink = job.target.local.as_ref().and_then(|root| Sink::open(root).ok());
        let open = |source: &Source| source.tree.local.as_ref().and_then(|it| Sink::open(it).ok());
        let here = job.sources.iter().map(|source| open(source).map(Arc::new)).collect();
        let links = job.sources.iter().map(|_| OnceCell::new()).collect();
        Arc::new(Core {
            here,
            links,
            flow: Flow::new(ends),
            sink: sink.map(Arc::new),
            job,
            events,
            progress: Arc::default(),
            refused_owners: Mutex::default(),
            links_lack_attributes: AtomicBool::new(false),
            links_unknown: AtomicBool::new(false),
            unlinked: Default::default(),
            deferred: Mutex::default(),
            kept_xattr_bytes: AtomicUsize::new(0),
            comparing: Arc::new(Semaphore::new(COMPARING)),
            reading: Semaphore::new(digest::READ_AT_ONCE),
            target_run: OnceCell::new(),
            unseen: Mutex::default(),
            totals: Mutex::default(),
            stop: watch::Sender::new(None),
            begun: Instant::now(),
        })
    }

    /// The run of the machine that the target is on.
    pub(crate) async fn target_run(&self) -> MachineRun {
        let learn = async || match self.job.target.local {
            Some(_) => MachineRun::here(),
            None => {
                let named = self.job.target.remote.write_verifier().await.ok().flatten();
                MachineRun::of(named.as_deref())
            }
        };
        *self.target_run.get_or_init(learn).await
    }

    /// Ends the run; the first reason stays.
    pub(crate) fn stop(&self, why: Stop) {
        self.stop.send_if_modified(|stop| match stop {
            None => {
                *stop = Some(why);
                true
            }
            Some(_) => false,
        });
    }

    /// Why the run is to end, if it is.
    pub(crate) fn stop_reason(&self) -> Option<Stop> {
        *self.stop.borrow()
    }

    /// What `work` returns; `None` if the run is to end before.
    pub(crate) async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut stop = self.stop.subscribe();
        tokio::select! {
            biased;
            _ = stop.wait_for(Option::is_some) => None,
            done = work => Some(done),
        }
    }

    /// Whether the run copies the extended attributes of this source's entries by itself.
    pub(crate) fn copies_xattrs(&self, source: usize) -> bool {
        self.job.options.xattrs.any()
            && self.job.sources[source].tree.exceeds_sftp()
            && self.job.target.exceeds_sftp()
    }

    /// Whether only a stream copies them.
    pub(crate) fn streams_xattrs(&self, source: usize) -> bool {
        self.job.options.xattrs.any() && !self.copies_xattrs(source)
    }

    /// Whether the run makes this device or pipe by itself.
    pub(crate) fn makes_special(&self, step: &Step) -> bool {
        let is_known = match step.attr.kind {
            FileKind::BlockDevice | FileKind::CharDevice => {
                step.attr.inode.is_some() || self.here[step.source].is_some()
            }
            kind => kind == FileKind::Fifo,
        };
        is_known && self.job.target.exceeds_sftp()
    }

    /// Whether anything has failed.
    pub(crate) fn has_problems(&self) -> bool {
        self.totals.lock().problems_total > 0
    }

    /// Whether it is known of this entry, or of a directory that it is in, that it has failed.
    pub(crate) fn has_problem_at(&self, name: &RemotePath) -> bool {
        self.totals.lock().problems.iter().any(|problem| name.is_within(&problem.name))
    }

    /// How long the run takes already.
    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// The files of a source with several names, by a command there; `None` if that is not known.
    pub(crate) async fn links(&self, source: usize) -> Option<&Links> {
        let tree = &self.job.sources[source].tree;
        let ask = async || match &tree.unseen {
            Some(unseen) => unseen.links(&tree.path).await,
            None => None,
        };
        self.links[source].get_or_init(ask).await.as_ref()
    }

    /// Whether it is known which other names in the copy are of the file of this step.
    pub(crate) fn knows_links(&self, step: &Step) -> bool {
        // A file that is the source itself has none.
        step.attr.id().is_some()
            || step.attr.has_one_name()
            || self.here[step.source].is_some()
            || step.from == self.job.sources[step.source].tree.path
            || self.links[step.source].get().is_some_and(Option::is_some)
    }

    /// Begins to ask a source, once, what its listings leave out. Within a runtime.
    pub(crate) fn ask_for_unseen(&self, source: usize) {
        let tree = &self.job.sources[source].tree;
        let Some(unseen) = tree.unseen.as_ref().filter(|_| !tree.lists_all()) else { return };
        let mut asked = self.unseen.lock();
        asked.entry(source).or_insert_with(|| {
            let (unseen, top) = (unseen.clone(), tree.path.clone());
            // Here, so that it ends with the run, also without a waiter.
            AbortOnDrop(tokio::spawn(async move { unseen.below(&top).await }))
        });
    }

    /// What is being asked, once.
    pub(crate) fn asked_for_unseen(&self) -> Vec<(usize, Asked)> {
        let mut asked = self.unseen.lock();
        std::mem::take(&mut *asked).into_iter().collect()
    }

    /// An entry of the sources was compared.
    pub(crate) fn planned(&self, step: &Step) {
        Progress::add(&self.progress.entries, 1);
        self.show_planned(step);
        if self.job.options.hard_links
            && step.attr.kind == FileKind::Regular
            && !self.knows_links(step)
        {
            let is_copied = usize::from(matches!(step.action, Action::Copy(_)));
            self.unlinked[is_copied].store(true, Ordering::Relaxed);
        }
        let mut totals = self.totals.lock();
        totals.counts.entries += 1;
        if step.attr.kind == FileKind::Regular {
            totals.counts.bytes += step.attr.size;
        }
    }

    fn show_planned(&self, step: &Step) {
        if matches!(step.action, Action::Copy(_)) {
            Progress::add(&self.progress.files_planned, 1);
            Progress::add(&self.progress.bytes_planned, step.bytes());
        }
    }

    /// The error with which a remote was lost, if that is the problem.
    pub(crate) fn loss(&self, problem: &Problem) -> Option<Errno> {
        let Problem { name, fault: Fault::Failed { doing, errno } } = problem else { return None };
        let is_loss = match doing.side() {
            Side::Source => {
                let mut sources = self.job.sources.iter();
                let of_it = sources.find(|source| name.is_within(&source.to));
                of_it.is_some_and(|source| is_lost(&*source.tree.remote, *errno))
            }
            Side::Target => is_lost(&*self.job.target.remote, *errno),
        };
        is_loss.then_some(*errno)
    }

    /// Notes and shows a problem that is not the result of an entry.
    pub(crate) fn problem(&self, problem: &Problem) {
        if self.note_problem(problem) {
            self.events.problem(problem);
        }
    }

    /// Notes a problem; false if it ends the run, and so is not an entry's.
    fn note_problem(&self, problem: &Problem) -> bool {
        if let Some(errno) = self.loss(problem) {
            self.stop(Stop::Lost(errno));
            return false;
        }
        self.totals.lock().note_problem(problem);
        true
    }

    /// Notes how a step ended. Of a directory only the event of a failure is not left for later.
    pub(crate) fn ended(&self, step: &Step, end: std::result::Result<Copied, Problem>) {
        // A file that lacks attributes is there: its other names can be made.
        if let Some(names) = &step.names
            && names.first == step.name
            && end.as_ref().map_or_else(Problem::is_of_attributes, |_| true)
        {
            names.done();
        }
        if step.own.is_some() {
            return;
        }
        if matches!(step.action, Action::Copy(_)) {
            Progress::add(&self.progress.files_done, 1);
            if let Ok(Copied { bytes, resumed }) = end {
                // It may have grown since it was listed.
                let more = (bytes + resumed).saturating_sub(step.bytes());
                Progress::add(&self.progress.bytes_planned, more);
            }
        }
        if self.job.options.dry_run {
            Progress::add(&self.progress.bytes_done, step.bytes());
        }
        let is_unchanged = matches!(step.action, Action::Nothing | Action::SetAttr(_));
        if step.attr.kind == FileKind::Regular && is_unchanged && end.is_ok() {
            self.totals.lock().counts.bytes_unchanged += step.attr.size;
        }
        self.entry_ended(&step.name, step.attr.kind, &step.action, end);
    }

    /// Takes back how a step has ended, since it has to be done again. The counters of progress only
    /// grow: there, `again` is one more file.
    pub(crate) fn take_back(
        &self,
        action: &Action,
        end: &std::result::Result<Copied, Problem>,
        again: &Step,
    ) {
        self.show_planned(again);
        let Outcome { counts, problems, problems_total, .. } = &mut *self.totals.lock();
        match (end, action) {
            (Err(problem), _) => {
                counts.failed -= 1;
                *problems_total -= 1;
                if let Some(at) = problems.iter().rposition(|noted| noted == problem) {
                    problems.remove(at);
                }
            }
            (Ok(copied), Action::Copy(_)) => {
                counts.files_copied -= 1;
                counts.bytes_copied -= copied.bytes;
            }
            (Ok(_), Action::MakeLink(_)) => counts.links_made -= 1,
            (Ok(_), Action::HardLink { .. }) => counts.names_made -= 1,
            _ => {}
        }
    }

    /// Notes how a directory ended.
    pub(crate) fn dir_ended(
        &self,
        name: &RemotePath,
        last: &Last,
        end: std::result::Result<(), Problem>,
    ) {
        let end = end.map(|()| Copied::default());
        self.entry_ended(name, FileKind::Directory, &last.action, end);
    }

    fn entry_ended(
        &self,
        name: &RemotePath,
        kind: FileKind,
        action: &Action,
        end: std::result::Result<Copied, Problem>,
    ) {
        let action = match action {
            Action::SetAttr(change) if end.is_ok() && self.is_left(kind, change) => {
                &Action::Nothing
            }
            action => action,
        };
        let problem = end.as_ref().err();
        let bytes = end.as_ref().map_or(0, |copied| copied.bytes);
        if problem.is_some_and(|problem| !self.note_problem(problem)) {
            return;
        }
        match &end {
            Err(_) => self.totals.lock().counts.failed += 1,
            Ok(copied) => self.totals.lock().counts.add(action, copied.bytes, copied.resumed),
        }
        self.events.entry(Entry { name, kind, bytes, action, problem });
    }

    /// An entry of the target was deleted, or would be, or could not be.
    pub(crate) fn deleted(
        &self,
        name: &RemotePath,
        kind: FileKind,
        end: std::result::Result<(), &Problem>,
    ) {
        match end {
            Ok(()) => self.totals.lock().counts.deleted += 1,
            Err(problem) => {
                self.note_problem(problem);
            }
        }
        let (action, problem) = (&Action::Delete, end.err());
        self.events.entry(Entry { name, kind, bytes: 0, action, problem });
    }

    /// So many deletions were planned and not done.
    pub(crate) fn withheld(&self, deletions: u64) {
        self.totals.lock().deletions_withheld += deletions;
    }

    /// Notes that there were more deletions than permitted.
    pub(crate) fn limit_deletions(&self) {
        self.totals.lock().deletions_limited = true;
    }

    /// Notes that the target has refused this owner and group: from now on they are left.
    pub(crate) fn refuse_owner(&self, owner: Option<(u32, u32)>) {
        let mut refused = self.refused_owners.lock();
        if refused.len() < REFUSED_OWNERS_LIMIT {
            refused.extend(owner);
        }
    }

    /// Whether the target has refused this owner and group.
    pub(crate) fn is_refused(&self, owner: (u32, u32)) -> bool {
        self.refused_owners.lock().contains(&owner)
    }

    /// Owner and group that the file must have for its set-ID bits, where it may keep them and has
    /// some.
    pub(crate) fn set_ids_of(&self, attr: &Attr) -> Option<(u32, u32)> {
        let has_some = attr.kind == FileKind::Regular && attr.perm & setid::BITS != 0;
        self.job.options.set_ids_of(attr.uid, attr.gid).filter(|_| has_some)
    }

    /// Sets attributes by `set` of an entry that has `attr` at the source. If the target refuses
    /// owner and group, these are left out, from then on for all entries that are to have them.
    /// Set-ID bits come last, and only if `get` then returns the owner and group that they are meant
    /// for.
    pub(crate) async fn set_attributes<S>(
        &self,
        attr: &Attr,
        change: AttrChange,
        set: impl Fn(AttrChange) -> S,
        get: impl AsyncFnOnce() -> Result<Attr>,
    ) -> Result<()>
    where
        S: Future<Output = Result<()>>,
    {
        let wished = match attr.kind {
            FileKind::Directory => 0,
            _ => change.perm.map_or(0, |perm| perm & setid::BITS),
        };
        let perm = change.perm.map(|perm| setid::without(attr.kind, perm));
        self.with_owners(AttrChange { perm, ..change }, &set).await?;
        let (Some(owner), 1..) = (self.set_ids_of(attr), wished) else { return Ok(()) };
        let now = get().await?;
        match setid::kept(wished, owner, (now.uid, now.gid)) {
            0 => Ok(()),
            kept => {
                let perm = perm.map(|perm| perm | kept);
                set(AttrChange { perm, ..AttrChange::default() }).await
            }
        }
    }

    /// As [`Core::set_attributes`], of what has that path at the target. If the target refuses the
    /// change, the times may be why: then all others are set, and the error is returned as well.
    /// Those of a link are left if the target has no request for them, or its system sets none.
    pub(crate) async fn set_by_name(
        &self,
        path: &RemotePath,
        attr: &Attr,
        change: AttrChange,
    ) -> Result<()> {
        let target = &self.job.target.remote;
        let set = async |change| {
            let get = async || target.lstat(path).await;
            self.set_attributes(attr, change, |change| target.setattr(path, change), get).await
        };
        let end = set(change).await;
        if attr.kind == FileKind::Symlink && matches!(end, Err(Errno::EOPNOTSUPP | Errno::ENOSYS)) {
            self.links_lack_attributes.store(true, Ordering::Relaxed);
            return Ok(());
        }
        let others = AttrChange { atime: None, mtime: None, ..change };
        if end.is_err_and(is_refusal) && change.mtime.is_some() && !others.is_empty() {
            let _ = set(others).await;
        }
        end
    }

    async fn with_owners<F: Future<Output = Result<()>>>(
        &self,
        mut change: AttrChange,
        set: impl Fn(AttrChange) -> F,
    ) -> Result<()> {
        let mut owner = change.uid.zip(change.gid);
        if owner.is_some_and(|owner| self.is_refused(owner)) {
            (change.uid, change.gid, owner) = (None, None, None);
            if change.is_empty() {
                return Ok(());
            }
        }
        match set(change).await {
            Err(Errno::EPERM | Errno::EACCES | Errno::EINVAL) if owner.is_some() => {
                (change.uid, change.gid) = (None, None);
                let set = set(change).await;
                // Only then was it the owner that was refused.
                if set.is_ok() {
                    self.refuse_owner(owner);
                }
                set
            }
            set => set,
        }
    }

    /// Whether attributes of such an entry are left.
    pub(crate) fn leaves_attributes(&self, kind: FileKind) -> bool {
        kind == FileKind::Symlink && self.links_lack_attributes.load(Ordering::Relaxed)
    }

    /// Whether nothing is set by this change of such an entry, since it is left.
    fn is_left(&self, kind: FileKind, change: &AttrChange) -> bool {
        if self.leaves_attributes(kind) {
            return true;
        }
        let others = AttrChange { uid: None, gid: None, ..*change };
        let owner = change.uid.zip(change.gid);
        others.is_empty() && owner.is_some_and(|owner| self.is_refused(owner))
    }

    /// How it went. To be called once, at the end.
    pub(crate) fn outcome(&self) -> Outcome {
        let mut totals = std::mem::take(&mut *self.totals.lock());
        // The reasons first: a program may show some only.
        totals.problems.sort_by_key(Problem::is_consequence);
        Outcome {
            stopped: self.stop_reason(),
            owners_refused: !self.refused_owners.lock().is_empty(),
            links_unknown: self.links_unknown.load(Ordering::Relaxed)
                || self.unlinked.iter().all(|is| is.load(Ordering::Relaxed)),
            elapsed: self.begun.elapsed(),
            ..totals
        }
    }
}
