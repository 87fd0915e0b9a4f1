//! Manual pages in man(7), made from clap's definition of a command.
//!
//! What clap does not know (the mount options, the prose of the main page) is added as
//! [`Section`]s, so that all pages have one style.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::{OrProblem, printable};

/// The text of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The name of the page, which is that of its file without the section: `sshoal-pull`.
    pub name: String,
    /// One line, which whatis(1) shows.
    pub about: String,
    /// The forms of the command line.
    pub synopsis: Vec<String>,
    /// What follows, in this order.
    pub sections: Vec<Section>,
}

/// A part of a page with a heading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// The heading, which is shown in capitals.
    pub title: String,
    /// The contents.
    pub blocks: Vec<Block>,
}

/// A part of a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// A heading below the section's.
    Heading(String),
    /// A paragraph.
    Text(String),
    /// An option or another term, and its description.
    Entry(String, String),
    /// Lines that are shown as they are.
    Lines(String),
}

impl Section {
    /// A section with entries only.
    pub fn of_entries(
        title: impl Into<String>,
        entries: impl IntoIterator<Item = (impl Into<String>, impl Into<String>)>,
    ) -> Section {
        let block = |(term, text): (_, _)| Block::Entry(Into::into(term), Into::into(text));
        Section { title: title.into(), blocks: entries.into_iter().map(block).collect() }
    }
}

impl Page {
    /// The page of `command`, which must have been built. Its commands are described on the page,
    /// too.
    pub fn of(command: &clap::Command) -> Page {
        let name = command.get_bin_name().unwrap_or(command.get_name()).replace(' ', "-");
        let mut page = Page {
            name,
            about: about(command).trim_end_matches('.').to_owned(),
            synopsis: Vec::new(),
            sections: sections_of_arguments(command),
        };
        if !command.is_subcommand_required_set() {
            page.synopsis = usages(command);
        }
        let mut commands = Vec::new();
        for part in subcommands(command) {
            let usage = usages(part);
            commands.push(Block::Heading(usage.join("; ")));
            commands.push(Block::Text(about(part)));
            // The options of every part are in the command's own sections.
            let own = part.get_arguments().filter(|it| !it.is_global_set() && !is_help(it));
            commands.extend(own.filter_map(entry).map(|(term, text)| Block::Entry(term, text)));
            page.synopsis.extend(usage);
        }
        if !commands.is_empty() {
            page.sections.insert(0, Section { title: "Commands".into(), blocks: commands });
        }
        let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        page.sections.extend(after.split("\n\n").filter_map(section_of_paragraph));
        page
    }

    /// The page as man(7) source. `date` is that of the program, `version` its name and version.
    pub fn roff(&self, date: &str, version: &str) -> String {
        let title = self.name.to_uppercase();
        let mut roff = format!(
            ".TH \"{}\" 1 \"{date}\" \"{}\" \"User Commands\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n",
            escaped(&title),
            escaped(version),
            escaped(&self.name),
            text(&self.about),
        );
        let lines: Vec<String> = self.synopsis.iter().map(|line| term(line)).collect();
        roff += &(lines.join("\n.br\n") + "\n");
        for Section { title, blocks } in &self.sections {
            let _ = writeln!(roff, ".SH \"{}\"", escaped(&title.to_uppercase()));
            let mut follows_heading = true;
            for block in blocks {
                match block {
                    Block::Heading(title) => {
                        let _ = writeln!(roff, ".SS \"{}\"", escaped(title));
                    }
                    Block::Text(_) | Block::Lines(_) if !follows_heading => roff += ".PP\n",
                    _ => {}
                }
                match block {
                    Block::Heading(_) => {}
                    Block::Text(words) => roff += &(text(words) + "\n"),
                    Block::Entry(name, words) => {
                        let _ = writeln!(roff, ".TP\n{}\n{}", term(name), text(words));
                    }
                    Block::Lines(lines) => {
                        let lines: Vec<String> = lines.lines().map(line).collect();
                        let _ = writeln!(roff, ".nf\n{}\n.fi", lines.join("\n"));
                    }
                }
                follows_heading = matches!(block, Block::Heading(_));
            }
        }
        roff
    }
}

/// The words of the hidden command that writes pages, which packaging uses.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The directory to write to. It is created if it is missing.
    dir: PathBuf,
    /// The date of the program, such as 2026-01-31.
    date: String,
}

impl Arguments {
    /// Writes a page.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, page: &Page) -> anyhow::Result<()> {
        let path = self.dir.join(&page.name).with_extension("1");
        let version = concat!("sshoal ", env!("CARGO_PKG_VERSION"));
        let write = || {
            std::fs::create_dir_all(&self.dir)?;
            std::fs::write(&path, page.roff(&self.date, version))
        };
        Ok(write().or_problem(printable(&path))?)
    }
}

