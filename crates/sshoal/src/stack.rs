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
pub mod disk;
mod place;
mod view;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::{Mutex, Remote, RemotePath};
use cli::{OrProblem, Problem, printable};
use host::{Host, SessionState};
use local::Local;
use recovery::{ConnectionState, Recovering, RetryPolicy};
use replicas::{Gateway, Replicas};
use tokio::task::JoinSet;
use union::{Branch, Presence, Union};
use vfs::RemoteRoot;

use crate::connector::{Begun, SshConnector};
use crate::login::not_of_mount;
use crate::mount::check_sources;
use crate::mount::request::{IdMapKind, MountRequest};
use crate::sources::{Origin, SourceSpec};
pub use connect::Server;
use connect::{Asking, Target, Wanted};
use disk::{Disk, Kept, LoginRecord};
use view::{Owners, View};

/// The layers of a mount.
pub struct Stack {
    /// The top layer, which `vfs` uses.
    pub remote: Arc<dyn Remote>,
    /// The union; `None` for a mount of a single source.
    pub union: Option<Arc<Union>>,
    blueprint: Blueprint,
    /// The sources in the order of the branches.
    sources: Mutex<Vec<Arc<Source>>>,
    bounds: Arc<CacheBounds>,
}

/// The bounds of the disk cache as they were last set: its size and the free space in bytes. Tasks
/// apply them, in any order.
#[derive(Default)]
struct CacheBounds {
    wanted: Mutex<(Option<u64>, Option<u64>)>,
    /// Held while they are applied.
    applying: Mutex<()>,
}

