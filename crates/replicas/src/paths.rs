//! What goes by path: looks, which go on at another gateway when one is lost, and changes, which
//! are made once, through one gateway, and noted.

use base::{Attr, AttrChange, Errno, Location, Remote, RemotePath, RenameMode, Result, StatVfs};

use crate::gateways::{Answering, Set, Target, is_loss};
use crate::member::Weight;
use crate::names::Version;
use crate::recent::{Extent, Recent};
use crate::replicas::Replicas;

/// A change on its way. Noted at once, since it may happen however this ends, and again when it is
/// over, since it may have happened as late as that.
pub(crate) struct Noted<'a> {
    recent: &'a Recent,
    path: &'a RemotePath,
    gateway: usize,
    extent: Extent,
}

impl Noted<'_> {
    /// It was asked for with the aim of `extent`, and has ended so.
    pub(crate) fn ended<T>(mut self, extent: Extent, answer: &Result<T>) {
        self.extent = match (answer, extent) {
            (Ok(_), extent) => extent,
            (Err(errno), Extent::Made) if is_loss(*errno) => Extent::Lost { there: true },
            (Err(errno), Extent::Gone) if is_loss(*errno) => Extent::Lost { there: false },
            (Err(_), _) => return,
        };
    }
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        self.recent.note(self.path, self.gateway, self.extent);
    }
}

