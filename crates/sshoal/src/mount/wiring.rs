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
use rustix::thread::CapabilitySet;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use vfs::Vfs;

use super::disk::Passthrough;
use super::kernel_readahead;
use super::request::{Consistency, LinkTargets, MountRequest, PageCache};
use crate::adapter::Adapter;
use crate::attributes::Attributes;
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

/// How long the end of a mount waits for what was read to be in the cache on disk. A disk takes
/// a few seconds for all that may be on its way there; one that hangs must not keep the process.
const SETTLING_LIMIT: Duration = Duration::from_secs(10);

/// From this size on the kernel may read a cached file by itself. Such an open always comes to us,
/// and nothing of the file is kept in our pages; below it, files are better off in those.
const PASSTHROUGH_FROM_BYTES: u64 = 1 << 20;

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
        raised.unwrap_or_else(|error| tracing::debug!(%error, "cannot raise the limit of open files"));
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
            // A second request, or one while the end is under way, asks not to wait.
            ending.ending().requested();
            stopper.stop();
            asked = ended_by_signal().await;
        }
        tracing::warn!(?asked, "cannot wait for signals");
    });
    let found = mounts::find(&request.mountpoint).ok().flatten();
    if let Some(mount) = &found {
        kernel_readahead::raise(mount, request.fuse.max_readahead_bytes);
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
            "{} calls had not ended when the mount did, and are given up",
            end.abandoned
        );
    }
    // What was read last would be fetched again.
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

/// What serves a mount.
struct Mounted {
    session: fuse::Session<Adapter>,
    vfs: Arc<Vfs>,
    adapter: Arc<Adapter>,
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
    let attributes = Attributes::new(stack.union.is_some(), request.disk.as_ref());
    let config = session_config(request, any_link, attributes.are_there());
    let servers = Arc::downgrade(&stack);
    let adapter = Adapter::new(vfs.clone(), attributes)
        .silence(move || servers.upgrade().map_or(Duration::MAX, |it| it.silent_for()))
        .read_only(request.fuse.read_only)
        .unasked_opens(may_open_unasked(request));
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
            tracing::warn!(%error, "cannot create the record of the mount: `sshoal umount` cannot wait for it");
            None
        }
        None => None,
    }
}

/// Answers `sshoal status` and `sshoal branch` for as long as it is kept.
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
        backing_from_bytes: may_pass_through(request).then_some(PASSTHROUGH_FROM_BYTES),
        readahead_bytes: u64::from(cache.readahead_bytes),
        dirty_bytes: cache.dirty_bytes,
        dirty_file_bytes: u64::from(cache.dirty_file_bytes),
        metadata_bytes: cache.metadata_bytes as usize,
    })
}

/// Whether the kernel may read cached files by itself, as far as it is able to.
///
/// Only where nothing can be changed through the mount, since what is written would not be seen by
/// who reads so. The kernel then has to tell of opens, which a tree that never changes is better off
/// without (a tree of 7,900 files whose pages are there: 0.19 s against 0.85 s), so that there it
/// takes an explicit wish.
pub fn may_pass_through(request: &MountRequest) -> bool {
    let Some(disk) = &request.disk else { return false };
    let wanted = match disk.passthrough {
        Passthrough::Yes => true,
        Passthrough::No => false,
        Passthrough::Auto => !is_settled(request),
    };
    wanted && request.fuse.read_only && is_privileged()
}

/// Whether the kernel needs not tell of opens. With `allow_root` it has to: it lets every user in,
/// and an open is where the others are refused.
fn may_open_unasked(request: &MountRequest) -> bool {
    is_settled(request) && !may_pass_through(request) && !request.fuse.allow_root
}

/// Whether nothing ever changes, here or there, and is kept.
fn is_settled(request: &MountRequest) -> bool {
    let immutable = request.consistency == Consistency::Immutable;
    request.fuse.read_only && immutable && request.cache.pages != PageCache::Never
}

/// Whether the kernel would take a backing file from this process.
fn is_privileged() -> bool {
    let own = rustix::thread::capabilities(None);
    own.is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
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
        // A cached target would outlive a rename of its link to where the target leads out.
        cache_symlinks: any_link || may_open_unasked(request),
        // Without this, pages that end in the zeros behind an old end of file would be shown when
        // the file has grown.
        data_invalidation: fuse::DataInvalidation::OnSize,
        // Belongs to extended attributes; without those it would change nothing.
        handle_killpriv: has_attributes,
        passthrough: may_pass_through(request),
        ..defaults
    }
}
