//! Random trees, policies and operations.

use base::RenameMode;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use union::{ActionPolicy, CreatePolicy, Mode, Policies};

use super::apply::Op;

/// Few names, so that branches have the same ones, of different types.
const PATHS: &[&str] = &[
    "a", "b", "c", "a/a", "a/b", "b/a", "b/c", "c/a", "a/a/a", "a/b/c", "b/c/a", "a/a/b", "c/a/a",
];

/// Places of branches besides those at the root.
const PLACES: &[&str] = &["", "a", "b/c", "d", "d/e"];

/// The initial entries. Those that cannot be created are left out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Seed {
    Dir(&'static str),
    File(&'static str, u8),
    Link(&'static str, &'static str),
}

/// A union, and the operations on it.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) branches: Vec<(&'static str, Mode, Vec<Seed>)>,
    pub(crate) policies: Policies,
    pub(crate) ops: Vec<Op>,
}

fn paths() -> impl Strategy<Value = &'static str> {
    select(PATHS)
}

fn seeds() -> impl Strategy<Value = Vec<Seed>> {
    let seed = prop_oneof![
        4 => paths().prop_map(Seed::Dir),
        3 => (paths(), any::<u8>()).prop_map(|(path, content)| Seed::File(path, content)),
        1 => (paths(), select(&["a", "b", "/a/a", "nowhere"][..]))
            .prop_map(|(path, target)| Seed::Link(path, target)),
    ];
    vec(seed, 0..8)
}

fn modes() -> impl Strategy<Value = Mode> {
    prop_oneof![6 => Just(Mode::Rw), 1 => Just(Mode::Ro), 1 => Just(Mode::NoCreate)]
}

fn ops() -> impl Strategy<Value = Op> {
    let modes = prop_oneof![3 => Just(RenameMode::Replace), 1 => Just(RenameMode::NoReplace)];
    prop_oneof![
        2 => (paths(), any::<bool>()).prop_map(|(path, exclusive)| Op::Create { path, exclusive }),
        2 => paths().prop_map(|path| Op::Mkdir { path }),
        1 => paths().prop_map(|path| Op::Symlink { path }),
        3 => paths().prop_map(|path| Op::Unlink { path }),
        3 => paths().prop_map(|path| Op::Rmdir { path }),
        5 => (paths(), paths(), modes).prop_map(|(from, to, mode)| Op::Rename { from, to, mode }),
        1 => (paths(), paths()).prop_map(|(existing, new)| Op::Link { existing, new }),
        1 => (paths(), select(&[0o700, 0o711][..]))
            .prop_map(|(path, perm)| Op::Chmod { path, perm }),
    ]
}

pub(crate) fn cases() -> impl Strategy<Value = Case> {
    use CreatePolicy::{EpFf, EpMfs, Ff, Mfs, Rand};
    let policies = (
        select(&[EpFf, Ff, EpMfs, Mfs, Rand][..]),
        select(&[ActionPolicy::First, ActionPolicy::All][..]),
    );
    let at_root = vec((Just(""), modes(), seeds()), 1..4);
    let anywhere = vec((select(PLACES), modes(), seeds()), 0..2);
    (at_root, anywhere, policies, vec(ops(), 1..20)).prop_map(
        |(mut branches, more, (create, action), ops)| {
            branches.extend(more);
            Case { branches, policies: Policies { create, action }, ops }
        },
    )
}
