//! The state machine of a push: from this machine to a server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Errno, FileKind, Name, RemotePath};

use super::context::{Connected, Context, Remains, Stage, length};
use super::place::LocalPlace;
use super::results::Results;
use super::stage::{Completed, Completion};
use super::{CopyError, Halt};
use crate::job::{Job, below};
use crate::plan::Ahead;
use crate::tar::by_name::{PushByName, StreamsByName};
use crate::tar::listing::{Listing, SftpLogin};
use crate::tar::{Declined, Push, ReusableLogin, Streamed, Streaming};

/// See the table of the [module](super).
enum State {
    NewName(Name),
    /// With the name, and the login that is left of the stream to it.
    Resolve(Name, Option<SftpLogin>),
    Stream(usize),
    Connect,
    Stage,
    Compare,
    Done,
}

pub(super) struct Machine<'a> {
    context: &'a Context,
    results: &'a mut Results,
    /// The target, relative to the directory of its place.
    target: RemotePath,
    /// What each source becomes, relative to the target.
    to: Vec<RemotePath>,
    /// What is listed of the only source.
    ahead: Option<Arc<Ahead>>,
    /// From `Resolve` on, if that decides about the only source: what remains of it.
    resolved: Option<Remains>,
    /// Some source was streamed, or its stream declined, in `Stream`.
    is_tried: bool,
    connected: Option<Connected>,
    /// From `Resolve` on: how long the server took to answer.
    round_trip: Duration,
    /// What a login has listed for the source of this number.
    listing: Option<(usize, Listing)>,
    /// The sources of which a tree without its name is there, and those that are left.
    stages: Vec<(usize, Stage)>,
    rest: Vec<usize>,
}

