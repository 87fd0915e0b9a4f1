//! The mount in the kernel, owners and permissions of its files, and the process.

use std::time::Duration;

use fuse::AccessTime;
use vfs::Links;

use super::{Effect, MountOption, choice, custom, flag, mode, number, option, text};
use crate::mount::request::{IdMapKind, LogLevel};
use crate::stats::endpoint::Address;

/// The kernel's limits of requests in flight have 16 bits.
const MAX_COUNT: u32 = u16::MAX as u32;

pub(super) const OPTIONS: &[MountOption] = &[
    flag("ro", |draft| draft.read_only = Some(true)).help("read-only").prominent(),
    flag("rw", |draft| draft.read_only = Some(false))
        .help("read-write (default, except with consistency=immutable)"),
    flag("suid", |draft| draft.request.mount.suid = true)
        .help("honor set-user-ID and set-group-ID bits"),
    flag("nosuid", |draft| draft.request.mount.suid = false)
        .help("ignore set-user-ID and set-group-ID bits (default)"),
    flag("dev", |draft| draft.request.mount.dev = true).help("allow access to device files"),
    flag("nodev", |draft| draft.request.mount.dev = false)
        .help("deny access to device files (default)"),
    flag("exec", |draft| draft.request.mount.exec = true)
        .help("allow programs to be executed (default)"),
    flag("noexec", |draft| draft.request.mount.exec = false)
        .help("do not allow programs to be executed"),
    flag("atime", |draft| draft.request.mount.atime = AccessTime::Default)
        .help("mount without noatime (default)"),
    flag("noatime", |draft| draft.request.mount.atime = AccessTime::Off).help("mount with noatime"),
    flag("sync", |draft| draft.request.mount.sync = true).help("all writes are synchronous"),
    flag("async", |draft| draft.request.mount.sync = false)
        .help("writes are asynchronous (default)"),
    flag("dirsync", |draft| draft.request.mount.dirsync = true)
        .help("directory changes are synchronous"),
    text("fsname", "NAME", |draft, name| draft.fsname = Some(name))
        .help("source that the mount table shows (default: the source as typed)"),
    text("subtype", "NAME", |draft, name| draft.request.mount.subtype = name)
        .help("type that the mount table shows after 'fuse.' (default: the program's name)"),
    flag("auto_unmount", |draft| draft.request.mount.auto_unmount = true)
        .help("unmount when the daemon dies"),
    text("context", "CONTEXT", |draft, context| draft.set_context(&context))
        .help("SELinux context of all files"),
    number("max_background", 1, MAX_COUNT, |draft, count| {
        draft.request.limits.max_background = Some(count as u16);
    })
    .help("maximum background requests of the kernel, such as readahead"),
    number("congestion_threshold", 1, MAX_COUNT, |draft, count| {
        draft.request.limits.congestion_threshold = Some(count as u16);
    })
    .help("number of background requests at which the kernel throttles readahead"),
    number("max_readahead", 0, u32::MAX, |draft, bytes| {
        draft.request.limits.max_readahead_bytes = Some(bytes);
    })
    .help("maximum bytes that the kernel reads ahead (default 524288 as root, else 131072)"),
    number("poll_us", 0, 1000, |draft, micros| {
        let limit = Duration::from_micros(micros.into());
        draft.request.limits.poll_limit = limit;
        draft.request.host.poll_limit = limit;
    })
    .help("microseconds to poll for the next request before sleeping, under load (default 50)"),
    option(
        "io_uring",
        Effect::Optional(
            "yes|no",
            |draft, value| {
                draft.request.limits.io_uring = match value {
                    "yes" => true,
                    "no" => false,
                    _ => return Err("must be yes or no".to_owned()),
                };
                Ok(())
            },
            |draft| draft.request.limits.io_uring = true,
        ),
    )
    .help("transfer the kernel's requests through io_uring, if it offers that (default no)"),
    number("io_uring_q_depth", 1, 65_535, |draft, depth| {
        draft.request.limits.io_uring_depth = Some(depth as u16);
    })
    .help("requests in progress for each processor with io_uring (default 32)"),
];

