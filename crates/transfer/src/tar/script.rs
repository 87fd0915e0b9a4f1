//! The command for the server's shell, one for each use, and its answers.
//!
//! One command does everything, since each further one costs a login. It reads words from its
//! standard input, one per line, and answers them, until one of them starts the archive:
//!
//! | word | answer |
//! |---|---|
//! | `hello` | `sshoal-1 STATE [zstd] [gzip] [sftp] [dir] [big] [stage=NUMBER] [clock=SECONDS]`; `STATE` is the kind of tar, or why there is no copy; the source is a directory, or a large file; the stage of another run; the server's time, of a pull |
//! | `list` | the existing tree, as `listing` describes it; nothing if there is none |
//! | `rate` | [`RATE_BYTES`] that cannot be compressed |
//! | `big` | the number of large files: `0`, or more |
//! | `sample` | the compressed size of the first [`SAMPLE_BYTES`] of the archive |
//! | `plain`, `gzip`, `zstd` | the archive with that compression, or the end that receives it |
//! | `sftp` | an SFTP server replaces the shell: without an archive the login remains useful |
//!
//! The first word is sent before any answer: a server that runs another program than a shell (a
//! forced SFTP server) ends because of it, and causes no wait.
//!
//! A pushed tree is unpacked into a directory beside its place, the stage, whose name no other run
//! uses. The last member of the archive is a mark: the tree gets its name only if the mark was
//! unpacked, because then the archive was whole. (For tar an archive that ends between two members
//! is whole.) The mark also brings the mtime of the stage: libarchive's tar sets none of a
//! directory that exists. Another run may rename the stage and continue it. Then tar creates
//! further members under the old name, and these are removed. So the inode of the stage is compared
//! before it gets its name. tar has the stage open, so no directory that tar creates has the same
//! inode number. After tar has ended, the number may be free, so nothing creates an entry under the
//! stage's name.

use std::fmt::Write as _;

use super::listing;
use crate::compress::Method;
use crate::options::{Options, Owners, Xattrs};
use crate::shell::command;
use crate::temporary;

/// Bytes of the answer to `rate`: 13 ms at 20 MB/s.
pub(super) const RATE_BYTES: usize = 256 << 10;

/// Bytes that are compressed as a sample.
pub(super) const SAMPLE_BYTES: u64 = 4 << 20;

/// Files of more blocks of 512 bytes are large (16 MiB): one stream is bound by its window, and
/// several sessions together are not.
pub(super) const BIG_BLOCKS: u64 = 32 << 10;

/// The start of the answer to `hello`. No line that a login prints starts with it.
pub(super) const GREETING: &str = "sshoal-1 ";

/// Appended to the name of a stage: the mark that its archive was whole.
pub(super) const MARK: &[u8] = MARK_TEXT.as_bytes();
const MARK_TEXT: &str = ".end";

/// Leads to the mark if the file system ignores case. Then, if names in the tree may collide, the
/// tree stays a stage, and a run finds the missing entries.
const OTHER_MARK: &str = ".END";

/// The end of the temporary names of a stream, as a pattern for `grep`.
const TEMPORARY: &str = "[.]sshoal-[0-9a-f]\\{12\\}ff[0-9a-f]\\{18\\}";

/// The start of all commands: finds the compressors, and defines how to find the tar.
const LOOK: &str = "d=$(pwd); LC_ALL=C; export LC_ALL; set -f; u=$(umask); umask 077; unset TAR_OPTIONS POSIXLY_CORRECT; \
    look() { case $(tar --version 2>&1) in *\"GNU tar\"*) t=gnu;; *bsdtar*) t=bsd;; *) t=none;; esac; }; \
    z=; for c in zstd gzip; do command -v $c >/dev/null 2>&1 && z=\"$z $c\"; done; \
    for f in /usr/lib/openssh /usr/libexec/openssh /usr/lib/ssh /usr/libexec /usr/libexec/ssh; do \
    f=$f/sftp-server; [ -x $f ] && z=\"$z sftp\" && break; done; \
    k=; cd -- \"$1\" 2>/dev/null || k=nodir; n=$2; ";

/// An SFTP server as the login would start it: with the login's umask and directory.
const SERVE: &str = "sftp) umask \"$u\"; cd -- \"$d\" && exec \"$f\"; exit 1;; ";

/// The first words for a listing and then SFTP.
pub(super) const LIST_AND_SERVE: &[u8] = b"hello\nlist\nsftp\n";

