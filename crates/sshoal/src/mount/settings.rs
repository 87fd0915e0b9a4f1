//! Options that are changed while the file system is mounted: `sshoal set`, and `-o remount`.
//!
//! An added option has the effect that it would have had at the end of the mount's own options. The
//! [table](super::option_table) marks the options that can be changed; their effects are confined
//! to what [`Controlled`](crate::branch::change::Controlled) passes on to the layers.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cli::{EXIT_OK, Problem, printable};
use control::client::{ask_mount, mount_at, order};
use control::{Reply, Setting, Wish};
use mountinfo::Mount;
use rustix::mount::{MountFlags, mount_remount};
use vfs::Consistency;

use super::command_line::check_option_name;
use super::draft::Draft;
use super::option_string::{name_and_value, split};
use super::option_table::{self, quoted};
use super::request::MountRequest;
use crate::log::LogTarget;
use crate::program::Program;

/// Whether this is an option that the kernel changes.
fn is_access(option: &OsStr) -> bool {
    option == "ro" || option == "rw"
}

/// The words of the command line.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The mount point.
    mountpoint: PathBuf,
    /// Options to be changed; without any, the present values are printed.
    #[arg(value_name = "OPTION[=VALUE]")]
    options: Vec<OsString>,
}

/// Changes the options, or prints the present values.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { mountpoint, options } = arguments;
    if options.is_empty() {
        let settings = ask_mount(mountpoint, Wish::Settings, &mut |_| {}, |reply| match reply {
            Reply::Settings(settings) => Some(settings),
            _ => None,
        })?;
        let line = |setting: &Setting| match &*setting.value {
            "" => format!("{}\n", printable(&setting.name)),
            value => format!("{}={}\n", printable(&setting.name), printable(value)),
        };
        return cli::print(&settings.iter().map(line).collect::<String>());
    }
    let words = options.iter().flat_map(|list| split(list)).collect();
    request_change(mountpoint, words, false)?;
    Ok(ExitCode::from(EXIT_OK))
}

fn request_change(place: &Path, words: Vec<OsString>, is_remount: bool) -> Result<(), Problem> {
    let text = |word: OsString| {
        word.into_string().map_err(|word| Problem::new(quoted(&word), "not valid UTF-8"))
    };
    let options = words.into_iter().map(text).collect::<Result<_, _>>()?;
    order(place, Wish::Set { options, is_remount })
}

/// The words of a command line of mount: the options of all `-o`, the operands, and the other
/// flags.
#[derive(Default)]
struct Words {
    options: Vec<OsString>,
    operands: Vec<OsString>,
    flags: Vec<OsString>,
}

impl Words {
    /// `None` if the last word is `-o`.
    fn of(program: Program, words: impl IntoIterator<Item = OsString>) -> Option<Words> {
        let mut found = Words::default();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            match word.as_bytes() {
                b"-o" => found.options.extend(split(&words.next()?)),
                b"-t" if program.helper => drop(words.next()),
                [b'-', b'o', list @ ..] => found.options.extend(split(OsStr::from_bytes(list))),
                [b'-', ..] => found.flags.push(word),
                _ => found.operands.push(word),
            }
        }
        Some(found)
    }
}

/// Changes the options of a mount, if the words of a command line of mount contain `-o remount`.
pub fn remount(program: Program, words: &[OsString]) -> Option<Result<(), Problem>> {
    let words = Words::of(program, words.iter().cloned())?;
    let is_wanted = words.options.iter().any(|option| option == "remount");
    is_wanted.then(|| apply_remount(program, words))
}

