//! Figures of several file systems as those of one.
//!
//! Two branches are on the same file system if they are on one host and its identifier is the
//! same; on two hosts, or without an identifier, if all figures are: two gateways to one server.
//! Each counts once.

use std::sync::Arc;

use base::{Errno, RemotePath, Result, StatVfs};

use crate::branch::Live;
use crate::fan::{Call, Fan};
use crate::steps::Steps;
use crate::tree::Tree;
use crate::view::View;

/// The sum over the branches that have something at `path`, and those whose place is below it.
///
/// One of the latter that cannot be reached is not counted; one of the former is waited for, or is
/// the error, unless it is optional.
pub(crate) async fn statvfs(tree: &Tree, path: &RemotePath) -> Result<StatVfs> {
    if let Some((live, at)) = tree.only(path) {
        let figures = live.act(live.remote.statvfs(&at)).await?;
        return Ok(StatVfs { fsid: fsid(tree), ..figures });
    }
    let view = View::of(tree, path).await?;
    if !tree.is_fixed(path) {
        view.must_show()?;
    }
    let steps = Steps::new(path);
    let here = view.holders.iter().map(|holder| {
        let live = tree.branch(holder.slot);
        (live, steps.inside(live.depth, steps.depth()), true)
    });
    let below = tree.placed_below(path).filter(|live| !live.remote.is_disconnected());
    let asked = here.chain(below.map(|live| (live, RemotePath::root(), false)));
    let asked = asked.map(|(live, at, here)| -> Call<'_, Result<Option<Counted<'_>>>> {
        Box::pin(async move {
            match live.act(live.remote.statvfs(&at)).await {
                Ok(figures) => Ok(Some(Counted { live, figures })),
                Err(Errno::EHOSTDOWN | Errno::ETIMEDOUT) if !here || live.is_optional() => Ok(None),
                // One that has no such call is not counted.
                Err(Errno::EOPNOTSUPP) => Ok(None),
                Err(_) if !here => Ok(None),
                Err(errno) => Err(errno),
            }
        })
    });
    let asked: Fan<'_, Result<Option<Counted<'_>>>> = asked.collect();
    let told: Result<Vec<Option<Counted<'_>>>> = asked.all().await.into_iter().collect();
    let told: Vec<Counted<'_>> = told?.into_iter().flatten().collect();
    let sum = sum(&told).ok_or(Errno::EOPNOTSUPP)?;
    Ok(StatVfs { fsid: fsid(tree), ..sum })
}

/// The figures of one branch.
struct Counted<'t> {
    live: &'t Arc<Live>,
    figures: StatVfs,
}

impl Counted<'_> {
    fn is_same(&self, other: &Counted<'_>) -> bool {
        let (one, two) = (&self.figures, &other.figures);
        let same_id = one.fsid == two.fsid;
        let on_one_host = self.live.host == other.live.host;
        if on_one_host && one.fsid != 0 { same_id } else { one == two }
    }
}

