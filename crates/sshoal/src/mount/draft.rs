//! A mount request under construction: collects the options, then checks and combines them once all
//! are known.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cli::Problem;
use host::{Direct, Helper};
use ssh::Transport;
use union::{ActionPolicy, CreatePolicy};
use vfs::{PageCache, Timeout};

use super::disk::DiskDraft;
use super::request::{IdMap, IdMapKind, MountRequest};
use super::{ssh_keywords, suggestion};
use crate::log::{LogTarget, Service};
use crate::program::Program;
use crate::sources::{self, SourceSpec};

/// The error of `password_stdin` with several hosts.
pub fn one_password_for_several_hosts() -> Problem {
    let why = "would send one password to several hosts";
    Problem::new("option 'password_stdin'", why)
        .hint("use keys, or omit the option to be prompted for each password")
}

/// Checks the sources of a mount together, and whether they fit its connection.
pub fn check_sources(request: &MountRequest, sources: &[SourceSpec]) -> Result<(), Problem> {
    sources::check(sources)?;
    let of_hosts = || sources.iter().filter(|source| !source.gateways().is_empty());
    let hosts: usize = of_hosts().map(|source| source.gateways().len()).sum();
    let one_only = match request.ssh.transport {
        Transport::Passive => Some(("passive", "standard input and output carry")),
        Transport::Vsock { .. } => Some(("vsock", "one address carries")),
        Transport::Ssh | Transport::DirectPort(_) => None,
    };
    if let Some((name, what)) = one_only
        && hosts > 1
    {
        let why = format!("{what} a single connection, but there are {hosts} hosts");
        return Err(Problem::new(format!("option '{name}'"), why));
    }
    if request.ssh.password_stdin && of_hosts().count() > 1 {
        return Err(one_password_for_several_hosts());
    }
    Ok(())
}

/// A time-out whose minimum and maximum may each be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    pub min: Option<Duration>,
    pub max: Option<Duration>,
}

impl Ends {
    fn fixed(time: Duration) -> Ends {
        Ends { min: Some(time), max: Some(time) }
    }

    /// Fills in the defaults; a default is adjusted to the other value if that was set.
    fn resolve(self, default: Timeout, kind: &str) -> Result<Timeout, Problem> {
        let timeout = Timeout {
            min: self.min.unwrap_or(default.min.min(self.max.unwrap_or(default.min))),
            max: self.max.unwrap_or(default.max.max(self.min.unwrap_or(default.max))),
        };
        if timeout.min > timeout.max {
            return Err(Problem::new(
                format!("options 'ac{kind}min' and 'ac{kind}max'"),
                "the minimum is greater than the maximum",
            ));
        }
        Ok(timeout)
    }
}

/// The options about time-outs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    pub files: Ends,
    dirs: Ends,
    /// Directories have a time of their own, which `dcache_stat_timeout` does not change.
    has_own_dirs: bool,
    pub negative: Option<Duration>,
    /// The kernel's upper limit of `negative`.
    pub kernel_negative: Option<Duration>,
    pub open_revalidate: Option<Duration>,
    /// `dir_cache=no`.
    pub is_off: bool,
}

impl Times {
    pub fn set_all(&mut self, time: Duration) {
        self.files = Ends::fixed(time);
        self.dirs = Ends::fixed(time);
        self.has_own_dirs = false;
    }

    pub fn set_files(&mut self, time: Duration) {
        self.files = Ends::fixed(time);
        if !self.has_own_dirs {
            self.dirs = Ends::fixed(time);
        }
    }

    pub fn set_dirs(&mut self, time: Duration) {
        *self.own_dirs() = Ends::fixed(time);
    }

    /// The time of directories, to be set.
    pub fn own_dirs(&mut self) -> &mut Ends {
        self.has_own_dirs = true;
        &mut self.dirs
    }

