//! Jobs of the disk cache of a mount, and their results.

use base::RemotePath;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::place::Bytes;

/// A job on files of a mount and their cached contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cache", rename_all = "kebab-case")]
pub enum CacheJob {
    /// Protect them from eviction: what is cached of them, now and later.
    Pin {
        /// Files, or directories and all below them.
        paths: Vec<Path>,
    },
    /// Remove the protection.
    Unpin {
        /// The pinned paths, as they were given.
        paths: Vec<Path>,
    },
    /// Report how much of them is cached.
    Check {
        /// Files, or directories and all below them.
        paths: Vec<Path>,
    },
    /// Fetch what is not cached of them. Reports progress.
    Warm {
        /// Files, or directories and all below them.
        paths: Vec<Path>,
        /// Number of files to fetch in parallel.
        at_once: u32,
    },
}

/// A path below the root of a mount. Names are bytes that need not be valid text, so the path is
/// sent as hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(pub RemotePath);

impl Serialize for Path {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Bytes(self.0.as_bytes().to_vec()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Path {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Path, D::Error> {
        let Bytes(bytes) = Bytes::deserialize(deserializer)?;
        RemotePath::parse(&bytes).map(Path).map_err(D::Error::custom)
    }
}

/// The result of a job so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tally {
    /// Files found.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Files processed.
    pub done_files: u64,
    /// Files that are cached completely.
    pub whole_files: u64,
    /// Bytes cached.
    pub present_bytes: u64,
    /// Files that this job completed.
    pub fetched_files: u64,
    /// Bytes fetched.
    pub fetched_bytes: u64,
    /// Files that were not cached, because they changed while they were read, are too large, or the
    /// cache is full.
    pub not_kept_files: u64,
    /// Files and directories that could not be read.
    pub failed: u64,
    /// What the first of them said, escaped.
    pub problems: Vec<String>,
}

impl Tally {
    /// Adds what another job has come to.
    pub fn add(&mut self, other: &Tally) {
        self.files += other.files;
        self.bytes += other.bytes;
        self.done_files += other.done_files;
        self.whole_files += other.whole_files;
        self.present_bytes += other.present_bytes;
        self.fetched_files += other.fetched_files;
        self.fetched_bytes += other.fetched_bytes;
        self.not_kept_files += other.not_kept_files;
        self.failed += other.failed;
        for problem in &other.problems {
            self.tell(problem.clone());
        }
    }

    /// Keeps words about something that failed, if there are not many already.
    pub fn tell(&mut self, problem: String) {
        /// As many as one reads.
        const MAX_PROBLEMS: usize = 10;
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_bytes() {
        let path = Path(RemotePath::parse(b"a/\xff b").unwrap());
        let text = serde_json::to_string(&path).unwrap();
        assert_eq!(text, "\"612fff2062\"");
        assert_eq!(serde_json::from_str::<Path>(&text).unwrap(), path);
        assert_eq!(serde_json::from_str::<Path>("\"\"").unwrap().0, RemotePath::root());
        for odd in ["\"6\"", "\"6g\"", "\"2f\"", "\"2e2e\"", "\"610062\"", "\"+1\"", "7"] {
            assert!(serde_json::from_str::<Path>(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn jobs_are_what_they_were() {
        let paths = vec![Path(RemotePath::parse(b"a").unwrap())];
        let job = CacheJob::Warm { paths, at_once: 4 };
        let text = serde_json::to_string(&job).unwrap();
        assert_eq!(text, r#"{"cache":"warm","paths":["61"],"at_once":4}"#);
        assert_eq!(serde_json::from_str::<CacheJob>(&text).unwrap(), job);
    }
}
