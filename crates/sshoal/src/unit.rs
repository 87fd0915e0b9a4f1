//! `sshoal unit`: prints units of systemd that mount a source or a mount of the configuration file,
//! for the system or for a user.
//!
//! A unit contains the name of a configured mount, not its definition: a change of the file needs
//! no new unit. The system's systemd has no home directory, so its units can name only what the
//! system's file defines.
//!
//! The system gets a `.mount` and an `.automount` unit, which mount(8) and its helper serve. The
//! manager of a user may not mount, so a user gets a service that runs the program.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use cli::{OrProblem, Problem, printable};

use crate::config_file::{Configuration, Places};
use crate::mount::command_line::{SavedMount, is_name};
use crate::mount::server_arguments::{flag_words, portable};
use crate::sources;
use control::inside::about;

/// The words of the command line.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// A source, or the name of a mount of the configuration file.
    #[arg(value_name = "SOURCE | NAME")]
    source: OsString,
    /// Where to mount it (default: as the configuration file says).
    #[arg(value_hint = clap::ValueHint::DirPath)]
    mountpoint: Option<PathBuf>,
    /// Mount options.
    #[arg(short = 'o', value_name = "OPTION[,...]")]
    options: Vec<OsString>,
    /// Make a service for the systemd of a user instead of units for the system.
    #[arg(long)]
    user: bool,
    /// Write the files into this directory instead of printing them. A different file is not
    /// replaced.
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    write: Option<PathBuf>,
}

/// One unit.
#[derive(Debug)]
struct Unit {
    name: String,
    text: String,
}

/// Prints or writes the units.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let units = units(arguments, &Places::of_environment())?;
    let Some(directory) = &arguments.write else {
        let text: Vec<String> =
            units.iter().map(|unit| format!("# {}\n{}", unit.name, unit.text)).collect();
        return cli::print(&text.join("\n"));
    };
    // First all checks, so that not only some are written.
    let missing = units
        .iter()
        .filter_map(|unit| is_missing(directory, unit).map(|yes| yes.then_some(unit)).transpose())
        .collect::<Result<Vec<&Unit>, Problem>>()?;
    for unit in missing {
        write(directory, unit)?;
    }
    let names = units.iter().map(|unit| format!("{}\n", printable(directory.join(&unit.name))));
    cli::print(&names.collect::<String>())
}

