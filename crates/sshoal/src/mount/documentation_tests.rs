//! Keeps the synopsis and the tables of `docs/options.md` equal to the program's.

use std::fmt::Write;
use std::path::Path;

use cli::manual::{subcommands, usages};

use super::flag_table::{FLAGS, FlagDefinition, HELPER_FLAGS};
use super::option_table::{self, GROUPS, MountOption};
use super::ssh_keywords;

/// The marks around a generated part of the page.
type Marks = (&'static str, &'static str);

const SYNOPSIS: Marks = (
    "<!-- generated from the program's commands: begin -->\n",
    "<!-- generated from the program's commands: end -->\n",
);
const TABLES: Marks = (
    "<!-- made from the program's tables: begin -->\n",
    "<!-- made from the program's tables: end -->\n",
);

/// Marks an option that `sshoal set` can change.
const CHANGEABLE: &str = ". **changeable**";

/// With this variable set to anything, the test writes the generated parts instead of comparing
/// them.
const WRITE: &str = "SSHOAL_WRITE_DOCS";

#[test]
fn the_page_of_options_has_every_command_and_option_and_nothing_else() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/options.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let generated = replaced(&page, SYNOPSIS, &synopsis());
    let generated = replaced(&generated, TABLES, &tables_of_the_program());
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, generated).unwrap();
    } else if page != generated {
        panic!("docs/options.md is outdated: `{WRITE}=1 cargo test -p sshoal page_of_options`");
    }
}

/// All spellings of flags and options.
pub fn spellings() -> Vec<String> {
    let flags = FLAGS.iter().chain(HELPER_FLAGS).map(|flag| format!("-{}", flag.short));
    let options = option_table::all().flat_map(MountOption::names).map(str::to_owned);
    flags.chain(options).collect()
}

/// The page with `text` between the marks.
fn replaced(page: &str, (begin, end): Marks, text: &str) -> String {
    let (before, rest) = page.split_once(begin).expect("the page lacks a begin mark");
    let (_, after) = rest.split_once(end).expect("the page lacks an end mark");
    format!("{before}{begin}{text}{end}{after}")
}

/// The usage of each command, and of each command of a command.
fn synopsis() -> String {
    let mut commands = crate::command::commands();
    commands.build();
    let usages = subcommands(&commands).flat_map(|command| {
        let own = Some(command).filter(|it| !it.is_subcommand_required_set());
        own.into_iter().chain(subcommands(command)).flat_map(usages)
    });
    format!("```text\n{}\n```\n", usages.collect::<Vec<_>>().join("\n"))
}

fn tables_of_the_program() -> String {
    let mut text = String::new();
    flags(&mut text, "Flags", FLAGS);
    flags(&mut text, "Flags as a mount helper", HELPER_FLAGS);
    for group in GROUPS {
        head(&mut text, &format!("{} (`-o`)", group.title), "Option");
        for option in group.options {
            let aliases: String =
                option.aliases.iter().map(|alias| format!(", `{alias}`")).collect();
            let change = if option.change.is_some() { CHANGEABLE } else { "" };
            let help = format!("{}{change}", option.help);
            row(&mut text, &option.usage(), &aliases, &help, option.why_not());
        }
    }
    let _ = write!(text, "\n### Keywords of ssh (`-o KEYWORD=VALUE`)\n\n");
    let mut keywords: Vec<&str> = ssh_keywords::all().collect();
    keywords.sort_unstable_by_key(|keyword| keyword.to_ascii_lowercase());
    let _ = writeln!(text, "`{}`", keywords.join("` `"));
    text.push_str("\nNot passed to ssh:\n\n");
    for (keyword, why) in ssh_keywords::WITHHELD {
        let _ = writeln!(text, "- `{keyword}`: {why}");
    }
    text.push('\n');
    text
}

fn flags(text: &mut String, title: &str, flags: &[FlagDefinition]) {
    head(text, title, "Flag");
    for flag in flags {
        row(text, &flag.usage(), "", flag.help, flag.why_not());
    }
}

fn head(text: &mut String, title: &str, first: &str) {
    let _ = write!(text, "\n### {title}\n\n| {first} | Meaning |\n|---|---|\n");
}

fn row(text: &mut String, usage: &str, aliases: &str, help: &str, why: Option<(&str, &str)>) {
    let usage = usage.replace('|', "\\|");
    let why = why.map(|(fate, why)| format!(". **{fate}**: {why}")).unwrap_or_default();
    let _ = writeln!(text, "| `{usage}`{aliases} | {help}{why} |");
}
