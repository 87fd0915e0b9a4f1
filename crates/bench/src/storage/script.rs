//! The errands, as lines for any POSIX shell, here or at the other end of ssh.
//!
//! They keep to what GNU, BSD and busybox have in common.

use std::ffi::{OsStr, OsString};
use std::process::Command;

use crate::corpus::tree::Listing;
use crate::failure::{Failure, Result};
use crate::quoting::shell_quoted;

pub(super) const MAKE_DIR: &str = r#"mkdir -p -- "$1""#;

pub(super) const REMOVE: &str = r#"rm -rf -- "$1""#;

/// Standard input becomes the file `$1` in the directory `$2`, last changed at `$3`, in UTC.
pub(super) const RECEIVE: &str =
    r#"mkdir -p -- "$2" && cat >"$1" && TZ=UTC0 touch -t "$3" -- "$1""#;

/// Standard input is an archive; it becomes the tree `$1`, which must not be there yet.
pub(super) const UNPACK: &str =
    r#"p=${1%/*}; mkdir -p -- "${p:-/}" && mkdir -- "$1" && cd -- "$1" && tar -xpof -"#;

/// It prints, of a file: `file`, NUL, a line of `sha256sum`. Of a tree: `tree`, NUL; its
/// directories, each with NUL; an empty one; all that is neither a directory nor a file, each with
/// NUL; an empty one; lines of `sha256sum` for its files. Everything begins with `./`, and `.` is
/// the tree itself.
pub(super) const DIGEST: &str = r#"set -e; if command -v sha256sum >/dev/null 2>&1; then sum=sha256sum; else sum="shasum -a 256"; fi; if [ -d "$1" ]; then cd -- "$1"; printf "tree\0"; find . -type d -print0; printf "\0"; find . ! -type d ! -type f -print0; printf "\0"; find . -type f -exec $sum {} +; else printf "file\0"; $sum <"$1"; fi"#;

pub(super) const WARM: &str = r#"find "$1" -type f -exec cat {} + >/dev/null"#;

pub(super) const FREE: &str = r#"LC_ALL=C df -Pk -- "$1""#;

/// Prints the path of a new directory below `$1`.
pub(super) const MAKE_ROOT: &str =
    r#"d=$(mktemp -d "$1/sshoal-bench.XXXXXXXX") && cd -- "$d" && pwd -P"#;

/// A script with its arguments, run by `sh` here, or by `sh` where the words `ssh HOST` lead.
pub(crate) fn command(ssh: Option<&[OsString]>, script: &str, arguments: &[&OsStr]) -> Command {
    let Some(([program, options @ ..], script)) = ssh.map(|words| (words, script)) else {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).args(arguments);
        return command;
    };
    // ssh hands one line to the login shell, which need not be a POSIX one.
    let mut line = OsString::from("exec sh -c ");
    line.push(shell_quoted(script.as_ref()));
    line.push(" sh");
    for argument in arguments {
        line.push(" ");
        line.push(shell_quoted(argument));
    }
    let mut command = Command::new(program);
    command.args(options).arg(line);
    command
}

/// The free space in what `df -Pk` prints: the number before the percentage of the last line.
pub(super) fn free_bytes(text: &str) -> Option<u64> {
    let words: Vec<&str> = text.lines().next_back()?.split_ascii_whitespace().collect();
    let percentage = words.iter().rposition(|word| {
        word.strip_suffix('%').is_some_and(|number| number.bytes().all(|it| it.is_ascii_digit()))
    })?;
    let kib: u64 = words.get(percentage.checked_sub(1)?)?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The digest in what [`DIGEST`] prints, as the same data have it here.
pub(super) fn digest(printed: &[u8]) -> Result<String> {
    let odd = || Failure::failed("the listing of the server is not understood");
    // A login shell may print something of its own before.
    let start = |word: &[u8]| printed.windows(word.len()).position(|it| it == word);
    if let Some(at) = start(b"file\0") {
        let line = printed[at + 5..].trim_ascii_end();
        return Ok(checksum(line).ok_or_else(odd)?.0);
    }
    let at = start(b"tree\0").ok_or_else(odd)?;
    Ok(tree(&printed[at + 5..]).ok_or_else(odd)?.digest())
}

fn tree(mut rest: &[u8]) -> Option<Listing> {
    let mut listing = Listing::default();
    loop {
        match next(&mut rest)? {
            b"" => break,
            b"." => (),
            path => listing.directory(relative(path)?),
        }
    }
    if !next(&mut rest)?.is_empty() {
        return None;
    }
    for line in rest.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let (digest, path) = checksum(line)?;
        listing.file(relative(&path)?, &digest);
    }
    Some(listing)
}

