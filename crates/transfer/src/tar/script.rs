//! What the server's shell is given: one command for each direction, and the words in which it
//! answers.
//!
//! One command does everything, since each further one costs a login. It reads words from its
//! standard input, a line each, and answers them, until one of them begins the archive:
//!
//! | word | answer |
//! |---|---|
//! | `hello` | `sshoal-1 STATE [zstd] [gzip] [sftp] [dir] [big] [stage=NUMBER]`; `STATE` is the kind of tar, or why there is no copy; what is to come is a directory, or a large file; the stage of another run |
//! | `list` | what is there already, as `listing` describes it; nothing where there is nothing |
//! | `rate` | [`RATE_BYTES`] that cannot be compressed |
//! | `big` | how many large files there are: `0`, or more |
//! | `sample` | how many bytes the first [`SAMPLE_BYTES`] of the archive are, compressed |
//! | `plain`, `gzip`, `zstd` | the archive, so compressed, or what takes it |
//! | `sftp` | an SFTP server in the place of the shell: where there is no archive, the login is not lost |
//!
//! The first word is sent before anything was answered: a server that runs something else than a
//! shell (an SFTP server that is forced on the user) ends by it, and is not waited for.
//!
//! A pushed tree goes into a directory beside its place, the stage, whose name no other run uses. The
//! last member of the archive is a mark: only where it was unpacked the archive was whole, and the
//! tree gets its name. (tar takes an archive that ends between two members for a whole one.) Another
//! run may rename the stage, to go on with it: then tar makes what follows anew under the old name,
//! and that is removed. So the inode of the stage is compared before it gets its name.

use std::fmt::Write as _;

use super::listing;
use crate::compress::Method;
use crate::options::{Options, Owners, Xattrs};
use base::shell::quote;

/// Answered to `rate`: 13 ms at 20 MB/s.
pub(super) const RATE_BYTES: usize = 256 << 10;

/// How much is compressed to see what comes of it.
pub(super) const SAMPLE_BYTES: u64 = 4 << 20;

/// Files of more blocks of 512 bytes are large: one stream is bound by its window, and several
/// sessions together are not. 16 MiB.
pub(super) const BIG_BLOCKS: u64 = 32 << 10;

/// Begins the answer to `hello`, and no line that a login prints by itself.
pub(super) const GREETING: &str = "sshoal-1 ";

/// Added to the name of a stage: the mark that its archive was whole.
pub(super) const MARK: &[u8] = MARK_TEXT.as_bytes();
const MARK_TEXT: &str = ".end";

/// The end of the names that files of a stream have at first; a pattern of `grep`.
const TEMPORARY: &str = "[.]sshoal-[0-9a-f]\\{12\\}ff[0-9a-f]\\{18\\}";

/// What all begin with: what compresses, and which tar there is for whoever wants to know it.
const LOOK: &str = "d=$(pwd); LC_ALL=C; export LC_ALL; set -f; u=$(umask); umask 077; unset TAR_OPTIONS POSIXLY_CORRECT; \
    look() { case $(tar --version 2>&1) in *\"GNU tar\"*) t=gnu;; *bsdtar*) t=bsd;; *) t=none;; esac; }; \
    z=; for c in zstd gzip; do command -v $c >/dev/null 2>&1 && z=\"$z $c\"; done; \
    for f in /usr/lib/openssh /usr/libexec/openssh /usr/lib/ssh /usr/libexec /usr/libexec/ssh; do \
    f=$f/sftp-server; [ -x $f ] && z=\"$z sftp\" && break; done; \
    k=; cd -- \"$1\" 2>/dev/null || k=nodir; n=$2; ";

/// An SFTP server as the login would have had it: with its own rights for what is made, and where it
/// began.
const SERVE: &str = "sftp) umask \"$u\"; cd -- \"$d\" && exec \"$f\"; exit 1;; ";

/// What is sent first where a listing is wanted, and nothing else but SFTP.
pub(super) const LIST_AND_SERVE: &[u8] = b"hello\nlist\nsftp\n";

