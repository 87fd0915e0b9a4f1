//! The request of a user.

use std::path::PathBuf;
use std::time::Duration;

use crate::link::LinkSpec;
use crate::published::Published;
use crate::results::SubjectInfo;
use crate::size::{Scale, Size};

use super::Host;

/// What a run is measured against when nothing else is said.
pub(super) const USUAL_PEER: &str = "sshfs";

/// All options of a run.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// How much work.
    pub scale: Scale,
    /// Does not measure this program.
    pub without_ours: bool,
    /// A list of subjects (see [`crate::subject::catalog`]); `None` for the usual peer.
    pub peers: Option<String>,
    /// Names and command lines of programs that mount as sshfs does.
    pub commands: Vec<(String, String)>,
    /// Names and scripts of programs that copy.
    pub copiers: Vec<(String, String)>,
    /// Names and directories of mounted file systems.
    pub targets: Vec<(String, PathBuf)>,
    /// Names of workloads; `None` for all.
    pub works: Option<Vec<String>>,
    /// In front of the private server; `None` for nothing.
    pub link: Option<LinkSpec>,
    /// Instead of a private server.
    pub host: Option<Host>,
    /// Samples of each measure of each subject.
    pub rounds: Option<u32>,
    /// Of the large files of all workloads, `iozone` and `fio` too.
    pub file_bytes: Option<u64>,
    /// Compilers at a time.
    pub jobs: Option<u32>,
    /// All quantities are multiplied by this, those above too (see [`Size::scaled`]).
    pub factor: Option<f64>,
    /// Longest time for a usual step.
    pub deadline: Option<Duration>,
    /// The subject to which ratios are given.
    pub reference: Option<String>,
    /// Does not measure the reference a second time.
    pub without_control: bool,
    /// Of the pseudo-random orders.
    pub seed: u64,
    /// The published comparison to repeat: see [`Published::fill`].
    pub repeats: Option<&'static Published>,
    /// Sample the CPU of single processes over time.
    pub trace_cpu: bool,
    /// Where the run makes its directory.
    pub scratch: PathBuf,
    /// By which large files are copied.
    pub ciphers: Option<Vec<String>>,
    /// A tree of the user's instead of the made one.
    pub tree: Option<PathBuf>,
    /// The same for builds.
    pub build_tree: Option<PathBuf>,
    /// This very program, which is measured and is what the workloads run.
    pub program: PathBuf,
    /// Its name and version.
    pub version: String,
    /// The command line, for the report.
    pub command: Vec<String>,
}

impl Request {
    /// How much there is to do.
    pub fn size(&self) -> Size {
        let mut size = Size::of(self.scale);
        if let Some(published) = self.repeats {
            published.resize(&mut size);
        }
        if let Some(bytes) = self.file_bytes {
            size.set_file_bytes(bytes);
        }
        size.jobs = self.jobs.unwrap_or(size.jobs);
        size.ciphers = self.ciphers.clone().unwrap_or(size.ciphers);
        size.tree_source.clone_from(&self.tree);
        size.build_source.clone_from(&self.build_tree);
        match self.factor {
            Some(factor) => size.scaled(factor),
            None => size,
        }
    }

    /// Enough rounds to see a spread; from six on there is an interval of the median.
    pub fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(match self.scale {
            Scale::Quick => 3,
            Scale::Normal | Scale::Full => 6,
        })
    }

    /// Many times what a step takes that goes well.
    pub fn deadline(&self) -> Duration {
        self.deadline.unwrap_or(Duration::from_secs(match self.scale {
            Scale::Quick => 60,
            Scale::Normal => 300,
            Scale::Full => 3600,
        }))
    }
}

/// The subject to which ratios are given when nothing else is said: the usual peer, another file
/// system, or else the first subject.
pub(super) fn usual_reference(subjects: &[SubjectInfo]) -> Option<&str> {
    let named = |name: &str| subjects.iter().find(|info| info.name == name);
    let other = || {
        let is_other = |info: &&SubjectInfo| info.kind == "mount" && !is_ours(&info.name);
        subjects.iter().find(is_other)
    };
    let reference = named(USUAL_PEER).or_else(other).or_else(|| subjects.first());
    reference.map(|info| info.name.as_str())
}

/// Whether a subject is this program, with any options.
pub fn is_ours(name: &str) -> bool {
    let ours = [
        "sshoal",
        "sshoal-helper",
        "sshoal-direct",
        "sshoal-union",
        "sshoal-places",
        "sshoal-pool",
        "sshoal-copy",
    ];
    SubjectInfo::new(name.strip_suffix(" (control)").unwrap_or(name), "", "").is_any_of(&ours)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::{Extent, IozoneSize};

    #[test]
    fn quantities_can_be_asked_for() {
        let mut request = Request { scale: Scale::Quick, ..Request::default() };
        assert_eq!(request.size(), Size::of(Scale::Quick));
        request.file_bytes = Some(1 << 20);
        request.ciphers = Some(vec!["aes256-ctr".to_owned()]);
        let size = request.size();
        assert_eq!((size.file_bytes, size.fio.bytes), (1 << 20, 1 << 20));
        assert_eq!(size.iozone, IozoneSize::of(1 << 20));
        assert_eq!(size.ciphers, ["aes256-ctr"]);
    }

    #[test]
    fn a_published_comparison_has_quantities_of_its_own() {
        let repeated = |name, request: Request| {
            let published = Published::named(name).unwrap();
            published.fill(Request { scale: Scale::Full, ..request }, 0.25).size()
        };
        let request = Request { jobs: Some(8), ..Request::default() };
        let size = repeated("sshfs-iozone", request);
        assert_eq!((size.iozone.sequential_bytes, size.iozone.random_bytes), (4 << 30, 2 << 30));
        assert_eq!((size.iozone.random, size.jobs), (Extent::Both, 8));
        assert_eq!(repeated("nas", Request::default()).tree_files, 733);
        // The user's own size goes before it.
        let request = Request { file_bytes: Some(1 << 30), ..Request::default() };
        let size = repeated("sshfs-iozone", request).iozone;
        assert_eq!((size.sequential_bytes, size.random_bytes), (1 << 28, 1 << 28));
        assert_eq!(size.random, Extent::Both);
    }

    #[test]
    fn variants_of_this_program_are_ours() {
        for name in ["sshoal", "sshoal:ro", "sshoal-helper", "sshoal-direct (control)"] {
            assert!(is_ours(name), "{name}");
        }
        // A user may name a peer so.
        assert!(!is_ours("sshfs") && !is_ours("sshoal-old"));
    }

    #[test]
    fn the_reference_is_the_usual_peer_or_the_next_best() {
        let info = |(name, kind): (&str, &str)| SubjectInfo::new(name, kind, "");
        let reference = |subjects: &[(&str, &str)]| {
            let infos: Vec<SubjectInfo> = subjects.iter().copied().map(info).collect();
            usual_reference(&infos).map(str::to_owned)
        };
        let (ours, scp) = (("sshoal", "mount"), ("scp", "copy"));
        assert_eq!(reference(&[ours, scp, ("sshfs", "mount")]).as_deref(), Some("sshfs"));
        assert_eq!(reference(&[ours, scp, ("rclone", "mount")]).as_deref(), Some("rclone"));
        assert_eq!(reference(&[scp, ours]).as_deref(), Some("scp"));
        assert_eq!(reference(&[("local", "local")]).as_deref(), Some("local"));
        assert_eq!(reference(&[]), None);
    }
}
