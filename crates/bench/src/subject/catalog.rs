//! All subjects by name: the programs that they need, and how they are made.
//!
//! A list is parted by commas: `sshfs,rclone,floor`. `sshoal:OPTION,OPTION` is sshoal with mount
//! options; what follows it and is no subject's name is an option of it too. `scp:ssh_command=PROGRAM`
//! is a program that copies, by another ssh: HPN-SSH, say.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::executor::Executor;
use crate::failure::Result;
use crate::server::Server;
use crate::subject::Subject;

use super::copiers::{Manner, Tool};
use super::identity::Identity;
use super::local::Local;
use super::mounted::Mounted;
use super::peer::{Kind, Peer};
use super::programs::{FUSERMOUNT, Program, SSH, SSHFS};

/// The fastest cipher where the processor has AES.
const FASTEST: &str = "Ciphers=aes128-gcm@openssh.com";

/// What the published tables call OPT3: kept pages, no compression, the largest requests that
/// sshfs knows. OPT1 is the same with the fastest cipher, OPT2 that with TCP settings, OPT4 is OPT3
/// with compression.
const OPT3: [&str; 5] =
    ["kernel_cache", "auto_cache", "max_read=65536", "max_write=65536", "Compression=no"];
const OPT1: [&str; 6] = [OPT3[0], OPT3[1], OPT3[2], OPT3[3], OPT3[4], FASTEST];
const OPT2: [&str; 7] = [OPT1[0], OPT1[1], OPT1[2], OPT1[3], OPT1[4], OPT1[5], TUNED_TCP];
const OPT4: [&str; 5] = [OPT3[0], OPT3[1], OPT3[2], OPT3[3], "Compression=yes"];

/// Among the options of a mount: it reaches the server by TCP with other settings
/// ([`Server::tuned`]). The program does not see it.
const TUNED_TCP: &str = "tcp=tuned";

/// What a subject is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Making {
    Sshoal,
    /// With these mount options.
    Sshfs(&'static [&'static str]),
    Local,
    Peer(Kind),
}

impl Making {
    /// Programs that must be installed on this machine, that of the subject first.
    fn programs(self) -> &'static [&'static Program] {
        match self {
            Making::Sshoal => &[&SSH],
            Making::Sshfs(_) => &[&SSHFS, &FUSERMOUNT, &SSH],
            Making::Local => &[],
            Making::Peer(kind) => kind.programs(),
        }
    }
}

const fn copier(tool: Tool) -> Making {
    Making::Peer(Kind::Copier(tool))
}

/// A subject with a name.
#[derive(Debug)]
struct Entry {
    name: &'static str,
    about: &'static str,
    making: Making,
}

const fn entry(name: &'static str, about: &'static str, making: Making) -> Entry {
    Entry { name, about, making }
}

static ENTRIES: [Entry; 23] = [
    entry("sshoal", "this program; sshoal:OPTION,OPTION with mount options", Making::Sshoal),
    entry("sshoal-copy", "this program's pull and push", copier(Tool::Own(Manner::Auto))),
    entry(
        "sshoal-copy:tar",
        "the same, always in one stream by tar",
        copier(Tool::Own(Manner::Tar)),
    ),
    entry("sshoal-copy:sftp", "the same, always over SFTP", copier(Tool::Own(Manner::Sftp))),
    entry(
        "sshoal-copy:plain",
        "the same by its own choice, never compressed",
        copier(Tool::Own(Manner::Plain)),
    ),
    entry(
        "sshoal-copy:two",
        "the same by its own choice, over two links to the server at once",
        copier(Tool::Own(Manner::TwoWays)),
    ),
    entry("sshfs", "sshfs as it is", Making::Sshfs(&[])),
    entry("sshfs:aes", "sshfs by aes128-gcm", Making::Sshfs(&[FASTEST])),
    entry(
        "sshfs:opt1",
        "sshfs, kernel_cache, auto_cache, no compression, large requests, aes128-gcm",
        Making::Sshfs(&OPT1),
    ),
    entry(
        "sshfs:opt2",
        "as opt1 with larger TCP buffers on both sides; needs root and a private server",
        Making::Sshfs(&OPT2),
    ),
    entry("sshfs:opt3", "as opt1 by ssh's own choice of cipher", Making::Sshfs(&OPT3)),
    entry("sshfs:opt4", "as opt3 with compression", Making::Sshfs(&OPT4)),
    entry(
        "rclone",
        "rclone mount, all files cached on disk; acknowledges before it sends",
        Making::Peer(Kind::Rclone("full")),
    ),
    entry(
        "rclone:writes",
        "rclone mount, written files cached on disk",
        Making::Peer(Kind::Rclone("writes")),
    ),
    entry(
        "scp",
        "scp -r; scp:ssh_command=PROGRAM by another ssh, as any that copies",
        copier(Tool::Scp),
    ),
    entry("sftp", "sftp's get -r and put -r", copier(Tool::Sftp)),
    entry("rsync", "rsync -a over ssh", copier(Tool::Rsync)),
    entry("rsyncd", "rsync -a to its daemon, without ssh", Making::Peer(Kind::Rsyncd)),
    entry("tar", "tar | ssh tar", copier(Tool::Tar)),
    entry("ftp", "vsftpd and lftp, without ssh", Making::Peer(Kind::Ftp)),
    entry("local", "the local disk", Making::Local),
    entry("ssh-cat", "floor: ssh HOST cat", copier(Tool::Cat)),
    entry("sftp-raw", "floor: SFTP over ssh, no file system", Making::Peer(Kind::RawSftp)),
];

