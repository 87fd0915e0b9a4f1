//! From this machine to another one.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::shell::quote;
use base::{Attr, AttrChange, Errno, FileKind, Name, RemotePath, RenameMode};
use transfer::tar::collect::{Collector, Deliver};
use transfer::tar::listing::Left;
use transfer::tar::{self, Declined, LOGIN_LIMIT, Push, Spare, Streamed, Streaming};
use transfer::temporary::{self, MachineRun};
use transfer::{Job, Options, Running, below};

use super::sessions::needed;
use super::{
    Asked, BegunTree, Carrier, Ended, Progressed, Reached, Taken, becomes, no_login, unless_asked,
};
use crate::report::{Problem, printable};
use crate::transfer::arguments::Engine;
use crate::transfer::place::{FarPlace, NearPlace};

/// A tree that an interrupted stream has begun.
struct Staged {
    /// Of its source.
    index: usize,
    /// What it becomes.
    name: Name,
    begun: BegunTree,
}

/// What came of a stage.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Finish {
    /// It has its name, or what is wrong is told.
    Over,
    /// Another run was quicker, or the stage is of no use: what has the name, if anything, is compared
    /// with the source.
    Compare,
}

/// What came of a stream to there.
enum Pushed {
    Streamed(Box<Streamed>),
    /// The name has no room for what a stream adds to it.
    NoRoom,
    /// Somebody asks for the end.
    Asked,
}

/// What the first login of a copy has done.
#[derive(Default)]
struct First {
    /// Of a stream, and the name that the source has got. `None` where what is there decides.
    taken: Option<(Taken, Option<Name>)>,
    left: Option<Left>,
}

/// Gives what has come of a large file the name under which a run goes on with it. The tree is at
/// `tree` now; the names of its files begin with `top`.
async fn keep_beginning(
    connected: &Reached,
    tree: &RemotePath,
    top: &RemotePath,
    file: &RemotePath,
    attr: &Attr,
) {
    let below = file.names().skip(top.names().count());
    let names = tree.names().chain(below).filter_map(|name| Name::new(name).ok());
    let from = RemotePath::from_names(&names.collect::<Vec<_>>());
    let (Some(parent), Some(name)) = (from.parent(), from.file_name()) else { return };
    let machine = connected.remote.write_verifier().await.ok().flatten();
    let machine = MachineRun::of(machine.as_deref());
    let to = parent.join(&temporary::name(&name, attr, temporary::SPAN_IN_ORDER, machine));
    // What does not go well costs no more than the beginning.
    let private = AttrChange { perm: Some(0o600), ..AttrChange::default() };
    let kept = match connected.remote.setattr(&from, private).await {
        Ok(()) => connected.remote.rename(&from, &to, RenameMode::NoReplace).await,
        refused => refused,
    };
    tracing::debug!("the beginning of '{file}' is kept: {kept:?}");
}

/// Removes the file that a stream has begun beside a directory of that name.
async fn remove_stage(connected: &Reached, stage: &Name) {
    let removed = connected.remote.unlink(&RemotePath::from_names([stage])).await;
    tracing::debug!("'{stage}' is not needed: {removed:?}");
}

/// Of a regular file; of anything else zero.
fn length(path: &Path) -> u64 {
    path.symlink_metadata().ok().filter(|it| it.is_file()).map_or(0, |it| it.len())
}

fn is_file(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|it| it.is_file())
}

