//! Files that are pushed in a stream: each has its temporary name until tar has ended successfully.

use std::io::{self, Write};
use std::sync::Arc;

use base::{FileKind, RemotePath, RenameMode};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::Pending;
use crate::copy;
use crate::events::Silent;
use crate::options::Options;
use crate::run::{Copied, Core};
use crate::sink::Sink;
use crate::step::Step;
use crate::tar::counters::Counters;
use crate::tar::pack::Packer;
use crate::temporary::{self, MachineRun, Partial};

/// Renames that are under way at once.
const RENAMES: usize = 64;

/// A file that was sent.
pub(super) struct Sent {
    step: Step,
    /// What it is called at the target.
    temporary: RemotePath,
    bytes: u64,
}

/// What was sent, and what could not be read.
#[derive(Default)]
pub(super) struct Packed {
    pub(super) sent: Vec<Sent>,
    pub(super) left: Vec<Step>,
}

/// Packs what is asked for, until nobody asks any more. On a thread that may block.
///
/// # Errors
/// When the archive cannot be sent.
pub(super) fn pack<W: Write>(
    core: &Core,
    source: usize,
    output: W,
    pending: &Pending,
    sendings: &mut mpsc::Receiver<Vec<u8>>,
    done: &mut Packed,
) -> io::Result<W> {
    let root = core.job.sources[source].tree.local.as_ref();
    let root = root.ok_or_else(|| io::Error::other("the source is not here"))?;
    let sink = Sink::open(root).map_err(|errno| io::Error::from_raw_os_error(errno.raw()))?;
    // Further names are made by the run, when all files are there.
    let options = Options { hard_links: false, ..core.job.options.clone() };
    let mut counters = Counters::new(Arc::default(), Arc::new(Silent));
    let mut packer = Packer::new(output, &options, &mut counters);
    while let Some(names) = sendings.blocking_recv() {
        for name in names.split(|byte| *byte == 0) {
            let path = name.strip_prefix(b"./").and_then(|name| RemotePath::parse(name).ok());
            let step = path.and_then(|path| pending.steps().remove(&path));
            let Some(step) = step else { continue };
            let Some(temporary) = temporary_path(core, &step) else {
                done.left.push(step);
                continue;
            };
            let bytes = if step.attr.kind == FileKind::Regular { step.attr.size } else { 0 };
            let entry = sink.place(&step.from).map_err(|_| ());
            let packed = entry.map(|(directory, name)| {
                let path = [b"./", temporary.as_bytes()].concat();
                packer.one(&directory, &name, step.attr.kind, path, &step.name)
            });
            match packed {
                Ok(Ok(true)) => {
                    core.progress.bytes(bytes);
                    done.sent.push(Sent { step, temporary, bytes });
                }
                Ok(Err(error)) => {
                    done.left.push(begun(step, &temporary));
                    return Err(error);
                }
                // The run tells what is wrong with it.
                Ok(Ok(false)) => done.left.push(begun(step, &temporary)),
                Err(()) => done.left.push(step),
            }
        }
        packer.flush()?;
    }
    packer.end()
}

fn temporary_path(core: &Core, step: &Step) -> Option<RemotePath> {
    let to = core.job.target.path_of(&step.name);
    let span = temporary::SPAN_OF_STREAM;
    let name = temporary::name(&to.file_name()?, &step.attr, span, MachineRun::UNKNOWN);
    Some(to.parent()?.join(&name))
}

/// Gives what was sent its names. Gives back what that failed for.
pub(super) async fn place(core: &Arc<Core>, sent: Vec<Sent>) -> Vec<Step> {
    let mut placing = JoinSet::new();
    let mut left = Vec::new();
    let mut sent = sent.into_iter();
    loop {
        while placing.len() < RENAMES
            && let Some(one) = sent.next()
        {
            let core = core.clone();
            placing.spawn(async move {
                let to = core.job.target.path_of(&one.step.name);
                let remote = &core.job.target.remote;
                let placed = remote.rename(&one.temporary, &to, RenameMode::Replace).await;
                match placed {
                    Ok(()) => {
                        copy::remove_stale(&core, &one.step).await;
                        core.ended(&one.step, Ok(Copied { bytes: one.bytes, resumed: 0 }));
                        None
                    }
                    Err(errno) => {
                        tracing::debug!("{}: cannot be given its name: {errno}", one.step.name);
                        Some(begun(one.step, &one.temporary))
                    }
                }
            });
        }
        match placing.join_next().await {
            None => return left,
            Some(Ok(step)) => left.extend(step),
            Some(Err(error)) => {
                if let Ok(panic) = error.try_into_panic() {
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }
}

/// What was sent, when it is not known what has come of it.
pub(super) fn in_doubt(sent: Vec<Sent>) -> impl Iterator<Item = Step> {
    sent.into_iter().map(|sent| begun(sent.step, &sent.temporary))
}

/// The step with what the stream may have left of it, so that who brings it removes that.
fn begun(mut step: Step, temporary: &RemotePath) -> Step {
    let file = temporary.file_name();
    let partial = file.and_then(|file| Partial::parse(&file, &step.attr).map(|(_, it)| it));
    step.partials.extend(partial);
    step
}
