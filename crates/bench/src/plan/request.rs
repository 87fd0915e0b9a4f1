//! The request of a user.

use std::path::PathBuf;
use std::time::Duration;

use crate::link::LinkSpec;
use crate::published::Published;
use crate::results::SubjectInfo;
use crate::size::{FioSize, IozoneSize, Projects, Scale, Size, TreeShape};

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
    /// Quantities of `iozone`, instead of those of the scale.
    pub iozone: Option<IozoneSize>,
    /// Quantities of `fio`, instead of those of the scale.
    pub fio: Option<FioSize>,
    /// How long a timed test runs.
    pub random_seconds: Option<f64>,
    /// Files of the made trees.
    pub tree_files: Option<u32>,
    /// What the made tree of `tree` is like.
    pub tree_shape: TreeShape,
    /// What `build` builds.
    pub projects: Projects,
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
    /// Of all that is pseudo-random.
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
        let usual = Size::of(self.scale);
        let size = Size {
            iozone: self.iozone.unwrap_or(usual.iozone),
            fio: self.fio.unwrap_or(usual.fio),
            random_seconds: self.random_seconds.unwrap_or(usual.random_seconds),
            tree_files: self.tree_files.unwrap_or(usual.tree_files),
            tree_shape: self.tree_shape,
            ciphers: self.ciphers.clone().unwrap_or(usual.ciphers),
            tree_source: self.tree.clone(),
            projects: self.projects,
            jobs: self.jobs.unwrap_or(usual.jobs),
            build_source: self.build_tree.clone(),
            ..usual
        };
        let size = match self.file_bytes {
            Some(bytes) => size.with_file_bytes(bytes),
            None => size,
        };
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
    let mounts = ["sshoal", "sshoal-union", "sshoal-places", "sshoal-pool", "sshoal-copy"];
    SubjectInfo::new(name.strip_suffix(" (control)").unwrap_or(name), "", "").is_any_of(&mounts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::Extent;

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
        let iozone = IozoneSize {
            sequential_bytes: 16 << 30,
            random_bytes: 8 << 30,
            random: Extent::Both,
            ..IozoneSize::of(0)
        };
        let mut request = Request {
            scale: Scale::Full,
            iozone: Some(iozone),
            tree_files: Some(2_929),
            jobs: Some(8),
            factor: Some(0.25),
            ..Request::default()
        };
        let size = request.size();
        assert_eq!((size.iozone.sequential_bytes, size.iozone.random_bytes), (4 << 30, 2 << 30));
        assert_eq!((size.iozone.random, size.tree_files, size.jobs), (Extent::Both, 733, 8));
        // The user's own size goes before it.
        (request.file_bytes, request.factor) = (Some(1 << 30), None);
        let size = request.size().iozone;
        assert_eq!((size.sequential_bytes, size.random_bytes), (1 << 30, 1 << 30));
        assert_eq!(size.random, Extent::Both);
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
