//! The texts of `--help`, `help options`, `help OPTION`, `--version`, the manual and the completion
//! of options, generated from the tables.

use std::fmt::Write;

use clap::{Arg, ArgAction, ValueHint};
use cli::completion::{Answer, Paths};
use cli::manual::{Block, Section};
use textwrap::WordSplitter;

use super::flag_table::{FLAGS, FlagDefinition, HELPER_FLAGS};
use super::option_table::{self, Effect, GROUPS, MountOption};
use super::ssh_keywords;
use crate::program::Program;

/// The width of the text in columns, that of the narrowest usual terminal.
const WIDTH: usize = 80;

/// The column of the descriptions of flags and options.
const INDENT: usize = 30;

/// The column of the descriptions of commands.
const COMMAND_INDENT: usize = 12;

/// The version of sshfs whose command line this program takes.
const SSHFS_VERSION: &str = "3.7.6";

/// `--help`.
pub fn short(program: Program) -> String {
    let name = program.name;
    let mut text = format!("usage: {name} [user@]host:[dir] mountpoint [options]\n");
    if program.is_sshfs() {
        text += "\nMounts a remote directory over SSH.\n";
    } else {
        text += "       sshoal source source … mountpoint [options]\n";
        text += "       sshoal mount NAME [mountpoint]    (of the configuration file; --all)\n";
        text += "       sshoal COMMAND …\n";
        text += "\nMounts remote directories over SSH. Several sources are shown as one tree;\n";
        text += "a source is [place=][user@]host[,host…]:[dir][=ro|nc|optional|…]\n";
        text += "\nCommands (`sshoal help COMMAND` shows their arguments):\n";
        for (name, description) in crate::command::descriptions() {
            line(&mut text, COMMAND_INDENT, &name, &description);
        }
    }
    text += "\nFlags:\n";
    for flag in FLAGS.iter().filter(|flag| flag.is_prominent) {
        line(&mut text, INDENT, &flag.usage(), flag.help);
    }
    for group in GROUPS {
        let mut prominent = group.options.iter().filter(|option| option.is_prominent).peekable();
        if prominent.peek().is_some() {
            let _ = writeln!(text, "\n{} (-o):", group.title);
        }
        for option in prominent {
            line(&mut text, INDENT, &option.usage(), option.help);
        }
    }
    text += "\nKeywords of ssh_config(5) are options too: -o IdentityFile=~/.ssh/key\n";
    text += "`sshoal help options` and docs/options.md list all options.\n";
    if program.is_sshfs() {
        text += "`sshoal umount mountpoint` unmounts and waits until all data is written.\n";
    }
    text
}

/// `help options`.
pub fn full() -> String {
    let mut text = String::new();
    for (title, flags) in [
        ("Flags:", FLAGS),
        ("\nFlags when started by mount(8), as mount.sshoal or mount.sshfs:", HELPER_FLAGS),
    ] {
        let _ = writeln!(text, "{title}");
        for flag in flags {
            line(&mut text, INDENT, &flag.usage(), &explanation_of_flag(flag));
        }
    }
    for group in GROUPS {
        let _ = writeln!(text, "\n{} (-o):", group.title);
        for option in group.options {
            line(&mut text, INDENT, &option.usage(), &explanation(option));
        }
    }
    text += "\nKeywords of ssh_config(5), in upper or lower case, as -o KEYWORD=VALUE:\n";
    fold(&mut text, "  ", &sorted_keywords().join(", "));
    for (keyword, why) in ssh_keywords::WITHHELD {
        let _ = writeln!(text, "  ({keyword} is not passed to ssh: {why})");
    }
    text += "\nWrite a comma inside a value as '\\,': -o 'Ciphers=a\\,b'.\n";
    text
}

/// `help OPTION`: a mount option or a keyword of ssh, or `None` if there is none with that name.
pub fn one(name: &str) -> Option<String> {
    let mut text = String::new();
    if let Some(option) = option_table::find(name.as_ref()) {
        line(&mut text, INDENT, &format!("-o {}", option.usage()), &explanation(option));
        return Some(text);
    }
    let keyword = ssh_keywords::find(name.as_ref())?;
    let withheld = ssh_keywords::WITHHELD.iter().find(|(withheld, _)| *withheld == keyword);
    let help = match withheld {
        Some((_, why)) => format!("a keyword of ssh_config(5) [ignored: {why}]"),
        None => "passed to ssh; see ssh_config(5)".to_owned(),
    };
    line(&mut text, INDENT, &format!("-o {keyword}=VALUE"), &help);
    Some(text)
}

