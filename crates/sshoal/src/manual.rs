//! The manual: `sshoal.1`, which describes mounts, and a page for each other command.
//!
//! The pages are made from the tables that the parser uses. Only the prose of `sshoal.1` is here.

use std::process::ExitCode;

use cli::EXIT_OK;
use cli::manual::{Arguments, Block, Page, Section, subcommands, usages};

use crate::command::{described, descriptions};
use crate::companion;
use crate::mount::help;

const DESCRIPTION: &[&str] = &[
    "Mounts a remote directory over SSH. The server needs nothing but sshd with its SFTP subsystem. \
        The command line and the options are those of sshfs(1).",
    "A source is [user@]host:[dir]; an empty dir is the home directory. In full it is \
        [place=][user@]host[,host...]:[dir][=ro|nc|optional...]: several sources are shown as one \
        tree, a source with a place in that directory of it, and several hosts of one source are \
        gateways to the same directory. local:/path is a directory of this machine. With two \
        operands, the first one with a colon is the source; with more, the last one is the mount \
        point.",
    "The program connects, mounts, and then continues in the background. Until then ssh can ask for \
        passwords and host keys on the terminal.",
    "sshoal mount NAME mounts what the configuration file defines under that name, and sshoal mount \
        --all everything in it that is not mounted.",
    "`sshoal umount` waits until everything is written, which umount(8) and fusermount3(1) do not.",
    "Called as sshfs, the program has no commands and takes one source. Called as mount.sshoal or \
        mount.fuse.sshoal, it is a helper of mount(8) for the types sshoal and fuse.sshoal.",
];

const EXAMPLES: &str = "\
sshoal me@host:project ~/mnt
sshoal umount ~/mnt
sshoal host:/data mnt -o ro,consistency=immutable,cache=disk
sshoal alpha:/data beta:/data=ro mnt

A line of /etc/fstab, and a command to mount it:

me@host:project  /mnt/project  fuse.sshoal  noauto,_netdev,IdentityFile=/home/me/.ssh/id  0 0
mount /mnt/project";

const EXIT_STATUS: [(&str, &str); 2] = [
    ("0", "The mount serves requests; with -f, it was unmounted and everything was written."),
    ("1", "The command line is wrong, or the mount failed; standard error has the reason."),
];

const FILES: [(&str, &str); 5] = [
    ("/etc/sshoal/config.toml, ~/.config/sshoal/config.toml", "Mounts with a name."),
    ("~/.cache/sshoal", "The disk cache (cache=disk)."),
    (
        "/run/sshoal, $XDG_RUNTIME_DIR/sshoal, /tmp/sshoal-UID",
        "Records of running mounts: root's, a user's, and a user's without such a directory.",
    ),
    (
        "/usr/share/doc/sshoal, or share/doc/sshoal below the prefix",
        "The documents that help texts name, such as docs/options.md.",
    ),
    ("~/.ssh/config", "Configuration of ssh, which applies to mounts, too."),
];

/// Writes all pages but those of the commands of `sshoal-bench`, which writes them itself.
pub fn write(place: &Arguments) -> anyhow::Result<ExitCode> {
    pages().iter().try_for_each(|page| place.write(page))?;
    Ok(ExitCode::from(EXIT_OK))
}

fn pages() -> Vec<Page> {
    let commands = described();
    let own = subcommands(&commands)
        .filter(|command| command.get_name() != "mount" && !companion::has(command.get_name()));
    std::iter::once(main_page(&commands)).chain(own.map(Page::of)).collect()
}

fn main_page(commands: &clap::Command) -> Page {
    let mount = commands.find_subcommand("mount").expect("mount is a command");
    let mut synopsis = usages(mount);
    synopsis.push("sshoal COMMAND ...".to_owned());
    let text = |text: &&str| Block::Text((*text).to_owned());
    let section = |title: &str, blocks| Section { title: title.to_owned(), blocks };
    let mut sections = vec![
        section("Description", DESCRIPTION.iter().map(text).collect()),
        Section::of_entries("Commands", descriptions()),
        help::section(),
    ];
    let pages: Vec<String> = descriptions()
        .into_iter()
        .filter(|(name, _)| name != "mount")
        .map(|(name, _)| format!("sshoal-{name}(1)"))
        .collect();
    sections.extend([
        Section::of_entries("Exit status", EXIT_STATUS),
        Section::of_entries("Files", FILES),
        section("Examples", vec![Block::Lines(EXAMPLES.to_owned())]),
        section(
            "See also",
            vec![Block::Text(pages.join(", ") + ", sftp(1), ssh_config(5), mount(8)")],
        ),
    ]);
    Page {
        name: "sshoal".to_owned(),
        about: "mount remote directories over SSH".to_owned(),
        synopsis,
        sections,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::documentation_tests::spellings;

    fn terms(page: &Page) -> Vec<&str> {
        let blocks = page.sections.iter().flat_map(|section| &section.blocks);
        blocks
            .filter_map(|block| match block {
                Block::Entry(term, text) => {
                    assert!(!text.is_empty(), "{}: {term}", page.name);
                    Some(&**term)
                }
                _ => None,
            })
            .collect()
    }

    #[test]
    fn every_command_has_a_page_or_is_in_the_other_program() {
        let pages = pages();
        for (name, _) in descriptions() {
            let page = format!("sshoal-{name}");
            let elsewhere = name == "mount" || companion::has(&name);
            assert_eq!(elsewhere, !pages.iter().any(|it| it.name == page), "{name}");
            assert!(terms(&pages[0]).contains(&&*name), "{name}");
        }
    }

    #[test]
    fn every_mount_option_has_an_entry() {
        let pages = pages();
        let terms: Vec<&str> =
            terms(&pages[0]).into_iter().flat_map(|term| term.split(", ")).collect();
        for name in spellings() {
            let is_it = |term: &&str| term.split(['=', ' ', '[']).next() == Some(&name);
            assert!(terms.iter().any(is_it), "{name}");
        }
    }

    #[test]
    fn every_argument_of_a_command_has_an_entry() {
        fn check(page: &Page, command: &clap::Command) {
            for argument in command.get_arguments().filter(|it| !it.is_hide_set()) {
                let long = argument.get_long().map(|long| format!("--{long}"));
                let short = argument.get_short().map(|short| format!("-{short}"));
                let names = argument.get_value_names().unwrap_or_default().join(" ");
                let name = long.or(short).unwrap_or(names);
                let has = |term: &&str| term.split(' ').any(|word| word == name) || *term == name;
                assert!(terms(page).iter().any(has), "{}: {name}", page.name);
            }
            subcommands(command).for_each(|part| check(page, part));
        }
        let commands = described();
        let pages = pages();
        for page in &pages[1..] {
            let name = page.name.strip_prefix("sshoal-").unwrap();
            check(page, commands.find_subcommand(name).unwrap());
        }
    }
}
