//! Opening files, and what goes through their handles.
//!
//! A file that is only read, and was not changed here within the lag, is opened anew through
//! another gateway when its home is left out, if it shows the same size and time of change there.
//! Any other loss is told as it is.

use std::sync::Arc;

use base::{
    Access, Attr, AttrChange, Create, Data, Errno, Fh, FileKind, OpenFlags, Opened, RemotePath,
    Result,
};
use bytes::Bytes;

use crate::files::{File, Handle};
use crate::gateways::{Answering, Set, is_loss};
use crate::member::{Health, Member, Weight};
use crate::names::Version;
use crate::recent::Extent;
use crate::replicas::Replicas;

impl Replicas {
    pub(crate) async fn open_file(&self, path: &RemotePath, flags: OpenFlags) -> Result<Opened> {
        let makes = flags.create != Create::Never;
        let changes = makes || flags.truncate;
        let writes = flags.access.writes() || changes;
        let target = if writes { self.target_of_change(path) } else { self.target_of_look(path) };
        let mut named = self.names.hold(path);
        let (mut tried, mut failed) = (Set::default(), Errno::EHOSTDOWN);
        while let Some(member) = self.gateways.next(path, target, tried).await {
            // Whoever opens the same path at this moment goes the same way.
            let home = named.claim(member.index, |home| self.stays(home, named.is_written()));
            if tried.has(home) {
                return Err(failed);
            }
            tried = tried.with(home);
            let member = &self.gateways.members[home];
            if writes {
                named.write();
            }
            let call = member.remote.open(path, flags);
            let answer = if changes {
                let extent = if makes { Extent::Unsure } else { Extent::Inside };
                let noted = self.note(path, home, extent);
                let answer = self.gateways.ask_unless_lost(member, Weight::Small, call).await;
                noted.ended(if makes { Extent::Made } else { Extent::Inside }, &answer);
                answer
            } else {
                self.gateways.ask_while_usable(member, Weight::Small, call).await
            };
            match answer {
                Err(errno) if is_loss(errno) && !changes => failed = errno,
                answer => {
                    // One that is not believed is closed again.
                    let opened = |Opened { fh, attr }| (Handle::new(member, fh), attr);
                    let (handle, attr) = self.believed(path, home, answer.map(opened))?;
                    if !self.is_current(path, home, &attr) {
                        return Err(Errno::EHOSTDOWN);
                    }
                    // A gateway looks anew at what is opened.
                    if self.is_doubtful(path, home) {
                        self.recent.note_version(path, home, Version::of(&attr));
                        named.looked_anew();
                    }
                    named.shown(&attr);
                    let file = File::new(handle, &attr, named, flags, &self.recent);
                    return Ok(Opened { fh: Fh(self.files.add(file)), attr });
                }
            }
        }
        Err(failed)
    }

    pub(crate) async fn read_file(&self, fh: Fh, offset: u64, len: u32) -> Result<Data> {
        let file = self.files.get(fh.0)?;
        if self.gateways.spreads(len)
            && let Some(lane) = file.lane(&self.ground, len)
        {
            let call = lane.member.remote.read(lane.fh(), offset, len);
            let weight = Weight::Read(len);
            match self.gateways.ask_while_usable(&lane.member, weight, call).await {
                Ok(data) if data.len() == len as usize => return Ok(data),
                // The home has the last word on where the file ends.
                Ok(_) => {}
                Err(errno) => file.lanes.leave(&lane, !is_loss(errno)),
            }
        }
        self.through_home(&file, Weight::Read(len), |member, fh| {
            member.remote.read(fh, offset, len)
        })
        .await
        .map(|(_, data)| data)
    }

    pub(crate) async fn stat_file(&self, fh: Fh) -> Result<Attr> {
        let file = self.files.get(fh.0)?;
        let changes = file.changes_begun();
        let answer = self.through_home(&file, Weight::Small, |member, fh| member.remote.fstat(fh));
        let (handle, attr) = answer.await?;
        file.showed(&handle, &attr, changes);
        Ok(attr)
    }

