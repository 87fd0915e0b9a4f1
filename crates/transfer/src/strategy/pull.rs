//! The state machine of a pull: from servers to this machine.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use base::{Errno, FileKind, Name, RemotePath};
use local::Local;

use super::context::{Connected, Context, Remains};
use super::place::{LocalPlace, RemotePlace, printable};
use super::results::Results;
use super::{CopyError, Halt};
use crate::job::{Job, Source, Tree, below};
use crate::plan::Ahead;
use crate::tar::by_name::{PullByName, StreamsByName};
use crate::tar::listing::SftpLogin;
use crate::tar::{Declined, Pull, Streamed};

/// See the table of the [module](super).
enum State {
    NewName(Name),
    /// With the name, and the login that is left of the stream to it.
    Resolve(Name, Option<SftpLogin>),
    Prepare,
    Stream(usize),
    Connect,
    /// With the connections of the sources that are left.
    Compare(Vec<(usize, Connected)>),
    Done,
}

/// How a source that is left is connected.
enum Login {
    /// It is connected.
    Connected(Connected),
    /// By the login of its stream, if that is left.
    OfStream(Option<SftpLogin>),
    /// No stream was tried: by a login that lists the source first.
    Listing,
}

pub(super) struct Machine<'a> {
    context: &'a Context,
    results: &'a mut Results,
    target: LocalPlace,
    /// What each source becomes, relative to the target.
    to: Vec<RemotePath>,
    /// From `Resolve` on: a stream to the new name was tried, and none is tried again.
    is_tried: bool,
    connected: Option<Connected>,
    /// From `Prepare` on: the directory that the copy writes into, and what is listed of it.
    root: Option<Arc<Local>>,
    ahead: Option<Arc<Ahead>>,
    /// The sources that are left.
    rest: Vec<(usize, Login)>,
}

