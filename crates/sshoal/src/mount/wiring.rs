//! Connects the layers for one mount request: the `Remote` of `stack`, below vfs, below the kernel.
//!
//! The order matters. The connections are established and checked before the mount exists, since ssh
//! may access directories that the mount would hide, and since a process that accesses a mount that
//! is not served yet hangs. The program goes to the background after the reply to the kernel's INIT.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use cli::{EXIT_FAILURE, EXIT_OK, Problem};
use mountinfo::Mount;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, WaitId, WaitIdOptions, getrlimit, setrlimit, waitid};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use vfs::Vfs;

use super::request::{Consistency, LinkTargets, MountRequest, PageCache};
use crate::adapter::Adapter;
use crate::attributes::Attributes;
use crate::background::Ready;
use crate::branch::change::Controlled;
use crate::control::server::Server;
use crate::open_modes;
use crate::record::Record;
use crate::stack::Stack;

/// Threads that serve the mount: one for the kernel and one for ssh can work in parallel. More did
/// not increase the throughput on two cores.
const WORKERS: usize = 2;

/// How long the end of a mount waits until data read is written to the disk cache. A disk takes a few
/// seconds for all that may be pending; a disk that hangs must not keep the process alive.
const SETTLING_LIMIT: Duration = Duration::from_secs(10);

/// Minimum size of a file for passthrough, in bytes. Each open with passthrough needs a request, and
/// no page of the file is cached for the mount's inode; smaller files are faster without.
const PASSTHROUGH_FROM_BYTES: u64 = 1 << 20;

/// The kernel's readahead in bytes. Measured: a fifth less CPU time per byte than with 128 KiB; 1 MiB
/// gains no more. It is not larger because a page fault in a mapping also reads this much.
const KERNEL_READAHEAD_BYTES: u32 = 512 << 10;

/// ssh has half a second to end by itself, then a second after SIGTERM before SIGKILL.
const CHILDREN_LIMIT: Duration = Duration::from_secs(2);

/// Connects, mounts, and serves until the mount is gone.
pub fn run(request: MountRequest, ready: Ready) -> anyhow::Result<ExitCode> {
    let runtime = match runtime(&request) {
        Ok(runtime) => runtime,
        Err(problem) => return Ok(give_up(ready, &problem)),
    };
    let code = runtime.block_on(serve(request, ready));
    // A task that hangs in a system call must not keep the process alive.
    runtime.shutdown_background();
    Ok(code)
}

fn give_up(ready: Ready, problem: &Problem) -> ExitCode {
    ready.failed(EXIT_FAILURE, &problem.to_string());
    ExitCode::from(EXIT_FAILURE)
}

/// Raises the limit of descriptors: each open file of a local branch takes one, and each session.
fn allow_many_descriptors() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        raised.unwrap_or_else(
            |error| tracing::debug!(%error, "cannot raise the limit of open files"),
        );
    }
}

fn runtime(request: &MountRequest) -> Result<Runtime, Problem> {
    crate::allocator::share_one_heap();
    allow_many_descriptors();
    let workers = if request.run.single_thread { 1 } else { WORKERS };
    Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
        .map_err(|error| Problem::new("cannot start", error.to_string()))
}

