//! Builds the layers of one mount below `vfs` from its request.
//!
//! ```text
//! union::Union                    only with several sources, a place, or branch settings
//!  ├ view::View                   a branch's links and owners; only below a union
//!  │  └ cache::Cached             only with `cache=disk`
//!  │     └ recovery::Recovering         outlives connections
//!  │        └ replicas::Replicas  only for a pool
//!  │           └ host::Host       one per gateway
//!  └ local::Local                 a local directory
//! ```
//!
//! References to the layers are kept for later commands: `status` reads a [`Stack`], and `branch`
//! changes its union and its list of sources.
//!
//! Not here: the grammar of a source (`sources`), and the layers above (`mount::wiring`).

mod connect;
mod digest_command;
pub mod disk;
mod settings;
mod view;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use base::Remote;
use cli::{Problem, printable};
use host::{Host, SessionState};
use local::Local;
use recovery::{ConnectionState, Recovering};
use replicas::{Gateway, Replicas};
use tokio::task::JoinSet;
use union::{Branch, Union};

use crate::connector::{Begun, SshConnector};
use crate::mount::request::{IdMap, LinkTargets, MountRequest};
use crate::sources::{self, Origin, Presence, SourceSpec};
use connect::{Asking, Reached, Target, Wanted};
#[cfg(feature = "fuzzing")]
pub use digest_command::fuzz as fuzz_digest_lines;
use disk::{Disk, Kept};
use view::{Owners, Roots, View};

/// The layers of a mount.
pub struct Stack {
    /// The top layer, which `vfs` uses.
    pub remote: Arc<dyn Remote>,
    /// The union; `None` for a mount of a single source.
    pub union: Option<Arc<Union>>,
    blueprint: Blueprint,
    /// The sources in the order of the branches.
    sources: RwLock<Vec<Arc<Source>>>,
}

/// One source, and the layers that serve it.
pub struct Source {
    /// The source as requested. The union has the current mode and presence.
    pub spec: SourceSpec,
    /// The layer of the disk cache, if the mount has one.
    pub cached: Option<Kept>,
    /// The layer that reconnects; `None` for a local directory.
    pub recovering: Option<Arc<Recovering>>,
    /// The pool, if there is more than one gateway.
    pub replicas: Option<Arc<Replicas>>,
    /// The gateways, or the single host, by the names that the user gave; empty for a local directory.
    pub hosts: Vec<(String, Arc<Host>)>,
    /// The local directory, if the source is one.
    pub local: Option<Arc<Local>>,
    /// Which of the hosts were connected when the source was opened.
    connected: Vec<bool>,
}

/// The common settings for building the sources of a mount.
struct Blueprint {
    request: MountRequest,
    password: Option<ssh::Password>,
    /// The disk cache, if enabled.
    disk: Option<Disk>,
    /// Connections that are open already, for the first host that is connected.
    begun: Mutex<Begun>,
}

impl Stack {
    /// Connects to all hosts and builds the layers. If the future is dropped, everything is undone.
    pub async fn build(request: &MountRequest) -> Result<Stack, Problem> {
        Stack::build_on(request, Begun::default()).await
    }

    /// Builds the layers as [`Stack::build`] does, for a single host; its first sessions use the
    /// connections in `begun`.
    pub async fn build_on(request: &MountRequest, begun: Begun) -> Result<Stack, Problem> {
        let has_host = request.sources.iter().any(|source| !source.gateways().is_empty());
        let wants_password = request.ssh.password_stdin && has_host;
        let disk = match request.disk.as_ref().filter(|_| has_host) {
            Some(options) => Some(Disk::open(options).await?),
            None => None,
        };
        let blueprint = Blueprint {
            request: request.clone(),
            password: wants_password.then(settings::password).transpose()?,
            disk,
            begun: Mutex::new(begun),
        };
        let sources = blueprint.open(&request.sources, Asking::Terminal).await?;
        if sources.iter().all(|source| source.is_disconnected()) && !request.host.delay_connect {
            return Err(Problem::new(printable(&request.source), "no source is reachable")
                .hint("all sources are optional, but at least one must be reachable; or use -o delay_connect"));
        }
        let (remote, union): (Arc<dyn Remote>, _) = match &sources[..] {
            [only] if !request.is_union() => (only.remote(), None),
            _ => {
                let mut branches = Vec::new();
                for source in &sources {
                    branches.push(blueprint.branch(source).await?);
                }
                let union = Union::new(branches, settings::policies(request))
                    .map_err(|error| Problem::new("sources", error.to_string()))?;
                let union = Arc::new(union);
                (union.clone(), Some(union))
            }
        };
        Ok(Stack { remote, union, blueprint, sources: RwLock::new(sources) })
    }

