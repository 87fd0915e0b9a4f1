//! All subjects by name: the programs that they need, and how they are made.
//!
//! A list is parted by commas: `sshfs,rclone,floor`. `sshoal:OPTION,OPTION` is sshoal with mount
//! options; what follows it and is no subject's name is an option of it too.
//! `scp:ssh_command=PROGRAM` is a program that copies, by another ssh: HPN-SSH, say;
//! `scp:Compression=no` the same with an option of ssh.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::executor::Executor;
use crate::failure::Result;
use crate::server::Server;
use crate::subject::Subject;

use super::copiers::{self, Copying};
use super::local::Local;
use super::mounted::{Mounted, Sources};
use super::nfs::Nfs;
use super::peer::{Kind, Peer};
use super::programs::{FUSERMOUNT, GANESHA, Program, SSH, SSHFS, SSHFSM};

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

/// Among the options of this program: the helper serves, and for the second one data goes past ssh.
/// The program gets the options for that.
const BY_HELPER: &str = "served=helper";
const BY_DIRECT: &str = "served=direct";

/// Of the program: it uses no helper, not even one that it would find.
const WITHOUT_HELPER: &str = "helper=no";

/// As the comparison of network storages mounts; it takes its cipher from the command line, too.
const NAS: [&str; 4] =
    ["Ciphers=aes128-ctr", "Compression=no", "ServerAliveCountMax=2", "ServerAliveInterval=15"];
const NAS_CHACHA: [&str; 4] = ["Ciphers=chacha20-poly1305@openssh.com", NAS[1], NAS[2], NAS[3]];

/// Mount options.
type Options = &'static [&'static str];

/// What a subject is made of.
#[derive(Clone, Copy, Debug)]
enum Making {
    Sshoal(Sources, Options),
    Sshfs(Options),
    /// SSHFS-MUX.
    Sshfsm(Sources, Options),
    Local,
    Nfs,
    Peer(Kind),
}

impl Making {
    /// Programs that must be installed on this machine, that of the subject first.
    fn programs(self) -> &'static [&'static Program] {
        match self {
            Making::Sshoal(..) => &[&SSH],
            Making::Sshfs(_) => &[&SSHFS, &FUSERMOUNT, &SSH],
            // It brings libfuse 2, whose fusermount is another one.
            Making::Sshfsm(..) => &[&SSHFSM, &FUSERMOUNT, &SSH],
            Making::Local => &[],
            Making::Nfs => &[&GANESHA],
            Making::Peer(kind) => kind.programs(),
        }
    }
}

/// A subject with a name.
#[derive(Debug)]
struct Entry {
    name: &'static str,
    about: &'static str,
    making: Making,
    /// It is in `all`. One that is not is asked for by name, or by a group.
    in_all: bool,
}

const fn entry(name: &'static str, about: &'static str, making: Making) -> Entry {
    Entry { name, about, making, in_all: true }
}

const fn copy(name: &'static str, about: &'static str, copying: Copying) -> Entry {
    entry(name, about, Making::Peer(Kind::Copy(copying)))
}

const fn sshoal(name: &'static str, about: &'static str, options: Options) -> Entry {
    rarely(entry(name, about, Making::Sshoal(Sources::One, options)))
}

const fn sshoal_of(name: &'static str, about: &'static str, sources: Sources) -> Entry {
    rarely(entry(name, about, Making::Sshoal(sources, &[])))
}

const fn sshfs(name: &'static str, about: &'static str, options: Options) -> Entry {
    entry(name, about, Making::Sshfs(options))
}

const fn sshfsm(name: &'static str, about: &'static str, options: Options) -> Entry {
    rarely(entry(name, about, Making::Sshfsm(Sources::One, options)))
}

const fn rarely(entry: Entry) -> Entry {
    Entry { in_all: false, ..entry }
}

