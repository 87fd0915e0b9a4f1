//! From a request to a plan.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::environment;
use crate::executor::Executor;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::results::{Environment, Settings};
use crate::run::Scratch;
use crate::server::Server;
use crate::subject::Subject;
use crate::workload;

use super::{Plan, Refusal, Request, admission, candidates, check};

/// Checks a request, and starts the server.
///
/// # Errors
/// What is wrong with the request; then nothing was measured, and nothing is left behind.
pub fn prepare(
    request: &Request,
    executor: &Executor,
    progress: &mut Progress,
) -> Result<Plan, Refusal> {
    trees(request)?;
    let size = request.size();
    let mut left_out = Vec::new();
    let works = admission::works(request.works.as_deref(), workload::all(), &size, &mut left_out)?;
    let wanted = candidates::understand(request)?;
    let scratch = Scratch::new(&request.scratch).map_err(|error| Refusal::Directory {
        path: request.scratch.clone(),
        why: error.to_string(),
    })?;
    let server = Arc::new(start_server(request, scratch.path(), executor, progress)?);
    progress.prepare("looking at the subjects");
    let candidates = candidates::make(wanted, request, &server, scratch.path(), executor)?;
    let mut subjects = admission::subjects(candidates, &mut left_out, executor)?;
    let control = request.control;
    let reference = admission::reference(&mut subjects, request.reference.as_deref(), control)?;
    check(&size, &works, subjects.iter().map(|subject| subject.storage()), scratch.path())?;
    Ok(Plan {
        settings: Settings {
            command: request.command.clone(),
            size: size.scale.name().to_owned(),
            rounds: request.rounds(),
            works: works.iter().map(|workload| workload.name().to_owned()).collect(),
            reference,
            deadline_s: request.deadline().as_secs_f64(),
            seed: request.seed,
        },
        deadline: request.deadline(),
        program: request.version.clone(),
        environment: environment(scratch.path(), &server, executor, &subjects),
        link: server.link_report(),
        server_usage: Arc::new(move || server.usage()),
        subjects,
        works,
        size,
        left_out,
        scratch,
    })
}

/// Checks the user's own trees, for which no other tree is substituted.
fn trees(request: &Request) -> Result<(), Refusal> {
    for path in [&request.tree, &request.build_tree].into_iter().flatten() {
        let found = fs::metadata(path).and_then(|found| match found.is_dir() {
            true => Ok(()),
            false => Err(io::ErrorKind::NotADirectory.into()),
        });
        found.map_err(|error| Refusal::Directory { path: path.clone(), why: error.to_string() })?;
    }
    Ok(())
}

/// The private server, or the host that was named.
///
/// # Errors
/// In the server's, or ssh's, own words.
pub fn start_server(
    request: &Request,
    scratch: &Path,
    executor: &Executor,
    progress: &mut Progress,
) -> Result<Server, Refusal> {
    let Some(host) = &request.host else {
        progress.prepare("starting the server");
        return Server::private(&request.link, scratch)
            .map(|server| server.with_executor(executor))
            .map_err(|failure| refused("private server", &failure));
    };
    progress.prepare("connecting to the host");
    let what = format!("host '{}'", host.destination.escape_debug());
    let config = host.ssh_config(scratch).map_err(|failure| refused(&what, &failure))?;
    Server::host(&host.destination, host.directory.as_deref(), config.as_deref(), executor)
        .map_err(|failure| refused(&what, &failure))
}

fn refused(what: &str, failure: &Failure) -> Refusal {
    match failure {
        Failure::Interrupted => Refusal::Interrupted,
        _ => Refusal::NoServer { what: what.to_owned(), why: failure.to_string() },
    }
}

fn environment(
    scratch: &Path,
    server: &Server,
    executor: &Executor,
    subjects: &[Arc<dyn Subject>],
) -> Environment {
    let mut environment = environment::gather(scratch, server, executor);
    for info in subjects.iter().map(|subject| subject.info()) {
        let known = environment.versions.iter().any(|(name, _)| *name == info.name);
        if info.control_of.is_none() && !known {
            environment.versions.push((info.name, info.version));
        }
    }
    environment
}