    /// The request of the mount.
    #[must_use]
    pub fn request(&self) -> &MountRequest {
        &self.blueprint.request
    }

    /// The disk cache, if enabled.
    #[must_use]
    pub fn disk(&self) -> Option<&Disk> {
        self.blueprint.disk.as_ref()
    }

    /// Waits until data that was read and is to be cached is written to the disk cache.
    pub async fn settled(&self) {
        // In parallel, so that no source waits for the host of another one.
        let mut settling = JoinSet::new();
        for source in self.sources() {
            settling.spawn(put_away(source));
        }
        settling.join_all().await;
    }

    /// The sources in the order of their branches.
    #[must_use]
    pub fn sources(&self) -> Vec<Arc<Source>> {
        self.sources.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The longest time that a server has been silent while calls wait for it: since its last byte, or
    /// `Duration::MAX` if the connection is lost. Zero while all answer.
    pub fn silent_for(&self) -> Duration {
        let sources = self.sources();
        sources.iter().map(|source| source.silent_for()).max().unwrap_or_default()
    }

    /// Connects to the hosts of a branch, without password prompts, and adds it after the existing ones.
    /// If the future is dropped, the branch was added completely or not at all. The caller invalidates
    /// what is cached above.
    pub async fn add(&self, spec: SourceSpec) -> Result<(), Problem> {
        let what = format!("source '{}'", spec.shown());
        let Some(union) = &self.union else {
            let why = "this mount has a single source and no branches";
            return Err(Problem::new(what, why).hint(
                "mount with a branch mode to be able to add branches: sshoal host:dir=rw mnt",
            ));
        };
        let mut all: Vec<SourceSpec> = self.sources().iter().map(|it| it.spec.clone()).collect();
        all.push(spec.clone());
        sources::check(&all)?;
        let opened = self.blueprint.open(std::slice::from_ref(&spec), Asking::Nobody).await?;
        let source = opened.into_iter().next().expect("one was opened");
        if let Some(local) = &source.local {
            self.blueprint.check_outside(&source, local).await?;
        }
        let branch = self.blueprint.branch(&source).await?;
        let mut sources = self.sources.write().unwrap_or_else(PoisonError::into_inner);
        // The caller invalidates all that is cached, not only what this returns.
        let _ = union.add(branch).map_err(|error| Problem::new(what, error.to_string()))?;
        sources.push(source);
        Ok(())
    }

    /// Removes a source whose branch was removed from the union. Its connections end when its last open
    /// file is closed.
    pub fn forget(&self, name: &str) {
        let mut sources = self.sources.write().unwrap_or_else(PoisonError::into_inner);
        let gone = sources.extract_if(.., |source| source.spec.shown() == name);
        // In the background: writes the data read last to the disk cache.
        gone.for_each(|source| drop(tokio::spawn(put_away(source))));
    }

    /// User and group id of the login, as `vfs` sees owners, if they are known and equal for all
    /// branches. With them, opens can be answered without a request.
    pub async fn login(&self) -> Option<(u32, u32)> {
        let request = &self.blueprint.request;
        if request.host.delay_connect {
            return None;
        }
        let mut logins = Vec::new();
        for source in self.sources() {
            // In a union, `View` has translated the owners.
            let is_local_user = self.union.is_some() && request.idmap == IdMap::User;
            logins.push(if is_local_user { Some(own_ids()) } else { source.login().await });
        }
        let first = *logins.first()?;
        first.filter(|_| logins.iter().all(|login| *login == first))
    }

    /// The translation of owners in `vfs`.
    pub async fn idmap(&self) -> Result<vfs::IdMap, Problem> {
        Ok(match &self.blueprint.request.idmap {
            IdMap::None => vfs::IdMap::Same,
            IdMap::User if self.union.is_some() => vfs::IdMap::Same,
            IdMap::User => match self.sources().first() {
                Some(source) if source.local.is_none() => source.local_user().await?,
                _ => vfs::IdMap::Same,
            },
            IdMap::File { users, groups, others_same } => vfs::IdMap::Table {
                uids: users.as_ref().map(|table| table.ids.clone()),
                gids: groups.as_ref().map(|table| table.ids.clone()),
                others_same: *others_same,
            },
        })
    }

    /// The remote root, for which `vfs` makes absolute links relative. In a union, `View` does that.
    #[must_use]
    pub fn real_root(&self) -> Option<Vec<u8>> {
        match self.union {
            Some(_) => None,
            None => self.sources().first()?.real_root(),
        }
    }
}

impl Source {
    fn remote(&self) -> Arc<dyn Remote> {
        match (&self.local, &self.cached, &self.recovering) {
            (Some(local), ..) => local.clone(),
            (None, Some(kept), _) => kept.layer.clone(),
            (None, None, Some(recovering)) => recovering.clone(),
            (None, None, None) => unreachable!("a source is local or of hosts"),
        }
    }