static ENTRIES: &[Entry] = &[
    sshoal("sshoal", "this program; sshoal:OPTION,OPTION with mount options", &[]),
    sshoal("sshoal:opt1", "this program with the options of sshfs:opt1", &OPT1),
    sshoal("sshoal:opt2", "this program with the options of sshfs:opt2", &OPT2),
    sshoal("sshoal:opt3", "this program with the options of sshfs:opt3", &OPT3),
    sshoal("sshoal:opt4", "this program with the options of sshfs:opt4", &OPT4),
    sshoal("sshoal-helper", "this program, served by its helper", &[BY_HELPER]),
    sshoal("sshoal-direct", "the same by direct connections, past ssh", &[BY_DIRECT]),
    sshoal_of("sshoal-union", "this program, the server merged with an empty one", Sources::Merged),
    sshoal_of("sshoal-places", "this program, two servers below names", Sources::Placed),
    sshoal_of("sshoal-pool", "this program, the server as two gateways", Sources::Pool),
    copy("sshoal-copy", "this program's pull and push", copiers::OWN),
    copy("sshoal-copy:tar", "the same, always in one stream by tar", copiers::OWN_TAR),
    copy("sshoal-copy:sftp", "the same, always over SFTP", copiers::OWN_SFTP),
    rarely(copy("sshoal-copy:plain", "the same, never compressed", copiers::OWN_PLAIN)),
    rarely(copy("sshoal-copy:two", "the same, over two links at once", copiers::OWN_TWO)),
    sshfs("sshfs", "sshfs as it is", &[]),
    sshfs("sshfs:aes", "sshfs by aes128-gcm", &[FASTEST]),
    sshfs("sshfs:opt1", "sshfs, pages kept, large requests, no compression, aes128-gcm", &OPT1),
    sshfs("sshfs:opt2", "as opt1 with larger TCP buffers; needs root, a private server", &OPT2),
    sshfs("sshfs:opt3", "as opt1 by ssh's own choice of cipher", &OPT3),
    sshfs("sshfs:opt4", "as opt3 with compression", &OPT4),
    rarely(sshfs("sshfs:chacha", "sshfs by chacha20-poly1305, as in nas", &NAS_CHACHA)),
    rarely(sshfs("sshfs:ctr", "sshfs by aes128-ctr, as in nas", &NAS)),
    entry("sshfsm", "SSHFS-MUX as it is", Making::Sshfsm(Sources::One, &[])),
    sshfsm("sshfsm:opt1", "SSHFS-MUX with the options of sshfs:opt1", &OPT1),
    sshfsm("sshfsm:opt2", "SSHFS-MUX with the options of sshfs:opt2", &OPT2),
    sshfsm("sshfsm:opt3", "SSHFS-MUX with the options of sshfs:opt3", &OPT3),
    sshfsm("sshfsm:opt4", "SSHFS-MUX with the options of sshfs:opt4", &OPT4),
    rarely(entry("sshfsm-union", "as sshoal-union", Making::Sshfsm(Sources::Merged, &[]))),
    entry("rclone", "rclone mount, all files cached on disk", Making::Peer(Kind::Rclone("full"))),
    entry("rclone:writes", "the same, only written files", Making::Peer(Kind::Rclone("writes"))),
    copy(
        "scp",
        "scp -r; as any copier over ssh, scp:ssh_command=PROGRAM, scp:Key=value",
        copiers::SCP,
    ),
    copy("hpnssh", "hpnscp -r, the scp of HPN-SSH", copiers::HPN),
    copy("bbcp", "bbcp: files only, connections of its own, not encrypted", copiers::BBCP),
    copy("sftp", "sftp's get -r and put -r", copiers::SFTP),
    copy("rsync", "rsync -a over ssh", copiers::RSYNC),
    rarely(copy("rsync:-W", "rsync -a -W over ssh: whole files", copiers::RSYNC_WHOLE)),
    copy("rsyncd", "rsync -a to its daemon, without ssh", copiers::RSYNCD),
    copy("tar", "tar | ssh tar", copiers::TAR),
    copy("ftp", "vsftpd and lftp, without ssh", copiers::FTP),
    entry("nfs-user", "NFSv4 without kernel client: nfs-ganesha, our own client", Making::Nfs),
    entry("local", "the local disk", Making::Local),
    copy("ssh-cat", "floor: ssh HOST cat", copiers::CAT),
    entry("sftp-raw", "floor: SFTP over ssh, no file system", Making::Peer(Kind::RawSftp)),
];

