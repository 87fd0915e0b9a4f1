//! What each option does, and what the command line makes of right and wrong words.
//!
//! An expectation is a change of the default request, so an option that does more than it should
//! fails, too.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use base::{DigestEffort, DigestKind};
use fuse::{AccessTime, Visibility};
use host::Helper;
use recovery::RetryPolicy;
use replicas::Mode;
use ssh::Transport;
use union::{ActionPolicy, CreatePolicy};
use vfs::{Consistency, Links, PageCache, Prefetch, Timeout};

use super::command_line::{Wish, parse};
use super::disk::{DigestAttribute, DiskOptions};
use super::draft::Times;
use super::option_table::{self, MountOption};
use super::request::{IdMap, IdMapKind, LogLevel, MountRequest};
use super::ssh_keywords;
use crate::log::{LogTarget, Service};
use crate::program::Program;
use crate::sources::source;
use crate::stats::endpoint::Address;

pub(super) const SSHOAL: Program = Program::SSHOAL;
pub(super) const SSHFS: Program = Program { name: "sshfs", helper: false };
pub(super) const HELPER: Program = Program { name: "sshfs", helper: true };
pub(super) const OWN_HELPER: Program = Program { name: "sshoal", helper: true };

type Change = fn(&mut MountRequest);

pub(super) fn wish(program: Program, words: &[&str]) -> Result<Wish, String> {
    let words = words.iter().map(OsString::from);
    parse(program, words, PathBuf::from("/home/u"), None).map_err(|problem| problem.to_string())
}

/// The request without `times`, whose result is in `vfs`.
pub(super) fn request(words: &[&str]) -> MountRequest {
    MountRequest { times: Times::default(), ..whole_request(words) }
}

pub fn whole_request(words: &[&str]) -> MountRequest {
    match wish(SSHOAL, words) {
        Ok(Wish::Mount(request, _)) => *request,
        other => panic!("{words:?}: {other:?}"),
    }
}

/// The request for `host: /mnt` with these options.
fn with_options(options: &str) -> MountRequest {
    request(&["host:", "/mnt", "-o", options])
}

/// The request for `word /mnt` without options.
fn default_request(word: &str) -> MountRequest {
    MountRequest {
        source: word.into(),
        sources: vec![source(word)],
        mountpoint: "/mnt".into(),
        host: host::Config {
            max_conns: host::AUTOMATIC_CONNS,
            helper: Helper::Auto,
            ..host::Config::default()
        },
        mount: fuse::MountOptions {
            fsname: word.into(),
            subtype: "sshoal".into(),
            ..fuse::MountOptions::default()
        },
        inotify: true,
        ..MountRequest::default()
    }
}

fn default_with(change: Change) -> MountRequest {
    let mut request = default_request("host:");
    change(&mut request);
    request
}

pub(super) fn failure(words: &[&str]) -> String {
    wish(SSHOAL, words).expect_err("it should have been refused")
}

fn ssh_argument(request: &mut MountRequest, argument: &str) {
    request.ssh.arguments.push(argument.into());
}

