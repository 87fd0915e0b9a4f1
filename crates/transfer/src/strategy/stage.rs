//! Completes a pushed tree that has not got its name: copies what its stream has not copied, and
//! renames it.
//!
//! The stage may be that of a copy that is still at work. It is renamed first, so that it belongs
//! to this copy: the other one finds that it is gone, and copies again what it lacks.
//!
//! 1. The stage is renamed to one of this copy; one of other options is removed. If it is a file,
//!    not a tree, its beginning gets the temporary name with which any later run continues it, or it
//!    is removed, and that is all.
//! 2. A run copies what is missing, and deletes what is not of the source.
//! 3. The tree gets its name.

use base::shell::quote;
use base::{Attr, AttrChange, Errno, Name, RemotePath, RenameMode};

use super::context::{Connected, Context};
use super::operand::path_in;
use super::results::Results;
use super::{CopyError, Halt};
use crate::job::Job;
use crate::options::Options;
use crate::outcome::{Doing, Fault, Problem};
use crate::plan;
use crate::tar::by_name::StreamsByName;
use crate::tar::{self, LOGIN_LIMIT, Stage};
use crate::temporary::{self, MachineRun};

/// Limit of the output of a removal, which prints nothing.
const ANSWER_BYTES: u64 = 64 << 10;

/// One stage.
pub(super) struct Completion<'a> {
    context: &'a Context,
    connected: &'a Connected,
    stage: Stage,
    /// The source: its number, and what it becomes relative to the target.
    source: (usize, &'a RemotePath),
    /// Paths in the remote: of the stage as it was found, as this copy calls it, and as the tree
    /// is called when it is whole.
    found: RemotePath,
    own: RemotePath,
    whole: RemotePath,
    /// The target of the run into the stage, and what the source becomes relative to that.
    target: RemotePath,
    to: RemotePath,
}

impl<'a> Completion<'a> {
    pub(super) fn new(
        context: &'a Context,
        connected: &'a Connected,
        target: &RemotePath,
        source: (usize, &'a RemotePath),
        stage: Stage,
    ) -> Result<Completion<'a>, CopyError> {
        let own = tar::stage(&stage.name, &context.request.options);
        let own = own.map_err(|errno| CopyError::failed(stage.name.to_string(), errno))?;
        let (parent, target, to) = match source.1.is_root() {
            false => (target.clone(), target.clone(), RemotePath::from_names([&own])),
            true => {
                let parent = target.parent().unwrap_or_default();
                (parent.clone(), parent.join(&own), RemotePath::root())
            }
        };
        let [found, own, whole] = [&stage.stage, &own, &stage.name].map(|it| parent.join(it));
        Ok(Completion { context, connected, stage, source, found, own, whole, target, to })
    }

    /// True if another copy was faster, the stage is of no use, or it is a file, which a run under the
    /// final name continues: what has the name, if anything, is to be compared with the source.
    /// Otherwise the tree has its name, or the results say what is wrong.
    pub(super) async fn run(
        self,
        by_name: StreamsByName,
        results: &mut Results,
    ) -> Result<bool, Halt> {
        let context = self.context;
        if !context.unless_stopped(self.claim()).await?? {
            return Ok(true);
        }
        match self.complete(by_name, results).await? {
            true => Ok(context.unless_stopped(self.name()).await??),
            false => Ok(false),
        }
    }

    /// Makes the stage one of this copy; whether it is to be completed.
    async fn claim(&self) -> Result<bool, CopyError> {
        match self.rename(&self.found, &self.own).await {
            Ok(()) => {}
            // Another copy has it now, or had it.
            Err(Errno::ENOENT) if self.exists(&self.whole).await => return Ok(false),
            Err(Errno::ENOENT) => {}
            Err(errno) => {
                let why = format!("cannot be renamed to '{}': {errno}", self.own);
                return Err(CopyError::failed(format!("'{}'", self.found), why));
            }
        }
        let remote = &self.connected.connection.remote;
        let options = &self.context.request.options;
        if !tar::suits(&self.stage.stage, &self.stage.name, options) {
            self.remove().await;
            return Ok(false);
        }
        let is_file = remote.lstat(&self.own).await.is_ok_and(|attr| !attr.is_dir());
        let mut is_kept = false;
        if let Some((file, attr)) = &self.stage.cut
            && !self.stage.in_doubt
            && !options.no_partial
            && !options.sparse
        {
            is_kept = self.keep_beginning(file, attr, is_file).await;
        }
        if is_file && !is_kept {
            let removed = remote.unlink(&self.own).await;
            tracing::debug!("'{}' is not continued: {removed:?}", self.own);
        }
        Ok(!is_file)
    }

