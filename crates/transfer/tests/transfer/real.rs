//! DirDone a real host and OpenSSH's sftp-server, which is killed again and again.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use base::{AttrChange, Remote, Timestamp};
use host::{ConnectError, Connection, Connector, Host, Role};
use local::Local;
use recovery::Recovering;
use testkit::sftp_servers::SFTP_SERVER;
use testkit::{SftpServers, path};
use tokio::sync::Notify;
use transfer::{Doing, Entry, Events, Fault, Job, Options, Source, Tree};

use crate::kit::{assert_equal, content, local_dir, run, watched};

struct Servers(SftpServers);

#[async_trait]
impl Connector for Servers {
    async fn connect(&self, _: Role) -> Result<Connection, ConnectError> {
        let (reader, writer) = self.0.start();
        Ok(Connection::from_halves(reader, writer, Box::new(|| None)))
    }
}

/// A directory seen through a server.
struct Peer {
    remote: Arc<Recovering>,
    servers: Arc<Servers>,
    dir: tempfile::TempDir,
}

impl Peer {
    async fn new() -> Peer {
        let dir = tempfile::tempdir().unwrap();
        let servers = SftpServers::new(dir.path());
        Peer::of(dir, servers).await
    }

    /// Of a login without the rights of root, which owns the directory; for root.
    async fn of_ordinary_user() -> Peer {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(5), Some(60)).unwrap();
        let user = ["setpriv", "--reuid", "5", "--regid", "60", "--clear-groups", SFTP_SERVER];
        let servers = SftpServers::by(dir.path(), &user);
        Peer::of(dir, servers).await
    }

    async fn of(dir: tempfile::TempDir, servers: SftpServers) -> Peer {
        let servers = Arc::new(Servers(servers));
        let config = host::Config { max_conns: 4, ..host::Config::default() };
        let host = Arc::new(Host::connect(servers.clone(), config).await.unwrap());
        Peer { remote: Recovering::new(host, recovery::Config::default()), servers, dir }
    }

    /// Kills all servers.
    async fn kill(&self) {
        self.servers.0.kill().await;
    }
}

/// Tells each time that so many entries are over.
struct Every(u64, AtomicU64, Notify);

impl Events for Every {
    fn entry(&self, _: Entry<'_>) {
        if (self.1.fetch_add(1, Ordering::SeqCst) + 1).is_multiple_of(self.0) {
            self.2.notify_one();
        }
    }
}

/// A tree as people have them, of a few hundred entries.
fn fill(root: &Path) {
    for dir in 0..20 {
        let dir_path = root.join(format!("dir {dir}"));
        std::fs::create_dir_all(dir_path.join("below/it")).unwrap();
        for file in 0..12 {
            let name = dir_path.join(format!("file-{file}"));
            std::fs::write(&name, content(file * 777, dir * 100 + file as u32)).unwrap();
            let mode = [0o644, 0o600, 0o755, 0o4755, 0o444, 0][file % 6];
            std::fs::set_permissions(&name, PermissionsExt::from_mode(mode)).unwrap();
        }
        std::os::unix::fs::symlink("../elsewhere", dir_path.join("link")).unwrap();
        std::fs::set_permissions(dir_path.join("below"), PermissionsExt::from_mode(0o500)).unwrap();
    }
    std::fs::write(root.join("large"), content(9 << 20, 7)).unwrap();
    std::fs::write(root.join("ümläut\n"), "odd").unwrap();
    std::fs::create_dir(root.join("empty")).unwrap();
}

async fn set_times(local: &Local, root: &Path) {
    let mut dirs = vec![root.to_owned()];
    let mut all = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let is_dir = path.symlink_metadata().unwrap().is_dir();
            all.push(path.clone());
            if is_dir {
                dirs.push(path);
            }
        }
    }
    for (nth, at) in all.iter().enumerate().rev() {
        use std::os::unix::ffi::OsStrExt;
        let relative = at.strip_prefix(root).unwrap().as_os_str().as_bytes();
        let time = Some(Timestamp { secs: 1_000_000_000 + nth as i64, nanos: 5 });
        let change = AttrChange { atime: time, mtime: time, ..AttrChange::default() };
        let at = base::RemotePath::parse(relative).unwrap();
        local.setattr(&at, change).await.unwrap();
    }
}