/// What is sent first where a listing is wanted of what is in the way.
pub(super) const LIST: &[u8] = b"hello\nlist\n";

/// What is sent first else.
pub(super) const HELLO: &[u8] = b"hello\n";

/// What `find` tells of an entry: `KIND DEPTH MODE SIZE UID GID MTIME ATIME NAME`.
const FORMAT: &str = "%y %d %m %s %U %G %Ts %As %f\\0";

/// The last record of a listing of which nothing is missing.
pub(super) const ALL: &str = "=";

/// How long a tree is listed at most, in seconds.
const LIST_SECONDS: u32 = 2;

/// Lists the tree `$n`, where it is there.
///
/// The end is told behind all that was written: nobody has the capture (6) open any more then. It is
/// `whole` only if `find` has ended well and complained of nothing, and `cut` if it was stopped, and
/// had complained of nothing before: a directory that cannot be read must not look like an empty one.
/// So the first line of what it says and how it ended, in that order, decides. Once it complains,
/// nobody reads its complaints any more, and it ends.
///
/// busybox's `timeout`, which knows no `--version`, leaves a watcher behind that keeps what is open for
/// a second.
///
/// Without a `TZ` the C library looks at `/etc/localtime` for each time that is told, which is most
/// of what there is to do.
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

/// Makes the directory that is not there, with the rights that the login's directories have.
const MAKE: &str = "if [ $k ] && ( umask \"$u\"; mkdir -- \"$1\" ) 2>/dev/null; then \
    k=; cd -- \"$1\" || k=nodir; fi; ";

/// The command whose output is an archive of `name` in `directory`.
pub(super) fn pull(directory: &[u8], name: &[u8], options: &Options) -> Option<Vec<u8>> {
    create(directory, name, options, "-- \"$n\" </dev/null")
}

/// The command whose output is an archive of what its further input names: paths in `directory`,
/// each with a NUL behind it. `name` is what samples are taken of.
///
/// The names begin with `./`, so that none of them is an option, or a line that means something
/// else to a tar; and neither of them takes a backslash for the beginning of another character.
pub(super) fn list(directory: &[u8], name: &[u8], options: &Options) -> Option<Vec<u8>> {
    create(directory, name, options, "--null $l --no-recursion -T -")
}

/// Gives the pipe between sshd and tar, where it is one, the room of what is on its way in an ssh
/// session (`F_SETPIPE_SZ`, 1 MiB). In the 64 KiB that a pipe has, the two wait for each other twice
/// as often: with more an archive comes 10 to 20 % faster where processors bound it. Whoever has no
/// perl goes without. Beside tar, which does not wait for it.
///
/// A perl may be somebody's wrapper, or hang: so it is given neither of the two, whose ends it would
/// keep away, and whose bytes it could take or add to. It opens them by itself when it has come up,
/// and only where they are pipes still.
pub(super) const WIDEN: &str = "perl -e 'for (map \"/proc/$ARGV[0]/fd/$_\", 0, 1) \
    { -p && open(F, \"+<\", $_) && fcntl(F, 1031, 1 << 20) }' $$ </dev/null >/dev/null 2>&1 & ";