/// Names that stand for several.
const GROUPS: [(&str, &str); 3] = [
    ("all", "every peer, and the floor; not sshoal-copy:plain and :two"),
    ("tuned", "sshfs as the published tables tune it"),
    ("floor", "ssh-cat and sftp-raw: what ssh itself does"),
];

fn members(group: &str) -> Vec<&'static Entry> {
    let wanted = |entry: &&Entry| match group {
        // What two of its own manners gain is asked on a link that is made for it.
        "all" => {
            let left_out = [Manner::Plain, Manner::TwoWays].map(|it| copier(Tool::Own(it)));
            entry.making != Making::Sshoal && !left_out.contains(&entry.making)
        }
        "tuned" => entry.name.starts_with("sshfs:"),
        "floor" => matches!(entry.making, Making::Peer(kind) if kind.is_floor()),
        _ => false,
    };
    ENTRIES.iter().filter(wanted).collect()
}

/// A subject that was asked for, before there is a server.
#[derive(Clone, Debug)]
pub struct Spec {
    entry: &'static Entry,
    /// Of sshoal; of a program that copies, what it has for an ssh.
    options: Vec<String>,
}

/// The option of programs that copy.
const SSH_COMMAND: &str = "ssh_command=";

/// A program that copies, and the option behind its name.
fn copier_by(word: &str) -> Option<Spec> {
    let (name, option) = word.rsplit_once(':')?;
    let program = option.strip_prefix(SSH_COMMAND)?;
    let copies = |entry: &&Entry| {
        let is_copier =
            matches!(entry.making, Making::Peer(Kind::Copier(tool)) if tool != Tool::Cat);
        entry.name == name && is_copier
    };
    let entry = ENTRIES.iter().find(copies).filter(|_| !program.is_empty())?;
    Some(Spec { entry, options: vec![option.to_owned()] })
}

impl PartialEq for Spec {
    fn eq(&self, other: &Spec) -> bool {
        self.entry.name == other.entry.name && self.options == other.options
    }
}

/// A name that no subject has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no subject '{}'{hint}; --list shows all", name.escape_debug())]
pub struct Unknown {
    /// As it was given.
    pub name: String,
    /// ` (did you mean 'sshfs'?)`, or nothing.
    pub hint: String,
}

/// What subjects are made with.
#[derive(Clone)]
pub struct Setting {
    /// Which all of them but `local` use.
    pub server: Arc<Server>,
    /// This program.
    pub sshoal: PathBuf,
    /// A directory on the disk that `local` is to be.
    pub scratch: PathBuf,
    /// Longest time for a mount to stand: [`crate::subject::START_LIMIT`], or less.
    pub start_limit: Duration,
}

