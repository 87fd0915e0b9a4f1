//! Candidates for shells: `sshoal complete -- WORD...`, which the scripts in
//! `packaging/completions` run. What is specific to this program: mount options, hosts, names and
//! places of mounts.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Arg;
use cli::completion::{Answer, Paths, complete};
use control::record;

use crate::command::{described, descriptions};
use crate::companion;
use crate::config_file::{Configuration, Places};
use crate::mount::help;

/// Prints the candidates for the last word.
pub fn print(words: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let text: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    if text.len() > 1 && companion::has(&text[0]) {
        return Err(companion::run("complete", [vec!["--".into()], words].concat()).into());
    }
    let home = std::env::var_os("HOME").unwrap_or_default();
    let config = std::fs::read_to_string(Path::new(&home).join(".ssh/config")).unwrap_or_default();
    let takes_name = text.first().is_some_and(|word| word == "mount" || word == "unit");
    let answer = complete(&described(), &text, |argument, begun| {
        value(argument, begun, &config, takes_name)
    });
    cli::print(&answer.to_string())
}

/// The candidates for a value of `argument` that begins with `begun`.
fn value(argument: &Arg, begun: &str, ssh_config: &str, takes_name: bool) -> Option<Answer> {
    let name = argument.get_value_names().unwrap_or_default().join(" ");
    let answer = match (argument.get_id().as_str(), &*name) {
        ("options", _) | (_, "OPTION[,...]") => help::completed_options(begun),
        ("mountpoint", _) => {
            let served = record::served().into_iter();
            let places =
                served.filter_map(|mount| mount.mountpoint.into_os_string().into_string().ok());
            Answer { paths: Some(Paths::Directories), ..Answer::of_words(places) }
        }
        ("topic", _) => Answer { words: descriptions(), ..Answer::default() },
        ("name", _) => Answer::of_words(saved()),
        (_, "HOST") => after_user(begun, hosts(ssh_config)),
        ("operands", _) => Answer { paths: Some(Paths::Files), ..sources(begun, ssh_config) },
        ("source", _) => {
            let mut answer = sources(begun, ssh_config);
            if takes_name && answer.prefix.is_empty() {
                answer.words.extend(saved().into_iter().map(|name| (name, "a saved mount".into())));
            }
            answer
        }
        _ => return None,
    };
    Some(answer)
}

fn sources(begun: &str, ssh_config: &str) -> Answer {
    after_user(begun, hosts(ssh_config).map(|host| host + ":"))
}

/// Words after the user's name and an `@`, if there is one.
fn after_user(begun: &str, words: impl Iterator<Item = String>) -> Answer {
    let user = begun.rfind('@').map_or(0, |at| at + 1);
    Answer::of_words(words).after(&begun[..user])
}

/// The hosts that a configuration file of ssh names.
fn hosts(ssh_config: &str) -> impl Iterator<Item = String> {
    let words = ssh_config.lines().flat_map(|line| {
        let (keyword, hosts) = line.trim().split_once([' ', '\t', '=']).unwrap_or_default();
        let hosts = Some(hosts).filter(|_| keyword.eq_ignore_ascii_case("host"));
        hosts.unwrap_or_default().split_whitespace()
    });
    words.filter(|host| !host.contains(['*', '?', '!', '"', '='])).map(str::to_owned)
}

/// The names of mounts in the configuration file.
fn saved() -> Vec<String> {
    let configuration = Configuration::load(&Places::of_environment());
    configuration.map(|it| it.names().into_iter().map(str::to_owned).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "Host alpha beta !gamma *.example\n  HostName a.example\nhost\tgate\n";

    fn completed(line: &str) -> Vec<String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let answer =
            complete(&described(), &words, |argument, begun| value(argument, begun, CONFIG, false));
        let first = |line: &str| line.split('\t').next().unwrap_or_default().to_owned();
        answer.to_string().lines().map(first).collect()
    }

    #[test]
    fn sources_are_hosts_of_ssh() {
        assert_eq!(completed("al"), ["alpha:"]);
        assert_eq!(completed("me@b"), ["me@beta:"]);
        assert_eq!(completed("-J g"), ["gate"]);
        assert_eq!(completed("pull x: a"), ["alpha:", ":files "]);
        assert_eq!(completed("alpha: m"), [":directories "]);
    }

    #[test]
    fn mount_options_are_completed_in_lists() {
        assert_eq!(completed("alpha: mnt -o ro,allow_o"), ["ro,allow_other"]);
        assert_eq!(completed("mount alpha: mnt -oidmap=f"), ["-oidmap=file"]);
        assert_eq!(completed("alpha: mnt -o ro,log=/tm"), [":files ro,log="]);
        assert_eq!(completed("alpha: mnt -o ServerAliveI"), ["ServerAliveInterval="]);
        assert_eq!(completed("x: m -o ro,helper=i"), ["ro,helper=install"]);
        assert!(completed("x: m -o ").contains(&"cache=".to_owned()));
        assert!(!completed("x: m -o ").contains(&"iversion".to_owned()), "it has no effect");
    }

    #[test]
    fn flags_and_commands_are_completed() {
        assert_eq!(completed("um"), ["umount"]);
        assert_eq!(completed("cache p"), ["pin"]);
        assert_eq!(completed("helper install al"), ["alpha"]);
        assert_eq!(completed("--fore"), ["--foreground"]);
        assert_eq!(completed("help sta"), ["status", "stats"]);
        assert_eq!(completed("stats --pro"), ["--prometheus"]);
        assert_eq!(completed("pro"), ["profile"], "hidden commands are not shown");
    }
}
