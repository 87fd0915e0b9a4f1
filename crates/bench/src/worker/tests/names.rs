//! Operations with names: done, counted, and judged by what they give.

use super::*;

const FILE: Entry = Entry::EmptyFile;

fn job(target: Target, operation: Operation) -> NameJob {
    NameJob {
        target,
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

fn done(target: &Target, operation: Operation) -> Result<Done, Failure> {
    run(&Job::Names(job(target.clone(), operation)))
}

fn made(path: &Path, entry: Entry) -> [Target; 2] {
    let operation = match entry {
        Entry::Directory => Operation::Mkdir,
        Entry::EmptyFile => Operation::Create,
    };
    let [local, remote] = targets(path);
    run(&Job::Names(NameJob { make_directory: true, ..job(local.clone(), operation) })).unwrap();
    [local, remote]
}

#[test]
fn a_directory_is_filled_changed_and_emptied_in_each_way() {
    let dir = tempfile::tempdir().unwrap();
    for target in targets(&dir.path().join("d")) {
        let first = NameJob { make_directory: true, ..job(target.clone(), Operation::Create) };
        let created = run(&Job::Names(first)).unwrap();
        assert_eq!(created.operations, 30);
        assert_eq!(created.latency.unwrap().count, 30);
        assert!(!created.verified, "only a look from elsewhere can tell");
        for number in 0..30 {
            let content = fs::read(dir.path().join("d").join(NameJob::name("n", number)));
            assert_eq!(content.unwrap(), b"");
        }
        assert!(done(&target, Operation::Stat(FILE)).unwrap().verified);
        done(&target, Operation::OpenClose).unwrap();
        done(&target, Operation::Rename { prefix: "m".to_owned() }).unwrap();
        done(&target, Operation::StatAbsent).unwrap();
        let renamed =
            |operation| NameJob { prefix: "m".to_owned(), ..job(target.clone(), operation) };
        run(&Job::Names(renamed(Operation::Stat(FILE)))).unwrap();
        run(&Job::Names(renamed(Operation::Unlink))).unwrap();
        done(&target, Operation::Mkdir).unwrap();
        done(&target, Operation::Stat(Entry::Directory)).unwrap();
        done(&target, Operation::Rmdir).unwrap();
        fs::remove_dir(dir.path().join("d")).expect("something was left in it");
    }
}

#[test]
fn operations_begin_anew_after_the_last_name() {
    let dir = tempfile::tempdir().unwrap();
    for target in made(&dir.path().join("d"), FILE) {
        let often = NameJob { operations: 100, warm: true, ..job(target, Operation::Stat(FILE)) };
        let done = run(&Job::Names(often)).unwrap();
        assert_eq!((done.operations, done.latency.unwrap().count), (100, 100));
    }
}

#[test]
fn listings_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let [local, remote] = made(&dir.path().join("d"), FILE);
    fs::rename(dir.path().join("d"), dir.path().join("n000000")).unwrap();
    let list = |target: &Target, prefix: &str, names| {
        let path = dir.path().to_owned();
        let target = match target {
            Target::Sftp { ssh, .. } => Target::Sftp { ssh: ssh.clone(), path },
            _ => Target::Path(path),
        };
        let operation = Operation::List { prefix: prefix.to_owned(), names };
        run(&Job::Names(NameJob { names: 1, operations: 1, ..job(target, operation) }))
    };
    for target in [local, remote] {
        assert!(list(&target, "n", 30).unwrap().verified);
        assert_eq!(wrong(list(&target, "n", 31)), "n000030 is not listed");
        let stranger = wrong(list(&target, "n", 29));
        assert_eq!(stranger, "n000029 is listed, and should not be there");
        wrong(list(&target, "x", 30));
    }
}

#[test]
fn what_is_not_as_expected_is_wrong_data() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d");
    for target in made(&path, FILE) {
        wrong(done(&target, Operation::StatAbsent));
        fs::write(path.join("n000003"), "x").unwrap();
        wrong(done(&target, Operation::Stat(FILE)));
        wrong(done(&target, Operation::Stat(Entry::Directory)));
    }
}

#[test]
fn no_operation_is_begun_after_the_time() {
    let dir = tempfile::tempdir().unwrap();
    for target in made(&dir.path().join("d"), FILE) {
        let short = NameJob {
            operations: u32::MAX,
            seconds: Some(0.05),
            ..job(target, Operation::Stat(FILE))
        };
        let done = run(&Job::Names(short)).unwrap();
        assert!(done.operations > 30 && (0.05..5.0).contains(&done.seconds), "{done:?}");
    }
}

#[test]
fn what_fails_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for target in targets(dir.path()) {
        for operation in [Operation::Stat(FILE), Operation::OpenClose, Operation::Unlink] {
            let failure = done(&target, operation).unwrap_err();
            assert!(
                matches!(&failure, Failure::Failed { why } if why.contains("n0000")),
                "{failure}"
            );
        }
    }
}
