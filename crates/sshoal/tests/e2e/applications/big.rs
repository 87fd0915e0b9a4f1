//! The kernel's sources, 80,000 files: only with `SSHOAL_TEST_BIG=1`, since it takes minutes.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::mount::Mount;
use crate::process::{Ended, run_within};
use crate::world::{World, is_big_run};

/// It takes a tenth of that on two cores.
const LIMIT: Duration = Duration::from_secs(1_200);

/// What `scripts/setup.sh --big` installs.
fn archive() -> PathBuf {
    let found = fs::read_dir("/usr/src").unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = found
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with("linux-source-") && name.contains(".tar.")
        })
        .collect();
    found.sort();
    found.pop().expect("no kernel sources in /usr/src: run scripts/setup.sh --big")
}

#[track_caller]
fn timed(what: &str, command: &mut Command) -> Ended {
    let ended = run_within(LIMIT, command);
    assert!(ended.status.success(), "{what}: {ended:?}");
    eprintln!("{what}: {:.1} s", ended.took.as_secs_f64());
    ended
}

#[test]
fn the_kernel_s_sources_are_unpacked_and_compared() {
    if !is_big_run() {
        eprintln!("skipped: SSHOAL_TEST_BIG=1 unpacks the kernel's sources");
        return;
    }
    let world = World::new();
    let (local, archive) = (world.local("linux"), archive());
    fs::create_dir(&local).unwrap();
    let unpack = |into: PathBuf| {
        let mut command = Command::new("tar");
        command.arg("-C").arg(into).arg("-xf").arg(&archive);
        command
    };
    timed("tar xf, local disk", &mut unpack(local.clone()));
    let mount = world.mount(&[]);
    timed("tar xf into the mount", &mut unpack(mount.place().to_owned()));
    let diff = |mount: &Mount| {
        let mut command = Command::new("diff");
        command.args(["-r", "--no-dereference"]).arg(&local).arg(mount.place());
        command
    };
    let differences = timed("diff -r, warm", &mut diff(&mount));
    assert_eq!(differences.stdout, "");
    eprintln!("memory of the daemon at most: {} KiB", mount.peak_memory_kib());
    mount.unmount();

    let mount = world.mount(&[]);
    assert_eq!(timed("diff -r, cold", &mut diff(&mount)).stdout, "");
    timed("rm -rf", Command::new("rm").arg("-rf").args(children(&mount)));
    assert_eq!(fs::read_dir(world.served("")).unwrap().count(), 0);
    mount.unmount();
}

fn children(mount: &Mount) -> Vec<PathBuf> {
    fs::read_dir(mount.place()).unwrap().map(|entry| entry.unwrap().path()).collect()
}