async fn serve(request: MountRequest, ready: Ready) -> ExitCode {
    let mut asked_to_end = Box::pin(ended_by_signal());
    let mounted = tokio::select! {
        // Polled first, so that from here on a signal also ends ssh.
        biased;
        asked = &mut asked_to_end => asked.err().map(|error| {
            Err(Problem::new("cannot wait for signals", error.to_string()))
        }),
        mounted = mount(&request) => Some(mounted),
    };
    let Mounted { session, vfs, adapter, stack } = match mounted {
        Some(Ok(mounted)) => mounted,
        Some(Err(problem)) => return give_up(ready, &problem),
        None => {
            children_ended().await;
            return ExitCode::from(EXIT_FAILURE);
        }
    };
    let stopper = session.stopper();
    let ending = adapter.clone();
    let stopping = tokio::spawn(async move {
        let mut asked = asked_to_end.await;
        while asked.is_ok() {
            // A second signal, or one after the unmount has begun, stops the waiting.
            ending.ending().requested();
            stopper.stop();
            asked = ended_by_signal().await;
        }
        tracing::warn!(?asked, "cannot wait for signals");
    });
    let found = mountinfo::find(&request.mountpoint).ok().flatten();
    if let Some(mount) = &found {
        raise_kernel_readahead(mount, request.fuse.max_readahead_bytes);
    }
    let mut record = record(found);
    let controlled = Controlled::new(stack.clone(), vfs.clone(), adapter.clone());
    let asked = record.as_mut().and_then(|it| answers(it, controlled));
    if let Err(error) = ready.succeeded() {
        // The session is dropped, which unmounts.
        tracing::error!(%error, "cannot detach from the terminal");
        return ExitCode::from(EXIT_FAILURE);
    }
    let end = session.run().await;
    stopping.abort();
    drop(asked);
    if end.abandoned > 0 {
        tracing::warn!(
            "the mount ended with {} calls still in progress; they were cancelled",
            end.abandoned
        );
    }
    // Data read last would otherwise be fetched again.
    let _ = tokio::time::timeout(SETTLING_LIMIT, stack.settled()).await;
    drop(stack);
    let mut code = ExitCode::from(EXIT_OK);
    match adapter.ending().lost(&vfs) {
        None => record.into_iter().for_each(Record::ended),
        Some(reason) => {
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

/// Increases the kernel's readahead of this mount, to `wanted` bytes if set. A mount starts with 128
/// KiB, INIT can only reduce it, and only root can increase it, in `/sys/class/bdi`; without permission
/// it stays unchanged. The readahead of `vfs` is independent of it, but larger requests of the kernel
/// mean fewer to answer.
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
}

/// Connects and mounts; returns after the reply to the kernel's INIT.
async fn mount(request: &MountRequest) -> Result<Mounted, Problem> {
    let stack = Arc::new(Stack::build(request).await?);
    let config = vfs_config(request, &stack).await?;
    let any_link = config.links == vfs::Links::Any;
    let vfs = Arc::new(Vfs::new(stack.remote.clone(), config));
    let mount = fuse::Mount::new(&request.mountpoint, &mount_options(request))
        .map_err(|error| said("cannot mount", &error, None))?;
    let attributes = Attributes::new(stack.union.is_some(), request.disk.as_ref());
    let config = session_config(request, any_link, attributes.are_there());
    let servers = Arc::downgrade(&stack);
    let adapter = Adapter::new(vfs.clone(), attributes)
        .silence(move || servers.upgrade().map_or(Duration::MAX, |it| it.silent_for()))
        .read_only(request.fuse.read_only)
        .no_open(open_modes::may_use_no_open(request));
    let adapter = Arc::new(adapter);
    let session = fuse::Session::start(mount, adapter.clone(), config)
        .await
        .map_err(|error| said("cannot mount", &error, None))?;
    Ok(Mounted { session, vfs, adapter, stack })
}

fn said(what: &str, why: &dyn std::fmt::Display, hint: Option<&str>) -> Problem {
    let problem = Problem::new(what, why.to_string());
    match hint {
        Some(hint) => problem.hint(hint),
        None => problem,
    }
}

/// Waits, for a limited time, until ssh and its helpers have ended: an ssh that prompts for a
/// password restores the terminal's settings when it ends.
async fn children_ended() {
    let any = || {
        waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT)
    };
    let all_ended = async {
        // The runtime reaps the children, but reports no event when none is left.
        while !matches!(any(), Err(Errno::CHILD)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let _ = tokio::time::timeout(CHILDREN_LIMIT, all_ended).await;
}

/// Returns when a signal requests the end of the process.
async fn ended_by_signal() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(())
}

/// Creates the record by which `sshoal umount` finds this process. Without it the mount works, but
/// `umount` cannot wait for it.
fn record(found: Option<Mount>) -> Option<Record> {
    let created = found.map(|mount| Record::create(&mount).map_err(|error| error.to_string()));
    match created {
        Some(Ok(record)) => Some(record),
        Some(Err(error)) => {
            tracing::warn!(%error, "cannot create the record of the mount: `sshoal umount` cannot wait for it");
            None
        }
        None => None,
    }
}

/// Starts the server that answers `sshoal status`, `branch` and `cache`, until it is dropped.
fn answers(record: &mut Record, mount: Controlled) -> Option<Server> {
    let started = record.listen().map_err(|error| error.to_string()).and_then(|listener| {
        Server::start(listener, Arc::new(mount)).map_err(|error| error.to_string())
    });
    started
        .inspect_err(|error| tracing::warn!(%error, "cannot create the control socket: `sshoal status` cannot query this mount"))
        .ok()
}

async fn vfs_config(request: &MountRequest, stack: &Stack) -> Result<vfs::Config, Problem> {
    let cache = &request.cache;
    let timeout =
        |timeout: super::request::Timeout| vfs::Timeout { min: timeout.min, max: timeout.max };
    let remote_root = stack.real_root().map(|root| match &root[..] {
        b"/" => Vec::new(),
        _ => root,
    });
    Ok(vfs::Config {
        consistency: match request.consistency {
            Consistency::Strict => vfs::Consistency::Strict,
            Consistency::CloseToOpen => vfs::Consistency::CloseToOpen,
            Consistency::Timeout => vfs::Consistency::Timeout,
            Consistency::Immutable => vfs::Consistency::Immutable,
        },
        page_cache: match cache.pages {
            PageCache::Validated => vfs::PageCache::Validated,
            PageCache::SameTime => vfs::PageCache::SameTime,
            PageCache::Always => vfs::PageCache::Always,
            PageCache::Never => vfs::PageCache::Never,
        },
        files: timeout(cache.files),
        dirs: timeout(cache.dirs),
        negative: cache.kernel_negative.map_or(cache.negative, |cap| cap.min(cache.negative)),
        open_revalidate: cache.open_revalidate,
        login: stack.login().await,
        kernel_entry: cache.kernel_entry,
        kernel_attr: cache.kernel_attr,
        links: match request.links.targets {
            LinkTargets::Inside => vfs::Links::Inside,
            LinkTargets::Strict => vfs::Links::Strict,
            LinkTargets::Any => vfs::Links::Any,
        },
        transform_links: request.links.transform,
        remote_root,
        idmap: stack.idmap().await?,
        shown: vfs::Shown {
            uid: request.shown.uid,
            gid: request.shown.gid,
            file_umask: request.shown.file_umask,
            dir_umask: request.shown.dir_umask,
        },
        serve_stale: cache.serve_stale,
        sync_writes: cache.sync_writes,
        backing_from_bytes: open_modes::may_use_passthrough(request)
            .then_some(PASSTHROUGH_FROM_BYTES),
        readahead_bytes: u64::from(cache.readahead_bytes),
        prefetch: cache.prefetch,
        dirty_bytes: cache.dirty_bytes,
        dirty_file_bytes: u64::from(cache.dirty_file_bytes),
        metadata_bytes: cache.metadata_bytes as usize,
    })
}

fn mount_options(request: &MountRequest) -> fuse::MountOptions {
    let options = &request.fuse;
    let fsname: &OsStr = options.fsname.as_deref().unwrap_or(&request.source);
    let context = options.context.iter().map(|context| {
        let mut option = OsString::from("context=");
        option.push(context);
        option
    });
    fuse::MountOptions {
        fsname: fsname.to_owned(),
        subtype: options.subtype.clone(),
        visibility: match (options.allow_other, options.allow_root) {
            (true, _) => fuse::Visibility::Everybody,
            (false, true) => fuse::Visibility::OwnerAndRoot,
            (false, false) => fuse::Visibility::Owner,
        },
        default_permissions: options.default_permissions,
        read_only: options.read_only,
        suid: options.suid,
        dev: options.dev,
        exec: options.exec,
        atime: if options.atime { fuse::AccessTime::Default } else { fuse::AccessTime::Off },
        sync: options.sync,
        dirsync: options.dirsync,
        auto_unmount: options.auto_unmount,
        contexts: context.collect(),
        max_read: None,
    }
}

fn session_config(request: &MountRequest, any_link: bool, has_attributes: bool) -> fuse::Config {
    let options = &request.fuse;
    let defaults = fuse::Config::default();
    fuse::Config {
        max_background: options.max_background.unwrap_or(defaults.max_background),
        congestion_threshold: options.congestion_threshold.unwrap_or(defaults.congestion_threshold),
        max_readahead: options.max_readahead_bytes.unwrap_or(defaults.max_readahead),
        // A cached target would stay valid after its link was renamed to a place from which the
        // target leads out of the mount.
        cache_symlinks: any_link || open_modes::may_use_no_open(request),
        // Otherwise, when a file has grown, pages with zeros after the old end would be shown.
        data_invalidation: fuse::DataInvalidation::OnSize,
        // Has an effect only with extended attributes.
        handle_killpriv: has_attributes,
        passthrough: open_modes::may_use_passthrough(request),
        ..defaults
    }
}
