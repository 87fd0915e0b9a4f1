//! The subjects that were asked for, made from their names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::executor::Executor;
use crate::server::Server;
use crate::subject::catalog::{self, Setting, Spec};
use crate::subject::mounted::Mounted;
use crate::subject::{START_LIMIT, Subject};

use super::admission::Candidate;
use super::request::USUAL_PEER;
use super::{Refusal, Request};

/// This program, as `--subject NAME=COMMAND` names it.
const OURS: &str = "sshoal";

/// What was asked for, without a server.
pub(super) struct Wanted {
    specs: Vec<Spec>,
    commands: Vec<(String, Vec<String>)>,
}

/// Understands the names and command lines.
pub(super) fn understand(request: &Request) -> Result<Wanted, Refusal> {
    let ours = if request.ours { OURS } else { "" };
    let peers = request.peers.as_deref().unwrap_or(USUAL_PEER);
    let specs = catalog::parse(&format!("{ours},{peers}"))
        .map_err(|unknown| Refusal::UnknownSubject { why: unknown.to_string() })?;
    let mut commands = Vec::new();
    for (name, line) in &request.commands {
        let words = shlex::split(line).filter(|words| !words.is_empty());
        let words = words.ok_or_else(|| Refusal::Unusable {
            name: name.clone(),
            why: format!("not a command line: {}", line.escape_debug()),
            remedy: Some("a quote has to be closed".to_owned()),
        })?;
        commands.push((name.clone(), words));
    }
    Ok(Wanted { specs, commands })
}

/// Makes them.
pub(super) fn make(
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
        let subject = spec.make(&setting).map_err(|failure| Refusal::Directory {
            path: scratch.to_owned(),
            why: failure.to_string(),
        })?;
        let described = spec.is_sshoal();
        candidates.push(Candidate { subject: subject.into(), described });
    }
    for (name, mut words) in wanted.commands {
        let program = match words.remove(0) {
            word if word == OURS => request.program.clone(),
            word => PathBuf::from(word),
        };
        let subject = Mounted::new(name, program, words, Arc::clone(server), setting.start_limit);
        candidates.push(Candidate { subject: Arc::new(subject), described: true });
    }
    // With a host there is no page cache of a server on this machine that could be dropped.
    let local_server = request.host.is_none().then(|| Arc::clone(server));
    for (name, dir) in &request.targets {
        let target = crate::subject::target(name, dir, local_server.clone(), executor);
        let subject: Arc<dyn Subject> = Arc::new(target.map_err(Refusal::from_left_out)?);
        candidates.push(Candidate { subject, described: true });
    }
    Ok(candidates)
}