impl CacheBounds {
    /// Applies the bounds that are wanted by the time when no other task does.
    fn apply(&self, set: impl FnOnce(Option<u64>, Option<u64>)) {
        let _alone = self.applying.lock();
        let (size, free) = *self.wanted.lock();
        set(size, free);
    }
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
    /// The gateways, or the single host; empty for a local directory.
    pub hosts: Vec<Server>,
    /// The local directory, if the source is one.
    pub local: Option<Arc<Local>>,
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
    /// The first sessions of the first host use the connections in `begun`. `password` is called if
    /// the password comes from standard input.
    pub async fn build_on(
        request: &MountRequest,
        begun: Begun,
        password: impl FnOnce() -> Result<ssh::Password, Problem>,
    ) -> Result<Stack, Problem> {
        let has_host = request.sources.iter().any(|source| !source.gateways().is_empty());
        let wants_password = request.ssh.password_stdin && has_host;
        let disk = match request.disk.as_ref().filter(|_| has_host) {
            Some(options) => Some(Disk::open(options).await?),
            None => None,
        };
        let blueprint = Blueprint {
            request: request.clone(),
            password: wants_password.then(password).transpose()?,
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
                let union = Union::new(branches, request.union).or_problem("sources")?;
                let union = Arc::new(union);
                (union.clone(), Some(union))
            }
        };
        let (sources, bounds) = (Mutex::new(sources), Arc::default());
        Ok(Stack { remote, union, blueprint, sources, bounds })
    }

    /// The request of the mount.
    pub fn request(&self) -> &MountRequest {
        &self.blueprint.request
    }

    /// The disk cache, if enabled.
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
    pub fn sources(&self) -> Vec<Arc<Source>> {
        self.sources.lock().clone()
    }

    /// Logs in with a password at the host that the status shows by this name. If that succeeds,
    /// its further connections use the password.
    pub async fn log_in(&self, name: &str, password: ssh::Password) -> Result<(), Problem> {
        let sources = self.sources();
        let hosts = sources.iter().flat_map(|source| &source.hosts);
        let named: Vec<&Server> = hosts.filter(|host| printable(&host.name) == name).collect();
        let needs_it = |host: &&&Server| host.password_state() == ssh::PasswordState::Needed;
        let first = named.iter().find(needs_it).or(named.first());
        let first = first.ok_or_else(|| not_of_mount(name))?;
        first.connector.try_password(&password).await?;
        // By other options of ssh, or at another port, the name may be that of another server.
        let reached_by = |server: &Server| {
            let config = server.connector.dialer.config().clone();
            (config.port, config.transport, config.ssh_command, config.args, config.typed_password)
        };
        let is_same = |host: &&&Server| reached_by(host) == reached_by(first);
        for server in named.iter().filter(is_same) {
            server.connector.dialer.keep(password.clone());
            server.host.retry_now();
        }
        Ok(())
    }

    /// The longest time that a server of what is at `path`, or in the directory there, has been
    /// silent while calls wait for it: since its last byte, or `Duration::MAX` if the connection is
    /// lost. Zero while all answer. `None`: any server.
    pub fn silent_for(&self, path: Option<&RemotePath>) -> Duration {
        let sources = self.sources();
        let concerned = |source: &&Arc<Source>| {
            let place = RemotePath::from_names(&source.spec.place);
            path.is_none_or(|path| union::may_have(&place, path))
        };
        sources.iter().filter(concerned).map(|it| it.silent_for()).max().unwrap_or_default()
    }

    /// Connects to the hosts of a branch, without password prompts, and adds it after the existing
    /// ones. If the future is dropped, the branch was added completely or not at all. The caller
    /// invalidates what is cached above.
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
        check_sources(self.request(), &all)?;
        let opened = self.blueprint.open(std::slice::from_ref(&spec), Asking::Nobody).await?;
        let source = opened.into_iter().next().expect("one was opened");
        if let Some(local) = &source.local {
            self.blueprint.check_outside(&spec, local.clone()).await?;
        }
        let branch = self.blueprint.branch(&source).await?;
        let mut sources = self.sources.lock();
        // The caller invalidates all that is cached, not only what this returns.
        let _ = union.add(branch).or_problem(what)?;
        sources.push(source);
        Ok(())
    }

    /// Changes the options of the layers that can be changed, in all sources.
    pub fn configure(&self, request: &MountRequest) {
        let policy = retry_policy(request);
        for source in self.sources() {
            source.recovering.iter().for_each(|recovering| recovering.set_retry_policy(policy));
            source.cached.iter().for_each(|kept| kept.layer.set_stale_ok(request.vfs.serve_stale));
            for server in &source.hosts {
                server.host.set_max_conns(request.host.max_conns);
            }
        }
        let store = self.disk().and_then(|disk| disk.store.as_ref().ok()).cloned();
        if let Some((store, options)) = store.zip(request.disk.as_ref()) {
            *self.bounds.wanted.lock() = (options.size_bytes, options.free_bytes);
            let bounds = self.bounds.clone();
            // Writes a file on a disk that may hang.
            drop(tokio::task::spawn_blocking(move || {
                bounds.apply(|size, free| store.set_bounds(size, free));
            }));
        }
    }

    /// Removes a source whose branch was removed from the union. Its connections end when its last
    /// open file is closed.
    pub fn forget(&self, name: &str) {
        let mut sources = self.sources.lock();
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
            let is_local_user = self.union.is_some() && request.idmap.kind == IdMapKind::User;
            logins.push(if is_local_user { Some(own_ids()) } else { source.login().await });
        }
        let first = *logins.first()?;
        first.filter(|_| logins.iter().all(|login| *login == first))
    }

    /// The translation of owners in `vfs`.
    pub async fn idmap(&self) -> Result<vfs::IdMap, Problem> {
        let request = &self.blueprint.request;
        match self.sources().first() {
            // In a union, `View` translates the owners.
            Some(source)
                if request.idmap.kind == IdMapKind::User
                    && self.union.is_none()
                    && source.local.is_none() =>
            {
                source.local_user().await
            }
            _ => Ok(request.vfs.idmap.clone()),
        }
    }

    /// The paths of the remote root, for which `vfs` makes absolute links relative. In a union,
    /// `View` does that.
    pub fn remote_roots(&self) -> Vec<RemoteRoot> {
        match (&self.union, self.sources().first()) {
            (None, Some(source)) => source.roots(),
            _ => Vec::new(),
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
        let sessions = self.hosts.iter().flat_map(|server| server.host.status().sessions);
        let silent = sessions.filter_map(|session| match session.state {
            SessionState::Up { silent, .. } => Some(silent),
            // A session that is being established serves no call.
            _ => None,
        });
        silent.max().unwrap_or_default()
    }

    /// Whether none of the hosts was connected.
    fn is_disconnected(&self) -> bool {
        self.local.is_none() && !self.hosts.iter().any(|server| server.connected)
    }

    /// The host or hosts, as the user wrote them.
    pub fn host_names(&self) -> String {
        if self.local.is_some() {
            return "localhost".to_owned();
        }
        let names: Vec<&str> = self.hosts.iter().map(|server| server.name.as_str()).collect();
        names.join(",")
    }

    /// The paths of its root. Those on hosts are known once they are connected; until then, links
    /// may come from the disk cache.
    fn roots(&self) -> Vec<RemoteRoot> {
        let known = match (&self.spec.origin, &self.cached) {
            (Origin::Local(path), _) => local_root(path),
            (_, Some(kept)) if self.is_disconnected() => kept.login.root(),
            _ => None,
        };
        let known = known.map(|root| RemoteRoot::new(root.into()));
        let of_hosts = self.hosts.iter().map(|server| server.host.real_root_once_known());
        known.into_iter().chain(of_hosts).collect()
    }

    /// Records the path of its root, for mounts whose host is not connected.
    fn record_root(&self) {
        let root = self.hosts.iter().find_map(|server| server.host.real_root());
        if let Some((kept, root)) = self.cached.as_ref().zip(root) {
            kept.login.set_root(root);
        }
    }

    /// The disk cache, if no host is contacted.
    fn offline(&self) -> Option<&Kept> {
        self.cached.as_ref().filter(|kept| kept.is_offline)
    }

    fn login_record(&self) -> Option<LoginRecord> {
        self.cached.as_ref().map(|kept| kept.login.clone())
    }

    /// A host that was connected.
    fn connected_host(&self) -> Option<&Server> {
        self.hosts.iter().find(|server| server.connected)
    }

    async fn login(&self) -> Option<(u32, u32)> {
        if self.local.is_some() {
            return Some(own_ids());
        }
        let told = self.connected_host()?.host.login_ids().await;
        told.inspect_err(|error| {
            tracing::debug!(%error, "the server does not report the user id of the login");
        })
        .ok()
    }

    /// The map of `idmap=user`.
    async fn local_user(&self) -> Result<vfs::IdMap, Problem> {
        if let Some(kept) = self.offline() {
            return Ok(recorded_user_map(&kept.login));
        }
        // With delay_connect, this connects.
        let server = self.connected_host().or(self.hosts.first());
        let Server { name, host, .. } = server.expect("a source of hosts has one");
        user_map(host, self.login_record().as_ref()).await.map_err(|error| {
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
                Origin::Local(path) => Some(self.open_local(spec, path.clone()).await?),
                Origin::Hosts { .. } => None,
            });
            wanted.push(self.wanted(spec)?);
        }
        let reached = connect::all(wanted, asking).await?;
        let mut opened = Vec::new();
        for ((spec, local), hosts) in specs.iter().zip(locals).zip(reached) {
            let mut source = self.source(spec, local, hosts)?;
            source.cached = self.cached(&source).await?;
            source.record_root();
            opened.push(Arc::new(source));
        }
        Ok(opened)
    }

    /// The disk cache layer of `source`. The keys of the connected hosts are known by now.
    async fn cached(&self, source: &Source) -> Result<Option<Kept>, Problem> {
        let store = self.disk.as_ref().and_then(|disk| disk.store.as_ref().ok());
        match (store, &self.request.disk, &source.recovering) {
            (Some(store), Some(options), Some(below)) => {
                disk::cached(store, options, &self.request, source, below.clone()).await.map(Some)
            }
            _ => Ok(None),
        }
    }

    async fn open_local(&self, spec: &SourceSpec, path: PathBuf) -> Result<Arc<Local>, Problem> {
        let mountpoint = self.request.mountpoint.clone();
        let (local, contains) = blocking(spec, move || {
            let local = Local::open(&path)?;
            // The descriptor of a mount that the caller has made names no directory.
            let is_place = !crate::mount::is_open_descriptor(&mountpoint);
            let contains = is_place && local.contains(&mountpoint)?;
            Ok((local, contains))
        })
        .await?;
        if contains {
            let what = format!("mount point '{}'", printable(&self.request.mountpoint));
            let why = format!("is inside the source '{}'", spec.shown());
            return Err(Problem::new(what, why).hint("a mount cannot contain itself"));
        }
        Ok(Arc::new(local))
    }

    /// Refuses a source inside the mount: it would lead to the mount itself.
    async fn check_outside(&self, spec: &SourceSpec, local: Arc<Local>) -> Result<(), Problem> {
        let mountpoint = self.request.mountpoint.clone();
        if !crate::mount::is_open_descriptor(&mountpoint)
            && blocking(spec, move || local.is_within(&mountpoint)).await?
        {
            let what = format!("source '{}'", spec.shown());
            return Err(
                Problem::new(what, "is inside the mount").hint("a mount cannot contain itself")
            );
        }
        Ok(())
    }

    fn wanted(&self, spec: &SourceSpec) -> Result<Wanted, Problem> {
        let Origin::Hosts { gateways, directory } = &spec.origin else {
            return Ok(Wanted { targets: Vec::new(), is_optional: true });
        };
        let inode_attrs = self.request.shows_inodes(spec);
        let mut targets = Vec::new();
        for destination in gateways {
            // A branch that was added later may be on another host than the password is for.
            let mut requested = self.request.sources.iter().flat_map(SourceSpec::gateways);
            let is_requested = requested.any(|gateway| gateway == destination);
            let password = self.password.clone().filter(|_| is_requested);
            let ssh = ssh_config(&self.request, spec, destination, password)?;
            let begun = std::mem::take(&mut *self.begun.lock());
            targets.push(Target {
                name: destination.to_string(),
                connector: Arc::new(SshConnector::new(ssh)?.beginning_with(begun)),
                config: host::Config {
                    name: printable(destination.to_string()),
                    base: directory.clone(),
                    inode_attrs,
                    ..self.request.host.clone()
                },
            });
        }
        Ok(Wanted { targets, is_optional: spec.presence == Presence::Optional })
    }

    fn source(
        &self,
        spec: &SourceSpec,
        local: Option<Arc<Local>>,
        hosts: Vec<Server>,
    ) -> Result<Source, Problem> {
        let (mut replicas, mut recovering) = (None, None);
        let below: Option<Arc<dyn Remote>> = match &hosts[..] {
            [] => None,
            [only] => Some(only.host.clone()),
            servers => {
                let gateway = |server: &Server| Gateway {
                    name: server.name.clone(),
                    remote: server.host.clone(),
                };
                let mode = spec.pool.unwrap_or(self.request.pool);
                let config = replicas::Config { mode, ..replicas::Config::default() };
                let pool = Replicas::new(servers.iter().map(gateway).collect(), config)
                    .or_problem(spec.shown())?;
                let pool = Arc::new(pool);
                replicas = Some(pool.clone());
                Some(pool)
            }
        };
        if let Some(below) = below {
            let config = recovery::Config {
                retry_policy: retry_policy(&self.request),
                name: spec.shown(),
                ..recovery::Config::default()
            };
            recovering = Some(Recovering::new(below, config));
        }
        Ok(Source { spec: spec.clone(), cached: None, recovering, replicas, hosts, local })
    }

    /// A source as a branch of the union, with links and owners translated if requested.
    async fn branch(&self, source: &Source) -> Result<Branch, Problem> {
        let vfs = &self.request.vfs;
        let rewrites = vfs.links == vfs::Links::Inside || vfs.transform_links;
        let hosts: Vec<Arc<Host>> = source.hosts.iter().map(|it| it.host.clone()).collect();
        let roots = if rewrites { source.roots() } else { Vec::new() };
        // Local directories need no translation of ids.
        let has_login = self.request.idmap.kind == IdMapKind::User && source.local.is_none();
        let owners = match has_login {
            false => None,
            // An unreachable host is queried later.
            true if source.is_disconnected() && source.offline().is_none() => {
                Some(Owners::of_login(hosts, source.login_record()))
            }
            true => Some(Owners::known(source.local_user().await?)),
        };
        let mut remote = source.remote();
        if !roots.is_empty() || owners.is_some() {
            remote = Arc::new(View { inner: remote, roots, owners });
        }
        Ok(Branch {
            name: source.spec.shown(),
            host: source.host_names(),
            place: source.spec.place.clone(),
            remote,
            mode: source.spec.mode,
            presence: source.spec.presence,
        })
    }
}