/// The first words for a push that wants a listing of an existing tree.
pub(super) const LIST: &[u8] = b"hello\nlist\n";

/// The first words in all other cases.
pub(super) const HELLO: &[u8] = b"hello\n";

/// What `find` prints for an entry: `KIND DEPTH MODE SIZE UID GID MTIME ATIME NAME`.
const FORMAT: &str = "%y %d %m %s %U %G %Ts %As %f\\0";

/// The last record of a complete listing.
pub(super) const ALL: &str = "=";

/// Time limit of a listing, in seconds.
const LIST_SECONDS: u32 = 2;

/// Lists the tree `$n`, if it exists.
///
/// The result follows all records: no process has the capture (descriptor 6) open any more then. It
/// is `whole` only if `find` has succeeded without an error message, and `cut` if it was stopped,
/// without an error message before: a directory that cannot be read must not look like an empty
/// one. So the first line of its error messages and its exit status, in that order, decides. After
/// the first message the pipe is closed, and `find` ends.
///
/// busybox's `timeout`, which has no `--version`, leaves a process behind that keeps the
/// descriptors open for a second.
///
/// Without `TZ` the C library checks `/etc/localtime` for each time that is printed, which is most
/// of the work.
fn list_word(options: &Options) -> String {
    let limit = listing::limit(options);
    format!(
        "list) case $k in there|bare) {{ e=no; timeout --version >/dev/null 2>&1 && e=$(exec 6>&1; {{ {{ \
         TZ=UTC0 timeout {LIST_SECONDS} find \"$n\" -printf '{FORMAT}' </dev/null 2>&4; r=$?; \
         [ $r != 0 ] || printf '{ALL}\\000'; echo $r >&4; }} | \
         head -c {limit} >&3; }} 4>&1 | head -n 1); }} 3>&1; \
         case $e in 0) e=whole;; 124|141|143) e=cut;; *) e=no;; esac; \
         printf '\\000\\000%s\\n' $e;; esac;; "
    )
}

/// The command that lists `name` in `directory`, and then serves SFTP.
pub(super) fn tree(directory: &[u8], name: &[u8], options: &Options) -> Option<Vec<u8>> {
    let list = list_word(options);
    let script = format!(
        "{LOOK}[ $k ] || k=bare; while IFS= read -r v; do case $v in \
         hello) echo \"{GREETING}$k$z\";; {list}{SERVE}*) exit 64;; esac; done"
    );
    command(&script, &[directory, name])
}

/// Creates the missing directory, with the umask of the login.
const MAKE: &str = "if [ $k ] && ( umask \"$u\"; mkdir -- \"$1\" ) 2>/dev/null; then \
    k=; cd -- \"$1\" || k=nodir; fi; ";

/// The command whose output is an archive of `name` in `directory`.
pub(super) fn pull(directory: &[u8], name: &[u8], options: &Options) -> Option<Vec<u8>> {
    create(directory, name, options, "-- \"$n\" </dev/null")
}

/// GNU tar prints names as they are, also in its messages.
const LITERAL: &str = "--quoting-style=literal";

/// The command whose output is an archive of the files that its further input names: paths in
/// `directory`, each with a NUL after it. Samples are taken of `name`.
///
/// The names begin with `./`, so that none of them is an option, or a line with a special meaning
/// for a tar. Neither tar interprets a backslash as an escape.
pub(super) fn list(directory: &[u8], name: &[u8], options: &Options) -> Option<Vec<u8>> {
    create(directory, name, options, "--null $l --no-recursion -T -")
}

/// Enlarges the pipe between sshd and tar, if it is one, to the window of an ssh session
/// (`F_SETPIPE_SZ`, 1 MiB). With the usual 64 KiB the two wait for each other twice as often: with
/// more an archive arrives 10 to 20 % faster where processors are the bottleneck. Servers without
/// perl go without. It runs beside tar, which does not wait for it.
///
/// A perl may be a wrapper, or hang. So it inherits neither pipe: it would keep their ends open,
/// and could take or add bytes. It opens them itself when it has started, and only if they are
/// still pipes.
pub(super) const WIDEN: &str = "perl -e 'for (map \"/proc/$ARGV[0]/fd/$_\", 0, 1) \
    { -p && open(F, \"+<\", $_) && fcntl(F, 1031, 1 << 20) }' $$ </dev/null >/dev/null 2>&1 & ";

