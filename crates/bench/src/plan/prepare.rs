//! From a request to a plan.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::environment;
use crate::executor::Executor;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::results::{Environment, LeftOut, Results, Settings, SubjectInfo};
use crate::run::Scratch;
use crate::server::{self, Server};
use crate::size::Size;
use crate::step::ServerMeter;
use crate::storage::Storage;
use crate::subject::catalog::{self, Setting, Spec, nearest};
use crate::subject::mounted::Mounted;
use crate::subject::{START_LIMIT, Subject, target};
use crate::units::binary_size;
use crate::workload::{self, Step, Workload};

use super::request::{USUAL_PEER, usual_reference};
use super::{Control, Plan, Refusal, Request};

/// This program, as `--subject NAME=COMMAND` names it.
const OURS: &str = "sshoal";

/// Free space beside the workloads' own data: for logs, caches of peers, and other programs.
const MARGIN_BYTES: u64 = 64 << 20;

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
    let mut works = works(request.works.as_deref(), workload::all(), &size, &mut left_out)?;
    let wanted = understand(request)?;
    let scratch = Scratch::new(&request.scratch)
        .map_err(|error| Refusal::directory(&request.scratch, error))?;
    let server = Arc::new(start_server(request, scratch.path(), executor, progress)?);
    progress.prepare("looking at the subjects");
    let candidates = make(wanted, request, &server, scratch.path(), executor)?;
    let mut subjects = admit(candidates, &mut left_out, executor)?;
    if server.second_link().is_none() {
        without_second_link(&mut works, &size, &subjects, &mut left_out)?;
    }
    let asked = request.reference.as_deref();
    let reference = reference(&mut subjects, asked, !request.without_control)?;
    check_space(&size, &works, subjects.iter().map(|subject| subject.storage()), scratch.path())?;
    let settings = Settings {
        command: request.command.clone(),
        size: size.scale.name().to_owned(),
        rounds: request.rounds(),
        works: works.iter().map(|workload| workload.name().to_owned()).collect(),
        reference,
        deadline_s: request.deadline().as_secs_f64(),
        seed: request.seed,
        repeats: request.repeats.map(|published| published.name.to_owned()),
        factor: request.factor,
        quantities: works.iter().flat_map(|workload| size.quantities(workload.name())).collect(),
    };
    Ok(Plan {
        results: Results {
            program: request.version.clone(),
            environment: environment(scratch.path(), &server, executor, &subjects),
            link: server.link_report(),
            settings,
            left_out,
            ..Results::default()
        },
        deadline: request.deadline(),
        server,
        trace_cpu: request.trace_cpu,
        subjects,
        works,
        size,
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
        found.map_err(|error| Refusal::directory(path, error))?;
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
    let (what, started) = match &request.host {
        None => {
            progress.prepare("starting the server");
            let link = request.link.clone().unwrap_or_default();
            // sshd may not offer a requested cipher by default.
            let settings = request.ciphers.as_ref().map(|_| server::all_ciphers(executor));
            let server = settings.transpose().and_then(|settings| {
                Server::private(&link, settings.into_iter().collect(), scratch)
            });
            ("private server".to_owned(), server.map(|server| server.with_executor(executor)))
        }
        Some(host) => {
            progress.prepare("connecting to the host");
            let start = || {
                let config = host.config.as_ref().map(|file| {
                    let failed = |error| format!("ssh's configuration {file:?}: {error}");
                    file.canonicalize().map_err(|error| Failure::failed(failed(error)))
                });
                let (config, directory) = (config.transpose()?, host.directory.as_deref());
                Server::host(&host.destination, directory, config.as_deref(), host.port, executor)
            };
            (format!("host '{}'", host.destination.escape_debug()), start())
        }
    };
    started.map_err(|failure| match failure {
        Failure::Interrupted => failure.into(),
        failure => Refusal::new(format!("{what}: {failure}")),
    })
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

/// What was asked for, without a server.
pub(super) struct Wanted {
    specs: Vec<Spec>,
    commands: Vec<(String, Vec<String>)>,
}

/// Understands the names and command lines.
pub(super) fn understand(request: &Request) -> Result<Wanted, Refusal> {
    let ours = if request.without_ours { "" } else { OURS };
    let peers = request.peers.as_deref().unwrap_or(USUAL_PEER);
    let specs = catalog::parse(&format!("{ours},{peers}"))
        .map_err(|unknown| Refusal::new(unknown.to_string()))?;
    let mut commands = Vec::new();
    for (name, line) in &request.commands {
        let words = shlex::split(line).filter(|words| !words.is_empty());
        let words = words.ok_or_else(|| {
            LeftOut::new(name, format!("not a command line: {}", line.escape_debug()))
                .with_remedy("a quote has to be closed")
        })?;
        commands.push((name.clone(), words));
    }
    Ok(Wanted { specs, commands })
}

/// Makes the subjects.
fn make(
    wanted: Wanted,
    request: &Request,
    server: &Arc<Server>,
    scratch: &Path,
    executor: &Executor,
) -> Result<Vec<Candidate>, Refusal> {
    let setting = Setting {
        server: Arc::clone(server),
        sshoal: request.program.clone(),
        scratch: scratch.to_owned(),
        start_limit: START_LIMIT.min(request.deadline()),
    };
    let mut candidates = Vec::new();
    for spec in wanted.specs {
        let subject = spec.make(&setting).map_err(|why| Refusal::directory(scratch, why))?;
        candidates.push(Candidate { subject: subject.into(), described: spec.is_required() });
    }
    for (name, mut words) in wanted.commands {
        let program = match words.remove(0) {
            word if word == OURS => request.program.clone(),
            word => PathBuf::from(word),
        };
        let subject = Mounted::new(name, program, words, Arc::clone(server), setting.start_limit);
        candidates.push(Candidate { subject: Arc::new(subject), described: true });
    }
    for (name, script) in &request.copiers {
        let subject = catalog::given(name, script, &setting).into();
        candidates.push(Candidate { subject, described: true });
    }
    // With a host there is no page cache of a server on this machine that could be dropped.
    let local_server = request.host.is_none().then(|| Arc::clone(server));
    for (name, dir) in &request.targets {
        let target = target(name, dir, local_server.clone(), executor)?;
        candidates.push(Candidate { subject: Arc::new(target), described: true });
    }
    Ok(candidates)
}

/// A subject that was asked for.
pub(super) struct Candidate {
    pub(super) subject: Arc<dyn Subject>,
    /// Described by the user: if it cannot be measured that is a mistake. A well-known one that is
    /// not installed is only left out.
    pub(super) described: bool,
}

/// Those that can be measured; the others that may be left out are.
pub(super) fn admit(
    candidates: Vec<Candidate>,
    left_out: &mut Vec<LeftOut>,
    executor: &Executor,
) -> Result<Vec<Arc<dyn Subject>>, Refusal> {
    let mut admitted: Vec<Arc<dyn Subject>> = Vec::new();
    let mut names: Vec<String> = Vec::new();
    for Candidate { subject, described } in candidates {
        let name = subject.info().name;
        if names.contains(&name) {
            let why = format!("subject '{}': asked for twice", name.escape_debug());
            return Err(Refusal::new(why).with_hint("give one of them another name"));
        }
        names.push(name);
        match subject.check(executor) {
            Ok(()) => admitted.push(subject),
            Err(_) if executor.is_interrupted() => return Err(Failure::Interrupted.into()),
            Err(reason) if described => return Err(reason.into()),
            Err(reason) => left_out.push(reason),
        }
    }
    if admitted.is_empty() { Err(no_subject()) } else { Ok(admitted) }
}

/// The workloads asked for, in the order of `all`; those that cannot be done here are left out, if
/// that leaves any.
pub(super) fn works(
    asked: Option<&[String]>,
    all: Vec<Box<dyn Workload>>,
    size: &Size,
    left_out: &mut Vec<LeftOut>,
) -> Result<Vec<Box<dyn Workload>>, Refusal> {
    for name in asked.unwrap_or_default() {
        if !all.iter().any(|workload| workload.name() == name) {
            let why = format!("work '{}': there is no such work", name.escape_debug());
            let near = nearest(name, all.iter().map(|workload| workload.name()));
            return Err(Refusal::new(why).with_hint(match near {
                Some(near) => format!("did you mean '{near}'?"),
                None => "`sshoal bench --list` shows all".to_owned(),
            }));
        }
    }
    let mut works = Vec::new();
    let mut missing = Vec::new();
    for workload in all {
        if asked.is_some_and(|names| !names.iter().any(|name| name == workload.name())) {
            continue;
        }
        match workload.check() {
            // All of it is lacking.
            Ok(()) if workload.steps(size).is_empty() => missing.extend(workload.lacks(size)),
            Ok(()) => {
                left_out.extend(workload.lacks(size));
                works.push(workload);
            }
            Err(reason) => missing.push(reason),
        }
    }
    left_out_of(&works, missing, left_out)?;
    Ok(works)
}

/// Leaves out what is missing, if works are left.
fn left_out_of(
    works: &[Box<dyn Workload>],
    missing: Vec<LeftOut>,
    left_out: &mut Vec<LeftOut>,
) -> Result<(), Refusal> {
    if works.is_empty() {
        let reasons = missing.iter().map(|reason| format!("{}: {}", reason.name, reason.why));
        let mut why = reasons.collect::<Vec<_>>().join("; ");
        if why.is_empty() {
            "none was named".clone_into(&mut why);
        }
        return Err(Refusal::new(format!("no work is left to do: {why}")));
    }
    left_out.extend(missing);
    Ok(())
}

/// Leaves out the works that break the second link, if they concern a subject.
pub(super) fn without_second_link(
    works: &mut Vec<Box<dyn Workload>>,
    size: &Size,
    subjects: &[Arc<dyn Subject>],
    left_out: &mut Vec<LeftOut>,
) -> Result<(), Refusal> {
    let mut missing = Vec::new();
    works.retain(|workload| {
        let concerns = |step: &Step| subjects.iter().any(|subject| step.concerns(&subject.info()));
        if !workload.needs_second_link() || !workload.steps(size).iter().any(concerns) {
            return true;
        }
        let reason = LeftOut::new(workload.name(), "it needs a simulated link");
        missing.push(reason.with_remedy("--link lan"));
        false
    });
    left_out_of(works, missing, left_out)
}

/// Chooses the subject to which ratios are given, and adds its control; the reference's name.
pub(super) fn reference(
    subjects: &mut Vec<Arc<dyn Subject>>,
    asked: Option<&str>,
    with_control: bool,
) -> Result<String, Refusal> {
    let infos: Vec<SubjectInfo> = subjects.iter().map(|subject| subject.info()).collect();
    let name = match asked {
        Some(name) => name,
        None => usual_reference(&infos).ok_or_else(no_subject)?,
    };
    let Some(number) = infos.iter().position(|info| info.name == name) else {
        let subjects: Vec<&str> = infos.iter().map(|info| info.name.as_str()).collect();
        return Err(Refusal::new(format!(
            "reference '{}': not among the subjects: {}",
            name.escape_debug(),
            subjects.join(", ")
        )));
    };
    if with_control {
        let control = Control(Arc::clone(&subjects[number]));
        subjects.push(Arc::new(control));
    }
    Ok(name.to_owned())
}

fn no_subject() -> Refusal {
    Refusal::new("no subject is left to measure")
}

/// Checks the scratch directory, and each storage once. Places that are in the scratch directory
/// share its room.
pub(super) fn check_space<'a>(
    size: &Size,
    works: &[Box<dyn Workload>],
    places: impl Iterator<Item = &'a dyn Storage>,
    scratch: &Path,
) -> Result<(), Refusal> {
    let needs: Vec<(u64, u64)> = works.iter().map(|workload| workload.space(size)).collect();
    let in_place: u64 = needs.iter().map(|need| need.0).sum();
    let mut in_scratch: u64 = needs.iter().map(|need| need.1).sum();
    let mut seen: Vec<&str> = Vec::new();
    for storage in places {
        if seen.contains(&storage.name()) {
            continue;
        }
        seen.push(storage.name());
        if storage.local().is_some_and(|dir| dir.starts_with(scratch)) {
            in_scratch += in_place;
            continue;
        }
        let unknown = |why| format!("its free space is not known: {why}");
        let free = storage.free_bytes();
        let free = free.map_err(|why| LeftOut::new(storage.name(), unknown(why)))?;
        require(storage.name(), free, in_place)?;
    }
    let stat = rustix::fs::statvfs(scratch).map_err(io::Error::from);
    let stat = stat.map_err(|error| Refusal::directory(scratch, error))?;
    let parent = scratch.parent().unwrap_or(scratch);
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    require(&format!("scratch directory {parent:?}"), free, in_scratch)
}

fn require(storage: &str, free: u64, needed: u64) -> Result<(), Refusal> {
    let needed = needed.saturating_add(MARGIN_BYTES);
    if free >= needed {
        return Ok(());
    }
    let (free, needed) = (binary_size(free), binary_size(needed));
    Err(Refusal::new(format!("{storage}: {free} are free, and the works need {needed}"))
        .with_hint("--scratch DIR on a larger disk, or a smaller --size, or fewer --work"))
}