    fn silent_for(&self) -> Duration {
        let told = self.recovering.as_ref().map(|recovering| recovering.status());
        let is_lost = told.is_some_and(|told| {
            told.calls_waiting > 0
                && matches!(told.connection, ConnectionState::Disconnected { .. })
        });
        if is_lost {
            return Duration::MAX;
        }
        let sessions = self.hosts.iter().flat_map(|(_, host)| host.status().sessions);
        let silent = sessions.filter_map(|session| match session.state {
            SessionState::Up { silent, .. } => Some(silent),
            // A session that is being established serves no call.
            _ => None,
        });
        silent.max().unwrap_or_default()
    }

    /// Whether none of the hosts was connected.
    fn is_disconnected(&self) -> bool {
        self.local.is_none() && !self.connected.contains(&true)
    }

    /// The host or hosts, as the user wrote them.
    #[must_use]
    pub fn host_names(&self) -> String {
        if self.local.is_some() {
            return "localhost".to_owned();
        }
        let names: Vec<&str> = self.hosts.iter().map(|(name, _)| name.as_str()).collect();
        names.join(",")
    }

    fn real_root(&self) -> Option<Vec<u8>> {
        match &self.spec.origin {
            Origin::Local(path) => local_root(path),
            Origin::Hosts { .. } => {
                self.hosts.iter().find_map(|(_, host)| host.real_root()).map(<[u8]>::to_vec)
            }
        }
    }

    /// A host that was connected.
    fn connected_host(&self) -> Option<(&str, &Arc<Host>)> {
        let mut hosts = self.hosts.iter().zip(&self.connected);
        hosts.find(|(_, connected)| **connected).map(|((name, host), _)| (name.as_str(), host))
    }

    async fn login(&self) -> Option<(u32, u32)> {
        if self.local.is_some() {
            return Some(own_ids());
        }
        let (_, host) = self.connected_host()?;
        let told = host.login_ids().await;
        told.inspect_err(|error| {
            tracing::debug!(%error, "the server does not report the user id of the login");
        })
        .ok()
    }

    /// The map of `idmap=user`.
    async fn local_user(&self) -> Result<vfs::IdMap, Problem> {
        // With delay_connect, this connects.
        let host = self.connected_host().or(self.hosts.first().map(|(n, host)| (n.as_str(), host)));
        let (name, host) = host.expect("a source of hosts has one");
        user_map(host).await.map_err(|error| {
            let why =
                format!("{name}: cannot query the owner of the remote home directory: {error}");
            Problem::new("option 'idmap=user'", why)
        })
    }
}

impl Blueprint {
    /// Opens sources, and connects to all their hosts in parallel.
    async fn open(
        &self,
        specs: &[SourceSpec],
        asking: Asking,
    ) -> Result<Vec<Arc<Source>>, Problem> {
        let mut locals = Vec::new();
        let mut wanted = Vec::new();
        for spec in specs {
            locals.push(match &spec.origin {
                Origin::Local(path) => Some(self.open_local(spec, path).await?),
                Origin::Hosts { .. } => None,
            });
            wanted.push(self.wanted(spec)?);
        }
        let connectors: Vec<Vec<Arc<SshConnector>>> = wanted
            .iter()
            .map(|wanted| wanted.targets.iter().map(|it| it.connector.clone()).collect())
            .collect();
        let reached = connect::all(wanted, asking).await?;
        let mut opened = Vec::new();
        for (((spec, local), reached), connectors) in
            specs.iter().zip(locals).zip(reached).zip(connectors)
        {
            let mut source = self.source(spec, local, reached)?;
            source.cached = self.cached(&source, &connectors).await?;
            opened.push(Arc::new(source));
        }
        Ok(opened)
    }

