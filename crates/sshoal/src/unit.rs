//! `sshoal unit`: prints units of systemd that mount a source, for the system or for a user.
//!
//! The system gets a `.mount` and an `.automount` unit, which mount(8) and its helper serve. The manager
//! of a user may not mount, so a user gets a service that runs the program.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use cli::{OrProblem, Problem, printable};

use crate::mount::server_arguments::{flag_words, request};
use crate::program::Program;
use control::inside::about;

/// The words of the command line.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// What to mount, as for `sshoal mount`.
    #[arg(value_name = "SOURCE")]
    source: OsString,
    /// Where to mount it.
    #[arg(value_hint = clap::ValueHint::DirPath)]
    mountpoint: PathBuf,
    /// Mount options.
    #[arg(short = 'o', value_name = "OPTION[,...]")]
    options: Vec<OsString>,
    /// Make a service for the systemd of a user instead of units for the system.
    #[arg(long)]
    user: bool,
    /// Write the files into this directory instead of printing them. A different file is not replaced.
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
pub fn run(program: Program, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let units = units(program, arguments)?;
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

fn units(program: Program, arguments: &Arguments) -> Result<Vec<Unit>, Problem> {
    let place = normal(&arguments.mountpoint)?;
    // Reports wrong options and sources as the mount would.
    request(program, flag_words(&[("-o", &arguments.options)]), &arguments.source, &place)?;
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
    Ok(vec![
        Unit { name: format!("{name}.mount"), text: mount_unit(&source, &place, &options, &name) },
        Unit { name: format!("{name}.automount"), text: automount_unit(&source, &place, &name) },
    ])
}

/// The mount point as systemd wants it: absolute, without `.`, `..` and repeated slashes.
fn normal(path: &Path) -> Result<PathBuf, Problem> {
    let absolute = std::path::absolute(path).or_problem(about(path))?;
    if absolute.components().any(|part| part == Component::ParentDir) {
        return Err(Problem::new(about(path), "contains '..', which systemd does not accept"));
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
    if bytes.is_empty() {
        return "-".to_owned();
    }
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
         What={what}\n\
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
         ExecStart={} -f{options} -- {} {}\n\
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

    const SSHOAL: Program = Program { name: "sshoal", helper: false };

    fn arguments(source: &str, place: &str, options: &[&str], user: bool) -> Arguments {
        Arguments {
            source: source.into(),
            mountpoint: place.into(),
            options: options.iter().map(OsString::from).collect(),
            user,
            write: None,
        }
    }

    #[test]
    fn paths_are_escaped_as_systemd_escapes_them() {
        for (path, name) in [
            ("/", "-"),
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
        let units = units(SSHOAL, &arguments).unwrap();
        let names: Vec<&str> = units.iter().map(|unit| &*unit.name).collect();
        assert_eq!(names, ["m-\\x24x.mount", "m-\\x24x.automount"]);
        assert!(units[0].text.contains("\nWhat=h:/a b%%i\nWhere=/m/$x\n"), "{}", units[0].text);
        assert!(units[0].text.contains("\nOptions=_netdev,ro,uid=5\n"));
        let arguments = Arguments { user: true, ..arguments };
        let [unit] = &super::units(SSHOAL, &arguments).unwrap()[..] else { panic!("one") };
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
            ("h:/a", "/m", "rox", "no such option"),
            ("-x", "/m", "ro", "source"),
        ] {
            let said = units(SSHOAL, &arguments(source, place, &[options], false));
            let said = said.unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
    }
}