impl<'a> Machine<'a> {
    pub(super) fn new(context: &'a Context, results: &'a mut Results) -> Machine<'a> {
        let plan = &context.plan;
        let ahead = match &plan.local[..] {
            [only] => context.list_ahead(&only.directory, only.relative()),
            _ => None,
        };
        Machine {
            context,
            results,
            target: plan.remote[0].path(),
            to: plan.local.iter().map(LocalPlace::relative).collect(),
            ahead,
            resolved: None,
            is_tried: false,
            connected: None,
            round_trip: Duration::ZERO,
            listing: None,
            stages: Vec::new(),
            rest: Vec::new(),
        }
    }

    pub(super) async fn run(mut self) -> Result<(), Halt> {
        let mut state = self.first();
        loop {
            state = match state {
                State::NewName(name) => self.new_name(name).await?,
                State::Resolve(name, login) => self.resolve(&name, login).await?,
                State::Stream(index) => self.stream(index).await?,
                State::Connect => self.connect().await?,
                State::Stage => self.stage().await?,
                State::Compare => self.compare().await?,
                State::Done => return Ok(()),
            }
        }
    }

    fn first(&self) -> State {
        let plan = &self.context.plan;
        match (&plan.local[..], &plan.remote[0].place.name) {
            // A file gets the new name itself.
            ([only], Some(name))
                if only.name.is_some()
                    && !plan.target_is_directory
                    && only.path().symlink_metadata().is_ok_and(|it| !it.is_dir()) =>
            {
                State::NewName(name.clone())
            }
            _ => State::Stream(0),
        }
    }

    /// Streams the only source, a file, to what may be a new name. If it is, this login is the only
    /// one.
    async fn new_name(&mut self, name: Name) -> Result<State, Halt> {
        let only = &self.context.plan.local[0];
        // Patterns match the names of the sources.
        if self.context.plan.options.filter.excludes(&only.relative(), false) {
            return Ok(State::Done);
        }
        let to = RemotePath::from_names([&name]);
        let Ok((directory, stream_name)) = self.stream_place(only, &RemotePath::root(), &to) else {
            return Ok(State::Resolve(name, None));
        };
        let Some(shell) = self.context.shell(0)? else { return Ok(State::Resolve(name, None)) };
        let path = only.path();
        let push = Push { path, directory, may_make: false, name: stream_name, to };
        // The name may be that of a directory, and its contents need no listing.
        let reusable_login = ReusableLogin::default();
        let streaming = self.context.streaming(shell).0;
        let streaming = Streaming { reusable_login: Some(reusable_login.clone()), ..streaming };
        self.resolved = match self.push(&streaming, &push).await? {
            // `Stream(0)` decides, when it is known what has the name.
            Some(Streamed::Declined(Declined::Occupied)) => None,
            Some(Streamed::Declined(Declined::Slower(round_trip))) => {
                self.context.start_sessions_for(round_trip);
                None
            }
            streamed => match self.note_stream(streamed, &push.name)? {
                Remains::Nothing => return Ok(State::Done),
                remains => Some(remains),
            },
        };
        Ok(State::Resolve(name, reusable_login.take()))
    }

    /// Connects, and checks whether the target is a directory.
    async fn resolve(&mut self, name: &Name, login: Option<SftpLogin>) -> Result<State, Halt> {
        let connecting = self.context.connect(0, login);
        let connecting = self.context.with_sessions_ahead(connecting, std::future::pending());
        let connected = connecting.await?;
        let since = Instant::now();
        let at_target = connected.connection.remote.lstat(&self.target).await;
        self.round_trip = since.elapsed();
        if !at_target.is_ok_and(|attr| attr.kind == FileKind::Directory) {
            self.to[0] = RemotePath::from_names([name]);
            self.target = RemotePath::root();
        } else if let Some(Remains::Stage(stage)) = &self.resolved {
            // The directory was made meanwhile: the file is copied into it, and not in its place.
            if stage.is_own {
                let stage = RemotePath::from_names([&stage.stage]);
                let removed = connected.connection.remote.unlink(&stage).await;
                tracing::debug!("'{stage}' is not needed: {removed:?}");
            }
            self.resolved = Some(Remains::Rest);
        }
        self.connected = Some(connected);
        Ok(State::Stream(0))
    }

    async fn stream(&mut self, index: usize) -> Result<State, Halt> {
        if index == self.to.len() {
            return Ok(State::Connect);
        }
        let remains = match self.resolved.take() {
            Some(remains) => remains,
            None => self.stream_source(index).await?,
        };
        match remains {
            Remains::Nothing => {}
            Remains::Stage(stage) => self.stages.push((index, stage)),
            Remains::Rest => self.rest.push(index),
        }
        Ok(State::Stream(index + 1))
    }

    /// Streams a source, if that is possible and faster than a session.
    async fn stream_source(&mut self, index: usize) -> Result<Remains, Halt> {
        let place = &self.context.plan.local[index];
        let (directory, name) = match self.stream_place(place, &self.target, &self.to[index]) {
            Ok(place) => place,
            Err(why) => {
                self.context.require_any_stream(&self.context.plan.remote[0], &why)?;
                return Ok(Remains::Rest);
            }
        };
        if let Some(connected) = &self.connected {
            let path = below(&self.target, &self.to[index]);
            if connected.connection.remote.lstat(&path).await.is_ok() {
                let occupied = Streamed::Declined(Declined::Occupied);
                return Ok(self.note_stream(Some(occupied), &name)?);
            }
        }
        let path = place.path();
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
            return Ok(self.note_stream(Some(slower), &name)?);
        }
        self.is_tried = true;
        let Some(shell) = self.context.shell(0)? else { return Ok(Remains::Rest) };
        let to = self.to[index].clone();
        // Only the directory that the user has named as the target is made.
        let may_make = !self.target.is_root() && !to.is_root();
        let push = Push { path, directory, may_make, name, to };
        let (streaming, reusable_login) = self.context.streaming(shell);
        let streamed = self.push(&streaming, &push).await?;
        let remains = self.note_stream(streamed, &push.name)?;
        if let Some(login) = reusable_login.take().filter(|_| self.connected.is_none()) {
            let mut connected = self.context.connect(0, Some(login)).await?;
            self.listing = connected.listing.take().map(|listing| (index, listing));
            self.connected = Some(connected);
        }
        Ok(remains)
    }

    async fn connect(&mut self) -> Result<State, Halt> {
        if self.rest.is_empty() && self.stages.is_empty() {
            return Ok(State::Done);
        }
        if self.connected.is_none() {
            self.connected = Some(match &self.to[..] {
                // All that is in the directory itself may be much more than is pushed into it.
                [only] if !(self.is_tried || self.target.is_root() && only.is_root()) => {
                    let top = below(&self.target, only);
                    let mut connected = self.context.connect_listing(0, &top).await?;
                    self.listing = connected.listing.take().map(|listing| (0, listing));
                    connected
                }
                _ => self.context.connect(0, None).await?,
            });
        }
        Ok(State::Stage)
    }

    /// Completes the first of the trees that have not got their names.
    async fn stage(&mut self) -> Result<State, Halt> {
        if self.stages.is_empty() {
            return Ok(State::Compare);
        }
        let (index, stage) = self.stages.remove(0);
        let connected = self.connected.as_ref().expect("State::Connect has connected");
        let by_name = self.streams_by_names(connected, 1);
        let to = &self.to[index];
        let completion =
            Completion::new(self.context, connected, &self.target, (index, to), stage)?;
        if completion.run(by_name, self.results).await? == Completed::Compare {
            self.rest.push(index);
        }
        Ok(State::Stage)
    }

    async fn compare(&mut self) -> Result<State, Halt> {
        if self.rest.is_empty() || self.results.is_stopped() {
            return Ok(State::Done);
        }
        let connected = self.connected.as_ref().expect("State::Connect has connected");
        let by_name = self.streams_by_names(connected, self.rest.len());
        let source = |index: &usize| self.context.local_source(*index, self.to[*index].clone());
        let mut sources = self.rest.iter().map(source).collect::<Result<Vec<_>, _>>()?;
        sources[0].tree.ahead = self.ahead.take();
        let mut target = connected.tree(self.target.clone());
        target.ahead = self.listing.take().map(|(index, listing)| {
            // What streams have copied meanwhile has other names.
            Arc::new(listing.ahead(&target.path_of(&self.to[index])))
        });
        let job = Job { sources, target, options: self.context.plan.options.clone() };
        self.context.run(job, by_name, self.results).await?;
        Ok(State::Done)
    }

    /// The streams of a run that compares this many sources with the target.
    fn streams_by_names(&self, connected: &Connected, sources: usize) -> StreamsByName {
        let may = self.context.may_stream_names(&self.context.plan.remote[0]);
        let (Ok(()), Some(shell)) = (&may, &connected.shell) else {
            tracing::debug!("no stream by names: {may:?}");
            return StreamsByName::default();
        };
        let streaming = self.context.streaming_of_run(shell.clone());
        let directory = connected.directory.clone();
        StreamsByName::push(sources, &PushByName { streaming, directory })
    }

    /// The directory, and the name in it, to which a stream may copy a source; if there is none, why.
    fn stream_place(
        &self,
        source: &LocalPlace,
        target: &RemotePath,
        to: &RemotePath,
    ) -> Result<(Vec<u8>, Name), String> {
        self.context.may_stream()?;
        source.path().symlink_metadata().map_err(|error| error.to_string())?;
        let place = &self.context.plan.remote[0];
        self.context.has_one_host(place, "the target is on this machine")?;
        if to.is_root() && self.to.len() > 1 {
            return Err("several sources become one directory".to_owned());
        }
        let full = below(target, to);
        let name = full.file_name().ok_or("the target is there")?;
        let parent = full.parent().unwrap_or_default();
        Ok((path_in(&place.place.directory, &parent), name))
    }

    /// Streams to the server; `None` where the name has no room for that of its stage.
    async fn push(&self, streaming: &Streaming, push: &Push) -> Result<Option<Streamed>, Halt> {
        let logged_in = streaming.greeted.clone();
        let pushing = streaming.push(push);
        let pushing = self.context.with_sessions_ahead(pushing, logged_in.notified());
        match self.context.unless_stopped(pushing).await? {
            Err(Errno::ENAMETOOLONG) => Ok(None),
            Err(errno) => {
                let path = super::place::printable(&push.path);
                Err(CopyError::Read { path, errno }.into())
            }
            Ok(Streamed::Declined(Declined::NoLogin(why))) => {
                Err(self.context.no_login(0, why).into())
            }
            Ok(streamed) => Ok(Some(streamed)),
        }
    }

    fn note_stream(
        &mut self,
        streamed: Option<Streamed>,
        name: &Name,
    ) -> Result<Remains, CopyError> {
        match streamed {
            Some(streamed) => self.context.note_stream(streamed, Some(name), self.results),
            None => Ok(Remains::Rest),
        }
    }
}

/// A path as the server's shell takes it, where `directory` is the root of the remote.
pub(super) fn path_in(directory: &[u8], path: &RemotePath) -> Vec<u8> {
    let mut full = directory.to_vec();
    if !path.is_root() {
        if !full.is_empty() && !full.ends_with(b"/") {
            full.push(b'/');
        }
        full.extend_from_slice(path.as_bytes());
    }
    full
}
