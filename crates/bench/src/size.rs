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

/// When a test of a large file ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    /// After [`Size::random_seconds`], in any number of passes.
    #[default]
    Timed,
    /// When each record of the file was visited once.
    Whole,
    /// Two tests: the timed one, then that of the whole file.
    Both,
}

impl Extent {
    /// Whether there is a timed test.
    pub fn is_timed(self) -> bool {
        self != Extent::Whole
    }

    /// Whether there is a test of the whole file.
    pub fn is_whole(self) -> bool {
        self != Extent::Timed
    }
}

/// Quantities of `iozone`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IozoneSize {
    /// Of the file that is written and read in sequence.
    pub sequential_bytes: u64,
    /// Of the file in which random places are read and written.
    pub random_bytes: u64,
    /// The timed random tests use `O_DIRECT`. Those of the whole file (`iozone.random-read-all`,
    /// `iozone.random-write-all`) use the page cache, as `iozone -i 2` does.
    pub random: Extent,
    /// Subjects that do all tests a second time with data that compress
    /// (`iozone.compressible.read` …): those with compression, and what they are compared with.
    /// A name does not stand for its variants with options.
    pub compressible_for: &'static [&'static str],
}

impl IozoneSize {
    /// The tests of the published comparisons with files of this length, timed at random.
    pub const fn of(file_bytes: u64) -> IozoneSize {
        IozoneSize {
            sequential_bytes: file_bytes,
            random_bytes: file_bytes,
            random: Extent::Timed,
            compressible_for: &[],
        }
    }
}

/// Quantities of `fio`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FioSize {
    /// Of the file that is read, and of the one that is written.
    pub bytes: u64,
    /// Jobs of the whole file are `fio.write-all` and so on, in the order of the published run.
    pub jobs: Extent,
}

impl FioSize {
    /// Timed jobs on files of this length.
    pub const fn of(bytes: u64) -> FioSize {
        FioSize { bytes, jobs: Extent::Timed }
    }
}

/// What the made tree of `tree` is like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TreeShape {
    /// Many small files that compress, as sources.
    #[default]
    Sources,
    /// Files of 600 KB on the average that do not compress, as a game or a collection of pictures.
    /// It is only copied, by `tree.media.copy_out` and `tree.media.copy_in`.
    Media,
}

/// What `build` builds, unless the user names sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Projects {
    /// A part of the kernel where its sources are installed, else a generated program.
    #[default]
    Usual,
    /// Two generated programs, `smaller` and `larger`, of these numbers of modules.
    Two {
        /// Of the smaller one.
        smaller: u32,
        /// Of the larger one.
        larger: u32,
    },
}

/// Quantities of all workloads.
#[derive(Clone, Debug, PartialEq)]
pub struct Size {
    /// Where they come from.
    pub scale: Scale,
    /// Of the file that is copied by `files`, and read by `latency` and `cache`.
    pub file_bytes: u64,
    /// How long a timed test runs.
    pub random_seconds: f64,
    /// Of `iozone`.
    pub iozone: IozoneSize,
    /// Of `fio`.
    pub fio: FioSize,
    /// Files of the made tree.
    pub tree_files: u32,
    /// Of the made tree of `tree`; `copy` and `cache` always have sources.
    pub tree_shape: TreeShape,
    /// Single operations timed by `latency`, of each kind.
    pub latency_operations: u32,
    /// Ciphers by which the large file is copied.
    pub ciphers: Vec<String>,
    /// The user's own tree, in place of the made one.
    pub tree_source: Option<PathBuf>,
    /// Programs that `build` builds.
    pub projects: Projects,
    /// Compilers at a time.
    pub jobs: u32,
    /// The user's own sources, in place of those that `build` knows.
    pub build_source: Option<PathBuf>,
}

/// Shortest large file that a scaled run has: enough for all requests that fio keeps in flight.
const LEAST_BYTES: u64 = 1 << 20;

/// Least number of files and operations of a scaled run: one in fifty files of a tree of sources has
/// the word that is searched for.
const LEAST_COUNT: u32 = 50;

/// Least number of files of media.
const LEAST_MEDIA: u32 = 5;

/// Least number of modules of a generated program.
const LEAST_MODULES: u32 = 1;

/// Shortest timed test of a scaled run, as in a quick one.
const LEAST_SECONDS: f64 = 0.2;

