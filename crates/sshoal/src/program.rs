//! The name under which the program was started, and its effect.
//!
//! mount(8) runs `mount.TYPE` for the type in fstab, and `mount.fuse.sshfs` for `fuse.sshfs`, with
//! arguments of its own (`SOURCE DIR [-sfnv] [-o OPTIONS] [-t TYPE]`). Scripts run `sshfs`.

use std::ffi::OsStr;
use std::path::Path;

/// The name and the command line that it selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// The prefix of messages, and the file system's subtype.
    pub name: &'static str,
    /// The command line is that of a mount helper: `-f` is "fake" and `-s` is "sloppy".
    pub helper: bool,
}

impl Program {
    /// The only one that has commands.
    pub const SSHOAL: Program = Program { name: "sshoal", helper: false };

    /// Recognizes `argv[0]`; any other name is plain `sshoal`.
    pub fn from_argv0(argv0: Option<&OsStr>) -> Program {
        let name = argv0.and_then(|argv0| Path::new(argv0).file_name()).and_then(OsStr::to_str);
        let (name, helper) = match name.unwrap_or_default() {
            "sshfs" => ("sshfs", false),
            "mount.sshfs" | "mount.fuse.sshfs" => ("sshfs", true),
            "mount.sshoal" | "mount.fuse.sshoal" => ("sshoal", true),
            _ => ("sshoal", false),
        };
        Program { name, helper }
    }

    /// Whether the program behaves as sshfs.
    pub fn is_sshfs(self) -> bool {
        self.name == "sshfs"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_of_argv0_counts() {
        for (argv0, name, helper) in [
            ("sshoal", "sshoal", false),
            ("/usr/bin/sshfs", "sshfs", false),
            ("/sbin/mount.sshfs", "sshfs", true),
            ("mount.fuse.sshfs", "sshfs", true),
            ("/sbin/mount.sshoal", "sshoal", true),
            ("mount.fuse.sshoal", "sshoal", true),
            ("./target/debug/sshoal-1", "sshoal", false),
            ("", "sshoal", false),
        ] {
            assert_eq!(Program::from_argv0(Some(OsStr::new(argv0))), Program { name, helper });
        }
        assert_eq!(Program::from_argv0(None), Program { name: "sshoal", helper: false });
    }
}