impl Carrier {
    pub(super) async fn push(self, asked: Asked) -> Result<Ended, Problem> {
        let far = self.far[0].clone();
        let mut to: Vec<RemotePath> = self.near.iter().map(|near| becomes(&near.name)).collect();
        let mut target = becomes(&far.place.name);
        let ahead = match &self.near[..] {
            [only] => self.list_ahead(&only.directory, becomes(&only.name)),
            _ => None,
        };
        let (mut reached, mut round_trip) = (None, Duration::ZERO);
        let (mut progressed, mut tried) = (Progressed::default(), None);
        // One file and a new name: it is the file's.
        if let ([only], Some(name)) = (&self.near[..], &far.place.name)
            && only.name.is_some()
            && !self.target_is_directory
            && only.path().symlink_metadata().is_ok_and(|it| !it.is_dir())
        {
            // Patterns are of the names of the sources.
            if self.options.filter.excludes(&becomes(&only.name), false) {
                return Ok(progressed.ended());
            }
            let first = self.push_to_new_name(only, &far, name, &mut progressed, &asked).await?;
            if matches!(first.taken, Some((Taken::Whole, _))) {
                return Ok(progressed.ended());
            }
            tried = first.taken;
            let reaching = self.reach(&far, first.left, &asked);
            let Some(connected) = self.patiently(reaching, std::future::pending()).await? else {
                progressed.interrupted();
                return Ok(progressed.ended());
            };
            let asked_at = Instant::now();
            let there = connected.remote.lstat(&target).await;
            round_trip = asked_at.elapsed();
            if !there.is_ok_and(|attr| attr.kind == FileKind::Directory) {
                to[0] = RemotePath::from_names([name]);
                target = RemotePath::root();
            } else if let Some((Taken::Staged(begun), _)) = &tried {
                // Somebody has made it meanwhile: the file comes into it, and not in its place.
                if begun.is_own {
                    remove_stage(&connected, &begun.stage).await;
                }
                tried = Some((Taken::Nothing, None));
            }
            reached = Some(connected);
        }
        let (mut rest, mut staged) = (Vec::new(), Vec::new());
        // What the first login has listed, of the source of this number.
        let (mut listed, mut is_untried) = (None, true);
        for (index, near) in self.near.iter().enumerate() {
            let place = self.push_place(near, &far, &target, &to[index]);
            let taken = match (tried.take(), place) {
                (Some(tried), _) => tried,
                (_, Ok(_)) if self.is_there(&reached, &target, &to[index]).await => {
                    let declined = Streamed::Declined(Declined::Occupied);
                    (self.taken(declined, &mut progressed)?, None)
                }
                // The session that is there is sooner done than another login.
                (_, Ok(_))
                    if reached.is_some()
                        && is_file(&near.path())
                        && self.prefers_session(length(&near.path()), round_trip) =>
                {
                    let note = "no stream by tar: the session that is there is sooner done";
                    progressed.notes.push(note.to_owned());
                    (Taken::Nothing, None)
                }
                (_, Ok(_)) if self.prefers_sessions(length(&near.path()), round_trip) => {
                    let declined = Streamed::Declined(Declined::Slower(round_trip));
                    (self.taken(declined, &mut progressed)?, None)
                }
                (_, Ok((directory, name))) => {
                    let push = Push {
                        path: near.path(),
                        directory,
                        // What the user named as the target, and not what was made of that.
                        may_make: !target.is_root() && !to[index].is_root(),
                        name: name.clone(),
                        to: to[index].clone(),
                    };
                    is_untried = false;
                    let (taken, left) =
                        self.stream_push(&far, &push, &mut progressed, &asked).await?;
                    if left.is_some() && reached.is_none() {
                        let Some(mut connected) = self.reach(&far, left, &asked).await? else {
                            progressed.interrupted();
                            return Ok(progressed.ended());
                        };
                        listed = connected.listing.take().map(|listing| (index, listing));
                        reached = Some(connected);
                    }
                    (taken, Some(name))
                }
                (_, Err(why)) => {
                    if self.may_collect(&far).is_err() {
                        self.insist(&why)?;
                    }
                    (Taken::Nothing, None)
                }
            };
            match taken {
                (Taken::Whole, _) => {}
                (Taken::Staged(begun), Some(name)) => {
                    staged.push(Staged { index, name, begun });
                }
                _ => rest.push(index),
            }
        }
        if (!rest.is_empty() || !staged.is_empty()) && progressed.outcome.is_none() {
            let connected = match (reached, &to[..]) {
                (Some(connected), _) => connected,
                // All that is in the directory itself may be much more than is pushed into it.
                (None, [only]) if is_untried && !(target.is_root() && only.is_root()) => {
                    let top = below(&target, only);
                    let Some(mut connected) = self.reach_listing(&far, &top, &asked).await? else {
                        progressed.interrupted();
                        return Ok(progressed.ended());
                    };
                    listed = connected.listing.take().map(|listing| (0, listing));
                    connected
                }
                (None, _) => {
                    let Some(connected) = self.reach(&far, None, &asked).await? else {
                        progressed.interrupted();
                        return Ok(progressed.ended());
                    };
                    connected
                }
            };
            for staged in staged {
                let (index, to) = (staged.index, &to[staged.index]);
                let collector = self.deliver(&far, &connected, 1);
                let (progressed, asked) = (&mut progressed, &asked);
                let finish = self
                    .finish_stage(&connected, collector, &target, to, staged, progressed, asked);
                if finish.await? == Finish::Compare {
                    rest.push(index);
                }
            }
            if !rest.is_empty() && !progressed.is_stopped() {
                let collector = self.deliver(&far, &connected, rest.len());
                let sources =
                    rest.into_iter().map(|index| self.near_source(index, to[index].clone()));
                let mut sources = sources.collect::<Result<Vec<_>, _>>()?;
                sources[0].tree.ahead = ahead;
                let mut tree = self.far_tree(&connected, target.clone());
                tree.ahead = listed.map(|(index, listing)| {
                    // What streams have brought meanwhile has other names.
                    Arc::new(listing.ahead(&tree.path_of(&to[index])))
                });
                let job = Job { sources, target: tree, options: self.options.clone() };
                self.run(job, collector, &mut progressed, &asked).await?;
            }
        }
        Ok(progressed.ended())
    }

