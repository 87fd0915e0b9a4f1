//! From this machine to another one.

use base::{Errno, FileKind, Name, RemotePath, RenameMode};
use transfer::shell::quote;
use transfer::tar::{Push, aside, stage};
use transfer::{Job, Options};

use super::{Asked, Carrier, Ended, Progressed, Reached, Taken, becomes, unless_asked};
use crate::report::{Problem, printable};
use crate::transfer::arguments::Engine;
use crate::transfer::place::FarPlace;

impl Carrier {
    pub(super) async fn push(self, asked: Asked) -> Result<Ended, Problem> {
        let far = self.far[0].clone();
        let mut to: Vec<RemotePath> = self.near.iter().map(|near| becomes(&near.name)).collect();
        let mut target = becomes(&far.place.name);
        let mut reached = None;
        // One file and a new name: it is the file's.
        if let ([only], Some(name)) = (&self.near[..], &far.place.name)
            && only.name.is_some()
            && !self.target_is_directory
            && only.path().symlink_metadata().is_ok_and(|it| !it.is_dir())
        {
            let connected = self.reach(&far).await?;
            let there = connected.remote.lstat(&target).await;
            if !there.is_ok_and(|attr| attr.kind == FileKind::Directory) {
                to[0] = RemotePath::from_names([name]);
                target = RemotePath::root();
            }
            reached = Some(connected);
        }
        let mut progressed = Progressed::default();
        let (mut rest, mut staged) = (Vec::new(), Vec::new());
        for (index, near) in self.near.iter().enumerate() {
            let taken = match self.push_place(&far, &target, &to[index]) {
                Ok((directory, name)) => {
                    let push = Push {
                        path: near.path(),
                        directory,
                        name: name.clone(),
                        to: to[index].clone(),
                    };
                    (self.stream_push(&far, &push, &mut progressed, &asked).await?, Some(name))
                }
                Err(why) => {
                    self.insist(&why)?;
                    (Taken::Nothing, None)
                }
            };
            match taken {
                (Taken::Whole, _) => {}
                (Taken::Staged, Some(name)) => staged.push((index, name)),
                _ => rest.push(index),
            }
        }
        if (!rest.is_empty() || !staged.is_empty()) && progressed.outcome.is_none() {
            let connected = match reached {
                Some(connected) => connected,
                None => self.reach(&far).await?,
            };
            for (index, name) in staged {
                self.finish_stage(
                    &connected,
                    &target,
                    &to[index],
                    index,
                    &name,
                    &mut progressed,
                    &asked,
                )
                .await?;
            }
            if !rest.is_empty() && !progressed.is_stopped() {
                let sources =
                    rest.into_iter().map(|index| self.near_source(index, to[index].clone()));
                let job = Job {
                    sources: sources.collect::<Result<_, _>>()?,
                    target: self.far_tree(&connected, target.clone()),
                    options: self.options.clone(),
                };
                self.run(job, &mut progressed, &asked).await?;
            }
        }
        Ok(progressed.ended())
    }

    /// Directory and name under which a stream may put a source.
    fn push_place(
        &self,
        far: &FarPlace,
        target: &RemotePath,
        to: &RemotePath,
    ) -> Result<(Vec<u8>, Name), String> {
        self.may_stream_at_all()?;
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

    async fn stream_push(
        &self,
        far: &FarPlace,
        push: &Push,
        progressed: &mut Progressed,
        asked: &Asked,
    ) -> Result<Taken, Problem> {
        let Some(shell) = self.shell(far)? else { return Ok(Taken::Nothing) };
        let streaming = self.streaming(shell);
        match unless_asked(asked, streaming.push(push)).await {
            None => {
                progressed.interrupted();
                Ok(Taken::Whole)
            }
            Some(Err(Errno::ENAMETOOLONG)) => Ok(Taken::Nothing),
            Some(Err(errno)) => {
                Err(Problem::new(format!("'{}'", printable(&push.path)), errno.to_string()))
            }
            Some(Ok(streamed)) => self.taken(streamed, progressed),
        }
    }

    /// Brings what an interrupted stream has left out, and gives the tree its name.
    #[allow(clippy::too_many_arguments, reason = "they are what the two steps before have found")]
    async fn finish_stage(
        &self,
        connected: &Reached,
        target: &RemotePath,
        to: &RemotePath,
        index: usize,
        name: &Name,
        progressed: &mut Progressed,
        asked: &Asked,
    ) -> Result<(), Problem> {
        let long = |errno: Errno| Problem::new(name.to_string(), errno.to_string());
        let (staged, aside) = (stage(name).map_err(long)?, aside(name).map_err(long)?);
        let (tree, to, parent) = match to.is_root() {
            false => (target.clone(), RemotePath::from_names([&aside]), target.clone()),
            true => {
                let parent = target.parent().unwrap_or_default();
                (parent.join(&aside), RemotePath::root(), parent)
            }
        };
        let (from, between) = (parent.join(&staged), parent.join(&aside));
        match connected.remote.rename(&from, &between, RenameMode::NoReplace).await {
            Ok(()) | Err(Errno::ENOENT | Errno::EEXIST) => {}
            Err(errno) => {
                let why = format!("cannot be renamed to '{between}': {errno}");
                return Err(Problem::new(format!("'{from}'"), why));
            }
        }
        let job = Job {
            sources: vec![self.near_source(index, to)?],
            target: self.far_tree(connected, tree),
            // What a copy of another time has left is not of this tree.
            options: Options { delete: true, max_delete: None, ..self.options.clone() },
        };
        let staged_tree = job.target.clone();
        let outcome = self.run(job, progressed, asked).await?;
        if outcome.stopped.is_some() {
            return Ok(());
        }
        // A file that failed may be there as the stream has left it, and that is not whole.
        for problem in &outcome.problems {
            let _ = connected.remote.unlink(&staged_tree.path_of(problem.name())).await;
        }
        if outcome.problems_total > outcome.problems.len() as u64 {
            let note = format!("so much has failed that '{aside}' keeps this name for now");
            progressed.notes.push(note);
            return Ok(());
        }
        let to = parent.join(name);
        let named = connected.remote.rename(&between, &to, RenameMode::NoReplace).await;
        named.map_err(|errno| {
            let why = format!("cannot be renamed from '{between}': {errno}");
            Problem::new(format!("'{to}'"), why)
        })?;
        self.remove_leftover(connected, &from).await;
        Ok(())
    }

    /// Removes what the tar of an interrupted stream has written after its tree was put aside.
    async fn remove_leftover(&self, connected: &Reached, staged: &RemotePath) {
        if connected.remote.lstat(staged).await.is_err() {
            return;
        }
        let Some(shell) = &connected.shell else { return };
        let mut path = connected.directory.clone();
        if !path.is_empty() && !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend_from_slice(staged.as_bytes());
        let command = [b"rm -rf -- ".to_vec(), quote(&path)].concat();
        // It is in nobody's way, and is told by its name.
        match shell.start(&command).await {
            Ok(running) => drop(running.exit.await),
            Err(error) => tracing::debug!("'{staged}' is left: {error}"),
        }
    }
}
