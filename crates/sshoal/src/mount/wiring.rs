//! Connects the layers for one mount request: the `Remote` of `stack`, below vfs, below the kernel.
//!
//! The order matters. The connections are established and checked before the mount exists, since
//! ssh may access directories that the mount would hide, and since a process that accesses a mount
//! that is not served yet hangs. The program goes to the background after the reply to the kernel's
//! INIT.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use cli::signals::EndSignals;
use cli::{EXIT_FAILURE, EXIT_OK, OrProblem, Problem, printable};
use control::record::Record;
use control::server::Server;
use mountinfo::Mount;
use vfs::Vfs;

use super::fuse_mount_around;
use super::request::MountRequest;
use crate::adapter::Adapter;
use crate::attributes::Attributes;
use crate::background::Ready;
use crate::branch::change::Controlled;
use crate::connector::Begun;
use crate::inotify::Repeater;
use crate::log;
use crate::open_modes;
use crate::process;
use crate::quantity::count;
use crate::stack::{self, Stack};
use crate::stats::endpoint::Bound;
use crate::stats::prometheus;

/// Threads that serve the mount: one for the kernel and one for ssh can work in parallel. More did
/// not increase the throughput on two cores.
const WORKERS: usize = 2;

/// How long the end of a mount waits until data read is written to the disk cache. A disk takes a
/// few seconds for all that may be pending; a disk that hangs must not keep the process alive.
const SETTLING_LIMIT: Duration = Duration::from_secs(10);

/// Minimum size of a file for passthrough, in bytes. Each open with passthrough needs a request,
/// and no page of the file is cached for the mount's inode; smaller files are faster without.
const PASSTHROUGH_FROM_BYTES: u64 = 1 << 20;

/// The kernel's readahead in bytes. Measured: a fifth less CPU time per byte than with 128 KiB; 1
/// MiB gains no more. It is not larger because a page fault in a mapping also reads this much.
const KERNEL_READAHEAD_BYTES: u32 = 512 << 10;

/// Time between two checks for sources that are back, where no request shows it.
const RETURN_INTERVAL: Duration = Duration::from_secs(5);

/// Connects, mounts, and serves until the mount is gone.
pub fn run(request: MountRequest, ready: Ready) -> anyhow::Result<ExitCode> {
    let workers = if request.run.single_thread { 1 } else { WORKERS };
    let runtime = match process::runtime(workers) {
        Ok(runtime) => runtime,
        Err(problem) => return Ok(give_up(ready, &problem)),
    };
    let code = runtime.block_on(serve(request, ready));
    log::finish();
    // A task that hangs in a system call must not keep the process alive.
    runtime.shutdown_background();
    Ok(code)
}

pub(super) fn give_up(ready: Ready, problem: &Problem) -> ExitCode {
    ready.failed(EXIT_FAILURE, &problem.to_string());
    ExitCode::from(EXIT_FAILURE)
}

