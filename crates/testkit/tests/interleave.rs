//! Interleaved clients: every order occurs, a seed reproduces its order, and a killed client has
//! ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{Access, Errno, OpenFlags, Remote, RenameMode};
use testkit::interleave::Interleave;
use testkit::{FaultyRemote, MemRemote, path};

type Link = Arc<FaultyRemote<MemRemote>>;

fn link(server: &Arc<MemRemote>) -> Link {
    Arc::new(FaultyRemote::new(server.clone()))
}

/// Two clients that each create two directories; the order seen by the server.
async fn order(seed: u64) -> Vec<String> {
    let server = Arc::new(MemRemote::new());
    let mut play = Interleave::new(seed);
    for name in ["a", "b"] {
        let link = link(&server);
        let through = link.clone();
        play.client(name, [link], async move {
            for number in ["1", "2"] {
                through.mkdir(&path(&format!("{name}{number}")), 0o755).await.unwrap();
            }
        });
    }
    let seen = Mutex::new(Vec::new());
    let ends = play
        .run(|_| {
            let mut seen = seen.lock().unwrap();
            for name in server.names("") {
                if !seen.contains(&name) {
                    seen.push(name);
                }
            }
        })
        .await;
    assert_eq!(ends, [Some(()), Some(())]);
    seen.into_inner().unwrap()
}

#[tokio::test(start_paused = true)]
async fn all_orders_occur_and_a_seed_reproduces_its_order() {
    let mut orders = BTreeSet::new();
    for seed in 0..100 {
        let seen = order(seed).await;
        assert_eq!(seen, order(seed).await, "seed {seed}");
        orders.insert(seen);
    }
    assert_eq!(orders.len(), 6, "{orders:?}");
}

/// Increments the number in a file, without and with a lock around it.
async fn increment(link: Link, locked: bool) {
    if locked {
        while link.mkdir(&path("lock"), 0o755).await == Err(Errno::EEXIST) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
    let opened = link.open(&path("number"), OpenFlags::existing(Access::ReadWrite)).await.unwrap();
    let number = link.read(opened.fh, 0, 1).await.unwrap().to_vec()[0];
    link.write(opened.fh, 0, vec![number + 1].into()).await.unwrap();
    link.close(opened.fh);
    if locked {
        link.rmdir(&path("lock")).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_update_is_found_and_a_lock_prevents_it() {
    let mut ends = BTreeMap::<(bool, u8), usize>::new();
    for seed in 0..60 {
        for locked in [false, true] {
            let server = Arc::new(MemRemote::new());
            server.put_file("number", [0]);
            let mut play = Interleave::new(seed);
            for name in ["a", "b"] {
                let link = link(&server);
                play.client(name, [link.clone()], increment(link, locked));
            }
            play.run(|_| {}).await;
            *ends.entry((locked, server.content("number")[0])).or_default() += 1;
        }
    }
    assert!(ends[&(false, 1)] > 5 && ends[&(false, 2)] > 5, "{ends:?}");
    assert_eq!(ends.get(&(true, 2)), Some(&60), "{ends:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_killed_makes_no_further_call_and_leaves_no_handle() {
    let (mut killed, mut finished) = (0, 0);
    for seed in 0..60 {
        let server = Arc::new(MemRemote::new());
        server.put_file("f", "content");
        let (doomed, other) = (link(&server), link(&server));
        let mut play = Interleave::new(seed);
        play.client("doomed", [doomed.clone()], async move {
            // Its tasks do not outlive the link.
            let far = doomed.clone();
            let _ = tokio::spawn(async move { far.mkdir(&path("d"), 0o755).await }).await;
            let opened = doomed.open(&path("f"), OpenFlags::existing(Access::Read)).await.unwrap();
            let _ = doomed.read(opened.fh, 0, 10).await;
            doomed.close(opened.fh);
            doomed.rename(&path("f"), &path("g"), RenameMode::Replace).await.unwrap();
        });
        play.kill();
        play.client("other", [other.clone()], async move {
            other.mkdir(&path("e"), 0o755).await.unwrap();
        });
        let mut at_death = None;
        let ends = play
            .run(|stop| {
                let now = (server.exists("d"), server.exists("g"));
                if stop.is_after_mishap() {
                    assert_eq!(*at_death.get_or_insert(now), now, "{stop}");
                }
            })
            .await;
        assert_eq!(ends[1], Some(()));
        assert_eq!(server.open_handles(), 0, "seed {seed}");
        match ends[0] {
            None => killed += 1,
            Some(()) => finished += 1,
        }
    }
    assert!(killed > 10 && finished > 10, "{killed} {finished}");
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_client_continues() {
    let server = Arc::new(MemRemote::new());
    let link = link(&server);
    let (stop, mut stopped) = tokio::sync::watch::channel(false);
    let through = link.clone();
    let mut play = Interleave::new(3);
    play.client("a", [link], async move {
        let root = path("");
        loop {
            tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => break,
                looked = through.lstat(&root) => drop(looked.unwrap()),
            }
        }
        through.mkdir(&path("last"), 0o755).await.unwrap();
    });
    play.interrupt(move || assert!(!stop.send_replace(true)));
    assert_eq!(play.run(|_| {}).await, [Some(())]);
    assert!(server.exists("last"));
}
