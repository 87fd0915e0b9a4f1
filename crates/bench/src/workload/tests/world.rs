//! A storage and a subject on the local disk, for tests of workloads: an honest one, or one that
//! shows something else than the storage.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::executor::Executor;
use crate::failure::Failure;
use crate::results::{Measured, SubjectInfo};
use crate::size::{Scale, Size};
use crate::step::StepContext;
use crate::storage::{Directory, Storage};
use crate::subject::{Access, Copier, Direction, Session, Subject, Tuning};

use crate::workload::{Step, Workload};

/// A workload that is made and laid out.
pub(crate) struct World {
    pub(crate) dir: TempDir,
    pub(crate) size: Size,
    executor: Executor,
    storage: Directory,
    /// How often a session was to forget.
    pub(crate) forgotten: AtomicU32,
}

/// How the subject is used.
#[derive(Clone, Copy)]
pub(crate) enum Use {
    /// As a directory: that of the storage, or another one below the test's own.
    Mount(&'static str),
    /// As that of the storage, which the user has mounted.
    Target,
    /// As a program that copies, `cp` with these options.
    Copy(&'static str),
    /// As SFTP, by a bare server.
    Sftp,
}

/// The storage's directory below the test's own.
pub(crate) const STORAGE: &str = "place";

pub(crate) fn tiny() -> Size {
    let mut size = Size { tree_files: 60, ..Size::of(Scale::Quick) };
    size.set_file_bytes(1 << 20);
    size
}

impl World {
    pub(crate) fn of(workload: &dyn Workload, size: Size) -> World {
        let dir = tempfile::tempdir().unwrap();
        for name in [STORAGE, "corpus"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::fs::create_dir(dir.path().join("corpus").join(workload.name())).unwrap();
        let storage = Directory::new("place", dir.path().join(STORAGE));
        let (executor, forgotten) = (Executor::new(), AtomicU32::new(0));
        let world = World { executor, storage, size, dir, forgotten };
        workload.make(&world.size, &world.corpus(), &world.executor).unwrap();
        world.storage.make_dir(Path::new(workload.name())).unwrap();
        workload.lay_out(&world.size, &world.corpus(), &world.storage).unwrap();
        world
    }

    /// What workloads have made.
    pub(crate) fn corpus(&self) -> PathBuf {
        self.dir.path().join("corpus")
    }

    /// What is laid out.
    pub(crate) fn storage(&self) -> PathBuf {
        self.dir.path().join(STORAGE)
    }

    /// Another directory with all that is in the storage now.
    pub(crate) fn copy_storage(&self, to: &str) -> PathBuf {
        let copy = self.dir.path().join(to);
        let status = Command::new("cp").arg("-a").arg(self.storage()).arg(&copy).status();
        assert!(status.unwrap().success());
        copy
    }

    fn fake(&self, by: Use) -> Fake<'_> {
        let shown = match by {
            Use::Mount(name) => self.dir.path().join(name),
            Use::Target => self.storage(),
            Use::Copy(_) | Use::Sftp => PathBuf::new(),
        };
        Fake { by, shown, world: self }
    }

    /// Whether a subject with this access can do it.
    pub(crate) fn suits(&self, step: &Step, by: Use) -> bool {
        step.suits(self.fake(by).access().kind())
    }

    /// The same, whose storage is reached by nothing but its mount.
    pub(crate) fn mounted(self) -> World {
        World { storage: self.storage.mounted(), ..self }
    }

    /// Does one step.
    pub(crate) fn run(&self, step: &Step, by: Use) -> Result<Measured, Failure> {
        assert!(self.suits(step, by));
        self.with(by, |context| step.run(context))
    }

    /// Does what a step does.
    pub(crate) fn with<T>(&self, by: Use, run: impl FnOnce(&mut StepContext<'_>) -> T) -> T {
        let fake = self.fake(by);
        let mut session = self.fake(by);
        let scratch = tempfile::tempdir().unwrap();
        run(&mut StepContext {
            subject: &fake,
            session: &mut session,
            size: &self.size,
            seed: 1,
            scratch: scratch.path(),
            corpus: &self.corpus(),
            executor: &self.executor,
            deadline: Instant::now() + Duration::from_secs(60),
            server: &(),
            trace_cpu: false,
        })
    }
}

/// The step of that measure.
pub(crate) fn step(workload: &dyn Workload, size: &Size, id: &str) -> Step {
    workload.steps(size).into_iter().find(|step| step.measure.id == id).expect(id)
}

struct Fake<'a> {
    by: Use,
    /// What it shows, if it is a mount.
    shown: PathBuf,
    world: &'a World,
}

impl Subject for Fake<'_> {
    fn info(&self) -> SubjectInfo {
        let (kind, name) = match self.by {
            Use::Mount(_) => ("mount", "fake"),
            Use::Target => ("target", "nfs"),
            Use::Copy(_) => ("copy", "cp"),
            Use::Sftp => ("floor", "sftp-server"),
        };
        SubjectInfo::new(name, kind, "")
    }

    fn storage(&self) -> &dyn Storage {
        &self.world.storage
    }

    fn start(&self, _: &Path, _: &Tuning, _: &Executor) -> Result<Box<dyn Session>, Failure> {
        unreachable!("steps have a session already")
    }
}

impl Session for Fake<'_> {
    fn access(&self) -> Access<'_> {
        match self.by {
            Use::Mount(_) | Use::Target => Access::Directory(&self.shown),
            Use::Copy(_) => Access::Copier(self),
            Use::Sftp => Access::Sftp(&|| Command::new("/usr/lib/openssh/sftp-server")),
        }
    }

    fn forget(&mut self, _executor: &Executor) -> Result<bool, Failure> {
        self.world.forgotten.fetch_add(1, Relaxed);
        Ok(false)
    }
}

impl Copier for Fake<'_> {
    fn copy(&self, direction: Direction, _: bool, stored: &Path, local: &Path) -> Command {
        let Use::Copy(options) = self.by else { unreachable!("it is not a copier") };
        let stored = self.world.storage().join(stored);
        let mut command = Command::new("cp");
        command.arg(options).args(direction.sorted(&*stored, local));
        command
    }
}