/// What calls do while their host is unreachable.
fn retry_policy(request: &MountRequest) -> RetryPolicy {
    if request.host.reconnect { request.retry } else { RetryPolicy::None }
}

/// Runs a task about a local directory that may block on a disk or a network.
async fn blocking<T: Send + 'static>(
    spec: &SourceSpec,
    task: impl FnOnce() -> Result<T, local::Error> + Send + 'static,
) -> Result<T, Problem> {
    let what = format!("source '{}'", spec.shown());
    tokio::task::spawn_blocking(task).await.or_problem(&*what)?.or_problem(what)
}

/// The ssh configuration of each gateway of a source, for running commands there.
pub fn ssh_configs(request: &MountRequest, spec: &SourceSpec) -> Result<Vec<ssh::Config>, Problem> {
    let config = |gateway| {
        let config = ssh_config(request, spec, gateway, None)?;
        Ok(ssh::Config { typed_password: ssh::TypedPassword::Unseen, ..config })
    };
    spec.gateways().iter().map(config).collect()
}

fn ssh_config(
    request: &MountRequest,
    spec: &SourceSpec,
    gateway: &ssh::Destination,
    password: Option<ssh::Password>,
) -> Result<ssh::Config, Problem> {
    let options = &request.ssh;
    let sftp_server = options.sftp_server.as_ref().map(|server| {
        let text = server.to_str().map(str::to_owned);
        text.ok_or_else(|| Problem::new("option 'sftp_server'", "not valid UTF-8"))
    });
    Ok(ssh::Config {
        transport: options.transport,
        ssh_command: options.command.clone(),
        // ssh uses the first of two values.
        args: [&spec.ssh_arguments[..], &options.arguments].concat(),
        sftp_server: sftp_server.transpose()?,
        password,
        typed_password: options.typed_password,
        ..ssh::Config::new(gateway.clone())
    })
}

