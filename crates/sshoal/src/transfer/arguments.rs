//! The command line of `sshoal pull` and `sshoal push`.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, ValueEnum};
use transfer::strategy;
use transfer::tar::{Compress, Method};
use transfer::{Filter, Options, Owners, Xattrs};

use cli::{OrProblem, Problem, printable};

use crate::mount::server_arguments::flag_words;

/// The end of the help of `pull`.
pub const PULL_EXAMPLES: &str = "\
Examples:
  sshoal pull host:project .                     copy directory project to ./project
  sshoal pull host:project/ copy                 copy the contents of project to ./copy
  sshoal pull --exclude '*.o' --delete h:src/ s  mirror without object files
  sshoal pull gw1,gw2:/data/set /scratch         copy through two gateways in parallel
  sshoal pull -n -v host:project .               list what would be copied

Exit status: 0 success, 1 some entries failed, 2 wrong command line, 3 the copy could not start or
the connection was lost permanently, 130 interrupted, 141 standard output was closed. See
docs/transfer.md.";

/// The end of the help of `push`.
pub const PUSH_EXAMPLES: &str = "\
Examples:
  sshoal push project host:backup                copy directory project to backup/project
  sshoal push project/ host:copy                 copy the contents of project to copy
  sshoal push -J gate --delete site/ me@web:www  mirror through a jump host
  sshoal push -n -v project host:                list what would be copied

Exit status: 0 success, 1 some entries failed, 2 wrong command line, 3 the copy could not start or
the connection was lost permanently, 130 interrupted, 141 standard output was closed. See
docs/transfer.md.";

/// Options of rsync that these commands do not have.
const RSYNC_OPTIONS: &str = "\
    -A -I -K -L -R -W -b -d -g -k -l -t -y --acls --append --backup --chmod --chown \
    --compare-dest --copy-dest --copy-links --copy-unsafe-links --delete-after --delete-before \
    --delete-delay --delete-during --files-from --filter --fuzzy --ignore-existing \
    --ignore-times --inplace --itemize-changes --link-dest --max-size --min-size --modify-window \
    --no-perms --relative --remove-source-files --size-only --whole-file";

/// The error for an option that clap does not know, and rsync does.
pub fn refused_as_rsync(error: &clap::Error) -> Option<Problem> {
    let option = match error.get(ContextKind::InvalidArg)? {
        ContextValue::String(option) => option.as_str(),
        _ => return None,
    };
    let is_unknown = error.kind() == ErrorKind::UnknownArgument;
    let is_rsyncs = RSYNC_OPTIONS.split(' ').any(|known| known == option);
    let hint = "it is not there; `rsync` works on a mount, and over ssh";
    (is_unknown && is_rsyncs).then(|| rsyncs(option).hint(hint))
}

fn rsyncs(option: &str) -> Problem {
    Problem::new(format!("option '{option}'"), "is rsync's")
}

