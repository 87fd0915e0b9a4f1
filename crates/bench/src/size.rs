//! The quantities of all workloads at each scale.

use std::path::PathBuf;

/// Scales of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Under two minutes for one peer.
    Quick,
    /// Enough to trust: some minutes a subject.
    Normal,
    /// As published.
    Full,
}

impl Scale {
    /// As the command line has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Scale::Quick => "quick",
            Scale::Normal => "normal",
            Scale::Full => "full",
        }
    }
}

/// Quantities of all workloads.
#[derive(Clone, Debug, PartialEq)]
pub struct Size {
    /// Where they come from.
    pub scale: Scale,
    /// Of the file that is read and written in sequence, and copied.
    pub file_bytes: u64,
    /// Of the file in which random places are read and written, by a reader that waits for each.
    pub random_file_bytes: u64,
    /// How long a random test runs.
    pub random_seconds: f64,
    /// Files of the made tree (sizes as in a source tree).
    pub tree_files: u32,
    /// Files created, looked at and removed by `metadata`.
    pub metadata_files: u32,
    /// Single operations timed by `latency`, of each kind.
    pub latency_operations: u32,
    /// Ciphers by which the large file is copied.
    pub ciphers: Vec<String>,
    /// The user's own tree, in place of the made one.
    pub tree_source: Option<PathBuf>,
    /// The user's own sources, in place of those that `build` knows.
    pub build_source: Option<PathBuf>,
}

impl Size {
    /// The usual quantities of a scale.
    #[must_use]
    pub fn of(scale: Scale) -> Size {
        let ciphers = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        match scale {
            Scale::Quick => Size {
                scale,
                file_bytes: 24 << 20,
                random_file_bytes: 24 << 20,
                random_seconds: 0.2,
                tree_files: 150,
                metadata_files: 100,
                latency_operations: 150,
                ciphers: ciphers(&["aes128-gcm@openssh.com"]),
                tree_source: None,
                build_source: None,
            },
            Scale::Normal => Size {
                scale,
                file_bytes: 512 << 20,
                random_file_bytes: 512 << 20,
                random_seconds: 5.0,
                tree_files: 4_000,
                metadata_files: 2_000,
                latency_operations: 5_000,
                ciphers: ciphers(&["chacha20-poly1305@openssh.com", "aes128-gcm@openssh.com"]),
                tree_source: None,
                build_source: None,
            },
            Scale::Full => Size {
                scale,
                file_bytes: 4 << 30,
                random_file_bytes: 4 << 30,
                random_seconds: 30.0,
                tree_files: 10_000,
                metadata_files: 10_000,
                latency_operations: 20_000,
                ciphers: ciphers(&[
                    "chacha20-poly1305@openssh.com",
                    "aes128-gcm@openssh.com",
                    "aes256-gcm@openssh.com",
                    "aes128-ctr",
                    "aes256-ctr",
                ]),
                tree_source: None,
                build_source: None,
            },
        }
    }
}