/// The command for an archive of `what`, in arguments of tar.
fn create(directory: &[u8], name: &[u8], options: &Options, what: &str) -> Option<Vec<u8>> {
    let mut script = LOOK.to_owned();
    let _ = write!(
        script,
        "look; [ $k ] || k=$t; [ -e \"$n\" ] || [ -h \"$n\" ] || k=absent; l=; \
         if [ -h \"$n\" ]; then :; elif [ -d \"$n\" ]; then z=\"$z dir\"; \
         elif [ \"$(find \"$n\" -type f -size +{BIG_BLOCKS} 2>/dev/null)\" ]; then z=\"$z big\"; fi; \
         z=\"$z clock=$(date +%s 2>/dev/null)\"; \
         case $k in gnu) l=\"--no-unquote {LITERAL}\"; set -- {};; *) set -- {};; esac; \
         while IFS= read -r v; do case $v in \
         hello) echo \"{GREETING}$k$z\";; \
         rate) head -c {RATE_BYTES} /dev/urandom;; \
         big) find \"$n\" -type f -size +{BIG_BLOCKS} 2>/dev/null | head -n 1 | wc -l;; \
         sample-*) tar -cf - \"$@\" -- \"$n\" 2>/dev/null | head -c {SAMPLE_BYTES} | \
         \"${{v#sample-}}\" -1 -c | wc -c;; \
         plain) {WIDEN}exec tar -cf - \"$@\" {what};; \
         {SERVE}\
         gzip|zstd) exec 4>&1; s=$( {{ {{ tar -cf - \"$@\" {what}; echo $? >&3; }} | \
         \"$v\" -1 -c >&4; }} 3>&1 ); exit $s;; \
         *) exit 64;; esac; done",
        gnu_create(options),
        bsd_create(options),
    );
    command(&script, &[directory, name])
}

/// Which directories a push creates.
#[derive(Clone, Copy)]
pub(super) struct Making {
    /// The one that will contain the tree, if it does not exist.
    pub(super) parent: bool,
    /// The stage: a directory is pushed.
    pub(super) stage: bool,
}

/// The command that unpacks an archive in `directory`. The names are the tree's own, that of the
/// stage, which is in the archive, the prefix of all stages, and that of temporary files.
///
/// The beginning of a file that an interrupted run has left under a temporary name occupies the
/// file's name: another run continues or removes it, and a stream would do neither.
///
/// `mv` moves the stage into a directory that has got the name since the check; that is undone.
pub(super) fn push(
    directory: &[u8],
    names: &[Vec<u8>; 4],
    making: Making,
    options: &Options,
) -> Option<Vec<u8>> {
    let [name, stage, begin, partial] = names;
    let mut script = [LOOK, if making.parent { MAKE } else { "" }].concat();
    let (make, hold) = match making.stage {
        true => ("mkdir -- \"$s\" && i=$(ls -di -- \"$s\");", "5<\"$s\""),
        false => ("", ""),
    };
    let partials = match making.stage {
        true => String::new(),
        false => format!(
            "for e in \"$5\"{}; do [ $k = $t ] && [ -f \"$e\" ] && k=there; done; ",
            "?".repeat(temporary::DIGITS)
        ),
    };
    let list = list_word(options);
    let _ = write!(
        script,
        "s=$3; i=; x=; if [ $k ]; then :; elif [ -e \"$n\" ] || [ -h \"$n\" ]; then k=there; \
         else look; k=$t; set +f; for e in \"$4\"*; do case $e in *{MARK_TEXT}) ;; *) \
         if [ -e \"$e\" ] || [ -h \"$e\" ]; then k=staged-$t; x=\" stage=${{e#\"$4\"}}\"; fi;; esac; \
         done; {partials}set -f; z=$z$x; fi; \
         case $k in gnu) set -- {};; *) set -- {};; esac; \
         while IFS= read -r v; do case $v in \
         hello) echo \"{GREETING}$k$z\";; \
         rate) head -c {RATE_BYTES} /dev/urandom;; \
         {list}{SERVE}\
         plain) {make} {WIDEN}tar -xf - \"$@\" {hold}; t=$?; break;; \
         gzip|zstd) {make} \"$v\" -dc | tar -xf - \"$@\" {hold}; t=$?; break;; \
         *) exit 64;; esac; done; \
         m=$s{MARK_TEXT}; [ -e \"$m\" ] || t=1; \
         [ -s \"$m\" ] && [ -e \"$s{OTHER_MARK}\" ] && t=1; \
         if [ \"$i\" ] && [ \"$i\" != \"$(ls -di -- \"$s\" 2>/dev/null)\" ]; then \
         rm -rf -- \"$s\"; t=1; \
         elif [ \"$i\" ]; then touch -c -m -r \"$m\" -- \"$s\" 2>/dev/null || t=1; fi; \
         rm -f -- \"$m\"; b=${{s##*/}}; \
         if [ \"$t\" != 0 ] || [ -e \"$n\" ] || [ -h \"$n\" ]; then echo kept; \
         elif ! mv -- \"$s\" \"$n\"; then echo kept; \
         elif [ -e \"$n/$b\" ]; then mv -- \"$n/$b\" \"$s\"; echo kept; \
         else echo done; fi",
        gnu_extract(options),
        bsd_extract(options),
    );
    command(&script, &[directory, name, stage, begin, partial])
}