    /// The streams of a run that compares so many sources with what is there.
    fn deliver(&self, far: &FarPlace, connected: &Reached, sources: usize) -> Collector {
        let shell = match (self.may_collect(far), &connected.shell) {
            (Ok(()), Some(shell)) => shell.clone(),
            (may, _) => {
                tracing::debug!("no stream by names: {may:?}");
                return Collector::default();
            }
        };
        // It is the run that counts.
        let streaming = self.streaming_for(shell, Arc::default());
        let directory = connected.directory.clone();
        Collector::outward(sources, &Deliver { streaming, directory })
    }

    /// Directory and name under which a stream may put a source.
    fn push_place(
        &self,
        near: &NearPlace,
        far: &FarPlace,
        target: &RemotePath,
        to: &RemotePath,
    ) -> Result<(Vec<u8>, Name), String> {
        self.may_stream_at_all()?;
        if let Err(error) = near.path().symlink_metadata() {
            return Err(error.to_string());
        }
        match far.spec.gateways().len() {
            0 => return Err("the target is on this machine".to_owned()),
            1 => {}
            _ if self.engine == Engine::Tar => {}
            _ => return Err("several gateways bring more than one stream".to_owned()),
        }
        let full = match (target.is_root(), to.is_root()) {
            (_, true) if self.near.len() > 1 => {
                return Err("several sources become one directory".to_owned());
            }
            (true, true) => return Err("the target is there".to_owned()),
            (true, false) => to.clone(),
            (false, true) => target.clone(),
            (false, false) => {
                let joined = [target.as_bytes(), b"/", to.as_bytes()].concat();
                RemotePath::parse(&joined).map_err(|error| error.to_string())?
            }
        };
        let name = full.file_name().ok_or("the target is there")?;
        let below = full.parent().unwrap_or_default();
        let mut directory = far.place.directory.clone();
        if !below.is_root() {
            if !directory.is_empty() && !directory.ends_with(b"/") {
                directory.push(b'/');
            }
            directory.extend_from_slice(below.as_bytes());
        }
        Ok((directory, name))
    }