/// The commands of a command that its help lists, without the `help` that clap adds.
pub fn subcommands(command: &clap::Command) -> impl Iterator<Item = &clap::Command> {
    let is_own = |part: &&clap::Command| {
        part.get_name() != "help" || command.is_disable_help_subcommand_set()
    };
    command.get_subcommands().filter(|part| !part.is_hide_set()).filter(is_own)
}

/// The forms of the command line of a command that has been built.
pub fn usages(command: &clap::Command) -> Vec<String> {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.replace(['<', '>'], "");
    usage.trim_start_matches("Usage:").lines().map(|line| line.trim().to_owned()).collect()
}

/// The description of a command in a line.
pub fn about(command: &clap::Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

fn is_help(argument: &clap::Arg) -> bool {
    argument.get_id() == "help"
}

/// The arguments, and the options under their headings, in the order of definition.
fn sections_of_arguments(command: &clap::Command) -> Vec<Section> {
    let entries = |wanted: &dyn Fn(&&clap::Arg) -> bool| -> Vec<Block> {
        let wanted = command.get_arguments().filter(wanted).filter_map(entry);
        wanted.map(|(term, text)| Block::Entry(term, text)).collect()
    };
    let arguments = entries(&|it| it.is_positional());
    let mut options = entries(&|it| !it.is_positional() && it.get_help_heading().is_none());
    let mut headings: Vec<&str> = Vec::new();
    for heading in command.get_arguments().filter_map(clap::Arg::get_help_heading) {
        if !headings.contains(&heading) {
            headings.push(heading);
            options.push(Block::Heading(heading.to_owned()));
            options.extend(entries(&|it| it.get_help_heading() == Some(heading)));
        }
    }
    let sections = [("Arguments", arguments), ("Options", options)]
        .map(|(title, blocks)| Section { title: title.to_owned(), blocks });
    sections.into_iter().filter(|section| !section.blocks.is_empty()).collect()
}

/// The spellings of an argument with its values, and its description; `None` if it is hidden.
fn entry(argument: &clap::Arg) -> Option<(String, String)> {
    if argument.is_hide_set() {
        return None;
    }
    let names = [
        argument.get_short().map(|short| format!("-{short}")),
        argument.get_long().map(|long| format!("--{long}")),
    ];
    let values = argument.get_value_names().unwrap_or_default().join(" ");
    let takes_value = argument.get_action().takes_values();
    let value = Some(values).filter(|_| takes_value || argument.is_positional());
    let names: Vec<String> = names.into_iter().flatten().collect();
    let term: Vec<String> = Some(names.join(", ")).into_iter().chain(value).collect();
    let mut text = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let choices: Vec<String> = argument
        .get_possible_values()
        .iter()
        .filter(|choice| takes_value && !choice.is_hide_set())
        .map(|choice| match choice.get_help() {
            Some(help) => format!("{} ({help})", choice.get_name()),
            None => choice.get_name().to_owned(),
        })
        .collect();
    if !choices.is_empty() {
        let _ = write!(text, ". One of: {}", choices.join(", "));
    }
    let default: Vec<_> =
        argument.get_default_values().iter().filter_map(|it| it.to_str()).collect();
    if takes_value && !default.is_empty() {
        let _ = write!(text, " [default: {}]", default.join(","));
    }
    Some((term.join(" ").trim().to_owned(), text))
}

/// A paragraph after the help of a command: `Title: text`, or a line `Title:` and lines below it.
fn section_of_paragraph(paragraph: &str) -> Option<Section> {
    let (title, rest) = paragraph.split_once(':')?;
    let block = match rest.strip_prefix('\n') {
        Some(lines) => Block::Lines(lines.to_owned()),
        None => Block::Text(rest.trim().replace('\n', " ")),
    };
    Some(Section { title: title.to_owned(), blocks: vec![block] })
}

/// A term: bold, with the names of values, which are in capitals, in italics.
fn term(words: &str) -> String {
    let mut roff = String::new();
    let (mut before, mut font) = (' ', ' ');
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut rest = words;
    while let Some(first) = rest.chars().next() {
        let end = if is_part(first) { rest.find(|c| !is_part(c)) } else { rest.find(is_part) };
        let (part, after) = rest.split_at(end.unwrap_or(rest.len()));
        let is_value = is_part(first)
            && before != '-'
            && !part.contains(|c: char| c.is_ascii_lowercase())
            && part.contains(|c: char| c.is_ascii_uppercase())
            && !after.starts_with('-');
        let wanted = if is_value { 'I' } else { 'B' };
        if font != wanted {
            let _ = write!(roff, "\\f{wanted}");
            font = wanted;
        }
        roff += &escaped(part).replace('-', "\\-");
        before = part.chars().last().unwrap_or(' ');
        rest = after;
    }
    roff + "\\fR"
}

/// Filled text. A hyphen that begins a word belongs to an option or is an operator; it stays ASCII,
/// so that it can be searched and copied.
fn text(words: &str) -> String {
    // The limit of mandoc(1), which also wants each sentence to begin a line.
    const MAX_COLUMNS: usize = 80;
    let mut lines = vec![String::new()];
    for word in words.split_whitespace() {
        let opened = word.trim_start_matches(['(', '\'', '`', '[']);
        let is_option = opened.starts_with('-') || word.contains('/');
        let word = escaped(word);
        let word = if is_option { word.replace('-', "\\-") } else { word };
        let last = lines.last_mut().expect("there is a line");
        if last.is_empty() {
            *last = word;
        } else if last.ends_with('.') || last.len() + 1 + word.len() > MAX_COLUMNS - 2 {
            lines.push(word);
        } else {
            *last += " ";
            *last += &word;
        }
    }
    unable_to_be_a_request(&lines.join("\n"))
}

/// A line that is shown as it is.
fn line(words: &str) -> String {
    unable_to_be_a_request(&escaped(words).replace('-', "\\-"))
}

/// Escapes what roff or its fonts would change.
fn escaped(text: &str) -> String {
    let mut roff = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\\' => roff += "\\e",
            '"' => roff += "\\(dq",
            '\'' => roff += "\\(aq",
            '`' => roff += "\\(ga",
            '^' => roff += "\\(ha",
            '~' => roff += "\\(ti",
            '…' => roff += "...",
            char if char.is_ascii() => roff.push(char),
            char => {
                let _ = write!(roff, "\\[u{:04X}]", u32::from(char));
            }
        }
    }
    roff
}

