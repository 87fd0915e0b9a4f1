//! One large file through several gateways at once.

use std::sync::Arc;
use std::time::Duration;

use base::{Access, Fh, OpenFlags, Remote};
use bytes::Bytes;
use replicas::{Mode, Replicas};
use testkit::{Call, FaultyRemote, Lagging, MemRemote, path};
use tokio::task::JoinSet;

use super::pool::{self, Faulty, LAG, pattern};

const BLOCK_BYTES: u32 = 128 << 10;

const FILE_BYTES: usize = 4 << 20;

/// Reads in flight.
const DEPTH: usize = 16;

/// An mtime long past the racy window.
const OLD_SECS: i64 = 1_000_000_000;

/// Reads the whole file with many reads in flight; each block has to satisfy `is_right`.
async fn read_all(pool: &Arc<Replicas>, fh: Fh, is_right: impl Fn(u64, &[u8]) -> bool) {
    let mut under_way = JoinSet::new();
    let mut offsets = (0..FILE_BYTES as u64).step_by(BLOCK_BYTES as usize);
    loop {
        while under_way.len() < DEPTH
            && let Some(offset) = offsets.next()
        {
            let pool = pool.clone();
            under_way.spawn(async move { (offset, pool.read(fh, offset, BLOCK_BYTES).await) });
        }
        let Some(answer) = under_way.join_next().await else { return };
        let (offset, data) = answer.unwrap();
        assert!(is_right(offset, &data.unwrap().to_vec()), "at {offset}");
    }
}

fn same_as(content: &[u8]) -> impl Fn(u64, &[u8]) -> bool {
    move |offset, data| {
        let offset = offset as usize;
        data == &content[offset..content.len().min(offset + BLOCK_BYTES as usize)]
    }
}