    /// Asks the home what changes nothing, and another gateway when that is left out. Tells which
    /// handle has answered.
    async fn through_home<T>(
        &self,
        file: &Arc<File>,
        weight: Weight,
        call: impl for<'a> Fn(&'a Member, Fh) -> Answering<'a, T>,
    ) -> Result<(Arc<Handle>, T)> {
        let mut tried = Set::default();
        loop {
            let handle = file.home();
            let member = &*handle.member;
            let may_move = file.may_move();
            let is_home = file.is_home(&handle);
            if !(is_home && member.is_usable()) && may_move && !tried.has(member.index) {
                tried = tried.with(member.index);
                if self.move_home(file, &handle, tried).await {
                    continue;
                }
            }
            let answer = self.ask_home(file, &handle, weight, &call, may_move).await;
            let failed = match answer {
                Err(errno) if is_loss(errno) || errno == Errno::ESTALE => errno,
                answer => return answer.map(|answer| (handle, answer)),
            };
            if tried.has(member.index) || !file.may_move() {
                return Err(failed);
            }
            tried = tried.with(member.index);
            // A gateway that answers, but not by this handle, may have the file all the same.
            let not = if failed == Errno::ESTALE { tried.without(member.index) } else { tried };
            if self.move_home(file, &handle, not).await {
                continue;
            }
            if member.health() != Health::Silent {
                return Err(failed);
            }
            // Nobody else has it, so this one is waited for however long that takes.
            let answer = self.ask_home(file, &handle, weight, &call, false).await;
            return answer.map(|answer| (handle.clone(), answer));
        }
    }

    /// Asks through one handle. One who `may_move` goes elsewhere when that is left out.
    async fn ask_home<T>(
        &self,
        file: &File,
        handle: &Handle,
        weight: Weight,
        call: impl for<'a> Fn(&'a Member, Fh) -> Answering<'a, T>,
        may_move: bool,
    ) -> Result<T> {
        let member = &*handle.member;
        let reached = match file.is_home(handle) {
            true => self.gateways.reach(member).await,
            // Somebody else was believed while this one was left out.
            false => Err(Errno::ESTALE),
        };
        let answer = match reached {
            Err(errno) => Err(errno),
            Ok(()) => {
                let call = call(member, handle.fh());
                match may_move {
                    true => self.gateways.ask_while_usable(member, weight, call).await,
                    false => self.gateways.ask_unless_lost(member, weight, call).await,
                }
            }
        };
        let is_dead = answer.as_ref().is_err_and(|errno| *errno == Errno::ESTALE);
        if is_dead || member.health() == Health::Lost {
            file.lost();
        }
        answer
    }

    /// Makes another handle the home of a file whose `old` one is of no use. Whether there is one.
    async fn move_home(&self, file: &Arc<File>, old: &Arc<Handle>, mut tried: Set) -> bool {
        let _alone = file.moving.lock().await;
        if !Arc::ptr_eq(&file.home(), old) {
            return true;
        }
        if let Some(lane) = file.any_lane().filter(|lane| !tried.has(lane.member.index)) {
            file.move_to(lane);
            return true;
        }
        let Some(name) = file.named.name() else { return false };
        while file.may_move() {
            let home = file.named.home().filter(|home| !tried.has(*home));
            let home = home.map(|home| &self.gateways.members[home]);
            let home = home.filter(|home| home.is_usable());
            let Some(member) = home.or_else(|| self.gateways.choose(&name, tried)) else { break };
            tried = tried.with(member.index);
            let call = member.remote.open(&name, OpenFlags::existing(Access::Read));
            let opened = self.gateways.ask_while_usable(member, Weight::Small, call).await;
            let Ok(Opened { fh, attr }) = opened else { continue };
            let handle = Arc::new(Handle::new(member, fh));
            if attr.kind == FileKind::Regular && Version::of(&attr) == file.version() {
                tracing::debug!(gateway = ?member.name, "an open file goes on through another");
                file.move_to(handle);
                return true;
            }
        }
        false
    }

    /// Carries a change out through the home, which alone will do.
    async fn change_file<T>(
        &self,
        file: &File,
        weight: Weight,
        call: impl for<'a> Fn(&'a Member, Fh) -> Answering<'a, T>,
    ) -> Result<T> {
        file.begin_change();
        self.ask_home(file, &file.home(), weight, call, false).await
    }

    pub(crate) async fn write_file(&self, fh: Fh, offset: u64, data: Bytes) -> Result<()> {
        let file = self.files.get(fh.0)?;
        let weight = Weight::Write(u32::try_from(data.len()).map_err(|_| Errno::EINVAL)?);
        self.change_file(&file, weight, |member, fh| member.remote.write(fh, offset, data.clone()))
            .await
    }

    pub(crate) async fn change_open(&self, fh: Fh, change: AttrChange) -> Result<()> {
        let file = self.files.get(fh.0)?;
        file.named.changed();
        self.change_file(&file, Weight::Small, |member, fh| member.remote.fsetattr(fh, change))
            .await
    }

    pub(crate) async fn fsync_file(&self, fh: Fh) -> Result<()> {
        let file = self.files.get(fh.0)?;
        let (handle, changes) = (file.home(), file.changes_begun());
        self.ask_home(&file, &handle, Weight::Slow, |member, fh| member.remote.fsync(fh), false)
            .await?;
        file.synced(changes);
        Ok(())
    }

    /// Gives the file back, and returns what its home answers.
    pub(crate) async fn finish_file(&self, fh: Fh) -> Result<()> {
        let file = self.files.remove(fh.0).ok_or(Errno::EBADF)?;
        let handle = file.home();
        self.ask_home(
            &file,
            &handle,
            Weight::Slow,
            |_, _| {
                let handle = handle.clone();
                Box::pin(async move { handle.finish().await })
            },
            false,
        )
        .await
    }

    pub(crate) async fn copy_between(
        &self,
        (from, from_offset): (Fh, u64),
        (to, to_offset): (Fh, u64),
        len: u64,
    ) -> Result<u64> {
        let (source, target) = (self.files.get(from.0)?, self.files.get(to.0)?);
        let from = source.home();
        if from.member.index != target.home().member.index {
            return Err(Errno::EOPNOTSUPP);
        }
        let copied = self.change_file(&target, Weight::Slow, |member, to| {
            member.remote.copy(from.fh(), from_offset, to, to_offset, len)
        });
        copied.await
    }
}
