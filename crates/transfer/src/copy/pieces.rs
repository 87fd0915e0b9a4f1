//! Writing, with or without holes.

use std::ops::Range;
use std::task::Poll;

use base::{Data, Fh, Remote, Result};

/// Zeros of which a hole is made, in bytes: the block of most file systems.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// The parts of `data`, which is to be at `offset`, that are not blocks of zeros.
fn solid(offset: u64, data: &[u8]) -> Vec<Range<usize>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    let mut at = 0;
    while at < data.len() {
        // Blocks are those of the file.
        let within = (offset as usize + at) % BLOCK_BYTES;
        let end = (at + BLOCK_BYTES - within).min(data.len());
        if data[at..end].iter().any(|byte| *byte != 0) {
            match parts.last_mut() {
                Some(last) if last.end == at => last.end = end,
                _ => parts.push(at..end),
            }
        }
        at = end;
    }
    parts
}

/// The parts of `data` to be written at `offset`: all of it, or with `sparse` what is [`solid`].
pub(crate) fn parts(offset: u64, data: &[u8], sparse: bool) -> Vec<Range<usize>> {
    match sparse {
        true => solid(offset, data),
        false => std::iter::once(0..data.len()).collect(),
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
    let mut whole = Vec::new();
    let mut at = offset;
    for piece in data.pieces() {
        let parts = parts(at, piece, sparse).into_iter();
        whole.extend(parts.map(|part| (at + part.start as u64, piece.slice(part))));
        at += piece.len() as u64;
    }
    let write = |(offset, bytes)| target.write(fh, offset, bytes);
    let mut writes: Vec<_> = whole.into_iter().map(write).collect();
    let mut end = Ok(());
    // Each is polled once before any is waited for.
    std::future::poll_fn(|context| {
        writes.retain_mut(|write| match write.as_mut().poll(context) {
            Poll::Pending => true,
            Poll::Ready(written) => {
                end = end.and(written);
                false
            }
        });
        match end.is_ok() && !writes.is_empty() {
            true => Poll::Pending,
            false => Poll::Ready(end),
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
            let parts = solid(offset, &data);
            let mut whole = vec![0; data.len()];
            for part in &parts {
                whole[part.clone()].copy_from_slice(&data[part.clone()]);
            }
            prop_assert_eq!(&whole[..], &data[..]);
            for part in &parts {
                let (at, part) = (offset + part.start as u64, &data[part.clone()]);
                // No block in it is all zeros.
                for block in 0..part.len() / BLOCK_BYTES {
                    let start = (BLOCK_BYTES - at as usize % BLOCK_BYTES) % BLOCK_BYTES;
                    let block = start + block * BLOCK_BYTES..start + (block + 1) * BLOCK_BYTES;
                    if let Some(block) = part.get(block) {
                        prop_assert!(block.iter().any(|byte| *byte != 0));
                    }
                }
            }
        }
    }
}
