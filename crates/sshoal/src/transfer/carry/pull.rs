//! From other machines to this one.

use std::sync::Arc;
use std::time::Instant;

use base::{Errno, FileKind, Name, RemotePath};
use local::Local;
use transfer::tar::collect::{Collect, Collector};
use transfer::tar::listing::Left;
use transfer::tar::{Declined, Pull, Streamed};
use transfer::{Job, Source, Tree, below};

use super::sessions::needed;
use super::{
    Asked, Carrier, Ended, Progressed, Reached, Taken, at_target, becomes, digester, is_free,
    no_login, unless_asked,
};
use crate::report::{Problem, printable};
use crate::transfer::arguments::Engine;
use crate::transfer::place::{FarPlace, NearPlace};

impl Carrier {
    pub(super) async fn pull(self, asked: Asked) -> Result<Ended, Problem> {
        let mut far = self.far.clone();
        let mut target = self.near[0].clone();
        let mut reached: Vec<Option<Reached>> = far.iter().map(|_| None).collect();
        let mut to: Vec<RemotePath> = far.iter().map(|far| becomes(&far.place.name)).collect();
        let (mut progressed, mut is_tried) = (Progressed::default(), false);
        // One file and a new name: it is the file's.
        if let ([only], Some(name)) = (&far[..], &target.name)
            && only.place.name.is_some()
            && !self.target_is_directory
        {
            let mut left = None;
            if let Some(pull) = self.pull_to_new_name(only, &target, name)? {
                let (done, spare) = self.stream_pull(only, &pull, &mut progressed, &asked).await?;
                if done {
                    return Ok(progressed.ended());
                }
                (left, is_tried) = (spare, true);
            }
            let Some(connected) = self.reach(only, left, &asked).await? else {
                progressed.interrupted();
                return Ok(progressed.ended());
            };
            let asked_at = Instant::now();
            let attr = connected.remote.lstat(&becomes(&only.place.name)).await;
            let round_trip = asked_at.elapsed();
            // Where there was to be a stream, and none has found that out.
            if is_tried
                && let Ok(attr) = &attr
                && attr.kind == FileKind::Regular
                && self.prefers_sessions(attr.size, round_trip)
            {
                self.begin_sessions(needed(round_trip));
            }
            if attr.is_ok_and(|attr| attr.kind != FileKind::Directory) {
                // Patterns are of the names of the sources.
                if self.options.filter.excludes(&becomes(&only.place.name), false) {
                    return Ok(progressed.ended());
                }
                to[0] = RemotePath::from_names([name]);
                target.name = None;
            }
            reached[0] = Some(connected);
        }
        let root = self.near_root(&target)?;
        let target_path = becomes(&target.name);
        // Not where a stream changes it first.
        let ahead = match &far[..] {
            [only] if self.may_stream(only, &target, &to[0]).is_err() => {
                self.list_ahead(&target.directory, below(&target_path, &to[0]))
            }
            _ => None,
        };
        // Those that are left, each with its stream's login; without, whether none was tried.
        let mut rest = Vec::new();
        for (index, far) in far.iter_mut().enumerate() {
            let (mut spare, mut is_untried) = (None, false);
            let done = match self.may_stream(far, &target, &to[index]) {
                _ if is_tried => false,
                Ok(()) => {
                    let pull = Pull {
                        directory: far.place.directory.clone(),
                        name: far.place.name.clone(),
                        root: target.directory.clone(),
                        target: target_path.clone(),
                        to: to[index].clone(),
                        unless_directory: None,
                    };
                    let (done, left) =
                        self.stream_pull(far, &pull, &mut progressed, &asked).await?;
                    spare = left;
                    done
                }
                Err(why) => {
                    if self.may_collect(far).is_err() {
                        self.insist(&why)?;
                    }
                    is_untried = true;
                    false
                }
            };
            if !done {
                rest.push((index, spare, is_untried));
            }
        }
        if !rest.is_empty() && progressed.outcome.is_none() {
            let (mut sources, mut streams) = (Vec::new(), Vec::new());
            let mut kept = Vec::new();
            for (index, spare, is_untried) in rest {
                let top = becomes(&far[index].place.name);
                let mut connected = match reached[index].take() {
                    Some(connected) => connected,
                    None => {
                        let far = &far[index];
                        let connected = match is_untried {
                            true => self.reach_listing(far, &top, &asked).await?,
                            false => self.reach(far, spare, &asked).await?,
                        };
                        let Some(connected) = connected else {
                            progressed.interrupted();
                            return Ok(progressed.ended());
                        };
                        connected
                    }
                };
                let mut tree = Tree::far(connected.remote.clone());
                tree.path = top;
                let listing = connected.listing.take();
                tree.ahead = listing.map(|listing| Arc::new(listing.ahead(&tree.path)));
                tree.digester = digester(&connected);
                tree.unseen = self.unseen(&far[index], &connected)?;
                sources.push(Source { tree, to: to[index].clone() });
                streams.push(self.collect(&far[index], &connected));
                kept.push(connected);
            }
            let mut tree = Tree::here(root, &target.directory).at(target_path);
            tree.ahead = ahead;
            let job = Job { sources, target: tree, options: self.options.clone() };
            self.run(job, Collector::new(streams), &mut progressed, &asked).await?;
        }
        Ok(progressed.ended())
    }

