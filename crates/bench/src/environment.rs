//! The machine, or both machines: the facts that a reader needs to compare figures.

use std::fs;
use std::path::Path;
use std::time::Duration;

use procfs::{Current, Meminfo};

use crate::executor::{Executor, find_program, last_words};
use crate::mount_table;
use crate::quoting::shell_quoted;
use crate::results::Environment;
use crate::server::{Handshake, Server};
use crate::subject;

/// Longest time for one query.
const LIMIT: Duration = Duration::from_secs(30);

/// Flags of a processor that matter to ciphers, digests and copying: of x86, then of ARM.
const FLAGS: &str = "hypervisor aes vaes pclmulqdq vpclmulqdq sse4_2 avx avx2 avx512f sha_ni bmi2 \
    erms fsrm pmull sha1 sha2 sve asimd";

/// Arguments that print a version, and the programs that have it of those that a run may use.
const PROGRAMS: [(&str, &str); 3] = [
    ("-V", "ssh sshfs fusermount3 ip"),
    ("version", "rclone"),
    ("--version", "rsync lftp fio tar find grep make gcc"),
];

/// Describes this machine and the server's. What cannot be found out is empty, and fails no run.
///
/// Versions are those of the installed programs that a run may use; subjects add their own.
pub fn gather(scratch: &Path, server: &Server, executor: &Executor) -> Environment {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mounts = mountinfo::all().unwrap_or_default();
    let kind = |path: &Path| {
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        mount_table::holding(&mounts, &path)
            .map_or_else(|| "unknown".to_owned(), |it| it.kind.to_string_lossy().into_owned())
    };
    let here = kind(scratch);
    let there = match server.storage().local() {
        Some(root) => kind(&root),
        None => kind_at_server(server, executor),
    };
    let load = read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned();
    let (processor, uname) = (read("/proc/cpuinfo"), rustix::system::uname());
    Environment {
        kernel: format!(
            "{} {} {}",
            uname.sysname().to_string_lossy(),
            uname.release().to_string_lossy(),
            uname.machine().to_string_lossy()
        ),
        system: system(&read("/etc/os-release")),
        cpu: cpu_model(&processor),
        cpus: std::thread::available_parallelism()
            .map_or(0, |number| u32::try_from(number.get()).unwrap_or(u32::MAX)),
        cpu_flags: flags_of(&processor),
        memory_bytes: Meminfo::current().map_or(0, |memory| memory.mem_total),
        scratch: if here == there { here } else { format!("{here}; server: {there}") },
        server: server_version(server, executor),
        versions: versions(executor),
        load: load.parse().unwrap_or(0.0),
    }
}

/// The flags of this machine's processor that matter.
pub(crate) fn cpu_flags() -> Vec<String> {
    flags_of(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
}

/// The distribution's own name of itself (os-release(5)).
fn system(os_release: &str) -> String {
    let value = |key: &str| {
        let values =
            os_release.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        values.map(|value| value.trim_matches(['"', '\'']).to_owned()).next()
    };
    value("PRETTY_NAME").or_else(|| value("NAME")).unwrap_or_default()
}

/// The first processor's name.
fn cpu_model(cpuinfo: &str) -> String {
    let names = ["model name", "Model", "cpu model", "Processor"];
    names.iter().find_map(|name| field(cpuinfo, name)).unwrap_or_default().to_owned()
}

/// The flags in [`FLAGS`].
fn flags_of(cpuinfo: &str) -> Vec<String> {
    let flags = field(cpuinfo, "flags").or_else(|| field(cpuinfo, "Features")).unwrap_or_default();
    let all: Vec<&str> = flags.split_ascii_whitespace().collect();
    FLAGS.split(' ').filter(|flag| all.contains(flag)).map(str::to_owned).collect()
}

/// The value of the first line `key : value`.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim())
}

