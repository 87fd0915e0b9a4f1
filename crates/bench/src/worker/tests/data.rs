//! Files: right data are taken, wrong data are found, and what is written is right.

use super::*;

/// Ways to read all of a file: in sequence and at random, by path and over SFTP.
fn readings(path: &Path) -> Vec<Transfer> {
    let mut readings = Vec::new();
    for target in targets(path) {
        readings.push(all_of(target.clone()));
        readings.push(Transfer { record_bytes: 128 << 10, depth: 1, ..all_of(target.clone()) });
        readings.push(scattered(target.clone(), 1));
        if matches!(target, Target::Sftp { .. }) {
            readings.push(Transfer { record_bytes: 0, depth: 32, ..all_of(target.clone()) });
            readings.push(scattered(target, 32));
        }
    }
    readings
}

#[test]
fn right_files_are_read_and_counted() {
    let (_dir, path) = right_file();
    for transfer in readings(&path) {
        let done = read(transfer.clone(), content()).unwrap();
        assert_eq!(done.bytes, FILE_BYTES, "{transfer:?}");
        assert!(done.verified && done.seconds > 0.0, "{transfer:?}");
        let random = matches!(transfer.order, Order::Random { .. });
        assert_eq!(done.latency.is_some(), random, "{transfer:?}");
        if let Some(latency) = done.latency {
            assert_eq!(latency.count, FILE_BYTES / 4096);
            assert_eq!(done.operations, latency.count);
        }
    }
}

#[test]
fn a_flipped_byte_is_found() {
    let (_dir, path) = right_file();
    spoil(&path, |bytes| bytes[700_001] ^= 1);
    for transfer in readings(&path) {
        assert_eq!(wrong(read(transfer, content())), "other data at offset 700001");
    }
}

#[test]
fn a_zeroed_block_is_found() {
    let (_dir, path) = right_file();
    spoil(&path, |bytes| bytes[8192..12288].fill(0));
    for transfer in readings(&path) {
        assert_eq!(wrong(read(transfer, content())), "zeros at offset 8192");
    }
}

#[test]
fn swapped_blocks_are_found() {
    let (_dir, path) = right_file();
    spoil(&path, |bytes| {
        let (left, right) = bytes.split_at_mut(40960);
        left[..4096].swap_with_slice(&mut right[..4096]);
    });
    let either =
        ["at offset 0 are the data of offset 40960", "at offset 40960 are the data of offset 0"];
    for transfer in readings(&path) {
        let why = wrong(read(transfer, content()));
        assert!(either.contains(&why.as_str()), "{why}");
    }
}

#[test]
fn a_file_that_is_too_short_or_too_long_is_found() {
    for change in [-4096, -1, 1, 4096] {
        let (_dir, path) = right_file();
        let length = FILE_BYTES.checked_add_signed(change).unwrap();
        spoil(&path, |bytes| bytes.resize(length as usize, 1));
        for transfer in readings(&path) {
            let outcome = read(transfer.clone(), content());
            assert!(matches!(outcome, Err(Failure::WrongData { .. })), "{change} {transfer:?}");
        }
    }
}

#[test]
fn a_file_of_another_seed_is_found() {
    let (_dir, path) = right_file();
    for transfer in readings(&path) {
        wrong(read(transfer, Check::Content { seed: SEED + 1 }));
    }
}

#[test]
fn what_cannot_be_opened_is_a_failure_that_names_it() {
    for target in targets(Path::new("/nowhere/at/all")) {
        let failure = read(all_of(target), content()).unwrap_err();
        assert!(matches!(&failure, Failure::Failed { why } if why.contains("open")), "{failure}");
    }
}

#[test]
fn a_time_is_kept_over_several_passes() {
    let dir = tempfile::tempdir().unwrap();
    let path = corpus::file(dir.path(), "file", 4 * 4096, SEED).unwrap();
    for target in targets(&path) {
        let transfer = Transfer { file_bytes: 4 * 4096, ..scattered(target, 2) };
        let transfer = Transfer { until: Until::Seconds(0.3), ..transfer };
        let done = read(transfer, content()).unwrap();
        assert!(done.operations > 4, "{} operations", done.operations);
        assert!(done.seconds >= 0.3, "{} s", done.seconds);
    }
}

#[test]
fn a_count_of_operations_is_kept() {
    let (_dir, path) = right_file();
    for target in targets(&path) {
        for depth in [1, 7] {
            let until = Until::Operations(20);
            let done = read(Transfer { until, ..scattered(target.clone(), depth) }, content());
            assert_eq!(done.unwrap().operations, 20);
        }
    }
}

