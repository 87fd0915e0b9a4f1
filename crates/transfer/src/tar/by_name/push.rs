//! Files that are pushed in a stream: each has its temporary name until tar has ended successfully.

use std::io::{self, Write};
use std::sync::Arc;

use base::{FileKind, RemotePath, RenameMode};
use tokio::sync::mpsc;

use super::{Messages, Pending, open_mode};
use crate::copy;
use crate::events::Silent;
use crate::options::Options;
use crate::outcome::{Doing, Problem};
use crate::run::{Copied, Core};
use crate::sink::Sink;
use crate::step::Step;
use crate::tar::counters::Counters;
use crate::tar::pack::{One, Packer};
use crate::task::at_most;
use crate::temporary::{self, MachineRun, Partial};
use crate::xattr;

/// Renames that are in flight at once.
const RENAMES: usize = 64;

/// A file that was sent.
pub(super) struct Sent {
    step: Step,
    /// Its temporary name at the target.
    pub(super) temporary: RemotePath,
    bytes: u64,
}

impl Sent {
    /// The step with which the run copies it.
    fn again(self, core: &Core, refused: Option<Problem>) -> Step {
        core.progress.again(self.bytes);
        begun(Step { refused, ..self.step }, &self.temporary)
    }
}

/// Sends files. On a thread that may block.
pub(super) struct FilePacker {
    pub(super) core: Arc<Core>,
    /// The number of the source in the job.
    pub(super) source: usize,
    pub(super) pending: Arc<Pending>,
    /// The files that were sent.
    pub(super) sent: Vec<Sent>,
    /// The steps of those that could not be read.
    pub(super) left: Vec<Step>,
}

impl FilePacker {
    /// Packs the requested files, until the last request.
    ///
    /// # Errors
    /// If the archive cannot be sent.
    pub(super) fn pack<W: Write>(
        &mut self,
        output: W,
        mut requests: mpsc::Receiver<Vec<u8>>,
    ) -> io::Result<W> {
        let core = &self.core;
        let root = core.job.sources[self.source].tree.local.as_ref();
        let root = root.ok_or_else(|| io::Error::other("the source is not here"))?;
        let sink = Sink::open(root).map_err(|errno| io::Error::from_raw_os_error(errno.raw()))?;
        // Further names are made by the run, when all files are there.
        let options = Options { hard_links: false, ..core.job.options.clone() };
        let mut counters = Counters::new(Arc::default(), Arc::new(Silent));
        let mut packer = Packer::new(output, &options, &mut counters);
        while let Some(names) = requests.blocking_recv() {
            for name in names.split(|byte| *byte == 0) {
                let Some(step) = self.pending.take(name) else { continue };
                let place = match step.own {
                    Some(_) => sink.dir(&step.from).map(|own| (own, b".".to_vec())),
                    None => {
                        let place = sink.place(&step.from);
                        place.map(|(directory, name)| (directory, name.as_bytes().to_vec()))
                    }
                };
                let (Some(temporary), Ok((directory, name))) = (temporary_path(core, &step), place)
                else {
                    self.left.push(step);
                    continue;
                };
                let bytes = if step.attr.kind == FileKind::Regular { step.attr.size } else { 0 };
                let kind = match step.attr.kind {
                    FileKind::Directory => One::Directory(open_mode(&step).unwrap_or(0o700)),
                    kind => One::Leaf(kind),
                };
                let path = [b"./", temporary.as_bytes()].concat();
                match packer.one(&directory, &name, kind, path, &step.name) {
                    Ok(true) => {
                        core.progress.bytes(bytes);
                        self.sent.push(Sent { step, temporary, bytes });
                    }
                    // The run reports the problem.
                    Ok(false) => self.left.push(begun(step, &temporary)),
                    Err(error) => {
                        self.left.push(begun(step, &temporary));
                        return Err(error);
                    }
                }
            }
            packer.flush()?;
        }
        packer.end()
    }
}

/// The name of an entry in the stream. A directory exists, and has its own.
fn temporary_path(core: &Core, step: &Step) -> Option<RemotePath> {
    let to = core.job.target.path_of(&step.name);
    if step.own.is_some() {
        return Some(to);
    }
    let span = temporary::SPAN_OF_STREAM;
    let name = temporary::name(&to.file_name()?, &step.attr, span, MachineRun::UNKNOWN);
    Some(to.parent()?.join(&name))
}

/// Renames the sent files to their names. Returns the steps for which that failed.
pub(super) async fn place(core: &Arc<Core>, sent: Vec<Sent>) -> Vec<Step> {
    let renames = sent.into_iter().map(|one| {
        let core = core.clone();
        async move {
            if let Some(own) = &one.step.own {
                let _ = own.xattrs.set(xattr::List::new());
                return None;
            }
            let to = core.job.target.path_of(&one.step.name);
            let remote = &core.job.target.remote;
            if let Err(problem) = copy::remove_obstacle(&core, &one.step, &to).await {
                return Some(one.again(&core, Some(problem)));
            }
            match remote.rename(&one.temporary, &to, RenameMode::Replace).await {
                Ok(()) => {
                    copy::remove_stale(&core, &one.step).await;
                    core.ended(&one.step, Ok(Copied { bytes: one.bytes, resumed: 0 }));
                    None
                }
                Err(errno) => {
                    let problem = Problem::failed(&one.step.name, Doing::Rename)(errno);
                    Some(one.again(&core, Some(problem)))
                }
            }
        }
    });
    at_most(RENAMES, renames).await.into_iter().flatten().collect()
}

/// The steps of sent files that tar could not unpack.
pub(super) fn failed(
    core: &Core,
    sent: Vec<Sent>,
    messages: &Messages,
) -> impl Iterator<Item = Step> {
    sent.into_iter().map(|sent| {
        let refused = messages.problem(&sent.temporary, &sent.step.name);
        sent.again(core, refused)
    })
}

/// The steps of sent files whose arrival is unknown.
pub(super) fn in_doubt(core: &Core, sent: Vec<Sent>) -> impl Iterator<Item = Step> {
    sent.into_iter().map(|sent| sent.again(core, None))
}

/// The step with the temporary file that the stream may have left, so that the run removes it.
fn begun(mut step: Step, temporary: &RemotePath) -> Step {
    let file = temporary.file_name();
    let partial = file.and_then(|file| Partial::parse(&file, &step.attr).map(|(_, it)| it));
    step.partials.extend(partial);
    step
}