/// Options of both commands, as clap parses them.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Arguments {
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    pub help: Option<bool>,
    /// Sources, then the target. A trailing slash on a source copies the directory's contents
    #[arg(required = true, num_args = 1.., value_name = "SOURCE... TARGET")]
    pub operands: Vec<OsString>,

    /// How to copy
    #[arg(long, value_enum, default_value_t = Engine::Auto, help_heading = "How")]
    pub engine: Engine,
    /// Compress streams: auto, never, zstd or gzip
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = compress,
        help_heading = "How")]
    pub compress: Compress,
    /// Show what would be done, and change nothing
    #[arg(short = 'n', long, help_heading = "How")]
    pub dry_run: bool,
    /// Read each copied file back and compare it
    #[arg(long, help_heading = "How")]
    pub verify: bool,
    /// Write each file to the target's disk (fsync) before giving it its name
    #[arg(long, help_heading = "How")]
    pub fsync: bool,
    /// Do not keep incomplete files for the next run to resume
    #[arg(long, help_heading = "How")]
    pub no_partial: bool,
    /// Keep incomplete files for the next run to resume (default)
    #[arg(long, conflicts_with = "no_partial", hide = true)]
    pub partial: bool,

    /// Copy directories, links, modes, times, and owners where allowed (always on)
    #[arg(short = 'a', long, hide = true)]
    pub archive: bool,
    /// Copy directories recursively (always on)
    #[arg(short = 'r', long, hide = true)]
    pub recursive: bool,
    /// Compress where that makes the copy faster (always on)
    #[arg(short = 'z', hide = true)]
    pub rsync_compress: bool,
    /// Print sizes with units (always on)
    #[arg(short = 'h', long, hide = true)]
    pub human_readable: bool,
    /// Preserve owners by their numbers (always on)
    #[arg(long, hide = true)]
    pub numeric_ids: bool,
    /// rsync's --partial --progress
    #[arg(short = 'P', hide = true)]
    pub partial_progress: bool,
    /// rsync's name for -o ssh_command=COMMAND
    #[arg(short = 'e', long = "rsh", value_name = "COMMAND", hide = true)]
    pub rsh: Option<OsString>,
    /// rsync's rate limit (not supported)
    #[arg(long, value_name = "RATE", hide = true)]
    pub bwlimit: Option<OsString>,
    /// Preserve hard links
    #[arg(short = 'H', long, help_heading = "What is kept")]
    pub hard_links: bool,
    /// Preserve extended attributes of users (user.*)
    #[arg(short = 'X', long, help_heading = "What is kept")]
    pub xattrs: bool,
    /// Preserve all extended attributes, including capabilities and access control lists
    #[arg(long, help_heading = "What is kept")]
    pub all_xattrs: bool,
    /// Preserve set-user-ID and set-group-ID bits of files whose owner and group are preserved
    #[arg(long, help_heading = "What is kept")]
    pub keep_setid: bool,
    /// Turn blocks of zeros into holes
    #[arg(short = 'S', long, help_heading = "What is kept")]
    pub sparse: bool,
    /// Also copy device files and named pipes
    #[arg(long, help_heading = "What is kept")]
    pub devices: bool,
    /// Do not preserve owners: all files belong to the user at the target
    #[arg(long, conflicts_with_all = ["uid_map", "gid_map"], help_heading = "What is kept")]
    pub no_owner: bool,
    /// Change the user id FROM at the source to TO at the target
    #[arg(long, value_name = "FROM:TO", value_parser = ids, help_heading = "What is kept")]
    pub uid_map: Vec<(u32, u32)>,
    /// Change the group id FROM at the source to TO at the target
    #[arg(long, value_name = "FROM:TO", value_parser = ids, help_heading = "What is kept")]
    pub gid_map: Vec<(u32, u32)>,

    /// Compare files by digest instead of size and modification time
    #[arg(short = 'c', long, help_heading = "What is copied")]
    pub checksum: bool,
    /// Skip files that are newer at the target
    #[arg(short = 'u', long, help_heading = "What is copied")]
    pub update: bool,
    /// Only update files that exist at the target
    #[arg(long, help_heading = "What is copied")]
    pub existing: bool,
    /// Do not enter other file systems
    #[arg(short = 'x', long, help_heading = "What is copied")]
    pub one_file_system: bool,
    /// Delete entries at the target that the sources do not have, after copying
    #[arg(long, help_heading = "What is copied")]
    pub delete: bool,
    /// With --delete, also delete at the target what is excluded
    #[arg(long, requires = "delete", help_heading = "What is copied")]
    pub delete_excluded: bool,
    /// Delete nothing if more than N entries would be deleted
    #[arg(long, value_name = "N", requires = "delete", help_heading = "What is copied")]
    pub max_delete: Option<u64>,
    /// Patterns of entries to leave out.
    #[command(flatten)]
    pub rules: Rules,

    /// Configuration file of ssh
    #[arg(short = 'F', value_name = "FILE", help_heading = "ssh")]
    pub config: Option<PathBuf>,
    /// Port of the SSH server
    #[arg(short = 'p', value_name = "PORT", help_heading = "ssh")]
    pub port: Option<OsString>,
    /// Compress the connection (ssh -C)
    #[arg(short = 'C', help_heading = "ssh")]
    pub ssh_compression: bool,
    /// Identity file
    #[arg(short = 'i', value_name = "FILE", help_heading = "ssh")]
    pub identity: Vec<OsString>,
    /// Jump host
    #[arg(short = 'J', value_name = "HOST", help_heading = "ssh")]
    pub jump: Option<OsString>,
    /// Options of ssh, and mount options about the connection
    #[arg(short = 'o', value_name = "OPTION", help_heading = "ssh")]
    pub options: Vec<OsString>,

    /// Show each entry
    #[arg(short = 'v', long, help_heading = "What is shown")]
    pub verbose: bool,
    /// Show debug messages
    #[arg(long, help_heading = "What is shown")]
    pub debug: bool,
    /// Show problems only
    #[arg(short = 'q', long, conflicts_with_all = ["verbose", "progress"],
        help_heading = "What is shown")]
    pub quiet: bool,
    /// Print JSON to standard output, one object per line
    #[arg(long, conflicts_with = "quiet", help_heading = "What is shown")]
    pub json: bool,
    /// Show detailed statistics at the end
    #[arg(long, help_heading = "What is shown")]
    pub stats: bool,
    /// Show a progress bar even if standard error is not a terminal
    #[arg(long, help_heading = "What is shown")]
    pub progress: bool,
}

/// How to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// Choose the fastest
    Auto,
    /// Only streams by the tar of the server, for files of any size; fail if there can be none
    Tar,
    /// SFTP requests over several sessions; run no command on the server but its `sshoal helper`
    Sftp,
}

impl From<Engine> for strategy::Engine {
    fn from(engine: Engine) -> strategy::Engine {
        match engine {
            Engine::Auto => strategy::Engine::Auto,
            Engine::Tar => strategy::Engine::Tar,
            Engine::Sftp => strategy::Engine::Sftp,
        }
    }
}

/// Patterns in the order in which they were given.
#[derive(Clone, Debug, Default)]
pub struct Rules(Vec<(Rule, OsString)>);

/// The kind of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Exclude,
    Include,
    From,
}

