//! The test suites of others, on a mount: pjdfstest for POSIX's rules about names and attributes,
//! fsx for data.
//!
//! `scripts/setup.sh` installs them into `target/tools`. docs/posix.md tells of the results; the
//! failures which SFTP makes unavoidable are listed in `pjdfstest-failures.txt`.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::helper::served_by_helper;
use crate::mount::Mount;
use crate::process::{run_within, succeed};
use crate::world::World;

/// Cases that failed when docs/posix.md was written, one a line.
const KNOWN_FAILURES: &str = include_str!("pjdfstest-failures.txt");

/// As above, for mounts of a server with the helper.
const KNOWN_FAILURES_WITH_HELPER: &str = include_str!("pjdfstest-failures-with-helper.txt");

/// Fewer cases that pass are a fault of the run, such as a feature that was not asked for.
const LEAST_PASSED: usize = 200;
const LEAST_PASSED_WITH_HELPER: usize = 370;

/// All features that Linux has. `naptime` is what SFTP's time stamps, of whole seconds, need.
const PJDFSTEST_CONFIG: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
utime_now = {}
[settings]
naptime = 1.1
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

const PJDFSTEST_OPTIONS: &str = "allow_other,default_permissions,no_contain_symlinks";

/// Parts of the suite that run side by side, since each spends most of its time sleeping. A
/// pattern is any part of a case's name; together they are all cases, and none twice.
const PARTS: [&[&str]; 4] = [
    &["chmod::", "mkdir::", "open::", "rmdir::", "posix_fallocate::"],
    &["chown::", "mkfifo::", "truncate::", "utimensat::"],
    &["link::"],
    &["mknod::", "rename::"],
];

/// All cases of version 0.2.2.
const CASES: usize = 398;

/// A part takes 15 seconds on two idle cores.
const PART_LIMIT: Duration = Duration::from_secs(150);

/// One of the suites' programs.
#[track_caller]
fn tool(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin").join(name);
    assert!(path.exists(), "{name} is missing: run scripts/setup.sh");
    path
}

/// How the cases of a run ended.
#[derive(Default)]
struct Outcome {
    passed: BTreeSet<String>,
    failed: BTreeSet<String>,
    skipped: BTreeSet<String>,
}

impl Outcome {
    /// Reads what pjdfstest prints: `NAME  RESULT` a case, with reasons indented below it.
    #[track_caller]
    fn add(&mut self, printed: &str) {
        for line in printed.lines().filter(|line| !line.starts_with(char::is_whitespace)) {
            let mut words = line.split_whitespace();
            let set = match (words.next_back(), words.clone().count()) {
                (Some("ok"), 1) => &mut self.passed,
                (Some("FAILED"), 1) => &mut self.failed,
                (Some("skipped"), 1) => &mut self.skipped,
                _ => continue,
            };
            let name = words.next().unwrap_or_default();
            assert!(set.insert(name.to_owned()), "{name} was run twice");
        }
    }

    fn count(&self) -> usize {
        self.passed.len() + self.failed.len() + self.skipped.len()
    }
}

/// Runs one part of the suite; what it printed.
#[track_caller]
fn run_part(config: &Path, mount: &Mount, secondary: &Path, patterns: &[&str]) -> String {
    // `timeout` ends it, so that what it has printed until then tells where it hangs.
    let mut command = Command::new("timeout");
    command.args(["-k", "5", &PART_LIMIT.as_secs().to_string()]).arg(tool("pjdfstest"));
    command.env("NO_COLOR", "1").env("RUST_BACKTRACE", "0");
    command.arg("-c").arg(config).arg("-p").arg(mount.place()).arg("-s").arg(secondary);
    let ended = run_within(PART_LIMIT * 2, command.arg("--").args(patterns));
    assert!(ended.stdout.contains("\nSummary: "), "{patterns:?}: {ended:?}");
    ended.stdout
}

#[test]
fn pjdfstest_fails_where_the_list_says() {
    check_pjdfstest(&World::new(), KNOWN_FAILURES, LEAST_PASSED);
}

#[test]
fn pjdfstest_with_the_helper_fails_where_its_list_says() {
    check_pjdfstest(&served_by_helper(""), KNOWN_FAILURES_WITH_HELPER, LEAST_PASSED_WITH_HELPER);
}

