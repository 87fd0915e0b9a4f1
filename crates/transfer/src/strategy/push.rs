//! A push: from this machine to a server. See the steps of the [module](super).

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Errno, FileKind, Name, RemotePath};

use super::context::{Connected, Context, Remains, length};
use super::operand::{LocalOperand, path_in, printable};
use super::results::Results;
use super::stage::Completion;
use super::{CopyError, Halt};
use crate::job::{Job, below};
use crate::plan::Ahead;
use crate::tar::by_name::{ByName, StreamsByName};
use crate::tar::listing::{Listing, SftpLogin};
use crate::tar::{Declined, Push, ReusableLogin, Streamed, Streaming};

/// Links that are followed to the target, at most.
const MAX_LINKS: usize = 40;

pub(super) struct Pushing<'a> {
    context: &'a Context,
    results: &'a mut Results,
    /// The target, relative to the directory of its operand.
    target: RemotePath,
    /// What each source becomes, relative to the target.
    to: Vec<RemotePath>,
    /// What is listed of the only source.
    ahead: Option<Arc<Ahead>>,
    /// Some source was streamed to its name, or its stream declined.
    is_tried: bool,
    connected: Option<Connected>,
    /// How long the connected server took to answer.
    round_trip: Duration,
    /// What a login has listed for the source of this number.
    listing: Option<(usize, Listing)>,
}