fn written(transfer: Transfer, seed: u64, create: bool) -> Done {
    run(&Job::Write { transfer, seed, create }).unwrap()
}

#[test]
fn what_is_written_is_the_content() {
    let expected = corpus::digest_content(SEED, FILE_BYTES);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    for target in targets(&path) {
        let done = written(all_of(target), SEED, true);
        assert_eq!(done.bytes, FILE_BYTES);
        assert_eq!(corpus::digest_file(&path).unwrap(), expected);
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_file_that_has_to_be_absent_is_not_overwritten() {
    let (_dir, path) = right_file();
    for target in targets(&path) {
        let job = Job::Write { transfer: all_of(target), seed: 1, create: true };
        run(&job).unwrap_err();
        assert_eq!(corpus::digest_file(&path).unwrap(), corpus::digest_content(SEED, FILE_BYTES));
    }
}

#[test]
fn scattered_writes_are_those_of_the_walk() {
    let (old, new) = (Content::new(SEED), Content::new(SEED + 1));
    for depth in [1, 16] {
        let (_dir, path) = right_file();
        for (target, until) in targets(&path).into_iter().zip([50, 80]) {
            let transfer = Transfer { until: Until::Operations(until), ..scattered(target, depth) };
            let walk = Walk::new(transfer.order, FILE_BYTES / 4096);
            let done = written(transfer, SEED + 1, false);
            assert_eq!(done.operations, until);
            let blocks: Vec<u64> = walk.take(until as usize).collect();
            let expected = corpus::digest_blocks(FILE_BYTES, |first, bytes| {
                for (block, bytes) in (first..).zip(bytes.chunks_mut(4096)) {
                    let content = if blocks.contains(&block) { &new } else { &old };
                    content.fill(block, bytes);
                }
            });
            assert_eq!(corpus::digest_file(&path).unwrap(), expected);
        }
    }
}

/// Remembers the file, overwrites five records; gives the check that belongs to it.
fn overwritten(path: &Path, target: Target, record_bytes: u32) -> Check {
    let marks = path.with_extension("marks");
    read(all_of(target.clone()), Check::Remember { marks: marks.clone() }).unwrap();
    let order = Order::Random { seed: 3 };
    let transfer = Transfer { record_bytes, order, until: Until::Operations(5), ..all_of(target) };
    written(transfer, 100, false);
    let blocks = 5 * u64::from(record_bytes) / 4096;
    Check::Changed { marks, blocks, seed: Some(100) }
}

/// Where the last of them is.
fn last_written(record_bytes: u32) -> usize {
    let records = FILE_BYTES.div_ceil(record_bytes.into());
    let last = Walk::new(Order::Random { seed: 3 }, records).nth(4).unwrap();
    (last * u64::from(record_bytes)) as usize
}

#[test]
fn an_overwritten_file_passes() {
    for record_bytes in [4096, 128 << 10] {
        let (_dir, path) = right_file();
        for target in targets(&path) {
            let check = overwritten(&path, target.clone(), record_bytes);
            assert!(read(all_of(target), check).unwrap().verified);
            fs::write(&path, []).unwrap();
            corpus::file(path.parent().unwrap(), "file", FILE_BYTES, SEED).unwrap();
        }
    }
}

#[test]
fn lost_torn_and_stray_writes_are_found() {
    let old = Content::new(SEED);
    for record_bytes in [4096, 128 << 10] {
        let (_dir, path) = right_file();
        let [local, remote] = targets(&path);
        let check = overwritten(&path, local.clone(), record_bytes);
        let saved = fs::read(&path).unwrap();
        let at = last_written(record_bytes);
        let lost = old.block(at as u64 / 4096);
        for target in [local, remote] {
            spoil(&path, |bytes| bytes[at..at + 4096].copy_from_slice(&lost));
            let why = wrong(read(all_of(target.clone()), check.clone()));
            assert!(why.ends_with("have changed"), "{why}");

            fs::write(&path, &saved).unwrap();
            spoil(&path, |bytes| bytes[at + 512..at + 1024].copy_from_slice(&lost[512..1024]));
            let why = wrong(read(all_of(target.clone()), check.clone()));
            assert_eq!(why, format!("other data at offset {}", at + 512));

            fs::write(&path, &saved).unwrap();
            // The last block of the file is not among those that were written.
            spoil(&path, |bytes| bytes[FILE_BYTES as usize - 1] ^= 1);
            wrong(read(all_of(target), check.clone()));
            fs::write(&path, &saved).unwrap();
        }
    }
}