/// Reads the password from standard input; on a terminal with a prompt and without echo.
pub fn read_password() -> Result<ssh::Password, Problem> {
    let read = ssh::Password::read(std::io::stdin(), "Password: ").or_problem("password")?;
    read.ok_or_else(|| {
        Problem::new("password", "standard input is empty")
            .hint("password_stdin reads the password from the first line of standard input")
    })
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

/// The map of `idmap=user` for one host, whose ids are recorded if there is a disk cache.
async fn user_map(host: &Host, record: Option<&LoginRecord>) -> base::Result<vfs::IdMap> {
    match host.login_ids().await {
        Ok((uid, gid)) => {
            if let Some(record) = record {
                record.set((uid, gid));
            }
            Ok(local_user(uid, gid))
        }
        Err(base::Errno::EOPNOTSUPP) => {
            tracing::warn!(
                "idmap=user: the server does not report the user id of the login, so owners are \
                 not translated; idmap=file translates them by a table"
            );
            Ok(vfs::IdMap::default())
        }
        Err(error) => Err(error),
    }
}

/// The map of `idmap=user` for a host that is not contacted.
fn recorded_user_map(record: &LoginRecord) -> vfs::IdMap {
    match record.get() {
        Some((uid, gid)) => local_user(uid, gid),
        None => {
            tracing::warn!(
                "idmap=user: the user id of the login is not in the cache, so owners are not \
                 translated; a mount with idmap=user and without offline stores it"
            );
            vfs::IdMap::default()
        }
    }
}

/// Maps the remote login to the local user.
fn local_user(uid: u32, gid: u32) -> vfs::IdMap {
    let (own_uid, own_gid) = own_ids();
    vfs::IdMap { uids: vfs::Ids::Swap(uid, own_uid), gids: vfs::Ids::Swap(gid, own_gid) }
}

/// Writes the data read from it to the disk cache, as far as it is to be cached.
async fn put_away(source: Arc<Source>) {
    // Of a host that was connected later.
    source.record_root();
    if let Some(kept) = &source.cached {
        kept.layer.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;
    use crate::mount::option_tests::whole_request;
    use crate::sources::source;

    /// A union of a local directory and the host `first`, which is unreachable.
    async fn union(dir: &Path, options: &str) -> Stack {
        let (local, mountpoint) = (dir.join("local"), dir.join("m"));
        for directory in [&local, &mountpoint] {
            std::fs::create_dir_all(directory).unwrap();
        }
        let local = format!("local:{}", local.display());
        let words = [&*local, "first:=optional", mountpoint.to_str().unwrap(), "-o", options];
        let password = || Ok(ssh::Password::new("secret"));
        Stack::build_on(&whole_request(&words), Begun::default(), password).await.unwrap()
    }

    #[tokio::test]
    async fn an_added_branch_obeys_the_rules_for_the_sources_of_a_mount() {
        let dir = tempfile::tempdir().unwrap();
        let (program, log) = (dir.path().join("login"), dir.path().join("log"));
        let script = format!("#!/bin/sh\necho \"$*\" >> {}\nexit 1\n", log.display());
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        let password = format!("password_stdin,ssh_command={}", program.display());
        for (options, why) in [
            (&*password, "option 'password_stdin': would send one password to several hosts"),
            ("vsock=1:1", "option 'vsock': one address carries a single connection"),
        ] {
            let stack = union(dir.path(), options).await;
            let said = stack.add(source("second:=optional")).await.unwrap_err().to_string();
            assert!(said.starts_with(why), "{said}");
            assert_eq!(stack.sources().len(), 2);
        }
        let logins = std::fs::read_to_string(&log).unwrap();
        assert!(logins.contains("first") && !logins.contains("second"), "{logins}");

        // When the host of the password was removed, no other one gets it.
        let stack = union(dir.path(), &password).await;
        for (name, has_password) in [("second:", false), ("first:", true)] {
            let present = stack.sources()[1].spec.shown();
            let _ = stack.union.as_ref().unwrap().remove(&present).unwrap();
            stack.forget(&present);
            stack.add(source(&format!("{name}=optional"))).await.unwrap();
            let added = stack.sources()[1].clone();
            assert_eq!(added.spec.shown(), name);
            let password = &added.hosts[0].connector.dialer.config().password;
            assert_eq!(password.is_some(), has_password, "{name}");
        }
    }

    #[test]
    fn the_bounds_that_were_set_last_are_applied_by_each_task() {
        let bounds = CacheBounds::default();
        let mut applied = Vec::new();
        for size in [1, 2] {
            *bounds.wanted.lock() = (Some(size), None);
        }
        // The task of the first change may be the last one to run.
        for _ in 0..2 {
            bounds.apply(|size, free| applied.push((size, free)));
        }
        assert_eq!(applied, [(Some(2), None); 2]);
    }
}
