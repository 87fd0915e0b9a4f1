//! The projects that can be built. The kernel is that of Debian 12, from its package of sources:
//! real C, with the includes, scripts and configuration that load a file system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::corpus::tree::bytes_below;
use crate::executor::Executor;
use crate::failure::Result;
use crate::quoting::shown;
use crate::results::LeftOut;
use crate::storage::SCRIPT_LIMIT;
use crate::workload::copying::copy_local;
use crate::workload::{check_installed, script};

use super::generated;

/// Sources, and how they become objects.
#[derive(Clone, Debug)]
pub(super) struct Project {
    /// In measures.
    pub(super) id: &'static str,
    /// For readers.
    pub(super) title: String,
    origin: Origin,
    /// Builds the sources `$1` in the directory `$2` by `$3` jobs.
    script: String,
}

/// Where sources come from.
#[derive(Clone, Debug)]
enum Origin {
    /// Made by us, where there is nothing real, of this number of files to compile.
    Generated(u32),
    Kernel,
    /// The user's.
    Own(PathBuf),
}

/// Variables by which the user's `make` and compiler could build something else.
const FOREIGN: &str = "MAKEFLAGS MFLAGS MAKELEVEL ARCH CROSS_COMPILE KCFLAGS KBUILD_OUTPUT O CC \
    CFLAGS CPPFLAGS LDFLAGS CCACHE_DIR";

const GENERATED_SCRIPT: &str = r#"make -s -j"$3" -C "$2" -f "$1/Makefile" SOURCE="$1""#;