const RULES: [(Rule, &str, &str, &str); 3] = [
    (Rule::Exclude, "exclude", "PATTERN", "Leave out entries that match, as in .gitignore"),
    (Rule::Include, "include", "PATTERN", "Copy entries that match; the first match decides"),
    (Rule::From, "exclude-from", "FILE", "Read exclude patterns from FILE, one per line"),
];

impl clap::FromArgMatches for Rules {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Rules, clap::Error> {
        let mut rules = Vec::new();
        for (rule, name, _, _) in RULES {
            let values = matches.get_many::<OsString>(name).into_iter().flatten();
            let places = matches.indices_of(name).into_iter().flatten();
            rules.extend(places.zip(values).map(|(place, value)| (place, rule, value.clone())));
        }
        rules.sort_by_key(|(place, _, _)| *place);
        Ok(Rules(rules.into_iter().map(|(_, rule, value)| (rule, value)).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Rules::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Rules {
    fn augment_args(command: Command) -> Command {
        RULES.into_iter().fold(command, |command, (_, name, value, help)| {
            command.arg(
                Arg::new(name)
                    .long(name)
                    .value_name(value)
                    .help(help)
                    .action(ArgAction::Append)
                    .value_parser(ValueParser::os_string())
                    .help_heading("What is copied"),
            )
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Rules::augment_args(command)
    }
}

impl Rules {
    fn filter(&self) -> Result<Filter, Problem> {
        let mut filter = Filter::builder();
        for (rule, value) in &self.0 {
            let what = || format!("pattern '{}'", printable(value));
            if *rule == Rule::From {
                let what = format!("--exclude-from '{}'", printable(value));
                let text = std::fs::read_to_string(value).or_problem(what)?;
                filter.lines(&text);
                continue;
            }
            let pattern = value.to_str().ok_or_else(|| Problem::new(what(), "not UTF-8"))?;
            match rule {
                Rule::Include => filter.include(pattern),
                Rule::Exclude | Rule::From => filter.exclude(pattern),
            };
        }
        filter.build().or_problem("patterns")
    }
}

fn compress(text: &str) -> Result<Compress, String> {
    match text {
        "auto" => Ok(Compress::Auto),
        "never" | "no" | "none" => Ok(Compress::Never),
        text => Method::from_name(text)
            .map(Compress::Always)
            .ok_or_else(|| "it is auto, never, zstd or gzip".to_owned()),
    }
}

fn ids(text: &str) -> Result<(u32, u32), String> {
    let pair =
        text.split_once(':').and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    pair.ok_or_else(|| "two numbers with a colon between them are wanted: 1000:33".to_owned())
}

impl Arguments {
    /// What is copied, and how. `may_own`: whether the user at the target may set owners.
    pub fn transfer_options(&self, may_own: bool) -> Result<Options, Problem> {
        let map = |pairs: &[(u32, u32)]| pairs.iter().copied().collect::<HashMap<_, _>>();
        let is_mapped = self.maps_owners();
        let owners = match (is_mapped, may_own && !self.no_owner) {
            (true, _) => Owners::Mapped { uids: map(&self.uid_map), gids: map(&self.gid_map) },
            (false, true) => Owners::Numbers,
            (false, false) => Owners::Leave,
        };
        Ok(Options {
            owners,
            hard_links: self.hard_links,
            set_ids: self.keep_setid,
            xattrs: match (self.all_xattrs, self.xattrs) {
                (true, _) => Xattrs::All,
                (false, true) => Xattrs::Users,
                (false, false) => Xattrs::None,
            },
            fsync: self.fsync,
            sparse: self.sparse,
            specials: self.devices,
            checksum: self.checksum,
            delete: self.delete,
            delete_excluded: self.delete_excluded,
            max_delete: self.max_delete,
            filter: self.rules.filter()?,
            one_file_system: self.one_file_system,
            is_stage: false,
            withhold_deletions: false,
            update: self.update,
            existing: self.existing,
            dry_run: self.dry_run,
            no_partial: self.no_partial,
            verify: self.verify,
        })
    }

    /// An option of rsync that has another name in this program, or none.
    pub fn refused(&self) -> Option<Problem> {
        if let Some(command) = &self.rsh {
            let hint = format!(
                "-o ssh_command='{}'; -p PORT and -i FILE are as ssh's",
                printable(command)
            );
            return Some(rsyncs("-e").hint(hint));
        }
        let hint = "`trickle` or `tc` limit the rate of ssh";
        self.bwlimit.as_ref().map(|_| rsyncs("--bwlimit").hint(hint))
    }

    /// Whether the user maps owners.
    pub fn maps_owners(&self) -> bool {
        !self.uid_map.is_empty() || !self.gid_map.is_empty()
    }

    /// The options for ssh, as words of the command line of a mount.
    pub fn ssh_words(&self) -> Vec<OsString> {
        let config = self.config.clone().map(PathBuf::into_os_string);
        let mut words = flag_words(&[
            ("-F", config.as_slice()),
            ("-p", self.port.as_slice()),
            ("-i", &self.identity),
            ("-J", self.jump.as_slice()),
            ("-o", &self.options),
        ]);
        if self.ssh_compression {
            words.push("-C".into());
        }
        words
    }
}