fn ssh_arguments(request: &mut MountRequest, arguments: &[&str]) {
    request.ssh.arguments.extend(arguments.iter().map(OsString::from));
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn set_times(request: &mut MountRequest, time: Duration) {
    request.vfs.files = Timeout::fixed(time);
    request.vfs.dirs = Timeout::fixed(time);
    request.vfs.negative = time.min(seconds(1));
    request.vfs.open_revalidate = time.min(seconds(1));
}

/// Every option of the table that has an effect, and some whose effect depends on others.
const OPTIONS: &[(&str, Change)] = &[
    // sshfs.
    ("reconnect", |_| ()),
    ("noreconnect", |r| r.host.reconnect = false),
    ("no_reconnect", |r| r.host.reconnect = false),
    ("noreconnect,reconnect", |_| ()),
    ("delay_connect", |r| r.host.delay_connect = true),
    ("hard", |_| ()),
    ("soft=2.5", |r| r.retry = RetryPolicy::Soft(Duration::from_millis(2500))),
    ("soft=5,hard", |_| ()),
    ("stale=ok", |r| r.vfs.serve_stale = true),
    ("stale=ok,stale=no", |_| ()),
    ("create=epff", |_| ()),
    ("create=ff", |r| r.union.create = CreatePolicy::Ff),
    ("create=epmfs", |r| r.union.create = CreatePolicy::EpMfs),
    ("create=mfs", |r| r.union.create = CreatePolicy::Mfs),
    ("create=rand", |r| r.union.create = CreatePolicy::Rand),
    ("action=first", |_| ()),
    ("action=all", |r| r.union.action = ActionPolicy::All),
    ("pool=balance", |_| ()),
    ("pool=hash", |r| r.pool = Mode::Hash),
    ("pool=failover", |r| r.pool = Mode::Failover),
    ("ssh_config=conf", |r| ssh_argument(r, "-F/home/u/conf")),
    ("sshfs_sync", |r| r.vfs.sync_writes = true),
    ("no_readahead", |r| r.vfs.readahead_bytes = 0),
    ("readahead=0", |r| r.vfs.readahead_bytes = 0),
    ("readahead=1000000", |r| r.vfs.readahead_bytes = 1_000_000),
    ("prefetch=none", |r| r.vfs.prefetch = Prefetch::None),
    ("prefetch=listings", |r| r.vfs.prefetch = Prefetch::Listings),
    ("prefetch=metadata", |r| r.vfs.prefetch = Prefetch::Metadata),
    ("prefetch=none,prefetch=all", |_| ()),
    ("dirty_bytes=1048576", |r| r.vfs.dirty_bytes = 1 << 20),
    ("dirty_file_bytes=1", |r| r.vfs.dirty_file_bytes = 1),
    ("metadata_bytes=16777216", |r| r.vfs.metadata_bytes = 16 << 20),
    ("sync_readdir", |r| r.host.sync_readdir = true),
    ("sshfs_debug", |r| (r.run.debug, r.run.foreground) = (true, true)),
    ("debug", |r| (r.run.debug, r.run.foreground) = (true, true)),
    ("verbose", |r| r.run.verbose = true),
    ("log_level=warning", |r| r.run.log_level = Some(LogLevel::Warning)),
    ("log_level=info", |r| r.run.log_level = Some(LogLevel::Info)),
    ("log_level=debug", |r| r.run.log_level = Some(LogLevel::Debug)),
    ("sshfs_verbose", |r| r.run.verbose = true),
    ("dir_cache=yes", |_| ()),
    ("cache=yes", |_| ()),
    ("dir_cache=no", |r| set_times(r, Duration::ZERO)),
    ("cache=no,dcache_timeout=20", |r| set_times(r, Duration::ZERO)),
    ("dcache_timeout=1", |r| set_times(r, seconds(1))),
    ("cache_timeout=115200", |r| set_times(r, seconds(115_200))),
    ("actimeo=0", |r| set_times(r, Duration::ZERO)),
    ("dcache_stat_timeout=7", |r| set_times(r, seconds(7))),
    ("cache_stat_timeout=7", |r| set_times(r, seconds(7))),
    ("dcache_dir_timeout=7", |r| r.vfs.dirs = Timeout::fixed(seconds(7))),
    ("cache_dir_timeout=7", |r| r.vfs.dirs = Timeout::fixed(seconds(7))),
    ("dcache_dir_timeout=9,dcache_stat_timeout=7", |r| {
        r.vfs.files = Timeout::fixed(seconds(7));
        r.vfs.dirs = Timeout::fixed(seconds(9));
    }),
    ("dcache_stat_timeout=7,dcache_dir_timeout=9", |r| {
        r.vfs.files = Timeout::fixed(seconds(7));
        r.vfs.dirs = Timeout::fixed(seconds(9));
    }),
    ("dcache_dir_timeout=9,dcache_timeout=7", |r| set_times(r, seconds(7))),
    ("cache=disk", |r| r.disk = Some(DiskOptions::default())),
    ("cache=no,cache=disk", |r| r.disk = Some(DiskOptions::default())),
    ("cache=disk,cache=yes", |_| ()),
    ("cache=disk,cache_dir=kept,cache_size=2G,cache_free=512M", |r| {
        let disk = r.disk.get_or_insert_default();
        disk.dir = Some("/home/u/kept".into());
        (disk.size_bytes, disk.free_bytes) = (Some(2 << 30), Some(512 << 20));
    }),
    ("immutable=/src/*:rel,cache=disk,immutable=a/b/", |r| {
        let immutable = &mut r.disk.get_or_insert_default().immutable;
        for pattern in ["src/*", "rel", "a/b"] {
            immutable.add(pattern.as_bytes());
        }
    }),
    ("cache=disk,offline", |r| {
        r.disk.get_or_insert_default().offline = true;
        r.host.delay_connect = true;
    }),
    ("cache=disk,passthrough=no", |r| {
        r.disk.get_or_insert_default().passthrough = Some(false);
    }),
    ("cache=disk,passthrough=yes", |r| {
        r.disk.get_or_insert_default().passthrough = Some(true);
    }),
    ("cache=disk,passthrough=no,passthrough=auto", |r| r.disk = Some(DiskOptions::default())),
    ("cache=disk,digest=off", |r| r.disk.get_or_insert_default().digest = None),
    ("cache=disk,digest=known", |r| r.disk = Some(DiskOptions::default())),
    ("cache=disk,digest=compute", |r| {
        r.disk.get_or_insert_default().digest = Some(DigestEffort::Compute);
    }),
    ("cache=disk,digest_attribute=none,digest_attribute=blake3:hex:user.b3", |r| {
        let (name, kind) = ("user.b3".to_owned(), DigestKind::Blake3);
        r.disk.get_or_insert_default().attributes =
            vec![DigestAttribute { name, kind, is_hex: true }];
    }),
    ("cache=disk,server_digests", |r| {
        r.disk.get_or_insert_default().server_digests = true;
    }),
    ("cache_size=1M,digest=compute", |_| ()),
    ("direct_io", |r| r.vfs.page_cache = PageCache::Never),
    ("max_read=65536", |r| r.host.max_read = Some(65536)),
    ("max_read=65536,max_read=0", |_| ()),
    ("max_write=4096", |r| r.host.max_write = Some(4096)),
    ("max_conns=3", |r| r.host.max_conns = 3),
    ("workaround=none", |_| ()),
    ("workaround=rename", |r| r.host.rename_workaround = true),
    ("workaround=rename:norename:renamexdev", |r| r.host.renamexdev_workaround = true),
    ("workaround=rename:none", |_| ()),
    ("workaround=fsync", |r| r.host.fsync_workaround = true),
    ("workaround=all", |r| r.host.rename_workaround = true),
    ("workaround=truncate:buflimit:fstat:createmode:nonodelay:nobuflimit", |_| ()),
    ("idmap=none", |_| ()),
    ("idmap=user", |r| r.idmap.kind = IdMapKind::User),
    ("idmap=file,uidfile=ids,nomap=ignore", |r| {
        let users = Some("/home/u/ids".into());
        r.idmap = IdMap { kind: IdMapKind::File, users, groups: None, others_same: true };
    }),
    ("gidfile=/etc/ids,idmap=file,nomap=error", |r| {
        let groups = Some("/etc/ids".into());
        r.idmap = IdMap { kind: IdMapKind::File, users: None, groups, others_same: false };
    }),
    ("uidfile=ids", |_| ()),
    ("ssh_command=ssh -v", |r| r.ssh.command = "ssh -v".into()),
    ("ssh_command=/opt/my\\\\ ssh -v", |r| {
        r.ssh.command = "/opt/my\\ ssh -v".into();
        r.host.helper = Helper::No;
    }),
    ("ssh_command=bin/ssh -F x/y", |r| r.ssh.command = "/home/u/bin/ssh -F x/y".into()),
    ("ssh_protocol=2", |_| ()),
    ("sftp_server=/usr/lib/sftp-server", |r| {
        r.ssh.sftp_server = Some("/usr/lib/sftp-server".into());
        r.host.helper = Helper::No;
    }),
    ("helper=auto", |_| ()),
    ("helper=no", |r| r.host.helper = Helper::No),
    ("helper=install", |r| r.host.helper = Helper::Install),
    ("helper=~/my bin/sshoal", |r| r.host.helper = Helper::At("my bin/sshoal".into())),
    ("helper=/opt/sshoal,ssh_command=dbclient", |r| {
        r.ssh.command = "dbclient".into();
        r.host.helper = Helper::At("/opt/sshoal".into());
    }),
    ("directport=5285,helper=auto", |r| {
        r.ssh.transport = Transport::DirectPort(5285);
        r.host.helper = Helper::No;
    }),
    ("vsock=3:5000,helper=no", |r| {
        r.ssh.transport = Transport::Vsock { cid: 3, port: 5000 };
        r.host.helper = Helper::No;
    }),
    ("passive", |r| {
        r.host.helper = Helper::No;
        r.ssh.transport = Transport::Passive;
        r.host.max_conns = 1;
        r.run.foreground = true;
    }),
    ("slave,passive", |r| {
        r.host.helper = Helper::No;
        r.ssh.transport = Transport::Passive;
        r.host.max_conns = 1;
        r.run.foreground = true;
    }),
    ("disable_hardlink", |r| r.host.disable_hardlink = true),
    ("transform_symlinks", |r| r.vfs.transform_links = true),
    ("contain_symlinks", |r| r.vfs.links = Links::Strict),
    ("no_contain_symlinks", |r| r.vfs.links = Links::Any),
    ("no_contain_symlinks,contain_symlinks", |r| r.vfs.links = Links::Strict),
    ("contain_symlinks,no_contain_symlinks", |r| r.vfs.links = Links::Any),
    ("follow_symlinks", |r| r.host.follow_symlinks = true),
    ("no_check_root", |r| r.host.check_root = false),
    ("password_stdin", |r| r.ssh.password_stdin = true),
    // libfuse.
    ("allow_other", |r| {
        (r.mount.visibility, r.mount.default_permissions) = (Visibility::Everybody, true)
    }),
    ("allow_other,no_default_permissions", |r| r.mount.visibility = Visibility::Everybody),
    ("no_default_permissions,default_permissions", |r| r.mount.default_permissions = true),
    ("allow_root", |r| r.mount.visibility = Visibility::OwnerAndRoot),
    ("ro", |r| r.mount.read_only = true),
    ("ro,rw", |_| ()),
    ("suid", |r| r.mount.suid = true),
    ("suid,nosuid", |_| ()),
    ("dev", |r| r.mount.dev = true),
    ("dev,nodev", |_| ()),
    ("noexec", |r| r.mount.exec = false),
    ("noexec,exec", |_| ()),
    ("noatime", |r| r.mount.atime = AccessTime::Off),
    ("noatime,atime", |_| ()),
    ("sync", |r| r.mount.sync = true),
    ("sync,async", |_| ()),
    ("dirsync", |r| r.mount.dirsync = true),
    ("fsname=a\\,b", |r| r.mount.fsname = "a,b".into()),
    ("subtype=other", |r| r.mount.subtype = "other".into()),
    ("auto_unmount", |r| r.mount.auto_unmount = true),
    ("context=system_u:object_r:t:s0", |r| {
        r.mount.contexts = vec!["context=system_u:object_r:t:s0".into()];
    }),
    ("kernel_cache", |r| r.vfs.page_cache = PageCache::Always),
    ("auto_cache", |r| r.vfs.page_cache = PageCache::SameTime),
    ("auto_cache,noauto_cache", |_| ()),
    ("kernel_cache,noauto_cache", |r| r.vfs.page_cache = PageCache::Always),
    ("umask=077", |r| {
        r.vfs.shown.file_umask = Some(0o077);
        r.vfs.shown.dir_umask = Some(0o077);
    }),
    ("fmask=0133,dmask=0022,umask=077", |r| {
        r.vfs.shown.file_umask = Some(0o133);
        r.vfs.shown.dir_umask = Some(0o022);
    }),
    ("uid=1000", |r| r.vfs.shown.uid = Some(1000)),
    ("gid=0", |r| r.vfs.shown.gid = Some(0)),
    ("entry_timeout=0", |r| r.vfs.kernel_entry = Some(Duration::ZERO)),
    ("attr_timeout=2.5", |r| r.vfs.kernel_attr = Some(Duration::from_millis(2500))),
    ("negative_timeout=3", |_| ()),
    ("negative_timeout=0.5", |r| r.vfs.negative = Duration::from_millis(500)),
    ("poll_us=0", |r| (r.limits.poll_limit, r.host.poll_limit) = (Duration::ZERO, Duration::ZERO)),
    ("io_uring", |r| r.limits.io_uring = true),
    ("io_uring=yes", |r| r.limits.io_uring = true),
    ("io_uring,io_uring=no", |_| ()),
    ("io_uring_q_depth=64", |r| r.limits.io_uring_depth = Some(64)),
    ("direct=yes", |r| r.host.direct = host::Direct::Yes),
    ("direct=require", |r| r.host.direct = host::Direct::Require),
    ("direct=yes,direct=no", |_| ()),
    ("compress=yes", |r| r.host.compresses = true),
    ("compress=yes,compress=no", |_| ()),
    ("direct_ports=7000-7009", |r| r.host.direct_ports = (7000, 7009)),
    ("direct_ports=7000", |r| r.host.direct_ports = (7000, 7000)),
    ("direct_address=gate", |r| r.host.direct_address = Some(("gate".to_owned(), None))),
    ("direct_address=gate:70", |r| r.host.direct_address = Some(("gate".to_owned(), Some(70)))),
    ("direct_address=[::1]:70", |r| r.host.direct_address = Some(("::1".to_owned(), Some(70)))),
    ("max_background=100", |r| r.limits.max_background = Some(100)),
    ("congestion_threshold=70", |r| r.limits.congestion_threshold = Some(70)),
    ("no_remote_lock", |r| {
        (r.limits.local_flock, r.limits.local_posix_locks) = (true, true);
    }),
    ("no_remote_flock", |r| r.limits.local_flock = true),
    ("no_remote_posix_lock", |r| r.limits.local_posix_locks = true),
    ("max_readahead=1048576", |r| r.limits.max_readahead_bytes = Some(1 << 20)),
    // Ours and NFS's.
    ("request_timeout=5", |r| r.host.stall_limit = seconds(5)),
    ("stall=0.5", |r| r.host.stall_limit = Duration::from_millis(500)),
    ("consistency=strict", |r| r.vfs.consistency = Consistency::Strict),
    ("consistency=immutable", |r| {
        r.vfs.consistency = Consistency::Immutable;
        r.mount.read_only = true;
    }),
    ("immutable", |r| {
        r.vfs.consistency = Consistency::Immutable;
        r.mount.read_only = true;
    }),
    ("rw,consistency=immutable", |r| r.vfs.consistency = Consistency::Immutable),
    ("inotify=no", |r| r.inotify = false),
    ("inotify=no,inotify=yes", |_| ()),
    ("consistency=timeout", |r| r.vfs.consistency = Consistency::Timeout),
    ("nocto", |r| r.vfs.consistency = Consistency::Timeout),
    ("nocto,cto", |_| ()),
    ("nocto,consistency=cto", |_| ()),
    ("nocto,consistency=close-to-open", |_| ()),
    ("acregmin=3", |r| r.vfs.files.min = seconds(3)),
    ("acregmin=60", |r| r.vfs.files = Timeout::fixed(seconds(60))),
    ("acregmax=0", |r| {
        r.vfs.files = Timeout::fixed(Duration::ZERO);
        r.vfs.open_revalidate = Duration::ZERO;
    }),
    ("acregmax=0,open_revalidate=2", |r| {
        r.vfs.files = Timeout::fixed(Duration::ZERO);
        r.vfs.open_revalidate = seconds(2);
    }),
    ("open_revalidate=0", |r| r.vfs.open_revalidate = Duration::ZERO),
    ("acdirmin=30,acdirmax=60", |r| {
        r.vfs.dirs = Timeout { min: seconds(30), max: seconds(60) };
    }),
    ("acnegative=0", |r| r.vfs.negative = Duration::ZERO),
    ("acnegative=9,dcache_timeout=0", |r| {
        set_times(r, Duration::ZERO);
        r.vfs.negative = seconds(9);
    }),
    ("foreground", |r| r.run.foreground = true),
    ("single_thread", |r| r.run.single_thread = true),
    ("nonempty", |r| r.run.nonempty = true),
    ("metrics=unix:m.socket", |r| {
        r.run.metrics = Some(Address::Unix("/home/u/m.socket".into()));
    }),
    ("keep_password=no", |r| r.ssh.typed_password = ssh::TypedPassword::Noted),
    ("keep_password=yes", |_| {}),
    ("log=mount.log", |r| r.run.log = LogTarget::File("/home/u/mount.log".into())),
    ("log=journal", |r| r.run.log = LogTarget::Service(Service::Journal)),
    ("log=syslog", |r| r.run.log = LogTarget::Service(Service::Syslog)),
    ("log=none", |r| r.run.log = LogTarget::None),
    ("log=./none", |r| r.run.log = LogTarget::File("/home/u/./none".into())),
];

#[test]
fn each_option_does_what_it_should_and_nothing_else() {
    for (options, change) in OPTIONS {
        assert_eq!(with_options(options), default_with(*change), "{options}");
    }
}

#[test]
fn each_option_of_the_table_has_been_tried() {
    let tried: BTreeSet<&str> = OPTIONS
        .iter()
        .flat_map(|(options, _)| options.split(','))
        .map(|word| word.split('=').next().unwrap_or_default())
        .collect();
    for option in option_table::all().filter(|option| option.why_not().is_none()) {
        for name in option.names() {
            assert!(tried.contains(name), "{name} is in no test");
        }
    }
}

#[test]
fn what_is_ignored_changes_nothing_with_or_without_a_value() {
    for option in option_table::all().filter(|option| option.is_ignored()) {
        for name in option.names() {
            let name = name.replace('*', "systemd.automount");
            assert_eq!(with_options(&name), default_with(|_| ()), "{name}");
            if !ssh_keywords::is_keyword(OsStr::new(&name)) {
                let with_value = format!("{name}=no");
                assert_eq!(with_options(&with_value), default_with(|_| ()), "{with_value}");
            }
        }
    }
}

#[test]
fn what_cannot_be_had_says_why() {
    for (option, why) in [
        ("modules=subdir", "libfuse modules are not supported"),
        ("subdir=/x", "name the directory in the source"),
        ("remount", "only on a command line"),
        ("ssh_protocol=1", "no ssh supports version 1"),
    ] {
        let said = failure(&["host:", "/mnt", "-o", option]);
        assert!(said.starts_with(&format!("option '{option}': ")) && said.contains(why), "{said}");
    }
    assert!(failure(&["-1", "host:", "/mnt"]).starts_with("flag '-1': no ssh supports"));
}

#[test]
fn each_keyword_of_ssh_goes_on_to_ssh() {
    let withheld: Vec<&str> = ssh_keywords::WITHHELD.iter().map(|(name, _)| *name).collect();
    for keyword in ssh_keywords::all() {
        for typed in [keyword.to_owned(), keyword.to_lowercase()] {
            let got = with_options(&format!("{typed}=/a b")).ssh.arguments;
            let wanted = OsString::from(format!("-o{keyword}=/a b"));
            let wanted = if withheld.contains(&keyword) { vec![] } else { vec![wanted] };
            if !keyword.ends_with("KnownHostsFile") {
                assert_eq!(got, wanted);
            }
        }
    }
    let Ok(Wish::Mount(_, notes)) = wish(SSHOAL, &["h:", "/m", "-oforwardagent=yes"]) else {
        panic!("ForwardAgent is to be taken");
    };
    assert_eq!(notes, ["ForwardAgent has no effect: a mount never forwards the agent"]);
}

#[test]
fn a_word_of_fstab_with_a_value_may_be_a_keyword_of_ssh() {
    assert_eq!(with_options("user"), default_with(|_| ()));
    assert_eq!(with_options("user=ann"), default_with(|r| ssh_argument(r, "-oUser=ann")));
    assert_eq!(
        with_options("port=22,compression=no"),
        default_with(|r| {
            ssh_argument(r, "-oPort=22");
            ssh_argument(r, "-oCompression=no");
        })
    );
    assert_eq!(
        with_options("IdentityFile key"),
        default_with(|r| {
            ssh_argument(r, "-oIdentityFile=/home/u/key");
        })
    );
    let said = failure(&["h:", "/m", "-o", "IdentityFile"]);
    assert_eq!(
        said,
        "option 'IdentityFile': no such option\n  a keyword of ssh needs a value: IdentityFile=…"
    );
}

/// Every way to write flags, and each flag once.
#[test]
fn flags_and_operands_may_come_in_any_order() {
    let plain = default_with(|r| {
        ssh_argument(r, "-oPort=22");
        r.mount.read_only = true;
        r.run.foreground = true;
    });
    for words in [
        &["host:", "/mnt", "-p", "22", "-o", "ro", "-f"][..],
        &["-p", "22", "-o", "ro", "-f", "host:", "/mnt"],
        &["-f", "host:", "-oro", "/mnt", "-p22"],
        &["-fp22", "-oro", "--", "host:", "/mnt"],
        &["/mnt", "host:", "--foreground", "-p", "22", "-o", ",ro,"],
    ] {
        assert_eq!(request(words), plain, "{words:?}");
    }
}

#[test]
fn each_flag_does_what_it_does_in_sshfs_or_ssh() {
    let cases: &[(&[&str], Change)] = &[
        (&["-C"], |r| ssh_argument(r, "-oCompression=yes")),
        (&["-F", "conf"], |r| ssh_argument(r, "-F/home/u/conf")),
        (&["-F", "none"], |r| ssh_argument(r, "-Fnone")),
        (&["-d"], |r| (r.run.debug, r.run.foreground) = (true, true)),
        (&["--debug"], |r| (r.run.debug, r.run.foreground) = (true, true)),
        (&["-v"], |r| r.run.verbose = true),
        (&["--verbose"], |r| r.run.verbose = true),
        (&["-s"], |r| r.run.single_thread = true),
        (&["-2", "-a", "-x", "-A", "-X", "-Y"], |_| ()),
        (&["-i", "k", "-J", "a@b:1", "-l", "ann"], |r| {
            ssh_arguments(r, &["-i", "/home/u/k", "-J", "a@b:1", "-l", "ann"]);
        }),
        (&["-46qKk"], |r| {
            ssh_arguments(r, &["-4", "-6", "-q", "-K", "-k"]);
        }),
        (&["-c", "x,y", "-mz", "-b", "::1", "-B", "eth0"], |r| {
            ssh_arguments(r, &["-c", "x,y", "-m", "z", "-b", "::1", "-B", "eth0"]);
        }),
        (&["-I", "pkcs.so", "-I", "./pkcs.so", "-S", "none"], |r| {
            ssh_arguments(r, &["-I", "pkcs.so", "-I", "/home/u/./pkcs.so", "-S", "none"]);
        }),
    ];
    for (flags, change) in cases {
        let words: Vec<&str> = ["host:", "/mnt"].iter().chain(*flags).copied().collect();
        assert_eq!(request(&words), default_with(*change), "{flags:?}");
    }
    assert_eq!(wish(SSHOAL, &["-h"]), Ok(Wish::Help));
    assert_eq!(wish(SSHOAL, &["x", "--help"]), Ok(Wish::Help));
    assert_eq!(wish(SSHOAL, &["-fV"]), Ok(Wish::Version));
    assert_eq!(wish(SSHOAL, &["--version"]), Ok(Wish::Version));
}

#[test]
fn wrong_options_are_named_with_what_would_be_right() {
    for (options, said) in [
        ("reconect", "option 'reconect': no such option\n  did you mean 'reconnect'?"),
        (
            "IdentitiyFile=x",
            "option 'IdentitiyFile=x': no such option\n  did you mean 'IdentityFile'?",
        ),
        (
            "cache_timeuot=5",
            "option 'cache_timeuot=5': no such option\n  did you mean 'cache_timeout'?",
        ),
        ("quux", "option 'quux': no such option\n  `sshoal help options` lists all options"),
        (
            "a\x1b[2J",
            "option 'a\\u{1b}[2J': no such option\n  `sshoal help options` lists all options",
        ),
        (
            "Ciphers=aes128-ctr,aes256-ctr",
            "option 'aes256-ctr': no such option\n  if it is part of Ciphers, write the comma before it as '\\,'",
        ),
        ("reconnect=yes", "option 'reconnect=yes': takes no value"),
        ("uid=ann", "option 'uid=ann': needs a whole number from 0 to 4294967294, as in uid=4"),
        ("umask=9", "option 'umask=9': needs octal permission bits, as in umask=022"),
        (
            "max_conns=0",
            "option 'max_conns=0': needs a whole number from 1 to 64, as in max_conns=4",
        ),
        ("request_timeout=0", "option 'request_timeout': must be more than 0"),
        (
            "dcache_timeout=soon",
            "option 'dcache_timeout=soon': needs a number of seconds, as in dcache_timeout=20",
        ),
        ("attr_timeout", "option 'attr_timeout': needs a number of seconds, as in attr_timeout=20"),
        ("idmap=users", "option 'idmap=users': must be none, user or file"),
        ("sftp_server=", "option 'sftp_server=': needs a value, as in sftp_server=SERVER"),
        ("vsock=3", "option 'vsock=3': needs two numbers, as in vsock=3:5000"),
        (
            "directport=ftp",
            "option 'directport=ftp': needs a whole number from 1 to 65535, as in directport=4",
        ),
        (
            "workaround=renam",
            "option 'workaround=renam': no such workaround: 'renam'; did you mean rename?",
        ),
        (
            "idmap=file",
            "option 'idmap=file': needs a file\n  add uidfile=FILE, gidfile=FILE or both",
        ),
        ("allow_other,allow_root", "options 'allow_other' and 'allow_root': cannot be combined"),
        (
            "helper=atuo",
            "option 'helper=atuo': must be auto, no, install, or the path of a program, which \
             contains a '/'",
        ),
        ("helper=install,vsock=3:1", "options 'helper' and 'vsock': cannot be combined"),
        ("passive,directport=1", "options 'passive' and 'directport': cannot be combined"),
        (
            "passive,password_stdin",
            "options 'passive' and 'password_stdin': cannot be combined\n  both need standard input",
        ),
        (
            "passive,max_conns=2",
            "options 'passive' and 'max_conns': cannot be combined\n  standard input and output carry a single connection",
        ),
        ("offline", "option 'offline': needs a disk cache\n  add cache=disk"),
        (
            "cache=disk,consistency=strict",
            "options 'cache=disk' and 'consistency=strict': cannot be combined\n  consistency=strict allows no caching",
        ),
        ("cache_size=5X", "option 'cache_size=5X': needs a size, as in 512M or 20G"),
        ("cache_size=9k", "option 'cache_size=9k': must be at least 1M"),
        ("cache=dsk", "option 'cache=dsk': must be disk, yes or no"),
        ("io_uring=maybe", "option 'io_uring=maybe': must be yes or no"),
        ("immutable=", "option 'immutable=': needs a value, as in immutable[=LIST]"),
        ("immutable=/", "option 'immutable=/': matches everything; use consistency=immutable"),
        (
            "digest_attribute=sha512:hex:user.x",
            "option 'digest_attribute=sha512:hex:user.x': must begin with md5, sha1, sha256 or blake3",
        ),
        (
            "acregmin=9,acregmax=3",
            "options 'acregmin' and 'acregmax': the minimum is greater than the maximum",
        ),
    ] {
        assert_eq!(failure(&["h:", "/m", "-o", options]), said);
    }
}

#[test]
fn a_mount_helper_has_flags_of_its_own() {
    let helper = |words: &[&str]| match wish(HELPER, words) {
        Ok(Wish::Mount(request, _)) => Ok(*request),
        Ok(other) => panic!("{other:?}"),
        Err(said) => Err(said),
    };
    let plain = || {
        let mut request = default_request("u@h:/d");
        request.mount.subtype = "sshfs".into();
        request
    };
    let typed = helper(&["u@h:/d", "/mnt", "-n", "-t", "fuse.sshfs", "-o", "rw,_netdev"]);
    assert_eq!(typed, Ok(plain()));
    let mut wanted = plain();
    wanted.mount.subtype = "sshoal".into();
    assert_eq!(helper(&["u@h:/d", "/mnt", "-t", "sshoal"]), Ok(wanted));
    let mut wanted = plain();
    (wanted.run.fake, wanted.run.verbose) = (true, true);
    assert_eq!(helper(&["sshfs#u@h:/d", "/mnt", "-sfnv", "-o", "rw,foo,bar=1"]), Ok(wanted));
    assert!(helper(&["u@h:/d", "/mnt", "-o", "foo"]).unwrap_err().contains("no such option"));
    assert!(helper(&["u@h:/d", "/mnt", "-N", "7"]).unwrap_err().contains("nsenter"));
}

/// Lines as people have them in fstab, autofs maps and scripts.
#[test]
fn real_lines_are_taken() {
    let got = with_options(
        "noauto,x-systemd.automount,_netdev,user,idmap=user,follow_symlinks,\
         identityfile=/home/u/.ssh/id_rsa,allow_other,default_permissions,uid=1000,gid=1000",
    );
    assert_eq!(
        got,
        default_with(|r| {
            r.idmap.kind = IdMapKind::User;
            r.host.follow_symlinks = true;
            ssh_argument(r, "-oIdentityFile=/home/u/.ssh/id_rsa");
            (r.mount.visibility, r.mount.default_permissions) = (Visibility::Everybody, true);
            (r.vfs.shown.uid, r.vfs.shown.gid) = (Some(1000), Some(1000));
        })
    );
    let got = with_options(
        "defaults,reconnect,ServerAliveInterval=15,ServerAliveCountMax=3,allow_other,umask=022,\
         Compression=no,Ciphers=aes128-gcm@openssh.com\\,aes256-gcm@openssh.com,max_conns=4,\
         cache=yes,kernel_cache,cache_timeout=3600,attr_timeout=3600,entry_timeout=3600,\
         big_writes,large_read,nonempty,comment=sshfs,x-gvfs-show,nofail,rw,nosuid,nodev,relatime",
    );
    assert_eq!(
        got,
        default_with(|r| {
            ssh_argument(r, "-oServerAliveInterval=15");
            ssh_argument(r, "-oServerAliveCountMax=3");
            r.run.nonempty = true;
            (r.mount.visibility, r.mount.default_permissions) = (Visibility::Everybody, true);
            (r.vfs.shown.file_umask, r.vfs.shown.dir_umask) = (Some(0o022), Some(0o022));
            ssh_argument(r, "-oCompression=no");
            ssh_argument(r, "-oCiphers=aes128-gcm@openssh.com,aes256-gcm@openssh.com");
            r.host.max_conns = 4;
            r.vfs.page_cache = PageCache::Always;
            r.vfs.files = Timeout::fixed(seconds(3600));
            r.vfs.dirs = Timeout::fixed(seconds(3600));
            r.vfs.kernel_attr = Some(seconds(3600));
            r.vfs.kernel_entry = Some(seconds(3600));
        })
    );
    let got = request(&[
        "-f",
        "host:",
        "/mnt",
        "-o",
        "sshfs_debug",
        "-o",
        "sync_readdir",
        "-o",
        "dcache_timeout=1",
        "-o",
        "dir_cache=yes",
        "-o",
        "entry_timeout=0",
        "-o",
        "attr_timeout=0",
        "-o",
        "no_contain_symlinks",
        "-o",
        "max_conns=3",
    ]);
    assert_eq!(
        got,
        default_with(|r| {
            (r.run.foreground, r.run.debug) = (true, true);
            r.host.sync_readdir = true;
            set_times(r, seconds(1));
            (r.vfs.kernel_entry, r.vfs.kernel_attr) = (Some(Duration::ZERO), Some(Duration::ZERO));
            r.vfs.links = Links::Any;
            r.host.max_conns = 3;
        })
    );
    let got = request(&[
        "ann@gate:/srv",
        "/mnt",
        "-o",
        "ProxyCommand=ssh -W \"%h:%p\" jump",
        "-C",
        "-p",
        "2222",
        "-o",
        "sftp_server=sudo /usr/lib/openssh/sftp-server",
        "-o",
        "StrictHostKeyChecking=no",
    ]);
    assert_eq!(
        got.ssh.arguments,
        [
            "-oProxyCommand=ssh -W \"%h:%p\" jump",
            "-oCompression=yes",
            "-oPort=2222",
            "-oStrictHostKeyChecking=no",
        ]
    );
    assert_eq!(
        got.ssh.sftp_server.as_deref(),
        Some(OsStr::new("sudo /usr/lib/openssh/sftp-server"))
    );
}

#[test]
fn words_that_are_no_text_pass_through() {
    use std::os::unix::ffi::OsStrExt;
    let odd = |bytes: &'static [u8]| OsStr::from_bytes(bytes).to_owned();
    let words = [odd(b"h:\xff"), odd(b"/m\xfe"), odd(b"-ofsname=\xfd,IdentityFile=/k\xfc")];
    let Ok(Wish::Mount(request, _)) = parse(SSHOAL, words, "/".into(), None) else {
        panic!("names are bytes");
    };
    assert_eq!(request.source, odd(b"h:\xff"));
    assert_eq!(request.mountpoint, PathBuf::from(odd(b"/m\xfe")));
    assert_eq!(request.mount.fsname, odd(b"\xfd"));
    assert_eq!(request.ssh.arguments, [odd(b"-oIdentityFile=/k\xfc")]);
    let said =
        parse(SSHOAL, [odd(b"h:"), odd(b"/m"), odd(b"-o\xff=1")], "/".into(), None).unwrap_err();
    assert!(said.to_string().starts_with("option '\\xff=1': no such option"), "{said}");
}

proptest::proptest! {
    #[test]
    fn no_command_line_makes_it_panic(words in proptest::collection::vec("\\PC{0,12}|-[a-zA-Z0-9]{1,4}|-o[a-z_=,\\\\0-9]{0,20}", 0..6)) {
        for program in [SSHOAL, SSHFS, HELPER, OWN_HELPER] {
            let words = words.iter().map(OsString::from);
            let _ = parse(program, words, "/".into(), None);
        }
    }
}

#[test]
fn every_name_in_the_table_is_an_option() {
    for name in option_table::all().flat_map(MountOption::names) {
        assert!(option_table::find(OsStr::new(name)).is_some(), "{name}");
    }
}