/// An archive of what the words `what` mean to tar.
fn create(directory: &[u8], name: &[u8], options: &Options, what: &str) -> Option<Vec<u8>> {
    let mut script = LOOK.to_owned();
    let _ = write!(
        script,
        "look; [ $k ] || k=$t; [ -e \"$n\" ] || [ -h \"$n\" ] || k=absent; l=; \
         if [ -h \"$n\" ]; then :; elif [ -d \"$n\" ]; then z=\"$z dir\"; \
         elif [ \"$(find \"$n\" -type f -size +{BIG_BLOCKS} 2>/dev/null)\" ]; then z=\"$z big\"; fi; \
         case $k in gnu) l=--no-unquote; set -- {};; *) set -- {};; esac; \
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

/// Which directories a push makes.
#[derive(Clone, Copy)]
pub(super) struct Making {
    /// The one that the tree comes into, if it is not there.
    pub(super) parent: bool,
    /// The stage: it is a directory that is pushed.
    pub(super) stage: bool,
}

/// The command that unpacks an archive in `directory`. The names are the tree's own, that of the
/// stage, which is in the archive, and what those of all stages begin with.
///
/// `mv` moves into a directory that has got the name since it was looked at; that is taken back.
pub(super) fn push(
    directory: &[u8],
    names: &[Vec<u8>; 3],
    making: Making,
    options: &Options,
) -> Option<Vec<u8>> {
    let [name, stage, begin] = names;
    let mut script = [LOOK, if making.parent { MAKE } else { "" }].concat();
    let make = if making.stage { "mkdir -- \"$s\" && i=$(ls -di -- \"$s\");" } else { "" };
    let list = list_word(options);
    let _ = write!(
        script,
        "s=$3; i=; x=; if [ $k ]; then :; elif [ -e \"$n\" ] || [ -h \"$n\" ]; then k=there; \
         else look; k=$t; set +f; for e in \"$4\"*; do case $e in *{MARK_TEXT}) ;; *) \
         if [ -e \"$e\" ] || [ -h \"$e\" ]; then k=staged-$t; x=\" stage=${{e#\"$4\"}}\"; fi;; esac; \
         done; set -f; z=$z$x; fi; \
         case $k in gnu) set -- {};; *) set -- {};; esac; \
         while IFS= read -r v; do case $v in \
         hello) echo \"{GREETING}$k$z\";; \
         rate) head -c {RATE_BYTES} /dev/urandom;; \
         {list}{SERVE}\
         plain) {make} {WIDEN}tar -xf - \"$@\"; t=$?; break;; \
         gzip|zstd) {make} \"$v\" -dc | tar -xf - \"$@\"; t=$?; break;; \
         *) exit 64;; esac; done; \
         m=$s{MARK_TEXT}; [ -e \"$m\" ] || t=1; rm -f -- \"$m\"; b=${{s##*/}}; \
         if [ \"$i\" ] && [ \"$i\" != \"$(ls -di -- \"$s\" 2>/dev/null)\" ]; then \
         rm -rf -- \"$s\"; echo kept; \
         elif [ \"$t\" != 0 ] || [ -e \"$n\" ] || [ -h \"$n\" ]; then echo kept; \
         elif ! mv -- \"$s\" \"$n\"; then echo kept; \
         elif [ -e \"$n/$b\" ]; then mv -- \"$n/$b\" \"$s\"; echo kept; \
         else echo done; fi",
        gnu_extract(options),
        bsd_extract(options),
    );
    command(&script, &[directory, name, stage, begin])
}

/// The command that unpacks an archive in `directory`, with the names that it has, which are
/// temporary ones. It answers with tar's exit status when the archive has ended. Where that is not a
/// good one, perhaps nobody is there any more to remove what has come, so it is removed before. GNU's
/// tar tells the names; what is not called as such files are is not touched.
pub(super) fn take(directory: &[u8], options: &Options) -> Option<Vec<u8>> {
    let mut script = LOOK.to_owned();
    let _ = write!(
        script,
        "look; [ $k ] || k=$t; p='/[.][^/]*{TEMPORARY}$'; \
         case $k in gnu) set -- {} -v --quoting-style=literal;; *) set -- {};; esac; \
         end() {{ if [ \"$t\" != 0 ]; then \
         printf '%s\\n' \"$l\" | grep \"$p\" | tr '\\n' '\\0' | xargs -0 rm -f --; fi; \
         echo \"$t\"; exit; }}; \
         while IFS= read -r v; do case $v in \
         hello) echo \"{GREETING}$k$z\";; \
         rate) head -c {RATE_BYTES} /dev/urandom;; \
         plain) {WIDEN}l=$(tar -xf - \"$@\"); t=$?; end;; \
         gzip|zstd) l=$(\"$v\" -dc | tar -xf - \"$@\"); t=$?; end;; \
         *) exit 64;; esac; done",
        gnu_extract(options),
        bsd_extract(options),
    );
    command(&script, &[directory, b"."])
}

/// Blocks of 512 bytes that tar reads and writes at once. By itself it takes 20, which costs it
/// half as much again for what it unpacks, and twice as much for what it packs.
const RECORD_BLOCKS: usize = 64;

/// Times to the nanosecond, and nothing that is not asked for.
fn gnu_create(options: &Options) -> String {
    let mut flags = format!("-b {RECORD_BLOCKS} --format=posix --numeric-owner");
    flags += " --pax-option=delete=atime,delete=ctime";
    if options.sparse {
        flags += " --sparse --sparse-version=1.0";
    }
    flags += xattrs(options);
    if options.one_file_system {
        flags += " --one-file-system";
    }
    if !options.hard_links {
        flags += " --hard-dereference";
    }
    flags
}

/// `set -f` keeps the shell from looking for files of these names.
fn xattrs(options: &Options) -> &'static str {
    match options.xattrs {
        Xattrs::None => "",
        Xattrs::Users => " --xattrs --xattrs-include=user.*",
        Xattrs::All => " --xattrs --xattrs-include=*",
    }
}

fn bsd_create(options: &Options) -> String {
    let mut flags = "--format=pax --no-acls --no-fflags".to_owned();
    if !options.xattrs.any() {
        flags += " --no-xattrs";
    }
    if options.one_file_system {
        flags += " --one-file-system";
    }
    flags
}

/// `-P`: links are made at once, and not when all else is done. The names are our own.
fn gnu_extract(options: &Options) -> String {
    let mut flags = format!("-b {RECORD_BLOCKS} -p -P --numeric-owner");
    flags += if options.owners == Owners::Leave { " --no-same-owner" } else { "" };
    flags += xattrs(options);
    flags
}

fn bsd_extract(options: &Options) -> String {
    let mut flags = "-p -P --numeric-owner --no-acls --no-fflags".to_owned();
    flags += if options.owners == Owners::Leave { " --no-same-owner" } else { "" };
    if !options.xattrs.any() {
        flags += " --no-xattrs";
    }
    flags
}

/// Whatever the login's shell is, `sh` reads the script. `None` where not every login shell can be
/// given the arguments.
fn command(script: &str, arguments: &[&[u8]]) -> Option<Vec<u8>> {
    let mut command = b"exec /bin/sh -c ".to_vec();
    command.extend(quote(script.as_bytes())?);
    command.extend(b" sshoal");
    for argument in arguments {
        command.push(b' ');
        command.extend(quote(argument)?);
    }
    Some(command)
}

/// A path that is no option, no `-`, and found in no `CDPATH`.
pub(super) fn plain_path(path: &[u8]) -> Vec<u8> {
    if path.starts_with(b"/") { path.to_vec() } else { [b"./", path].concat() }
}

/// The answer to `hello`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    /// `gnu`, `bsd`, or why not.
    pub state: State,
    /// What it can compress and decompress.
    pub methods: Vec<Method>,
    /// It has an SFTP server that the shell can become.
    pub has_sftp: bool,
    /// What is to come from there is a directory.
    pub is_directory: bool,
    /// What is to come from there is one large file.
    pub is_big: bool,
    /// The number of a stage that is there: 12 hexadecimal digits.
    pub stage: Option<String>,
}

/// What the server found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A tar that can.
    Ready(Kind),
    /// None, or one that lacks what is needed.
    NoTar,
    /// The directory cannot be entered, or there is nothing of the name in it.
    Absent,
    /// The target's name is taken.
    There,
    /// The directory is there, and nobody has looked for a tar.
    Bare,
    /// The tree of an earlier, interrupted copy is there.
    Staged(Kind),
}

/// Whose tar it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Gnu,
    /// libarchive's. It gives a file of which the archive lacks the end its whole length and its
    /// time, so that these say nothing about what an interrupted archive has left.
    Bsd,
}

impl Greeting {
    /// Reads the line; `None` if it is something else.
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
        Some(Greeting { state, methods, has_sftp, is_directory, is_big, stage })
    }
}