    /// The stream of a file to what may be a new name, if it may have one: then the login is the only
    /// one.
    async fn push_to_new_name(
        &self,
        near: &NearPlace,
        far: &FarPlace,
        name: &Name,
        progressed: &mut Progressed,
        asked: &Asked,
    ) -> Result<First, Problem> {
        let to = RemotePath::from_names([name]);
        let Ok((directory, name)) = self.push_place(near, far, &RemotePath::root(), &to) else {
            return Ok(First::default());
        };
        let push = Push { path: near.path(), directory, may_make: false, name, to };
        let Some(shell) = self.shell(far)? else { return Ok(First::default()) };
        // What has the name may be a directory, and all that is in it is nobody's business.
        let spare = Spare::default();
        let streaming = Streaming { spare: Some(spare.clone()), ..self.streaming(shell).0 };
        let taken = match self.pushed(&streaming, far, &push, asked).await? {
            Pushed::Asked => {
                progressed.interrupted();
                Taken::Whole
            }
            Pushed::NoRoom => Taken::Nothing,
            Pushed::Streamed(streamed) => match *streamed {
                Streamed::Declined(Declined::Occupied) => {
                    return Ok(First { taken: None, left: spare.take() });
                }
                Streamed::Declined(Declined::Slower(round_trip)) => {
                    self.begin_sessions(needed(round_trip));
                    return Ok(First { taken: None, left: spare.take() });
                }
                streamed => self.taken(streamed, progressed)?,
            },
        };
        let left = spare.take();
        Ok(First { taken: Some((taken, Some(push.name))), left })
    }

    async fn stream_push(
        &self,
        far: &FarPlace,
        push: &Push,
        progressed: &mut Progressed,
        asked: &Asked,
    ) -> Result<(Taken, Option<Left>), Problem> {
        let Some(shell) = self.shell(far)? else { return Ok((Taken::Nothing, None)) };
        let (streaming, spare) = self.streaming(shell);
        match self.pushed(&streaming, far, push, asked).await? {
            Pushed::Asked => {
                progressed.interrupted();
                Ok((Taken::Whole, None))
            }
            Pushed::NoRoom => Ok((Taken::Nothing, None)),
            Pushed::Streamed(streamed) => Ok((self.taken(*streamed, progressed)?, spare.take())),
        }
    }

    async fn pushed(
        &self,
        streaming: &Streaming,
        far: &FarPlace,
        push: &Push,
        asked: &Asked,
    ) -> Result<Pushed, Problem> {
        let greeted = streaming.greeted.clone();
        let pushed = self.patiently(streaming.push(push), greeted.notified());
        match unless_asked(asked, pushed).await {
            None => Ok(Pushed::Asked),
            Some(Err(Errno::ENAMETOOLONG)) => Ok(Pushed::NoRoom),
            Some(Err(errno)) => {
                Err(Problem::new(format!("'{}'", printable(&push.path)), errno.to_string()))
            }
            Some(Ok(Streamed::Declined(Declined::NoLogin(why)))) => Err(no_login(far, why)),
            Some(Ok(streamed)) => Ok(Pushed::Streamed(Box::new(streamed))),
        }
    }

    /// Whether something is known to have the name that a source becomes.
    async fn is_there(
        &self,
        reached: &Option<Reached>,
        target: &RemotePath,
        to: &RemotePath,
    ) -> bool {
        let Some(connected) = reached else { return false };
        connected.remote.lstat(&below(target, to)).await.is_ok()
    }

