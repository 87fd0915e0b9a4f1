//! A pull: from servers to this machine. See the steps of the [module](super).

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::DirEntry;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use base::{FileKind, Mutex, Name, RemotePath};

use super::Halt;
use super::context::{Connected, Context, Remains};
use super::operand::{LocalOperand, RemoteOperand};
use super::results::Results;
use crate::job::{Job, Source, Tree, below};
use crate::tar::by_name::{ByName, StreamsByName};
use crate::tar::listing::SftpLogin;
use crate::tar::{Pull, make_directory};
use crate::temporary;

/// How a source that is left is connected.
enum Login {
    /// It is connected.
    Connected(Connected),
    /// By the login of its stream, if that is left.
    OfStream(Option<SftpLogin>),
    /// No stream was tried: by a login that lists the source first.
    Listing,
}

pub(super) struct Pulling<'a> {
    context: &'a Context,
    results: &'a mut Results,
    target: LocalOperand,
    /// What each source becomes, relative to the target.
    to: Vec<RemotePath>,
    /// A stream to the new name was tried, and none is tried again.
    is_tried: bool,
    /// Of the directory of the target that was read last.
    left: Mutex<Option<Left>>,
}

/// The files of a directory of which earlier runs have left a part.
struct Left {
    directory: PathBuf,
    /// What their temporary names begin with.
    begins: HashSet<Vec<u8>>,
}

impl Left {
    fn read(directory: &Path) -> Left {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let begin =
            |entry: DirEntry| temporary::begin_of(entry.file_name().as_bytes()).map(<[u8]>::to_vec);
        Left { directory: directory.to_owned(), begins: entries.filter_map(begin).collect() }
    }
}

