//! Watches of the tree's directories.

use std::sync::Arc;

use base::{Changes, Errno, Event, Remote, WatchId, WatchedChange, Watches};
use testkit::{Call, path};
use union::{Branch, Policies, Presence};

use crate::kit::{Built, Source, place, soon};

/// With `count` branches that report changes.
fn watching(count: usize, change: impl Fn(usize, &mut Branch)) -> (Built, Arc<dyn Watches>) {
    let built = Built::with(count, Policies::default(), change);
    (0..count).for_each(|number| built.mem(number).offer_watches());
    let watches = built.union.watches().unwrap();
    (built, watches)
}

fn merged(_: usize, _: &mut Branch) {}

async fn watch(watches: &Arc<dyn Watches>, at: &str) -> WatchId {
    soon(watches.watch(&path(at))).await.unwrap()
}

/// The root and `d`, which all branches have.
async fn watched(count: usize) -> (Built, Arc<dyn Watches>, WatchId) {
    let (built, watches) = watching(count, merged);
    (0..count).for_each(|number| built.mem(number).put_dir("d"));
    watch(&watches, "").await;
    let dir = watch(&watches, "d").await;
    (built, watches, dir)
}

async fn events(watches: &Arc<dyn Watches>, of: WatchId) -> Vec<WatchedChange> {
    match soon(watches.next(of.connection)).await.unwrap() {
        Changes::Events(events) => events,
        Changes::Overflow => panic!("too many events"),
    }
}

fn is_named(change: &WatchedChange, name: &str) -> bool {
    change.name.as_ref().is_some_and(|it| it.as_bytes() == name.as_bytes())
}

#[tokio::test]
async fn changes_of_each_branch_are_those_of_one_watch() {
    let (built, watches, dir) = watched(3).await;
    for number in 0..3 {
        let name = format!("new{number}");
        built.mem(number).put_file(&format!("d/{name}"), "");
        let mut seen = events(&watches, dir).await;
        while !seen.iter().any(|change| is_named(change, &name)) {
            seen = events(&watches, dir).await;
        }
        assert!(seen.iter().all(|change| change.watch == dir));
    }
    // The same watch, if it is requested again.
    assert_eq!(watch(&watches, "d").await, dir);
    watches.end(dir).await;
    assert_eq!((0..3).map(|number| built.mem(number).watched()).sum::<usize>(), 3, "the roots");
}

#[tokio::test]
async fn a_watch_ends_when_another_branch_gets_the_directory_or_loses_it() {
    let (built, watches) = watching(2, merged);
    built.mem(0).put_dir("d");
    watch(&watches, "").await;
    let dir = watch(&watches, "d").await;
    let is_end = |change: &WatchedChange| change.watch == dir && change.event == Event::Ended;
    built.mem(1).put_dir("d");
    while !events(&watches, dir).await.iter().any(is_end) {}
    watches.end(dir).await;
    let dir = watch(&watches, "d").await;
    assert_eq!(built.mem(1).watched(), 2);
    built.mem(1).put_file("d/new", "");
    while !events(&watches, dir).await.iter().any(|change| is_named(change, "new")) {}
    let is_end = |change: &WatchedChange| change.watch == dir && change.event == Event::Ended;
    built.union.unlink(&path("d/new")).await.unwrap();
    built.mem(1).rmdir(&path("d")).await.unwrap();
    while !events(&watches, dir).await.iter().any(is_end) {}
}

#[tokio::test]
async fn a_lost_branch_concerns_only_what_it_may_have() {
    let in_place = |number: usize, branch: &mut Branch| {
        if number > 0 {
            branch.place = place(&format!("P{number}"));
        }
    };
    let (built, watches) = watching(3, in_place);
    let mut all = Vec::new();
    for at in ["", "P1", "P2"] {
        all.push(watch(&watches, at).await);
    }
    built.mem(1).lose_watches();
    assert_eq!(soon(watches.next(all[1].connection)).await, Err(Errno::EHOSTDOWN));
    for (number, name) in [(0, "a"), (2, "b")] {
        built.mem(number).put_file(name, "");
        while !events(&watches, all[number]).await.iter().any(|change| is_named(change, name)) {}
    }
    // It begins anew.
    let again = watch(&watches, "P1").await;
    built.mem(1).put_file("c", "");
    while !events(&watches, again).await.iter().any(|change| is_named(change, "c")) {}
    // The root may have an entry anywhere.
    built.mem(0).lose_watches();
    for lost in [all[0], all[2], again] {
        assert_eq!(soon(watches.next(lost.connection)).await, Err(Errno::EHOSTDOWN));
    }
}

/// What is not known of it is not reported when it is back.
#[tokio::test]
async fn a_branch_that_is_left_out_loses_the_watches_of_what_it_may_have() {
    let optional = |_: usize, branch: &mut Branch| branch.presence = Presence::Optional;
    let (built, watches) = watching(2, optional);
    let root = watch(&watches, "").await;
    built.faults(1).fail(Call::Lstat, 1, Errno::ETIMEDOUT);
    assert_eq!(built.union.lstat(&path("x")).await, Err(Errno::ENOENT));
    assert_eq!(soon(watches.next(root.connection)).await, Err(Errno::EHOSTDOWN));
    assert_eq!(watches.watch(&path("")).await, Err(Errno::EHOSTDOWN));
    // It answers again.
    assert_eq!(built.union.lstat(&path("x")).await, Err(Errno::ENOENT));
    let root = watch(&watches, "").await;
    built.mem(1).put_file("new", "");
    while !events(&watches, root).await.iter().any(|change| is_named(change, "new")) {}
}

