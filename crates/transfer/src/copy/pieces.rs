//! Writing, with or without holes.

use base::{Data, Fh, Remote, Result};
use bytes::Bytes;

use crate::run::Core;

/// Zeros of which a hole is made, in bytes: the block of most file systems.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// The parts of `data`, which is to be at `offset`, that are not blocks of zeros.
pub(crate) fn solid(offset: u64, data: &Bytes) -> Vec<(u64, Bytes)> {
    let mut parts: Vec<(u64, Bytes)> = Vec::new();
    let mut begin = None;
    let mut at = 0;
    while at < data.len() {
        // Blocks are those of the file.
        let within = (offset as usize + at) % BLOCK_BYTES;
        let end = (at + BLOCK_BYTES - within).min(data.len());
        match (data[at..end].iter().all(|byte| *byte == 0), begin) {
            (true, Some(from)) => {
                parts.push((offset + from as u64, data.slice(from..at)));
                begin = None;
            }
            (false, None) => begin = Some(at),
            _ => {}
        }
        at = end;
    }
    if let Some(from) = begin {
        parts.push((offset + from as u64, data.slice(from..)));
    }
    parts
}

impl Core {
    /// Writes `data` at `offset` of an open file of the target; with `sparse`, without its zeros.
    pub(crate) async fn write(&self, fh: Fh, offset: u64, data: &Data) -> Result<()> {
        write(&*self.job.target.remote, fh, offset, data, self.job.options.sparse).await
    }
}

/// Writes all of `data`; its pieces go out one behind the other, and are waited for together.
pub(crate) async fn write(
    target: &dyn Remote,
    fh: Fh,
    offset: u64,
    data: &Data,
    sparse: bool,
) -> Result<()> {
    let mut parts = Vec::new();
    let mut at = offset;
    for piece in data.pieces() {
        match sparse {
            true => parts.extend(solid(at, piece)),
            false => parts.push((at, piece.clone())),
        }
        at += piece.len() as u64;
    }
    let mut writes: Vec<_> =
        parts.into_iter().map(|(offset, bytes)| Some(target.write(fh, offset, bytes))).collect();
    // Each is polled once before any is waited for.
    std::future::poll_fn(|context| {
        let mut end = Ok(());
        let mut pending = false;
        for slot in &mut writes {
            let Some(write) = slot else {
                continue;
            };
            match write.as_mut().poll(context) {
                std::task::Poll::Pending => pending = true,
                std::task::Poll::Ready(written) => {
                    *slot = None;
                    end = end.and(written);
                }
            }
        }
        match (end, pending) {
            (Ok(()), true) => std::task::Poll::Pending,
            (end, _) => std::task::Poll::Ready(end),
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_left_out_is_zeros_and_no_more(
            offset in 0u64..10_000,
            runs in prop::collection::vec((any::<bool>(), 1usize..9000), 0..6),
        ) {
            let data: Vec<u8> =
                runs.iter().flat_map(|(zero, len)| vec![u8::from(!*zero); *len]).collect();
            let data = Bytes::from(data);
            let parts = solid(offset, &data);
            let mut whole = vec![0; data.len()];
            for (at, part) in &parts {
                let at = (at - offset) as usize;
                whole[at..at + part.len()].copy_from_slice(part);
            }
            prop_assert_eq!(&whole[..], &data[..]);
            for (at, part) in &parts {
                // No block in it is all zeros.
                for block in 0..part.len() / BLOCK_BYTES {
                    let start = (BLOCK_BYTES - *at as usize % BLOCK_BYTES) % BLOCK_BYTES;
                    let block = start + block * BLOCK_BYTES..start + (block + 1) * BLOCK_BYTES;
                    if let Some(block) = part.get(block) {
                        prop_assert!(block.iter().any(|byte| *byte != 0));
                    }
                }
            }
        }
    }
}