/// The subjects of a list, each once, in the list's order.
///
/// # Errors
/// The first name that is none.
pub fn parse(list: &str) -> Result<Vec<Spec>, Unknown> {
    let mut specs: Vec<Spec> = Vec::new();
    for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        if let Some(entry) = ENTRIES.iter().find(|entry| entry.name == word) {
            specs.push(Spec { entry, options: Vec::new() });
        } else if let Some(option) = word.strip_prefix("sshoal:").filter(|it| !it.is_empty()) {
            specs.push(Spec { entry: &ENTRIES[0], options: vec![option.to_owned()] });
        } else if let Some(copier) = copier_by(word) {
            specs.push(copier);
        } else if GROUPS.iter().any(|(name, _)| *name == word) {
            let of_group = members(word).into_iter();
            specs.extend(of_group.map(|entry| Spec { entry, options: Vec::new() }));
        } else if let Some(Spec { options, .. }) =
            specs.last_mut().filter(|spec| spec.is_sshoal() && !spec.options.is_empty())
        {
            options.push(word.to_owned());
        } else {
            return Err(unknown(word));
        }
    }
    let mut once: Vec<Spec> = Vec::new();
    for spec in specs {
        if !once.contains(&spec) {
            once.push(spec);
        }
    }
    Ok(once)
}

fn unknown(name: &str) -> Unknown {
    let names = ENTRIES.iter().map(|entry| entry.name).chain(GROUPS.iter().map(|group| group.0));
    let hint =
        nearest(name, names).map(|name| format!(" (did you mean '{name}'?)")).unwrap_or_default();
    Unknown { name: name.to_owned(), hint }
}

/// The name that a misspelled word most likely stands for: one slip in every three letters.
pub(crate) fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    names
        .map(|name| (strsim::damerau_levenshtein(word, name), name))
        .filter(|(slips, name)| *slips <= name.len().div_ceil(3))
        .min_by_key(|(slips, _)| *slips)
        .map(|(_, name)| name)
}

impl Spec {
    /// Its name in the report: `sshoal`, `sshoal:max_conns=1`, `sshfs:opt1`.
    pub fn name(&self) -> String {
        match self.options.as_slice() {
            [] => self.entry.name.to_owned(),
            options => format!("{}:{}", self.entry.name, options.join(",")),
        }
    }

    /// Whether it is this program rather than a peer.
    pub fn is_sshoal(&self) -> bool {
        self.entry.making == Making::Sshoal
    }

    /// Whether it can be measured wherever anything can: this program with the usual TCP settings. If
    /// it cannot, something is wrong with its options.
    pub fn is_required(&self) -> bool {
        self.is_sshoal() && !self.options.iter().any(|option| option == TUNED_TCP)
    }

    /// The subject itself.
    ///
    /// # Errors
    /// When its directory in the scratch directory cannot be made.
    pub fn make(&self, setting: &Setting) -> Result<Box<dyn Subject>> {
        let name = self.name();
        let mounted = |program: PathBuf, mut options: Vec<String>| {
            let given = options.len();
            options.retain(|option| option != TUNED_TCP);
            let tunes_tcp = options.len() < given;
            let words = options.into_iter().flat_map(|option| ["-o".to_owned(), option]).collect();
            let Setting { server, start_limit, .. } = setting.clone();
            let mounted = Mounted::new(self.name(), program, words, server, start_limit);
            Mounted { tunes_tcp, ..mounted }
        };
        Ok(match self.entry.making {
            Making::Sshoal => {
                let has = |begin: &str| self.options.iter().any(|it| it.starts_with(begin));
                // The user's own cache would have what an earlier run has read.
                let has_cache = has("cache=disk") && !has("cache_dir=");
                let mounted = mounted(setting.sshoal.clone(), self.options.clone());
                Box::new(Mounted { typed: Some("sshoal"), has_cache, ..mounted })
            }
            Making::Sshfs(options) => {
                let options = options.iter().map(|&option| option.to_owned()).collect();
                let package = Some(SSHFS.package);
                Box::new(Mounted { package, ..mounted("sshfs".into(), options) })
            }
            Making::Local => Box::new(Local::new(name, setting.scratch.join("local"))?),
            Making::Peer(kind) => {
                let option = self.options.iter().find_map(|it| it.strip_prefix(SSH_COMMAND));
                let (setting, identity) = (setting.clone(), Identity::default());
                let ssh_command = option.map(PathBuf::from);
                Box::new(Peer { name, kind, ssh_command, setting, identity })
            }
        })
    }
}

