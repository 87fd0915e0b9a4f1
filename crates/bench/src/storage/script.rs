//! The errands, as lines for any POSIX shell, here or at the other end of ssh.
//!
//! They keep to what GNU, BSD and busybox have in common.

use std::ffi::{OsStr, OsString};
use std::process::Command;

use crate::quoting::shell_quoted;

pub(super) const MAKE_DIR: &str = r#"mkdir -p -- "$1""#;

pub(super) const REMOVE: &str = r#"rm -rf -- "$1""#;

/// Standard input becomes the file `$1` in the directory `$2`, last changed at `$3`, in UTC.
pub(super) const RECEIVE: &str =
    r#"mkdir -p -- "$2" && cat >"$1" && TZ=UTC0 touch -t "$3" -- "$1""#;

/// Standard input is an archive; it becomes the tree `$1`, which must not be there yet.
pub(super) const UNPACK: &str =
    r#"p=${1%/*}; mkdir -p -- "${p:-/}" && mkdir -- "$1" && cd -- "$1" && tar -xpof -"#;

/// See [`super::listing`] for what it prints.
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
}