    fn resolve(&self, vfs: &mut vfs::Config) -> Result<(), Problem> {
        vfs.files = self.files.resolve(vfs.files, "reg")?;
        vfs.dirs = self.dirs.resolve(vfs.dirs, "dir")?;
        // A shorter time-out of directories also applies to negative lookups.
        vfs.negative = self.negative.unwrap_or(vfs.negative.min(vfs.dirs.max));
        // A shorter time-out of attributes also applies to opens.
        let revalidate = vfs.open_revalidate.min(vfs.files.max);
        vfs.open_revalidate = self.open_revalidate.unwrap_or(revalidate);
        if self.is_off {
            vfs.open_revalidate = Duration::ZERO;
            vfs.files = Timeout::fixed(Duration::ZERO);
            vfs.dirs = Timeout::fixed(Duration::ZERO);
            vfs.negative = Duration::ZERO;
        }
        vfs.negative = vfs.negative.min(self.kernel_negative.unwrap_or(Duration::MAX));
        Ok(())
    }
}

/// The options so far.
#[derive(Debug, Default)]
pub struct Draft {
    pub request: MountRequest,
    pub times: Times,
    pub disk: DiskDraft,
    /// `ro` or `rw`.
    pub read_only: Option<bool>,
    pub umask: Option<u32>,
    pub fmask: Option<u32>,
    pub dmask: Option<u32>,
    pub fsname: Option<OsString>,
    pub allow_other: bool,
    pub allow_root: bool,
    pub default_permissions: Option<bool>,
    pub max_conns: Option<usize>,
    pub helper: Option<Helper>,
    transports: Vec<Transport>,
    pub create: Option<CreatePolicy>,
    pub action: Option<ActionPolicy>,
    pub pool: Option<replicas::Mode>,
    /// Unknown options are not errors.
    pub is_sloppy: bool,
    /// Notes for the user; not errors.
    pub notes: Vec<String>,
    cwd: PathBuf,
}

/// Turns a workaround on or off.
type Switch = fn(&mut Draft, bool);

/// The words of `workaround=` and their effects. Those without effect are for servers that are no
/// longer in use, or for operations that this program never does.
const WORKAROUNDS: &[(&str, Switch)] = &[
    ("rename", |draft, on| draft.request.host.rename_workaround = on),
    ("renamexdev", |draft, on| draft.request.host.renamexdev_workaround = on),
    ("fsync", |draft, on| draft.request.host.fsync_workaround = on),
    ("truncate", |_, _| ()),
    ("buflimit", |_, _| ()),
    ("fstat", |_, _| ()),
    ("createmode", |_, _| ()),
    ("nodelay", |_, _| ()),
    ("nodelaysrv", |_, _| ()),
];

impl Draft {
    /// A request with all defaults. Relative paths are relative to `cwd`.
    pub fn new(program: Program, cwd: PathBuf) -> Draft {
        let mut request = MountRequest::default();
        request.mount.subtype = program.name.into();
        request.inotify = true;
        Draft { request, cwd, ..Draft::default() }
    }

    /// `path` as an absolute path, since the process changes its current directory.
    pub fn absolute(&self, path: OsString) -> PathBuf {
        self.cwd.join(path)
    }

    /// Sets where the messages of the background process go.
    pub fn set_log(&mut self, target: OsString) {
        self.request.run.log = match target.as_bytes() {
            b"journal" => LogTarget::Service(Service::Journal),
            b"syslog" => LogTarget::Service(Service::Syslog),
            b"none" => LogTarget::None,
            _ => LogTarget::File(self.absolute(target)),
        };
    }

    /// Sets the SELinux context of all files.
    pub fn set_context(&mut self, context: &OsStr) {
        let mut option = OsString::from("context=");
        option.push(context);
        self.request.mount.contexts = vec![option];
    }

    /// The directory to which relative paths are relative.
    pub fn cwd(&self) -> &Path {
        &self.cwd
    }

    /// Begins a layer of options that take precedence over those before, as the command line does
    /// over a configuration file. ssh uses the first of two values, so the arguments of the earlier
    /// layers must come after these; they are returned for [`Draft::end_layer`].
    pub fn begin_layer(&mut self, cwd: PathBuf) -> (PathBuf, Vec<OsString>) {
        let below = std::mem::take(&mut self.request.ssh.arguments);
        (std::mem::replace(&mut self.cwd, cwd), below)
    }