/// Whether the unit is to be written; `false` if the same one is there.
fn is_missing(directory: &Path, unit: &Unit) -> Result<bool, Problem> {
    let path = directory.join(&unit.name);
    match std::fs::read(&path) {
        Ok(there) if there == unit.text.as_bytes() => Ok(false),
        Ok(_) => Err(Problem::new(about(&path), "exists and is different; nothing was written")
            .hint("remove it, or choose another directory")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(Problem::new(about(&path), error.to_string())),
    }
}

fn write(directory: &Path, unit: &Unit) -> Result<(), Problem> {
    let path = directory.join(&unit.name);
    let written =
        OpenOptions::new().write(true).create_new(true).open(&path).and_then(|mut file| {
            let written = file.write_all(unit.text.as_bytes());
            // Half a unit could be taken for a whole one.
            written.inspect_err(|_| drop(std::fs::remove_file(&path)))
        });
    written.or_problem(about(&path))
}

fn units(arguments: &Arguments, places: &Places) -> Result<Vec<Unit>, Problem> {
    let mut words = flag_words(&[("-o", &arguments.options)]);
    words.extend(["--".into(), arguments.source.clone()]);
    words.extend(arguments.mountpoint.clone().map(OsString::from));
    let find = |name: &OsStr| match arguments.user {
        true => Configuration::load(places)?.find(name),
        false => find_in_system(places, name),
    };
    // Reports wrong options and sources as the mount would.
    let request = portable(words, Some(&find))?;
    let place = normal(&request.mountpoint)?;
    let source = text("source", &arguments.source)?;
    let options = arguments.options.iter().map(|option| text("options", option));
    let options = options.collect::<Result<Vec<String>, Problem>>()?.join(",");
    let name = escaped_path(&place);
    let place = text("mount point", place.as_os_str())?;
    if name.len() + ".automount".len() > 255 {
        return Err(Problem::new("mount point", "its path is too long for the name of a unit"));
    }
    if arguments.user {
        let text = service(&source, &place, &options)?;
        return Ok(vec![Unit { name: format!("sshoal-{name}.service"), text }]);
    }
    if sources::split_list(&arguments.source).len() != 1 {
        return Err(Problem::new(
            format!("source '{}'", printable(&arguments.source)),
            "mount(8) would read it as several sources, separated by spaces",
        )
        .hint(format!(
            "define it as [mount.NAME] in {}, and give this name",
            printable(&places.system)
        )));
    }
    Ok(vec![
        Unit { name: format!("{name}.mount"), text: mount_unit(&source, &place, &options, &name) },
        Unit { name: format!("{name}.automount"), text: automount_unit(&source, &place, &name) },
    ])
}

/// The mount with a name, as the system's systemd finds it.
fn find_in_system(places: &Places, name: &OsStr) -> Result<SavedMount, Problem> {
    let system = Places { user: None, home: None, ..places.clone() };
    Configuration::load(&system)?.find(name).map_err(|problem| {
        let is_of_user = Configuration::load(places).is_ok_and(|all| all.find(name).is_ok());
        match is_of_user {
            true => Problem::new(
                format!("mount '{}'", printable(name)),
                "defined for this user only",
            )
            .hint(format!(
                "--user makes a service for the systemd of this user; units for the system need \
                     the mount in {}, with no path that begins with ~",
                printable(&system.system)
            )),
            false => problem,
        }
    })
}

/// A mount point in a file that others read: absolute, without `.`, `..` and repeated slashes.
pub fn normal(path: &Path) -> Result<PathBuf, Problem> {
    let absolute = std::path::absolute(path).or_problem(about(path))?;
    if absolute.components().any(|part| part == Component::ParentDir) {
        return Err(Problem::new(about(path), "contains '..'"));
    }
    if absolute.parent().is_none() {
        return Err(Problem::new(about(path), "would hide all files of this machine"));
    }
    // `/a/` as `/a`.
    Ok(absolute.components().collect())
}

/// A value that can stand in a unit: text without control characters.
fn text(what: &str, value: &OsStr) -> Result<String, Problem> {
    let refused = |why| Problem::new(format!("{what} '{}'", printable(value)), why);
    let text = value.to_str().ok_or_else(|| refused("not valid UTF-8"))?;
    if text.chars().any(char::is_control) {
        return Err(refused("contains a control character, which a unit cannot contain"));
    }
    if text.ends_with('\\') || text.trim() != text {
        return Err(refused("begins or ends with a blank, or ends with a backslash"));
    }
    Ok(text.to_owned())
}

/// The name of the unit of a path, as systemd-escape(1) `--path` prints it.
fn escaped_path(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let bytes = bytes.strip_prefix(b"/").unwrap_or(bytes);
    let mut name = String::new();
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'/' => name.push('-'),
            b'.' if at == 0 => name.push_str("\\x2e"),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b':' | b'_' | b'.' => {
                name.push(char::from(*byte));
            }
            byte => {
                let _ = write!(name, "\\x{byte:02x}");
            }
        }
    }
    name
}

/// A value in which systemd expands specifiers.
fn value(text: &str) -> String {
    text.replace('%', "%%")
}

/// A word of a command line in a unit.
fn word(text: &str) -> String {
    let mut quoted = String::from("\"");
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            '%' | '$' => quoted.extend([char, char]),
            char => quoted.push(char),
        }
    }
    quoted + "\""
}