/// One line of `--list`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// As it is asked for.
    pub name: &'static str,
    /// One line.
    pub about: &'static str,
    /// Version of what is installed, as far as it is known, or the package to install. Groups and the
    /// disk have no version.
    pub state: Result<String, &'static str>,
}

/// All subjects and groups, in the order of reports.
pub fn list(executor: &Executor) -> Vec<Listed> {
    let entries = ENTRIES.iter().map(|entry| {
        let programs = entry.making.programs();
        let missing = programs.iter().find(|program| program.find().is_none());
        let state = match (missing, entry.making, programs.first()) {
            (Some(program), ..) => Err(program.package),
            (None, Making::Sshoal, _) | (None, _, None) => Ok(String::new()),
            (None, _, Some(program)) => Ok(program.version(executor)),
        };
        Listed { name: entry.name, about: entry.about, state }
    });
    let groups =
        GROUPS.iter().map(|&(name, about)| Listed { name, about, state: Ok(String::new()) });
    entries.chain(groups).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &str) -> Vec<String> {
        parse(list).unwrap().iter().map(Spec::name).collect()
    }

    #[test]
    fn lists_are_taken_apart() {
        assert_eq!(names("sshfs, rclone,,tar"), ["sshfs", "rclone", "tar"]);
        assert_eq!(names("floor"), ["ssh-cat", "sftp-raw"]);
        assert_eq!(names("sftp-raw,floor,sftp-raw"), ["sftp-raw", "ssh-cat"]);
        let tuned = ["sshfs:aes", "sshfs:opt1", "sshfs:opt2", "sshfs:opt3", "sshfs:opt4"];
        assert_eq!(names("tuned"), tuned);
        assert_eq!(names(""), [""; 0]);
        let all = names("all");
        let left_out = ["sshoal", "sshoal-copy:plain", "sshoal-copy:two"];
        assert_eq!(all.len(), ENTRIES.len() - left_out.len());
        assert!(left_out.iter().all(|name| !all.contains(&(*name).to_owned())));
    }

    #[test]
    fn options_follow_sshoal_until_the_next_name() {
        let list = "sshoal:max_conns=1,dcache_timeout=9,sshfs,sshoal,sshoal:ro";
        assert_eq!(
            names(list),
            ["sshoal:max_conns=1,dcache_timeout=9", "sshfs", "sshoal", "sshoal:ro"]
        );
        let specs = parse(list).unwrap();
        assert!(specs[0].is_sshoal() && !specs[1].is_sshoal());
        let required = |list: &str| parse(list).unwrap()[0].is_required();
        assert!(required("sshoal:ro") && !required("sshoal:ro,tcp=tuned") && !required("sshfs"));
        assert!(
            specs.iter().filter(|spec| spec.is_sshoal()).all(|spec| spec.entry.name == "sshoal")
        );
    }

    #[test]
    fn another_ssh_is_for_programs_that_copy() {
        let list = "scp:ssh_command=/opt/hpnssh,sshoal-copy:tar:ssh_command=hpnssh,rsync";
        assert_eq!(names(list), list.split(',').collect::<Vec<_>>());
        for wrong in ["rsyncd:ssh_command=hpnssh", "scp:ssh_command=", "scp:ssh_command=a,ro"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn unknown_names_are_refused_with_a_suggestion() {
        let message = |list: &str| parse(list).unwrap_err().to_string();
        assert_eq!(
            message("sshfs,rlcone"),
            "there is no subject 'rlcone' (did you mean 'rclone'?); --list shows all"
        );
        assert_eq!(
            message("sshfs:opt5"),
            "there is no subject 'sshfs:opt5' (did you mean 'sshfs:opt1'?); --list shows all"
        );
        assert_eq!(message("xyz\n"), "there is no subject 'xyz'; --list shows all");
        assert_eq!(
            message("sshoal:"),
            "there is no subject 'sshoal:' (did you mean 'sshoal'?); --list shows all"
        );
        assert_eq!(
            message("nothing-like-it"),
            "there is no subject 'nothing-like-it'; --list shows all"
        );
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = ENTRIES.iter().map(|entry| entry.name).collect();
        names.extend(GROUPS.iter().map(|group| group.0));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