fn apply_remount(program: Program, words: Words) -> Result<(), Problem> {
    let Words { mut options, operands, flags } = words;
    // Those of mount(8) that concern the command and not the mount.
    let harmless =
        |flag: &OsString| program.helper && ["-n", "-v", "-s"].iter().any(|it| flag == it);
    if let Some(flag) = flags.iter().find(|flag| !harmless(flag)) {
        let what = format!("flag '{}'", printable(flag));
        return Err(Problem::new(what, "cannot be changed; needs a new mount"));
    }
    let Some(place) = operands.last().map(Path::new) else {
        return Err(Problem::new("mount point", "missing")
            .hint(format!("usage: {} -o remount,OPTION=VALUE MOUNTPOINT", program.name)));
    };
    let mount = mount_at(place)?;
    let access = options.iter().rfind(|option| is_access(option)).cloned();
    // mount(8) adds what the kernel shows, and that stays as it is.
    let shown: Vec<OsString> = split(&mount.options);
    options.retain(|option| option != "remount" && !shown.contains(option) && !is_access(option));
    let access = access.filter(|access| (access == "ro") != mount.is_read_only());
    options.extend(access.clone());
    request_change(place, options, true)?;
    access.map_or(Ok(()), |access| change_access(&mount, &access))
}

/// The flags that a remount removes from a mount unless it names them, by their names in the mount
/// table. Those for access times stay if none of them is named.
const FLAGS: [(&str, MountFlags); 7] = [
    ("nosuid", MountFlags::NOSUID),
    ("nodev", MountFlags::NODEV),
    ("noexec", MountFlags::NOEXEC),
    ("nosymfollow", MountFlags::NOSYMFOLLOW),
    ("sync", MountFlags::SYNCHRONOUS),
    ("dirsync", MountFlags::DIRSYNC),
    ("lazytime", MountFlags::LAZYTIME),
];

/// Makes the kernel refuse changes (`ro`) or accept them. All other flags of the mount stay as they
/// are. mount(8) would take them from fstab, which does not name this program's defaults.
fn change_access(mount: &Mount, access: &OsStr) -> Result<(), Problem> {
    let present = split(&mount.options);
    let kept = FLAGS.iter().filter(|(name, _)| present.iter().any(|option| option == name));
    let mut flags = kept.fold(MountFlags::empty(), |flags, (_, flag)| flags | *flag);
    flags.set(MountFlags::RDONLY, access == "ro");
    mount_remount(&mount.mountpoint, flags, "")
        .map_err(|why| Problem::new(quoted(access), format!("not changed: {why}")))
}

/// The options that can be changed, with their values in `request`.
pub fn present(request: &MountRequest) -> Vec<Setting> {
    let setting = |option: &option_table::MountOption| {
        let value = option.change?(request)?;
        Some(Setting { name: option.name.to_owned(), value })
    };
    option_table::all().filter_map(setting).collect()
}

/// `request` with these options changed. Nothing is changed if one of them cannot be.
pub fn changed(
    request: &MountRequest,
    options: &[String],
    is_remount: bool,
) -> Result<MountRequest, Problem> {
    let given = match is_remount {
        true => Words::of(Program::SSHOAL, std::env::args_os().skip(1)).unwrap_or_default().options,
        false => Vec::new(),
    };
    let mut draft = Draft::resumed(request.clone());
    for word in options {
        let word = OsStr::new(word);
        let (name, value) = name_and_value(word);
        let option = option_table::find(name);
        if is_remount && is_access(word) {
            // A mount that was made read-only relies on it.
            if word == "rw" && request.mount.read_only {
                return Err(fixed(word));
            }
        } else if let Some(option) = option.filter(|option| option.change.is_some()) {
            option.apply(&mut draft, value).map_err(|why| Problem::new(quoted(word), why))?;
        } else if is_remount
            && (given.iter().any(|it| it == word) || option.is_some_and(|it| it.is_ignored()))
        {
            // It stays as it is.
        } else {
            check_option_name(&name.to_string_lossy())?;
            return Err(fixed(word));
        }
    }
    let changed = draft.finish_resumed()?;
    check(request, &changed)?;
    Ok(changed)
}