/// Names that stand for several, and those: names, or their beginnings with a `*` behind. What
/// `all`, `tuned` and `floor` are is a matter of [`members`].
const GROUPS: &[(&str, &str, &str)] = &[
    ("all", "every peer and the floor, each in its usual forms", ""),
    ("tuned", "sshfs as the published tables tune it", ""),
    ("floor", "ssh-cat and sftp-raw: what ssh itself does", ""),
    (
        "sshfs-iozone",
        "the comparison of NFS, sshfs and its tunings by iozone",
        "nfs-user,sshfs,sshfs:opt*,sshoal:opt*",
    ),
    (
        "mux-iozone",
        "the comparison of SSHFS-MUX and sshfs by iozone",
        "nfs-user,sshfs,sshfs:opt*,sshfsm,sshfsm*,sshoal-union,sshoal-places,sshoal-pool",
    ),
    (
        "copy-ciphers",
        "the comparison of programs that copy, by cipher",
        "scp:Compression=no,rsync,rsync:-W,rsyncd,ftp,tar,hpnssh,bbcp,sshoal-copy",
    ),
    (
        "large-build",
        "the comparison of builds on sshfs, tuned, and with a cache",
        "local,sshfs,sshfs:opt1,sshoal:cache=disk,sshoal:cache=disk,consistency=immutable,\
         sshoal:consistency=immutable,sshoal:served=helper,consistency=watch,sshoal-direct",
    ),
    (
        "nas",
        "the comparison of NFS, SMB and sshfs on a network storage",
        "nfs-user,sshfs,sshfs:chacha,sshfs:ctr,sshoal:Ciphers=aes128-ctr",
    ),
];

/// The subjects of a group; none if there is no such group.
fn members(group: &str) -> Vec<Spec> {
    let of = |wanted: &dyn Fn(&Entry) -> bool| {
        let entries = ENTRIES.iter().filter(|entry| wanted(entry));
        entries.map(|entry| Spec { entry, options: Vec::new() }).collect()
    };
    match group {
        "all" => of(&|entry| entry.in_all),
        "tuned" => of(&|entry| entry.in_all && entry.name.starts_with("sshfs:")),
        "floor" => of(&|entry| matches!(entry.making, Making::Peer(kind) if kind.is_floor())),
        _ => {
            let list = GROUPS.iter().find(|it| it.0 == group).map_or("", |it| it.2);
            let words = list.split(',').flat_map(|word| match word.strip_suffix('*') {
                Some(begin) => {
                    let names = ENTRIES.iter().map(|entry| entry.name);
                    names.filter(|name| name.starts_with(begin)).collect()
                }
                None => vec![word],
            });
            // A group has names of subjects only, which a test asserts.
            parse(&words.collect::<Vec<_>>().join(",")).unwrap_or_default()
        }
    }
}

/// A subject that was asked for, before there is a server.
#[derive(Clone, Debug)]
pub struct Spec {
    entry: &'static Entry,
    /// Of sshoal; of a program that copies, its ssh or an option of ssh.
    options: Vec<String>,
}

/// The option of programs that copy; all others are ssh's.
const SSH_COMMAND: &str = "ssh_command=";

