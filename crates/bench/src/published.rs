//! Published comparisons: how to repeat each in one run, in which tables it was published, and the
//! published figures.
//!
//! A comparison is data. [`Published::fill`] completes a request by it; a report of such a run
//! shows its tables (see [`crate::report`]). Figures of other machines are compared by their ratios
//! to the baseline alone.

use crate::measure::Measure;
use crate::plan::Request;
use crate::size::{Extent, FioSize, IozoneSize, Projects, Scale, Size, TreeShape};
use crate::stats::ratio_of;
use crate::workload;

/// A published comparison.
#[derive(Debug)]
pub struct Published {
    /// As on the command line. Its subjects are the group of this name (see
    /// [`crate::subject::catalog`]).
    pub name: &'static str,
    /// One line.
    pub about: &'static str,
    /// What a run of it at full scale needs beside its subjects and free space.
    pub needs: &'static str,
    /// The address of the source.
    pub source: &'static str,
    /// Names of the works.
    pub works: &'static [&'static str],
    /// Whether `sshoal` itself, which is a mount, has no part in it unless the list names it.
    pub without_ours: bool,
    /// Ciphers with which the large file is copied; none for those of the scale.
    pub ciphers: &'static [&'static str],
    /// The link, as for `--link`.
    pub link: &'static str,
    /// How much of what.
    quantities: Quantities,
    /// Sample the CPU over time.
    pub trace_cpu: bool,
    /// In which it was published.
    pub tables: &'static [Tabled],
    /// The subject to which the published figures are compared.
    pub baseline: &'static str,
    /// Subjects of the source. Where no figure of such a one is known, that is shown.
    pub subjects: &'static [&'static str],
    /// Published values that are known.
    pub figures: &'static [Figure],
    /// Published runs that are known.
    pub runs: &'static [Times],
    /// What else is known of the source, as sentences.
    pub notes: &'static [&'static str],
}

/// Changes the quantities of a scale to those of a comparison.
type Quantities = fn(&mut Size);

/// 16 GB in sequence, 8 GB at random places, buffered as published and with `O_DIRECT`; OPT4 and
/// what it is compared with also on data that compress.
const IOZONE: Quantities = |size| {
    size.iozone = IozoneSize {
        random_bytes: 8 << 30,
        random: Extent::Both,
        compressible_for: &[
            "sshfs",
            "sshfs:opt3",
            "sshfs:opt4",
            "sshfsm",
            "sshfsm:opt3",
            "sshfsm:opt4",
            "sshoal",
            "sshoal:opt3",
            "sshoal:opt4",
        ],
        ..IozoneSize::of(16 << 30)
    };
};

/// A comparison that is not described yet.
const UNDESCRIBED: Published = Published {
    name: "",
    about: "",
    needs: "",
    source: "",
    works: &[],
    without_ours: false,
    ciphers: &[],
    link: "lan",
    quantities: |_| {},
    trace_cpu: false,
    tables: &[],
    baseline: "sshfs",
    subjects: &[],
    figures: &[],
    runs: &[],
    notes: &[],
};

/// Runs of each subject, as published.
const ROUNDS: u32 = 3;

/// One published table.
#[derive(Debug)]
pub struct Tabled {
    /// What it shows.
    pub caption: &'static str,
    /// Beginnings of the names of its measures.
    pub measures: &'static [&'static str],
    /// Its form.
    pub shape: Shape,
}

impl Tabled {
    /// Whether a measure is in it.
    pub fn has(&self, measure: &str) -> bool {
        self.measures.iter().any(|begin| measure.starts_with(begin))
    }
}

/// The form of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Subjects as rows, measures as columns; medians.
    SubjectRows,
    /// The same; then the rate of copies, and CPU, in such tables.
    WithDetails,
    /// Each run by its real, user and system time; then the means of the runs, the fastest first.
    Runs,
}

/// A published value.
#[derive(Debug)]
pub struct Figure {
    /// The subject.
    pub subject: &'static str,
    /// The measure.
    pub measure: &'static str,
    /// In the measure's unit.
    pub value: f64,
    /// Whether the source gives it only roughly.
    pub is_rough: bool,
}

/// A published run.
#[derive(Debug)]
pub struct Times {
    /// The subject.
    pub subject: &'static str,
    /// The measure.
    pub measure: &'static str,
    /// From 0.
    pub round: u32,
    /// Seconds of real, user and system time.
    pub seconds: [f64; 3],
}

const IOZONE_TABLES: &[Tabled] = &[IOZONE_TABLE, COMPRESSIBLE_TABLE];

