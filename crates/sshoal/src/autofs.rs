//! `sshoal autofs`: prints a map of autofs(5), by which a host is mounted when its name is
//! accessed.
//!
//! The map is a script, which automount(8) runs with the name as its argument. A name that could be
//! anything but that of a host has no entry. What is in the map is made here, once; the script does
//! not run this program.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cli::{OrProblem, Problem, printable};
use nix::unistd::User;

use crate::mount::server_arguments::{flag_words, portable};
use crate::unit;

/// The words of the command line.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The directory in which the hosts appear.
    #[arg(long, value_name = "DIR", default_value = "/ssh")]
    at: PathBuf,
    /// The file of the map.
    #[arg(long, value_name = "FILE", default_value = "/etc/auto.ssh")]
    map: PathBuf,
    /// Unmount a host that was not used for this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u32,
    /// Mount the home directory of the login instead of `/`.
    #[arg(long)]
    home: bool,
    /// Log in with the ssh configuration and keys of this user, who owns all files.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Mount options.
    #[arg(short = 'o', value_name = "OPTION[,...]")]
    options: Vec<String>,
    /// Print the line for auto.master(5) instead of the map.
    #[arg(long)]
    master: bool,
}

/// Prints the map, or the line of the master map.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let master = master(arguments)?;
    let map = map(arguments, &master)?;
    cli::print(if arguments.master { &master } else { &map })
}

fn master(arguments: &Arguments) -> Result<String, Problem> {
    let at = plain_path("--at", &arguments.at)?;
    unit::normal(&arguments.at)?;
    let map = plain_path("--map", &arguments.map)?;
    Ok(format!("{at} program:{map} --timeout={}\n", arguments.timeout))
}

/// A path that needs no quotes in a map.
fn plain_path<'a>(what: &str, path: &'a Path) -> Result<&'a str, Problem> {
    let text = path.to_str().filter(|text| text.starts_with('/') && text.chars().all(is_plain));
    text.ok_or_else(|| {
        Problem::new(
            format!("{what} '{}'", printable(path)),
            "not an absolute path of plain letters",
        )
    })
}

/// Whether a character means itself in a map and in a script.
fn is_plain(char: char) -> bool {
    char.is_ascii_alphanumeric() || "_.,/=:@%+~^-".contains(char)
}

fn map(arguments: &Arguments, master: &str) -> Result<String, Problem> {
    let mut options = Vec::new();
    if let Some(user) = &arguments.user {
        options.push(of_user(user)?);
    }
    check(&arguments.options)?;
    options.extend(arguments.options.iter().filter(|option| !option.is_empty()).cloned());
    let options: String = options.iter().map(|option| format!(",{option}")).collect();
    // automount removes one level of backslashes when it expands the entry, and one when it reads
    // it.
    let options = options.replace('\\', "\\\\\\\\");
    let (directory, shown) = if arguments.home { ("", "the home directory") } else { ("/", "/") };
    let (at, file) = (arguments.at.display(), arguments.map.display());
    Ok(format!(
        "#!/bin/sh\n\
         # A map for autofs(5): {at}/HOST is {shown} of HOST, mounted at the first access.\n\
         # This is {file}, with mode 755. The line for /etc/auto.master.d/ssh.autofs:\n\
         #   {master}\
         # then: systemctl reload autofs\n\
         LC_ALL=C\n\
         case $1 in\n\
         # Nothing but names of hosts: no options, users, ports or commands.\n\
         '' | [!A-Za-z0-9]* | *[!A-Za-z0-9._-]*) exit 1 ;;\n\
         esac\n\
         printf '%s\\n' '-fstype=fuse.sshoal{options} :'\"$1\"'\\:{directory}'\n"
    ))
}

/// The options of a mount with the ssh of a user. `runuser` starts it, so that all files and keys
/// are those of the user.
fn of_user(name: &str) -> Result<String, Problem> {
    let what = || format!("user '{}'", printable(name));
    let is_valid = name.chars().all(|char| char.is_ascii_alphanumeric() || "_.-".contains(char));
    if name.starts_with('-') || !is_valid {
        return Err(Problem::new(what(), "not a valid name"));
    }
    let user = User::from_name(name).or_problem(what())?;
    let User { uid, gid, .. } = user.ok_or_else(|| Problem::new(what(), "no such user"))?;
    // A blank would end the options.
    let command = ["/sbin/runuser", "-u", name, "--", "ssh"].join("\\040");
    Ok(format!("ssh_command={command},uid={uid},gid={gid},allow_other"))
}

