//! Counters of requests, of one client or of all clients of a host.

use std::time::Duration;

use base::metrics::{Counter, Histogram, note_request};

use super::Packet;
use crate::codec::{KINDS, Kind};

/// What was sent and received since the counters were created. Updated without locks.
#[derive(Debug)]
pub struct Counters {
    requests: [Counter; KINDS],
    /// Bytes of SFTP packets sent, before ssh encrypts or compresses them.
    pub sent_bytes: Counter,
    /// Bytes of SFTP packets received.
    pub received_bytes: Counter,
    /// Bytes by which compressed packets that were sent are shorter than uncompressed.
    pub sent_saved_bytes: Counter,
    /// Bytes by which compressed packets that were received are shorter than uncompressed.
    pub received_saved_bytes: Counter,
    /// Times from a request to its reply, of requests that neither carry nor return file content
    /// and are not slow by nature.
    pub small_latency: Histogram,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            requests: [const { Counter::new() }; KINDS],
            sent_bytes: Counter::new(),
            received_bytes: Counter::new(),
            sent_saved_bytes: Counter::new(),
            received_saved_bytes: Counter::new(),
            small_latency: Histogram::default(),
        }
    }
}

impl Counters {
    /// The kinds of requests that were sent, by their names in the protocol, and their numbers.
    pub fn requests(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = self.requests.iter().zip(Kind::all());
        all.map(|(count, kind)| (kind.name(), count.get())).filter(|(_, count)| *count > 0)
    }

    pub(super) fn sent(&self, packet: &Packet) {
        note_request();
        self.requests[packet.kind.index()].add(1);
        self.sent_bytes.add(packet.len() as u64);
        self.sent_saved_bytes.add(packet.saved as u64);
    }

    pub(super) fn answered(&self, kind: Kind, took: Duration) {
        if kind.is_small() {
            self.small_latency.record(took);
        }
    }
}