const IOZONE_TABLE: Tabled = Tabled {
    caption: "file systems and tests",
    measures: &["iozone.write", "iozone.rewrite", "iozone.read", "iozone.reread", "iozone.random-"],
    shape: Shape::SubjectRows,
};

/// Data that compress have a table of their own.
const COMPRESSIBLE_TABLE: Tabled = Tabled {
    caption: "data that compress",
    measures: &["iozone.compressible."],
    shape: Shape::SubjectRows,
};

const fn figure(subject: &'static str, measure: &'static str, value: f64) -> Figure {
    Figure { subject, measure, value, is_rough: false }
}

const fn rough(subject: &'static str, measure: &'static str, value: f64) -> Figure {
    Figure { is_rough: true, ..figure(subject, measure, value) }
}

/// scp as published.
const SCP: &str = "scp:Compression=no";

const fn scp(round: u32, seconds: [f64; 3]) -> Times {
    Times { subject: SCP, measure: "files.in.default", round, seconds }
}

/// All of them, in the order in which they run.
pub static PUBLISHED: [Published; 5] = [
    Published {
        name: "sshfs-iozone",
        about: "six tests of iozone: sshfs by its tunings, NFS, sshoal; CPU over time",
        needs: "several hours; root for NFS and larger TCP buffers, or --target nfs=DIR for the row of NFS",
        source: "https://www.admin-magazine.com/HPC/Articles/Sharing-Data-with-SSHFS",
        works: &["iozone"],
        quantities: IOZONE,
        trace_cpu: true,
        tables: IOZONE_TABLES,
        subjects: &["nfs", "sshfs", "sshfs:opt1", "sshfs:opt2", "sshfs:opt3", "sshfs:opt4"],
        figures: &[
            figure("sshfs", "iozone.write", 43.2e6),
            rough("sshfs", "iozone.rewrite", 49.5e6),
            figure("sshfs", "iozone.read", 54.8e6),
            // Of data that compress, as those of iozone itself do.
            figure("sshfs", "iozone.compressible.read", 54.8e6),
            rough("sshfs:opt4", "iozone.compressible.read", 158e6),
        ],
        notes: &[
            "Random write was between 12,574 and 29,802 operations/s in all rows; it was buffered, \
             as iozone.random-write-all is.",
            "Random read of sshfs was never above 60 % of that of NFS.",
            "The peaks of CPU load that are quoted are 53 % with NFS and 85 % with sshfs.",
        ],
        ..UNDESCRIBED
    },
    Published {
        name: "mux-iozone",
        about: "the same tests with several servers as one tree",
        needs: "several hours; root for larger TCP buffers",
        source: "https://www.admin-magazine.com/HPC/Articles/Combining-Directories-on-a-Single-Mountpoint",
        works: &["iozone", "failover"],
        quantities: IOZONE,
        tables: &[
            IOZONE_TABLE,
            COMPRESSIBLE_TABLE,
            Tabled {
                caption: "one of two hosts goes away",
                measures: &["failover."],
                shape: Shape::SubjectRows,
            },
        ],
        subjects: &[
            "nfs",
            "sshfs",
            "sshfs:opt1",
            "sshfs:opt2",
            "sshfs:opt3",
            "sshfs:opt4",
            "sshfsm",
            "sshfsm:opt1",
            "sshfsm:opt2",
            "sshfsm:opt3",
            "sshfsm:opt4",
        ],
        notes: &["sshfsm differed from sshfs by 5 % to 9 %."],
        ..UNDESCRIBED
    },
    Published {
        name: "copy-ciphers",
        about: "one large file by programs that copy and by ciphers: real, user and system time",
        source: "https://blog.tinle.org/2013/03/05/323/",
        works: &["files"],
        without_ours: true,
        ciphers: &["aes128-ctr", "aes128-gcm@openssh.com", "aes128-cbc"],
        quantities: |size| size.set_file_bytes(3_921_247_501),
        tables: &[
            Tabled {
                caption: "copied to the server",
                measures: &["files.in."],
                shape: Shape::Runs,
            },
            Tabled {
                caption: "copied from the server",
                measures: &["files.out."],
                shape: Shape::Runs,
            },
        ],
        baseline: SCP,
        subjects: &[SCP],
        runs: &[
            scp(0, [52.175, 12.709, 6.504]),
            scp(1, [47.872, 12.603, 6.806]),
            scp(2, [49.317, 12.748, 6.710]),
        ],
        notes: &[
            "A file of 3,921,247,501 bytes over 1 Gbit/s, OpenSSH 5.3, whose default cipher is \
             aes128-ctr, scp -o Compression=no. The published direction is not known here: its \
             figures are beside those to the server.",
            "scp -c arcfour, first run: 49.536 s real, 14.161 s user, 6.903 s system. Today's \
             OpenSSH has no arcfour.",
        ],
        ..UNDESCRIBED
    },
    Published {
        name: "large-build",
        about: "builds with their sources on a mount and on the local disk",
        needs: "gcc and make; with --host, the helper there",
        source: "https://jmmv.dev/2016/02/sshfs-performance-analysis-for-builds.html",
        works: &["build"],
        link: "rtt=0.5ms,rate=50MB",
        quantities: |size| size.projects = Projects::Two { smaller: 100, larger: 400 },
        tables: &[Tabled {
            caption: "builds and file systems",
            measures: &["build."],
            shape: Shape::SubjectRows,
        }],
        subjects: &["local", "sshfs"],
        notes: &["The published link had a round trip of 0.5 ms and 50 MB/s."],
        ..UNDESCRIBED
    },
    Published {
        name: "nas",
        about: "four jobs of fio with their latency, and a tree by rsync: NFS, SMB, sshfs, sshoal",
        needs: "fio; --target nfs=DIR --target smb=DIR for NFS and SMB",
        source: "https://blog.ja-ke.tech/2019/08/27/nas-performance-sshfs-nfs-smb.html",
        works: &["fio", "tree"],
        quantities: |size| {
            size.fio = FioSize { jobs: Extent::Whole, ..FioSize::of(2 << 30) };
            (size.tree_files, size.tree_shape) = (2_929, TreeShape::Media);
        },
        tables: &[Tabled {
            caption: "file systems and tests",
            measures: &["fio.", "tree.copy_", "tree.media."],
            shape: Shape::WithDetails,
        }],
        subjects: &["nfs", "smb", "sshfs"],
        notes: &[
            "Gigabit Ethernet, i3-3220 without AES instructions, OpenSSH 8.0, sshfs 3.5.2. The \
             figures are in charts only.",
            "sshfs was the fastest encrypted file system, and behind plain NFS at random 4 KiB.",
        ],
        ..UNDESCRIBED
    },
];