    /// Copies what is missing; whether the tree is whole then.
    async fn complete(&self, by_name: StreamsByName, results: &mut Results) -> Result<bool, Halt> {
        let options = &self.context.request.options;
        let job = Job {
            sources: vec![self.context.local_source(self.source.0, self.to.clone())?],
            target: self.connected.tree(self.target.clone()),
            // What an earlier copy, or one with other options, has left is not of this tree.
            options: Options {
                delete: true,
                delete_excluded: true,
                is_stage: true,
                existing: false,
                update: false,
                max_delete: None,
                checksum: options.checksum || self.stage.in_doubt,
                ..self.context.options_for(self.source.0, &self.to)
            },
        };
        let tree = job.target.clone();
        let shown = (!self.to.is_root()).then(|| (self.to.clone(), self.source.1.clone()));
        let outcome = self.context.run(job, by_name, shown, results).await?;
        if outcome.stopped.is_some() {
            return Ok(false);
        }
        let removing = async {
            let mut is_partial = outcome.problems_total > outcome.problems.len() as u64;
            for problem in &outcome.problems {
                is_partial |= !self.remove_failed(&tree.path_of(&problem.name), problem).await;
            }
            is_partial
        };
        let is_partial = self.context.unless_stopped(removing).await?;
        if is_partial || outcome.deletions_withheld > 0 {
            let problem = self.unnamed();
            self.context.show_problem(&problem);
            results.keep_stage(problem, outcome.deletions_withheld);
            return Ok(false);
        }
        Ok(true)
    }

    /// The tree is not at the target under its name.
    fn unnamed(&self) -> Problem {
        let name = match self.source.1.is_root() {
            false => self.source.1.clone(),
            true => RemotePath::from_names([&self.stage.name]),
        };
        Fault::Unnamed { stage: self.own.clone() }.of(&name)
    }

    /// Gives the tree its name; true as [`Completion::run`] returns it.
    async fn name(&self) -> Result<bool, CopyError> {
        let Err(errno) = self.rename(&self.own, &self.whole).await else { return Ok(false) };
        let remote = &self.connected.connection.remote;
        if errno == Errno::ENOENT && remote.lstat(&self.own).await == Err(Errno::ENOENT) {
            // Another copy has taken it; or nothing was copied, and the results say why.
            return Ok(self.exists(&self.whole).await);
        }
        if self.exists(&self.whole).await {
            // The source is compared with it instead.
            self.remove().await;
            return Ok(true);
        }
        let why = format!("cannot be renamed from '{}': {errno}", self.own);
        Err(CopyError::failed(format!("'{}'", self.whole), why))
    }

    /// Removes an entry that failed: it may be a file as the stream has left it, and that is not
    /// whole. False if such files remain.
    async fn remove_failed(&self, path: &RemotePath, problem: &Problem) -> bool {
        // The name may lead to the other file, which is complete. So is what lacks attributes.
        if matches!(problem.fault, Fault::NameCollision | Fault::RefusedXattrs { .. }) {
            return true;
        }
        let remote = &self.connected.connection.remote;
        if let Ok(()) | Err(Errno::ENOENT | Errno::ENOTDIR) = remote.unlink(path).await {
            return true;
        }
        let Ok(attr) = remote.lstat(path).await else { return false };
        match problem.fault {
            // The entries of this directory were compared.
            Fault::Failed { doing: Doing::SetAttr | Doing::Sync, .. } if attr.is_dir() => true,
            _ => {
                attr.is_dir()
                    && plan::list(remote, path).await.is_ok_and(|entries| entries.is_empty())
            }
        }
    }

    async fn rename(&self, from: &RemotePath, to: &RemotePath) -> base::Result<()> {
        self.connected.connection.remote.rename(from, to, RenameMode::NoReplace).await
    }

    async fn exists(&self, path: &RemotePath) -> bool {
        self.connected.connection.remote.lstat(path).await.is_ok()
    }

    /// Gives the beginning of a large file, in which the stream broke, the name under which the run
    /// continues it. A file that is the stage itself (`is_stage`) is continued under the name that
    /// it will get; whether it has that name.
    async fn keep_beginning(&self, file: &RemotePath, attr: &Attr, is_stage: bool) -> bool {
        let remote = &self.connected.connection.remote;
        let below = file.names().skip(self.source.1.names().count());
        let names = self.own.names().chain(below).filter_map(|name| Name::new(name).ok());
        let from = RemotePath::from_names(&names.collect::<Vec<_>>());
        let whole = if is_stage { &self.whole } else { &from };
        let (Some(parent), Some(name)) = (whole.parent(), whole.file_name()) else { return false };
        let machine = remote.write_verifier().await.ok().flatten();
        let machine = MachineRun::of(machine.as_deref());
        let to = parent.join(&temporary::name(&name, attr, temporary::SPAN_IN_ORDER, machine));
        // A failure costs no more than the beginning.
        let private = AttrChange { perm: Some(0o600), ..AttrChange::default() };
        let kept = match remote.setattr(&from, private).await {
            Ok(()) => self.rename(&from, &to).await,
            refused => refused,
        };
        tracing::debug!("the beginning of '{file}' is kept: {kept:?}");
        kept.is_ok()
    }

    /// Removes the stage, which only this copy uses. A failure leaves it to the user.
    async fn remove(&self) {
        let Some(shell) = &self.connected.shell else { return };
        let Some(path) = quote(&path_in(&self.connected.directory, &self.own)) else { return };
        let command = [b"rm -rf -- ".to_vec(), path].concat();
        let removed = shell.output(&command, ANSWER_BYTES);
        let own = &self.own;
        match tokio::time::timeout(LOGIN_LIMIT, removed).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!("'{own}' is left: {error}"),
            Err(_) => tracing::debug!("'{own}' is left: its removal takes too long"),
        }
    }
}