/// What sources of the user's have that can be built in another directory, and how.
const WAYS: [(&str, &str); 3] = [
    ("Kbuild", ""),
    ("CMakeLists.txt", r#"cmake -S "$1" -B "$2" > "$2/cmake.log" && make -s -j"$3" -C "$2""#),
    ("configure", r#"cd "$2" && "$1/configure" > configure.log && make -s -j"$3" > make.log"#),
];

/// The parts of a kernel that are built, all and those of a usual run.
const KERNEL_TARGETS: &str = "lib/ kernel/ fs/";
const KERNEL_LIBRARY: &str = "lib/";

impl Project {
    /// A generated program.
    pub(super) fn generated(id: &'static str, modules: u32) -> Project {
        let title = format!("a generated C program of {modules} files");
        Project { id, title, origin: Origin::Generated(modules), script: GENERATED_SCRIPT.into() }
    }

    /// A part of the kernel, or a larger one.
    pub(super) fn kernel(is_large: bool) -> Project {
        let (id, targets) =
            if is_large { ("kernel", KERNEL_TARGETS) } else { ("kernel_lib", KERNEL_LIBRARY) };
        let title = format!("{KERNEL} (tinyconfig, {targets})");
        Project { id, title, origin: Origin::Kernel, script: kernel_script(targets) }
    }

    /// The user's own sources, if there is a way to build them.
    pub(super) fn own(source: &Path) -> Result<Project, LeftOut> {
        let Some((_, script)) = WAYS.iter().find(|(file, _)| source.join(file).is_file()) else {
            let source = shown(source);
            let why = format!("{source} has neither Kbuild, nor CMakeLists.txt, nor configure");
            let remedy = "name sources that can be built in another directory";
            return Err(LeftOut::new("build", why).with_remedy(remedy));
        };
        Ok(Project {
            id: "own",
            title: shown(source.file_name().unwrap_or_default()),
            origin: Origin::Own(source.to_owned()),
            script: match *script {
                "" => kernel_script(KERNEL_TARGETS),
                script => script.to_owned(),
            },
        })
    }

    /// Where the sources are, in the corpus and in a storage.
    pub(super) fn source(&self) -> PathBuf {
        let name = if matches!(self.origin, Origin::Kernel) { "kernel" } else { self.id };
        format!("build/{name}").into()
    }

    /// Where it is written down, in the corpus, what has to be built.
    pub(super) fn expected(&self) -> PathBuf {
        format!("build/{}.json", self.id).into()
    }

    /// About.
    pub(super) fn source_bytes(&self) -> u64 {
        match &self.origin {
            Origin::Generated(modules) => u64::from(*modules) * (32 << 10),
            Origin::Kernel => KERNEL_BYTES,
            Origin::Own(source) => bytes_below(source),
        }
    }

    /// Whether its objects do not depend on where the sources and the objects are.
    pub(super) fn is_reproducible(&self) -> bool {
        !matches!(self.origin, Origin::Own(_))
    }

    /// Lays the sources out locally, in a directory that is not there.
    pub(super) fn make_source(&self, to: &Path, executor: &Executor) -> Result<()> {
        match &self.origin {
            Origin::Generated(modules) => Ok(generated::make(to, *modules)?),
            Origin::Kernel => unpack_kernel(to, executor),
            Origin::Own(source) => copy_local(source, to, executor),
        }
    }

    /// Builds it in an empty directory, by this number of jobs.
    pub(super) fn command(&self, source: &Path, objects: &Path, jobs: u32) -> Command {
        let jobs = jobs.to_string();
        let mut command =
            script(&self.script, &[source.as_os_str(), objects.as_os_str(), jobs.as_ref()]);
        for name in FOREIGN.split(' ') {
            command.env_remove(name);
        }
        // What a compiler that is ended leaves behind goes with the objects.
        command.envs(ENVIRONMENT).env("CCACHE_DISABLE", "1").env("TMPDIR", objects);
        command
    }
}

/// The package, and the directory in its archive.
const KERNEL: &str = "linux-source-6.1";

/// What the package has.
const ARCHIVE: &str = "/usr/src/linux-source-6.1.tar.xz";

/// Of the part that is laid out, rounded up: 13 500 files, 168 MB.
const KERNEL_BYTES: u64 = 200 << 20;

/// What a build of `lib/ kernel/ fs/` looks at, apart from all `Kconfig` files, which it reads
/// too; of the whole it is a sixth.
const PARTS: &str = "Makefile Kbuild Kconfig arch/Kconfig block fs include init io_uring kernel lib \
    mm scripts security tools/arch tools/build tools/include tools/lib/str_error_r.c \
    tools/lib/string.c tools/lib/subcmd tools/objtool tools/scripts";

/// Two builds give the same bytes, and no program looks for a repository above the sources.
const ENVIRONMENT: [(&str, &str); 4] = [
    ("KBUILD_BUILD_TIMESTAMP", "Sat Jan  1 00:00:00 UTC 2022"),
    ("KBUILD_BUILD_USER", "bench"),
    ("KBUILD_BUILD_HOST", "bench"),
    ("GIT_DIR", "/nonexistent"),
];

/// Whether it can be built here.
pub(super) fn check_kernel() -> Result<(), LeftOut> {
    let name = "build of the kernel";
    let programs = [("flex", "flex"), ("bison", "bison"), ("bc", "bc"), ("xz", "xz-utils")];
    check_installed(name, &programs)?;
    if !Path::new(ARCHIVE).is_file() {
        let left_out = LeftOut::new(name, format!("{ARCHIVE} is not there"));
        return Err(left_out.with_remedy(format!("install {KERNEL}")));
    }
    let why = || format!("not tried on {}", std::env::consts::ARCH);
    architecture().map(drop).ok_or_else(|| LeftOut::new(name, why()))
}

/// The kernel's word for this machine's.
fn architecture() -> Option<&'static str> {
    match std::env::consts::ARCH {
        "x86" | "x86_64" => Some("x86"),
        "aarch64" => Some("arm64"),
        _ => None,
    }
}

/// Unpacks what is needed of it.
fn unpack_kernel(to: &Path, executor: &Executor) -> Result<()> {
    fs::create_dir_all(to)?;
    let mut unpack = script(
        r#"to=$1; archive=$2; shift 2
tar -C "$to" --strip-components=1 --no-same-owner --wildcards -xJf "$archive" "$@""#,
        &[to, Path::new(ARCHIVE)],
    );
    unpack.args(PARTS.split(' ').map(|part| format!("{KERNEL}/{part}")));
    unpack.args(architecture().map(|name| format!("{KERNEL}/arch/{name}")));
    unpack.arg(format!("{KERNEL}/*/Kconfig*"));
    executor.succeed(unpack, SCRIPT_LIMIT)?;
    Ok(())
}

/// Builds `targets` of the sources `$1` in the directory `$2`. The least configuration there is:
/// it is the same everywhere.
fn kernel_script(targets: &str) -> String {
    format!(
        r#"make -s -C "$1" O="$2" tinyconfig > "$2.log" 2>&1 || {{ tail "$2.log" >&2; exit 1; }}
make -s -j"$3" -C "$1" O="$2" {targets}"#
    )
}
