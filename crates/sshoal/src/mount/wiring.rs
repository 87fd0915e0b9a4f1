//! The layers, stacked for one request: what `stack` makes of hosts, below vfs, below the kernel.
//!
//! The order matters. The connections are made and checked before there is a mount, since ssh may
//! look at directories that the mount would cover, and since a mount that serves nothing hangs
//! whoever looks at it. The program goes to the background when the kernel has been answered.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, WaitId, WaitIdOptions, getrlimit, setrlimit, waitid};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use vfs::Vfs;

use super::kernel_readahead;
use super::request::{Consistency, LinkTargets, MountRequest, PageCache};
use crate::adapter::Adapter;
use crate::background::Ready;
use crate::branch::change::Controlled;
use crate::control::server::Server;
use crate::mounts::{self, Mount};
use crate::record::Record;
use crate::report::{EXIT_FAILURE, EXIT_OK, Problem};
use crate::stack::Stack;

/// Threads that serve the mount: one that talks to the kernel and one that talks to ssh can work
/// at the same time. More have not been seen to carry more on two cores.
const WORKERS: usize = 2;

/// ssh has half a second to end by itself, then a second after SIGTERM before SIGKILL.
const CHILDREN_LIMIT: Duration = Duration::from_secs(2);

/// Connects, mounts, and serves until the mount is gone.
pub fn run(request: MountRequest, ready: Ready) -> anyhow::Result<ExitCode> {
    let runtime = match runtime(&request) {
        Ok(runtime) => runtime,
        Err(problem) => return Ok(give_up(ready, &problem)),
    };
    let code = runtime.block_on(serve(request, ready));
    // Whatever still hangs in a system call must not keep the process.
    runtime.shutdown_background();
    Ok(code)
}

fn give_up(ready: Ready, problem: &Problem) -> ExitCode {
    ready.failed(EXIT_FAILURE, &problem.to_string());
    ExitCode::from(EXIT_FAILURE)
}

/// Each open file of a local branch is a descriptor of this process, and so is each session.
fn allow_many_descriptors() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        raised.unwrap_or_else(|error| tracing::debug!(%error, "no more descriptors than usual"));
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
        // First, so that from here on a signal ends more than this process.
        biased;
        asked = &mut asked_to_end => asked.err().map(|error| {
            Err(Problem::new("cannot wait for signals", error.to_string()))
        }),
        mounted = mount(&request) => Some(mounted),
    };
    let Mounted { session, vfs, stack } = match mounted {
        Some(Ok(mounted)) => mounted,
        Some(Err(problem)) => return give_up(ready, &problem),
        None => {
            children_ended().await;
            return ExitCode::from(EXIT_FAILURE);
        }
    };
    let stopper = session.stopper();
    let stopping = tokio::spawn(async move {
        match asked_to_end.await {
            Ok(()) => stopper.stop(),
            Err(error) => tracing::warn!(%error, "cannot wait for signals"),
        }
    });
    let found = mounts::find(&request.mountpoint).ok().flatten();
    if let Some(mount) = &found {
        kernel_readahead::raise(mount, request.fuse.max_readahead_bytes);
    }
    let mut record = record(found);
    let asked = record.as_mut().and_then(|it| answers(it, stack.clone(), vfs.clone()));
    if let Err(error) = ready.succeeded() {
        // The session is dropped, which unmounts.
        tracing::error!(%error, "cannot go to the background");
        return ExitCode::from(EXIT_FAILURE);
    }
    let end = session.run().await;
    stopping.abort();
    drop((asked, stack));
    let unwritten = vfs.take_lost_write();
    match unwritten {
        None => {
            record.into_iter().for_each(Record::ended);
        }
        Some(error) => {
            let reason = format!("a file that was closed could not be written: {error}");
            record.into_iter().for_each(|record| record.failed(&reason));
        }
    }
    if let fuse::Cause::Failed(error) = end.cause {
        tracing::error!(%error, "the connection to the kernel failed");
        return ExitCode::from(EXIT_FAILURE);
    }
    ExitCode::from(EXIT_OK)
}

