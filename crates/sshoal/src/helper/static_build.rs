//! Finds a build of this program that runs on any Linux of an architecture: a static one.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use cli::Problem;

/// Where packages put builds for other machines.
const LIBRARY: &str = "/usr/lib/sshoal";

/// The headers of a program are within its first bytes, this many at most.
const HEADERS_MAX_BYTES: u64 = 64 * 1024;

/// An architecture that builds exist for.
#[derive(Debug, PartialEq, Eq)]
pub struct Architecture {
    /// As `uname -m` prints it, first the usual name.
    names: &'static [&'static str],
    /// `e_machine` of ELF.
    machine: u16,
    /// The compiler's name of its static builds.
    target: &'static str,
}

const ARCHITECTURES: &[Architecture] = &[
    architecture(&["x86_64", "amd64"], 62, "x86_64-unknown-linux-musl"),
    architecture(&["aarch64", "arm64"], 183, "aarch64-unknown-linux-musl"),
    architecture(&["armv7l", "armv7", "armv8l", "arm"], 40, "armv7-unknown-linux-musleabihf"),
    architecture(&["i686", "i586", "i386", "x86"], 3, "i686-unknown-linux-musl"),
    architecture(&["riscv64"], 243, "riscv64gc-unknown-linux-musl"),
];

const fn architecture(
    names: &'static [&'static str],
    machine: u16,
    target: &'static str,
) -> Architecture {
    Architecture { names, machine, target }
}

impl Architecture {
    /// The architecture with this name.
    pub fn named(name: &str) -> Option<&'static Architecture> {
        ARCHITECTURES.iter().find(|it| it.names.contains(&name))
    }

    /// The usual names of all.
    pub fn all_names() -> Vec<&'static str> {
        ARCHITECTURES.iter().map(Architecture::name).collect()
    }

    /// The usual name.
    pub fn name(&self) -> &'static str {
        self.names[0]
    }
}

/// The content of a static build for `architecture`.
pub fn find(architecture: &Architecture) -> Result<Vec<u8>, Problem> {
    let program = std::env::current_exe().ok();
    let places = places(program.as_deref().and_then(Path::parent), architecture);
    // The running program may have been replaced or removed since.
    let own = content(Path::new("/proc/self/exe"), architecture);
    let found = own.or_else(|| places.iter().find_map(|place| content(place, architecture)));
    found.ok_or_else(|| {
        let name = architecture.name();
        let target = architecture.target;
        let problem = Problem::new("helper", format!("no static build of sshoal for {name} is here"));
        problem.hint(format!(
            "build one by `make static STATIC_TARGET={target}`, and put target/{target}/release/sshoal \
             at {LIBRARY}/sshoal-{name}"
        ))
    })
}

/// The content of a file, if it is a static program for `architecture`.
fn content(path: &Path, architecture: &Architecture) -> Option<Vec<u8>> {
    let mut file =
        fs::metadata(path).is_ok_and(|it| it.is_file()).then(|| File::open(path).ok())??;
    let mut content = Vec::new();
    file.by_ref().take(HEADERS_MAX_BYTES).read_to_end(&mut content).ok()?;
    if machine_of_static(&content) != Some(architecture.machine) {
        return None;
    }
    file.read_to_end(&mut content).ok()?;
    Some(content)
}

/// Where builds are looked for, beside the running one in `directory`.
fn places(directory: Option<&Path>, architecture: &Architecture) -> Vec<PathBuf> {
    let named = format!("sshoal-{}", architecture.name());
    let mut places = Vec::new();
    if let Some(directory) = directory {
        places.push(directory.join("sshoal-static"));
        places.push(directory.join(&named));
        places.push(directory.join("../lib/sshoal").join(&named));
        // Of `make static`, for a program in target/release or target/debug.
        places.push(directory.join("..").join(architecture.target).join("release/sshoal"));
    }
    places.push(Path::new(LIBRARY).join("sshoal-static"));
    places.push(Path::new(LIBRARY).join(named));
    places
}

/// `e_machine` of a program that needs no loader; `None` for all other content.
fn machine_of_static(content: &[u8]) -> Option<u16> {
    const PT_INTERP: u32 = 3;
    const LITTLE_ENDIAN: u8 = 1;
    // All architectures above are little-endian. Offsets are those of elf(5).
    let number = |at: usize, len: usize| {
        let bytes = content.get(at..at.checked_add(len)?)?;
        Some(bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)))
    };
    let [0x7f, b'E', b'L', b'F', class, LITTLE_ENDIAN] = content.get(..6)? else { return None };
    let (offset_at, word, size_at) = match class {
        1 => (28, 4, 42),
        2 => (32, 8, 54),
        _ => return None,
    };
    let headers = usize::try_from(number(offset_at, word)?).ok()?;
    let (size, count) = (number(size_at, 2)? as usize, number(size_at + 2, 2)? as usize);
    for index in 0..count {
        if number(headers.checked_add(index * size)?, 4)? == u64::from(PT_INTERP) {
            return None;
        }
    }
    Some(number(18, 2)? as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file with one program header of this type.
    fn elf(class: u8, machine: u16, kind: u32) -> Vec<u8> {
        let (offset_at, size_at, header) = if class == 2 { (32, 54, 64) } else { (28, 42, 52) };
        let mut content = vec![0; header + 64];
        content[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1, 1]);
        content[18..20].copy_from_slice(&machine.to_le_bytes());
        content[offset_at] = header as u8;
        content[size_at] = 56;
        content[size_at + 2] = 1;
        content[header..header + 4].copy_from_slice(&kind.to_le_bytes());
        content
    }

    #[test]
    fn only_a_static_program_has_a_machine() {
        assert_eq!(machine_of_static(&elf(2, 62, 1)), Some(62));
        assert_eq!(machine_of_static(&elf(1, 40, 1)), Some(40));
        assert_eq!(machine_of_static(&elf(2, 62, 3)), None, "it has an interpreter");
        let whole = elf(2, 62, 1);
        for len in 0..65 {
            assert_eq!(machine_of_static(&whole[..len]), None, "{len}");
        }
        assert_eq!(machine_of_static(b"#!/bin/sh\nexec sshoal \"$@\"\n"), None);
    }

    #[test]
    fn the_running_program_is_of_an_architecture() {
        let Some(own) = Architecture::named(std::env::consts::ARCH) else {
            eprintln!("skipped: there are no builds for this machine");
            return;
        };
        let content = fs::read("/proc/self/exe").unwrap();
        assert_eq!(content[18..20], own.machine.to_le_bytes());
    }

    #[test]
    fn builds_are_found_beside_the_program_and_where_make_puts_them() {
        let architecture = Architecture::named("arm64").unwrap();
        let places = places(Some(Path::new("/src/target/debug")), architecture);
        for place in [
            "/src/target/debug/sshoal-static",
            "/src/target/debug/../aarch64-unknown-linux-musl/release/sshoal",
            "/usr/lib/sshoal/sshoal-aarch64",
        ] {
            assert!(places.contains(&PathBuf::from(place)), "{place}: {places:?}");
        }
    }
}
