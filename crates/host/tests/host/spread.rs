//! Content striped over several sessions.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use base::{Access, AttrChange, Create, Errno, Fh, OpenFlags, Remote, RenameMode};
use bytes::Bytes;
use host::{Config, Host};
use rustix::process::Signal;

use super::far::{BLOCK_BYTES, Far};
use super::peer::{Real, Servers, path};

fn config(max_conns: usize) -> Config {
    // A measured gain would depend on the load of this machine.
    Config { max_conns, measure_gain: false, ..Config::default() }
}

/// Content without two equal blocks.
fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let words = std::iter::repeat_with(|| next().to_le_bytes());
    words.take(len.div_ceil(8)).flatten().take(len).collect()
}

const FILE_BYTES: usize = 8 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_transfers_over_a_long_link_use_several_sessions_up_to_the_maximum() {
    let far = Far::new(config(4)).await;
    let data = content(1, FILE_BYTES);
    std::fs::write(far.local("f"), &data).unwrap();
    let file = far.local("f").canonicalize().unwrap();
    let fh = far.open("f", Access::Read).await;
    far.read_until(fh, &data, || far.servers.reading(&file, 1 << 20).len() == 4).await;
    // The first session is no longer needed for content.
    let first = far.servers.pids()[0];
    far.servers.signal(first, Signal::STOP);
    let mut rounds = 0;
    far.read_until(fh, &data, || {
        rounds += 1;
        rounds > 3
    })
    .await;
    far.servers.signal(first, Signal::CONT);
    assert_eq!(far.servers.attempts.load(Ordering::SeqCst), 4);
    let window = far.host.suggested_window();
    assert!(window.bytes > 4 << 20, "{window:?}");
    // All handles are closed with the file.
    far.host.close(fh);
    far.host.lstat(&path("f")).await.unwrap();
    until(|| far.servers.open_at(&file).is_empty()).await;
}