    /// The disk cache layer of `source`. The keys of the connected hosts are known by now.
    async fn cached(
        &self,
        source: &Source,
        connectors: &[Arc<SshConnector>],
    ) -> Result<Option<Kept>, Problem> {
        let store = self.disk.as_ref().and_then(|disk| disk.store.as_ref().ok());
        let options = self.request.disk.as_ref();
        let Some(((store, options), recovering)) =
            store.zip(options).zip(source.recovering.clone())
        else {
            return Ok(None);
        };
        let cached =
            disk::cached(store, options, &self.request, &source.spec, connectors, recovering)
                .await?;
        Ok(Some(cached))
    }

    async fn open_local(
        &self,
        spec: &SourceSpec,
        path: &std::path::Path,
    ) -> Result<Arc<Local>, Problem> {
        let about = format!("source '{}'", spec.shown());
        let (path, mountpoint) = (path.to_owned(), self.request.mountpoint.clone());
        // May block on a disk or a network.
        let opened = tokio::task::spawn_blocking(move || {
            let local = Local::open(&path)?;
            // The descriptor of a mount that the caller has made names no directory.
            let is_place = !crate::mount::is_open_descriptor(&mountpoint);
            let contains = is_place && local.contains(&mountpoint)?;
            Ok((local, contains))
        });
        let opened = opened.await.map_err(|error| Problem::new(&about, error.to_string()))?;
        let (local, contains) =
            opened.map_err(|error: local::Error| Problem::new(&about, error.to_string()))?;
        if contains {
            let what = format!("mount point '{}'", printable(&self.request.mountpoint));
            let why = format!("is inside the source '{}'", spec.shown());
            return Err(Problem::new(what, why).hint("a mount cannot contain itself"));
        }
        Ok(Arc::new(local))
    }

    /// Refuses a source inside the mount: it would lead to the mount itself.
    async fn check_outside(&self, source: &Source, local: &Arc<Local>) -> Result<(), Problem> {
        let (local, mountpoint) = (local.clone(), self.request.mountpoint.clone());
        if crate::mount::is_open_descriptor(&mountpoint) {
            return Ok(());
        }
        let about = || format!("source '{}'", source.spec.shown());
        let within = tokio::task::spawn_blocking(move || local.is_within(&mountpoint)).await;
        let within = within.map_err(|error| Problem::new(about(), error.to_string()))?;
        match within.map_err(|error| Problem::new(about(), error.to_string()))? {
            true => {
                Err(Problem::new(about(), "is inside the mount")
                    .hint("a mount cannot contain itself"))
            }
            false => Ok(()),
        }
    }

    fn wanted(&self, spec: &SourceSpec) -> Result<Wanted, Problem> {
        let Origin::Hosts { gateways, directory } = &spec.origin else {
            return Ok(Wanted { targets: Vec::new(), is_optional: true });
        };
        let mut targets = Vec::new();
        for destination in gateways {
            let ssh = settings::ssh_config(
                &self.request.ssh,
                destination.clone(),
                &spec.ssh_arguments,
                self.password.clone(),
            )?;
            let begun = &mut *self.begun.lock().unwrap_or_else(PoisonError::into_inner);
            let begun = std::mem::take(begun);
            targets.push(Target {
                name: destination.to_string(),
                connector: Arc::new(SshConnector::new(ssh)?.beginning_with(begun)),
                config: settings::host_config(&self.request, directory.clone()),
            });
        }
        Ok(Wanted { targets, is_optional: spec.presence == Presence::Optional })
    }

