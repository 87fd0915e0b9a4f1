//! A pool of gateways, and the routing of its requests.

use std::sync::Arc;

use base::{Attr, Errno, Owner, RemotePath, Result, Table};

use crate::config::{Config, Error, Gateway, MAX_GATEWAYS};
use crate::files::File;
use crate::gateways::{GatewaySet, Gateways, Target};
use crate::health_checker;
use crate::listing::Listing;
use crate::member::Health;
use crate::open_paths::OpenPaths;
use crate::recent_changes::RecentChanges;
use crate::status::Status;
use crate::stripes::PoolContext;

/// Several gateways to one directory as one [`base::Remote`].
///
/// To be used within the tokio runtime in which it was created. Its background tasks end when it is
/// dropped.
pub struct Replicas {
    pub(crate) gateways: Arc<Gateways>,
    pub(crate) open_paths: Arc<OpenPaths>,
    pub(crate) recent: Arc<RecentChanges>,
    pub(crate) context: Arc<PoolContext>,
    pub(crate) files: Table<File>,
    pub(crate) listings: Table<Listing>,
    _owner: Owner,
}

impl Replicas {
    /// A pool of these gateways, all of which are assumed to be healthy. Needs a tokio runtime.
    ///
    /// # Errors
    /// When there is no gateway, or more than [`MAX_GATEWAYS`].
    pub fn new(gateways: Vec<Gateway>, config: Config) -> std::result::Result<Replicas, Error> {
        match gateways.len() {
            0 => return Err(Error::NoGateway),
            1..=MAX_GATEWAYS => {}
            many => return Err(Error::TooMany(many)),
        }
        let owner = Owner::default();
        let gateways = Arc::new(Gateways::new(gateways, config.mode));
        for member in &gateways.members {
            let (gateways, member) = (gateways.clone(), member.clone());
            let checks = health_checker::run(gateways, member, config.deadline);
            let lifetime = owner.lifetime();
            tokio::spawn(async move { lifetime.run(checks).await });
        }
        let recent = Arc::new(RecentChanges::new(config.lag));
        let context = PoolContext {
            gateways: gateways.clone(),
            recent: recent.clone(),
            lifetime: owner.lifetime(),
        };
        Ok(Replicas {
            gateways,
            open_paths: Arc::default(),
            recent,
            context: Arc::new(context),
            files: Table::default(),
            listings: Table::default(),
            _owner: owner,
        })
    }

    /// The present state of the gateways.
    pub fn status(&self) -> Status {
        Status {
            gateways: self.gateways.members.iter().map(|member| member.status()).collect(),
            open_files: self.files.len(),
            recent_changes: self.recent.len(),
        }
    }

    /// The name of the gateway to which a command that reads and changes files below `path` should
    /// go now: the one of the last change there, or else the one that a request would use. `None`
    /// if all are left out.
    pub fn gateway_of(&self, path: &RemotePath) -> Option<&str> {
        let members = &self.gateways.members;
        let changed = self.recent.last_below(path).or(match self.query_target(path) {
            Target::Any => None,
            Target::Prefer(index) | Target::PreferWaiting(index) | Target::Only(index) => {
                Some(index)
            }
        });
        let usable = changed.map(|index| &members[index]).filter(|member| member.is_usable());
        let member = usable.or_else(|| self.gateways.choose(path, GatewaySet::default()))?;
        Some(&member.name)
    }

    /// Whether a handle at `gateway`, open for `writing` or not, has to stay there. A silent
    /// gateway may still carry out the requests it was sent.
    pub(crate) fn must_stay(&self, gateway: usize, writing: bool) -> bool {
        match self.gateways.members[gateway].health() {
            Health::Healthy | Health::Returning => true,
            Health::Silent => writing,
            Health::Lost => false,
        }
    }

    /// The gateway for queries of `path`.
    pub(crate) fn query_target(&self, path: &RemotePath) -> Target {
        if let Some(open_path) = self.open_paths.get(path)
            && let Some(primary) = open_path.primary()
        {
            return match open_path.has_writers() && self.must_stay(primary, true) {
                true => Target::Only(primary),
                false => Target::Prefer(primary),
            };
        }
        self.recent.get(path).map_or(Target::Any, |changed| Target::Prefer(changed.gateway))
    }

    /// The gateway for changes of `path`.
    pub(crate) fn change_target(&self, path: &RemotePath) -> Target {
        if let Some(open_path) = self.open_paths.get(path)
            && let Some(primary) = open_path.primary()
        {
            return match open_path.has_writers() && self.must_stay(primary, true) {
                true => Target::Only(primary),
                false => Target::PreferWaiting(primary),
            };
        }
        let changed = self.recent.get_or_parent(path);
        changed.map_or(Target::Any, |changed| Target::PreferWaiting(changed.gateway))
    }

    /// Whether the attributes that `gateway` shows are those of the version recently written to
    /// `path` through another gateway, or newer ones. If not, no gateway can answer while that one
    /// is left out. An open file may have been changed since that version was seen.
    pub(crate) fn is_current(&self, path: &RemotePath, gateway: usize, attr: &Attr) -> bool {
        let changed = self.recent.get(path).filter(|it| it.gateway != gateway);
        let version = changed.and_then(|changed| changed.version);
        let is_later = || {
            let open_path = self.open_paths.get(path);
            open_path.is_some_and(|open_path| open_path.changed_since_recorded(gateway))
        };
        version.is_none_or(|version| {
            version.is_shown_by(attr) || (version.may_precede(attr) && is_later())
        })
    }

    /// Whether another gateway has changed `path` recently, and its result was not seen since: then
    /// `gateway` may show the state before the change.
    pub(crate) fn may_be_stale(&self, path: &RemotePath, gateway: usize) -> bool {
        let changed = self.recent.get(path).filter(|it| it.gateway != gateway);
        let open = || self.open_paths.get(path)?.changed_elsewhere(gateway);
        changed.is_some_and(|changed| changed.unseen)
            || open().is_some_and(|at| self.recent.may_be_unseen(at))
    }

    /// Whether a directory above `path` was renamed since a recent change of `path`.
    pub(crate) fn is_moved(&self, path: &RemotePath) -> bool {
        self.recent.get(path).is_some_and(|changed| changed.is_moved)
    }

    /// The answer of `gateway` about `path`, unless it contradicts a recent change through another
    /// gateway: that one is left out, so no gateway can answer. An unreachable file must not look
    /// as if it were removed, nor a removed one as if it existed.
    pub(crate) fn reject_stale<T>(
        &self,
        path: &RemotePath,
        gateway: usize,
        answer: Result<T>,
    ) -> Result<T> {
        let Some(changed) = self.recent.get(path) else { return answer };
        if changed.gateway == gateway {
            let may_be_stale = changed.may_be_hidden() && matches!(answer, Err(Errno::ENOENT));
            return if may_be_stale { Err(Errno::EHOSTDOWN) } else { answer };
        }
        match (changed.exists, &answer) {
            (Some(true), Err(Errno::ENOENT)) | (Some(false), Ok(_)) => Err(Errno::EHOSTDOWN),
            (None, Err(Errno::ENOENT)) if changed.was_changed_before => Err(Errno::EHOSTDOWN),
            (_, Ok(_) | Err(Errno::ENOENT)) if changed.is_ambiguous => Err(Errno::EHOSTDOWN),
            _ => answer,
        }
    }
}