fn job(source: Tree, target: Tree) -> Job {
    let source = Source { tree: source, to: path("") };
    Job { sources: vec![source], target, options: Options { set_ids: true, ..Options::default() } }
}

async fn there_and_back(killed: bool) {
    let (from, local) = local_dir();
    fill(from.path());
    set_times(&local, from.path()).await;
    let far = Peer::new().await;
    let (to, back) = local_dir();
    let push = job(Tree::local(local.clone(), from.path()), Tree::remote(far.remote.clone()));
    let pull = job(Tree::remote(far.remote.clone()), Tree::local(back.clone(), to.path()));
    for job in [push, pull] {
        let every = Arc::new(Every(if killed { 50 } else { u64::MAX }, 0.into(), Notify::new()));
        let kill = async {
            loop {
                every.2.notified().await;
                far.kill().await;
            }
        };
        let outcome = tokio::select! {
            outcome = watched(job.clone(), every.clone()) => outcome,
            () = kill => unreachable!("it never ends"),
        };
        assert!(outcome.is_complete(), "{outcome:#?}");
        let again = run(job).await;
        assert_eq!(again.counts.unchanged, again.counts.entries, "{again:#?}");
    }
    let seen = Local::open(far.dir.path()).unwrap();
    assert_equal(&*local, &seen).await;
    assert_equal(&*local, &*back).await;
    let meta = std::fs::metadata(to.path().join("dir 3/file-3")).unwrap();
    assert_eq!(meta.mode() & 0o7777, 0o4755);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_is_pushed_and_pulled_back() {
    there_and_back(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_are_killed_cost_time_only() {
    there_and_back(true).await;
}

/// A user who is not root: the modes of these directories keep their owner out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_that_keep_their_owner_out_are_updated() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: it takes root to be several users");
        return;
    }
    let set_perm = |path: &Path, perm| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(perm)).unwrap();
    };
    const PERMS: [u32; 4] = [0o333, 0, 0o600, 0o100];
    let (from, local) = local_dir();
    for perm in PERMS {
        let dir = from.path().join(format!("{perm:o}/below"));
        std::fs::create_dir_all(&dir).unwrap();
        for name in ["same", "changed"] {
            std::fs::write(dir.join(name), name).unwrap();
        }
        std::fs::write(dir.join("../same"), "same").unwrap();
        // Root reads them all the same.
        set_perm(&dir, perm);
        set_perm(&from.path().join(format!("{perm:o}")), perm);
    }
    set_times(&local, from.path()).await;
    let far = Peer::of_ordinary_user().await;
    let job = job(Tree::local(local.clone(), from.path()), Tree::remote(far.remote.clone()));
    let mut job = Job { options: Options { delete: true, ..job.options.clone() }, ..job };
    assert!(run(job.clone()).await.is_complete());
    for perm in PERMS {
        let dir = from.path().join(format!("{perm:o}/below"));
        std::fs::write(dir.join("changed"), "changed now").unwrap();
        std::fs::write(far.dir.path().join(format!("{perm:o}/below/gone")), "gone").unwrap();
    }
    set_times(&local, from.path()).await;
    for changed in [PERMS.len() as u64, 0] {
        let outcome = run(job.clone()).await;
        assert!(outcome.is_complete(), "{outcome:#?}");
        assert_eq!((outcome.counts.files_copied, outcome.counts.deleted), (changed, changed));
        let seen = Local::open(far.dir.path()).unwrap();
        assert_equal(&*local, &seen).await;
    }
    // What would be done cannot be learned without a change of modes.
    job.options.dry_run = true;
    let outcome = run(job).await;
    assert!(!outcome.is_complete(), "{outcome:#?}");
    assert_equal(&*local, &Local::open(far.dir.path()).unwrap()).await;
}