impl Published {
    /// The one of this name.
    pub fn named(name: &str) -> Option<&'static Published> {
        PUBLISHED.iter().find(|published| published.name == name)
    }

    /// Its quantities, instead of the usual ones.
    pub fn resize(&self, size: &mut Size) {
        (self.quantities)(size);
    }

    /// Completes a request: what it already says has precedence. Amounts are multiplied by
    /// `factor`.
    pub fn fill(&'static self, request: Request, factor: f64) -> Request {
        let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let own_ciphers = Some(owned(self.ciphers)).filter(|ciphers| !ciphers.is_empty());
        // The link to a host is the real one.
        let own_link = request.host.is_none().then(|| self.link.parse().ok()).flatten();
        Request {
            without_ours: request.without_ours || self.without_ours,
            peers: request.peers.or_else(|| Some(self.name.to_owned())),
            works: request.works.or_else(|| Some(owned(self.works))),
            link: request.link.or(own_link),
            rounds: request.rounds.or(Some(ROUNDS)),
            factor: Some(factor),
            ciphers: request.ciphers.or(own_ciphers),
            repeats: Some(self),
            trace_cpu: request.trace_cpu || self.trace_cpu,
            ..request
        }
    }

    /// Free space that a run at full scale needs.
    pub fn space_bytes(&'static self) -> u64 {
        let full = Request { scale: Scale::Full, ..Request::default() };
        let size = self.fill(full, 1.0).size();
        let works = workload::all();
        let own = works.iter().filter(|workload| self.works.contains(&workload.name()));
        own.map(|workload| workload.space(&size)).map(|(server, client)| server + client).sum()
    }

    /// A published value that is known.
    pub fn figure(&self, subject: &str, measure: &str) -> Option<&Figure> {
        self.figures.iter().find(|it| it.subject == subject && it.measure == measure)
    }

    /// How many times better a published value is than the baseline's.
    pub fn ratio(&self, figure: &Figure, measure: &Measure) -> Option<f64> {
        let baseline = self.figure(self.baseline, figure.measure)?;
        ratio_of(figure.value, baseline.value, measure.unit)
    }

    /// The published runs of one subject in one measure.
    pub fn runs(&self, subject: &str, measure: &str) -> impl Iterator<Item = &'static Times> {
        self.runs.iter().filter(move |it| it.subject == subject && it.measure == measure)
    }
}

#[cfg(test)]
mod tests;