impl<'a> Pulling<'a> {
    pub(super) fn new(context: &'a Context, results: &'a mut Results) -> Pulling<'a> {
        let request = &context.request;
        let to = request.remote.iter().map(RemoteOperand::path).collect();
        let (target, left) = (request.local[0].clone(), Mutex::default());
        Pulling { context, results, target, to, is_tried: false, left }
    }

    pub(super) async fn run(mut self) -> Result<(), Halt> {
        let context = self.context;
        let mut connected = None;
        if let Some(name) = self.new_name() {
            let login = match self.stream_to(&name).await? {
                (Remains::Nothing, _) => return Ok(()),
                (_, login) => login,
            };
            let Some(resolved) = self.resolve(&name, login).await? else { return Ok(()) };
            connected = Some(resolved);
        }
        let root = context.local_root(&self.target)?;
        let ahead = match &self.to[..] {
            // Not where a stream changes the target first.
            [only] if self.may_stream(0, &self.target, only).is_err() => {
                let top = below(&self.target.relative(), only);
                context.list_ahead(&self.target.directory, top)
            }
            _ => None,
        };
        let mut rest = Vec::new();
        for index in 0..self.to.len() {
            if let Some(login) = self.stream(index).await? {
                rest.push((index, connected.take().map_or(login, Login::Connected)));
            }
        }
        if rest.is_empty() {
            return Ok(());
        }
        let (mut sources, mut streams, mut connections) = (Vec::new(), Vec::new(), Vec::new());
        for (index, login) in rest {
            let path = context.request.remote[index].path();
            let mut connected = match login {
                Login::Connected(connected) => connected,
                Login::OfStream(login) => context.connect(index, login).await?,
                Login::Listing => context.connect_listing(index, &path).await?,
            };
            let mut tree = connected.tree(path);
            let listing = connected.listing.take();
            tree.ahead = listing.map(|listing| Arc::new(listing.ahead(&tree.path)));
            tree.unseen = context.unseen(index, &connected)?;
            sources.push(Source { tree, to: self.to[index].clone() });
            streams.push(self.stream_by_names(index, &connected));
            connections.push(connected);
        }
        let mut target = Tree::local(root, &self.target.directory).at(self.target.relative());
        target.ahead = ahead;
        let job = Job { sources, target, options: context.options_for(0, &self.to[0]) };
        context.run(job, StreamsByName::pull(streams), None, self.results).await?;
        Ok(())
    }

    /// The name that may be that of the only source, if this is a file.
    fn new_name(&self) -> Option<Name> {
        let request = &self.context.request;
        let [only] = &request.remote[..] else { return None };
        let may_be = only.operand.name.is_some() && !request.target_is_directory;
        self.target.name.clone().filter(|_| may_be)
    }

    /// Streams the only source. The stream's login reports whether the name is the source's own, or
    /// that of the directory above it.
    async fn stream_to(&mut self, name: &Name) -> Result<(Remains, Option<SftpLogin>), Halt> {
        let above = LocalOperand { directory: self.target.directory.clone(), name: None };
        let own = RemotePath::from_names([name]);
        if self.may_stream(0, &above, &own).is_err() {
            return Ok((Remains::Rest, None));
        }
        self.context.local_root(&above)?;
        let pull = Pull { unless_directory: Some(own.clone()), ..self.pull(0, &above, own) };
        self.is_tried = true;
        self.stream_tree(0, &pull).await
    }

    /// Connects, and checks whether the source is a directory. `None` if the source is excluded.
    async fn resolve(
        &mut self,
        name: &Name,
        login: Option<SftpLogin>,
    ) -> Result<Option<Connected>, Halt> {
        let connected = self.context.connect(0, login).await?;
        let source = self.context.request.remote[0].path();
        let since = Instant::now();
        let attr = connected.connection.remote.lstat(&source);
        let attr = self.context.unless_stopped(attr).await?;
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
            if self.context.request.options.filter.excludes(&source, false) {
                return Ok(None);
            }
            self.to[0] = RemotePath::from_names([name]);
            self.target.name = None;
        }
        Ok(Some(connected))
    }

    /// Streams a source, if that is possible. If something remains, how to connect to it.
    async fn stream(&mut self, index: usize) -> Result<Option<Login>, Halt> {
        if self.is_tried {
            return Ok(Some(Login::OfStream(None)));
        }
        let (target, to) = (self.target.clone(), self.to[index].clone());
        if let Err(why) = self.may_stream(index, &target, &to) {
            self.context.require_any_stream(&self.context.request.remote[index], &why)?;
            return Ok(Some(Login::Listing));
        }
        let pull = Pull { to, ..self.pull(index, &target, target.relative()) };
        Ok(match self.stream_tree(index, &pull).await? {
            (Remains::Nothing, _) => None,
            (_, login) => Some(Login::OfStream(login)),
        })
    }

    /// The pull of a source under its own name into the path `target`.
    fn pull(&self, index: usize, root: &LocalOperand, target: RemotePath) -> Pull {
        let operand = &self.context.request.remote[index];
        Pull {
            directory: operand.operand.directory.clone(),
            name: operand.operand.name.clone(),
            root: root.directory.clone(),
            target,
            to: operand.path(),
            unless_directory: None,
        }
    }

    /// The stream by names of a source, if it may have one.
    fn stream_by_names(&self, index: usize, connected: &Connected) -> Option<ByName> {
        let operand = &self.context.request.remote[index];
        if let Err(why) = self.context.may_stream_names(operand) {
            tracing::debug!("no stream by names: {why}");
            return None;
        }
        Some(ByName {
            streaming: self.context.streaming(
                connected.shell.clone()?,
                (index, &self.to[index]),
                None,
            ),
            directory: connected.directory.clone(),
            name: operand.operand.name.clone(),
        })
    }

    /// Whether a stream may copy that source: its name at the target does not exist, or is an empty
    /// directory. If not, why.
    fn may_stream(
        &self,
        index: usize,
        target: &LocalOperand,
        to: &RemotePath,
    ) -> Result<(), String> {
        self.context.may_stream()?;
        let operand = &self.context.request.remote[index];
        self.context.has_one_host(operand, "the source is on this machine")?;
        if !self.context.request.options.filter.is_empty() {
            return Err("patterns have to be compared with the names first".to_owned());
        }
        match self.is_free(&target.path().join(OsStr::from_bytes(to.as_bytes()))) {
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
        let reusable_login = self.context.reusable_login();
        let streaming = self.context.streaming(shell, (index, &pull.to), Some(&reusable_login));
        if pull.unless_directory.is_none() && !pull.target.is_root() && !pull.to.is_root() {
            make_directory(&pull.root, &pull.target)?;
        }
        let streamed = self.context.unless_stopped(streaming.pull(pull)).await??;
        let remains = self.context.note_stream(index, streamed, self.results)?;
        Ok((remains, reusable_login.take()))
    }

    /// Whether there is nothing, or a directory without entries. The beginning of a file that an
    /// interrupted run has left occupies the file's name: another run continues or removes it, and a
    /// stream would do neither.
    fn is_free(&self, path: &Path) -> bool {
        match path.symlink_metadata() {
            Err(error) => error.kind() == std::io::ErrorKind::NotFound && !self.has_partial(path),
            Ok(metadata) if metadata.is_dir() => {
                std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
            }
            Ok(_) => false,
        }
    }

    /// Whether an earlier run has left a temporary file of the file with that path. A directory is
    /// read once for all sources.
    fn has_partial(&self, path: &Path) -> bool {
        let name = path.file_name().and_then(|name| Name::new(name.as_bytes()).ok());
        let (Some(directory), Some(name)) = (path.parent(), name) else { return false };
        let mut left = self.left.lock();
        let known = left.take().filter(|left| left.directory == directory);
        let known = left.insert(known.unwrap_or_else(|| Left::read(directory)));
        known.begins.contains(&temporary::begin(&name))
    }
}