impl Replicas {
    /// Notes a change of `path` that is about to be asked for.
    pub(crate) fn note<'a>(
        &'a self,
        path: &'a RemotePath,
        gateway: usize,
        extent: Extent,
    ) -> Noted<'a> {
        self.recent.note(path, gateway, extent);
        Noted { recent: &self.recent, path, gateway, extent }
    }

    /// Asks about `path`.
    pub(crate) async fn look<'a, T>(
        &'a self,
        path: &RemotePath,
        call: impl Fn(&'a dyn Remote) -> Answering<'a, T>,
    ) -> Result<T> {
        self.look_and_tell(path, call).await.map(|(_, answer)| answer)
    }

    /// As [`Replicas::look`]; tells who has answered.
    async fn look_and_tell<'a, T>(
        &'a self,
        path: &RemotePath,
        call: impl Fn(&'a dyn Remote) -> Answering<'a, T>,
    ) -> Result<(usize, T)> {
        let target = self.target_of_look(path);
        let (gateway, answer) = self.gateways.look(path, target, call).await?;
        Ok((gateway, self.believed(path, gateway, answer)?))
    }

    pub(crate) async fn lstat_path(&self, path: &RemotePath) -> Result<Attr> {
        for _ in 0..=self.gateways.members.len() {
            let unseen = self.recent.unseen(path);
            let (gateway, attr) = self.look_and_tell(path, |remote| remote.lstat(path)).await?;
            if let Some(change) = unseen.filter(|change| change.gateway == gateway) {
                self.recent.saw(path, change, Version::of(&attr));
            }
            if !self.is_current(path, gateway, &attr) || self.is_doubtful(path, gateway) {
                return Err(Errno::EHOSTDOWN);
            }
            let Some(named) = self.names.get(path) else { return Ok(attr) };
            // If the home is left out, whoever was believed is the home from now on.
            let writing = named.is_written();
            if named.claim(gateway, |home| self.stays(home, writing)) == gateway {
                named.shown(&attr);
                return Ok(attr);
            }
            // It was opened elsewhere meanwhile.
        }
        Err(Errno::EHOSTDOWN)
    }

    pub(crate) async fn read_link(&self, path: &RemotePath) -> Result<Vec<u8>> {
        self.look(path, |remote| remote.readlink(path)).await
    }

    pub(crate) async fn figures(&self, path: &RemotePath) -> Result<StatVfs> {
        self.look(path, |remote| remote.statvfs(path)).await
    }

    pub(crate) async fn locate_path(&self, path: &RemotePath) -> Result<Vec<Location>> {
        self.look(path, |remote| remote.locate(path)).await
    }

    pub(crate) async fn fsync_dir(&self, path: &RemotePath) -> Result<()> {
        // Only the gateway that has made the entries can put them on the server's disk.
        let changed = self.recent.of(path).map(|changed| changed.gateway);
        let changed = changed.filter(|gateway| self.stays(*gateway, true));
        let target = changed.map_or_else(|| self.target_of_look(path), Target::Only);
        let (_, answer) = self.gateways.look(path, target, |remote| remote.fsyncdir(path)).await?;
        answer
    }

    /// Carries out a change of these paths, which become what stands beside them.
    async fn change<'a>(
        &'a self,
        target: Target,
        paths: &[(&RemotePath, Extent)],
        call: impl FnOnce(&'a dyn Remote) -> Answering<'a, ()>,
    ) -> Result<()> {
        let first = paths.first().map(|(path, _)| *path).ok_or(Errno::EINVAL)?;
        let member = self.gateways.next(first, target, Set::default()).await;
        let member = member.ok_or(Errno::EHOSTDOWN)?;
        let noted: Vec<_> = paths
            .iter()
            .map(|(path, extent)| match extent {
                Extent::Inside => self.note(path, member.index, Extent::Inside),
                _ => self.note(path, member.index, Extent::Unsure),
            })
            .collect();
        let call = call(&*member.remote);
        let answer = self.gateways.ask_unless_lost(member, Weight::Small, call).await;
        for (noted, (_, extent)) in noted.into_iter().zip(paths) {
            noted.ended(*extent, &answer);
        }
        answer
    }

    /// As [`Replicas::change`], of one path.
    async fn change_one<'a>(
        &'a self,
        path: &RemotePath,
        extent: Extent,
        call: impl FnOnce(&'a dyn Remote) -> Answering<'a, ()>,
    ) -> Result<()> {
        self.change(self.target_of_change(path), &[(path, extent)], call).await
    }

    pub(crate) async fn change_path(&self, path: &RemotePath, change: AttrChange) -> Result<()> {
        if let Some(named) = self.names.get(path) {
            named.changed();
        }
        self.change_one(path, Extent::Inside, |remote| remote.setattr(path, change)).await
    }

    pub(crate) async fn make_dir(&self, path: &RemotePath, perm: u32) -> Result<()> {
        self.change_one(path, Extent::Made, |remote| remote.mkdir(path, perm)).await
    }

    pub(crate) async fn remove_dir(&self, path: &RemotePath) -> Result<()> {
        self.change_one(path, Extent::Gone, |remote| remote.rmdir(path)).await
    }

    /// The home of an open file is the one to remove its name: that one knows that it is open.
    pub(crate) async fn remove_name(&self, path: &RemotePath) -> Result<()> {
        self.change_one(path, Extent::Gone, |remote| remote.unlink(path)).await?;
        self.names.removed(path);
        Ok(())
    }

    pub(crate) async fn make_symlink(&self, target: &[u8], path: &RemotePath) -> Result<()> {
        self.change_one(path, Extent::Made, |remote| remote.symlink(target, path)).await
    }

    pub(crate) async fn make_link(&self, existing: &RemotePath, new: &RemotePath) -> Result<()> {
        let paths = [(existing, Extent::Inside), (new, Extent::Made)];
        let target = either(self.target_of_change(existing), self.target_of_change(new));
        self.change(target, &paths, |remote| remote.link(existing, new)).await
    }

    /// The home of a file that loses its name counts before that of the one which gets it, for the
    /// same reason as in [`Replicas::remove_name`].
    pub(crate) async fn rename_path(
        &self,
        from: &RemotePath,
        to: &RemotePath,
        mode: RenameMode,
    ) -> Result<()> {
        let target = match self.names.get(to) {
            Some(_) => either(self.target_of_change(to), self.target_of_change(from)),
            None => either(self.target_of_change(from), self.target_of_change(to)),
        };
        let paths: &[_] = match from == to {
            true => &[(from, Extent::Inside)],
            false => &[(from, Extent::Gone), (to, Extent::Made)],
        };
        self.change(target, paths, |remote| remote.rename(from, to, mode)).await?;
        self.names.renamed(from, to);
        Ok(())
    }
}

/// The first, unless that is anybody.
fn either(first: Target, second: Target) -> Target {
    if first == Target::Any { second } else { first }
}
