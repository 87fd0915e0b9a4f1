//! What a step costs beside time: CPU, bytes on the link, requests.

use crate::results::{Measured, Usage, Wire};
use crate::stats::{Cell, median};

use super::{CostChange, spread_of_both};

/// One kind of cost.
#[derive(Debug)]
pub(super) struct Cost {
    name: &'static str,
    unit: &'static str,
    /// How many of the measured unit are one of the shown.
    one: f64,
    /// A smaller difference says nothing.
    least: f64,
    of: fn(&Measured) -> Option<f64>,
}

/// Five of the ticks of 10 ms by which the kernel divides CPU time into user and system.
const LEAST_CPU_S: f64 = 0.05;

/// What a connection sends while nothing is done: keep-alives.
const LEAST_BYTES: f64 = 10_000.0;

/// A mount looks at the root and the file system now and then.
const LEAST_REQUESTS: f64 = 10.0;

const fn cpu(name: &'static str, of: fn(&Measured) -> Option<f64>) -> Cost {
    Cost { name, unit: "s", one: 1.0, least: LEAST_CPU_S, of }
}

const fn bytes(name: &'static str, of: fn(&Measured) -> Option<f64>) -> Cost {
    Cost { name, unit: "MB", one: 1e6, least: LEAST_BYTES, of }
}

const fn requests(name: &'static str, of: fn(&Measured) -> Option<f64>) -> Cost {
    Cost { name, unit: "", one: 1.0, least: LEAST_REQUESTS, of }
}

fn user(usage: Usage) -> f64 {
    usage.user_s
}

fn system(usage: Usage) -> f64 {
    usage.system_s
}

fn sum<'a>(counts: impl Iterator<Item = &'a u64>) -> f64 {
    counts.sum::<u64>() as f64
}

pub(super) static COSTS: [Cost; 10] = [
    cpu("client, user", |it| Some(user(it.client))),
    cpu("client, system", |it| Some(system(it.client))),
    cpu("program, user", |it| it.application.map(user)),
    cpu("program, system", |it| it.application.map(system)),
    cpu("server, user", |it| it.server.map(user)),
    cpu("server, system", |it| it.server.map(system)),
    bytes("bytes sent", |it| it.wire.map(|Wire { to_server_bytes, .. }| to_server_bytes as f64)),
    bytes("bytes received", |it| {
        it.wire.map(|Wire { from_server_bytes, .. }| from_server_bytes as f64)
    }),
    requests("requests of the kernel", |it| it.requests.as_ref().map(|it| sum(it.kernel.values()))),
    requests("requests to the server", |it| it.requests.as_ref().map(|it| sum(it.server.values()))),
];

impl Cost {
    /// The cost of one measure of one subject in both runs; `None` unless both have it.
    pub(super) fn compare(
        &'static self,
        (measure, subject): &(String, String),
        [old, new]: [&Cell<'_>; 2],
        tolerance: f64,
    ) -> Option<CostChange> {
        // Timed steps do as many operations as they can. Where operations mean nothing, the work is
        // the same.
        let operations = |it: &Measured| it.operations.max(1) as f64;
        let each = |cell: &Cell<'_>| -> Vec<f64> {
            cell.measured().filter_map(|it| Some((self.of)(it)? / operations(it))).collect()
        };
        let of_old = median(&old.measured().map(operations).collect::<Vec<_>>())?;
        let each = [old, new].map(each);
        let [old, new] = each.each_ref().map(|each| Some(median(each)? * of_old));
        let (old, new) = old.zip(new)?;
        let noise = spread_of_both(&each[0], &each[1]);
        let (low, high) = (old.min(new), old.max(new));
        let is_chance = noise.is_infinite() || high <= low * noise.max(1.0 + tolerance);
        Some(CostChange {
            measure: measure.clone(),
            subject: subject.clone(),
            cost: self.name,
            unit: self.unit,
            old: old / self.one,
            new: new / self.one,
            noise,
            is_same: high - low < self.least || is_chance,
        })
    }
}