/// The versions of the installed programs.
fn versions(executor: &Executor) -> Vec<(String, String)> {
    let programs = PROGRAMS
        .iter()
        .flat_map(|(argument, names)| names.split(' ').map(move |name| (name, *argument)));
    let installed = programs.filter_map(|(name, argument)| {
        let program = find_program(name)?;
        Some((name.to_owned(), subject::version(&program, argument, executor)))
    });
    installed.filter(|(_, version)| !version.is_empty()).collect()
}

/// The version of the server's sshd, and its kernel: `OpenSSH_9.2p1 …; Linux …`.
fn server_version(server: &Server, executor: &Executor) -> String {
    let mut ssh = server.ssh(None);
    ssh.args(["-v", "uname -srm"]).env("LC_ALL", "C");
    let Ok(ran) = executor.succeed(ssh, LIMIT) else { return String::new() };
    let version = Handshake::parse(&String::from_utf8_lossy(&ran.output.stderr)).version;
    // The login may print lines before it.
    let kernel = last_words(ran.output.stdout.trim_ascii());
    let kernel = kernel.lines().next_back().unwrap_or_default().to_owned();
    [version, kernel].into_iter().filter(|it| !it.is_empty()).collect::<Vec<_>>().join("; ")
}

/// The kind of file system under the run's directory on a host.
fn kind_at_server(server: &Server, executor: &Executor) -> String {
    let mut command = server.ssh(None);
    let root = shell_quoted(server.storage().root().as_os_str());
    let mut line = std::ffi::OsString::from("LC_ALL=C df -PT -- ");
    line.push(root);
    command.arg(line);
    let said = executor.succeed(command, LIMIT).map(|ran| ran.output.stdout).unwrap_or_default();
    let said = String::from_utf8_lossy(&said).into_owned();
    let kind = said.lines().next_back().and_then(|line| line.split_ascii_whitespace().nth(1));
    kind.map_or_else(|| "unknown".to_owned(), |kind| last_words(kind.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::LinkSpec;

    #[test]
    fn machines_describe_themselves() {
        let x86 = "processor\t: 0\nmodel name\t: A CPU @ 2.00GHz\nflags\t\t: fpu aes avx2 sha_ni\n\
            \nprocessor\t: 1\nmodel name\t: Another\n";
        assert_eq!(cpu_model(x86), "A CPU @ 2.00GHz");
        assert_eq!(flags_of(x86), ["aes", "avx2", "sha_ni"]);
        let arm =
            "processor\t: 0\nFeatures\t: fp asimd aes pmull sha1 sha2\n\nModel\t\t: A Board\n";
        assert_eq!(cpu_model(arm), "A Board");
        assert_eq!(flags_of(arm), ["aes", "pmull", "sha1", "sha2", "asimd"]);
        assert_eq!((cpu_model(""), flags_of("").len()), (String::new(), 0));
        let release = "NAME=\"Debian GNU/Linux\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n";
        assert_eq!(system(release), "Debian GNU/Linux 12 (bookworm)");
        assert_eq!(system("NAME=Void\n"), "Void");
    }

    #[test]
    fn this_machine_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::private(&LinkSpec::loopback(), Vec::new(), dir.path()).unwrap();
        let environment = gather(dir.path(), &server, &Executor::new());
        assert!(environment.kernel.starts_with("Linux "), "{environment:?}");
        assert!(environment.cpus > 0 && environment.memory_bytes > 1 << 20, "{environment:?}");
        assert!(environment.server.starts_with("OpenSSH_"), "{environment:?}");
        assert!(environment.server.contains("Linux "), "{environment:?}");
        assert!(!environment.scratch.contains("unknown"), "{environment:?}");
        let version = |wanted| {
            let mut versions = environment.versions.iter();
            versions.find(|(name, _)| name == wanted).map(|(_, version)| version.as_str())
        };
        assert!(version("ssh").unwrap().starts_with("OpenSSH_"), "{environment:?}");
        // It lets fusermount3 speak first.
        assert!(version("sshfs").unwrap().starts_with("SSHFS version"), "{environment:?}");
    }
}
