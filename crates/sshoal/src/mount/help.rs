//! The texts of `--help`, `help options` and `--version`, made from the tables.

use std::fmt::Write;

use super::flag_table::{FLAGS, HELPER_FLAGS};
use super::option_table::{self, GROUPS, MountOption};
use super::ssh_keywords;
use crate::program::Program;

/// Terminals are this wide at least.
const WIDTH: usize = 80;

/// Where the explanations begin.
const INDENT: usize = 30;

/// The version of sshfs whose command line this program takes.
const SSHFS_VERSION: &str = "3.7.6";

/// `--help`.
pub fn short(program: Program) -> String {
    let name = program.name;
    let mut text = format!("usage: {name} [user@]host:[dir] mountpoint [options]\n");
    if !program.is_sshfs() {
        text += "       sshoal source source … mountpoint [options]\n";
        text += "         a source is [place=][user@]host[,host…]:[dir][=ro|nc|optional|…]\n";
        text += "       sshoal mount name [mountpoint] | --all\n";
        text += "       sshoal umount mountpoint [-z]\n";
        text += "       sshoal pull | push source … target [options]\n";
        text += "       sshoal status [mountpoint] [--json]\n";
        text += "       sshoal branch list | add | set | rm mountpoint [source] [ro|rw|…]\n";
        text += "       sshoal warm | cache | config | demo | bench …\n";
        text += "       sshoal help [options | OPTION | COMMAND]\n";
    }
    text += "\nMakes a directory of another machine usable here, over ssh.\n\n";
    for flag in FLAGS.iter().filter(|flag| flag.is_prominent) {
        line(&mut text, &flag.usage(), flag.help);
    }
    for group in GROUPS {
        let mut prominent = group.options.iter().filter(|option| option.is_prominent).peekable();
        if prominent.peek().is_some() {
            let _ = writeln!(text, "\n{} (-o):", group.title);
        }
        for option in prominent {
            line(&mut text, &option.usage(), option.help);
        }
    }
    text += "\nEvery keyword of ssh_config(5) is an option, too: -o IdentityFile=~/.ssh/key\n";
    text += "`sshoal help options` and docs/options.md tell of all options.\n";
    text += "Unmount with `sshoal umount mountpoint`; it waits until all is written.\n";
    text
}

/// `help options`.
pub fn full() -> String {
    let mut text = "Flags:\n".to_owned();
    for flag in FLAGS {
        line(&mut text, &flag.usage(), &(flag.help.to_owned() + &reason(flag.why_not())));
    }
    text += "\nFlags when started by mount(8), as mount.sshoal or mount.sshfs:\n";
    for flag in HELPER_FLAGS {
        line(&mut text, &flag.usage(), &(flag.help.to_owned() + &reason(flag.why_not())));
    }
    for group in GROUPS {
        let _ = writeln!(text, "\n{} (-o):", group.title);
        for option in group.options {
            line(&mut text, &option.usage(), &explanation(option));
        }
    }
    text += "\nKeywords of ssh_config(5), in any case, as -o KEYWORD=VALUE:\n";
    let mut keywords: Vec<&str> = ssh_keywords::all().collect();
    keywords.sort_unstable_by_key(|keyword| keyword.to_ascii_lowercase());
    fold(&mut text, &keywords.join(", "), 2, 2);
    for (keyword, why) in ssh_keywords::withheld() {
        let _ = writeln!(text, "  ({keyword} is not passed on: {why})");
    }
    text += "\nIn a list of options a backslash keeps a comma: -o 'Ciphers=a\\,b'.\n";
    text
}

/// `help OPTION`: one option, or `None` if there is none with that name.
pub fn one(name: &str) -> Option<String> {
    let option = option_table::find(name.as_ref())?;
    let mut text = String::new();
    line(&mut text, &format!("-o {}", option.usage()), &explanation(option));
    Some(text)
}

/// `--version`. Scripts look for the first words of sshfs's.
pub fn version(program: Program) -> String {
    let version = env!("CARGO_PKG_VERSION");
    if program.is_sshfs() {
        format!("SSHFS version {SSHFS_VERSION} (sshoal {version})\n")
    } else {
        format!("sshoal {version} (takes the options of sshfs {SSHFS_VERSION})\n")
    }
}

/// The help line with what else there is to know.
pub fn explanation(option: &MountOption) -> String {
    let mut text = option.help.to_owned() + &reason(option.why_not());
    if !option.aliases.is_empty() {
        text += &format!(" [also {}]", option.aliases.join(", "));
    }
    text
}

fn reason(why_not: Option<(&str, &str)>) -> String {
    why_not.map(|(fate, why)| format!(" [{fate}: {why}]")).unwrap_or_default()
}

fn line(text: &mut String, usage: &str, help: &str) {
    let _ = write!(text, "  {usage}");
    let used = 2 + usage.chars().count();
    if used + 2 > INDENT {
        text.push('\n');
        fold(text, help, INDENT, INDENT);
    } else {
        text.push_str(&" ".repeat(INDENT - used));
        fold(text, help, 0, INDENT);
    }
}

/// Adds words in lines that end before [`WIDTH`]; the first line's indent is separate, for it may
/// have begun already (then at `indent`).
fn fold(text: &mut String, words: &str, first_indent: usize, indent: usize) {
    text.push_str(&" ".repeat(first_indent));
    let mut column = indent;
    for (index, word) in words.split(' ').enumerate() {
        let width = word.chars().count();
        if index > 0 && column + 1 + width > WIDTH {
            text.push('\n');
            text.push_str(&" ".repeat(indent));
            column = indent;
        } else if index > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += width;
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: Program = Program { name: "sshoal", helper: false };
    const SSHFS: Program = Program { name: "sshfs", helper: false };

    #[test]
    fn no_help_is_wider_than_a_terminal() {
        for text in [short(PROGRAM), short(SSHFS), full()] {
            for line in text.lines() {
                assert!(line.chars().count() <= WIDTH, "{line}");
                assert_eq!(line.trim_end(), line);
            }
        }
    }

    #[test]
    fn the_short_help_is_short_and_says_what_matters() {
        let text = short(PROGRAM);
        assert!(text.lines().count() <= 80, "{} lines", text.lines().count());
        assert!(text.starts_with("usage: sshoal [user@]host:[dir] mountpoint [options]\n"));
        for word in ["-p PORT", "-f, --foreground", "allow_other", "follow_symlinks", "umount"] {
            assert!(text.contains(word), "{word}");
        }
        assert!(short(SSHFS).starts_with("usage: sshfs [user@]host:[dir]"));
        assert!(!short(SSHFS).contains("sshfs umount"));
    }

    #[test]
    fn the_full_help_has_every_option_and_keyword() {
        let text = full();
        for name in option_table::all().flat_map(MountOption::names).chain(ssh_keywords::all()) {
            assert!(text.contains(name), "{name}");
        }
    }

    #[test]
    fn one_option_can_be_asked_for_by_any_of_its_names() {
        let text = one("cache_timeout").unwrap();
        assert!(text.starts_with("  -o dcache_timeout=SECONDS"), "{text}");
        assert!(one("iversion").unwrap().contains("[ignored: SFTP has none]"));
        assert_eq!(one("no_such_option"), None);
    }

    #[test]
    fn the_version_under_sshfs_s_name_is_recognized_by_scripts() {
        assert!(version(SSHFS).starts_with("SSHFS version 3.7.6 (sshoal "));
        assert!(version(PROGRAM).starts_with("sshoal "));
    }
}