/// A program that copies, and the option behind its name.
fn copier_by(word: &str) -> Option<Spec> {
    let (name, option) = word.rsplit_once(':')?;
    let (keyword, _) = option.split_once('=').filter(|(_, value)| !value.is_empty())?;
    let of_ssh = keyword.starts_with(|letter: char| letter.is_ascii_uppercase())
        && keyword.chars().all(|letter| letter.is_ascii_alphanumeric());
    let takes = |copying: Copying| {
        (copying.takes_options && of_ssh) || (copying.takes_ssh && option.starts_with(SSH_COMMAND))
    };
    let entry = ENTRIES.iter().find(|entry| {
        entry.name == name && matches!(entry.making, Making::Peer(Kind::Copy(it)) if takes(it))
    })?;
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
        } else if GROUPS.iter().any(|(name, ..)| *name == word) {
            specs.extend(members(word));
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
        matches!(self.entry.making, Making::Sshoal(..))
    }

    /// Whether it can be measured wherever anything can: this program with one source and the usual
    /// TCP settings. If it cannot, something is wrong with its options.
    pub fn is_required(&self) -> bool {
        let tunes_tcp = |options: &[&str]| options.contains(&TUNED_TCP);
        let tuned_by_user = self.options.iter().any(|option| option == TUNED_TCP);
        matches!(self.entry.making, Making::Sshoal(Sources::One, own) if !tunes_tcp(own))
            && !tuned_by_user
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
        let peer = |program: &Program, options: &[&str]| {
            let options = options.iter().map(|&option| option.to_owned()).collect();
            let remedy = Some(program.remedy());
            Mounted { remedy, ..mounted(program.name.into(), options) }
        };
        Ok(match self.entry.making {
            Making::Sshoal(sources, options) => {
                let given = options.iter().map(|&option| option.to_owned());
                let given: Vec<String> = given.chain(self.options.clone()).collect();
                let of_helper = |option: &String| {
                    ["served=", "helper=", "direct="].iter().any(|it| option.starts_with(it))
                };
                let mut options = Vec::new();
                // One that is installed would serve, unseen in the report.
                if !given.iter().any(of_helper) {
                    options.push(WITHOUT_HELPER.to_owned());
                }
                for option in given {
                    options.extend(served_by(option, setting)?);
                }
                let mounted = mounted(setting.sshoal.clone(), options);
                Box::new(Mounted { typed: Some("sshoal"), sources, ..mounted })
            }
            Making::Sshfs(options) => Box::new(peer(&SSHFS, options)),
            Making::Sshfsm(sources, options) => {
                Box::new(Mounted { sources, ..peer(&SSHFSM, options) })
            }
            Making::Local => Box::new(Local::new(name, setting.scratch.join("local"))?),
            Making::Nfs => Box::new(Nfs::new(name, setting.server.clone())),
            Making::Peer(kind) => {
                let (command, options): (Vec<&String>, Vec<&String>) =
                    self.options.iter().partition(|it| it.starts_with(SSH_COMMAND));
                let command = command.first().and_then(|it| it.strip_prefix(SSH_COMMAND));
                let ssh_command = command.map(PathBuf::from);
                let ssh_option = options.first().map(|&option| option.clone());
                Box::new(Peer { ssh_command, ssh_option, ..Peer::new(name, kind, setting) })
            }
        })
    }
}

/// The options of the program for one of this list.
fn served_by(option: String, setting: &Setting) -> Result<Vec<String>> {
    let is_direct = match option.as_str() {
        BY_HELPER => false,
        BY_DIRECT => true,
        _ => return Ok(vec![option]),
    };
    // A host has its own, or none.
    let helper = match setting.server.is_private() {
        true => format!("helper={}", helper(setting)?.display()),
        false => "helper=auto".to_owned(),
    };
    let mut options = vec![helper];
    if is_direct {
        options.push("direct=require".to_owned());
        options.extend(setting.server.direct_options());
    }
    Ok(options)
}

/// The helper of the private server: a copy of the program, since one at a usual path is hidden
/// from that server.
fn helper(setting: &Setting) -> Result<PathBuf> {
    let dir = setting.scratch.join("helper");
    let copy = dir.join("sshoal");
    if !copy.exists() {
        fs::create_dir_all(&dir)?;
        sandbox::copy_program(&setting.sshoal, &copy)?;
    }
    Ok(copy)
}