impl<'a> Pushing<'a> {
    pub(super) fn new(context: &'a Context, results: &'a mut Results) -> Pushing<'a> {
        let request = &context.request;
        let ahead = match &request.local[..] {
            [only] => context.list_ahead(&only.directory, only.relative()),
            _ => None,
        };
        Pushing {
            context,
            results,
            target: request.remote[0].path(),
            to: request.local.iter().map(LocalOperand::relative).collect(),
            ahead,
            is_tried: false,
            connected: None,
            round_trip: Duration::ZERO,
            listing: None,
        }
    }

    pub(super) async fn run(mut self) -> Result<(), Halt> {
        let context = self.context;
        // What remains of the only source, if the stream to the new name has decided that.
        let mut resolved = None;
        let new_name = self.new_name();
        let is_followed = new_name.is_some();
        if let Some(name) = new_name {
            // Patterns match the names of the sources.
            if context.request.options.filter.excludes(&self.to[0], false) {
                return Ok(());
            }
            let (remains, login) = self.stream_to(&name).await?;
            if let Some(Remains::Nothing) = remains {
                return Ok(());
            }
            resolved = self.resolve(&name, remains, login).await?;
        }
        let (mut stages, mut rest) = (Vec::new(), Vec::new());
        for index in 0..self.to.len() {
            let remains = match resolved.take() {
                Some(remains) => remains,
                None => self.stream(index).await?,
            };
            match remains {
                Remains::Nothing => {}
                Remains::Stage(stage) => stages.push((index, stage)),
                Remains::Rest => rest.push(index),
            }
        }
        if rest.is_empty() && stages.is_empty() {
            return Ok(());
        }
        let connected = match self.connected.take() {
            Some(connected) => connected,
            None => self.connect().await?,
        };
        if !is_followed && !self.target.is_root() {
            self.follow_target(&connected).await?;
        }
        for (index, stage) in stages {
            let by_name = self.streams_by_names(&connected, 1);
            let source = (index, &self.to[index]);
            let completion = Completion::new(context, &connected, &self.target, source, stage)?;
            if completion.run(by_name, self.results).await? {
                rest.push(index);
            }
        }
        if rest.is_empty() || self.results.is_stopped() {
            return Ok(());
        }
        let by_name = self.streams_by_names(&connected, rest.len());
        let source = |index: &usize| context.local_source(*index, self.to[*index].clone());
        let mut sources = rest.iter().map(source).collect::<Result<Vec<_>, _>>()?;
        sources[0].tree.ahead = self.ahead.take();
        let mut target = connected.tree(self.target.clone());
        target.ahead = self.listing.take().map(|(index, listing)| {
            // What streams have copied meanwhile has other names.
            Arc::new(listing.ahead(&target.path_of(&self.to[index])))
        });
        let job = Job { sources, target, options: context.options_for(0, &self.to[0]) };
        context.run(job, by_name, None, self.results).await?;
        Ok(())
    }

    /// The new name that the only source, a file, gets if there is no directory of that name.
    fn new_name(&self) -> Option<Name> {
        let request = &self.context.request;
        let [only] = &request.local[..] else { return None };
        let may_be = only.name.is_some()
            && !request.target_is_directory
            && only.path().symlink_metadata().is_ok_and(|it| !it.is_dir());
        request.remote[0].operand.name.clone().filter(|_| may_be)
    }

    /// Streams the only source to the new name. If the name is free, this login is the only one.
    /// Returns what remains, if that is decided, and the login that is left.
    async fn stream_to(
        &mut self,
        name: &Name,
    ) -> Result<(Option<Remains>, Option<SftpLogin>), Halt> {
        let only = &self.context.request.local[0];
        let to = RemotePath::from_names([name]);
        let Ok((directory, stream_name)) = self.stream_place(only, &RemotePath::root(), &to) else {
            return Ok((None, None));
        };
        let Some(shell) = self.context.shell(0)? else { return Ok((None, None)) };
        let path = only.path();
        let push = Push { path, directory, may_make: false, name: stream_name, to };
        // The name may be that of a directory, and its contents need no listing.
        let reusable_login = ReusableLogin::default();
        let streaming = self.context.streaming(shell, (0, &push.to), Some(&reusable_login));
        let remains = match self.push(&streaming, &push).await? {
            // It is decided when it is known what has the name.
            Some(Streamed::Declined(Declined::Occupied)) => None,
            Some(Streamed::Declined(Declined::Slower(round_trip))) => {
                self.context.start_sessions_for(round_trip);
                None
            }
            streamed => Some(self.note_stream(streamed)?),
        };
        Ok((remains, reusable_login.take()))
    }

    /// Connects, and checks whether the target is a directory. Returns what remains of the only
    /// source, if that is decided.
    async fn resolve(
        &mut self,
        name: &Name,
        remains: Option<Remains>,
        login: Option<SftpLogin>,
    ) -> Result<Option<Remains>, Halt> {
        let connecting = self.context.connect(0, login);
        let connecting = self.context.with_sessions_ahead(connecting, std::future::pending());
        let connected = connecting.await?;
        let remote = &connected.connection.remote;
        let since = Instant::now();
        let mut at_target = self.context.unless_stopped(remote.lstat(&self.target)).await?;
        self.round_trip = since.elapsed();
        if at_target.is_ok_and(|attr| attr.kind == FileKind::Symlink) {
            self.follow_target(&connected).await?;
            at_target = self.context.unless_stopped(remote.lstat(&self.target)).await?;
        }
        let is_directory = at_target.is_ok_and(|attr| attr.kind == FileKind::Directory);
        let remains = match remains {
            // The directory was made meanwhile: the file is copied into it.
            Some(Remains::Stage(stage)) if is_directory => {
                if stage.is_own {
                    let stage = RemotePath::from_names([&stage.stage]);
                    let removed = self.context.unless_stopped(remote.unlink(&stage)).await?;
                    tracing::debug!("'{stage}' is not needed: {removed:?}");
                }
                Some(Remains::Rest)
            }
            remains => remains,
        };
        if !is_directory {
            self.to[0] = RemotePath::from_names([name]);
            self.target = RemotePath::root();
        }
        self.connected = Some(connected);
        Ok(remains)
    }

    /// The user has named the target, so a link to a directory is that directory.
    async fn follow_target(&mut self, connected: &Connected) -> Result<(), Halt> {
        let context = self.context;
        context.unless_stopped(self.follow_links(connected)).await?
    }

    async fn follow_links(&mut self, connected: &Connected) -> Result<(), Halt> {
        let remote = &connected.connection.remote;
        let mut target = self.target.clone();
        for _ in 0..MAX_LINKS {
            match remote.lstat(&target).await {
                Ok(attr) if attr.kind == FileKind::Symlink => {}
                Ok(attr) if attr.is_dir() => {
                    self.target = target;
                    return Ok(());
                }
                // A file that is pushed replaces the link.
                _ => return Ok(()),
            }
            let Ok(to) = remote.readlink(&target).await else { return Ok(()) };
            target = match led_to(&connected.directory, &target, &to) {
                Some(next) => next,
                // The server follows it here.
                None => match remote.opendir(&target).await {
                    Ok(dir) => {
                        remote.closedir(dir);
                        return Err(Halt::TargetLeadsOut);
                    }
                    Err(_) => return Ok(()),
                },
            };
        }
        Ok(())
    }

    /// Streams a source, if that is possible and faster than a session.
    async fn stream(&mut self, index: usize) -> Result<Remains, Halt> {
        let operand = &self.context.request.local[index];
        let is_dir = operand.path().symlink_metadata().is_ok_and(|it| it.is_dir());
        let to = &self.to[index];
        if self.context.options_for(index, to).filter.excludes(to, is_dir) {
            return Ok(Remains::Rest);
        }
        let (directory, name) = match self.stream_place(operand, &self.target, &self.to[index]) {
            Ok(place) => place,
            Err(why) => {
                self.context.require_any_stream(&self.context.request.remote[0], &why)?;
                return Ok(Remains::Rest);
            }
        };
        if let Some(connected) = &self.connected {
            let path = below(&self.target, &self.to[index]);
            let seen = connected.connection.remote.lstat(&path);
            if self.context.unless_stopped(seen).await?.is_ok() {
                let occupied = Streamed::Declined(Declined::Occupied);
                return Ok(self.note_stream(Some(occupied))?);
            }
        }
        let path = match &operand.name {
            Some(_) => operand.path(),
            // The directory, also if a link leads to it.
            None => operand.directory.join("."),
        };
        let is_file = path.symlink_metadata().is_ok_and(|it| it.is_file());
        if self.connected.is_some()
            && is_file
            && self.context.prefers_session(length(&path), self.round_trip)
        {
            let note = "no stream by tar: the session that is there is sooner done";
            self.results.note(note.to_owned());
            return Ok(Remains::Rest);
        }
        if self.context.prefers_sessions(length(&path), self.round_trip) {
            let slower = Streamed::Declined(Declined::Slower(self.round_trip));
            return Ok(self.note_stream(Some(slower))?);
        }
        self.is_tried = true;
        let Some(shell) = self.context.shell(0)? else { return Ok(Remains::Rest) };
        let to = self.to[index].clone();
        // Only the directory that the user has named as the target is made.
        let may_make = !self.target.is_root() && !to.is_root();
        let push = Push { path, directory, may_make, name, to };
        let reusable_login = self.context.reusable_login();
        let streaming = self.context.streaming(shell, (index, &push.to), Some(&reusable_login));
        let streamed = self.push(&streaming, &push).await?;
        let remains = self.note_stream(streamed)?;
        if let Some(login) = reusable_login.take().filter(|_| self.connected.is_none()) {
            let mut connected = self.context.connect(0, Some(login)).await?;
            self.listing = connected.listing.take().map(|listing| (index, listing));
            self.connected = Some(connected);
        }
        Ok(remains)
    }

    /// Connects, where no stream has left a login.
    async fn connect(&mut self) -> Result<Connected, Halt> {
        match &self.to[..] {
            // All that is in the directory itself may be much more than is pushed into it.
            [only] if !(self.is_tried || self.target.is_root() && only.is_root()) => {
                let top = below(&self.target, only);
                let mut connected = self.context.connect_listing(0, &top).await?;
                self.listing = connected.listing.take().map(|listing| (0, listing));
                Ok(connected)
            }
            _ => self.context.connect(0, None).await,
        }
    }

    /// The streams of a run that compares this many sources with the target.
    fn streams_by_names(&self, connected: &Connected, sources: usize) -> StreamsByName {
        let may = self.context.may_stream_names(&self.context.request.remote[0]);
        let (Ok(()), Some(shell)) = (&may, &connected.shell) else {
            tracing::debug!("no stream by names: {may:?}");
            return StreamsByName::default();
        };
        let streaming = self.context.streaming(shell.clone(), (0, &self.to[0]), None);
        let directory = connected.directory.clone();
        StreamsByName::push(sources, &ByName { streaming, directory, name: None })
    }

    /// The directory, and the name in it, to which a stream may copy a source; if there is none,
    /// why.
    fn stream_place(
        &self,
        source: &LocalOperand,
        target: &RemotePath,
        to: &RemotePath,
    ) -> Result<(Vec<u8>, Name), String> {
        self.context.may_stream()?;
        source.path().symlink_metadata().map_err(|error| error.to_string())?;
        let operand = &self.context.request.remote[0];
        self.context.has_one_host(operand, "the target is on this machine")?;
        if to.is_root() && self.to.len() > 1 {
            return Err("several sources become one directory".to_owned());
        }
        let full = below(target, to);
        let name = full.file_name().ok_or("the target is there")?;
        let parent = full.parent().unwrap_or_default();
        Ok((path_in(&operand.operand.directory, &parent), name))
    }

    /// Streams to the server; `None` where the name has no room for that of its stage.
    async fn push(&self, streaming: &Streaming, push: &Push) -> Result<Option<Streamed>, Halt> {
        let logged_in = streaming.greeted.clone();
        let pushing = streaming.push(push);
        let pushing = self.context.with_sessions_ahead(pushing, logged_in.notified());
        match self.context.unless_stopped(pushing).await? {
            Ok(streamed) => Ok(Some(streamed)),
            Err(Errno::ENAMETOOLONG) => Ok(None),
            Err(errno) => {
                Err(CopyError::failed(format!("'{}'", printable(&push.path)), errno).into())
            }
        }
    }

    fn note_stream(&mut self, streamed: Option<Streamed>) -> Result<Remains, CopyError> {
        match streamed {
            Some(streamed) => self.context.note_stream(0, streamed, self.results),
            None => Ok(Remains::Rest),
        }
    }
}

/// The path in `directory` to which the link at `path` leads; `None` if it leads out of it, or if
/// that is not known.
fn led_to(directory: &[u8], path: &RemotePath, to: &[u8]) -> Option<RemotePath> {
    let (base, rest) = match to.starts_with(b"/") {
        true => {
            let below = to.strip_prefix(directory).filter(|_| directory.starts_with(b"/"))?;
            let is_whole = directory.ends_with(b"/") || below.starts_with(b"/");
            (RemotePath::root(), is_whole.then_some(below)?)
        }
        false => (path.parent()?, to),
    };
    let mut found = base;
    for name in rest.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            // Of what a link leads to.
            b".." => return None,
            name => found = found.join(&Name::new(name).ok()?),
        }
    }
    Some(found)
}
