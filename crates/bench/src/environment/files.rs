//! Files that describe a machine, parsed. Pure.

use std::path::{Path, PathBuf};

/// Of what a processor can do, what matters to ciphers, digests and copying.
const FLAGS: [&str; 18] = [
    "hypervisor",
    "aes",
    "vaes",
    "pclmulqdq",
    "vpclmulqdq",
    "sse4_2",
    "avx",
    "avx2",
    "avx512f",
    "sha_ni",
    "bmi2",
    "erms",
    "fsrm", // x86
    "pmull",
    "sha1",
    "sha2",
    "sve",
    "asimd", // ARM
];

/// The distribution's own name of itself (os-release(5)).
pub(super) fn system(os_release: &str) -> String {
    let value = |key: &str| {
        let values =
            os_release.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        values.map(|value| value.trim_matches(['"', '\'']).to_owned()).next()
    };
    value("PRETTY_NAME").or_else(|| value("NAME")).unwrap_or_default()
}

/// The first processor's name.
pub(super) fn cpu_model(cpuinfo: &str) -> String {
    let names = ["model name", "Model", "cpu model", "Processor"];
    names.iter().find_map(|name| field(cpuinfo, name)).unwrap_or_default().to_owned()
}

/// Those of its flags that matter.
pub(super) fn cpu_flags(cpuinfo: &str) -> Vec<String> {
    let flags = field(cpuinfo, "flags").or_else(|| field(cpuinfo, "Features")).unwrap_or_default();
    let all: Vec<&str> = flags.split_ascii_whitespace().collect();
    FLAGS.iter().filter(|flag| all.contains(flag)).map(|&flag| flag.to_owned()).collect()
}

/// All memory of the machine (proc_meminfo(5)).
pub(super) fn memory_bytes(meminfo: &str) -> u64 {
    let kib = field(meminfo, "MemTotal").and_then(|value| value.split(' ').next()?.parse().ok());
    kib.map_or(0, |kib: u64| kib.saturating_mul(1024))
}

/// The load average of the last minute.
pub(super) fn load(loadavg: &str) -> f64 {
    loadavg.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0.0)
}

/// The value of the first line `key : value`.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim())
}

/// The kind of file system under a path: that of the deepest mount above it, and of several at
/// one place the last one (proc_pid_mountinfo(5)).
pub(super) fn kind_of_mount<'a>(mountinfo: &'a str, path: &Path) -> Option<&'a str> {
    let mut found: Option<(PathBuf, &str)> = None;
    for line in mountinfo.lines() {
        let mut fields = line.split(' ');
        let at = fields.nth(4).map(unescape);
        let kind = fields.find(|field| *field == "-").and_then(|_| fields.next());
        let Some((at, kind)) = at.zip(kind).filter(|(at, _)| path.starts_with(at)) else {
            continue;
        };
        if found.as_ref().is_none_or(|(before, _)| at.starts_with(before)) {
            found = Some((at, kind));
        }
    }
    found.map(|(_, kind)| kind)
}

/// `\040` and the like become what they stand for; they are the only ones there are.
fn unescape(field: &str) -> PathBuf {
    let plain = field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n");
    plain.replace("\\134", "\\").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_describe_themselves() {
        let x86 = "processor\t: 0\nmodel name\t: A CPU @ 2.00GHz\nflags\t\t: fpu aes avx2 sha_ni\n\
            \nprocessor\t: 1\nmodel name\t: Another\n";
        assert_eq!(cpu_model(x86), "A CPU @ 2.00GHz");
        assert_eq!(cpu_flags(x86), ["aes", "avx2", "sha_ni"]);
        let arm =
            "processor\t: 0\nFeatures\t: fp asimd aes pmull sha1 sha2\n\nModel\t\t: A Board\n";
        assert_eq!(cpu_model(arm), "A Board");
        assert_eq!(cpu_flags(arm), ["aes", "pmull", "sha1", "sha2", "asimd"]);
        assert_eq!((cpu_model(""), cpu_flags("").len()), (String::new(), 0));
        assert_eq!(memory_bytes("MemFree: 1 kB\nMemTotal:       1024 kB\n"), 1 << 20);
        assert_eq!(memory_bytes("nonsense"), 0);
        assert_eq!(load("0.62 0.41 0.31 1/90 123\n"), 0.62);
        let release = "NAME=\"Debian GNU/Linux\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n";
        assert_eq!(system(release), "Debian GNU/Linux 12 (bookworm)");
        assert_eq!(system("NAME=Void\n"), "Void");
    }

    #[test]
    fn the_deepest_and_last_mount_counts() {
        let table = "1 0 8:1 / / rw shared:1 - ext4 /dev/a rw\n\
            2 1 0:2 / /tmp rw - tmpfs tmpfs rw\n\
            3 1 0:3 / /with\\040space rw shared:2 master:1 - xfs /dev/b rw\n\
            4 1 0:4 / /tmp rw - btrfs /dev/c rw\n";
        let kind = |path: &str| kind_of_mount(table, Path::new(path));
        assert_eq!(kind("/home/x"), Some("ext4"));
        assert_eq!(kind("/tmp/x"), Some("btrfs"));
        assert_eq!(kind("/tmpx"), Some("ext4"));
        assert_eq!(kind("/with space/a"), Some("xfs"));
        assert_eq!(kind_of_mount("", Path::new("/")), None);
    }
}
