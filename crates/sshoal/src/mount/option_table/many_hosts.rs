//! Unions and pools, and what calls do while a host is unreachable.

use super::Effect::{Choice, Flag, Seconds};
use super::{MountOption, option};
use crate::mount::request::{ActionPolicy, CreatePolicy, Patience};
use crate::sources::PoolMode;

pub(super) const OPTIONS: &[MountOption] = &[
    option(
        "hard",
        "calls wait for an unreachable host, and can be interrupted (default)",
        Flag(|draft| draft.request.patience = Patience::Hard),
    ),
    option(
        "soft",
        "calls wait this long for an unreachable host, then fail with ETIMEDOUT",
        Seconds(|draft, time| draft.request.patience = Patience::Soft(time)),
    )
    .prominent(),
    option(
        "stale",
        "ok: serve cached data of any age while a host is unreachable (default no)",
        Choice(&[
            ("ok", |draft| draft.request.cache.serve_stale = true),
            ("no", |draft| draft.request.cache.serve_stale = false),
        ]),
    ),
    option(
        "create",
        "branch in which new files are created, in mergerfs's terms (default epff)",
        Choice(&[
            ("epff", |draft| draft.set_create(CreatePolicy::EpFf)),
            ("ff", |draft| draft.set_create(CreatePolicy::Ff)),
            ("epmfs", |draft| draft.set_create(CreatePolicy::EpMfs)),
            ("mfs", |draft| draft.set_create(CreatePolicy::Mfs)),
            ("rand", |draft| draft.set_create(CreatePolicy::Rand)),
        ]),
    )
    .prominent(),
    option(
        "action",
        "apply changes to the first branch that has the file, or to all (default first)",
        Choice(&[
            ("first", |draft| draft.set_action(ActionPolicy::First)),
            ("all", |draft| draft.set_action(ActionPolicy::All)),
        ]),
    ),
    option(
        "pool",
        "how the gateways of a pool (gw1,gw2:dir) share requests (default balance)",
        Choice(&[
            ("balance", |draft| draft.set_pool(PoolMode::Balance)),
            ("hash", |draft| draft.set_pool(PoolMode::Hash)),
            ("failover", |draft| draft.set_pool(PoolMode::Failover)),
        ]),
    )
    .prominent(),
];
