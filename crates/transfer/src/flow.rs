//! How much is in flight at once.

use std::sync::Arc;

use base::{Mutex, Remote};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Entries in progress at once. Each small file takes three round trips, so this many over
/// 0.5 ms are 80,000 files a second, more than any server opens; over 100 ms they are 400. A server
/// of OpenSSH gives out some hundred handles at least. For others, see [`Flow::with_few`].
const ENTRIES: usize = 128;

/// Entries in progress at once where a server refuses more: some have 100 handles, and do not say so.
/// Directories that are listed ([`PAIRS`](crate::plan)) use further handles.
const FEW: usize = 16;

/// Second tries that fail before it is taken for certain that the number in progress is not why.
const VAIN_TRIES: u32 = 8;

/// A unit of the budget in bytes: what the smallest file costs.
const UNIT_BYTES: u64 = 4096;

/// Bytes in flight beside the window of the remote: pieces that were read and are being written.
const BESIDE_BYTES: u64 = 2 << 20;

/// Bytes in flight at most, whatever window a remote suggests: 1 Gbit/s over 500 ms.
const MOST_BYTES: u64 = 64 << 20;

/// Longest and shortest piece of a file in bytes, where the remotes do not say. Shorter ones cost a
/// hop each, longer ones wait for their last byte before the first is written.
const PIECE_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=1 << 20;

/// The bounds of one run.
pub(crate) struct Flow {
    entries: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    /// Units that `bytes` has, with those that are taken.
    units: Mutex<u64>,
    ends: Vec<Arc<dyn Remote>>,
    second_tries: tokio::sync::Mutex<SecondTries>,
}

/// What second tries, with [`FEW`] in progress, have shown.
#[derive(Default)]
struct SecondTries {
    /// One has succeeded, so that [`FEW`] are the bound now.
    has_bound: bool,
    /// How many have failed.
    vain: u32,
}

impl Flow {
    pub(crate) fn new(ends: Vec<Arc<dyn Remote>>) -> Flow {
        Flow {
            entries: Arc::new(Semaphore::new(ENTRIES)),
            bytes: Arc::new(Semaphore::new(0)),
            units: Mutex::new(0),
            ends,
            second_tries: Default::default(),
        }
    }

    /// Room for one more entry.
    pub(crate) async fn entry(&self) -> OwnedSemaphorePermit {
        let room = self.entries.clone().acquire_owned().await;
        room.expect("it is never closed")
    }

    /// Does once more what has failed for want of handles, perhaps: with [`FEW`] entries in progress,
    /// which become the bound if it succeeds. The caller holds no room. `None` if it would be in
    /// vain.
    pub(crate) async fn with_few<T, E>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Option<Result<T, E>> {
        let mut tries = self.second_tries.lock().await;
        if tries.has_bound {
            drop(tries);
            let _room = self.entry().await;
            return Some(work.await);
        }
        if tries.vain >= VAIN_TRIES {
            return None;
        }
        let most = self.entries.acquire_many((ENTRIES - FEW) as u32).await;
        let most = most.expect("it is never closed");
        let _room = self.entry().await;
        let end = work.await;
        match end {
            Ok(_) => {
                tries.has_bound = true;
                most.forget();
            }
            Err(_) => tries.vain += 1,
        }
        Some(end)
    }

    /// The window: bytes to have in flight now.
    pub(crate) fn window_bytes(&self) -> u64 {
        let windows = self.ends.iter().map(|end| end.suggested_window().bytes);
        windows.max().unwrap_or(0).clamp(UNIT_BYTES, MOST_BYTES)
    }

    /// Length of the pieces in which large files go: what both sides take as one request.
    pub(crate) fn piece_bytes(&self) -> u64 {
        let requests = self.ends.iter().map(|end| u64::from(end.suggested_window().request_bytes));
        requests.max().unwrap_or(0).clamp(*PIECE_BYTES.start(), *PIECE_BYTES.end())
    }

    /// Room for `len` bytes, in the order of asking.
    pub(crate) async fn room(&self, len: u64) -> OwnedSemaphorePermit {
        self.retune();
        let units = len.div_ceil(UNIT_BYTES).clamp(1, PIECE_BYTES.end() / UNIT_BYTES);
        let room = self.bytes.clone().acquire_many_owned(units as u32).await;
        room.expect("it is never closed")
    }

    /// Follows what the remotes ask for now.
    fn retune(&self) {
        let wanted = (self.window_bytes() + BESIDE_BYTES) / UNIT_BYTES;
        let mut units = self.units.lock();
        if wanted > *units {
            self.bytes.add_permits((wanted - *units) as usize);
            *units = wanted;
        } else if wanted < *units {
            *units -= self.bytes.forget_permits((*units - wanted) as usize) as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Window;
    use std::time::Duration;

    #[tokio::test]
    async fn the_bytes_on_their_way_are_bounded() {
        let flow = Flow::new(vec![Arc::new(testkit::MemRemote::new())]);
        let bound = Window::default().bytes + BESIDE_BYTES;
        let mut rooms = Vec::new();
        while let Ok(room) =
            tokio::time::timeout(Duration::from_millis(20), flow.room(1 << 20)).await
        {
            rooms.push(room);
        }
        assert_eq!(rooms.len() as u64, bound >> 20);
        rooms.pop();
        rooms.push(flow.room(1 << 20).await);
    }
}