    /// Ends a layer begun by [`Draft::begin_layer`].
    pub fn end_layer(&mut self, (cwd, mut below): (PathBuf, Vec<OsString>)) {
        self.cwd = cwd;
        let arguments = &mut self.request.ssh.arguments;
        let is_file = |argument: &OsString| argument.as_bytes().starts_with(b"-F");
        // Of two `-F`, ssh uses the last, unlike with all other options.
        if arguments.iter().any(is_file) {
            below.retain(|argument| !is_file(argument));
        }
        arguments.extend(below);
    }

    /// Passes `-F` to ssh, as one word like sshfs.
    pub fn set_ssh_config(&mut self, file: OsString) {
        let mut argument = OsString::from("-F");
        argument.push(ssh_keywords::absolute(&file, &self.cwd));
        self.add_ssh_argument(argument);
    }

    /// Passes `-FLAG VALUE` to ssh.
    pub fn pass_to_ssh(&mut self, flag: char, value: OsString) -> Result<(), String> {
        if value.is_empty() {
            return Err("needs a value".to_owned());
        }
        self.add_ssh_argument(format!("-{flag}"));
        self.add_ssh_argument(value);
        Ok(())
    }

    /// Passes `-FLAG PATH` to ssh, which runs in `/`.
    pub fn pass_path_to_ssh(&mut self, flag: char, path: OsString) -> Result<(), String> {
        self.pass_to_ssh(flag, ssh_keywords::absolute(&path, &self.cwd))
    }

    /// Adds an argument for ssh.
    pub fn add_ssh_argument(&mut self, argument: impl Into<OsString>) {
        self.request.ssh.arguments.push(argument.into());
    }

    pub fn set_transport(&mut self, transport: Transport) {
        if !self.transports.contains(&transport) {
            self.transports.push(transport);
        }
    }

    /// Sets the ssh command. A relative path of the program that contains a `/` is relative to the
    /// current directory.
    pub fn set_ssh_command(&mut self, command: OsString) {
        let bytes = command.as_bytes();
        let program = &bytes[..first_word_length(bytes)];
        let is_relative = program.contains(&b'/') && !matches!(program.first(), Some(b'/' | b' '));
        self.request.ssh.command = if is_relative {
            let mut absolute = escape_spaces(self.cwd.as_os_str().as_bytes());
            absolute.push(b'/');
            absolute.extend_from_slice(bytes);
            OsString::from_vec(absolute)
        } else {
            command
        };
    }

    /// Applies a colon-separated list; each word may begin with `no`.
    pub fn set_workarounds(&mut self, list: &str) -> Result<(), String> {
        for word in list.split(':').filter(|word| !word.is_empty()) {
            let find = |name: &str| WORKAROUNDS.iter().find(|(known, _)| *known == name);
            match (word, find(word), word.strip_prefix("no").and_then(find)) {
                ("none", ..) => WORKAROUNDS.iter().for_each(|(_, set)| set(self, false)),
                // As in sshfs 2, which did not have renamexdev.
                ("all", ..) => self.request.host.rename_workaround = true,
                (_, Some((_, set)), _) => set(self, true),
                (_, None, Some((_, set))) => set(self, false),
                (_, None, None) => {
                    let known = WORKAROUNDS.iter().map(|(word, _)| *word);
                    let meant = suggestion::nearest(word, known.clone()).map_or_else(
                        || format!("valid are none, all, {}", known.collect::<Vec<_>>().join(", ")),
                        |meant| format!("did you mean {meant}?"),
                    );
                    return Err(format!("no such workaround: '{}'; {meant}", word.escape_debug()));
                }
            }
        }
        Ok(())
    }

    pub fn unset_auto_cache(&mut self) {
        if self.request.vfs.page_cache == PageCache::SameTime {
            self.request.vfs.page_cache = PageCache::default();
        }
    }

