//! Each job against a directory of this machine and over SFTP, with right and with wrong data.

mod data;
mod names;
mod protocol;

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::*;
use crate::corpus;
use crate::corpus::content::Content;
use crate::executor::Executor;

/// Where Debian has it.
const SFTP_SERVER: &str = "/usr/lib/openssh/sftp-server";

const SEED: u64 = 42;

/// Set where the test [`a_process_does_a_job`] is to be the worker.
const BE_WORKER: &str = "SSHOAL_TEST_BE_WORKER";

/// In front of the report, since a test's runner prints words of its own.
const REPORT: &str = "REPORT ";

/// A worker, while tests run: this program, told to run one test, which is the worker.
pub(super) fn process() -> io::Result<Command> {
    let test = format!("{}::a_process_does_a_job", module_path!().split_once("::").unwrap().1);
    let script = format!(r#""$0" --exact --nocapture {test} | sed -n 's/^.*{REPORT}//p'"#);
    let mut command = Command::new("sh");
    command.args(["-c", &script]).arg(std::env::current_exe()?).env(BE_WORKER, "1");
    Ok(command)
}

#[test]
fn a_process_does_a_job() {
    if std::env::var_os(BE_WORKER).is_some() {
        print!("{REPORT}");
        main();
        println!();
        return;
    }
    let (_dir, path) = right_file();
    let read = |path: &Path| {
        let check = Check::Content { seed: SEED };
        let job = Job::Read { transfer: all_of(Target::Path(path.to_owned())), check };
        let limit = std::time::Duration::from_secs(60);
        let ran = Executor::new().run(program(&job).unwrap(), limit).unwrap();
        report(&ran.output.stdout)
    };
    let done = read(&path).unwrap();
    assert_eq!((done.bytes, done.verified), (FILE_BYTES, true));
    let failure = read(Path::new("/nowhere")).unwrap_err();
    assert!(failure.to_string().contains("No such file"), "{failure}");
}

/// Not a multiple of any record, but of a block.
const FILE_BYTES: u64 = (1 << 20) + 3 * 4096;

fn bare_server() -> Vec<String> {
    vec![SFTP_SERVER.to_owned()]
}

fn shell(script: &str) -> Vec<String> {
    ["sh", "-c", script].map(str::to_owned).into()
}

/// The same file in all ways in which it can be come by.
fn targets(path: &Path) -> [Target; 2] {
    let path = path.to_owned();
    [Target::Path(path.clone()), Target::Sftp { ssh: bare_server(), path }]
}

fn all_of(target: Target) -> Transfer {
    Transfer {
        target,
        file_bytes: FILE_BYTES,
        record_bytes: 64 << 10,
        order: Order::Sequential,
        until: Until::Pass,
        depth: 4,
        direct: false,
    }
}

fn scattered(target: Target, depth: u32) -> Transfer {
    Transfer {
        record_bytes: 4096,
        order: Order::Random { seed: 3 },
        depth,
        direct: true,
        ..all_of(target)
    }
}

fn content() -> Check {
    Check::Content { seed: SEED }
}

fn right_file() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = corpus::file(dir.path(), "file", FILE_BYTES, SEED).unwrap();
    (dir, path)
}

fn read(transfer: Transfer, check: Check) -> Result<Done, Failure> {
    run(&Job::Read { transfer, check })
}

/// Changes the file's bytes.
fn spoil(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

/// What is said of wrong data.
fn wrong(outcome: Result<Done, Failure>) -> String {
    match outcome {
        Err(Failure::WrongData { why }) => why,
        other => panic!("wrong data were not found: {other:?}"),
    }
}

#[test]
fn a_job_comes_back_as_it_was_sent() {
    let job = Job::Read {
        transfer: scattered(targets(Path::new("/x"))[1].clone(), 32),
        check: content(),
    };
    let mut input = String::new();
    job_file(&job).unwrap().read_to_string(&mut input).unwrap();
    assert_eq!(serde_json::from_str::<Job>(&input).unwrap(), job);
}

#[test]
fn a_report_is_a_result_again() {
    let done = Done { seconds: 1.5, bytes: 3, ..Done::default() };
    let json = serde_json::to_vec(&Ok::<_, Failure>(done.clone())).unwrap();
    assert_eq!(report(&json), Ok(done));
    let failure = Failure::wrong("zeros");
    let json = serde_json::to_vec(&Err::<Done, _>(failure.clone())).unwrap();
    assert_eq!(report(&json), Err(failure));
    assert!(report(b"").is_err());
}

#[test]
fn words_are_those_of_the_command() {
    let mut command = Command::new("ssh");
    command.args(["-F", "a b"]);
    assert_eq!(words_of(&command).unwrap(), ["ssh", "-F", "a b"]);
    command.arg(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"\xff"));
    assert!(words_of(&command).is_err());
}