/// `--version`. Scripts look for the first words of sshfs's version.
pub fn version(program: Program) -> String {
    let version = env!("CARGO_PKG_VERSION");
    if program.is_sshfs() {
        format!("SSHFS version {SSHFS_VERSION} (sshoal {version})\n")
    } else {
        format!("sshoal {version} (takes the options of sshfs {SSHFS_VERSION})\n")
    }
}

/// The section of the manual about flags, options and keywords.
pub fn section() -> Section {
    let mut blocks = Vec::new();
    for (title, flags) in [("Flags", FLAGS), ("Flags when started by mount(8)", HELPER_FLAGS)] {
        blocks.push(Block::Heading(title.into()));
        blocks.extend(flags.iter().map(|it| Block::Entry(it.usage(), explanation_of_flag(it))));
    }
    for group in GROUPS {
        blocks.push(Block::Heading(format!("{} (-o)", group.title)));
        blocks.extend(group.options.iter().map(|option| {
            let usage = option.usage();
            let names: Vec<&str> =
                std::iter::once(&*usage).chain(option.aliases.iter().copied()).collect();
            Block::Entry(names.join(", "), option.help.to_owned() + &reason(option.why_not()))
        }));
    }
    blocks.extend([
        Block::Heading("Keywords of ssh_config(5) (-o)".into()),
        Block::Text(
            "Every keyword may be given as -o KEYWORD=VALUE, in upper or lower case:".into(),
        ),
        Block::Text(sorted_keywords().join(", ")),
    ]);
    let withheld = ssh_keywords::WITHHELD.iter();
    blocks.extend(
        withheld.map(|(name, why)| Block::Entry((*name).into(), format!("ignored: {why}"))),
    );
    Section { title: "Options".into(), blocks }
}

/// Flags and operands of a mount, for the manual and the completion.
pub fn arguments() -> Vec<Arg> {
    let flags = FLAGS.iter().filter(|flag| flag.why_not().is_none()).map(|flag| {
        let argument = Arg::new(flag.help).short(flag.short).help(flag.help);
        let argument = flag.long.into_iter().fold(argument, Arg::long);
        match flag.value_name() {
            None => argument.action(ArgAction::SetTrue),
            Some(name @ ("FILE" | "PATH")) => {
                argument.value_name(name).value_hint(ValueHint::AnyPath)
            }
            Some(name) => argument.value_name(name),
        }
    });
    let source = Arg::new("source").value_name("SOURCE").help("what to mount");
    let place = Arg::new("place").value_name("MOUNTPOINT").help("where to mount it");
    flags.chain([source, place.value_hint(ValueHint::DirPath)]).collect()
}

/// Candidates for a list of mount options, of which the last one is completed. Options without
/// effect are omitted, and keywords of ssh until the first letter is typed.
pub fn completed_options(list: &str) -> Answer {
    let begin = list.rfind(',').map_or(0, |comma| comma + 1);
    let (before, last) = list.split_at(begin);
    let Some((name, _)) = last.split_once('=') else {
        let options = option_table::all().filter(|option| option.why_not().is_none());
        let options = options.map(|option| {
            let sign = if option.usage().contains('=') { "=" } else { "" };
            (format!("{}{sign}", option.name), option.help.to_owned())
        });
        let keywords = ssh_keywords::all().filter(|_| last.starts_with(char::is_uppercase));
        let keywords = keywords.map(|keyword| (format!("{keyword}="), "see ssh_config(5)".into()));
        let words = options.chain(keywords).collect();
        return Answer { words, ..Answer::default() }.after(before);
    };
    let answer = match option_table::find(name.as_ref()).map(|option| &option.effect) {
        Some(Effect::Choice(words)) => {
            Answer::of_words(words.iter().map(|(word, _)| (*word).into()))
        }
        // Words, and names of other values in capitals.
        Some(Effect::Custom(values, _) | Effect::Optional(values, ..)) if values.contains('|') => {
            let words = values.split('|').filter(|word| word.starts_with(char::is_lowercase));
            Answer::of_words(words.map(str::to_owned))
        }
        Some(Effect::Text("FILE", _)) => Answer::of_paths(Paths::Files),
        Some(Effect::Text("DIR", _)) => Answer::of_paths(Paths::Directories),
        _ => Answer::default(),
    };
    answer.after(&list[..begin + name.len() + 1])
}

fn sorted_keywords() -> Vec<&'static str> {
    let mut keywords: Vec<&str> = ssh_keywords::all().collect();
    keywords.sort_unstable_by_key(|keyword| keyword.to_ascii_lowercase());
    keywords
}