    /// The request, if the options can be combined. `name` is that of the mount in the
    /// configuration file, as it was typed, if it has one.
    pub fn finish(
        mut self,
        sources: Vec<SourceSpec>,
        mountpoint: PathBuf,
        name: Option<OsString>,
    ) -> Result<(MountRequest, Vec<String>), Problem> {
        // As in fstab, so that mount(8) can match it.
        self.request.source = name.unwrap_or_else(|| sources::joined(&sources));
        self.request.sources = sources;
        self.request.mountpoint = mountpoint;
        self.finish_transport()?;
        self.finish_sources()?;
        self.finish_times()?;
        self.finish_ids()?;
        self.finish_disk()?;
        let request = &mut self.request;
        let shown = self.fsname.unwrap_or_else(|| request.source.clone());
        request.mount.fsname = sources::fitting(shown);
        request.mount.visibility = match (self.allow_other, self.allow_root) {
            (true, true) => return Err(excluding("allow_other", "allow_root")),
            (true, false) => fuse::Visibility::Everybody,
            (false, true) => fuse::Visibility::OwnerAndRoot,
            (false, false) => fuse::Visibility::Owner,
        };
        let is_watching = request.vfs.consistency == vfs::Consistency::Watch;
        if is_watching && !request.sources.iter().any(|source| request.shows_inodes(source)) {
            let why = "consistency=watch is consistency=close-to-open with several gateways, local \
                directories and follow_symlinks";
            self.notes.push(why.to_owned());
            request.vfs.consistency = vfs::Consistency::CloseToOpen;
        }
        let is_immutable = request.vfs.consistency == vfs::Consistency::Immutable;
        // The kernel then sends no opens.
        request.mount.read_only = self.read_only.unwrap_or(is_immutable);
        request.mount.default_permissions = self.default_permissions.unwrap_or(self.allow_other);
        request.vfs.shown.file_umask = self.fmask.or(self.umask);
        request.vfs.shown.dir_umask = self.dmask.or(self.umask);
        request.run.foreground |= request.run.debug;
        Ok((self.request, self.notes))
    }

    /// A draft that continues a request, for options that can be changed while it is mounted.
    pub fn resumed(request: MountRequest) -> Draft {
        let mut draft = Draft::new(Program::SSHOAL, PathBuf::from("/"));
        draft.times = request.times.clone();
        draft.disk = DiskDraft::resumed(request.disk.clone());
        draft.max_conns = Some(request.host.max_conns);
        draft.request = request;
        draft
    }

    /// The request with the options that were added to a [resumed](Draft::resumed) one.
    pub fn finish_resumed(mut self) -> Result<MountRequest, Problem> {
        self.finish_max_conns()?;
        let usual = vfs::Config::default();
        let vfs = &mut self.request.vfs;
        (vfs.files, vfs.dirs) = (usual.files, usual.dirs);
        (vfs.negative, vfs.open_revalidate) = (usual.negative, usual.open_revalidate);
        self.finish_times()?;
        self.request.disk = self.disk.finish(&mut self.notes)?;
        match self.notes.into_iter().next() {
            None => Ok(self.request),
            Some(note) => Err(Problem::new("options", note)),
        }
    }

    fn finish_times(&mut self) -> Result<(), Problem> {
        self.times.resolve(&mut self.request.vfs)?;
        self.request.times = self.times.clone();
        Ok(())
    }

    fn finish_sources(&mut self) -> Result<(), Problem> {
        let request = &self.request;
        check_sources(request, &request.sources)?;
        if (self.create.is_some() || self.action.is_some()) && !request.is_union() {
            self.notes.push("create and action have no effect on a single source".to_owned());
        }
        if self.pool.is_some() && !request.sources.iter().any(|source| source.gateways().len() > 1)
        {
            let why = "pool has no effect: no source has several gateways (gw1,gw2:dir)";
            self.notes.push(why.to_owned());
        }
        let policies = &mut self.request.union;
        policies.create = self.create.unwrap_or_default();
        policies.action = self.action.unwrap_or_default();
        self.request.pool = self.pool.unwrap_or_default();
        Ok(())
    }

    fn finish_transport(&mut self) -> Result<(), Problem> {
        match self.transports[..] {
            [] => {}
            [one] => self.request.ssh.transport = one,
            [one, other, ..] => {
                let name = |transport| option_of(transport).unwrap_or("ssh_command");
                return Err(excluding(name(one), name(other)));
            }
        }
        if self.request.ssh.transport == Transport::Passive {
            if self.request.ssh.password_stdin {
                return Err(excluding("passive", "password_stdin").hint("both need standard input"));
            }
            self.request.run.foreground = true;
        }
        if self.request.host.stall_limit.is_zero() {
            return Err(Problem::new("option 'request_timeout'", "must be more than 0"));
        }
        self.finish_max_conns()?;
        self.finish_helper()
    }