/// A program that copies by a script that the user has given: see the module `copiers`.
pub fn given(name: &str, script: &str, setting: &Setting) -> Box<dyn Subject> {
    let peer = Peer::new(name.to_owned(), Kind::Copy(copiers::GIVEN), setting);
    Box::new(Peer { script: script.to_owned(), ..peer })
}

/// One line of `--list`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// As it is asked for.
    pub name: &'static str,
    /// One line.
    pub about: &'static str,
    /// Version of what is installed, as far as it is known, or what is missing. Groups and the disk
    /// have no version.
    pub state: Result<String, Missing>,
}

/// A program that is not installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Of Debian, if that has it.
    pub package: Option<&'static str>,
    /// What to do.
    pub remedy: String,
}

/// All subjects and groups, in the order of reports.
pub fn list(executor: &Executor) -> Vec<Listed> {
    let entries = ENTRIES.iter().map(|entry| {
        let programs = entry.making.programs();
        let missing = programs.iter().find(|program| program.find().is_none());
        let state = match (missing, entry.making, programs.first()) {
            (Some(program), ..) => {
                Err(Missing { package: program.package.ok(), remedy: program.remedy() })
            }
            (None, Making::Sshoal(..), _) | (None, _, None) => Ok(String::new()),
            (None, _, Some(program)) => Ok(program.version(executor)),
        };
        Listed { name: entry.name, about: entry.about, state }
    });
    let groups =
        GROUPS.iter().map(|&(name, about, _)| Listed { name, about, state: Ok(String::new()) });
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
        for left_out in ["sshoal", "sshoal-copy:plain", "sshoal-union", "rsync:-W", "sshfs:ctr"] {
            assert!(!all.contains(&left_out.to_owned()), "{left_out}");
        }
        for member in ["sshoal-copy", "sshfs:opt1", "rsync", "nfs-user", "bbcp", "sftp-raw"] {
            assert!(all.contains(&member.to_owned()), "{member}");
        }
    }

    #[test]
    fn the_subjects_of_a_comparison_are_a_group() {
        for (group, ..) in GROUPS {
            assert!(names(group).len() > 1, "{group}");
        }
        let iozone = names("sshfs-iozone");
        assert_eq!(iozone[..3], ["nfs-user", "sshfs", "sshfs:opt1"]);
        for member in ["sshfs:opt2", "sshfs:opt4", "sshoal:opt2", "sshoal:opt4"] {
            assert!(iozone.contains(&member.to_owned()), "{member}");
        }
        assert_eq!(
            names("large-build,scp"),
            [
                "local",
                "sshfs",
                "sshfs:opt1",
                "sshoal:cache=disk",
                "sshoal:cache=disk,consistency=immutable",
                "sshoal:consistency=immutable",
                "sshoal:served=helper,consistency=watch",
                "sshoal-direct",
                "scp"
            ]
        );
        assert!(names("copy-ciphers").contains(&"scp:Compression=no".to_owned()));
        for member in ["nfs-user", "sshfsm:opt4"] {
            assert!(names("mux-iozone").contains(&member.to_owned()), "{member}");
        }
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
        assert!(!required("sshoal:opt2") && !required("sshoal-pool"));
        assert!(required("sshoal:ro") && !required("sshoal:ro,tcp=tuned") && !required("sshfs"));
        assert!(
            specs.iter().filter(|spec| spec.is_sshoal()).all(|spec| spec.entry.name == "sshoal")
        );
    }

    #[test]
    fn another_ssh_is_for_programs_that_copy() {
        let list = "scp:ssh_command=/opt/hpnssh,sshoal-copy:tar:ssh_command=hpnssh,rsync,\
                    scp:Compression=no,rsync:-W:Ciphers=aes128-ctr,hpnssh:Compression=no";
        assert_eq!(names(list), list.split(',').collect::<Vec<_>>());
        for wrong in [
            "rsyncd:ssh_command=hpnssh",
            "scp:ssh_command=",
            "scp:ssh_command=a,ro",
            "scp:Compression",
            "scp:-o=x",
            "hpnssh:ssh_command=ssh",
            "ftp:Compression=no",
        ] {
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
