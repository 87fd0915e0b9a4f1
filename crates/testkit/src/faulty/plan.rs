//! Selects the calls that fail or wait.

use base::Errno;

use super::gate::{Barrier, Gate, gate};
use super::stepper::Stepper;
use crate::call::Call;

/// The calls that an instruction applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All calls that cost a round trip.
    Any,
    /// The calls of one operation.
    Only(Call),
}

impl From<Call> for Which {
    fn from(call: Call) -> Which {
        Which::Only(call)
    }
}

impl Which {
    fn matches(self, call: Call) -> bool {
        match self {
            Which::Any => call.is_round_trip(),
            Which::Only(only) => only == call,
        }
    }
}

/// When an instruction takes effect on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// Before the call reaches the inner remote.
    Before,
    /// After the reply of the inner remote.
    After,
}

#[derive(Debug)]
struct Instruction {
    which: Which,
    /// Matching calls to let through first.
    skip: u64,
    /// Number of matching calls to affect after those.
    times: u64,
    moment: Moment,
    action: Action,
}

#[derive(Debug)]
enum Action {
    Fail(Errno),
    /// Taken by the call when it arrives.
    Hold(Option<Barrier>),
}

/// All instructions that are not used up.
#[derive(Debug, Default)]
pub(super) struct Plan(Vec<Instruction>);

/// The instructions for one call.
#[derive(Debug, Default)]
pub(super) struct Orders {
    pub(super) before: Order,
    pub(super) after: Order,
    /// Stops the call, which has this number, before and after it reaches the inner remote.
    pub(super) stepper: Option<(u64, Call, Stepper)>,
}

/// The instructions for one moment of a call: first wait, then fail.
#[derive(Debug, Default)]
pub(super) struct Order {
    pub(super) barriers: Vec<Barrier>,
    pub(super) errno: Option<Errno>,
}

impl Plan {
    pub(super) fn fail(&mut self, which: Which, nth: u64, times: u64, at: Moment, errno: Errno) {
        self.add(which, nth, times, at, Action::Fail(errno));
    }

    pub(super) fn hold(&mut self, which: Which, nth: u64, moment: Moment) -> Gate {
        let (gate, barrier) = gate();
        self.add(which, nth, 1, moment, Action::Hold(Some(barrier)));
        gate
    }

    fn add(&mut self, which: Which, nth: u64, times: u64, moment: Moment, action: Action) {
        assert!(nth > 0, "calls are counted from 1");
        self.0.push(Instruction { which, skip: nth - 1, times, moment, action });
    }

    pub(super) fn not_reached(&self) -> usize {
        self.0.iter().filter(|instruction| instruction.times != u64::MAX).count()
    }

    /// The instructions for `call`, which is made now.
    pub(super) fn orders(&mut self, call: Call) -> Orders {
        let mut orders = Orders::default();
        for instruction in &mut self.0 {
            if !instruction.which.matches(call) {
                continue;
            }
            if instruction.skip > 0 {
                instruction.skip -= 1;
                continue;
            }
            if instruction.times != u64::MAX {
                instruction.times -= 1;
            }
            let order = match instruction.moment {
                Moment::Before => &mut orders.before,
                Moment::After => &mut orders.after,
            };
            match &mut instruction.action {
                Action::Fail(errno) => order.errno = order.errno.or(Some(*errno)),
                Action::Hold(barrier) => order.barriers.extend(barrier.take()),
            }
        }
        self.0.retain(|instruction| instruction.times > 0);
        orders
    }
}