/// docs/posix.md: no case fails but those that are listed, and none of these passes.
fn check_pjdfstest(world: &World, known: &str, least_passed: usize) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: pjdfstest changes users, which takes root");
        return;
    }
    // Other users work in the mount, and have to get there.
    fs::set_permissions(world.local(""), fs::Permissions::from_mode(0o755)).unwrap();
    let config = world.local("pjdfstest.toml");
    fs::write(&config, PJDFSTEST_CONFIG).unwrap();
    let secondary = world.local("secondary");
    fs::create_dir(&secondary).unwrap();
    // As long as the mount point's path: the suite goes to PATH_MAX, which counts on both sides.
    let served = world.local("srv0");
    fs::create_dir(&served).unwrap();
    let mount = world.mount_of(&world.source_of(&served), &["-o", PJDFSTEST_OPTIONS]);
    let run = |patterns: &[&str]| run_part(&config, &mount, &secondary, patterns);
    let printed: Vec<String> = thread::scope(|scope| {
        let parts = PARTS.map(|part| scope.spawn(move || run(part)));
        parts.into_iter().map(|part| part.join().unwrap()).collect()
    });
    let mut outcome = Outcome::default();
    printed.iter().for_each(|text| outcome.add(text));
    assert_eq!(outcome.count(), CASES, "{printed:?}");

    let known: BTreeSet<String> = known.lines().map(str::to_owned).collect();
    let mut joined: Vec<_> = outcome.failed.difference(&known).cloned().collect();
    // When the kernel is short of memory it may forget an inode between two looks at it, and with
    // it the precise time of its change, which SFTP does not carry. Not twice, though.
    joined.retain(|case| {
        let again = run(&[case]);
        let mut outcome = Outcome::default();
        outcome.add(&again);
        eprintln!("{case} failed:{}\nonce more:{}", reason(case, &printed), reason(case, &[again]));
        outcome.failed.contains(case)
    });
    let left: Vec<_> = known.difference(&outcome.failed).collect();
    assert!(joined.is_empty(), "failures that are not listed: {joined:#?}");
    assert!(left.is_empty(), "listed, but they do not fail: {left:#?}");
    println!("{} passed, {} skipped", outcome.passed.len(), outcome.skipped.len());
    assert!(outcome.passed.len() >= least_passed, "{} passed", outcome.passed.len());
    mount.unmount();
}

/// The lines that tell why a case has failed.
fn reason(case: &str, printed: &[String]) -> String {
    let lines = printed.iter().flat_map(|text| text.lines());
    let lines = lines.skip_while(|line| line.split_whitespace().next() != Some(case));
    let indented = lines.skip(1).take_while(|line| line.starts_with(char::is_whitespace));
    indented.map(|line| format!("\n    {}", line.trim())).collect()
}

/// Everything that fsx can do to one file: mapped and plain, with and without its caches.
const FSX_PLAIN: &str = "
flen = 1048576
[opsize]
max = 65536
[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
truncate = 10
fsync = 1
fdatasync = 1
invalidate = 1
";

/// Copies inside of the kernel or of the server, and advice, on top of it.
const FSX_COPIES: &str = "
sendfile = 5
posix_fadvise = 3
copy_file_range = 10
";

const FSX_SEEDS: [u32; 3] = [1, 2, 3];
const FSX_OPERATIONS: u32 = 5_000;

/// Runs fsx over a file of the mount with these weights, for each seed.
fn run_fsx(world: &World, mount: &Mount, weights: &str) {
    let config = world.local("fsx.toml");
    fs::write(&config, weights).unwrap();
    // Where it leaves the content that it expected.
    let artifacts: PathBuf = world.local("");
    for seed in FSX_SEEDS {
        let mut command = Command::new(tool("fsx"));
        command.arg("-f").arg(&config).arg("-P").arg(&artifacts).arg("-S").arg(seed.to_string());
        command.arg("-N").arg(FSX_OPERATIONS.to_string());
        succeed(command.arg(mount.at(format!("seed{seed}"))));
    }
}

#[test]
fn fsx_finds_every_byte_where_it_put_it() {
    let world = World::new();
    let mount = world.mount(&[]);
    run_fsx(&world, &mount, FSX_PLAIN);
    mount.unmount();
}

#[test]
fn fsx_with_copies_finds_every_byte_where_it_put_it() {
    let world = World::new();
    let mount = world.mount(&[]);
    run_fsx(&world, &mount, &format!("{FSX_PLAIN}{FSX_COPIES}"));
    mount.unmount();
}
