//! The kernel that Debian 12 has, from its package of sources: real C, with the includes, scripts
//! and configuration that make a file system work.

use std::fs;
use std::path::Path;

use crate::executor::Executor;
use crate::failure::Failure;
use crate::place::ERRAND_LIMIT;
use crate::results::LeftOut;
use crate::work::script::{self, check_installed};

/// The package, and the directory in its archive.
pub(super) const NAME: &str = "linux-source-6.1";

/// What the package has.
const ARCHIVE: &str = "/usr/src/linux-source-6.1.tar.xz";

/// Of the part that is laid out, rounded up: 13 500 files, 168 MB.
pub(super) const SOURCE_BYTES: u64 = 200 << 20;

/// What a build of `lib/ kernel/ fs/` looks at, apart from all `Kconfig` files, which it reads
/// too; of the whole it is a sixth.
const PARTS: [&str; 22] = [
    "Makefile",
    "Kbuild",
    "Kconfig",
    "arch/Kconfig",
    "block",
    "fs",
    "include",
    "init",
    "io_uring",
    "kernel",
    "lib",
    "mm",
    "scripts",
    "security",
    "tools/arch",
    "tools/build",
    "tools/include",
    "tools/lib/str_error_r.c",
    "tools/lib/string.c",
    "tools/lib/subcmd",
    "tools/objtool",
    "tools/scripts",
];

/// So that two builds give the same bytes, and nobody looks for a repository above the sources.
pub(super) const ENVIRONMENT: [(&str, &str); 4] = [
    ("KBUILD_BUILD_TIMESTAMP", "Sat Jan  1 00:00:00 UTC 2022"),
    ("KBUILD_BUILD_USER", "bench"),
    ("KBUILD_BUILD_HOST", "bench"),
    ("GIT_DIR", "/nonexistent"),
];

/// Whether it can be built here.
pub(super) fn check() -> Result<(), LeftOut> {
    let name = "build of the kernel";
    let programs = [("flex", "flex"), ("bison", "bison"), ("bc", "bc"), ("xz", "xz-utils")];
    check_installed(name, &programs)?;
    if !Path::new(ARCHIVE).is_file() {
        return Err(LeftOut {
            name: name.to_owned(),
            why: format!("{ARCHIVE} is not there"),
            remedy: Some(format!("install {NAME}")),
        });
    }
    match architecture() {
        Some(_) => Ok(()),
        None => Err(LeftOut {
            name: name.to_owned(),
            why: format!("not tried on {}", std::env::consts::ARCH),
            remedy: None,
        }),
    }
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
pub(super) fn unpack(to: &Path, executor: &Executor) -> Result<(), Failure> {
    fs::create_dir_all(to)?;
    let mut unpack = script::script(
        r#"to=$1; archive=$2; shift 2
tar -C "$to" --strip-components=1 --no-same-owner --wildcards -xJf "$archive" "$@""#,
        &[to, Path::new(ARCHIVE)],
    );
    unpack.args(PARTS.map(|part| format!("{NAME}/{part}")));
    unpack.args(architecture().map(|name| format!("{NAME}/arch/{name}")));
    unpack.arg(format!("{NAME}/*/Kconfig*"));
    executor.succeed(unpack, ERRAND_LIMIT)?;
    Ok(())
}

/// Builds `targets` of the sources `$1` in the directory `$2`. The least configuration there is:
/// it is the same everywhere.
pub(super) fn script(targets: &str) -> String {
    format!(
        r#"make -s -C "$1" O="$2" tinyconfig > "$2.log" 2>&1 || {{ tail "$2.log" >&2; exit 1; }}
make -s -j2 -C "$1" O="$2" {targets}"#
    )
}
