//! Two large copies at once, one out of the subject and one into it, for others to run beside.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::executor::{Background, Executor};
use crate::failure::Failure;
use crate::place::Place;
use crate::step::StepContext;
use crate::subject::Access;

use super::super::copying::fresh;
use super::LARGE;

/// After this both are at full speed, over a long link as well.
const WARM_UP: Duration = Duration::from_secs(2);

/// One file after the other, until it is killed. What the kernel keeps of it is dropped behind it, or
/// only the first one would come over the link.
const COPY: &str =
    r#"while dd if="$1" of="$2" bs=1M iflag=nocache conv=notrunc status=none; do :; done"#;

/// Two copies that run. Dropping it ends them, and leaves what was written.
#[derive(Debug)]
pub(super) struct Copies {
    running: [Background; 2],
    written: PathBuf,
}

impl Copies {
    /// Starts them, if the subject is a file system.
    pub(super) fn start(context: &StepContext<'_>) -> Result<Copies, Failure> {
        let Access::Directory(dir) = context.access() else {
            return Err(Failure::failed("it has no files that can be copied"));
        };
        let written = fresh("latency/copied");
        let out = copy(context.executor, &dir.join(LARGE), Path::new("/dev/null"))?;
        let into = copy(context.executor, &context.corpus.join(LARGE), &dir.join(&written))?;
        thread::sleep(WARM_UP);
        Ok(Copies { running: [out, into], written })
    }

    /// Ends them. An error if one of them had ended before: then nothing ran beside it.
    pub(super) fn end(self, place: &dyn Place) -> Result<(), Failure> {
        let ended = self.running.iter().find(|copy| !copy.is_running());
        let failed = ended
            .map(|copy| Failure::failed(format!("a copy ended before its time: {}", copy.words())));
        let Copies { running, written } = self;
        drop(running);
        let removed = place.remove(&written);
        failed.map_or(removed, Err)
    }
}

fn copy(executor: &Executor, from: &Path, to: &Path) -> Result<Background, Failure> {
    let mut command = Command::new("sh");
    command.args(["-c", COPY, "copy"].map(OsStr::new)).args([from, to]);
    executor.spawn(command)
}
