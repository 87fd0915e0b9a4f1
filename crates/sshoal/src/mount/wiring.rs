//! The layers, stacked for one request: ssh below host below vfs below the kernel.
//!
//! The order matters. The connection is made and checked before there is a mount, since ssh may
//! look at directories that the mount would cover, and since a mount that serves nothing hangs
//! whoever looks at it. The program goes to the background when the kernel has been answered.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use host::Host;
use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions, waitid};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use vfs::Vfs;

use super::kernel_readahead;
use super::request::{
    Consistency, IdMap, LinkTargets, MountRequest, PageCache, SshOptions, Transport,
};
use crate::adapter::Adapter;
use crate::background::Ready;
use crate::connector::SshConnector;
use crate::mounts::{self, Mount};
use crate::record::Record;
use crate::report::{EXIT_FAILURE, EXIT_OK, Problem};

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

fn runtime(request: &MountRequest) -> Result<Runtime, Problem> {
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
    let (session, vfs) = match mounted {
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
    let record = record(found);
    if let Err(error) = ready.succeeded() {
        // The session is dropped, which unmounts.
        tracing::error!(%error, "cannot go to the background");
        return ExitCode::from(EXIT_FAILURE);
    }
    let end = session.run().await;
    stopping.abort();
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

/// Connects and mounts; the kernel has been answered when this returns.
async fn mount(request: &MountRequest) -> Result<(fuse::Session<Adapter>, Arc<Vfs>), Problem> {
    let (destination, base) = ssh::Destination::parse(request.source.as_bytes())
        .map_err(|error| said("source", &error, error.hint()))?;
    let host_name = destination.to_string();
    let connector = SshConnector::new(ssh_config(&request.ssh, destination)?)?;
    let host = Host::connect(Arc::new(connector), host_config(request, base))
        .await
        .map_err(|error| said(&host_name, &error, None))?;
    let host = Arc::new(host);
    let config = vfs_config(request, &host).await?;
    let any_link = config.links == vfs::Links::Any;
    let vfs = Arc::new(Vfs::new(host, config));
    let mount = fuse::Mount::new(&request.mountpoint, &mount_options(request))
        .map_err(|error| said("cannot mount", &error, None))?;
    let config = session_config(request, any_link);
    let session = fuse::Session::start(mount, Arc::new(Adapter::new(vfs.clone())), config)
        .await
        .map_err(|error| said("cannot mount", &error, None))?;
    Ok((session, vfs))
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

fn ssh_config(options: &SshOptions, destination: ssh::Destination) -> Result<ssh::Config, Problem> {
    let sftp_server = options.sftp_server.as_ref().map(|server| {
        let text = server.to_str().map(str::to_owned);
        text.ok_or_else(|| Problem::new("option 'sftp_server'", "not valid UTF-8"))
    });
    Ok(ssh::Config {
        transport: match options.transport {
            Transport::Ssh => ssh::Transport::Ssh,
            Transport::DirectPort(port) => ssh::Transport::DirectPort(port),
            Transport::Vsock { cid, port } => ssh::Transport::Vsock { cid, port },
            Transport::Passive => ssh::Transport::Passive,
        },
        ssh_command: options.command.clone(),
        args: options.arguments.clone(),
        sftp_server: sftp_server.transpose()?,
        password: options.password_stdin.then(password).transpose()?,
        ..ssh::Config::new(destination)
    })
}

/// One line from standard input, asked for if that is a terminal.
fn password() -> Result<ssh::Password, Problem> {
    let problem = |why: String| Problem::new("password", why);
    let stdin = std::io::stdin();
    if rustix::termios::isatty(&stdin) {
        eprint!("Password: ");
        let _ = std::io::stderr().flush();
    }
    let mut line = Vec::new();
    stdin.lock().read_until(b'\n', &mut line).map_err(|error| problem(error.to_string()))?;
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    if line.is_empty() {
        return Err(problem("none on standard input".into())
            .hint("with password_stdin the first line of standard input is the password"));
    }
    Ok(ssh::Password::new(line))
}

fn host_config(request: &MountRequest, base: Vec<u8>) -> host::Config {
    let options = &request.host;
    host::Config {
        base,
        max_conns: options.max_conns.map_or(host::AUTOMATIC_CONNS, |conns| conns as usize),
        measure_gain: true,
        idle_limit: host::Config::default().idle_limit,
        follow_symlinks: options.follow_symlinks,
        sync_readdir: options.sync_readdir,
        max_read: options.max_read_bytes,
        max_write: options.max_write_bytes,
        disable_hardlink: options.disable_hardlink,
        rename_workaround: options.rename_workaround,
        renamexdev_workaround: options.renamexdev_workaround,
        stall_limit: options.request_timeout,
        reconnect: options.reconnect,
        delay_connect: options.delay_connect,
        check_root: options.check_root,
    }
}

async fn vfs_config(request: &MountRequest, host: &Host) -> Result<vfs::Config, Problem> {
    let cache = &request.cache;
    let timeout =
        |timeout: super::request::Timeout| vfs::Timeout { min: timeout.min, max: timeout.max };
    let remote_root = host.real_root().map(|root| match root {
        b"/" => Vec::new(),
        root => root.to_vec(),
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
        login: login(request, host).await,
        kernel_entry: cache.kernel_entry,
        kernel_attr: cache.kernel_attr,
        links: match request.links.targets {
            LinkTargets::Inside => vfs::Links::Inside,
            LinkTargets::Strict => vfs::Links::Strict,
            LinkTargets::Any => vfs::Links::Any,
        },
        transform_links: request.links.transform,
        remote_root,
        idmap: idmap(&request.idmap, host).await?,
        shown: vfs::Shown {
            uid: request.shown.uid,
            gid: request.shown.gid,
            file_umask: request.shown.file_umask,
            dir_umask: request.shown.dir_umask,
        },
        sync_writes: cache.sync_writes,
        readahead_bytes: u64::from(cache.readahead_bytes),
        dirty_bytes: cache.dirty_bytes,
        dirty_file_bytes: u64::from(cache.dirty_file_bytes),
    })
}

/// Who the login is, where that is told: it lets opens be answered without asking.
async fn login(request: &MountRequest, host: &Host) -> Option<(u32, u32)> {
    if request.host.delay_connect {
        return None;
    }
    let told = host.login_ids().await;
    told.inspect_err(|error| tracing::debug!(%error, "the server does not tell who the login is"))
        .ok()
}

async fn idmap(idmap: &IdMap, host: &Host) -> Result<vfs::IdMap, Problem> {
    Ok(match idmap {
        IdMap::None => vfs::IdMap::Same,
        IdMap::User => {
            // Who the login is, SFTP does not tell; its home directory is its own.
            let (uid, gid) = host.login_ids().await.map_err(|error| {
                Problem::new(
                    "option 'idmap=user'",
                    format!("cannot examine the remote home: {error}"),
                )
            })?;
            vfs::IdMap::User {
                uid: (uid, rustix::process::getuid().as_raw()),
                gid: (gid, rustix::process::getgid().as_raw()),
            }
        }
        IdMap::File { users, groups, others_same } => vfs::IdMap::Table {
            uids: users.as_ref().map(|table| table.ids.clone()),
            gids: groups.as_ref().map(|table| table.ids.clone()),
            others_same: *others_same,
        },
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

fn session_config(request: &MountRequest, any_link: bool) -> fuse::Config {
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
        ..defaults
    }
}