/// Takes the words before the next NUL.
fn next<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest.iter().position(|&byte| byte == 0)?;
    let word = &rest[..end];
    *rest = &rest[end + 1..];
    Some(word)
}

fn relative(path: &[u8]) -> Option<&[u8]> {
    path.strip_prefix(b"./")
}

/// `DIGEST  NAME`. With a backslash before it, backslashes and line ends in the name are escaped.
fn checksum(line: &[u8]) -> Option<(String, Vec<u8>)> {
    let (escaped, line) = match line.strip_prefix(b"\\") {
        Some(line) => (true, line),
        None => (false, line),
    };
    let (digest, name) = line.split_at_checked(64)?;
    let digest = std::str::from_utf8(digest).ok()?;
    // The second sign is `*` for a binary file.
    let (sign, name) = name.split_at_checked(2)?;
    let known = digest.bytes().all(|it| it.is_ascii_hexdigit()) && matches!(sign, b"  " | b" *");
    known.then(|| (digest.to_ascii_lowercase(), if escaped { unescape(name) } else { name.into() }))
}

fn unescape(name: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.iter();
    while let Some(&byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next() {
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(&other) => other,
                None => byte,
            },
            byte => byte,
        });
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn the_free_space_is_read_whatever_the_names() {
        let head = "Filesystem     1024-blocks    Used Available Capacity Mounted on\n";
        let line = |text: &str| free_bytes(&format!("{head}{text}\n"));
        assert_eq!(line("/dev/vda  101 40 61 40% /"), Some(61 * 1024));
        assert_eq!(line("host:/a b  101 40 61  - 50% /m t 7"), None);
        assert_eq!(line("host:/a b  101 40 61 0% /with space/x"), Some(61 * 1024));
        assert_eq!(free_bytes(""), None);
        assert_eq!(line("- - - - -"), None);
    }

    #[test]
    fn words_pass_the_login_shell_whole() {
        let odd = OsStr::new("a'b \"c\" $HOME `x` \\ \n*");
        // `sh -c` stands for ssh and the login shell.
        let ssh = ["sh".into(), "-c".into()];
        let output = command(Some(&ssh), r#"printf "%s|%s" "$1" "$2""#, &[odd, OsStr::new("2")])
            .output()
            .unwrap();
        assert_eq!(output.stdout, [odd.as_bytes(), b"|2"].concat());
    }

    #[test]
    fn a_torn_listing_is_refused() {
        let digest64 = "0123456789abcdef".repeat(4);
        let whole = format!("motd\ntree\0.\0./d\0\0\0{digest64}  ./f\n");
        let expected = {
            let mut listing = Listing::default();
            listing.directory(b"d");
            listing.file(b"f", &digest64);
            listing.digest()
        };
        assert_eq!(digest(whole.as_bytes()).unwrap(), expected);
        for torn in
            ["", "tree\0.\0", "tree\0.\0\0./link\0\0", "tree\0.\0\0\0xyz  ./f\n", "file\0ab"]
        {
            assert!(digest(torn.as_bytes()).is_err(), "{torn:?}");
        }
    }
}