/// Lengths of large files are multiples of this: whole records of all tests.
pub const STEP_BYTES: u64 = 128 << 10;

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
        let (tree_files, latency_operations) = match scale {
            Scale::Quick => (150, 150),
            Scale::Normal => (4_000, 5_000),
            Scale::Full => (10_000, 20_000),
        };
        Size {
            scale,
            file_bytes,
            random_seconds,
            iozone: IozoneSize::of(file_bytes),
            fio: FioSize::of(file_bytes),
            tree_files,
            tree_shape: TreeShape::Sources,
            latency_operations,
            ciphers: ciphers.iter().map(|&name| name.to_owned()).collect(),
            tree_source: None,
            projects: Projects::Usual,
            jobs: 2,
            build_source: None,
        }
    }

    /// Gives all large files this length.
    pub fn set_file_bytes(&mut self, bytes: u64) {
        self.file_bytes = bytes;
        (self.iozone.sequential_bytes, self.iozone.random_bytes) = (bytes, bytes);
        self.fio.bytes = bytes;
    }

    /// The greatest length of a large file up to `bytes`; 0 if there is none.
    pub fn whole_records(bytes: u64) -> u64 {
        bytes / STEP_BYTES * STEP_BYTES
    }

    /// The same with bytes, counts and times multiplied by `factor`. None of them becomes less than
    /// its work needs, unless it is less already.
    pub fn scaled(mut self, factor: f64) -> Size {
        let scaled = |quantity: f64, least: f64| (quantity * factor).max(least.min(quantity));
        for bytes in [
            &mut self.file_bytes,
            &mut self.iozone.sequential_bytes,
            &mut self.iozone.random_bytes,
            &mut self.fio.bytes,
        ] {
            let wanted = scaled(*bytes as f64, LEAST_BYTES as f64) as u64;
            *bytes = wanted.next_multiple_of(STEP_BYTES);
        }
        let count = |count: &mut u32, least: u32| {
            *count = scaled((*count).into(), least.into()).ceil() as u32;
        };
        let least_files = match self.tree_shape {
            TreeShape::Sources => LEAST_COUNT,
            TreeShape::Media => LEAST_MEDIA,
        };
        count(&mut self.tree_files, least_files);
        count(&mut self.latency_operations, LEAST_COUNT);
        if let Projects::Two { smaller, larger } = &mut self.projects {
            count(smaller, LEAST_MODULES);
            count(larger, LEAST_MODULES);
        }
        self.random_seconds = scaled(self.random_seconds, LEAST_SECONDS);
        self
    }

    /// The quantities on which the figures of a workload depend, by name: `iozone.random_bytes`.
    /// Trees and sources of the user's own are not among them.
    pub fn quantities(&self, workload: &str) -> Vec<(String, f64)> {
        let (bytes, files) = (self.file_bytes as f64, f64::from(self.tree_files));
        let mut quantities = vec![
            ("files.bytes", bytes),
            ("iozone.sequential_bytes", self.iozone.sequential_bytes as f64),
            ("iozone.random_bytes", self.iozone.random_bytes as f64),
            ("iozone.seconds", self.random_seconds),
            ("fio.bytes", self.fio.bytes as f64),
            ("fio.seconds", self.random_seconds),
            ("copy.files", files),
            ("cache.bytes", bytes),
            ("cache.files", files),
            ("latency.bytes", bytes),
            ("latency.operations", self.latency_operations.into()),
            ("build.jobs", self.jobs.into()),
        ];
        if self.tree_source.is_none() {
            quantities.push(("tree.files", files));
        }
        if let (Projects::Two { smaller, larger }, None) = (self.projects, &self.build_source) {
            quantities.push(("build.smaller_modules", smaller.into()));
            quantities.push(("build.larger_modules", larger.into()));
        }
        quantities.retain(|(name, _)| name.split('.').next() == Some(workload));
        quantities.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_multiplies_bytes_counts_and_times() {
        let size = Size::of(Scale::Full);
        let half = size.clone().scaled(0.5);
        assert_eq!((half.file_bytes, half.fio.bytes), (2 << 30, 2 << 30));
        assert_eq!((half.iozone.sequential_bytes, half.iozone.random_bytes), (2 << 30, 2 << 30));
        assert_eq!((half.tree_files, half.latency_operations), (5_000, 10_000));
        assert_eq!(half.random_seconds, 15.0);
        assert_eq!(size.clone().scaled(1.0), size);
        let projects = Projects::Two { smaller: 100, larger: 400 };
        let built = Size { projects, ..size }.scaled(0.1).projects;
        assert_eq!(built, Projects::Two { smaller: 10, larger: 40 });
    }

    #[test]
    fn each_workload_has_quantities_that_grow_with_the_factor() {
        let projects = Projects::Two { smaller: 100, larger: 400 };
        let size = Size { projects, ..Size::of(Scale::Full) };
        let half = size.clone().scaled(0.5);
        // The time for which a host is away has to be long enough at every scale.
        let all = crate::workload::all().into_iter().filter(|it| it.name() != "failover");
        for workload in all {
            let of = |size: &Size| size.quantities(workload.name());
            assert_ne!(of(&size), of(&half), "{}", workload.name());
        }
    }

    #[test]
    fn a_scaled_run_has_what_its_works_need() {
        let projects = Projects::Two { smaller: 100, larger: 400 };
        let least = Size { projects, ..Size::of(Scale::Full) }.scaled(1e-9);
        assert_eq!((least.file_bytes, least.fio.bytes), (1 << 20, 1 << 20));
        assert_eq!((least.tree_files, least.latency_operations), (50, 50));
        assert_eq!(least.random_seconds, 0.2);
        assert_eq!(least.projects, Projects::Two { smaller: 1, larger: 1 });
        let media = Size { tree_shape: TreeShape::Media, ..Size::of(Scale::Full) };
        assert_eq!(media.scaled(1e-9).tree_files, 5);
        // What is less already stays so.
        let tiny = Size { tree_files: 7, ..Size::of(Scale::Quick) }.scaled(0.1);
        assert_eq!(tiny.tree_files, 7);
    }
}
