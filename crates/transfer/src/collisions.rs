//! Name collisions: different names of the source that are the same name at the target.
//!
//! A file system that ignores case, or the form of accented letters, has one entry for both names.
//! A file that is copied under the first name then replaces the file of the second name, and a
//! deletion of the second name removes the copy. Only the file system itself knows which names
//! collide. But an entry has one name in a listing: a new name that exists and is not listed has
//! collided with a listed name.
//!
//! So after everything was copied, the directories in which names may collide are listed once more:
//! those with new names and names to be deleted, and those whose new names look alike
//! ([`may_collide`](crate::plan::may_collide)). A new name that is not listed is a problem, so
//! nothing is deleted.

use std::collections::HashMap;
use std::sync::Arc;

use base::{Errno, Name, RemotePath};

use crate::dir::Dir;
use crate::outcome::{Doing, Fault, Problem};
use crate::plan::{Listed, list_readable};
use crate::run::Core;
use crate::task::at_most;

/// Directories that are listed at once.
const AT_ONCE: usize = 64;

/// New names of a directory of the target.
pub(crate) struct NewNames {
    /// Held until the listing, which its final mode may refuse.
    pub(crate) dir: Arc<Dir>,
    pub(crate) names: Vec<Name>,
    /// Other names of the directory are to be deleted.
    pub(crate) has_surplus: bool,
}

/// Lists these directories, and reports a problem for each new name that is not listed. Deletions
/// of names that are no longer listed are dropped.
pub(crate) async fn check(core: &Arc<Core>) {
    let new = std::mem::take(&mut core.deferred.lock().new_names);
    let works = new.into_iter().map(|new| {
        let core = core.clone();
        async move {
            let listed = core.unless_stopped(check_one(&core, &new)).await.flatten();
            listed.filter(|_| new.has_surplus).map(|it| (new.dir.place.name.clone(), it))
        }
    });
    let listed: HashMap<RemotePath, Vec<Name>> =
        at_most(AT_ONCE, works).await.into_iter().flatten().collect();
    core.deferred.lock().deletions.retain(|deletion| {
        let names = listed.get(&deletion.dir.place.name);
        let last = deletion.name.file_name();
        names.zip(last).is_none_or(|(names, last)| names.binary_search(&last).is_ok())
    });
}

/// The names in the directory.
async fn check_one(core: &Core, new: &NewNames) -> Option<Vec<Name>> {
    let (target, dir) = (&core.job.target, &new.dir.place.name);
    let Listed { entries, failed } = match list_readable(&target.remote, &target.path_of(dir)).await
    {
        Ok(listed) => listed,
        // It was not created, and that was reported.
        Err(Errno::ENOENT | Errno::ENOTDIR) => return None,
        Err(errno) => {
            core.problem(&Problem::failed(dir, Doing::ListTarget)(errno));
            return None;
        }
    };
    let failed = failed.into_iter().map(|(name, _)| name);
    let mut listed: Vec<Name> = entries.into_iter().map(|(name, _)| name).chain(failed).collect();
    listed.sort_unstable();
    for name in new.names.iter().filter(|name| listed.binary_search(name).is_err()) {
        let name = dir.join(name);
        match target.remote.lstat(&target.path_of(&name)).await {
            Ok(_) => core.problem(&Fault::NameCollision.of(&name)),
            // It was not created, and that was reported.
            Err(Errno::ENOENT) => {}
            Err(errno) => core.problem(&Problem::failed(&name, Doing::LookTarget)(errno)),
        }
    }
    Some(listed)
}