/// Waits for a condition of a server or the kernel without an event.
async fn until(mut reached: impl FnMut() -> bool) {
    let began = Instant::now();
    while !reached() {
        assert!(began.elapsed() < Duration::from_secs(30), "the condition was not reached");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_a_short_link_content_leaves_the_metadata_session() {
    let real = Real::with(config(2)).await;
    let data = content(1, FILE_BYTES);
    real.write_local("f", &data);
    let fh = real.open("f", Access::Read).await;
    let began = Instant::now();
    while real.servers.open_below(real.dir.path()) < 2 {
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", real.servers.roles());
        let reads = (0..16).map(|number| {
            let host = real.host.clone();
            tokio::spawn(async move { host.read(fh, number << 17, BLOCK_BYTES).await })
        });
        for read in reads.collect::<Vec<_>>() {
            assert_eq!(read.await.unwrap().unwrap().len(), BLOCK_BYTES as usize);
        }
    }
    assert_eq!(real.servers.roles(), [host::Role::Metadata, host::Role::Bulk(1)]);
}

/// A login may start the server for the first session, and sshd another one for the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_session_gets_requests_within_its_own_limit() {
    const LEN: usize = 255 << 10;
    let dir = tempfile::tempdir().unwrap();
    // Without the extension, the limit is 32 KiB.
    let script = "mkdir is-first 2>/dev/null && exec \"$@\"; exec \"$@\" -P limits";
    let servers = Servers::by_script(dir.path(), script);
    let real = Real::over(dir, servers, config(2)).await;
    let data = Bytes::from(content(1, FILE_BYTES));
    real.write_local("f", vec![0; FILE_BYTES]);
    assert_eq!(real.host.suggested_window().request_bytes, 128 << 10);
    let fh = real.open("f", Access::ReadWrite).await;
    let (began, mut rounds_with_both) = (Instant::now(), 0);
    while rounds_with_both < 100 {
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", real.servers.roles());
        rounds_with_both += usize::from(real.servers.open_below(real.dir.path()) == 2);
        let each = (0..16).map(|number| {
            let (host, data) = (real.host.clone(), data.slice(number * LEN..(number + 1) * LEN));
            tokio::spawn(async move {
                let offset = (number * LEN) as u64;
                host.write(fh, offset, data.clone()).await?;
                Ok(host.read(fh, offset, LEN as u32).await?.to_vec() == data)
            })
        });
        for each in each.collect::<Vec<_>>() {
            assert_eq!(each.await.unwrap(), Ok::<_, Errno>(true));
        }
    }
    assert_eq!(real.host.suggested_window().request_bytes, 32 << 10);
}

/// An operation in flight, polled once here and then by the runtime.
struct Running<T>(tokio::task::JoinHandle<T>);

impl<T> Running<T> {
    async fn over(self) -> T {
        self.0.await.unwrap()
    }
}

async fn begun<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> Running<T> {
    let mut future: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(future);
    let first = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
    Running(tokio::spawn(async move {
        match first {
            Poll::Ready(result) => result,
            Poll::Pending => future.await,
        }
    }))
}

enum Check {
    Done(Running<Result<(), Errno>>),
    Bytes(Running<Result<Vec<u8>, Errno>>, Vec<u8>),
    Size(Running<Result<u64, Errno>>, u64),
}

/// Reads, writes, truncates and fstats, all in flight at once on overlapping ranges: each has to
/// see those that were polled before it and no other.
async fn random_operations(host: &Arc<Host>, handles: [Fh; 2], model: &mut Vec<u8>, seed: u64) {
    let dice = content(seed, 60 * 16);
    let mut running = Vec::new();
    for dice in dice.chunks(16) {
        let number = |at: usize| u64::from(u16::from_le_bytes([dice[at], dice[at + 1]]));
        let (host, fh) = (host.clone(), handles[usize::from(dice[15] & 1)]);
        let offset = number(0) * 37 % (4 << 20);
        let len = match dice[2] % 3 {
            0 => number(4) % 5000,
            _ => 32_768 + number(4) * 9,
        };
        running.push(match dice[3] % 16 {
            0 => {
                let size = (5 << 20) + number(4);
                model.resize(size as usize, 0);
                let change = AttrChange { size: Some(size), ..AttrChange::default() };
                Check::Done(begun(async move { host.fsetattr(fh, change).await }).await)
            }
            1 => {
                let size = model.len() as u64;
                let look = async move { host.fstat(fh).await.map(|attr| attr.size) };
                Check::Size(begun(look).await, size)
            }
            2 => Check::Done(begun(async move { host.fsync(fh).await }).await),
            3..=8 => {
                let data = content(number(6), len as usize);
                let end = offset as usize + data.len();
                model[offset as usize..end].copy_from_slice(&data);
                let write = async move { host.write(fh, offset, Bytes::from(data)).await };
                Check::Done(begun(write).await)
            }
            _ => {
                let expected = model[offset as usize..(offset + len) as usize].to_vec();
                let read =
                    async move { host.read(fh, offset, len as u32).await.map(|it| it.to_vec()) };
                Check::Bytes(begun(read).await, expected)
            }
        });
    }
    for (number, check) in running.into_iter().enumerate() {
        match check {
            Check::Done(done) => done.over().await.unwrap(),
            Check::Size(size, expected) => {
                assert_eq!(size.over().await.unwrap(), expected, "{number}")
            }
            Check::Bytes(bytes, expected) => {
                assert!(bytes.over().await.unwrap() == expected, "seed {seed}, operation {number}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_of_first_polls_is_kept_over_all_sessions() {
    let far = Far::new(config(4)).await;
    let fh = far.create("f").await;
    let again = far.open("f", Access::ReadWrite).await;
    let file = far.local("f").canonicalize().unwrap();
    far.grow_until(fh, || far.servers.open_at(&file).len() == 4).await;
    far.grow_until(again, || true).await;
    // Verified by now, or a little later; every round is correct either way.
    let mut model = content(0, 5 << 20);
    far.host.fsetattr(fh, AttrChange { size: Some(0), ..AttrChange::default() }).await.unwrap();
    far.host.write(fh, 0, Bytes::from(model.clone())).await.unwrap();
    for seed in 1..40 {
        random_operations(&far.host, [fh, again], &mut model, seed).await;
    }
    assert!(std::fs::read(&file).unwrap() == model);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_write_is_not_overtaken() {
    let far = Far::new(config(4)).await;
    let fh = far.create("f").await;
    let file = far.local("f").canonicalize().unwrap();
    far.grow_until(fh, || far.servers.open_at(&file).len() == 4).await;
    let mut rounds = 0;
    far.grow_until(fh, || {
        rounds += 1;
        rounds > 5
    })
    .await;
    for round in 0..40_u8 {
        let host = far.host.clone();
        let old = Bytes::from(vec![round; 1 << 20]);
        {
            let mut given_up = std::pin::pin!(host.write(fh, 0, old));
            let polled = poll_fn(|context| Poll::Ready(given_up.as_mut().poll(context))).await;
            assert!(polled.is_pending());
        }
        let new = Bytes::from(vec![round ^ 0xff; 1 << 20]);
        far.host.write(fh, 0, new.clone()).await.unwrap();
        // Requests of the first operation are answered before the second is sent.
        assert!(far.host.read(fh, 0, 1 << 20).await.unwrap().to_vec() == new, "{round}");
        assert!(std::fs::read(&file).unwrap()[..1 << 20] == new, "{round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_was_replaced_is_never_mixed_with_its_successor() {
    for difference in ["size", "time", "content"] {
        let far = Far::new(config(3)).await;
        let (old, mut new) = (content(1, FILE_BYTES), content(1, FILE_BYTES));
        std::fs::write(far.local("f"), &old).unwrap();
        let fh = far.open("f", Access::Read).await;
        match difference {
            "size" => new.extend(b"more"),
            "time" => new = content(2, FILE_BYTES),
            // Same time and size; only the middle differs.
            _ => new[FILE_BYTES / 4..FILE_BYTES * 3 / 4].fill(0),
        }
        std::fs::write(far.local("new"), &new).unwrap();
        let times = std::fs::metadata(far.local("f")).unwrap().modified().unwrap();
        let times = if difference == "content" { times } else { times - Duration::from_secs(9) };
        std::fs::File::options()
            .write(true)
            .open(far.local("new"))
            .unwrap()
            .set_modified(times)
            .unwrap();
        std::fs::rename(far.local("new"), far.local("f")).unwrap();
        // Long enough for an attempt on every session.
        let (began, servers) = (Instant::now(), &far.servers);
        far.read_until(fh, &old, || servers.pids().len() == 3 && began.elapsed().as_secs() >= 3)
            .await;
        let successor = far.open("f", Access::Read).await;
        let file = far.local("f").canonicalize().unwrap();
        far.read_until(successor, &new[..FILE_BYTES], || servers.open_at(&file).len() == 3).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_to_a_replaced_file_do_not_reach_its_successor() {
    let far = Far::new(config(3)).await;
    std::fs::write(far.local("f"), vec![1; FILE_BYTES]).unwrap();
    let fh = far.open("f", Access::ReadWrite).await;
    far.host.write(fh, 0, Bytes::from_static(b"begin")).await.unwrap();
    // Same size and age.
    std::fs::write(far.local("new"), vec![2; FILE_BYTES]).unwrap();
    std::fs::rename(far.local("f"), far.local("old")).unwrap();
    std::fs::rename(far.local("new"), far.local("f")).unwrap();
    let began = Instant::now();
    while far.servers.pids().len() < 3 || began.elapsed().as_secs() < 5 {
        let writes = (0..60).map(|number| {
            let (host, data) = (far.host.clone(), Bytes::from(vec![3; BLOCK_BYTES as usize]));
            tokio::spawn(async move { host.write(fh, number << 17, data).await })
        });
        for write in writes.collect::<Vec<_>>() {
            write.await.unwrap().unwrap();
        }
    }
    assert!(std::fs::read(far.local("f")).unwrap() == vec![2; FILE_BYTES]);
    let old = std::fs::read(far.local("old")).unwrap();
    assert!(
        old[..60 << 17].iter().all(|byte| *byte == 3) && old[60 << 17..].iter().all(|it| *it == 1)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_names_do_no_harm() {
    let far = Far::new(config(4)).await;
    let data = content(1, FILE_BYTES);
    for (name, gone) in [("a", "before"), ("b", "after"), ("c", "renamed")] {
        std::fs::write(far.local(name), &data).unwrap();
        let file = far.local(name).canonicalize().unwrap();
        let fh = far.open(name, Access::Read).await;
        match gone {
            "before" => far.host.unlink(&path(name)).await.unwrap(),
            "renamed" => {
                let to = path("d");
                far.host.rename(&path(name), &to, RenameMode::Replace).await.unwrap();
                let file = far.local("d").canonicalize().unwrap();
                far.read_until(fh, &data, || far.servers.open_at(&file).len() == 4).await;
                continue;
            }
            _ => {
                far.read_until(fh, &data, || far.servers.open_at(&file).len() == 4).await;
                far.host.unlink(&path(name)).await.unwrap();
            }
        }
        let began = Instant::now();
        far.read_until(fh, &data, || began.elapsed().as_secs() >= 2).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_stay_in_order() {
    let far = Far::new(config(4)).await;
    // The sessions are open.
    let other = far.create("other").await;
    far.grow_until(other, || far.servers.pids().len() == 4).await;
    let append = OpenFlags {
        append: true,
        create: Create::IfAbsent(0o644),
        ..OpenFlags::existing(Access::Write)
    };
    let fh = far.host.open(&path("f"), append).await.unwrap().fh;
    let pieces: Vec<_> = (0..100).map(|seed| content(seed + 1, 100_000)).collect();
    let mut running = Vec::new();
    for piece in &pieces {
        let (host, data) = (far.host.clone(), Bytes::from(piece.clone()));
        running.push(begun(async move { host.write(fh, 0, data).await }).await);
    }
    for write in running {
        write.over().await.unwrap();
    }
    assert!(std::fs::read(far.local("f")).unwrap() == pieces.concat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_further_session_fails_only_its_own_requests() {
    let far = Far::new(config(4)).await;
    let data = content(1, FILE_BYTES);
    std::fs::write(far.local("f"), &data).unwrap();
    let file = far.local("f").canonicalize().unwrap();
    let fh = far.open("f", Access::Read).await;
    far.read_until(fh, &data, || far.servers.open_at(&file).len() == 4).await;
    let pids = far.servers.pids();
    let mut reads = Vec::new();
    for number in 0..60 {
        let host = far.host.clone();
        reads.push((
            number,
            begun(async move { host.read(fh, number << 17, BLOCK_BYTES).await }).await,
        ));
    }
    far.servers.signal(pids[2], Signal::KILL);
    let mut failed = 0;
    for (number, read) in reads {
        match read.over().await {
            Ok(bytes) => {
                let at = (number << 17) as usize;
                assert!(bytes.to_vec() == data[at..at + BLOCK_BYTES as usize], "{number}");
            }
            Err(errno) => {
                assert_eq!(errno, Errno::EHOSTDOWN);
                failed += 1;
            }
        }
    }
    assert!(failed < 40, "{failed}");
    // Operations continue, and the lost session is reopened on demand.
    far.read_until(fh, &data, || far.servers.open_at(&file).len() >= 3).await;
    far.host.lstat(&path("f")).await.unwrap();
    // The first session is special: with it the file is lost.
    far.servers.signal(pids[0], Signal::KILL);
    until(|| !far.servers.pids().contains(&pids[0])).await;
    while far.host.lstat(&path("f")).await.is_err() {}
    assert_eq!(far.host.read(fh, 0, BLOCK_BYTES).await, Err(Errno::ESTALE));
    // When it is back after a loss of all, the further ones are not shown as lost.
    far.servers.pids().into_iter().for_each(|pid| far.servers.signal(pid, Signal::KILL));
    let is_up = |it: &host::SessionStatus| matches!(it.state, host::SessionState::Up { .. });
    until(|| !far.host.status().sessions.iter().any(is_up)).await;
    while far.host.lstat(&path("f")).await.is_err() {}
    let status = far.host.status();
    assert_eq!(status.sessions.len(), 1, "{status:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_refuses_further_sessions_is_no_error() {
    let far = Far::new(config(8)).await;
    far.servers.refuse.store(true, Ordering::SeqCst);
    let data = content(1, FILE_BYTES);
    std::fs::write(far.local("f"), &data).unwrap();
    let fh = far.open("f", Access::Read).await;
    let began = Instant::now();
    let attempts = || far.servers.attempts.load(Ordering::SeqCst);
    far.read_until(fh, &data, || attempts() > 1 && began.elapsed().as_secs() >= 3).await;
    assert!(attempts() <= 4, "{} attempts", attempts());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_sessions_are_closed_but_for_two() {
    let config = Config { idle_limit: Duration::from_millis(700), ..config(4) };
    let far = Far::new(config).await;
    let data = content(1, FILE_BYTES);
    std::fs::write(far.local("f"), &data).unwrap();
    let file = far.local("f").canonicalize().unwrap();
    let fh = far.open("f", Access::Read).await;
    far.read_until(fh, &data, || far.servers.open_at(&file).len() == 4).await;
    until(|| far.servers.pids().len() == 2).await;
    // The file stays open, and is used again.
    far.read_until(fh, &data, || far.servers.open_at(&file).len() == 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_of_another_machine_are_not_used() {
    let dir = tempfile::tempdir().unwrap();
    // Each server reports its own boot id.
    let script = "id=$(mktemp) && echo $$ >$id && \
                  mount --bind $id /proc/sys/kernel/random/boot_id && rm $id && exec \"$@\"";
    let servers = Servers::in_namespace(dir.path(), script);
    let real = Real::over(dir, servers, config(3)).await;
    let data = content(1, FILE_BYTES);
    real.write_local("f", &data);
    let fh = real.open("f", Access::Read).await;
    let began = Instant::now();
    while real.servers.roles().len() < 2 || began.elapsed().as_secs() < 3 {
        assert!(began.elapsed() < Duration::from_secs(60), "no session was tried");
        let reads = (0..16).map(|number| {
            let host = real.host.clone();
            tokio::spawn(async move { host.read(fh, number << 17, BLOCK_BYTES).await })
        });
        for read in reads.collect::<Vec<_>>() {
            read.await.unwrap().unwrap();
        }
        assert!(real.servers.open_below(real.dir.path()) <= 1, "it is used");
    }
}
