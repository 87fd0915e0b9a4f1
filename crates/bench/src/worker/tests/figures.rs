//! That the instrument costs little beside what it measures.

use std::hint::black_box;
use std::time::Instant;

use super::*;

/// Far below what it does (7 GB/s and more with optimisation), far above what would be a fault.
const LEAST_BYTES_PER_S: f64 = if cfg!(debug_assertions) { 20e6 } else { 2e9 };

#[test]
fn making_and_comparing_are_fast() {
    let content = Content::new(SEED);
    let mut buffer = vec![0; 64 << 10];
    let rate = |mut workload: Box<dyn FnMut(u64) + '_>| {
        let (begin, mut rounds) = (Instant::now(), 0);
        while begin.elapsed().as_secs_f64() < 0.1 {
            workload(rounds * 16);
            rounds += 1;
        }
        rounds as f64 * (64 << 10) as f64 / begin.elapsed().as_secs_f64()
    };
    let fill = rate(Box::new(|first| content.fill(first, black_box(&mut buffer))));
    content.fill(0, &mut buffer);
    let check = rate(Box::new(|_| content.check(0, black_box(&buffer)).unwrap()));
    println!("made: {:.1} GB/s, compared: {:.1} GB/s", fill / 1e9, check / 1e9);
    assert!(fill > LEAST_BYTES_PER_S && check > LEAST_BYTES_PER_S, "{fill} and {check} B/s");
}