    /// The stream by names of a source, if it may have one.
    fn collect(&self, far: &FarPlace, connected: &Reached) -> Option<Collect> {
        if let Err(why) = self.may_collect(far) {
            tracing::debug!("no stream by names: {why}");
            return None;
        }
        let shell = connected.shell.clone()?;
        Some(Collect {
            // It is the run that counts.
            streaming: self.streaming_for(shell, Arc::default()),
            directory: connected.directory.clone(),
            name: far.place.name.clone(),
        })
    }

    /// Whether a stream may bring that source: its place is empty.
    fn may_stream(
        &self,
        far: &FarPlace,
        target: &NearPlace,
        to: &RemotePath,
    ) -> Result<(), String> {
        self.may_stream_at_all()?;
        if far.spec.gateways().is_empty() {
            return Err("the source is on this machine".to_owned());
        }
        if far.spec.gateways().len() > 1 && self.engine == Engine::Auto {
            return Err("several gateways bring more than one stream".to_owned());
        }
        if self.has_filter {
            return Err("patterns have to be compared with the names first".to_owned());
        }
        use std::os::unix::ffi::OsStrExt;
        let place = target.path().join(std::ffi::OsStr::from_bytes(to.as_bytes()));
        match is_free(&place) {
            true => Ok(()),
            false => Err("there is something at the target to compare with".to_owned()),
        }
    }

    /// The stream of a source whose target is a new name, if it may have one. Its login tells whether
    /// the name is the source's own, or that of the directory above it.
    fn pull_to_new_name(
        &self,
        far: &FarPlace,
        target: &NearPlace,
        name: &Name,
    ) -> Result<Option<Pull>, Problem> {
        let above = NearPlace { directory: target.directory.clone(), name: None };
        let own = RemotePath::from_names([name]);
        if self.may_stream(far, &above, &own).is_err() {
            return Ok(None);
        }
        self.near_root(&above)?;
        Ok(Some(Pull {
            directory: far.place.directory.clone(),
            name: far.place.name.clone(),
            root: above.directory,
            target: own.clone(),
            to: becomes(&far.place.name),
            unless_directory: Some(own),
        }))
    }

    /// True when nothing is left to be done; else there may be a session that is left.
    async fn stream_pull(
        &self,
        far: &FarPlace,
        pull: &Pull,
        progressed: &mut Progressed,
        asked: &Asked,
    ) -> Result<(bool, Option<Left>), Problem> {
        let Some(shell) = self.shell(far)? else { return Ok((false, None)) };
        let (streaming, spare) = self.streaming(shell);
        if pull.unless_directory.is_none() && !pull.target.is_root() && !pull.to.is_root() {
            self.make_target(pull)?;
        }
        let streamed = unless_asked(asked, streaming.pull(pull)).await;
        let Some(streamed) = streamed else {
            progressed.interrupted();
            return Ok((true, None));
        };
        let streamed = match streamed.map_err(|unable| at_target(&unable.place, unable.errno))? {
            Streamed::Declined(Declined::NoLogin(why)) => return Err(no_login(far, why)),
            streamed => streamed,
        };
        let taken = self.taken(streamed, progressed)?;
        Ok((taken == Taken::Whole, spare.take()))
    }

    fn make_target(&self, pull: &Pull) -> Result<(), Problem> {
        use std::os::unix::ffi::OsStrExt;
        let path = pull.root.join(std::ffi::OsStr::from_bytes(pull.target.as_bytes()));
        match std::fs::create_dir(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(at_target(&path, Errno::from(error)))
            }
            _ => Ok(()),
        }
    }

    /// The directory of this machine that a pull writes into.
    fn near_root(&self, target: &NearPlace) -> Result<Arc<Local>, Problem> {
        let opened = Local::open(&target.directory);
        opened.map(Arc::new).map_err(|error| {
            let what = format!("target '{}'", printable(target.path()));
            Problem::new(what, error.to_string())
                .hint("its last directory is made, the others have to be there")
        })
    }
}
