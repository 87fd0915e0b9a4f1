//! The machine, or both machines: what a reader has to know to compare figures.

mod files;
mod programs;

use std::fs;
use std::path::Path;

use crate::executor::Executor;
use crate::results::Environment;
use crate::server::Server;

/// What is to be known of this machine and the server's. What cannot be found out is empty: no
/// run fails for it.
///
/// Versions are those of the programs that a run may use and that are installed; subjects add
/// their own.
#[must_use]
pub fn gather(scratch: &Path, server: &Server, executor: &Executor) -> Environment {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mounts = read("/proc/self/mountinfo");
    let kind = |path: &Path| {
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        files::kind_of_mount(&mounts, &path).unwrap_or("unknown").to_owned()
    };
    let here = kind(scratch);
    let there = match server.place().local() {
        Some(root) => kind(&root),
        None => programs::kind_at_server(server, executor),
    };
    let processor = read("/proc/cpuinfo");
    Environment {
        kernel: programs::first_line("uname", &["-srm"], executor),
        system: files::system(&read("/etc/os-release")),
        cpu: files::cpu_model(&processor),
        cpus: std::thread::available_parallelism()
            .map_or(0, |number| u32::try_from(number.get()).unwrap_or(u32::MAX)),
        cpu_flags: files::cpu_flags(&processor),
        memory_bytes: files::memory_bytes(&read("/proc/meminfo")),
        scratch: if here == there { here } else { format!("{here}; server: {there}") },
        server: programs::server(server, executor),
        versions: programs::versions(executor),
        load: files::load(&read("/proc/loadavg")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::LinkSpec;

    #[test]
    fn this_machine_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::private(&LinkSpec::loopback(), dir.path()).unwrap();
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