/// The answer of [`take`] if GNU tar has read the whole archive, and failed for some of its members.
/// Its messages follow.
pub(super) const SOME_FAILED: &[u8] = SOME_FAILED_TEXT.as_bytes();
const SOME_FAILED_TEXT: &str = "some";

/// The last message of a GNU tar that has failed for some members, and has gone on to the end.
pub(super) const WENT_ON: &str = "tar: Exiting with failure status due to previous errors";

/// The command that unpacks an archive in `directory`, with its names, which are temporary ones. It
/// answers with `0` when all of the archive is unpacked, or with [`SOME_FAILED`]. If tar has not read
/// the whole archive, the client may be gone, so the command removes the unpacked files
/// itself. GNU tar prints their names; files without a temporary name are not touched.
///
/// Names go through the pipe (descriptor 4) to the second half of the command, and behind them a
/// line `=0` if they are to stay. The first half then answers by descriptor 5, since it has the
/// messages: some shells need a time that is quadratic in the length of a text to cut it.
pub(super) fn take(directory: &[u8], options: &Options) -> Option<Vec<u8>> {
    let mut script = LOOK.to_owned();
    let _ = write!(
        script,
        "look; [ $k ] || k=$t; p='/[.][^/]*{TEMPORARY}$'; \
         case $k in gnu) set -- {} -v {LITERAL};; *) set -- {};; esac; \
         r=$(printf '\\n='); \
         all() {{ e=$(\"$@\" 2>&1 >&4); case $?:$e in 0:*) echo \"${{r}}0\"; echo 0 >&5;; \
         2:*'{WENT_ON}') echo \"${{r}}0\"; printf '%s\\n' {SOME_FAILED_TEXT} \"$e\" >&5;; \
         *) printf '%s\\n' \"$e\" >&2;; esac; }}; \
         last() {{ l=$(cat); case $l in *\"$r\"0) ;; \
         *) printf '%s\\n' \"$l\" | grep \"$p\" | tr '\\n' '\\0' | xargs -0 rm -f --; echo failed;; esac; }}; \
         packed() {{ v=$1; shift; \"$v\" -dc | tar -xf - \"$@\"; }}; \
         while IFS= read -r v; do case $v in \
         hello) echo \"{GREETING}$k$z\";; \
         rate) head -c {RATE_BYTES} /dev/urandom;; \
         plain) {WIDEN}{{ {{ all tar -xf - \"$@\"; }} 4>&1 | last; }} 5>&1; exit;; \
         gzip|zstd) {{ {{ all packed \"$v\" \"$@\"; }} 4>&1 | last; }} 5>&1; exit;; \
         *) exit 64;; esac; done",
        gnu_extract(options),
        bsd_extract(options),
    );
    command(&script, &[directory, b"."])
}

/// Blocks of 512 bytes that tar reads and writes at once. With its default of 20 unpacking costs
/// half as much again, and packing twice as much.
const RECORD_BLOCKS: usize = 64;

/// Flags of tar: those that are always given, and those whose condition holds. `set -f` prevents
/// the shell from expanding patterns in them to file names.
fn flags(always: String, optional: &[(bool, &str)]) -> String {
    let optional = optional.iter().filter(|(is, _)| *is);
    optional.fold(always, |flags, (_, flag)| flags + " " + flag)
}

/// Times to the nanosecond, and only the attributes that were requested.
fn gnu_create(options: &Options) -> String {
    let always = format!(
        "-b {RECORD_BLOCKS} --format=posix --numeric-owner --pax-option=delete=atime,delete=ctime"
    );
    let optional = [
        (options.sparse, "--sparse --sparse-version=1.0"),
        (options.xattrs == Xattrs::Users, GNU_XATTRS_OF_USERS),
        (options.xattrs == Xattrs::All, GNU_XATTRS),
        (options.one_file_system, "--one-file-system"),
        (!options.hard_links, "--hard-dereference"),
    ];
    flags(always, &optional)
}