/// An identifier of the whole, the same for as long as the sources are.
fn fsid(tree: &Tree) -> u64 {
    let names = tree.given().iter().flat_map(|live| [live.place.as_bytes(), live.name.as_bytes()]);
    let bytes = names.flat_map(|part| part.iter().chain(&[0]));
    // FNV-1a, since it must not change with the next build.
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn sum(told: &[Counted<'_>]) -> Option<StatVfs> {
    let is_first =
        |(at, one): &(usize, &Counted<'_>)| !told[..*at].iter().any(|other| one.is_same(other));
    let distinct = told.iter().enumerate().filter(is_first).map(|(_, one)| one);
    let distinct: Vec<&StatVfs> = distinct.map(|one| &one.figures).collect();
    let unit = distinct.iter().map(|figures| figures.fragment_size.max(1)).min()?;
    let mut sum = StatVfs { fragment_size: unit, name_max: u64::MAX, ..StatVfs::default() };
    sum.read_only = told.iter().all(|one| one.figures.read_only || !one.live.writable());
    for figures in distinct {
        // Rounded down: less than a unit of the smallest of them.
        let scaled = |fragments: u64| {
            let bytes = u128::from(fragments) * u128::from(figures.fragment_size.max(1));
            u64::try_from(bytes / u128::from(unit)).unwrap_or(u64::MAX)
        };
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut sum.blocks, scaled(figures.blocks));
        add(&mut sum.blocks_free, scaled(figures.blocks_free));
        add(&mut sum.blocks_available, scaled(figures.blocks_available));
        add(&mut sum.files, figures.files);
        add(&mut sum.files_free, figures.files_free);
        add(&mut sum.files_available, figures.files_available);
        sum.block_size = sum.block_size.max(figures.block_size);
        sum.name_max = sum.name_max.min(figures.name_max);
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Branch, Mode, Presence};
    use testkit::MemRemote;

    fn live(host: &str, mode: Mode) -> Arc<Live> {
        Arc::new(Live::new(Branch {
            name: format!("{host}:/d"),
            host: host.to_owned(),
            place: Vec::new(),
            remote: Arc::new(MemRemote::new()),
            mode,
            presence: Presence::Required,
        }))
    }

    fn figures(fsid: u64, fragment_size: u64, blocks: u64) -> StatVfs {
        StatVfs {
            block_size: fragment_size,
            fragment_size,
            blocks,
            blocks_free: blocks / 2,
            blocks_available: blocks / 4,
            files: 10,
            files_free: 5,
            files_available: 5,
            fsid,
            name_max: 255,
            read_only: false,
        }
    }

    fn blocks(of: &[(&Arc<Live>, StatVfs)]) -> u64 {
        let told: Vec<Counted<'_>> =
            of.iter().map(|(live, figures)| Counted { live, figures: *figures }).collect();
        sum(&told).unwrap().blocks
    }

    #[test]
    fn each_file_system_counts_once() {
        let (one, same, other) = (live("a", Mode::Rw), live("a", Mode::Rw), live("b", Mode::Rw));
        let fs = |fsid, blocks| figures(fsid, 4_096, blocks);
        // By the identifier on one host, although somebody wrote between the two questions.
        assert_eq!(blocks(&[(&one, fs(7, 100)), (&same, fs(7, 100))]), 100);
        let mut later = fs(7, 100);
        later.blocks_free -= 1;
        assert_eq!(blocks(&[(&one, fs(7, 100)), (&same, later)]), 100);
        assert_eq!(blocks(&[(&one, fs(7, 100)), (&same, fs(8, 100))]), 200);
        // Machines with the same image have the same identifiers, but not the same free space.
        assert_eq!(blocks(&[(&one, fs(7, 100)), (&other, later)]), 200);
        assert_eq!(blocks(&[(&one, fs(7, 100)), (&other, fs(7, 100))]), 100);
        // Without an identifier by all figures.
        assert_eq!(blocks(&[(&one, fs(0, 100)), (&same, fs(0, 100))]), 100);
        assert_eq!(blocks(&[(&one, fs(0, 100)), (&same, fs(0, 101))]), 201);
    }

    #[test]
    fn units_and_limits_are_made_common() {
        let (one, other) = (live("a", Mode::Rw), live("b", Mode::Ro));
        let (small, mut large) = (figures(1, 512, 1_000), figures(2, 4_096, 1_000));
        large.name_max = 143;
        let told =
            [Counted { live: &one, figures: small }, Counted { live: &other, figures: large }];
        let all = sum(&told).unwrap();
        assert_eq!((all.fragment_size, all.block_size, all.name_max), (512, 4_096, 143));
        assert_eq!((all.blocks, all.blocks_free, all.blocks_available), (9_000, 4_500, 2_250));
        assert_eq!((all.files, all.files_free), (20, 10));
        assert!(!all.read_only && sum(&told[1..]).unwrap().read_only);
        assert!(sum(&[]).is_none());
        let huge = figures(3, 1 << 20, u64::MAX);
        assert_eq!(blocks(&[(&one, small), (&other, huge)]), u64::MAX);
    }
}