/// A server that refuses these requests.
async fn refusing(requests: &str) -> Peer {
    let dir = tempfile::tempdir().unwrap();
    let servers = SftpServers::by(dir.path(), &[SFTP_SERVER, "-P", requests]);
    Peer::of(dir, servers).await
}

/// Files of a few kinds, and a link.
fn fill_simply(root: &Path) {
    for (name, len, perm) in [
        ("open", 100, 0o644),
        ("own", 200, 0o600),
        ("closed", 300, 0o444),
        ("large", 9 << 20, 0o640),
    ] {
        std::fs::write(root.join(name), content(len, perm)).unwrap();
        std::fs::set_permissions(root.join(name), PermissionsExt::from_mode(perm)).unwrap();
    }
    std::os::unix::fs::symlink("open", root.join("link")).unwrap();
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<_> = entries.map(name).map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_sets_no_attributes_gets_the_contents() {
    let (from, local) = local_dir();
    fill_simply(from.path());
    set_times(&local, from.path()).await;
    let far = refusing("setstat,fsetstat,lsetstat").await;
    let job = job(Tree::local(local.clone(), from.path()), Tree::remote(far.remote.clone()));
    for _ in 0..2 {
        let outcome = run(job.clone()).await;
        let refused = outcome.problems.iter().filter(|problem| match problem.fault {
            Fault::RefusedAttributes { .. } => true,
            // Of the link, when it is there.
            Fault::Failed { doing, .. } => doing == Doing::SetAttr,
            _ => false,
        });
        assert_eq!(refused.count(), outcome.problems.len(), "{outcome:#?}");
        assert!(outcome.counts.failed >= 5, "{outcome:#?}");
        assert_eq!(names(far.dir.path()), ["closed", "large", "link", "open", "own"]);
        for name in ["closed", "large", "open", "own"] {
            let (here, there) = (from.path().join(name), far.dir.path().join(name));
            assert!(std::fs::read(here).unwrap() == std::fs::read(&there).unwrap(), "{name}");
            assert_eq!(std::fs::metadata(there).unwrap().mode() & 0o7777, 0o600);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_sets_no_times_sets_modes() {
    let (from, local) = local_dir();
    fill_simply(from.path());
    set_times(&local, from.path()).await;
    let far = refusing("fsetstat").await;
    let outcome = run(job(Tree::local(local, from.path()), Tree::remote(far.remote.clone()))).await;
    assert_eq!(outcome.problems_total, 4, "{outcome:#?}");
    for name in ["closed", "large", "open", "own"] {
        let mode = |dir: &Path| std::fs::metadata(dir.join(name)).unwrap().mode();
        assert_eq!(mode(far.dir.path()), mode(from.path()), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_renames_nothing_keeps_one_incomplete_file() {
    let (from, local) = local_dir();
    std::fs::write(from.path().join("large"), content(9 << 20, 7)).unwrap();
    let far = refusing("setstat,fsetstat,lsetstat,rename,posix-rename").await;
    let job = job(Tree::local(local.clone(), from.path()), Tree::remote(far.remote.clone()));
    for _ in 0..3 {
        let outcome = run(job.clone()).await;
        assert_eq!(outcome.counts.files_copied, 0, "{outcome:#?}");
        assert_eq!(names(far.dir.path()).len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_of_a_server_that_sets_no_times_of_links_are_unchanged() {
    let (from, local) = local_dir();
    for number in 0..3 {
        std::os::unix::fs::symlink("nowhere", from.path().join(number.to_string())).unwrap();
    }
    set_times(&local, from.path()).await;
    let far = refusing("lsetstat").await;
    let job = job(Tree::local(local, from.path()), Tree::remote(far.remote.clone()));
    assert!(run(job.clone()).await.is_complete());
    let again = run(job).await;
    assert!(again.is_complete(), "{again:#?}");
    assert_eq!(again.counts.unchanged, 4, "{again:#?}");
}