const GNU_XATTRS_OF_USERS: &str = "--xattrs --xattrs-include=user.*";
const GNU_XATTRS: &str = "--xattrs --xattrs-include=*";

/// The tar of macOS would add a member `._NAME` for what the system keeps beside the file.
fn bsd_create(options: &Options) -> String {
    let optional =
        [(!options.xattrs.any(), "--no-xattrs"), (options.one_file_system, "--one-file-system")];
    flags("--format=pax --no-acls --no-fflags --no-mac-metadata".to_owned(), &optional)
}

/// `-P`: links are created at once, and not after everything else. The names are our own.
fn gnu_extract(options: &Options) -> String {
    let optional = [
        (options.owners == Owners::Leave, "--no-same-owner"),
        (options.xattrs == Xattrs::Users, GNU_XATTRS_OF_USERS),
        (options.xattrs == Xattrs::All, GNU_XATTRS),
    ];
    flags(format!("-b {RECORD_BLOCKS} -p -P --numeric-owner"), &optional)
}

/// `!mac-ext`: the tar of macOS would take files `._NAME` for such members, and not unpack them.
fn bsd_extract(options: &Options) -> String {
    let optional = [
        (options.owners == Owners::Leave, "--no-same-owner"),
        (!options.xattrs.any(), "--no-xattrs"),
    ];
    flags("-p -P --numeric-owner --no-acls --no-fflags --options !mac-ext".to_owned(), &optional)
}

/// The answer to `hello`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    /// `gnu`, `bsd`, or why not.
    pub state: State,
    /// The compressors that the server has.
    pub methods: Vec<Method>,
    /// The shell has found an SFTP server.
    pub has_sftp: bool,
    /// The source is a directory.
    pub is_directory: bool,
    /// The source is one large file.
    pub is_big: bool,
    /// The number of an existing stage: 12 hexadecimal digits.
    pub stage: Option<String>,
    /// The time at the server, in seconds since 1970.
    pub clock_secs: Option<i64>,
}

/// What the server has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A suitable tar.
    Ready(Kind),
    /// No suitable tar.
    NoTar,
    /// The directory cannot be entered, or has no entry of the name.
    Absent,
    /// The target's name is taken.
    There,
    /// The directory exists; no tar was looked for.
    Bare,
    /// There is a stage of an interrupted copy.
    Staged(Kind),
}

/// The kind of a tar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Gnu,
    /// libarchive's. If the archive ends within a file, it gives the file its full length and its
    /// time. So these prove nothing after an interruption.
    Bsd,
}

impl Greeting {
    /// Whether tar fails if a file changed or shrank while tar read it. libarchive's tar succeeds.
    pub(super) fn reports_changes(&self) -> bool {
        self.state == State::Ready(Kind::Gnu)
    }

    /// Parses the line; `None` if it is no greeting.
    pub(super) fn parse(line: &[u8]) -> Option<Greeting> {
        let text = std::str::from_utf8(line).ok()?.strip_prefix(GREETING)?;
        let mut words = text.split_ascii_whitespace();
        let state = match words.next()? {
            "gnu" => State::Ready(Kind::Gnu),
            "bsd" => State::Ready(Kind::Bsd),
            "none" => State::NoTar,
            "nodir" | "absent" => State::Absent,
            "there" => State::There,
            "bare" => State::Bare,
            "staged-gnu" => State::Staged(Kind::Gnu),
            "staged-bsd" => State::Staged(Kind::Bsd),
            // With none that can, it is gone on with all the same.
            "staged-none" => State::Staged(Kind::Bsd),
            _ => return None,
        };
        let words: Vec<&str> = words.collect();
        let methods = words.iter().filter_map(|word| Method::from_name(word)).collect();
        let says = |word| words.contains(&word);
        let (has_sftp, is_directory, is_big) = (says("sftp"), says("dir"), says("big"));
        let is_number = |it: &&str| it.len() == 12 && it.bytes().all(|it| it.is_ascii_hexdigit());
        let stage = words.iter().find_map(|word| word.strip_prefix("stage=").filter(is_number));
        let stage = stage.map(str::to_owned);
        let clock = words.iter().find_map(|word| word.strip_prefix("clock="));
        let clock_secs = clock.and_then(|clock| clock.parse().ok());
        Some(Greeting { state, methods, has_sftp, is_directory, is_big, stage, clock_secs })
    }
}