fn fixed(word: &OsStr) -> Problem {
    Problem::new(quoted(word), "needs a new mount")
        .hint("`sshoal set MOUNTPOINT` lists the options that can be changed")
}

/// Whether time-outs differ, also those of the kernel.
pub fn times_differ(before: &MountRequest, after: &MountRequest) -> bool {
    let times = |it: &MountRequest| (it.times.clone(), it.vfs.kernel_entry, it.vfs.kernel_attr);
    times(before) != times(after)
}

/// Refuses changes that would have no effect, or that a running mount cannot make.
fn check(before: &MountRequest, after: &MountRequest) -> Result<(), Problem> {
    let mode = after.vfs.consistency;
    let are_fixed = matches!(mode, Consistency::Strict | Consistency::Immutable);
    if times_differ(before, after) && (after.times.is_off || are_fixed) {
        let why = "have no effect with consistency=strict, consistency=immutable and cache=no; \
            needs a new mount";
        return Err(Problem::new("time-outs", why));
    }
    let has_log = after.run.foreground || after.run.log != LogTarget::None;
    if before.run.log_level() != after.run.log_level() && !has_log {
        return Err(Problem::new("option 'log_level'", "needs a new mount")
            .hint("the messages of this mount go nowhere; mount with log=FILE"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::option_tests::whole_request as request;
    use crate::mount::request::LogLevel;
    use std::time::Duration;
    use testkit::own_process::is_inside;
    use vfs::Timeout;

    fn set(before: &MountRequest, options: &[&str]) -> Result<MountRequest, String> {
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        changed(before, &options, false).map_err(|problem| problem.to_string())
    }

    #[test]
    fn options_are_changed_as_if_they_had_been_given_last() {
        let before = request(&["h:", "/m", "-f", "-o", "acregmax=50,soft=5"]);
        let after = set(&before, &["acregmin=30", "hard", "dirty_bytes=2000000"]).unwrap();
        let wanted = "acregmax=50,soft=5,acregmin=30,hard,dirty_bytes=2000000";
        let wanted = request(&["h:", "/m", "-f", "-o", wanted]);
        assert_eq!(after, wanted);
        let again = set(&after, &["dcache_timeout=7", "log_level=debug"]).unwrap();
        assert_eq!(again.vfs.files, Timeout::fixed(Duration::from_secs(7)));
        assert_eq!(again.run.log_level(), LogLevel::Debug);
        let values = present(&again);
        let value = |name: &str| values.iter().find(|it| it.name == name).map(|it| &*it.value);
        assert_eq!((value("acregmin"), value("hard"), value("soft")), (Some("7"), Some(""), None));
        assert_eq!(value("prefetch"), Some("all"));
    }

    #[test]
    fn each_time_out_is_known_to_be_one() {
        let before = request(&["h:", "/m", "-f", "-o", "max_conns=2,prefetch=all"]);
        let differ = |option| times_differ(&before, &set(&before, &[option]).unwrap());
        for option in ["acregmax=5", "attr_timeout=5", "entry_timeout=5", "negative_timeout=5"] {
            assert!(differ(option), "{option}");
        }
        for option in ["max_conns=3", "soft=5", "prefetch=none"] {
            assert!(!differ(option), "{option}");
        }
    }

    /// What is printed can be given back, and changes nothing.
    #[test]
    fn present_values_are_valid_words() {
        let before = request(&["h:", "/m", "-f", "-o", "cache=disk,cache_size=1G,stale=ok"]);
        let words: Vec<String> =
            present(&before)
                .into_iter()
                .map(|it| {
                    if it.value.is_empty() { it.name } else { format!("{}={}", it.name, it.value) }
                })
                .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert!(words.contains(&"cache_size=1073741824"), "{words:?}");
        let mut after = set(&before, &words).unwrap();
        (after.times, after.run.log_level) = (before.times.clone(), None);
        assert_eq!(after, before);
    }

    #[test]
    fn what_cannot_be_changed_is_refused_by_name() {
        let plain = request(&["h:", "/m"]);
        for option in ["ro", "idmap=user", "direct=yes", "Ciphers=x", "consistency=strict"] {
            let said = set(&plain, &["acregmax=5", option]).unwrap_err();
            let name = option.split('=').next().unwrap();
            assert!(said.contains("needs a new mount") && said.contains(name), "{said}");
        }
        for (option, why) in [
            ("acregmaxx=5", "did you mean 'acregmax'?"),
            ("acregmax=x", "needs a number of seconds"),
            ("acregmin=100,acregmax=5", "needs a number"),
            ("max_conns=65", "max_conns"),
            ("cache_size=1G", "cache=disk"),
        ] {
            let said = set(&plain, &[option]).unwrap_err();
            assert!(said.contains(why), "{option}: {said}");
        }
        let said = set(&plain, &["acregmin=100", "acregmax=5"]).unwrap_err();
        assert!(said.contains("minimum is greater"), "{said}");
        let silent = request(&["h:", "/m", "-o", "log=none"]);
        assert!(set(&silent, &["log_level=debug"]).unwrap_err().contains("needs a new mount"));
        let passive = request(&["h:", "/m", "-o", "passive"]);
        assert!(set(&passive, &["max_conns=2"]).unwrap_err().contains("'passive' and 'max_conns'"));
        let strict = request(&["h:", "/m", "-o", "consistency=strict"]);
        let off = request(&["h:", "/m", "-o", "cache=no"]);
        for (before, option) in [
            (&strict, "acregmax=5"),
            (&strict, "attr_timeout=5"),
            (&off, "entry_timeout=5"),
            (&off, "negative_timeout=5"),
        ] {
            let said = set(before, &[option]).unwrap_err();
            assert!(said.contains("no effect"), "{option}: {said}");
        }
    }

    #[test]
    fn a_remount_is_recognized() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let helper = Program { name: "sshoal", helper: true };
        let own = Program { name: "sshoal", helper: false };
        assert!(remount(own, &words(&["h:", "/m", "-o", "ro"])).is_none());
        let said = |program, list: &[&str]| {
            remount(program, &words(list)).unwrap().unwrap_err().to_string()
        };
        assert!(said(own, &["-oremount,x", "/proc"]).contains("not a mount of sshoal"));
        assert!(said(helper, &["h:", "/proc", "-n", "-o", "remount"]).contains("of type proc"));
        assert!(said(own, &["-p22", "-o", "remount", "/proc"]).contains("flag '-p22'"));
        assert!(said(own, &["-o", "remount"]).contains("missing"));
        let given = words(&["h:", "/m", "-o", "a,b=-o", "-oc", "-f"]);
        assert_eq!(Words::of(own, given).unwrap().options, ["a", "b=-o", "c"]);
    }

    #[test]
    fn a_mount_keeps_its_other_flags_when_it_becomes_read_only_and_writable() {
        let name = "a_mount_keeps_its_other_flags_when_it_becomes_read_only_and_writable";
        let test = format!("mount::settings::tests::{name}");
        if !is_inside(sandbox::namespace::command(), &test) {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let others = FLAGS.iter().fold(MountFlags::NOATIME, |flags, (_, flag)| flags | *flag);
        for flags in [MountFlags::NOSUID | MountFlags::NODEV, others] {
            rustix::mount::mount("tmpfs", dir.path(), "tmpfs", flags, None).unwrap();
            let mount = || mountinfo::find(dir.path()).unwrap().unwrap();
            let before = mount();
            for (access, is_read_only) in [("ro", true), ("rw", false)] {
                change_access(&mount(), OsStr::new(access)).unwrap();
                assert_eq!(mount().is_read_only(), is_read_only);
            }
            assert_eq!(mount(), before);
            rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::empty()).unwrap();
        }
    }
}