fn mount_unit(source: &str, place: &str, options: &str, name: &str) -> String {
    let comma = if options.is_empty() { "" } else { "," };
    // mount(8) would make a path of a bare name, if the root directory has a file of that name.
    let kind = if is_name(OsStr::new(source)) { "sshoal#" } else { "" };
    // In a shell, a backslash of the name needs quotes.
    format!(
        "# In /etc/systemd/system. root's ssh connects: root must have the host's key and a key for\n\
         # the login, or name it (IdentityFile=). Other users need -o allow_other.\n\
         #   systemctl daemon-reload\n\
         #   systemctl start '{name}.mount'              # now\n\
         #   systemctl enable --now '{name}.automount'   # at each first access\n\
         [Unit]\n\
         Description={what} at {place}\n\
         Wants=network-online.target\n\
         After=network-online.target\n\
         \n\
         [Mount]\n\
         What={kind}{what}\n\
         Where={place}\n\
         Type=fuse.sshoal\n\
         Options=_netdev{comma}{options}\n\
         TimeoutSec=90\n\
         \n\
         [Install]\n\
         WantedBy=remote-fs.target\n",
        what = value(source),
        place = value(place),
        options = value(options),
    )
}

fn automount_unit(source: &str, place: &str, name: &str) -> String {
    format!(
        "# In /etc/systemd/system, beside '{name}.mount': mounts at the first access, and unmounts when\n\
         # it was not used for ten minutes.\n\
         #   systemctl daemon-reload && systemctl enable --now '{name}.automount'\n\
         [Unit]\n\
         Description={} at {place}, when it is accessed\n\
         \n\
         [Automount]\n\
         Where={place}\n\
         TimeoutIdleSec=10min\n\
         \n\
         [Install]\n\
         WantedBy=remote-fs.target\n",
        value(source),
        place = value(place),
    )
}