/// Refuses options that a mount would refuse, and those that a map cannot contain.
fn check(options: &[String]) -> Result<(), Problem> {
    for option in options {
        if let Some(char) = option.chars().find(|char| !is_plain(*char)) {
            let what = format!("option '{}'", printable(option));
            return Err(Problem::new(what, format!("contains '{}'", printable(char.to_string())))
                .hint("a map cannot contain it; write it into a configuration file of ssh"));
        }
    }
    let options: Vec<OsString> = options.iter().map(OsString::from).collect();
    let mut words = flag_words(&[("-o", &options)]);
    words.extend(["--", "host:", "/"].map(OsString::from));
    portable(words, None).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn arguments(options: &[&str]) -> Arguments {
        Arguments {
            at: "/ssh".into(),
            map: "/etc/auto.ssh".into(),
            timeout: 300,
            home: false,
            user: None,
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            master: false,
        }
    }

    fn entry(arguments: &Arguments, key: &str) -> (bool, String) {
        let map = map(arguments, &master(arguments).unwrap()).unwrap();
        let output = Command::new("sh").args(["-c", &map, "auto.ssh", key]).output().unwrap();
        assert!(output.stderr.is_empty(), "{output:?}");
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    }

    /// Class of attack: the name is chosen by any local user who accesses the directory.
    #[test]
    fn a_key_that_is_no_host_has_no_entry() {
        let plain = arguments(&["ro"]);
        let wanted = "-fstype=fuse.sshoal,ro :my-host.example\\:/\n".to_owned();
        assert_eq!(entry(&plain, "my-host.example"), (true, wanted));
        for key in [
            "",
            "-oProxyCommand=x",
            "-",
            ".",
            "..",
            ".git",
            "a/b",
            "a b",
            "a\tb",
            "a\nb",
            "u@h",
            "h:",
            "h,g",
            "*",
            "a*",
            "&",
            "$HOST",
            "`id`",
            "a;b",
            "a'b",
            "a\"b",
            "a\\b",
            "ä",
            "[::1]",
            "h#x",
        ] {
            assert_eq!(entry(&plain, key), (false, String::new()), "{key:?}");
        }
        let home = Arguments { home: true, ..arguments(&[]) };
        assert_eq!(entry(&home, "h"), (true, "-fstype=fuse.sshoal :h\\:\n".to_owned()));
        let root = Arguments { user: Some("root".to_owned()), ..arguments(&[]) };
        let wanted = "-fstype=fuse.sshoal,ssh_command=/sbin/runuser\\\\\\\\040-u\\\\\\\\040root\\\\\\\\040--\\\\\\\\040ssh,\
            uid=0,gid=0,allow_other :h\\:/\n";
        assert_eq!(entry(&root, "h"), (true, wanted.to_owned()));
    }

    #[test]
    fn what_a_map_cannot_contain_is_refused() {
        let said = |arguments: &Arguments| {
            let map = master(arguments).and_then(|master| map(arguments, &master));
            map.unwrap_err().to_string()
        };
        assert!(said(&arguments(&["log=/a b"])).contains("contains ' '"));
        assert!(said(&arguments(&["log='x"])).contains("contains '''"));
        assert!(said(&arguments(&["rox"])).contains("no such option"));
        assert!(said(&arguments(&["log=file"])).contains("contain a relative path"));
        assert!(said(&arguments(&["idmap=file", "gidfile=ids"])).contains("relative path"));
        assert!(map(&arguments(&["idmap=file", "gidfile=/ids"]), "").is_ok());
        let at = |at: &str| Arguments { at: at.into(), ..arguments(&[]) };
        assert!(said(&at("ssh")).contains("--at 'ssh'"));
        assert!(said(&at("/s\nh")).contains("absolute path"));
        assert!(said(&at("/")).contains("would hide all files"));
        assert!(said(&at("//")).contains("would hide all files"));
        assert!(said(&at("/x/..")).contains("'/x/..': contains '..'"));
        assert!(!map(&arguments(&[""]), "").unwrap().contains("sshoal,"));
        let user = |name: &str| Arguments { user: Some(name.to_owned()), ..arguments(&[]) };
        assert!(said(&user("-x")).contains("not a valid name"));
        assert!(said(&user("no-such-user")).contains("user 'no-such-user': no such user"));
    }
}