#[tokio::test]
async fn lost_reports_of_a_branch_are_lost_for_the_tree() {
    let (built, watches, dir) = watched(2).await;
    built.mem(1).overflow_reports();
    loop {
        if soon(watches.next(dir.connection)).await.unwrap() == Changes::Overflow {
            return;
        }
    }
}

#[tokio::test]
async fn each_branch_that_may_have_a_directory_has_to_report_changes() {
    let sources = vec![Source::new(), Source::new()];
    sources[0].mem.offer_watches();
    let built = Built::of(sources, Policies::default(), |number, branch| {
        if number == 1 {
            branch.place = place("P");
        }
    });
    built.mem(0).put_dir("d");
    let watches = built.union.watches().unwrap();
    watch(&watches, "").await;
    watch(&watches, "d").await;
    assert_eq!(watches.watch(&path("P")).await, Err(Errno::EOPNOTSUPP));
    built.sources[1].link.set_away(true);
    assert_eq!(watches.watch(&path("P")).await, Err(Errno::EHOSTDOWN));
    assert_eq!(watches.watch(&path("absent")).await, Err(Errno::ENOENT));
    // None reports any.
    assert!(Built::new(2).union.watches().is_none());
}

/// It offers no watches before it is connected.
#[tokio::test]
async fn a_branch_that_is_not_connected_yet_is_connected_and_watched() {
    let built = Built::new(2);
    built.mem(0).offer_watches();
    let watches = built.union.watches().unwrap();
    let connecting = built.faults(1).hold(Call::Lstat, 1);
    let watch = tokio::spawn(async move { watches.watch(&path("")).await });
    soon(connecting.arrived()).await;
    built.mem(1).offer_watches();
    connecting.release();
    soon(watch).await.unwrap().unwrap();
    assert_eq!(built.mem(1).watched(), 1);
}

/// The mtime of a merged directory is the latest of all.
#[tokio::test(start_paused = true)]
async fn attributes_without_a_branch_that_answers_late_are_reported_as_outdated() {
    let (built, watches, dir) = watched(2).await;
    let late = built.faults(1).hold(Call::Lstat, 1);
    built.union.lstat(&path("d")).await.unwrap();
    let is_it = |change: &WatchedChange| change.event == Event::Attributes && change.name.is_none();
    assert!(events(&watches, dir).await.iter().any(is_it));
    late.release();
}

/// What is repeated for file watchers depends on it.
#[tokio::test]
async fn the_entries_of_a_name_are_in_the_order_of_search() {
    let in_place = |number: usize, branch: &mut Branch| {
        if number == 2 {
            branch.place = place("P");
        }
    };
    let (built, watches) = watching(3, in_place);
    for number in 0..2 {
        built.mem(number).put_dir("d");
        built.mem(number).put_file("P", "hidden");
    }
    built.mem(1).put_file("d/f", "");
    built.mem(0).put_dir("d/sub");
    let dir = async {
        watch(&watches, "").await;
        watch(&watches, "d").await
    };
    let dir = dir.await;
    let mut sources = Vec::new();
    for number in 0..2 {
        built.mem(number).put_file(&format!("d/new{number}"), "");
        sources.push(events(&watches, dir).await[0].source);
    }
    let entries = async |at: &str| built.union.entries(&path(at)).await;
    let both = |first, second| Ok(vec![(sources[0], first), (sources[1], second)]);
    assert_eq!(entries("d/f").await, both(None, Some(false)));
    assert_eq!(entries("d/sub").await, both(Some(true), None));
    assert_eq!(entries("d/absent").await, both(None, None));
    assert_eq!(entries("absent/absent").await, both(None, None));
    let at_place = entries("P").await.unwrap();
    assert_eq!(at_place[0], (0, Some(true)));
    assert_eq!(at_place.len(), 4);
    // The directory P of the place hides theirs.
    assert_eq!(entries("P/f").await.unwrap().len(), 3);
    built.faults(0).fail(Call::Lstat, 1, Errno::EACCES);
    assert_eq!(entries("d/f").await, Err(Errno::EACCES));
}

#[tokio::test]
async fn one_branch_that_cannot_watch_leaves_none_on_the_others() {
    let (built, watches) = watching(2, merged);
    (0..2).for_each(|number| built.mem(number).put_dir("d"));
    watch(&watches, "").await;
    built.mem(1).limit_watches(1);
    assert_eq!(watches.watch(&path("d")).await, Err(Errno::ENOSPC));
    assert_eq!([0, 1].map(|number| built.mem(number).watched()), [1, 1]);
}

#[tokio::test]
async fn another_set_of_branches_loses_all_watches() {
    let (built, watches, dir) = watched(2).await;
    let source = Source::new();
    source.mem.offer_watches();
    source.mem.put_dir("d");
    let _ = built.union.add(source.branch(2)).unwrap();
    assert_eq!(soon(watches.next(dir.connection)).await, Err(Errno::EHOSTDOWN));
    watch(&watches, "").await;
    let dir = watch(&watches, "d").await;
    source.mem.put_file("d/new", "");
    while !events(&watches, dir).await.iter().any(|change| is_named(change, "new")) {}
    let _ = built.union.remove("gw2:/d").unwrap();
    assert_eq!(soon(watches.next(dir.connection)).await, Err(Errno::EHOSTDOWN));
}
