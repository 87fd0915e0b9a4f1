//! `build`: programs compiled with their sources on the subject and their objects on a local disk.
//!
//! Every project is built once from the original; through a subject it has to give the same
//! objects, byte for byte. The objects of the user's own sources may have paths in them: of those
//! the names have to be the same, and the samples are called verified only where the bytes are too.

mod generated;
mod kernel;
mod objects;
mod project;

use std::fs;
use std::path::Path;

use crate::executor::Executor;
use crate::failure::Failure;
use crate::measure::{Cache, Measure, Unit};
use crate::place::{ERRAND_LIMIT, Place};
use crate::results::{LeftOut, Measured};
use crate::size::{Scale, Size};
use crate::step::StepContext;
use crate::subject::Access;

use super::script::check_installed;
use super::{Step, Work};
use objects::Objects;
use project::Project;

/// The work.
pub struct Build;

/// A compiler opens so many files that a slow subject takes ten times as long as a disk.
const DEADLINE_FACTOR: f64 = 10.0;

impl Build {
    /// What is built in a run of that size, and what cannot be though it was asked for.
    fn choose(size: &Size) -> (Vec<Project>, Vec<LeftOut>) {
        if let Some(own) = &size.build_source {
            return match Project::own(own) {
                Ok(project) => (vec![project], Vec::new()),
                Err(left_out) => (Vec::new(), vec![left_out]),
            };
        }
        match (size.scale, kernel::check()) {
            (Scale::Quick, _) => (vec![Project::Generated { modules: 8 }], Vec::new()),
            (_, Err(left_out)) => (vec![Project::Generated { modules: 100 }], vec![left_out]),
            (Scale::Normal, Ok(())) => (vec![Project::KernelLibrary], Vec::new()),
            (Scale::Full, Ok(())) => (vec![Project::KernelLibrary, Project::Kernel], Vec::new()),
        }
    }
}

impl Work for Build {
    fn name(&self) -> &'static str {
        "build"
    }

    fn about(&self) -> &'static str {
        "C programs compiled with sources on the subject and objects on a local disk, and again"
    }

    fn check(&self) -> Result<(), LeftOut> {
        check_installed("build", &[("gcc", "gcc"), ("make", "make")])
    }

    fn lacks(&self, size: &Size) -> Vec<LeftOut> {
        Build::choose(size).1
    }

    fn space(&self, size: &Size) -> (u64, u64) {
        let projects = Build::choose(size).0;
        let sources = projects.iter().map(Project::source_bytes).max().unwrap_or(0);
        (sources, 2 * sources)
    }

    fn make(&self, size: &Size, corpus: &Path, executor: &Executor) -> Result<(), Failure> {
        for project in Build::choose(size).0 {
            let source = corpus.join(project.source());
            if !source.exists() {
                project.make_source(&source, executor)?;
            }
            let objects = corpus.join("build/objects");
            fs::create_dir(&objects)?;
            executor.succeed(project.command(&source, &objects), ERRAND_LIMIT)?;
            Objects::of(&objects)?.save(&corpus.join(project.expected()))?;
            fs::remove_dir_all(&objects)?;
        }
        Ok(())
    }

    fn lay_out(&self, size: &Size, corpus: &Path, place: &dyn Place) -> Result<(), Failure> {
        let mut sources: Vec<&str> = Build::choose(size).0.iter().map(Project::source).collect();
        sources.dedup();
        for source in sources {
            place.put(&corpus.join(source), Path::new(source))?;
        }
        Ok(())
    }

    fn steps(&self, size: &Size) -> Vec<Box<dyn Step>> {
        let mut steps: Vec<Box<dyn Step>> = Vec::new();
        for project in Build::choose(size).0 {
            for cache in [Cache::Cold, Cache::Hot] {
                steps.push(Box::new(BuildStep { project: project.clone(), cache }));
            }
        }
        steps
    }
}

/// One project, from nothing.
struct BuildStep {
    project: Project,
    cache: Cache,
}

impl Step for BuildStep {
    fn measure(&self) -> Measure {
        let (id, title) = match self.cache {
            Cache::Hot => ("again", "again from nothing"),
            _ => ("cold", "the first time"),
        };
        Measure {
            id: format!("build.{}.{id}", self.project.id()),
            title: format!("build of {}, {title}", self.project.title()),
            unit: Unit::Seconds,
            cache: self.cache,
        }
    }

    fn deadline_factor(&self) -> f64 {
        DEADLINE_FACTOR
    }

    fn suits(&self, access: &Access<'_>) -> bool {
        matches!(access, Access::Directory(_))
    }

    fn run(&self, context: &mut StepContext<'_>) -> Result<Measured, Failure> {
        let Access::Directory(dir) = context.access() else {
            return Err(Failure::failed("it has no directory to build from"));
        };
        let objects = context.scratch.join("objects");
        fs::create_dir(&objects)?;
        let command = self.project.command(&dir.join(self.project.source()), &objects);
        let (_, mut measured) = context.timed(command)?;
        let expected = Objects::load(&context.corpus.join(self.project.expected()))?;
        let exact = self.project.is_reproducible();
        measured.verified = expected.check(&Objects::of(&objects)?, exact)?;
        measured.value = measured.seconds;
        measured.operations = expected.count();
        Ok(measured)
    }
}

#[cfg(test)]
mod tests;
