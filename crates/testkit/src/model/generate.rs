//! Generates lists of operations, and runs them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use base::{Access, Create, OpenFlags, RenameMode};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use super::{Divergence, FDS, Op, Subject, check};

/// The paths: few, so that operations meet, and deep enough for moves between directories and into
/// a directory itself. Simple ones first, since shrinking prefers those.
const PATHS: &[&str] = &[
    "a",
    "b",
    "c",
    "\u{fc} \n",
    "a/a",
    "a/b",
    "b/a",
    "b/c",
    "c/a",
    "a/a/a",
    "a/b/c",
    "b/a/a",
    "b/c/b",
];

/// Link targets. None leads out of the tree, to files that the test does not know. None ends in
/// `/`, for which Linux has a special errno (`EISDIR` when a file is to be created).
const TARGETS: &[&str] = &["a", "b", "a/b", "./c", "b/.", "nowhere", "a/a/a"];

/// Permission bits with full access for the owner, so that no test depends on being root.
const FILE_PERMS: &[u32] = &[0o644, 0o600, 0o755, 0o640];
const DIR_PERMS: &[u32] = &[0o755, 0o700, 0o750];
const ANY_PERMS: &[u32] = &[0o755, 0o700, 0o777, 0o711];

/// Usual times, the epoch, and times past 31 bits.
const TIMES: &[i64] = &[1_000_000_000, 0, 1, 1_234_567_890, FUTURE_SECS];

/// In 2049.
const FUTURE_SECS: i64 = 2_500_000_000;

fn paths() -> impl Strategy<Value = &'static str> {
    select(PATHS)
}

fn fds() -> impl Strategy<Value = usize> {
    0..FDS
}

/// Offsets and lengths in bytes around the ends of pages, requests and readahead windows.
fn places() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..64u64,
        2 => 4_090..4_102u64,
        1 => 32_760..32_776u64,
        1 => 65_530..65_542u64,
        1 => 131_066..131_078u64,
        1 => 0..200_000u64,
    ]
}

fn lens() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => 0..64usize,
        2 => 4_090..4_102usize,
        1 => 0..40_000usize,
        1 => 131_066..131_078usize,
    ]
}

fn flags() -> impl Strategy<Value = OpenFlags> {
    let access = prop_oneof![
        3 => Just(Access::ReadWrite),
        1 => Just(Access::Read),
        1 => Just(Access::Write),
    ];
    let create = prop_oneof![
        3 => select(FILE_PERMS).prop_map(Create::IfAbsent),
        2 => Just(Create::Never),
        1 => select(FILE_PERMS).prop_map(Create::Exclusive),
    ];
    let rarely = || proptest::bool::weighted(0.2);
    (access, create, rarely(), rarely()).prop_map(|(access, create, truncate, append)| {
        // POSIX leaves the effect of O_TRUNC without write access undefined.
        let writes = access.writes();
        OpenFlags { access, create, truncate: truncate && writes, append: append && writes }
    })
}

fn op() -> impl Strategy<Value = Op> {
    let modes = prop_oneof![3 => Just(RenameMode::Replace), 1 => Just(RenameMode::NoReplace)];
    let files = prop_oneof![
        8 => (fds(), paths(), flags()).prop_map(|(fd, path, flags)| Op::Open { fd, path, flags }),
        2 => fds().prop_map(|fd| Op::Close { fd }),
        5 => (fds(), places(), lens())
            .prop_map(|(fd, offset, len)| Op::Pread { fd, offset, len }),
        8 => (fds(), places(), lens(), any::<u8>())
            .prop_map(|(fd, offset, len, fill)| Op::Pwrite { fd, offset, len, fill }),
        2 => (fds(), places()).prop_map(|(fd, size)| Op::Ftruncate { fd, size }),
        2 => fds().prop_map(|fd| Op::Fstat { fd }),
        1 => fds().prop_map(|fd| Op::Fsync { fd }),
        1 => (fds(), select(ANY_PERMS)).prop_map(|(fd, perm)| Op::Fchmod { fd, perm }),
        1 => (fds(), select(TIMES)).prop_map(|(fd, secs)| Op::Futimens { fd, secs }),
        2 => (fds(), places(), fds(), places(), lens()).prop_map(
            |(from, from_offset, to, to_offset, len)| {
                Op::CopyRange { from, from_offset, to, to_offset, len }
            }
        ),
    ];
    let names = prop_oneof![
        2 => (paths(), places()).prop_map(|(path, size)| Op::Truncate { path, size }),
        4 => (paths(), select(DIR_PERMS)).prop_map(|(path, perm)| Op::Mkdir { path, perm }),
        2 => paths().prop_map(|path| Op::Rmdir { path }),
        3 => paths().prop_map(|path| Op::Unlink { path }),
        2 => (select(TARGETS), paths())
            .prop_map(|(target, path)| Op::Symlink { target, path }),
        1 => paths().prop_map(|path| Op::Readlink { path }),
        2 => (paths(), paths()).prop_map(|(existing, new)| Op::Link { existing, new }),
        5 => (paths(), paths(), modes).prop_map(|(from, to, mode)| Op::Rename { from, to, mode }),
        1 => (paths(), select(ANY_PERMS)).prop_map(|(path, perm)| Op::Chmod { path, perm }),
        2 => (paths(), select(TIMES), any::<bool>())
            .prop_map(|(path, secs, follow)| Op::Utimens { path, secs, follow }),
        4 => (paths(), any::<bool>()).prop_map(|(path, follow)| Op::Stat { path, follow }),
        2 => prop_oneof![Just(""), paths()].prop_map(|path| Op::Readdir { path }),
    ];
    prop_oneof![files, names]
}