impl<'a> Machine<'a> {
    pub(super) fn new(context: &'a Context, results: &'a mut Results) -> Machine<'a> {
        let plan = &context.plan;
        Machine {
            context,
            results,
            target: plan.local[0].clone(),
            to: plan.remote.iter().map(RemotePlace::path).collect(),
            is_tried: false,
            connected: None,
            root: None,
            ahead: None,
            rest: Vec::new(),
        }
    }

    pub(super) async fn run(mut self) -> Result<(), Halt> {
        let mut state = self.first();
        loop {
            state = match state {
                State::NewName(name) => self.new_name(name).await?,
                State::Resolve(name, login) => self.resolve(&name, login).await?,
                State::Prepare => self.prepare()?,
                State::Stream(index) => self.stream(index).await?,
                State::Connect => self.connect().await?,
                State::Compare(connected) => self.compare(connected).await?,
                State::Done => return Ok(()),
            }
        }
    }

    fn first(&self) -> State {
        let plan = &self.context.plan;
        match (&plan.remote[..], &self.target.name) {
            // If the source is a file, the new name is the file's.
            ([only], Some(name)) if only.place.name.is_some() && !plan.target_is_directory => {
                State::NewName(name.clone())
            }
            _ => State::Prepare,
        }
    }

    /// Streams the only source. The stream's login reports whether the name is the source's own, or
    /// that of the directory above it.
    async fn new_name(&mut self, name: Name) -> Result<State, Halt> {
        let above = LocalPlace { directory: self.target.directory.clone(), name: None };
        let own = RemotePath::from_names([&name]);
        if self.may_stream(0, &above, &own).is_err() {
            return Ok(State::Resolve(name, None));
        }
        self.context.local_root(&above)?;
        let only = &self.context.plan.remote[0];
        let pull = Pull {
            directory: only.place.directory.clone(),
            name: only.place.name.clone(),
            root: above.directory,
            target: own.clone(),
            to: only.path(),
            unless_directory: Some(own),
        };
        self.is_tried = true;
        Ok(match self.stream_tree(0, &pull).await? {
            (Remains::Nothing, _) => State::Done,
            (_, login) => State::Resolve(name, login),
        })
    }

    /// Connects, and checks whether the source is a directory.
    async fn resolve(&mut self, name: &Name, login: Option<SftpLogin>) -> Result<State, Halt> {
        let connected = self.context.connect(0, login).await?;
        let source = self.context.plan.remote[0].path();
        let since = Instant::now();
        let attr = connected.connection.remote.lstat(&source).await;
        let round_trip = since.elapsed();
        // Where there was to be a stream, and none has found that out.
        if self.is_tried
            && let Ok(attr) = &attr
            && attr.kind == FileKind::Regular
            && self.context.prefers_sessions(attr.size, round_trip)
        {
            self.context.start_sessions_for(round_trip);
        }
        if attr.is_ok_and(|attr| attr.kind != FileKind::Directory) {
            // Patterns match the names of the sources.
            if self.context.plan.options.filter.excludes(&source, false) {
                return Ok(State::Done);
            }
            self.to[0] = RemotePath::from_names([name]);
            self.target.name = None;
        }
        self.connected = Some(connected);
        Ok(State::Prepare)
    }

    fn prepare(&mut self) -> Result<State, Halt> {
        self.root = Some(self.context.local_root(&self.target)?);
        // Not where a stream changes the target first.
        if self.to.len() == 1 && self.may_stream(0, &self.target, &self.to[0]).is_err() {
            let top = below(&self.target.relative(), &self.to[0]);
            self.ahead = self.context.list_ahead(&self.target.directory, top);
        }
        Ok(State::Stream(0))
    }

    async fn stream(&mut self, index: usize) -> Result<State, Halt> {
        let Some(place) = self.context.plan.remote.get(index) else { return Ok(State::Connect) };
        let login = if self.is_tried {
            Login::OfStream(None)
        } else if let Err(why) = self.may_stream(index, &self.target, &self.to[index]) {
            self.context.require_any_stream(place, &why)?;
            Login::Listing
        } else {
            let pull = Pull {
                directory: place.place.directory.clone(),
                name: place.place.name.clone(),
                root: self.target.directory.clone(),
                target: self.target.relative(),
                to: self.to[index].clone(),
                unless_directory: None,
            };
            match self.stream_tree(index, &pull).await? {
                (Remains::Nothing, _) => return Ok(State::Stream(index + 1)),
                (_, login) => Login::OfStream(login),
            }
        };
        let login = self.connected.take().map_or(login, Login::Connected);
        self.rest.push((index, login));
        Ok(State::Stream(index + 1))
    }

    async fn connect(&mut self) -> Result<State, Halt> {
        if self.rest.is_empty() {
            return Ok(State::Done);
        }
        let mut all = Vec::new();
        for (index, login) in std::mem::take(&mut self.rest) {
            let connected = match login {
                Login::Connected(connected) => connected,
                Login::OfStream(login) => self.context.connect(index, login).await?,
                Login::Listing => {
                    let top = self.context.plan.remote[index].path();
                    self.context.connect_listing(index, &top).await?
                }
            };
            all.push((index, connected));
        }
        Ok(State::Compare(all))
    }

    async fn compare(&mut self, mut all: Vec<(usize, Connected)>) -> Result<State, Halt> {
        let (mut sources, mut streams) = (Vec::new(), Vec::new());
        for (index, connected) in &mut all {
            let mut tree = connected.tree(self.context.plan.remote[*index].path());
            let listing = connected.listing.take();
            tree.ahead = listing.map(|listing| Arc::new(listing.ahead(&tree.path)));
            tree.unseen = self.context.unseen(*index, connected)?;
            sources.push(Source { tree, to: self.to[*index].clone() });
            streams.push(self.stream_by_names(*index, connected));
        }
        let root = self.root.take().expect("State::Prepare has opened it");
        let mut target = Tree::local(root, &self.target.directory).at(self.target.relative());
        target.ahead = self.ahead.take();
        let job = Job { sources, target, options: self.context.plan.options.clone() };
        self.context.run(job, StreamsByName::new(streams), self.results).await?;
        Ok(State::Done)
    }

    /// The stream by names of a source, if it may have one.
    fn stream_by_names(&self, index: usize, connected: &Connected) -> Option<PullByName> {
        let place = &self.context.plan.remote[index];
        if let Err(why) = self.context.may_stream_names(place) {
            tracing::debug!("no stream by names: {why}");
            return None;
        }
        Some(PullByName {
            streaming: self.context.streaming_of_run(connected.shell.clone()?),
            directory: connected.directory.clone(),
            name: place.place.name.clone(),
        })
    }

    /// Whether a stream may copy that source: its place is empty. If not, why.
    fn may_stream(&self, index: usize, target: &LocalPlace, to: &RemotePath) -> Result<(), String> {
        self.context.may_stream()?;
        let place = &self.context.plan.remote[index];
        self.context.has_one_host(place, "the source is on this machine")?;
        if self.context.plan.has_patterns {
            return Err("patterns have to be compared with the names first".to_owned());
        }
        match is_free(&target.path().join(OsStr::from_bytes(to.as_bytes()))) {
            true => Ok(()),
            false => Err("there is something at the target to compare with".to_owned()),
        }
    }

    /// Streams a source; unless nothing remains, there may be a login left.
    async fn stream_tree(
        &mut self,
        index: usize,
        pull: &Pull,
    ) -> Result<(Remains, Option<SftpLogin>), Halt> {
        let Some(shell) = self.context.shell(index)? else { return Ok((Remains::Rest, None)) };
        let (streaming, reusable_login) = self.context.streaming(shell);
        if pull.unless_directory.is_none() && !pull.target.is_root() && !pull.to.is_root() {
            make_target(pull)?;
        }
        let streamed = self.context.unless_stopped(streaming.pull(pull)).await?;
        let streamed = match streamed.map_err(|unable| at_target(&unable.place, unable.errno))? {
            Streamed::Declined(Declined::NoLogin(why)) => {
                return Err(self.context.no_login(index, why).into());
            }
            streamed => streamed,
        };
        let remains = self.context.note_stream(streamed, None, self.results)?;
        Ok((remains, reusable_login.take()))
    }
}

fn make_target(pull: &Pull) -> Result<(), CopyError> {
    let path = pull.root.join(OsStr::from_bytes(pull.target.as_bytes()));
    match std::fs::create_dir(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(at_target(&path, Errno::from(error)))
        }
        _ => Ok(()),
    }
}

fn at_target(path: &Path, errno: Errno) -> CopyError {
    CopyError::Target { path: printable(path), why: errno.to_string() }
}

/// Whether there is nothing, or a directory without entries.
fn is_free(place: &Path) -> bool {
    match place.symlink_metadata() {
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        Ok(metadata) if metadata.is_dir() => {
            std::fs::read_dir(place).is_ok_and(|mut entries| entries.next().is_none())
        }
        Ok(_) => false,
    }
}