/// The process, its log, and the mount point.
pub(super) const PROCESS: &[MountOption] = &[
    flag("foreground", |draft| draft.request.run.foreground = true)
        .help("stay in the foreground (-f)"),
    flag("debug", |draft| draft.request.run.debug = true)
        .help("log each request (-d); implies -f")
        .also(&["sshfs_debug"]),
    flag("verbose", |draft| draft.request.run.verbose = true)
        .help("more messages (-v)")
        .also(&["sshfs_verbose"]),
    choice(
        "log_level",
        &[
            ("warning", |draft| draft.request.run.log_level = Some(LogLevel::Warning)),
            ("info", |draft| draft.request.run.log_level = Some(LogLevel::Info)),
            ("debug", |draft| draft.request.run.log_level = Some(LogLevel::Debug)),
        ],
    )
    .help("messages: warnings, also rare events, or each request (default info; with -f, warning)")
    .changeable(|request| Some(format!("{:?}", request.run.log_level()).to_lowercase())),
    text("log", "FILE", |draft, target| draft.set_log(target))
        .help("append the log of the background process to this file; or: journal, syslog, none")
        .prominent(),
    custom("metrics", "ADDRESS", |draft, text| {
        let address = Address::parse(text)?;
        draft.request.run.metrics = Some(match address {
            Address::Unix(path) => Address::Unix(draft.absolute(path.into())),
            tcp => tcp,
        });
        Ok(())
    })
    .help(
        "serve metrics for Prometheus at unix:PATH, or a loopback address such as 127.0.0.1:9464",
    ),
    flag("nonempty", |draft| draft.request.run.nonempty = true)
        .help("allow mounting over another mount of sshoal (files are always hidden by a mount)"),
    flag("single_thread", |draft| draft.request.run.single_thread = true)
        .help("use one thread only (-s)"),
];

/// The highest id is reserved: in `chown(2)` it means "do not change".
const MAX_ID: u32 = u32::MAX - 1;

/// Owners, permissions and symbolic links.
pub(super) const OWNERSHIP: &[MountOption] = &[
    choice(
        "idmap",
        &[
            ("none", |draft| draft.request.idmap.kind = IdMapKind::None),
            ("user", |draft| draft.request.idmap.kind = IdMapKind::User),
            ("file", |draft| draft.request.idmap.kind = IdMapKind::File),
        ],
    )
    .help("owners: as on the server (default), login as the local user, or by uidfile and gidfile")
    .prominent(),
    text("uidfile", "FILE", |draft, file| draft.request.idmap.users = Some(draft.absolute(file)))
        .help("user ids for idmap=file: lines 'name:remote id', or a passwd(5) file"),
    text("gidfile", "FILE", |draft, file| draft.request.idmap.groups = Some(draft.absolute(file)))
        .help("group ids for idmap=file: lines 'name:remote id', or a group(5) file"),
    choice(
        "nomap",
        &[
            ("ignore", |draft| draft.request.idmap.others_same = true),
            ("error", |draft| draft.request.idmap.others_same = false),
        ],
    )
    .help("ids that uidfile and gidfile do not list: keep them, or fail (default error)"),
    number("uid", 0, MAX_ID, |draft, id| draft.request.vfs.shown.uid = Some(id))
        .help("show this user id as the owner of all files")
        .prominent(),
    number("gid", 0, MAX_ID, |draft, id| draft.request.vfs.shown.gid = Some(id))
        .help("show this group id as the group of all files")
        .prominent(),
    mode("umask", |draft, bits| draft.umask = Some(bits))
        .help("show permissions of all files and directories as 0777 without these bits")
        .prominent(),
    mode("fmask", |draft, bits| draft.fmask = Some(bits))
        .help("show permissions of files as 0777 without these bits (default umask)"),
    mode("dmask", |draft, bits| draft.dmask = Some(bits))
        .help("show permissions of directories as 0777 without these bits (default umask)"),
    flag("allow_other", |draft| draft.allow_other = true)
        .help("allow access by other users; implies default_permissions")
        .prominent(),
    flag("allow_root", |draft| draft.allow_root = true).help("allow access by root"),
    flag("default_permissions", |draft| draft.default_permissions = Some(true))
        .help("the kernel checks permission bits")
        .prominent(),
    flag("no_default_permissions", |draft| draft.default_permissions = Some(false)).help(
        "kernel does not check permissions, even with allow_other: all act as the remote user",
    ),
    flag("follow_symlinks", |draft| draft.request.host.follow_symlinks = true)
        .help("the server follows symbolic links; none is visible in the mount")
        .prominent(),
    flag("transform_symlinks", |draft| draft.request.vfs.transform_links = true)
        .help("show absolute symbolic links into the remote directory as relative ones"),
    flag("contain_symlinks", |draft| draft.request.vfs.links = Links::Strict)
        .help("refuse symbolic links that are absolute or contain '..' (EPERM)"),
    flag("no_contain_symlinks", |draft| draft.request.vfs.links = Links::Any)
        .help("show symbolic links as they are, even if they lead out of the mount")
        .prominent(),
];
