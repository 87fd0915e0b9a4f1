//! How several sources are one tree, and what happens while a host cannot be reached.

use super::Effect::{Choice, Flag, Seconds};
use super::{MountOption, option};
use crate::mount::request::{ActionPolicy, CreatePolicy, Patience};
use crate::sources::PoolMode;

pub(super) const OPTIONS: &[MountOption] = &[
    option(
        "hard",
        "calls wait for a host that is away, and can be interrupted (the default)",
        Flag(|draft| draft.request.patience = Patience::Hard),
    ),
    option(
        "soft",
        "calls wait so long for a host that is away, then fail with ETIMEDOUT",
        Seconds(|draft, time| draft.request.patience = Patience::Soft(time)),
    )
    .prominent(),
    option(
        "stale",
        "while a host is away, show what is cached, however old it is (no)",
        Choice(&[
            ("ok", |draft| draft.request.cache.serve_stale = true),
            ("no", |draft| draft.request.cache.serve_stale = false),
        ]),
    ),
    option(
        "create",
        "in which of several branches something new is made (epff)",
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
        "changes of what several branches have are for the first, or for all (first)",
        Choice(&[
            ("first", |draft| draft.set_action(ActionPolicy::First)),
            ("all", |draft| draft.set_action(ActionPolicy::All)),
        ]),
    ),
    option(
        "pool",
        "how the gateways of a pool (gw1,gw2:dir) share the work (balance)",
        Choice(&[
            ("balance", |draft| draft.set_pool(PoolMode::Balance)),
            ("hash", |draft| draft.set_pool(PoolMode::Hash)),
            ("failover", |draft| draft.set_pool(PoolMode::Failover)),
        ]),
    )
    .prominent(),
];