fn service(source: &str, place: &str, options: &str) -> Result<String, Problem> {
    let program = std::env::current_exe()
        .or_problem("program")
        .and_then(|path| text("program", path.as_os_str()))?;
    let options = match options {
        "" => String::new(),
        options => format!(" -o {}", word(options)),
    };
    // Only after the command a word can be a name.
    let command = if is_name(OsStr::new(source)) { " mount" } else { "" };
    let name = escaped_path(Path::new(place));
    Ok(format!(
        "# In ~/.config/systemd/user. The directory {place} must exist.\n\
         #   systemctl --user daemon-reload\n\
         #   systemctl --user enable --now 'sshoal-{name}.service'\n\
         # There is no terminal: the login needs a key without a passphrase, or an agent that this\n\
         # systemd knows (systemctl --user import-environment SSH_AUTH_SOCK). A user's systemd does not\n\
         # know the network, so it tries again until the host is reachable.\n\
         [Unit]\n\
         Description={} at {}\n\
         \n\
         [Service]\n\
         Type=notify\n\
         ExecStart={}{command} -f{options} -- {} {}\n\
         # Only the mount's process gets SIGTERM: it needs its ssh processes to write what is left.\n\
         KillMode=mixed\n\
         TimeoutStartSec=90\n\
         Restart=on-failure\n\
         RestartSec=30\n\
         \n\
         [Install]\n\
         WantedBy=default.target\n",
        value(source),
        value(place),
        word(&program),
        word(source),
        word(place),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(source: &str, place: &str, options: &[&str], user: bool) -> Arguments {
        Arguments {
            source: source.into(),
            mountpoint: (!place.is_empty()).then(|| place.into()),
            options: options.iter().map(OsString::from).collect(),
            user,
            write: None,
        }
    }

    /// The units without a configuration file.
    fn units(arguments: &Arguments) -> Result<Vec<Unit>, Problem> {
        let places = Places { system: "/nonexistent".into(), user: None, home: None };
        super::units(arguments, &places)
    }

    #[test]
    fn a_configured_mount_is_named_in_its_units() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let system = "[mount.work]\nmountpoint = '/mnt/w x'\nsources = ['a:', 'b:']\noptions = ['ro']\n\
            [mount.bare]\nsources = 'a:'\n[mount.wrong]\nsources = 'a'\n";
        let user = "[mount.mine]\nmountpoint = '~/m'\nsources = 'a:'\n";
        let places = Places {
            system: file("system", system),
            user: Some(file("user", user)),
            home: Some("/home/ann".into()),
        };
        let units = |name: &str, place: &str, user| {
            let units = super::units(&arguments(name, place, &["rw"], user), &places);
            units.map_err(|problem| problem.to_string())
        };
        let two = units("work", "", false).unwrap();
        assert_eq!(two[0].name, "mnt-w\\x20x.mount");
        let text = "\nWhat=sshoal#work\nWhere=/mnt/w x\nType=fuse.sshoal\nOptions=_netdev,rw\n";
        assert!(two[0].text.contains(text), "{}", two[0].text);
        assert_eq!(units("bare", "/x", false).unwrap()[1].name, "x.automount");
        let service = units("mine", "", true).unwrap();
        let line = "\" mount -f -o \"rw\" -- \"mine\" \"/home/ann/m\"\n";
        assert!(service[0].text.contains(line), "{}", service[0].text);
        for (name, user, why) in [
            ("bare", false, "mount 'bare': has no mount point"),
            ("wrong", false, "contains no host"),
            ("wrok", true, "mount 'wrok': not in the configuration\n  did you mean 'work'?"),
            ("mine", false, "mount 'mine': defined for this user only\n  --user makes a service"),
        ] {
            let said = units(name, "", user).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn paths_are_escaped_as_systemd_escapes_them() {
        for (path, name) in [
            ("/mnt", "mnt"),
            ("/mnt/my-dir", "mnt-my\\x2ddir"),
            ("/.a/.b", "\\x2ea-.b"),
            ("/a b/ü%\\", "a\\x20b-\\xc3\\xbc\\x25\\x5c"),
            ("/x:y_z.0", "x:y_z.0"),
        ] {
            assert_eq!(escaped_path(Path::new(path)), name);
        }
    }

    #[test]
    fn values_are_literal_in_units() {
        let arguments = arguments("h:/a b%i", "/m/$x", &["ro", "uid=5"], false);
        let two = units(&arguments).unwrap();
        let names: Vec<&str> = two.iter().map(|unit| &*unit.name).collect();
        assert_eq!(names, ["m-\\x24x.mount", "m-\\x24x.automount"]);
        assert!(two[0].text.contains("\nWhat=h:/a b%%i\nWhere=/m/$x\n"), "{}", two[0].text);
        assert!(two[0].text.contains("\nOptions=_netdev,ro,uid=5\n"));
        let arguments = Arguments { user: true, ..arguments };
        let [unit] = &units(&arguments).unwrap()[..] else { panic!("one") };
        let line = "\" -f -o \"ro,uid=5\" -- \"h:/a b%%i\" \"/m/$$x\"\n";
        assert!(
            unit.name == "sshoal-m-\\x24x.service" && unit.text.contains(line),
            "{}",
            unit.text
        );
    }

    #[test]
    fn what_a_unit_cannot_contain_is_refused() {
        for (source, place, options, why) in [
            ("h:/a\nExecStart=x", "/m", "ro", "control character"),
            ("h:/a\\", "/m", "ro", "backslash"),
            ("h:/a", "/m/../x", "ro", "'..'"),
            ("h:/a", "/", "ro", "would hide all files"),
            ("h:/a", "/m", "rox", "no such option"),
            ("h:/a", "/m", "idmap=file,uidfile=ids", "options: contain a relative path"),
            ("h:/a", "/m", "IdentityFile=key", "options: contain a relative path"),
            ("-x", "/m", "ro", "source"),
            ("h:/My Docs a:b", "/m", "ro", "would read it as several sources"),
        ] {
            let said = units(&arguments(source, place, &[options], false));
            let said = said.unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
        // A service passes a source as one word.
        let service = units(&arguments("h:/My Docs a:b", "/m", &[], true)).unwrap();
        assert!(service[0].text.contains(" -- \"h:/My Docs a:b\" "), "{}", service[0].text);
        let options = "idmap=file,uidfile=/ids,IdentityFile=~/.ssh/key,log=journal";
        assert!(units(&arguments("h:/a", "m", &[options], false)).is_ok());
    }
}