    fn source(
        &self,
        spec: &SourceSpec,
        local: Option<Arc<Local>>,
        reached: Reached,
    ) -> Result<Source, Problem> {
        let Reached { hosts, connected } = reached;
        let mut source = Source {
            spec: spec.clone(),
            cached: None,
            recovering: None,
            replicas: None,
            hosts,
            local,
            connected,
        };
        let below: Arc<dyn Remote> = match &source.hosts[..] {
            [] => return Ok(source),
            [(_, host)] => host.clone(),
            hosts => {
                let gateway = |(name, host): &(String, Arc<Host>)| Gateway {
                    name: name.clone(),
                    remote: host.clone(),
                };
                let config = settings::replicas_config(spec.pool.unwrap_or(self.request.pool));
                let replicas = Replicas::new(hosts.iter().map(gateway).collect(), config)
                    .map_err(|error| Problem::new(spec.shown(), error.to_string()))?;
                let replicas = Arc::new(replicas);
                source.replicas = Some(replicas.clone());
                replicas
            }
        };
        let config = settings::recovery_config(&self.request, spec.shown());
        source.recovering = Some(Recovering::new(below, config));
        Ok(source)
    }

    /// A source as a branch of the union, with links and owners translated if requested.
    async fn branch(&self, source: &Source) -> Result<Branch, Problem> {
        let links = &self.request.links;
        let rewrites = links.targets == LinkTargets::Inside || links.transform;
        let hosts: Vec<Arc<Host>> = source.hosts.iter().map(|(_, host)| host.clone()).collect();
        let roots = match &source.spec.origin {
            Origin::Hosts { .. } => Some(Roots::OfHosts(hosts.clone())),
            Origin::Local(path) => local_root(path).map(Roots::Known),
        };
        // Local directories need no translation of ids.
        let owners = match self.request.idmap == IdMap::User && source.local.is_none() {
            false => None,
            // An unreachable host is queried later.
            true if source.is_disconnected() => Some(Owners::of_login(hosts)),
            true => Some(Owners::known(source.local_user().await?)),
        };
        let mut remote = source.remote();
        let roots = roots.filter(|_| rewrites);
        if roots.is_some() || owners.is_some() {
            remote = Arc::new(View::new(remote, roots, owners));
        }
        Ok(Branch {
            name: source.spec.shown(),
            host: source.host_names(),
            place: source.spec.place.clone(),
            remote,
            mode: settings::mode(source.spec.mode),
            presence: settings::presence(source.spec.presence),
        })
    }
}

/// The ssh configuration of each gateway of a source, for running commands there.
pub fn ssh_configs(request: &MountRequest, spec: &SourceSpec) -> Result<Vec<ssh::Config>, Problem> {
    let config = |gateway: &ssh::Destination| {
        settings::ssh_config(&request.ssh, gateway.clone(), &spec.ssh_arguments, None)
    };
    spec.gateways().iter().map(config).collect()
}

/// An absolute path without links in it.
fn local_root(path: &std::path::Path) -> Option<Vec<u8>> {
    use std::os::unix::ffi::OsStringExt;
    path.canonicalize().ok().map(PathBuf::into_os_string).map(OsStringExt::into_vec)
}

/// The ids of the user of this process.
fn own_ids() -> (u32, u32) {
    (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw())
}

/// The map of `idmap=user` for one host.
async fn user_map(host: &Host) -> base::Result<vfs::IdMap> {
    match host.login_ids().await {
        Ok((uid, gid)) => Ok(local_user(uid, gid)),
        Err(base::Errno::EOPNOTSUPP) => {
            tracing::warn!(
                "idmap=user: the server does not report the user id of the login, so owners are \
                 not translated; idmap=file translates them by a table"
            );
            Ok(vfs::IdMap::Same)
        }
        Err(error) => Err(error),
    }
}

/// Maps the remote login to the local user.
fn local_user(uid: u32, gid: u32) -> vfs::IdMap {
    let (own_uid, own_gid) = own_ids();
    vfs::IdMap::User { uid: (uid, own_uid), gid: (gid, own_gid) }
}

/// Writes the data read from it to the disk cache, as far as it is to be cached.
async fn put_away(source: Arc<Source>) {
    if let Some(kept) = &source.cached {
        kept.layer.shutdown().await;
    }
}