/// Hides a dot at the beginning of a line from roff.
fn unable_to_be_a_request(lines: &str) -> String {
    let lines: Vec<String> = lines
        .lines()
        .map(|line| if line.starts_with('.') { format!("\\&{line}") } else { line.to_owned() })
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> clap::Command {
        let mut command = clap::Command::new("copy")
            .bin_name("sshoal copy")
            .about("Copy things.")
            .after_help("Examples:\n  copy 'a' .b\n  .c\n\nExit status: 0 success.\nOr 1.")
            .arg(clap::arg!(-t --tries <N> "Attempts, see /a-b").default_value("3"))
            .arg(clap::arg!(--secret "not shown").hide(true))
            .arg(clap::arg!(--how <HOW> "How").value_parser(["fast", "slow"]).help_heading("Ways"));
        command.build();
        command
    }

    #[test]
    fn a_page_is_made_of_the_definition() {
        let page = Page::of(&command());
        assert_eq!((&*page.name, &*page.about), ("sshoal-copy", "Copy things"));
        let roff = page.roff("2026-01-02", "sshoal 1.0");
        for part in [
            ".TH \"SSHOAL-COPY\" 1 \"2026-01-02\" \"sshoal 1.0\" \"User Commands\"\n",
            ".SH NAME\nsshoal-copy \\- Copy things\n",
            ".TP\n\\fB\\-t, \\-\\-tries \\fIN\\fR\nAttempts, see /a\\-b [default: 3]\n",
            ".SS \"Ways\"\n.TP\n",
            "One of: fast, slow\n",
            ".SH \"EXAMPLES\"\n.nf\n  copy \\(aqa\\(aq .b\n  .c\n.fi\n",
            ".SH \"EXIT STATUS\"\n0 success.\nOr 1.\n",
        ] {
            assert!(roff.contains(part), "{part} is not in\n{roff}");
        }
        assert!(!roff.contains("secret"), "{roff}");
    }

    #[test]
    fn the_commands_of_a_command_are_on_its_page() {
        let mut cache = clap::Command::new("cache")
            .bin_name("sshoal cache")
            .subcommand_required(true)
            .arg(clap::arg!(--json "Print JSON.").global(true))
            .subcommand(
                clap::Command::new("pin").about("Protect.").arg(clap::arg!(<PATH> "A file.")),
            );
        cache.build();
        let page = Page::of(&cache);
        assert_eq!(page.synopsis, ["sshoal cache pin [OPTIONS] PATH"]);
        let Section { title, blocks } = &page.sections[0];
        assert_eq!((&**title, blocks.len()), ("Commands", 3));
        assert_eq!(blocks[2], Block::Entry("PATH".into(), "A file.".into()));
        assert_eq!(page.sections.iter().filter(|it| it.title == "Options").count(), 1);
        let page = Page::of(&cache.subcommand_required(false));
        assert_eq!(page.synopsis.len(), 2, "{:?}", page.synopsis);
    }

    #[test]
    fn nothing_is_taken_for_a_request_or_an_escape() {
        assert_eq!(
            text(".TH is 'no' request. .So is \\this"),
            "\\&.TH is \\(aqno\\(aq request.\n\\&.So is \\ethis"
        );
        assert_eq!(line("  a-b ~ ü"), "  a\\-b \\(ti \\[u00FC]");
        assert_eq!(term("x=LIST"), "\\fBx=\\fILIST\\fR");
    }
}
