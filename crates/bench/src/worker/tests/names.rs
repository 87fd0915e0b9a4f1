//! Operations with names: done, counted, and judged by what they give.

use super::*;

const FILE: Entry = Entry::EmptyFile;

fn job(directory: &Path, operation: Operation) -> NameJob {
    NameJob {
        directory: directory.to_owned(),
        operation,
        prefix: "n".to_owned(),
        names: 30,
        operations: 30,
        seconds: None,
        order: Order::Random { seed: 1 },
        make_directory: false,
        warm: false,
    }
}

fn done(directory: &Path, operation: Operation) -> Result<Done, Failure> {
    run(&Job::Names(job(directory, operation)))
}

/// A directory with thirty files, in one of its own.
fn made() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d");
    let job = NameJob { make_directory: true, ..job(&path, Operation::Create) };
    let created = run(&Job::Names(job)).unwrap();
    assert_eq!(created.operations, 30);
    assert_eq!(created.latency.unwrap().count, 30);
    assert!(!created.verified, "only a look from elsewhere can tell");
    (dir, path)
}

#[test]
fn a_directory_is_filled_changed_and_emptied() {
    let (_dir, path) = made();
    for number in 0..30 {
        assert_eq!(fs::read(path.join(NameJob::name("n", number))).unwrap(), b"");
    }
    assert!(done(&path, Operation::Stat(FILE)).unwrap().verified);
    done(&path, Operation::OpenClose).unwrap();
    done(&path, Operation::Rename { prefix: "m".to_owned() }).unwrap();
    done(&path, Operation::StatAbsent).unwrap();
    let renamed = |operation| NameJob { prefix: "m".to_owned(), ..job(&path, operation) };
    run(&Job::Names(renamed(Operation::Stat(FILE)))).unwrap();
    run(&Job::Names(renamed(Operation::Unlink))).unwrap();
    done(&path, Operation::Mkdir).unwrap();
    done(&path, Operation::Stat(Entry::Directory)).unwrap();
    done(&path, Operation::Rmdir).unwrap();
    fs::remove_dir(path).expect("something was left in it");
}

#[test]
fn operations_begin_anew_after_the_last_name() {
    let (_dir, path) = made();
    let often = NameJob { operations: 100, warm: true, ..job(&path, Operation::Stat(FILE)) };
    let done = run(&Job::Names(often)).unwrap();
    assert_eq!((done.operations, done.latency.unwrap().count), (100, 100));
}

#[test]
fn listings_are_compared() {
    let (dir, path) = made();
    fs::rename(path, dir.path().join("n000000")).unwrap();
    let list = |prefix: &str, names| {
        let operation = Operation::List { prefix: prefix.to_owned(), names };
        run(&Job::Names(NameJob { names: 1, operations: 1, ..job(dir.path(), operation) }))
    };
    assert!(list("n", 30).unwrap().verified);
    assert_eq!(wrong(list("n", 31)), "n000030 is not listed");
    assert_eq!(wrong(list("n", 29)), "n000029 is listed, and should not be there");
    wrong(list("x", 30));
}

#[test]
fn what_is_not_as_expected_is_wrong_data() {
    let (_dir, path) = made();
    wrong(done(&path, Operation::StatAbsent));
    wrong(done(&path, Operation::Stat(Entry::Directory)));
    fs::write(path.join("n000003"), "x").unwrap();
    wrong(done(&path, Operation::Stat(FILE)));
}

#[test]
fn no_operation_is_begun_after_the_time() {
    let (_dir, path) = made();
    let short =
        NameJob { operations: u32::MAX, seconds: Some(0.05), ..job(&path, Operation::Stat(FILE)) };
    let done = run(&Job::Names(short)).unwrap();
    assert!(done.operations > 30 && (0.05..5.0).contains(&done.seconds), "{done:?}");
}

#[test]
fn what_fails_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for operation in [Operation::Stat(FILE), Operation::OpenClose, Operation::Unlink] {
        let failure = done(dir.path(), operation).unwrap_err();
        assert!(matches!(&failure, Failure::Failed { why } if why.contains("n0000")), "{failure}");
    }
}
