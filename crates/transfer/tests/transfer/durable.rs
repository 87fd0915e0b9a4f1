//! Copies that are on the target's disk when they are there (`fsync`).

use std::sync::Arc;

use base::Errno;
use testkit::{Call, FaultyRemote, path};
use transfer::{Doing, Fault, Options, Owners, Tree};

use crate::kit::{content, copy_with, job, local_dir, mem, run};

fn durable() -> Options {
    Options { fsync: true, ..Options::default() }
}

fn source() -> Arc<testkit::MemRemote> {
    mem(|remote| {
        remote.put_file("a/small", "content");
        remote.put_file("a/b/large", content(5 << 20, 1));
        remote.put_symlink("c/link", "nowhere");
    })
}

#[tokio::test]
async fn each_file_and_each_directory_is_synced() {
    let target = mem(|_| {});
    let outcome = copy_with(&source(), &target, durable()).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!(target.calls(Call::Fsync), 2);
    // `a`, `a/b`, `c` and the target itself.
    assert_eq!(target.calls(Call::Fsyncdir), 4);
    let outcome = copy_with(&source(), &target, Options::default()).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!((target.calls(Call::Fsync), target.calls(Call::Fsyncdir)), (2, 4));
}

#[tokio::test]
async fn a_file_has_its_name_when_it_is_synced() {
    let source = mem(|remote| remote.put_file("f", "content"));
    let target = mem(|_| {});
    let faulty = Arc::new(FaultyRemote::new(target.clone()));
    let (file, directory) = (faulty.hold(Call::Fsync, 1), faulty.hold(Call::Fsyncdir, 1));
    let copying = {
        let faulty = faulty.clone();
        tokio::spawn(async move { copy_with(&source, &faulty, durable()).await })
    };
    file.arrived().await;
    assert!(!target.exists("f"));
    file.release();
    directory.arrived().await;
    assert!(target.exists("f") && !copying.is_finished());
    directory.release();
    assert!(copying.await.unwrap().is_complete());
}

#[tokio::test]
async fn what_cannot_be_synced_is_a_problem() {
    for (call, errno) in [(Call::Fsync, Errno::EOPNOTSUPP), (Call::Fsyncdir, Errno::EIO)] {
        let source = mem(|remote| remote.put_file("f", "content"));
        let target = mem(|_| {});
        let faulty = Arc::new(FaultyRemote::new(target.clone()));
        faulty.fail_always(call, errno);
        let outcome = copy_with(&source, &faulty, durable()).await;
        let name = if call == Call::Fsync { path("f") } else { path("") };
        let problem = Fault::Failed { doing: Doing::Sync, errno }.of(&name);
        assert_eq!(outcome.problems, std::slice::from_ref(&problem));
        assert_eq!(target.exists("f"), call == Call::Fsyncdir);
        let says = problem.to_string();
        assert_eq!(says.contains("leave --fsync out"), call == Call::Fsync, "{says}");
    }
}

/// The next run finds the names there, and does not sync them.
#[tokio::test]
async fn a_directory_whose_attributes_are_refused_is_synced() {
    let source = mem(|remote| remote.put_file("d/f", "content"));
    let target = mem(|_| {});
    let faulty = Arc::new(FaultyRemote::new(target.clone()));
    faulty.fail_always(Call::Setattr, Errno::EPERM);
    let outcome = copy_with(&source, &faulty, durable()).await;
    // `d` and the target itself.
    let problems = ["d", ""].map(|name| {
        let (name, doing, errno) = (path(name), Doing::SetAttr, Errno::EPERM);
        Fault::Failed { doing, errno }.of(&name)
    });
    assert_eq!(outcome.problems, problems);
    assert_eq!(target.calls(Call::Fsyncdir), 2);
}

#[tokio::test]
async fn a_directory_of_this_machine_is_synced_too() {
    let (dir, local) = local_dir();
    let mut job = job(source(), local.clone(), durable());
    job.target = Tree::local(local, dir.path()).at(path("new"));
    let outcome = run(job).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!(std::fs::read(dir.path().join("new/a/small")).unwrap(), b"content");
}

#[tokio::test]
async fn what_a_server_reports_when_a_file_is_closed_is_a_problem() {
    for owners in [Owners::Leave, Owners::Numbers] {
        for size in [7, 5 << 20] {
            let source = mem(|remote| remote.put_file("f", content(size, 1)));
            let target = mem(|remote| remote.put_file("f", "old"));
            let faulty = Arc::new(FaultyRemote::new(target.clone()));
            faulty.fail(Call::Finish, 1, Errno::EDQUOT);
            let options = Options { owners: owners.clone(), ..Options::default() };
            let outcome = copy_with(&source, &faulty, options).await;
            assert_eq!(faulty.not_reached(), 0);
            let (name, doing, errno) = (path("f"), Doing::Write, Errno::EDQUOT);
            assert_eq!(outcome.problems, [Fault::Failed { doing, errno }.of(&name)]);
            assert_eq!(target.content("f"), b"old");
        }
    }
}