async fn serve(request: MountRequest, ready: Ready) -> ExitCode {
    let mut signals = match EndSignals::new().or_problem("cannot wait for signals") {
        Ok(signals) => signals,
        Err(problem) => return give_up(ready, &problem),
    };
    let mounted = tokio::select! {
        _ = signals.next() => None,
        mounted = mount(&request) => Some(mounted),
    };
    let Mounted { session, vfs, adapter, stack, metrics, repeater } = match mounted {
        Some(Ok(mounted)) => mounted,
        Some(Err(problem)) => return give_up(ready, &problem),
        None => {
            process::children_ended().await;
            return ExitCode::from(EXIT_FAILURE);
        }
    };
    let stopper = session.stopper();
    let ending = adapter.clone();
    let stopping = tokio::spawn(async move {
        loop {
            // A terminal that is closed later does not mean that the data is to be given up.
            let is_request = |signal| signal != libc::SIGHUP || !ending.ending().is_requested();
            signals.next_of(is_request).await;
            // A second request, or one after the unmount has begun, stops the waiting.
            ending.ending().requested();
            stopper.stop();
        }
    });
    let found = mountinfo::find(&request.mountpoint).ok().flatten();
    if let Some(mount) = &found {
        raise_kernel_readahead(mount, request.limits.max_readahead_bytes);
    }
    if let Some(repeater) = repeater {
        repeater.start(found.as_ref(), stack.union.as_ref());
    }
    // Nothing expires there, and the kernel may send no request.
    let is_immutable = request.vfs.consistency == vfs::Consistency::Immutable;
    let refreshing = stack.union.clone().filter(|_| is_immutable).map(|union| {
        let adapter = adapter.clone();
        tokio::spawn(async move { refresh_for_returned(&union, &adapter).await })
    });
    let mut record = found.as_ref().and_then(record);
    let requests = session.counters();
    let controlled =
        Arc::new(Controlled::new(stack.clone(), vfs.clone(), adapter.clone(), requests));
    let asked = record.as_mut().and_then(|it| answers(it, controlled.clone()));
    let metrics = metrics.map(|bound| {
        let mountpoint = printable(&request.mountpoint);
        bound.serve(move || prometheus::text(&[(&mountpoint, &controlled.stats())]))
    });
    if let Err(error) = ready.succeeded() {
        // The session is dropped, which unmounts.
        tracing::error!(%error, "cannot detach from the terminal");
        return ExitCode::from(EXIT_FAILURE);
    }
    log::left_terminal();
    let access = if request.mount.read_only { ", read-only" } else { "" };
    tracing::info!("mounted {}{access}", cli::printable(&request.source));
    let end = session.run().await;
    if let Some(refreshing) = refreshing {
        refreshing.abort();
    }
    drop((asked, metrics));
    if end.abandoned > 0 {
        tracing::warn!(
            "the mount ended, and cancelled {} still in progress",
            count(end.abandoned as u64, "call")
        );
    }
    // Data read last would otherwise be fetched again.
    tokio::select! {
        _ = tokio::time::timeout(SETTLING_LIMIT, stack.settled()) => {}
        () = adapter.ending().hurried() => {}
    }
    stopping.abort();
    drop(stack);
    tracing::info!("unmounted");
    let mut code = ExitCode::from(EXIT_OK);
    match adapter.ending().lost(&vfs) {
        None => record.into_iter().for_each(Record::ended),
        Some(reason) => {
            tracing::error!("data was lost: {reason}");
            record.into_iter().for_each(|record| record.failed(&reason));
            code = ExitCode::from(EXIT_FAILURE);
        }
    }
    if let fuse::Cause::Failed(error) = end.cause {
        tracing::error!(%error, "the connection to the kernel failed");
        return ExitCode::from(EXIT_FAILURE);
    }
    code
}

/// Invalidates what is cached whenever an optional source is back that was left out: its names are
/// not in it.
async fn refresh_for_returned(union: &union::Union, adapter: &Adapter) {
    loop {
        tokio::time::sleep(RETURN_INTERVAL).await;
        if union.take_returned() {
            adapter.refresh().await;
        }
    }
}

/// Increases the kernel's readahead of this mount, to `wanted` bytes if set. A mount starts with
/// 128 KiB, INIT can only reduce it, and only root can increase it, in `/sys/class/bdi`; without
/// permission it stays unchanged. The readahead of `vfs` is independent of it, but larger requests
/// of the kernel mean fewer to answer.
fn raise_kernel_readahead(mount: &Mount, wanted: Option<u32>) {
    let path = PathBuf::from(format!("/sys/class/bdi/{}/read_ahead_kb", mount.device));
    let wanted_kib = wanted.unwrap_or(KERNEL_READAHEAD_BYTES) >> 10;
    let present = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<u32>().ok());
    // INIT has already set a smaller value.
    if present.is_none_or(|present| present >= wanted_kib) {
        return;
    }
    if let Err(error) = fs::write(&path, wanted_kib.to_string()) {
        tracing::debug!(%error, "cannot increase the kernel's readahead");
    }
}

/// The objects that serve a mount.
struct Mounted {
    session: fuse::Session<Adapter>,
    vfs: Arc<Vfs>,
    adapter: Arc<Adapter>,
    stack: Arc<Stack>,
    metrics: Option<Bound>,
    repeater: Option<Arc<Repeater>>,
}

