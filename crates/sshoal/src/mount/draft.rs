//! A mount request under construction: collects the options, then checks and combines them once all
//! are known.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cli::Problem;

use super::disk::DiskDraft;
use super::request::{
    ActionPolicy, CacheOptions, Consistency, CreatePolicy, IdMap, IdTable, MountRequest, PageCache,
    Timeout, Transport,
};
use super::{ssh_keywords, suggestion};
use crate::program::Program;
use crate::sources::{self, PoolMode, SourceSpec};

/// Which translation of owners was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdMapKind {
    #[default]
    None,
    User,
    File,
}

/// The options about owners.
#[derive(Debug, Default)]
pub struct Ids {
    pub kind: IdMapKind,
    pub users: Option<PathBuf>,
    pub groups: Option<PathBuf>,
    pub others_same: bool,
}

/// A time-out whose minimum and maximum may each be set.
#[derive(Clone, Copy, Debug, Default)]
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
#[derive(Debug, Default)]
pub struct Times {
    pub files: Ends,
    dirs: Ends,
    /// Directories have a time of their own, which `dcache_stat_timeout` does not change.
    has_own_dirs: bool,
    pub negative: Option<Duration>,
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
        self.dirs = Ends::fixed(time);
        self.has_own_dirs = true;
    }

    pub fn set_dirs_min(&mut self, time: Duration) {
        self.dirs.min = Some(time);
        self.has_own_dirs = true;
    }

    pub fn set_dirs_max(&mut self, time: Duration) {
        self.dirs.max = Some(time);
        self.has_own_dirs = true;
    }

    fn resolve(&self, cache: &mut CacheOptions) -> Result<(), Problem> {
        cache.files = self.files.resolve(cache.files, "reg")?;
        cache.dirs = self.dirs.resolve(cache.dirs, "dir")?;
        // A shorter time-out of directories also applies to negative lookups.
        cache.negative = self.negative.unwrap_or(cache.negative.min(cache.dirs.max));
        // A shorter time-out of attributes also applies to opens.
        let revalidate = cache.open_revalidate.min(cache.files.max);
        cache.open_revalidate = self.open_revalidate.unwrap_or(revalidate);
        if self.is_off {
            cache.open_revalidate = Duration::ZERO;
            cache.files = Timeout::fixed(Duration::ZERO);
            cache.dirs = Timeout::fixed(Duration::ZERO);
            cache.negative = Duration::ZERO;
        }
        Ok(())
    }
}