/// Reads until all of the gateways in `spread` are used for it.
async fn read_until_spread(it: &Faulty, fh: Fh, content: &[u8], spread: &[usize]) {
    for _ in 0..200 {
        it.reset_calls();
        read_all(&it.pool, fh, same_as(content)).await;
        if spread.iter().all(|index| it.gateways[*index].calls(Call::Read) >= 5) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it was not read through all of {spread:?}");
}

async fn large(mode: Mode) -> (Faulty, Vec<u8>) {
    let it = Faulty::new(mode, 3);
    let content = pattern(FILE_BYTES);
    it.server.put_file("large", &content);
    it.server.set_mtime("large", OLD_SECS);
    it.server.set_latency(Some(Duration::from_millis(2)));
    (it, content)
}

#[tokio::test(start_paused = true)]
async fn a_large_file_is_read_through_all() {
    let (it, content) = large(Mode::Balance).await;
    let fh = it.open("large", Access::Read).await;
    read_until_spread(&it, fh, &content, &[0, 1, 2]).await;
    it.reset_calls();
    read_all(&it.pool, fh, same_as(&content)).await;
    let blocks = FILE_BYTES as u64 / u64::from(BLOCK_BYTES);
    for gateway in &it.gateways {
        let share = gateway.calls(Call::Read);
        assert!((blocks / 5..blocks / 2 + 2).contains(&share), "{share} of {blocks}");
    }
    // Past the end the primary is queried.
    assert!(it.pool.read(fh, FILE_BYTES as u64, BLOCK_BYTES).await.unwrap().is_empty());
    let end = it.pool.read(fh, FILE_BYTES as u64 - 10, BLOCK_BYTES).await.unwrap();
    assert_eq!(end.to_vec(), content[FILE_BYTES - 10..]);
    it.pool.close(fh);
    assert_eq!(it.server.open_handles(), 0);
}

#[tokio::test(start_paused = true)]
async fn elsewhere_a_file_has_one_gateway() {
    for mode in [Mode::Hash, Mode::Failover] {
        let (it, content) = large(mode).await;
        let fh = it.open("large", Access::Read).await;
        for _ in 0..5 {
            read_all(&it.pool, fh, same_as(&content)).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(it.who(Call::Read).is_some());
        it.pool.close(fh);
    }
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_is_cut_in_the_middle_takes_nothing_along() {
    let (it, content) = large(Mode::Balance).await;
    for cut in 0..3 {
        let fh = it.open("large", Access::Read).await;
        read_until_spread(&it, fh, &content, &[0, 1, 2]).await;
        let _gate = it.gateways[cut].hold(Call::Read, 3);
        let cutter = async {
            tokio::time::sleep(Duration::from_millis(3)).await;
            it.gateways[cut].cut();
        };
        tokio::join!(read_all(&it.pool, fh, same_as(&content)), cutter);
        read_all(&it.pool, fh, same_as(&content)).await;
        it.gateways[cut].clear();
        it.gateways[cut].restore();
        it.until(cut, |state| state == replicas::GatewayState::Returning).await;
        for _ in 0..100 {
            it.pool.lstat(&path("large")).await.unwrap();
        }
        it.pool.close(fh);
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(it.server.open_handles(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_writer_ends_spreading_at_once() {
    let (it, content) = large(Mode::Balance).await;
    let fh = it.open("large", Access::Read).await;
    read_until_spread(&it, fh, &content, &[0, 1, 2]).await;
    let writer = it.open("large", Access::Write).await;
    it.pool.write(writer, 0, Bytes::from(vec![1; 1000])).await.unwrap();
    it.reset_calls();
    let mut changed = content.clone();
    changed[..1000].fill(1);
    read_all(&it.pool, fh, same_as(&changed)).await;
    let home = it.who(Call::Read);
    it.pool.close(writer);
    // Not before the lag is over.
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        read_all(&it.pool, fh, same_as(&changed)).await;
        assert_eq!(it.who(Call::Read), home);
    }
    it.server.set_mtime("large", OLD_SECS);
    tokio::time::sleep(LAG).await;
    read_until_spread(&it, fh, &changed, &[0, 1, 2]).await;
    it.pool.close(fh);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_has_just_changed_is_not_spread() {
    // With a server's clock that is behind, right, or ahead.
    for skew_secs in [-60, 0, 3600] {
        let (it, content) = large(Mode::Balance).await;
        let fh = it.open("large", Access::Read).await;
        for second in 0..10 {
            it.server.set_mtime("large", base::Timestamp::now().secs + skew_secs + second);
            read_all(&it.pool, fh, same_as(&content)).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            read_all(&it.pool, fh, same_as(&content)).await;
        }
        assert!(it.who(Call::Read).is_some(), "{skew_secs}");
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_secs(3)).await;
            read_all(&it.pool, fh, same_as(&content)).await;
        }
        read_until_spread(&it, fh, &content, &[0, 1, 2]).await;
        it.pool.close(fh);
    }
}

/// Gateways that show different directories, by an error in their configuration.
#[tokio::test(start_paused = true)]
async fn bytes_of_two_files_are_never_mixed() {
    let content = pattern(FILE_BYTES);
    let longer = pattern(FILE_BYTES + 1);
    let mut inside = content.clone();
    inside[FILE_BYTES / 2 + 100] ^= 1;
    let mut all = content.clone();
    all.reverse();
    for (what, other, secs) in [
        ("size", &longer, OLD_SECS),
        ("time", &content, OLD_SECS + 1),
        ("content", &all, OLD_SECS),
        ("a place in the middle", &inside, OLD_SECS),
    ] {
        let gateways: Vec<_> = [&content, other]
            .into_iter()
            .zip([OLD_SECS, secs])
            .map(|(content, secs)| {
                let server = Arc::new(MemRemote::new());
                server.put_file("large", content);
                server.set_mtime("large", secs);
                Arc::new(FaultyRemote::new(server))
            })
            .collect();
        let remotes = gateways.iter().map(|gateway| gateway.clone() as Arc<dyn Remote>);
        let pool = Arc::new(pool::of(Mode::Balance, remotes));
        let opened = pool.open(&path("large"), OpenFlags::existing(Access::Read)).await.unwrap();
        let home = usize::from(gateways[1].calls(Call::Open) > 0);
        let shown = gateways[home].inner().content("large");
        for _ in 0..20 {
            read_all(&pool, opened.fh, same_as(&shown)).await;
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        let opens = gateways[1 - home].calls(Call::Open);
        assert!((1..=5).contains(&opens), "{what}: it was tried {opens} times");
        pool.close(opened.fh);
    }
}

/// Another machine changes the file: one gateway shows it, the others show the old version for a
/// while. After the new version the old one is never shown.
#[tokio::test(start_paused = true)]
async fn a_visible_change_by_another_client_ends_spreading() {
    let server = Arc::new(MemRemote::new());
    let content = pattern(FILE_BYTES);
    server.put_file("large", &content);
    server.set_mtime("large", OLD_SECS);
    let first = Arc::new(FaultyRemote::new(server.clone()));
    let behind = || Arc::new(FaultyRemote::new(Arc::new(Lagging::new(server.clone(), LAG))));
    let (second, third) = (behind(), behind());
    let remotes: [Arc<dyn Remote>; 3] = [first.clone(), second.clone(), third.clone()];
    let pool = Arc::new(pool::of(Mode::Balance, remotes));
    let flags = OpenFlags::existing(Access::Read);
    // Until the gateway that does not lag is the primary.
    let fh = loop {
        first.reset_calls();
        let fh = pool.open(&path("large"), flags).await.unwrap().fh;
        if first.calls(Call::Open) > 0 {
            break fh;
        }
        pool.close(fh);
    };
    let spread = || second.calls(Call::Read) > 20 && third.calls(Call::Read) > 20;
    for _ in 0..200 {
        read_all(&pool, fh, same_as(&content)).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(spread(), "it was not read through all");
    let mut changed = content.clone();
    changed.reverse();
    server.put_file("large", &changed);
    server.set_mtime("large", OLD_SECS + 1);
    assert_eq!(pool.fstat(fh).await.unwrap().mtime.secs, OLD_SECS + 1);
    for _ in 0..20 {
        read_all(&pool, fh, same_as(&changed)).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    // Without requests for attributes, the background check finds it.
    tokio::time::sleep(2 * LAG).await;
    second.reset_calls();
    third.reset_calls();
    for _ in 0..20 {
        read_all(&pool, fh, same_as(&changed)).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(spread(), "they are used again when they show the same");
    server.put_file("large", &content);
    server.set_mtime("large", OLD_SECS + 2);
    // A check that began before the change may be in flight.
    for _ in 0..3 {
        read_all(&pool, fh, |_, _| true).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    read_all(&pool, fh, same_as(&content)).await;
    pool.close(fh);
}