    fn finish_max_conns(&mut self) -> Result<(), Problem> {
        let mut usual = host::AUTOMATIC_CONNS;
        if self.request.ssh.transport == Transport::Passive {
            usual = 1;
            if self.max_conns.is_some_and(|number| number > 1) {
                return Err(excluding("passive", "max_conns")
                    .hint("standard input and output carry a single connection"));
            }
        }
        self.request.host.max_conns = self.max_conns.unwrap_or(usual);
        Ok(())
    }

    fn finish_helper(&mut self) -> Result<(), Problem> {
        let request = &mut self.request;
        let transport = option_of(request.ssh.transport);
        let excluded_by = transport.or(request.ssh.sftp_server.as_ref().map(|_| "sftp_server"));
        request.host.helper = match (self.helper.take(), excluded_by) {
            (Some(Helper::Auto) | None, Some(_)) => Helper::No,
            // Another program than ssh may start no commands.
            (Some(Helper::Auto) | None, None) if !is_ssh(&request.ssh.command) => Helper::No,
            (helper, None) => helper.unwrap_or(Helper::Auto),
            (Some(Helper::No), Some(_)) => Helper::No,
            (Some(_), Some(other)) => return Err(excluding("helper", other)),
        };
        match transport {
            Some(transport) if request.host.direct != Direct::No => {
                Err(excluding("direct", transport))
            }
            _ => Ok(()),
        }
    }

    fn finish_disk(&mut self) -> Result<(), Problem> {
        let disk = std::mem::take(&mut self.disk).finish(&mut self.notes)?;
        if let Some(disk) = &disk {
            let has_host = self.request.sources.iter().any(|it| !it.gateways().is_empty());
            if !has_host {
                self.notes.push("cache=disk has no effect on local directories".into());
            }
            if self.request.vfs.consistency == vfs::Consistency::Strict {
                return Err(excluding("cache=disk", "consistency=strict")
                    .hint("consistency=strict allows no caching"));
            }
            // No host is to be contacted.
            self.request.host.delay_connect |= disk.offline;
        }
        self.request.disk = disk;
        Ok(())
    }

    fn finish_ids(&mut self) -> Result<(), Problem> {
        let idmap = &mut self.request.idmap;
        let has_files = idmap.users.is_some() || idmap.groups.is_some();
        if idmap.kind == IdMapKind::File {
            if !has_files {
                return Err(Problem::new("option 'idmap=file'", "needs a file")
                    .hint("add uidfile=FILE, gidfile=FILE or both"));
            }
            return Ok(());
        }
        *idmap = IdMap { kind: idmap.kind, ..IdMap::default() };
        if has_files {
            self.notes.push("uidfile and gidfile have no effect without idmap=file".to_owned());
        }
        Ok(())
    }
}

/// The option that sets a transport other than ssh.
fn option_of(transport: Transport) -> Option<&'static str> {
    match transport {
        Transport::Ssh => None,
        Transport::DirectPort(_) => Some("directport"),
        Transport::Vsock { .. } => Some("vsock"),
        Transport::Passive => Some("passive"),
    }
}

/// Whether the command runs ssh itself.
fn is_ssh(command: &OsStr) -> bool {
    let words = ssh::command::split(command).unwrap_or_default();
    words.first().is_some_and(|word| Path::new(word).file_name() == Some(OsStr::new("ssh")))
}

fn excluding(one: &str, other: &str) -> Problem {
    Problem::new(format!("options '{one}' and '{other}'"), "cannot be combined")
}

/// The number of bytes before the first space without a backslash before it.
fn first_word_length(command: &[u8]) -> usize {
    (0..command.len())
        .find(|at| command[*at] == b' ' && (*at == 0 || command[at - 1] != b'\\'))
        .unwrap_or(command.len())
}

fn escape_spaces(path: &[u8]) -> Vec<u8> {
    let escape = |byte: &u8| if *byte == b' ' { vec![b'\\', b' '] } else { vec![*byte] };
    path.iter().flat_map(escape).collect()
}