/// What serves a mount.
struct Mounted {
    session: fuse::Session<Adapter>,
    vfs: Arc<Vfs>,
    stack: Arc<Stack>,
}

/// Connects and mounts; the kernel has been answered when this returns.
async fn mount(request: &MountRequest) -> Result<Mounted, Problem> {
    let stack = Arc::new(Stack::build(request).await?);
    let config = vfs_config(request, &stack).await?;
    let any_link = config.links == vfs::Links::Any;
    let vfs = Arc::new(Vfs::new(stack.remote.clone(), config));
    let mount = fuse::Mount::new(&request.mountpoint, &mount_options(request))
        .map_err(|error| said("cannot mount", &error, None))?;
    let tells_places = stack.union.is_some();
    let adapter = Adapter::new(vfs.clone());
    let adapter = if tells_places { adapter.telling_places() } else { adapter };
    let config = session_config(request, any_link, tells_places);
    let session = fuse::Session::start(mount, Arc::new(adapter), config)
        .await
        .map_err(|error| said("cannot mount", &error, None))?;
    Ok(Mounted { session, vfs, stack })
}

fn said(what: &str, why: &dyn std::fmt::Display, hint: Option<&str>) -> Problem {
    let problem = Problem::new(what, why.to_string());
    match hint {
        Some(hint) => problem.hint(hint),
        None => problem,
    }
}

/// Waits for the ends of an ssh that may still be asking for a password, which leaves the terminal
/// as it should be, and of its helpers; not for ever.
async fn children_ended() {
    let any = || {
        waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT)
    };
    let all_ended = async {
        // The runtime reaps them; that none is left is no event.
        while !matches!(any(), Err(Errno::CHILD)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let _ = tokio::time::timeout(CHILDREN_LIMIT, all_ended).await;
}

/// Returns when the process is asked to end.
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

/// The record by which `sshoal umount` finds this process. Without it the mount works all the
/// same, but `umount` cannot wait for it.
fn record(found: Option<Mount>) -> Option<Record> {
    let created = found.map(|mount| Record::create(&mount).map_err(|error| error.to_string()));
    match created {
        Some(Ok(record)) => Some(record),
        Some(Err(error)) => {
            tracing::warn!(%error, "`sshoal umount` will not be able to wait for this mount");
            None
        }
        None => None,
    }
}

/// Answers `sshoal status` and `sshoal branch` for as long as it is kept.
fn answers(record: &mut Record, stack: Arc<Stack>, vfs: Arc<Vfs>) -> Option<Server> {
    let started = record.listen().map_err(|error| error.to_string()).and_then(|listener| {
        let mount = Arc::new(Controlled::new(stack, vfs));
        Server::start(listener, mount).map_err(|error| error.to_string())
    });
    started
        .inspect_err(|error| tracing::warn!(%error, "`sshoal status` cannot ask about this mount"))
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
        readahead_bytes: u64::from(cache.readahead_bytes),
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

fn session_config(request: &MountRequest, any_link: bool, tells_places: bool) -> fuse::Config {
    let options = &request.fuse;
    let defaults = fuse::Config::default();
    fuse::Config {
        max_background: options.max_background.unwrap_or(defaults.max_background),
        congestion_threshold: options.congestion_threshold.unwrap_or(defaults.congestion_threshold),
        max_readahead: options.max_readahead_bytes.unwrap_or(defaults.max_readahead),
        // A cached target would outlive a rename of its link to where the target leads out.
        cache_symlinks: any_link,
        // Without this, pages that end in the zeros behind an old end of file would be shown when
        // the file has grown.
        data_invalidation: fuse::DataInvalidation::OnSize,
        // Belongs to extended attributes; without those it would change nothing.
        handle_killpriv: tells_places,
        ..defaults
    }
}