/// Lists of 1 to `most` operations.
fn ops(most: usize) -> impl Strategy<Value = Vec<Op>> {
    vec(op(), 1..=most)
}

/// Like [`ops`], for a subject that may lose an open file when its name is moved or removed, or
/// when the file has a second name: files are closed before the former, and there are no hard
/// links. Nor are there times in the future: a file that seems newer than its removal may not be
/// removed.
fn ops_by_one_name(most: usize) -> impl Strategy<Value = Vec<Op>> {
    ops(most).prop_map(|ops| {
        let closing = |op: Op| {
            let takes = matches!(op, Op::Unlink { .. } | Op::Rename { .. });
            let close = (0..FDS).filter(move |_| takes).map(|fd| Op::Close { fd });
            close.chain([op])
        };
        let ops = ops.into_iter().filter(|op| match op {
            Op::Link { .. } => false,
            Op::Utimens { secs, .. } | Op::Futimens { secs, .. } => *secs < FUTURE_SECS,
            _ => true,
        });
        ops.flat_map(closing).collect()
    })
}

/// A sequence of lists of operations, the same for the same seed: for subjects with random faults,
/// on which a failed list need not fail again, and so is not shrunk.
pub struct Lists {
    runner: TestRunner,
    most: usize,
    by_one_name: bool,
}

impl Lists {
    /// Lists of 1 to `most` operations.
    pub fn any(seed: u64, most: usize) -> Lists {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let runner = TestRunner::new_with_rng(Config::default(), random);
        Lists { runner, most, by_one_name: false }
    }

    /// Such lists for a subject that may lose an open file when its name is moved or removed, or
    /// when the file has a second name.
    pub fn by_one_name(seed: u64, most: usize) -> Lists {
        Lists { by_one_name: true, ..Lists::any(seed, most) }
    }

    /// The next list.
    ///
    /// # Panics
    ///
    /// Never: no part of a list is rejected.
    #[expect(clippy::should_implement_trait, reason = "there is always a next one")]
    pub fn next(&mut self) -> Vec<Op> {
        let Lists { runner, most, by_one_name } = self;
        let list = match by_one_name {
            true => ops_by_one_name(*most).new_tree(runner).map(|tree| tree.current()),
            false => ops(*most).new_tree(runner).map(|tree| tree.current()),
        };
        list.expect("nothing is rejected")
    }
}

/// The extent of [`run`].
#[derive(Clone, Copy, Debug)]
pub struct Runs {
    /// Number of lists.
    pub lists: u32,
    /// Length of the longest list.
    pub most_ops: usize,
}

/// Runs random lists, each on a fresh subject made by `make`.
///
/// # Panics
///
/// On the first list on which a subject differs from the reference (or panics), after shrinking,
/// with the text of a regression test.
pub fn run<S: Subject>(runs: Runs, make: impl Fn() -> S) {
    // A failure is kept as a test with its text, not as a seed in a file.
    let config = Config { cases: runs.lists, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&ops(runs.most_ops), |ops| {
        check(&ops, &mut make()).map_err(|why| TestCaseError::fail(why.to_string()))
    });
    match result {
        Ok(()) => {}
        Err(TestError::Abort(why)) => panic!("the run was aborted: {why}"),
        Err(TestError::Fail(why, mut ops)) => {
            let why = shorten(&mut ops, &make).unwrap_or_else(|| why.to_string());
            panic!("{why}\n\n{}", regression(&ops));
        }
    }
}

/// Number of operations shown of a list that failed by a random fault.
const STORY_OPS: usize = 60;

/// The last operations before `why`, one a line.
pub fn story(ops: &[Op], why: &Divergence) -> String {
    let end = why.index.map_or(ops.len(), |index| index + 1);
    let first = end.saturating_sub(STORY_OPS);
    let lines = ops[first..end].iter().zip(first..).map(|(op, index)| format!("{index} {op:?}\n"));
    lines.collect()
}

/// Removes every operation that the failure does not need, and returns the remaining difference;
/// `None` if there is none, since the subject panics or fails at random.
///
/// proptest tries to remove each operation once, but simplifying a later one may make it
/// unnecessary.
fn shorten<S: Subject>(ops: &mut Vec<Op>, make: &impl Fn() -> S) -> Option<String> {
    let fails = |ops: &[Op]| {
        let outcome = catch_unwind(AssertUnwindSafe(|| check(ops, &mut make()).err()));
        outcome.ok().flatten().map(|why| why.to_string())
    };
    let mut why = fails(ops)?;
    loop {
        let before = ops.len();
        for index in (0..ops.len()).rev() {
            let left_out = ops.remove(index);
            match fails(ops) {
                Some(still) => why = still,
                None => ops.insert(index, left_out),
            }
        }
        if ops.len() == before {
            return Some(why);
        }
    }
}

/// The text of a test that runs `ops`.
fn regression(ops: &[Op]) -> String {
    let lines: String = ops.iter().map(|op| format!("        {op:?},\n")).collect();
    format!(
        "#[test]\nfn regression_NAME() {{\n    use base::{{Access::*, Create::*, OpenFlags, \
         RenameMode::*}};\n    use testkit::model::{{Op::*, check}};\n    let ops = [\n{lines}    \
         ];\n    check(&ops, &mut SUBJECT).unwrap_or_else(|why| panic!(\"{{why}}\"));\n}}\n"
    )
}
