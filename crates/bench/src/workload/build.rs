//! `build`: programs compiled with their sources on the subject and their objects on a local disk.
//!
//! Every project is built once from the original; through a subject it has to give the same
//! objects, byte for byte. The objects of the user's own sources may have paths in them: of those
//! the names have to be the same, and the samples are called verified only where the bytes are too.
//!
//! A subject with a cache on the disk also builds after it was mounted anew, with what the builds
//! before have left in that cache.

mod generated;
mod project;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::corpus::digest_file;
use crate::corpus::tree::files;
use crate::executor::Executor;
use crate::failure::{Failure, Result};
use crate::measure::{Cache, Unit};
use crate::results::{LeftOut, Measured};
use crate::size::{Projects, Scale, Size};
use crate::step::StepContext;
use crate::storage::SCRIPT_LIMIT;

use super::copying::{load, save};
use super::{DIRECTORY, Step, Workload, keeps_a_disk_cache, measure};
use project::{Project, check_kernel};

/// The workload.
pub struct Build;

/// A compiler opens so many files that a slow subject takes ten times as long as a disk.
const DEADLINE_FACTOR: f64 = 10.0;

impl Build {
    /// The projects of a run, and those that cannot be built here.
    fn choose(size: &Size) -> (Vec<Project>, Vec<LeftOut>) {
        if let Some(own) = &size.build_source {
            return match Project::own(own) {
                Ok(project) => (vec![project], Vec::new()),
                Err(left_out) => (Vec::new(), vec![left_out]),
            };
        }
        let generated = Project::generated;
        if let Projects::Two { smaller, larger } = size.projects {
            let projects = vec![generated("smaller", smaller), generated("larger", larger)];
            return (projects, Vec::new());
        }
        match (size.scale, check_kernel()) {
            (Scale::Quick, _) => (vec![generated("generated", 8)], Vec::new()),
            (_, Err(left_out)) => (vec![generated("generated", 100)], vec![left_out]),
            (Scale::Normal, Ok(())) => (vec![Project::kernel(false)], Vec::new()),
            (Scale::Full, Ok(())) => ([false, true].map(Project::kernel).into(), Vec::new()),
        }
    }
}

impl Workload for Build {
    fn name(&self) -> &'static str {
        "build"
    }

    fn about(&self) -> &'static str {
        "C programs compiled with sources on the subject and objects on a local disk, and again"
    }

    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[("gcc", "gcc"), ("make", "make")]
    }

    fn lacks(&self, size: &Size) -> Vec<LeftOut> {
        Build::choose(size).1
    }

    fn space(&self, size: &Size) -> (u64, u64) {
        let mut projects = Build::choose(size).0;
        projects.dedup_by_key(|project| project.source());
        let sources = projects.iter().map(Project::source_bytes).sum();
        (sources, 2 * sources)
    }

    fn make(&self, size: &Size, corpus: &Path, executor: &Executor) -> Result<()> {
        for project in Build::choose(size).0 {
            let source = corpus.join(project.source());
            if !source.exists() {
                project.make_source(&source, executor)?;
            }
            let objects = corpus.join("build/objects");
            fs::create_dir(&objects)?;
            executor.succeed(project.command(&source, &objects, size.jobs), SCRIPT_LIMIT)?;
            Objects::of(&objects)?.save(&corpus.join(project.expected()))?;
            fs::remove_dir_all(&objects)?;
        }
        Ok(())
    }

    fn data(&self, size: &Size) -> Vec<PathBuf> {
        let projects = Build::choose(size).0;
        let mut sources: Vec<_> = projects.iter().map(Project::source).collect();
        sources.dedup();
        sources
    }

    fn steps(&self, size: &Size) -> Vec<Step> {
        let mut steps = Vec::new();
        for project in Build::choose(size).0 {
            let step = |id, title, cache| {
                let id = format!("{}.{id}", project.id);
                let title = format!("build of {}, {title}", project.title);
                let measure = measure("build", &id, &title, Unit::Seconds, cache);
                let project = project.clone();
                let step = Step::new(measure, DIRECTORY, move |context| build(context, &project));
                step.with_deadline(DEADLINE_FACTOR)
            };
            let remounted =
                step("remounted", "again, mounted anew, its cache on the disk kept", Cache::Cold);
            steps.extend([
                step("cold", "the first time", Cache::Cold),
                step("again", "again from nothing", Cache::Hot),
                remounted.with_disk_cache().only_for(keeps_a_disk_cache),
            ]);
        }
        steps
    }
}

/// Builds a project in an empty directory.
fn build(context: &mut StepContext<'_>, project: &Project) -> Result<Measured> {
    let objects = context.scratch.join("objects");
    fs::create_dir(&objects)?;
    let source = context.directory()?.join(project.source());
    let command = project.command(&source, &objects, context.size.jobs);
    let (_, measured) = context.timed(command)?;
    let expected: Objects = load(&context.corpus.join(project.expected()))?;
    let exact = project.is_reproducible();
    let verified = expected.check(&Objects::of(&objects)?, exact)?;
    let operations = expected.count();
    Ok(Measured { operations, verified, ..measured })
}

/// Path below the directory of objects → SHA-256.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Objects(BTreeMap<String, String>);

impl Objects {
    /// The objects below `dir`, without those for the build's own use (`scripts`), which contain
    /// paths.
    fn of(dir: &Path) -> io::Result<Objects> {
        let mut found = BTreeMap::new();
        for path in files(dir)? {
            let name = path.strip_prefix(dir).unwrap_or(&path);
            let is_object = path.extension().is_some_and(|extension| extension == "o");
            if is_object && !name.starts_with("scripts") {
                found.insert(name.to_string_lossy().into_owned(), digest_file(&path)?);
            }
        }
        Ok(Objects(found))
    }

    fn count(&self) -> u64 {
        self.0.len() as u64
    }

    fn save(&self, file: &Path) -> Result<()> {
        if self.0.is_empty() {
            return Err(Failure::failed("the build of the original has made no object files"));
        }
        save(self, file)
    }

    /// Compares built objects with these, which were built from the original. Returns whether all
    /// bytes are equal; with `exact`, any difference is a failure.
    fn check(&self, built: &Objects, exact: bool) -> Result<bool> {
        let wrong =
            |name: &str, why: &str| Err(Failure::wrong(format!("{} {why}", name.escape_debug())));
        if let Some(missing) = self.0.keys().find(|&name| !built.0.contains_key(name)) {
            return wrong(missing, "was not built");
        }
        if let Some(added) = built.0.keys().find(|&name| !self.0.contains_key(name)) {
            return wrong(added, "was built, and is not when the original is");
        }
        match self.0.iter().find(|&(name, digest)| built.0[name] != *digest) {
            None => Ok(true),
            Some(_) if !exact => Ok(false),
            Some((name, _)) => wrong(name, "is not like the object built from the original"),
        }
    }
}

#[cfg(test)]
mod tests;
