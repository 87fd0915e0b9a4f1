//! A pool of gateways, and whom it asks about what.

use std::sync::Arc;

use base::{Attr, Errno, RemotePath, Result, Table};
use tokio::sync::watch;

use crate::config::{Config, Error, Gateway, MAX_GATEWAYS};
use crate::files::File;
use crate::gateways::{Gateways, Target};
use crate::keeper;
use crate::lanes::Ground;
use crate::listing::Listing;
use crate::member::Health;
use crate::names::Names;
use crate::recent::Recent;
use crate::status::Status;

/// Several gateways to one directory as one [`base::Remote`].
///
/// To be used within the tokio runtime in which it was made. What it does in the background ends
/// when it is dropped.
pub struct Replicas {
    pub(crate) gateways: Arc<Gateways>,
    pub(crate) names: Arc<Names>,
    pub(crate) recent: Arc<Recent>,
    pub(crate) ground: Arc<Ground>,
    pub(crate) files: Table<File>,
    pub(crate) listings: Table<Listing>,
    _wants: watch::Sender<()>,
}

impl Replicas {
    /// A pool of these gateways, all of which are taken for well. Needs a tokio runtime around it.
    ///
    /// # Errors
    /// When there is no gateway, or more than [`MAX_GATEWAYS`].
    pub fn new(gateways: Vec<Gateway>, config: Config) -> std::result::Result<Replicas, Error> {
        match gateways.len() {
            0 => return Err(Error::NoGateway),
            1..=MAX_GATEWAYS => {}
            many => return Err(Error::TooMany(many)),
        }
        let (wants, wanted) = watch::channel(());
        let gateways = Arc::new(Gateways::new(gateways, config.mode));
        for member in &gateways.members {
            let (gateways, member) = (gateways.clone(), member.clone());
            tokio::spawn(keeper::keep(gateways, member, config.deadline, wanted.clone()));
        }
        let recent = Arc::new(Recent::new(config.lag));
        let ground = Ground { gateways: gateways.clone(), recent: recent.clone(), wanted };
        Ok(Replicas {
            gateways,
            names: Arc::default(),
            recent,
            ground: Arc::new(ground),
            files: Table::default(),
            listings: Table::default(),
            _wants: wants,
        })
    }

    /// How the gateways are now.
    #[must_use]
    pub fn status(&self) -> Status {
        Status {
            gateways: self.gateways.members.iter().map(|member| member.status()).collect(),
            open_files: self.files.len(),
            recent_changes: self.recent.len(),
        }
    }

    /// Whether what is open for `writing` at `gateway` has to stay there. One that is only silent
    /// may still carry out what it was sent.
    pub(crate) fn stays(&self, gateway: usize, writing: bool) -> bool {
        match self.gateways.members[gateway].health() {
            Health::Well | Health::Returning => true,
            Health::Silent => writing,
            Health::Lost => false,
        }
    }

    /// Whom to ask about what `path` names.
    pub(crate) fn target_of_look(&self, path: &RemotePath) -> Target {
        if let Some(named) = self.names.get(path)
            && let Some(home) = named.home()
        {
            return match named.is_written() && self.stays(home, true) {
                true => Target::Only(home),
                false => Target::Rather(home),
            };
        }
        self.recent.of(path).map_or(Target::Any, |changed| Target::Rather(changed.gateway))
    }

    /// Who is to change what `path` names, or that it names something.
    pub(crate) fn target_of_change(&self, path: &RemotePath) -> Target {
        if let Some(named) = self.names.get(path)
            && let Some(home) = named.home()
        {
            return match named.is_written() && self.stays(home, true) {
                true => Target::Only(home),
                false => Target::Patiently(home),
            };
        }
        let changed = self.recent.of_place(path);
        changed.map_or(Target::Any, |changed| Target::Patiently(changed.gateway))
    }

    /// Whether `gateway` shows with `attr` what another one has written to `path` a short time ago,
    /// or something newer. If not, nobody can be asked for it while that one is left out.
    pub(crate) fn is_current(&self, path: &RemotePath, gateway: usize, attr: &Attr) -> bool {
        let changed = self.recent.of(path).filter(|it| it.gateway != gateway);
        let version = changed.and_then(|changed| changed.version);
        version.is_none_or(|version| version.is_shown_by(attr))
    }

    /// Whether another one than `gateway` has changed `path` a short time ago, and nothing was seen
    /// of it since: then nothing tells whether `gateway` shows what was before.
    pub(crate) fn is_doubtful(&self, path: &RemotePath, gateway: usize) -> bool {
        let changed = self.recent.of(path).filter(|it| it.gateway != gateway);
        let open = || self.names.get(path)?.changed_elsewhere(gateway);
        changed.is_some_and(|changed| changed.unseen)
            || open().is_some_and(|at| self.recent.may_be_unseen(at))
    }

    /// The answer of `gateway` about `path`, unless it denies what another one has done a short
    /// time ago: that one is left out, and nobody can be asked for the truth now. What only cannot
    /// be reached must not look as if it were gone, nor what is gone as if it were back.
    pub(crate) fn believed<T>(
        &self,
        path: &RemotePath,
        gateway: usize,
        answer: Result<T>,
    ) -> Result<T> {
        let Some(changed) = self.recent.of(path).filter(|it| it.gateway != gateway) else {
            return answer;
        };
        match (changed.there, &answer) {
            (Some(true), Err(Errno::ENOENT)) | (Some(false), Ok(_)) => Err(Errno::EHOSTDOWN),
            (None, Err(Errno::ENOENT)) if changed.may_be_new => Err(Errno::EHOSTDOWN),
            (_, Ok(_) | Err(Errno::ENOENT)) if changed.is_open => Err(Errno::EHOSTDOWN),
            _ => answer,
        }
    }
}