fn explanation_of_flag(flag: &FlagDefinition) -> String {
    flag.help.to_owned() + &reason(flag.why_not())
}

/// The help line, followed by the reason if the option has no effect, and by its other names.
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

/// Adds a usage, and the description from column `indent` on.
fn line(text: &mut String, indent: usize, usage: &str, help: &str) {
    let mut begin = format!("  {usage:width$}", width = indent - 2);
    if begin.ends_with("  ") {
        fold(text, &begin, help);
    } else {
        begin.truncate(begin.trim_end().len());
        let _ = writeln!(text, "{begin}");
        fold(text, &" ".repeat(indent), help);
    }
}

/// Adds a line that begins with `begin`, and further ones below what follows it, each of at most
/// [`WIDTH`] columns.
fn fold(text: &mut String, begin: &str, words: &str) {
    let indent = " ".repeat(begin.chars().count());
    let options = textwrap::Options::new(WIDTH)
        .initial_indent(begin)
        .subsequent_indent(&indent)
        .word_splitter(WordSplitter::NoHyphenation)
        .break_words(false);
    let _ = writeln!(text, "{}", textwrap::fill(words, options));
}

#[cfg(test)]
mod tests {
    use super::*;

    const SSHFS: Program = Program { name: "sshfs", helper: false };

    #[test]
    fn no_help_is_wider_than_a_terminal() {
        for text in [short(Program::SSHOAL), short(SSHFS), full()] {
            for line in text.lines() {
                assert!(line.chars().count() <= WIDTH, "{line}");
                assert_eq!(line.trim_end(), line);
            }
        }
    }

    #[test]
    fn the_short_help_is_short_and_says_what_matters() {
        let text = short(Program::SSHOAL);
        assert!(text.lines().count() <= 102, "{} lines", text.lines().count());
        assert!(text.starts_with("usage: sshoal [user@]host:[dir] mountpoint [options]\n"));
        for word in ["-p PORT", "-f, --foreground", "allow_other", "follow_symlinks", "umount"] {
            assert!(text.contains(word), "{word}");
        }
        for (name, description) in crate::command::descriptions() {
            assert!(text.contains(&format!("\n  {name} ")), "{name}: {text}");
            assert!(text.contains(description.split(' ').next().unwrap()), "{description}");
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
    fn one_option_is_found_by_any_of_its_names() {
        let text = one("cache_timeout").unwrap();
        assert!(text.starts_with("  -o dcache_timeout=SECONDS"), "{text}");
        assert!(one("iversion").unwrap().contains("[ignored: SFTP has no"));
        assert_eq!(one("no_such_option"), None);
    }

    #[test]
    fn every_option_and_keyword_has_help_of_its_own() {
        for name in option_table::all().flat_map(MountOption::names) {
            let text = one(name).unwrap_or_else(|| panic!("no help for {name}"));
            let option = option_table::find(name.as_ref()).unwrap();
            assert!(text.starts_with(&format!("  -o {}", option.name)), "{text}");
        }
        for keyword in ssh_keywords::all() {
            let text = one(keyword).unwrap_or_else(|| panic!("no help for {keyword}"));
            assert!(text.contains("ssh_config(5)"), "{text}");
        }
        let text = one("serveraliveinterval").unwrap();
        assert!(text.starts_with("  -o ServerAliveInterval=VALUE\n"), "{text}");
        assert!(text.ends_with(" passed to ssh; see ssh_config(5)\n"), "{text}");
        assert!(one("ForwardAgent").unwrap().contains("[ignored: a mount never"));
    }

    /// `help OPTION` shows a description without the one before it in the table.
    #[test]
    fn no_description_refers_to_another_one() {
        let options = option_table::all().map(|option| (option.name, option.help));
        let flags = FLAGS.iter().chain(HELPER_FLAGS).map(|flag| ("flag", flag.help));
        for (name, help) in options.chain(flags) {
            let first = help.split([' ', ',', ':']).next().unwrap_or_default();
            let connectives = ["and", "but", "or", "so", "they", "it", "its", "those", "that"];
            assert!(!connectives.contains(&first), "{name}: {help}");
            for words in ["the same ", "likewise"] {
                assert!(!help.starts_with(words) && !help.ends_with("likewise"), "{name}: {help}");
            }
        }
    }

    #[test]
    fn the_version_under_sshfs_s_name_is_recognized_by_scripts() {
        assert!(version(SSHFS).starts_with("SSHFS version 3.7.6 (sshoal "));
        assert!(version(Program::SSHOAL).starts_with("sshoal "));
    }
}
