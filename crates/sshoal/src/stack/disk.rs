//! The disk cache of a mount: its directory, and the layer of each source that uses it.
//!
//! **Identity of a source.** Cached data belongs to a source, and must never be served for another
//! one. A source is identified by the login (user, host and port after ssh's configuration) with
//! the host's key in `known_hosts` ([`ssh::Dialer::identity`]), and by the directory as it was
//! typed: its real path is known only with a connection, and a mount with `offline` has none. Of a
//! pool, all gateways are part of the identity. See `docs/cache.md`.

use std::path::PathBuf;
use std::sync::Arc;

use base::{Attr, FileKind, Remote, RemotePath, Timestamp};
use cache::{
    Cached, CachedConfig, DigestSource, KnownAttr, KnownLink, RemoteDigests, SourceId, Store,
    StoreConfig, StoreError,
};
use cli::{OrProblem, Problem, printable};
use vfs::Consistency;

use super::Source;
use crate::mount::disk::DiskOptions;
use crate::mount::request::MountRequest;
use crate::sources::Origin;

/// Maximum size of the store's records in memory, in bytes: the listings of a few thousand
/// directories. `vfs` caches most of what is in use.
const MEMORY_BYTES: u64 = 4 << 20;

/// The cache of a mount.
pub struct Disk {
    /// The directory.
    pub dir: PathBuf,
    /// The store; or the reason why the mount works without it.
    pub store: Result<Store, String>,
}

impl Disk {
    /// Opens the store. An invalid directory is an error. A failing disk is one only with
    /// `offline`, since without the store the hosts would be contacted.
    pub async fn open(options: &DiskOptions) -> Result<Disk, Problem> {
        let dir = options.dir.clone().map_or_else(default_dir, Ok)?;
        let config = StoreConfig {
            dir: dir.clone(),
            size_bytes: options.size_bytes,
            free_bytes: options.free_bytes,
            memory_bytes: MEMORY_BYTES,
            digests: options.digest.is_some(),
        };
        let about = || format!("cache '{}'", printable(&dir));
        let opening = move || Store::open(config).inspect(Store::remember_bounds);
        let opened = tokio::task::spawn_blocking(opening).await;
        let opened = opened.or_problem(about())?;
        let store = match opened {
            Ok(store) => Ok(store),
            Err(error) if is_of_disk(&error) && !options.offline => {
                tracing::warn!("mounted without the disk cache: {error}");
                Err(error.to_string())
            }
            Err(error) => {
                let hint = match is_of_disk(&error) {
                    true => "a mount with offline shows nothing but the cache",
                    false => "choose another directory, owned by you, with cache_dir=DIR",
                };
                return Err(Problem::new(about(), error.to_string()).hint(hint));
            }
        };
        Ok(Disk { dir, store })
    }
}

/// The disk cache layer of one source.
pub struct Kept {
    /// The layer.
    pub layer: Arc<Cached>,
    /// The identity of the source in the store.
    pub id: SourceId,
    /// The ids of the login at the host.
    pub login: LoginRecord,
    /// No host is contacted.
    pub is_offline: bool,
}

/// The record of what mounts with `offline` need of a source's host: the ids of the login, for
/// `idmap=user`, and the path of the root, for absolute links. That also serves other mounts whose
/// host is not connected. They are stored as the owner and the link target of the root of a source
/// of its own.
#[derive(Clone)]
pub struct LoginRecord {
    store: Store,
    source: SourceId,
}

impl LoginRecord {
    fn new(store: &Store, id: &SourceId) -> LoginRecord {
        let source = SourceId::new(&[id.as_bytes(), &b" login"[..]].concat());
        LoginRecord { store: store.clone(), source }
    }

    /// The recorded user and group id.
    pub fn get(&self) -> Option<(u32, u32)> {
        let known = self.store.attr(&self.source, &RemotePath::root())?;
        Some((known.attr.uid, known.attr.gid))
    }

    /// Records the ids.
    pub fn set(&self, (uid, gid): (u32, u32)) {
        if self.get() == Some((uid, gid)) {
            return;
        }
        let (time, kind) = (Timestamp::default(), FileKind::Directory);
        let attr = Attr { kind, perm: 0, size: 0, uid, gid, atime: time, mtime: time, inode: None };
        let known = KnownAttr { attr, seen_at: Timestamp::now() };
        self.store.record_attr(&self.source, &RemotePath::root(), &known);
    }

    /// The recorded path of the root, absolute and without links in it.
    pub fn root(&self) -> Option<Vec<u8>> {
        let known = self.store.link(&self.source, &RemotePath::root())?;
        Some(known.target.to_vec())
    }

    /// Records the path of the root.
    pub fn set_root(&self, path: &[u8]) {
        if self.root().as_deref() == Some(path) {
            return;
        }
        let known = KnownLink { target: path.into(), seen_at: Timestamp::now() };
        self.store.record_link(&self.source, &RemotePath::root(), &known);
    }
}

/// Whether the disk has failed; the mount then works without the cache.
fn is_of_disk(error: &StoreError) -> bool {
    matches!(error, StoreError::Io { .. })
}

/// The user's default directory.
pub fn default_dir() -> Result<PathBuf, Problem> {
    // Mounts of the system have no home.
    let system = || rustix::process::geteuid().is_root().then(|| "/var/cache/sshoal".into());
    cache::store::default_dir().or_else(system).ok_or_else(|| {
        Problem::new("cache=disk", "neither XDG_CACHE_HOME nor HOME is set")
            .hint("name the directory of the cache with cache_dir=DIR")
    })
}

