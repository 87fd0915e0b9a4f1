//! The quantities of all workloads at each scale.

use std::path::PathBuf;

/// Scales of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Under two minutes for one peer.
    Quick,
    /// Enough to trust: some minutes a subject.
    #[default]
    Normal,
    /// As published.
    Full,
}

impl Scale {
    /// As the command line has it.
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
    pub fn of(scale: Scale) -> Size {
        let (file_bytes, random_seconds, ciphers): (_, _, &[&str]) = match scale {
            Scale::Quick => (24 << 20, 0.2, &["aes128-gcm@openssh.com"]),
            Scale::Normal => {
                (512 << 20, 5.0, &["chacha20-poly1305@openssh.com", "aes128-gcm@openssh.com"])
            }
            Scale::Full => (
                4 << 30,
                30.0,
                &[
                    "chacha20-poly1305@openssh.com",
                    "aes128-gcm@openssh.com",
                    "aes256-gcm@openssh.com",
                    "aes128-ctr",
                    "aes256-ctr",
                ],
            ),
        };
        let (tree_files, metadata_files, latency_operations) = match scale {
            Scale::Quick => (150, 100, 150),
            Scale::Normal => (4_000, 2_000, 5_000),
            Scale::Full => (10_000, 10_000, 20_000),
        };
        Size {
            scale,
            file_bytes,
            random_file_bytes: file_bytes,
            random_seconds,
            tree_files,
            metadata_files,
            latency_operations,
            ciphers: ciphers.iter().map(|&name| name.to_owned()).collect(),
            tree_source: None,
            build_source: None,
        }
    }
}