    /// Brings what an interrupted stream has left out, and gives the tree its name.
    ///
    /// The stage may be one of a run that is still at work. Renamed, it is this run's: that other run
    /// finds it gone, and brings anew what it lacks.
    #[allow(clippy::too_many_arguments, reason = "they are what the steps before have found")]
    async fn finish_stage(
        &self,
        connected: &Reached,
        collector: Collector,
        target: &RemotePath,
        to: &RemotePath,
        staged: Staged,
        progressed: &mut Progressed,
        asked: &Asked,
    ) -> Result<Finish, Problem> {
        let Staged { index, name, begun } = staged;
        let was = to.clone();
        let long = |errno: Errno| Problem::new(name.to_string(), errno.to_string());
        let own = tar::stage(&name, &self.options).map_err(long)?;
        let (tree, to, parent) = match to.is_root() {
            false => (target.clone(), RemotePath::from_names([&own]), target.clone()),
            true => {
                let parent = target.parent().unwrap_or_default();
                (parent.join(&own), RemotePath::root(), parent)
            }
        };
        let (found, own) = (parent.join(&begun.stage), parent.join(&own));
        match connected.remote.rename(&found, &own, RenameMode::NoReplace).await {
            Ok(()) => {}
            // Another run has it now, or has had it.
            Err(Errno::ENOENT) if connected.remote.lstat(&parent.join(&name)).await.is_ok() => {
                return Ok(Finish::Compare);
            }
            Err(Errno::ENOENT) => {}
            Err(errno) => {
                let why = format!("cannot be renamed to '{own}': {errno}");
                return Err(Problem::new(format!("'{found}'"), why));
            }
        }
        if !tar::suits(&begun.stage, &name, &self.options) {
            self.remove_own_stage(connected, &own).await;
            return Ok(Finish::Compare);
        }
        if let Some((file, attr)) = begun
            .cut
            .as_ref()
            .filter(|_| !begun.in_doubt && self.options.partial && !self.options.sparse)
        {
            keep_beginning(connected, &own, &was, file, attr).await;
        }
        let job = Job {
            sources: vec![self.near_source(index, to)?],
            target: self.far_tree(connected, tree),
            // What a copy of another time, or with other options, has left is not of this tree.
            options: Options {
                delete: true,
                delete_excluded: true,
                existing: false,
                update: false,
                max_delete: None,
                checksum: self.options.checksum || begun.in_doubt,
                ..self.options.clone()
            },
        };
        let staged_tree = job.target.clone();
        let outcome = self.run(job, collector, progressed, asked).await?;
        if outcome.stopped.is_some() {
            return Ok(Finish::Over);
        }
        // A file that failed may be there as the stream has left it, and that is not whole.
        for problem in &outcome.problems {
            let _ = connected.remote.unlink(&staged_tree.path_of(problem.name())).await;
        }
        let in_it = outcome.problems_total > outcome.problems.len() as u64;
        if in_it || outcome.deletions_withheld > 0 {
            let why = if in_it { "so much has failed" } else { "not all in it is to be there" };
            progressed.notes.push(format!("{why} that '{own}' keeps this name for now"));
            return Ok(Finish::Over);
        }
        let to = parent.join(&name);
        let Err(errno) = connected.remote.rename(&own, &to, RenameMode::NoReplace).await else {
            return Ok(Finish::Over);
        };
        if errno == Errno::ENOENT && connected.remote.lstat(&own).await == Err(Errno::ENOENT) {
            // Another run has taken it; or nothing came of it, and that is told.
            let is_there = connected.remote.lstat(&to).await.is_ok();
            return Ok(if is_there { Finish::Compare } else { Finish::Over });
        }
        if connected.remote.lstat(&to).await.is_ok() {
            // What this run has brought is compared with it instead.
            self.remove_own_stage(connected, &own).await;
            return Ok(Finish::Compare);
        }
        let why = format!("cannot be renamed from '{own}': {errno}");
        Err(Problem::new(format!("'{to}'"), why))
    }

    /// Removes a stage that only this run uses.
    async fn remove_own_stage(&self, connected: &Reached, stage: &RemotePath) {
        let Some(shell) = &connected.shell else { return };
        let mut path = connected.directory.clone();
        if !path.is_empty() && !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend_from_slice(stage.as_bytes());
        let Some(path) = quote(&path) else { return };
        let command = [b"rm -rf -- ".to_vec(), path].concat();
        // What is left is in no client's way.
        let removed = async {
            let Running { stdin, mut stdout, exit } = shell.start(&command).await?;
            drop(stdin);
            // The end of both would be the end of the command.
            let _ = tokio::io::copy(&mut stdout, &mut tokio::io::sink()).await;
            drop(stdout);
            exit.await
        };
        match tokio::time::timeout(LOGIN_LIMIT, removed).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!("'{stage}' is left: {error}"),
            Err(_) => tracing::debug!("'{stage}' is left: its removal takes too long"),
        }
    }
}