/// The options so far.
#[derive(Debug)]
pub struct Draft {
    pub request: MountRequest,
    pub times: Times,
    pub ids: Ids,
    pub disk: DiskDraft,
    pub umask: Option<u32>,
    pub fmask: Option<u32>,
    pub dmask: Option<u32>,
    pub default_permissions: Option<bool>,
    transports: Vec<Transport>,
    has_policy: bool,
    has_pool: bool,
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
        let mut request = MountRequest::new(Vec::new(), PathBuf::new());
        request.fuse.subtype = program.name.into();
        Draft {
            request,
            times: Times::default(),
            ids: Ids::default(),
            disk: DiskDraft::default(),
            umask: None,
            fmask: None,
            dmask: None,
            default_permissions: None,
            transports: Vec::new(),
            has_policy: false,
            has_pool: false,
            notes: Vec::new(),
            cwd,
        }
    }

    /// `path` as an absolute path, since the process changes its current directory.
    pub fn absolute(&self, path: &OsStr) -> OsString {
        self.cwd.join(path).into_os_string()
    }

    /// The directory to which relative paths are relative.
    pub fn cwd(&self) -> &Path {
        &self.cwd
    }

    /// Begins a layer of options that take precedence over those before, as the command line does over
    /// a configuration file. ssh uses the first of two values, so the arguments of the earlier layers
    /// must come after these; they are returned for [`Draft::end_layer`].
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

    pub fn set_create(&mut self, policy: CreatePolicy) {
        self.request.union.create = policy;
        self.has_policy = true;
    }

    pub fn set_action(&mut self, policy: ActionPolicy) {
        self.request.union.action = policy;
        self.has_policy = true;
    }

    pub fn set_pool(&mut self, mode: PoolMode) {
        self.request.pool = mode;
        self.has_pool = true;
    }

    /// Passes `-F` to ssh, as one word like sshfs.
    pub fn set_ssh_config(&mut self, file: OsString) {
        let mut argument = OsString::from("-F");
        argument.push(ssh_keywords::absolute(&file, &self.cwd));
        self.add_ssh_argument(argument);
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
        if self.request.cache.pages == PageCache::SameTime {
            self.request.cache.pages = PageCache::default();
        }
    }

    /// The request, if the options can be combined.
    pub fn finish(
        mut self,
        sources: Vec<SourceSpec>,
        mountpoint: PathBuf,
    ) -> Result<(MountRequest, Vec<String>), Problem> {
        self.request.source = sources::joined(&sources);
        self.request.sources = sources;
        self.request.mountpoint = mountpoint;
        self.finish_sources()?;
        self.finish_transport()?;
        self.times.resolve(&mut self.request.cache)?;
        self.finish_ids()?;
        self.finish_disk()?;
        let fuse = &mut self.request.fuse;
        if fuse.allow_other && fuse.allow_root {
            return Err(excluding("allow_other", "allow_root"));
        }
        fuse.default_permissions = self.default_permissions.unwrap_or(fuse.allow_other);
        let shown = &mut self.request.shown;
        shown.file_umask = self.fmask.or(self.umask);
        shown.dir_umask = self.dmask.or(self.umask);
        let run = &mut self.request.run;
        run.foreground |= run.debug;
        Ok((self.request, self.notes))
    }

    fn finish_sources(&mut self) -> Result<(), Problem> {
        let request = &self.request;
        sources::check(&request.sources)?;
        let hosts: usize = request.sources.iter().map(|source| source.gateways().len()).sum();
        let one_only = match self.transports.first() {
            Some(Transport::Passive) => Some(("passive", "standard input and output carry")),
            Some(Transport::Vsock { .. }) => Some(("vsock", "one address carries")),
            _ => None,
        };
        if let Some((name, what)) = one_only
            && hosts > 1
        {
            let why = format!("{what} a single connection, but there are {hosts} hosts");
            return Err(Problem::new(format!("option '{name}'"), why));
        }
        let of_hosts = request.sources.iter().filter(|source| !source.gateways().is_empty());
        if request.ssh.password_stdin && of_hosts.count() > 1 {
            let why = "would send one password to several hosts";
            return Err(Problem::new("option 'password_stdin'", why)
                .hint("use keys, or omit the option to be prompted for each password"));
        }
        if self.has_policy && !request.is_union() {
            self.notes.push("create and action have no effect on a single source".to_owned());
        }
        if self.has_pool && !request.sources.iter().any(|source| source.gateways().len() > 1) {
            let why = "pool has no effect: no source has several gateways (gw1,gw2:dir)";
            self.notes.push(why.to_owned());
        }
        Ok(())
    }

    fn finish_transport(&mut self) -> Result<(), Problem> {
        let name = |transport: &Transport| match transport {
            Transport::Ssh => "ssh_command",
            Transport::DirectPort(_) => "directport",
            Transport::Vsock { .. } => "vsock",
            Transport::Passive => "passive",
        };
        match self.transports[..] {
            [] => {}
            [one] => self.request.ssh.transport = one,
            [one, other, ..] => return Err(excluding(name(&one), name(&other))),
        }
        if self.request.ssh.transport == Transport::Passive {
            if self.request.ssh.password_stdin {
                return Err(excluding("passive", "password_stdin").hint("both need standard input"));
            }
            if self.request.host.max_conns.is_some_and(|number| number > 1) {
                return Err(excluding("passive", "max_conns")
                    .hint("standard input and output carry a single connection"));
            }
            self.request.host.max_conns = Some(1);
            self.request.run.foreground = true;
        }
        Ok(())
    }

    fn finish_disk(&mut self) -> Result<(), Problem> {
        let disk = std::mem::take(&mut self.disk).finish(&mut self.notes)?;
        if let Some(disk) = &disk {
            let has_host = self.request.sources.iter().any(|it| !it.gateways().is_empty());
            if !has_host {
                self.notes.push("cache=disk has no effect on local directories".into());
            }
            if self.request.consistency == Consistency::Strict {
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
        let table = |file: PathBuf| IdTable { file, ..IdTable::default() };
        let users = self.ids.users.take().map(table);
        let groups = self.ids.groups.take().map(table);
        let has_files = users.is_some() || groups.is_some();
        self.request.idmap = match self.ids.kind {
            IdMapKind::File if !has_files => {
                return Err(Problem::new("option 'idmap=file'", "needs a file")
                    .hint("add uidfile=FILE, gidfile=FILE or both"));
            }
            IdMapKind::File => IdMap::File { users, groups, others_same: self.ids.others_same },
            IdMapKind::User => IdMap::User,
            IdMapKind::None => IdMap::None,
        };
        if has_files && self.ids.kind != IdMapKind::File {
            self.notes.push("uidfile and gidfile have no effect without idmap=file".to_owned());
        }
        Ok(())
    }
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