/// The cache layer around `below`, for the source `source`.
pub(super) async fn cached(
    store: &Store,
    options: &DiskOptions,
    request: &MountRequest,
    source: &Source,
    below: Arc<dyn Remote>,
) -> Result<Kept, Problem> {
    let Origin::Hosts { directory, .. } = &source.spec.origin else {
        unreachable!("a directory of this machine is not cached")
    };
    let mut gateways = Vec::new();
    for server in &source.hosts {
        gateways.push(server.connector.dialer.identity().await);
    }
    let id = source_id(gateways, directory, request.host.follow_symlinks);
    let config = CachedConfig {
        inode_attrs: request.shows_inodes(&source.spec),
        mode: match request.vfs.consistency {
            Consistency::Immutable => cache::Mode::Immutable,
            // `vfs` applies the time-outs; applying them twice would be too long.
            Consistency::Strict
            | Consistency::CloseToOpen
            | Consistency::Watch
            | Consistency::Timeout => cache::Mode::CloseToOpen,
        },
        immutable: options.immutable.clone(),
        offline: options.offline,
        stale_ok: request.vfs.serve_stale,
        request_timeout: request.host.stall_limit,
        backing: crate::open_modes::may_use_passthrough(request),
        digest_source: options
            .server_digests
            .then(|| Arc::new(RemoteDigests(below.clone())) as Arc<dyn DigestSource>),
        ..CachedConfig::new(id)
    };
    let layer = Cached::new(below, store.clone(), config).or_problem("cache=disk")?;
    let login = LoginRecord::new(store, &id);
    Ok(Kept { layer, id, login, is_offline: options.offline })
}

/// The identity of a directory behind these gateways, independent of their order. With links that
/// are followed it is another tree.
fn source_id(mut gateways: Vec<String>, directory: &[u8], follows_links: bool) -> SourceId {
    gateways.sort();
    gateways.dedup();
    let mut text = Vec::new();
    for gateway in gateways {
        // Each part is preceded by its length, so that different lists give different bytes.
        text.extend((gateway.len() as u64).to_be_bytes());
        text.extend(gateway.into_bytes());
    }
    text.extend((u64::MAX - u64::from(follows_links)).to_be_bytes());
    text.extend(normal(directory));
    SourceId::new(&text)
}

/// A path without redundant slashes and dots.
fn normal(path: &[u8]) -> Vec<u8> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    let names: Vec<&[u8]> = names.collect();
    let root: &[u8] = if path.first() == Some(&b'/') { b"/" } else { b"" };
    [root, &names.join(&b'/')].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without the store, a mount with `offline` would contact the hosts.
    #[tokio::test]
    async fn a_cache_that_cannot_be_opened_ends_only_an_offline_mount() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let dir = Some(file.path().join("cache"));
        let opened = async |offline| {
            Disk::open(&DiskOptions { dir: dir.clone(), offline, ..DiskOptions::default() }).await
        };
        assert!(opened(false).await.is_ok_and(|disk| disk.store.is_err()));
        assert!(opened(true).await.is_err());
    }

    #[test]
    fn the_ids_of_a_login_and_the_path_of_the_root_are_recorded_for_their_source() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|id| SourceId::new(id.as_bytes()));
        let record = |id| {
            let free_bytes = Some(0);
            let config = StoreConfig { free_bytes, ..StoreConfig::new(dir.path().join("cache")) };
            LoginRecord::new(&Store::open(config).unwrap(), id)
        };
        assert_eq!((record(&one).get(), record(&one).root()), (None, None));
        for (ids, root) in [((1000, 100), b"/srv/a"), ((1001, 100), b"/srv/b")] {
            record(&one).set(ids);
            record(&one).set_root(root);
            assert_eq!(record(&one).get(), Some(ids));
            assert_eq!(record(&one).root().as_deref(), Some(&root[..]));
        }
        assert_eq!((record(&other).get(), record(&other).root()), (None, None));
    }

    #[test]
    fn slashes_and_dots_make_no_other_source() {
        for (one, other) in [("/srv/x/", "//srv/./x"), ("", "."), ("a/b", "./a//b/"), ("/", "//")] {
            assert_eq!(normal(one.as_bytes()), normal(other.as_bytes()), "{one} {other}");
        }
        assert_ne!(normal(b"/a"), normal(b"a"));
        assert_ne!(normal(b"/"), normal(b""));
    }

    #[test]
    fn other_gateways_and_other_directories_are_other_sources() {
        let id_of = |gateways: &[&str], directory: &str, follows_links| {
            let gateways = gateways.iter().map(|it| (*it).to_owned()).collect();
            source_id(gateways, directory.as_bytes(), follows_links)
        };
        let id = |gateways: &[&str], directory: &str| id_of(gateways, directory, false);
        assert_eq!(id(&["a", "b"], "/x"), id(&["b", "a"], "/x/"));
        let all = [
            id(&["a"], "/x"),
            id(&["a", "b"], "/x"),
            id(&["ab"], "/x"),
            id(&["a"], "/xb"),
            id(&["a"], "x"),
            id_of(&["a"], "/x", true),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(!all[..index].contains(one));
        }
    }
}