/// Connects and mounts; returns after the reply to the kernel's INIT.
async fn mount(request: &MountRequest) -> Result<Mounted, Problem> {
    let stack = Arc::new(Stack::build_on(request, Begun::default(), stack::read_password).await?);
    // An address that cannot be used is an error before anything is mounted.
    let metrics = request.run.metrics.as_ref().map(Bound::new).transpose()?;
    let config = vfs_config(request, &stack).await?;
    let any_link = config.links == vfs::Links::Any;
    let vfs = Arc::new(Vfs::new(stack.remote.clone(), config));
    if request.vfs.consistency == vfs::Consistency::Watch
        && stack.remote.watches().is_none()
        && !stack.remote.is_disconnected()
        && !request.host.delay_connect
    {
        tracing::warn!(
            "consistency=watch: the server does not report changes; as with close-to-open"
        );
    }
    if request.disk.as_ref().is_some_and(|disk| disk.server_digests) {
        let sources = stack.sources();
        let servers = sources.iter().flat_map(|source| &source.hosts);
        for server in servers.filter(|server| server.lacks_helper()) {
            let name = printable(&server.name);
            tracing::warn!("server_digests: {name} has no sshoal helper; contents are fetched");
        }
    }
    let repeater = repeats_changes(request).then(|| Arc::new(Repeater::new()));
    if let Some(repeater) = &repeater {
        vfs.set_repeat(repeater.clone());
    }
    let mount = fuse::Mount::new(&request.mountpoint, &request.mount)
        .map_err(|error| refused(&request.mountpoint, &error))?;
    let attributes = Attributes::new(stack.union.is_some(), request.disk.as_ref());
    let no_open = open_modes::may_use_no_open(request);
    // Without OPEN requests there is no handle to lock, and no change to lock out.
    let has_locks = stack.remote.has_locks() && !no_open;
    let config = fuse::Config {
        posix_locks: has_locks && !request.limits.local_posix_locks,
        flock_locks: has_locks && !request.limits.local_flock,
        ..session_config(request, any_link)
    };
    let servers = Arc::downgrade(&stack);
    let silence = move |path: Option<&base::RemotePath>| {
        servers.upgrade().map_or(Duration::MAX, |it| it.silent_for(path))
    };
    let adapter = Arc::new(Adapter::new(
        vfs.clone(),
        attributes,
        request.mount.read_only,
        has_locks,
        no_open,
        repeater.clone(),
        Box::new(silence),
    ));
    let started = fuse::Session::start(mount, adapter.clone(), config).await;
    let session = started.or_problem("cannot mount")?;
    Ok(Mounted { session, vfs, adapter, stack, metrics, repeater })
}

/// Why nothing is mounted on `place`.
fn refused(place: &Path, error: &fuse::Error) -> Problem {
    let problem = Problem::new("cannot mount", error.to_string());
    match fuse_mount_around(place) {
        Some((around, _)) if matches!(error, fuse::Error::Fusermount(_)) => problem.hint(format!(
            "fusermount3 runs as root, which may enter the FUSE mount '{}' only with its option \
             allow_root or allow_other; choose a directory outside of it",
            printable(around)
        )),
        _ => problem,
    }
}

/// Whether changes of others are repeated in the kernel, which lets no program change anything in a
/// read-only mount.
fn repeats_changes(request: &MountRequest) -> bool {
    let is_watching = request.vfs.consistency == vfs::Consistency::Watch;
    request.inotify && is_watching && !request.mount.read_only
}

/// Creates the record by which `sshoal umount` finds this process. Without it the mount works, but
/// `umount` cannot wait for it.
fn record(mount: &Mount) -> Option<Record> {
    let created = Record::create(mount);
    created
        .inspect_err(|error| tracing::warn!(%error, "cannot create the record of the mount: `sshoal umount` cannot wait for it"))
        .ok()
}

/// Starts the server that answers the commands about this mount ([`control::Wish`]), until it is
/// dropped.
fn answers(record: &mut Record, mount: Arc<Controlled>) -> Option<Server> {
    let listener = record.listen().map_err(anyhow::Error::from);
    let started = listener.and_then(|listener| Ok(Server::start(listener, mount)?));
    started
        .inspect_err(|error| tracing::warn!(%error, "cannot create the control socket: `sshoal status` cannot query this mount"))
        .ok()
}

async fn vfs_config(request: &MountRequest, stack: &Stack) -> Result<vfs::Config, Problem> {
    Ok(vfs::Config {
        login: stack.login().await,
        remote_roots: stack.remote_roots(),
        is_union: stack.union.is_some(),
        idmap: stack.idmap().await?,
        backing_from_bytes: open_modes::may_use_passthrough(request)
            .then_some(PASSTHROUGH_FROM_BYTES),
        ..request.vfs.clone()
    })
}

fn session_config(request: &MountRequest, any_link: bool) -> fuse::Config {
    let limits = &request.limits;
    let defaults = fuse::Config::default();
    fuse::Config {
        max_background: limits.max_background.unwrap_or(defaults.max_background),
        congestion_threshold: limits.congestion_threshold.unwrap_or(defaults.congestion_threshold),
        max_readahead: limits.max_readahead_bytes.unwrap_or(defaults.max_readahead),
        poll_limit: limits.poll_limit,
        io_uring: limits.io_uring.then(|| limits.io_uring_depth.unwrap_or(fuse::DEFAULT_DEPTH)),
        // A cached target would stay valid after its link was renamed to a place from which the
        // target leads out of the mount.
        cache_symlinks: any_link || open_modes::may_use_no_open(request),
        // The kernel itself does not clear set-id bits at a write with O_DIRECT.
        handle_killpriv: true,
        passthrough: open_modes::may_use_passthrough(request),
        ..defaults
    }
}
