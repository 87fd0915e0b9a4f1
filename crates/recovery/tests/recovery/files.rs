//! Open files: which changes are kept, which are replayed and in which order, and when a file is no
//! longer the same.

use std::time::Duration;

use base::{Access, AttrChange, Create, Errno, OpenFlags, Remote, RenameMode, Timestamp};
use bytes::Bytes;
use testkit::dice::Dice;
use testkit::mem::Options;
use testkit::tree::Limits;
use testkit::{Call, MemRemote, path};

use super::stage::{Stage, Started, appending, making, others_run, poll_once};

fn size(size: u64) -> AttrChange {
    AttrChange { size: Some(size), ..AttrChange::default() }
}

#[tokio::test(start_paused = true)]
async fn writes_are_replayed_in_their_order() {
    let stage = Stage::new();
    let (one, other) = (stage.create("f").await, stage.create("f").await);
    stage.server().set_pending(true);
    let gate = stage.faulty.hold(Call::Write, 1);
    let recovering = &stage.recovering;
    // Overlapping writes through two handles of one file, with changes of size between them.
    let mut calls: Vec<Started<'_, _>> = vec![
        recovering.write(one, 0, Bytes::from_static(b"aaaaaaaaaa")),
        recovering.write(one, 5, Bytes::from_static(b"bbbb")),
        recovering.fsetattr(one, size(7)),
        recovering.write(other, 6, Bytes::from_static(b"cc")),
        recovering.write(one, 7, Bytes::from_static(b"d")),
    ];
    for call in &mut calls {
        assert!(poll_once(call).is_pending());
    }
    assert!(gate.has_arrived());
    stage.cut_for(Duration::from_secs(3));
    // The last one is awaited first: no call depends on another one being polled.
    for call in calls.into_iter().rev() {
        assert_eq!(call.await, Ok(()));
    }
    assert_eq!(stage.content("f"), "aaaaabcd");
    assert_eq!(stage.read(one).await.unwrap(), b"aaaaabcd");
    stage.recovering.close(one);
    stage.recovering.close(other);
    stage.nothing_leaked().await;
}

#[tokio::test(start_paused = true)]
async fn a_write_after_a_loss_waits_for_the_replay() {
    let stage = Stage::new();
    let fh = stage.create("f").await;
    stage.faulty.fail(Call::Write, 1, Errno::EHOSTDOWN);
    // Held while the file is reopened.
    let gate = stage.faulty.hold(Call::Open, 1);
    let recovering = &stage.recovering;
    let mut first = recovering.write(fh, 0, Bytes::from_static(b"first"));
    assert!(poll_once(&mut first).is_pending());
    gate.arrived().await;
    let mut second = recovering.write(fh, 3, Bytes::from_static(b"second"));
    let mut read = recovering.read(fh, 0, 100);
    assert!(poll_once(&mut second).is_pending() && poll_once(&mut read).is_pending());
    assert_eq!(stage.content("f"), "");
    gate.release();
    let (first, second, read) = tokio::join!(first, second, read);
    assert_eq!((first, second), (Ok(()), Ok(())));
    assert_eq!(read.unwrap().to_vec(), b"firsecond");
}

/// The server refuses the second write because of the loss that the first one has noticed.
#[tokio::test(start_paused = true)]
async fn an_error_of_a_write_that_is_replayed_is_void() {
    let stage = Stage::new();
    let fh = stage.create("f").await;
    let (lost, refused) = (stage.faulty.hold(Call::Write, 1), stage.faulty.hold(Call::Write, 2));
    stage.faulty.fail(Call::Write, 1, Errno::EHOSTDOWN);
    stage.faulty.fail(Call::Write, 2, Errno::EIO);
    let reopening = stage.faulty.hold(Call::Open, 1);
    let recovering = &stage.recovering;
    let mut first = recovering.write(fh, 0, Bytes::from_static(b"first"));
    let mut second = recovering.write(fh, 3, Bytes::from_static(b"second"));
    assert!(poll_once(&mut first).is_pending() && poll_once(&mut second).is_pending());
    lost.release();
    assert!(poll_once(&mut first).is_pending());
    reopening.arrived().await;
    refused.release();
    assert!(poll_once(&mut second).is_pending());
    reopening.release();
    assert_eq!(tokio::join!(first, second), (Ok(()), Ok(())));
    assert_eq!(stage.content("f"), "firsecond");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_write_is_not_replayed() {
    let stage = Stage::new();
    let fh = stage.create("f").await;
    stage.faulty.cut();
    let mut dropped = stage.recovering.write(fh, 0, Bytes::from_static(b"dropped"));
    let mut kept = stage.recovering.write(fh, 2, Bytes::from_static(b"kept"));
    assert!(poll_once(&mut dropped).is_pending() && poll_once(&mut kept).is_pending());
    drop(dropped);
    stage.faulty.restore_without_handles(Errno::ESTALE);
    assert_eq!(kept.await, Ok(()));
    assert_eq!(stage.content("f"), "\0\0kept");
    assert_eq!(stage.recovering.status().bytes_unacknowledged, 0);
}

#[tokio::test(start_paused = true)]
async fn a_replayed_write_does_not_overwrite_a_newer_one() {
    let stage = Stage::new();
    let fh = stage.create("f").await;
    let gate = stage.faulty.hold_answer(Call::Write, 1);
    let mut first = stage.recovering.write(fh, 0, Bytes::from_static(b"aaaaaaaa"));
    assert!(poll_once(&mut first).is_pending());
    assert!(gate.has_arrived());
    stage.put(fh, 2, "bbb").await.unwrap();
    stage.blink();
    assert_eq!(first.await, Ok(()));
    assert_eq!(stage.content("f"), "aabbbaaa");
}

/// Whichever replies are lost, the content is the result of all changes in their order.
#[tokio::test(start_paused = true)]
async fn any_replies_to_writes_and_changes_of_size_may_be_lost() {
    for seed in 0..1000 {
        let dice = &mut Dice::new(seed);
        let stage = Stage::new();
        let fh = stage.create("f").await;
        let (mut gates, mut asked, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        let mut log = Vec::new();
        for number in 0..2 + dice.below(6) as u8 {
            let is_lost = dice.chance(60);
            let (call, mut change) = if dice.chance(50) {
                let (at, data) = (dice.below(8), vec![b'a' + number; 1 + dice.below(8) as usize]);
                log.push(format!("write of {} at {at}", data.len()));
                let range = at as usize..at as usize + data.len();
                expected.resize(expected.len().max(range.end), 0);
                expected[range].copy_from_slice(&data);
                (Call::Write, stage.recovering.write(fh, at, Bytes::from(data)))
            } else {
                let len = dice.below(12);
                log.push(format!("size {len}"));
                expected.resize(len as usize, 0);
                (Call::Fsetattr, stage.recovering.fsetattr(fh, size(len)))
            };
            if is_lost {
                log.push("lost".to_owned());
                gates.push(stage.faulty.hold_answer(call, 1));
            }
            assert_eq!(poll_once(&mut change).is_pending(), is_lost);
            if is_lost {
                asked.push(change);
            }
        }
        for _ in 0..dice.below(3) {
            // A replayed request is lost as well.
            let (call, nth) = (dice.pick(&[Call::Write, Call::Fsetattr]), 1 + dice.below(3));
            log.push(format!("{call:?} {nth} lost in the replay"));
            gates.push(stage.faulty.hold_answer(call, nth));
            stage.blink();
            asked.retain_mut(|change| poll_once(change).is_pending());
            others_run().await;
        }
        stage.blink();
        drop(gates);
        for change in asked {
            assert_eq!(change.await, Ok(()));
        }
        assert_eq!(stage.read(fh).await, Ok(expected), "seed {seed}: {log:?}");
        stage.recovering.close(fh);
        stage.nothing_leaked().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_handle_closed_with_a_waiting_write_is_reopened_for_it() {
    let stage = Stage::new();
    let fh = stage.create("f").await;
    stage.faulty.cut();
    let mut write = stage.recovering.write(fh, 0, Bytes::from_static(b"last"));
    assert!(poll_once(&mut write).is_pending());
    stage.recovering.close(fh);
    stage.faulty.restore_without_handles(Errno::ESTALE);
    assert_eq!(write.await, Ok(()));
    assert_eq!(stage.content("f"), "last");
    stage.nothing_leaked().await;
}

#[tokio::test(start_paused = true)]
async fn an_append_is_in_the_file_once_however_much_had_arrived() {
    let pieces = ["one ", "two ", "three "];
    let whole = pieces.concat();
    for arrived in 0..=whole.len() {
        let stage = Stage::new();
        stage.server().put_file("log", "before ");
        let fh = stage.open("log", appending()).await;
        stage.put(fh, 0, "acked ").await.unwrap();
        stage.server().set_pending(true);
        let gates = [1, 2, 3].map(|nth| stage.faulty.hold(Call::Write, nth));
        let recovering = &stage.recovering;
        let mut calls = pieces.map(|piece| recovering.write(fh, 0, Bytes::from(piece)));
        for call in &mut calls {
            assert!(poll_once(call).is_pending());
        }
        // The part that the server had received before the link broke.
        stage.server().put_file("log", format!("before acked {}", &whole[..arrived]));
        stage.blink();
        drop(gates);
        for call in calls {
            assert_eq!(call.await, Ok(()), "{arrived}");
        }
        assert_eq!(stage.content("log"), format!("before acked {whole}"), "{arrived}");
        stage.put(fh, 0, "after").await.unwrap();
        stage.recovering.close(fh);
        stage.nothing_leaked().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_append_gets_the_end_of_the_file() {
    let limits = Limits { ignores_append: true, ..Limits::default() };
    let stage = Stage::over(MemRemote::with(Options { limits, ..Options::default() }));
    stage.server().put_file("log", "before ");
    let fh = stage.open("log", appending()).await;
    stage.put(fh, 7, "first ").await.unwrap();
    stage.blink();
    stage.put(fh, 13, "second").await.unwrap();
    assert_eq!(stage.content("log"), "before first second");
    stage.recovering.close(fh);
    stage.nothing_leaked().await;
}

/// L3: a busy server may execute requests of the old connection when a new one is already open.
#[tokio::test(start_paused = true)]
async fn an_append_that_is_executed_late_is_in_the_file_once() {
    for late_ms in [10, 300, 900] {
        let stage = Stage::new();
        stage.server().put_file("log", "before ");
        let fh = stage.open("log", appending()).await;
        let gate = stage.faulty.hold(Call::Write, 1);
        let mut append = stage.recovering.write(fh, 0, Bytes::from_static(b"late"));
        assert!(poll_once(&mut append).is_pending());
        stage.blink();
        drop(gate);
        let carried_out = async {
            tokio::time::sleep(Duration::from_millis(late_ms)).await;
            stage.server().put_file("log", stage.content("log") + "late");
        };
        let (append, ()) = tokio::join!(append, carried_out);
        assert_eq!(append, Ok(()), "{late_ms}");
        assert_eq!(stage.content("log"), "before late", "{late_ms}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_append_that_cannot_be_distinguished_is_an_error() {
    let stage = Stage::new();
    stage.server().put_file("log", "before ");
    let fh = stage.open("log", appending()).await;
    let gate = stage.faulty.hold(Call::Write, 1);
    let mut ours = stage.recovering.write(fh, 0, Bytes::from_static(b"ours and more"));
    assert!(poll_once(&mut ours).is_pending());
    stage.server().put_file("log", "before theirs");
    stage.blink();
    drop(gate);
    assert_eq!(ours.await, Err(Errno::EIO));
    // The next append is a separate one.
    stage.put(fh, 0, " next").await.unwrap();
    assert_eq!(stage.content("log"), "before theirs next");
}

/// A change of the file during the outage, and whether its handles stay usable.
struct ServerChange(&'static str, fn(&Stage), bool);

#[tokio::test(start_paused = true)]
async fn a_file_that_was_changed_on_the_server_is_stale() {
    let cases = [
        ServerChange("nothing", |_| {}, true),
        ServerChange("its size", |stage| stage.server().put_file("f", "longer content"), false),
        ServerChange("its time", |stage| stage.server().set_mtime("f", 5), false),
        ServerChange("its permissions", |stage| stage.server().set_perm("f", 0o600), false),
        ServerChange("it was removed", |stage| stage.server().remove("f"), false),
        ServerChange(
            "a directory is there",
            |stage| {
                stage.server().remove("f");
                stage.server().put_dir("f");
            },
            false,
        ),
        ServerChange(
            "a link is there",
            |stage| {
                stage.server().move_to("f", "g");
                stage.server().put_symlink("f", "g");
            },
            false,
        ),
    ];
    for ServerChange(what, change, goes_on) in cases {
        let stage = Stage::new();
        stage.server().put_file("f", "content");
        stage.server().set_mtime("f", 1_000);
        let fh = stage.open("f", OpenFlags::existing(Access::ReadWrite)).await;
        stage.faulty.cut();
        change(&stage);
        stage.faulty.restore_without_handles(Errno::ESTALE);
        if goes_on {
            assert_eq!(stage.read(fh).await.unwrap(), b"content", "{what}");
        } else {
            for _ in 0..2 {
                assert_eq!(stage.read(fh).await, Err(Errno::ESTALE), "{what}");
                assert_eq!(stage.put(fh, 0, "x").await, Err(Errno::ESTALE), "{what}");
                assert_eq!(stage.recovering.fsync(fh).await, Err(Errno::ESTALE), "{what}");
            }
        }
        stage.recovering.close(fh);
        stage.nothing_leaked().await;
    }
}

/// L4: after a write of this mount, too.
#[tokio::test(start_paused = true)]
async fn a_file_that_was_replaced_after_a_write_of_this_mount_is_stale() {
    // What follows the write, and with which result of a server that shows whether it restarted.
    for (what, verifier) in [("fsync", None), ("flush", None), ("", None), ("", Some("boot"))] {
        for replaced in [true, false] {
            let stage = Stage::new();
            if let Some(verifier) = verifier {
                stage.faulty.set_write_verifier(verifier);
            }
            stage.server().put_file("f", "1111111111");
            stage.server().set_mtime("f", 1_000);
            let flags = OpenFlags::existing(Access::ReadWrite);
            let fh = stage.open("f", flags).await;
            others_run().await;
            stage.put(fh, 2, "own").await.unwrap();
            let recovering = &stage.recovering;
            match what {
                "fsync" => recovering.fsync(fh).await.unwrap(),
                // Both are sent before the write is answered.
                "flush" => {
                    let gate = stage.faulty.hold_answer(Call::Write, 1);
                    let mut write = recovering.write(fh, 4, Bytes::from_static(b"own"));
                    assert!(poll_once(&mut write).is_pending());
                    recovering.fstat(fh).await.unwrap();
                    gate.release();
                    write.await.unwrap();
                }
                _ => {}
            }
            stage.faulty.cut();
            stage.faulty.lose_handles(Errno::ESTALE);
            if replaced {
                // Only the mtime differs, if the attributes are known.
                let content =
                    if what.is_empty() { "2222222222".into() } else { stage.content("f") };
                stage.server().put_file("g", &*content);
                stage.server().set_mtime("g", 4_000_000_000);
                stage.server().move_to("g", "f");
            }
            let before = stage.content("f");
            stage.faulty.restore();
            let written = stage.put(fh, 5, "more").await;
            let case = format!("{what:?}, {verifier:?}, replaced: {replaced}");
            match replaced {
                true => {
                    assert_eq!(written, Err(Errno::ESTALE), "{case}");
                    assert_eq!(stage.content("f"), before, "{case}");
                }
                false => assert_eq!(written, Ok(()), "{case}"),
            }
            stage.recovering.close(fh);
            stage.nothing_leaked().await;
        }
    }
}

/// L4: a write that was not sent explains no newer file.
#[tokio::test(start_paused = true)]
async fn a_write_that_begins_when_the_connection_is_known_to_be_lost_is_of_the_open_file() {
    for (old, new, offset) in [("1111", "2222", 1), ("1111", "222222", 4)] {
        let stage = Stage::new();
        stage.server().put_file("f", old);
        stage.server().set_mtime("f", 1_000);
        let fh = stage.open("f", OpenFlags::existing(Access::ReadWrite)).await;
        stage.faulty.cut();
        stage.faulty.lose_handles(Errno::ESTALE);
        stage.server().put_file("g", new);
        stage.server().move_to("g", "f");
        let mut written = stage.recovering.write(fh, offset, Bytes::from_static(b"own"));
        assert!(poll_once(&mut written).is_pending());
        stage.faulty.restore();
        assert_eq!(written.await, Err(Errno::ESTALE));
        assert_eq!(stage.content("f"), new);
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_begins_when_its_gateway_is_known_to_be_lost_is_of_the_open_file() {
    let stage = Stage::pool();
    stage.server().put_file("f", "1111");
    stage.server().set_mtime("f", 1_000);
    let fh = stage.open("f", OpenFlags::existing(Access::ReadWrite)).await;
    stage.faulty.cut();
    stage.recovering.lstat(&path("")).await.unwrap();
    stage.server().put_file("g", "2222");
    stage.server().move_to("g", "f");
    assert_eq!(stage.put(fh, 1, "own").await, Err(Errno::ESTALE));
    assert_eq!(stage.content("f"), "2222");
}

/// L4: only descriptors from before the loss are stale.
#[tokio::test(start_paused = true)]
async fn an_open_beside_stale_descriptors_gets_the_file_that_is_there() {
    let reading = OpenFlags::existing(Access::Read);
    for now in [Some("another content"), None] {
        let stage = Stage::new();
        stage.server().put_file("f", "content");
        let stale = stage.open("f", reading).await;
        stage.faulty.cut();
        match now {
            Some(content) => stage.server().put_file("f", content),
            None => stage.server().remove("f"),
        }
        stage.faulty.restore_without_handles(Errno::ESTALE);
        assert_eq!(stage.read(stale).await, Err(Errno::ESTALE));
        let fh = stage.open("f", OpenFlags { truncate: true, ..making() }).await;
        assert_eq!(stage.put(fh, 0, "new").await, Ok(()), "{now:?}");
        assert_eq!(stage.content("f"), "new");
        let again = stage.open("f", reading).await;
        assert_eq!(stage.read(again).await.unwrap(), b"new");
        assert_eq!(stage.read(stale).await, Err(Errno::ESTALE));
        for fh in [stale, fh, again] {
            stage.recovering.close(fh);
        }
        stage.nothing_leaked().await;
    }
}

/// L4: also if nothing distinguishes it from the file that was there before.
#[tokio::test(start_paused = true)]
async fn a_file_that_is_back_can_be_opened_beside_stale_descriptors() {
    // Whether the file is found gone while an open that has found it is in flight.
    for is_in_flight in [false, true] {
        let stage = Stage::new();
        let put = || {
            stage.server().put_file("f", "content");
            stage.server().set_mtime("f", 1_000);
        };
        put();
        let (name, flags) = (path("f"), OpenFlags::existing(Access::ReadWrite));
        let stale = stage.open("f", flags).await;
        stage.blink();
        let answer = is_in_flight.then(|| stage.faulty.hold_answer(Call::Open, 1));
        let mut opening: Started<'_, _> = Box::pin(stage.recovering.open(&name, flags));
        if is_in_flight {
            assert!(poll_once(&mut opening).is_pending());
        }
        stage.server().remove("f");
        assert_eq!(stage.read(stale).await, Err(Errno::ESTALE));
        put();
        drop(answer);
        let fh = opening.await.unwrap().fh;
        assert_eq!(stage.read(fh).await.unwrap(), b"content", "{is_in_flight}");
        assert_eq!(stage.read(stale).await, Err(Errno::ESTALE));
        stage.recovering.close(stale);
        stage.recovering.close(fh);
        stage.nothing_leaked().await;
    }
}

/// L4: the creator of a file may write to it, also after a loss.
#[tokio::test(start_paused = true)]
async fn an_open_file_without_permissions_is_reopened() {
    for (access, missing) in [(Access::ReadWrite, 0o600), (Access::Write, 0o200)] {
        // Each request of the recovery, or its reply, is lost in turn.
        for fault in 0..8 {
            let stage = Stage::new();
            let flags = OpenFlags {
                create: Create::Exclusive(0o666 & !missing),
                ..OpenFlags::existing(access)
            };
            let fh = stage.open("f", flags).await;
            stage.put(fh, 0, "before").await.unwrap();
            stage.blink();
            // The server refuses to open the file while it has this mode.
            stage.faulty.fail(Call::Open, 1, Errno::EACCES);
            let (call, nth) =
                [(Call::Lstat, 1), (Call::Setattr, 1), (Call::Open, 2), (Call::Fsetattr, 1)]
                    [fault / 2];
            match fault % 2 {
                0 => stage.faulty.fail(call, nth, Errno::EHOSTDOWN),
                _ => stage.faulty.fail_after(call, nth, Errno::EHOSTDOWN),
            }
            stage.put(fh, 6, " and after").await.unwrap();
            assert_eq!(stage.faulty.not_reached(), 0, "{access:?} {fault}");
            assert_eq!(stage.content("f"), "before and after", "{access:?} {fault}");
            assert_eq!(stage.server().attr("f").perm, 0o666 & !missing, "{access:?} {fault}");
            stage.recovering.close(fh);
            stage.nothing_leaked().await;
        }
    }
}

/// L4
#[tokio::test(start_paused = true)]
async fn a_writer_without_permission_gets_eio() {
    let stage = Stage::new();
    let flags =
        OpenFlags { create: Create::Exclusive(0o444), ..OpenFlags::existing(Access::Write) };
    let fh = stage.open("f", flags).await;
    let reader = stage.open("f", OpenFlags::existing(Access::Read)).await;
    stage.blink();
    stage.faulty.fail(Call::Open, 1, Errno::EACCES);
    stage.faulty.fail(Call::Open, 2, Errno::EACCES);
    stage.faulty.fail(Call::Setattr, 1, Errno::EPERM);
    assert_eq!(stage.put(fh, 0, "x").await, Err(Errno::EIO));
    assert_eq!(stage.recovering.fsync(fh).await, Err(Errno::EIO));
    assert_eq!(stage.server().attr("f").perm, 0o444);
    assert_eq!(stage.read(reader).await, Err(Errno::EACCES));
    assert_eq!(stage.faulty.not_reached(), 0);
}

/// L4: a log that `tail -f` follows.
#[tokio::test(start_paused = true)]
async fn a_file_that_has_grown_is_the_same_if_its_old_end_is_unchanged() {
    let old: String = (0..20).map(|number| format!("line {number}\n")).collect();
    let grown = format!("{old}one more line\n");
    let other = format!("{}{}", old.replace("line 19", "LINE 19"), "one more line\n");
    let read_to = old.len() as u64;
    // Content and mtime after the loss, how far it was read before, and whether the handle stays
    // usable.
    for (now, mtime, read_to, goes_on) in [
        (&grown, 2_000, read_to, true),
        (&grown, 1_000, read_to, true),
        (&grown, 999, read_to, false),
        (&grown, 2_000, read_to - 1, false),
        (&other, 2_000, read_to, false),
        (&old, 2_000, read_to, false),
    ] {
        let stage = Stage::new();
        stage.server().put_file("f", old.as_bytes());
        stage.server().set_mtime("f", 1_000);
        let fh = stage.open("f", OpenFlags::existing(Access::Read)).await;
        let read = stage.recovering.read(fh, 0, read_to as u32).await.unwrap();
        assert_eq!(read.len() as u64, read_to);
        stage.faulty.cut();
        stage.server().put_file("f", now.as_bytes());
        stage.server().set_mtime("f", mtime);
        stage.faulty.restore_without_handles(Errno::ESTALE);
        let expected = if goes_on { Ok(now.as_bytes().to_vec()) } else { Err(Errno::ESTALE) };
        assert_eq!(stage.read(fh).await, expected, "{now}, from {mtime}, read to {read_to}");
        stage.recovering.close(fh);
        stage.nothing_leaked().await;
    }
}

#[tokio::test(start_paused = true)]
async fn changes_of_this_mount_are_expected() {
    let stage = Stage::new();
    let fh = stage.create("f").await;
    let second = stage.open("f", OpenFlags::existing(Access::Read)).await;
    let perm = AttrChange { perm: Some(0o600), ..AttrChange::default() };
    for round in 0..4 {
        match round {
            0 => stage.put(fh, 0, "written").await.unwrap(),
            1 => stage.recovering.setattr(&path("f"), size(3)).await.unwrap(),
            2 => stage.recovering.fsetattr(fh, perm).await.unwrap(),
            _ => {
                let flags = OpenFlags { truncate: true, ..making() };
                let third = stage.open("f", flags).await;
                stage.put(third, 0, "anew").await.unwrap();
                stage.recovering.close(third);
            }
        }
        stage.blink();
        let content = stage.server().content("f");
        assert_eq!(stage.read(fh).await.unwrap(), content, "round {round}");
        assert_eq!(stage.read(second).await.unwrap(), content, "round {round}");
    }
}

/// Replies arrive in another order than the changes were executed: over several sessions, or over
/// one, if the callers are polled in another order.
#[tokio::test(start_paused = true)]
async fn a_newer_change_acknowledged_first_stands() {
    let times =
        |secs| AttrChange { mtime: Some(Timestamp::from_secs(secs)), ..AttrChange::default() };
    let perm = |perm| AttrChange { perm: Some(perm), ..AttrChange::default() };
    for older in [times(1_000), size(5), perm(0o600)] {
        for newer in [None, Some(size(3)), Some(perm(0o640)), Some(times(2_000))] {
            let stage = Stage::new();
            let fh = stage.create("f").await;
            stage.put(fh, 0, "content").await.unwrap();
            let gate = stage.faulty.hold_answer(Call::Fsetattr, 1);
            let mut first = stage.recovering.fsetattr(fh, older);
            assert!(poll_once(&mut first).is_pending());
            match newer {
                Some(newer) => stage.recovering.fsetattr(fh, newer).await.unwrap(),
                None => stage.put(fh, 4, "e, newer").await.unwrap(),
            }
            gate.release();
            first.await.unwrap();
            stage.blink();
            let content = stage.server().content("f");
            assert_eq!(stage.read(fh).await, Ok(content), "{older:?} {newer:?}");
            stage.recovering.close(fh);
            stage.nothing_leaked().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_acknowledged_after_a_newer_truncation_does_not_extend_the_file() {
    let stage = Stage::new();
    let fh = stage.create("f").await;
    let gate = stage.faulty.hold_answer(Call::Write, 1);
    let mut first = stage.recovering.write(fh, 0, Bytes::from_static(b"content"));
    assert!(poll_once(&mut first).is_pending());
    stage.recovering.fsetattr(fh, size(3)).await.unwrap();
    gate.release();
    first.await.unwrap();
    stage.blink();
    assert_eq!(stage.read(fh).await.unwrap(), b"con");
    stage.recovering.close(fh);
    stage.nothing_leaked().await;
}

#[tokio::test(start_paused = true)]
async fn a_file_longer_than_written_is_stale() {
    let stage = Stage::new();
    let fh = stage.create("f").await;
    stage.put(fh, 0, "ours").await.unwrap();
    stage.faulty.cut();
    stage.server().put_file("f", "ours, and bytes of others");
    stage.faulty.restore_without_handles(Errno::ESTALE);
    assert_eq!(stage.put(fh, 0, "more").await, Err(Errno::ESTALE));
    assert_eq!(stage.content("f"), "ours, and bytes of others");
}

#[tokio::test(start_paused = true)]
async fn a_file_is_found_by_its_new_name() {
    let stage = Stage::new();
    stage.server().put_dir("d");
    let fh = stage.create("d/f").await;
    stage.put(fh, 0, "content").await.unwrap();
    let rename = |from: &'static str, to: &'static str| {
        let recovering = stage.recovering.clone();
        async move { recovering.rename(&path(from), &path(to), RenameMode::Replace).await }
    };
    rename("d/f", "d/g").await.unwrap();
    rename("d", "e").await.unwrap();
    stage.blink();
    assert_eq!(stage.read(fh).await.unwrap(), b"content");
    // This mount replaces the file, and knows that it is another one.
    stage.server().put_file("new", "CONTENT");
    stage.server().set_mtime("new", stage.server().attr("e/g").mtime.secs);
    rename("new", "e/g").await.unwrap();
    stage.blink();
    assert_eq!(stage.read(fh).await, Err(Errno::ESTALE));
}

#[tokio::test(start_paused = true)]
async fn a_file_is_found_by_its_possible_new_name() {
    for arrived in [true, false] {
        let stage = Stage::new();
        let fh = stage.create("f").await;
        stage.put(fh, 0, "content").await.unwrap();
        stage.recovering.lstat(&path("f")).await.unwrap();
        match arrived {
            true => stage.faulty.fail_after(Call::Rename, 1, Errno::EHOSTDOWN),
            false => stage.faulty.fail(Call::Rename, 1, Errno::EHOSTDOWN),
        }
        // Between the lost reply and the check of its outcome.
        let gate = stage.faulty.hold(Call::Lstat, 1);
        let recovering = stage.recovering.clone();
        let renaming = tokio::spawn(async move {
            recovering.rename(&path("f"), &path("g"), RenameMode::Replace).await
        });
        gate.arrived().await;
        stage.server().set_pending(true);
        let stale = stage.recovering.read(fh, 0, 100);
        stage.faulty.fail(Call::Read, 1, Errno::ESTALE);
        assert_eq!(stale.await.unwrap().to_vec(), b"content", "arrived: {arrived}");
        gate.release();
        renaming.await.unwrap().unwrap();
        stage.blink();
        assert_eq!(stage.read(fh).await.unwrap(), b"content", "arrived: {arrived}");
    }
}

/// L4: a file that is renamed while it is reopened keeps its new name for the next loss.
#[tokio::test(start_paused = true)]
async fn a_file_renamed_while_it_is_reopened_is_found_after_the_next_loss() {
    let stage = Stage::new();
    let fh = stage.create("f").await;
    stage.put(fh, 0, "content").await.unwrap();
    stage.faulty.fail(Call::Read, 1, Errno::ESTALE);
    let opened = stage.faulty.hold_answer(Call::Open, 1);
    let renaming = async {
        opened.arrived().await;
        stage.recovering.rename(&path("f"), &path("g"), RenameMode::Replace).await.unwrap();
        opened.release();
    };
    let (read, ()) = tokio::join!(stage.read(fh), renaming);
    assert_eq!(read.unwrap(), b"content");
    stage.blink();
    assert_eq!(stage.read(fh).await.unwrap(), b"content");
    stage.recovering.close(fh);
    stage.nothing_leaked().await;
}

/// L4: the server has renamed the file, and the reply is still in flight when a handle is found
/// lost; or the file gets its old name back while it is searched by the new one.
#[tokio::test(start_paused = true)]
async fn a_file_is_found_while_its_rename_is_in_flight() {
    for back in [false, true] {
        let stage = Stage::new();
        stage.server().put_dir("d");
        let fh = stage.create("d/f").await;
        stage.put(fh, 0, "content").await.unwrap();
        let (one, other) = (path("d"), path("e"));
        let rename = |from, to| stage.recovering.rename(from, to, RenameMode::Replace);
        let renamed = stage.faulty.hold_answer(Call::Rename, 1);
        let opened = stage.faulty.hold_answer(Call::Open, 1);
        let renaming = async {
            let first = rename(&one, &other);
            let second = async {
                renamed.arrived().await;
                // The search by the old name.
                opened.arrived().await;
                if !back {
                    opened.release();
                    others_run().await;
                }
                renamed.release();
            };
            tokio::join!(first, second).0.unwrap();
            if back {
                rename(&other, &one).await.unwrap();
                // By the name in between.
                let again = stage.faulty.hold(Call::Open, 1);
                opened.release();
                again.arrived().await;
                again.release();
            }
        };
        let reading = async {
            renamed.arrived().await;
            stage.faulty.fail(Call::Read, 1, Errno::ESTALE);
            stage.read(fh).await
        };
        let ((), read) = tokio::join!(renaming, reading);
        assert_eq!(read.unwrap(), b"content", "back: {back}");
        stage.recovering.close(fh);
        stage.nothing_leaked().await;
    }
}

/// L4: a file is replaced or removed while its connection is lost. Its writes are never replayed
/// into the file that has its name then, also if that cannot be distinguished by its attributes.
#[tokio::test(start_paused = true)]
async fn a_write_is_not_replayed_into_the_file_that_has_taken_the_name() {
    for (call, from) in [(Call::Rename, "g"), (Call::Rename, "f"), (Call::Unlink, "f")] {
        let stage = Stage::new();
        let recovering = &stage.recovering;
        let fh = stage.create("f").await;
        stage.put(fh, 0, "old!").await.unwrap();
        stage.server().put_file("g", "other");
        for name in ["f", "g", "moved"] {
            let _ = recovering.lstat(&path(name)).await;
        }
        let lost = stage.faulty.hold(Call::Write, 1);
        stage.faulty.fail(Call::Write, 1, Errno::EHOSTDOWN);
        let mut write = recovering.write(fh, 0, Bytes::from_static(b"newer"));
        assert!(poll_once(&mut write).is_pending());
        // The request is executed, its reply is lost, and its outcome is not checked yet.
        stage.faulty.fail_after(call, 1, Errno::EHOSTDOWN);
        let gate = stage.faulty.hold(Call::Lstat, 1);
        let (one, other) = (path(from), path(if from == "g" { "f" } else { "moved" }));
        let mut change: Started<'_, base::Result<()>> = match call {
            Call::Rename => recovering.rename(&one, &other, RenameMode::Replace),
            _ => recovering.unlink(&one),
        };
        assert!(poll_once(&mut change).is_pending());
        if from == "f" {
            stage.server().put_file("f", "other");
        }
        let (written, changed, ()) = tokio::join!(write, change, async {
            lost.release();
            others_run().await;
            gate.release();
        });
        assert_eq!(changed, Ok(()), "{call:?} {from}");
        match (call, from) {
            (Call::Rename, "f") => {
                assert_eq!(written, Ok(()));
                assert_eq!(
                    (stage.content("f"), stage.content("moved")),
                    ("other".into(), "newer".into())
                );
            }
            (Call::Rename, _) => {
                assert_eq!((written, stage.content("f")), (Err(Errno::ESTALE), "other".into()));
            }
            // The file that another client has created looks like the one to be removed.
            _ => assert!(written.is_err() && !stage.server().exists("f"), "{written:?}"),
        }
        recovering.close(fh);
        stage.nothing_leaked().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_without_a_name_is_stale_only_after_a_loss() {
    let stage = Stage::new();
    let fh = stage.create("f").await;
    stage.put(fh, 0, "content").await.unwrap();
    stage.recovering.unlink(&path("f")).await.unwrap();
    assert_eq!(stage.read(fh).await.unwrap(), b"content");
    // A new file of the same name is another file.
    let new = stage.create("f").await;
    stage.put(new, 0, "another").await.unwrap();
    stage.blink();
    assert_eq!(stage.read(fh).await, Err(Errno::ESTALE));
    assert_eq!(stage.read(new).await.unwrap(), b"another");
    stage.recovering.close(fh);
    stage.recovering.close(new);
    stage.nothing_leaked().await;
}

#[tokio::test(start_paused = true)]
async fn a_file_that_another_client_has_replaced_is_not_mixed_with_the_new_one() {
    let stage = Stage::new();
    stage.server().put_file("f", "old content");
    let old = stage.open("f", OpenFlags::existing(Access::Read)).await;
    stage.server().put_file("g", "new");
    stage.server().move_to("g", "f");
    let new = stage.open("f", OpenFlags::existing(Access::Read)).await;
    stage.blink();
    assert_eq!(stage.read(old).await, Err(Errno::ESTALE));
    assert_eq!(stage.read(new).await.unwrap(), b"new");
}

#[tokio::test(start_paused = true)]
async fn an_error_of_a_replayed_change_is_returned() {
    let stage = Stage::new();
    let fh = stage.create("f").await;
    stage.faulty.fail(Call::Write, 1, Errno::EHOSTDOWN);
    stage.server().edit(|tree| tree.set_capacity(Some(0)));
    assert_eq!(stage.put(fh, 0, "x").await, Err(Errno::ENOSPC));
    stage.server().edit(|tree| tree.set_capacity(None));
    stage.put(fh, 0, "y").await.unwrap();
    assert_eq!(stage.content("f"), "y");
}

#[tokio::test(start_paused = true)]
async fn a_listing_continues_without_repeating_names() {
    let options = testkit::mem::Options { listing_batch: 3, ..Default::default() };
    let memory = std::sync::Arc::new(testkit::MemRemote::with(options));
    for number in 0..20 {
        memory.put_file(&format!("d/{number}"), "");
    }
    let faulty = std::sync::Arc::new(testkit::FaultyRemote::new(memory));
    let recovering = recovery::Recovering::new(faulty.clone(), recovery::Config::default());
    let stage = Stage { recovering, faulty };
    let dh = stage.recovering.opendir(&path("d")).await.unwrap();
    let mut names = Vec::new();
    while let Some(entries) = stage.recovering.readdir(dh).await.unwrap() {
        names.extend(entries.into_iter().map(|entry| entry.name.to_string()));
        stage.blink();
    }
    assert_eq!(names.len(), 20, "{names:?}");
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 20);
    // At the end, the position stays at the end.
    stage.blink();
    assert_eq!(stage.recovering.readdir(dh).await, Ok(None));
    stage.recovering.closedir(dh);
    stage.nothing_leaked().await;
}

/// New entries are many round trips away, over a link that is lost each time after a few of them.
#[tokio::test(start_paused = true)]
async fn a_listing_makes_progress_with_several_losses_in_one_call() {
    let options = testkit::mem::Options { listing_batch: 1, ..Default::default() };
    let memory = std::sync::Arc::new(testkit::MemRemote::with(options));
    for number in 0..5 {
        memory.put_file(&format!("d/{number}"), "");
    }
    let faulty = std::sync::Arc::new(testkit::FaultyRemote::new(memory));
    let recovering = recovery::Recovering::new(faulty.clone(), recovery::Config::default());
    let stage = Stage { recovering, faulty };
    let dh = stage.recovering.opendir(&path("d")).await.unwrap();
    for _ in 0..4 {
        assert_eq!(stage.recovering.readdir(dh).await.unwrap().unwrap().len(), 1);
    }
    stage.blink();
    for number in 1..=20 {
        stage.faulty.fail(testkit::Call::Readdir, 3 * number, Errno::ESTALE);
    }
    assert_eq!(stage.recovering.readdir(dh).await.unwrap().unwrap().len(), 1);
    assert_eq!(stage.recovering.readdir(dh).await, Ok(None));
    assert_eq!(stage.faulty.not_reached(), 0);
    stage.recovering.closedir(dh);
    stage.nothing_leaked().await;
}

#[tokio::test(start_paused = true)]
async fn a_removed_directory_is_an_error_and_not_empty() {
    let stage = Stage::new();
    stage.server().put_file("theirs/x", "");
    stage.server().put_file("ours/x", "");
    let theirs = stage.recovering.opendir(&path("theirs")).await.unwrap();
    let ours = stage.recovering.opendir(&path("ours")).await.unwrap();
    stage.server().remove("theirs");
    stage.recovering.unlink(&path("ours/x")).await.unwrap();
    stage.recovering.rmdir(&path("ours")).await.unwrap();
    stage.blink();
    assert_eq!(stage.recovering.readdir(theirs).await, Err(Errno::ESTALE));
    assert_eq!(stage.recovering.readdir(ours).await, Ok(None));
}

/// L5: a rename replaces an empty directory only; the names of the other one are not shown.
#[tokio::test(start_paused = true)]
async fn a_directory_that_was_replaced_by_a_rename_is_empty() {
    let stage = Stage::new();
    stage.server().put_dir("old");
    stage.server().put_file("new/x", "");
    let old = stage.recovering.opendir(&path("old")).await.unwrap();
    stage.recovering.rename(&path("new"), &path("old"), RenameMode::Replace).await.unwrap();
    stage.blink();
    assert_eq!(stage.recovering.readdir(old).await, Ok(None));
    // A rename to the same name replaces nothing.
    let again = stage.recovering.opendir(&path("old")).await.unwrap();
    stage.recovering.rename(&path("old"), &path("old"), RenameMode::Replace).await.unwrap();
    stage.blink();
    assert_eq!(stage.recovering.readdir(again).await.unwrap().unwrap().len(), 1);
}

/// L3, L5: a server that cannot open another file at the moment, as after a restart.
#[tokio::test(start_paused = true)]
async fn a_temporary_refusal_of_a_reopening_loses_nothing() {
    for errno in [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM, Errno::EIO] {
        let stage = Stage::new();
        let fh = stage.create("f").await;
        let dh = stage.recovering.opendir(&path("")).await.unwrap();
        let gate = stage.faulty.hold(Call::Write, 1);
        let mut write = stage.recovering.write(fh, 0, Bytes::from_static(b"kept"));
        assert!(poll_once(&mut write).is_pending() && gate.has_arrived());
        stage.blink();
        stage.faulty.fail(Call::Open, 1, errno);
        assert_eq!(write.await, Ok(()), "{errno}");
        assert_eq!(stage.content("f"), "kept");
        stage.blink();
        stage.faulty.fail(Call::Open, 1, errno);
        assert_eq!(stage.read(fh).await.unwrap(), b"kept", "{errno}");
        stage.faulty.fail(Call::Opendir, 1, errno);
        assert_eq!(stage.recovering.readdir(dh).await.unwrap().unwrap().len(), 1, "{errno}");
        assert_eq!(stage.faulty.not_reached(), 0);
        // One that lasts is an error.
        stage.blink();
        stage.faulty.fail_always(Call::Open, errno);
        assert_eq!(stage.read(fh).await, Err(errno));
        assert_eq!(stage.put(fh, 0, "lost").await, Err(errno));
        stage.faulty.clear();
        assert_eq!(stage.read(fh).await.unwrap(), b"kept", "{errno}");
        stage.recovering.close(fh);
        stage.recovering.closedir(dh);
        stage.nothing_leaked().await;
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_everything_closes_everything() {
    let stage = Stage::new();
    let fh = stage.create("f").await;
    stage.recovering.opendir(&path("")).await.unwrap();
    stage.put(fh, 0, "x").await.unwrap();
    let Stage { recovering, faulty } = stage;
    drop(recovering);
    others_run().await;
    assert_eq!(faulty.inner().open_handles(), 0);
}

/// The caller gets the server's answer to a close, also over another connection.
#[tokio::test(start_paused = true)]
async fn finish_returns_an_error_of_the_close() {
    for lost_before in [false, true] {
        let stage = Stage::new();
        let fh = stage.create("a").await;
        stage.put(fh, 0, "content").await.unwrap();
        if lost_before {
            stage.faulty.fail_after(Call::Finish, 1, Errno::EHOSTDOWN);
            stage.faulty.fail_after(Call::Finish, 2, Errno::ENOSPC);
        } else {
            stage.faulty.fail_after(Call::Finish, 1, Errno::ENOSPC);
        }
        assert_eq!(stage.recovering.finish(fh).await, Err(Errno::ENOSPC), "{lost_before}");
        assert_eq!(stage.faulty.not_reached(), 0);
        stage.nothing_leaked().await;
    }
}

/// A close of a file that was removed while open cannot lose data.
#[tokio::test(start_paused = true)]
async fn a_removed_file_is_finished_after_a_loss() {
    let stage = Stage::new();
    let fh = stage.create("a").await;
    stage.put(fh, 0, "content").await.unwrap();
    stage.recovering.unlink(&path("a")).await.unwrap();
    stage.blink();
    assert_eq!(stage.recovering.finish(fh).await, Ok(()));
    stage.nothing_leaked().await;
}

/// Over another connection, a change is answered while the file is reopened: the server may have
/// returned attributes from before that change.
#[tokio::test(start_paused = true)]
async fn a_change_answered_during_a_recovery_is_expected() {
    let stage = Stage::new();
    let (one, other) = (stage.create("f").await, stage.create("f").await);
    let change = stage.faulty.hold(Call::Fsetattr, 1);
    let perm = AttrChange { perm: Some(0o711), ..AttrChange::default() };
    let mut chmod = stage.recovering.fsetattr(other, perm);
    assert!(poll_once(&mut chmod).is_pending());
    stage.faulty.fail(Call::Write, 1, Errno::EHOSTDOWN);
    let opened = stage.faulty.hold_answer(Call::Open, 1);
    let mut write = stage.recovering.write(one, 0, Bytes::from_static(b"content"));
    assert!(poll_once(&mut write).is_pending());
    opened.arrived().await;
    change.release();
    assert_eq!(chmod.await, Ok(()));
    opened.release();
    assert_eq!(write.await, Ok(()));
    assert_eq!((stage.content("f").as_str(), stage.server().attr("f").perm), ("content", 0o711));
}

#[tokio::test(start_paused = true)]
async fn a_handle_closed_while_it_is_reopened_does_not_leak() {
    let stage = Stage::new();
    let fh = stage.create("f").await;
    stage.blink();
    let gate = stage.faulty.hold(Call::Open, 1);
    let mut read = stage.recovering.read(fh, 0, 10);
    assert!(poll_once(&mut read).is_pending());
    gate.arrived().await;
    drop(read);
    stage.recovering.close(fh);
    gate.release();
    others_run().await;
    assert_eq!(stage.faulty.calls(Call::Open), 2);
    stage.nothing_leaked().await;
}

/// A file system whose attributes tell files apart.
pub(crate) fn telling_files_apart() -> Stage {
    telling_files_apart_by(true)
}

fn telling_files_apart_by(shows_btimes: bool) -> Stage {
    let limits = testkit::tree::Limits { shows_inodes: true, shows_btimes, ..Default::default() };
    Stage::over(MemRemote::with(Options { limits, ..Options::default() }))
}

#[tokio::test(start_paused = true)]
async fn a_file_with_an_identity_that_was_changed_on_the_server_is_the_same() {
    let stage = telling_files_apart();
    stage.server().put_file("f", "old");
    let fh = stage.open("f", OpenFlags::existing(Access::ReadWrite)).await;
    stage.faulty.cut();
    stage.server().put_file("f", "changed by another");
    stage.faulty.restore_without_handles(Errno::ESTALE);
    assert_eq!(stage.read(fh).await.unwrap(), b"changed by another");
    stage.put(fh, 0, "CHANGED").await.unwrap();
    assert_eq!(stage.content("f"), "CHANGED by another");
    stage.recovering.close(fh);
    stage.nothing_leaked().await;
}

#[tokio::test(start_paused = true)]
async fn a_file_with_the_attributes_and_another_identity_is_stale() {
    let stage = telling_files_apart();
    for name in ["f", "g"] {
        stage.server().put_file(name, name);
        stage.server().set_mtime(name, 1_000);
    }
    let fh = stage.open("f", OpenFlags::existing(Access::ReadWrite)).await;
    stage.faulty.cut();
    stage.server().rename(&path("g"), &path("f"), RenameMode::Replace).await.unwrap();
    stage.faulty.restore_without_handles(Errno::ESTALE);
    assert_eq!(stage.put(fh, 0, "x").await, Err(Errno::ESTALE));
    assert_eq!(stage.content("f"), "g");
}

/// L4: as a log that is rotated at the server.
#[tokio::test(start_paused = true)]
async fn a_file_that_another_client_has_renamed_in_its_directory_stays_open() {
    let stage = telling_files_apart();
    stage.server().put_file("d/log", "old");
    let append = OpenFlags { append: true, ..OpenFlags::existing(Access::ReadWrite) };
    let fh = stage.open("d/log", append).await;
    stage.put(fh, 0, " one").await.unwrap();
    stage.faulty.cut();
    stage.server().move_to("d/log", "d/log.1");
    stage.server().put_file("d/log", "new");
    stage.faulty.restore_without_handles(Errno::ESTALE);
    stage.put(fh, 0, " two").await.unwrap();
    let other = stage.open("d/log", append).await;
    stage.put(other, 0, " three").await.unwrap();
    // From now on it is known by its new name, also to renames by this mount.
    stage.recovering.rename(&path("d/log.1"), &path("log.2"), RenameMode::Replace).await.unwrap();
    stage.blink();
    stage.put(fh, 0, " four").await.unwrap();
    assert_eq!(stage.read(other).await.unwrap(), b"new three");
    assert_eq!(stage.content("log.2"), "old one two four");
    assert_eq!(stage.content("d/log"), "new three");
    for fh in [fh, other] {
        stage.recovering.close(fh);
    }
    stage.nothing_leaked().await;
}

/// L4: also if this mount has opened the new file of that name before, or may not open it.
#[tokio::test(start_paused = true)]
async fn a_renamed_file_is_found_whatever_has_its_name() {
    let append = OpenFlags { append: true, ..OpenFlags::existing(Access::ReadWrite) };
    for is_opened in [true, false] {
        let stage = telling_files_apart();
        stage.server().put_file("d/log", "old");
        let fh = stage.open("d/log", append).await;
        stage.put(fh, 0, " one").await.unwrap();
        stage.server().move_to("d/log", "d/log.1");
        stage.server().put_file("d/log", "new");
        let other = match is_opened {
            true => Some(stage.open("d/log", append).await),
            false => None,
        };
        stage.blink();
        if !is_opened {
            stage.faulty.fail(Call::Open, 1, Errno::EACCES);
        }
        stage.put(fh, 0, " two").await.unwrap();
        assert_eq!(stage.content("d/log.1"), "old one two", "opened: {is_opened}");
        assert_eq!(stage.content("d/log"), "new");
        for fh in other.into_iter().chain([fh]) {
            stage.recovering.close(fh);
        }
        stage.nothing_leaked().await;
    }
}

/// L4: a file is searched only where the search cannot be wrong, and in its directory.
#[tokio::test(start_paused = true)]
async fn a_file_that_cannot_be_found_again_is_stale() {
    for (shows_btimes, to) in [(false, "d/other"), (true, "other")] {
        let stage = telling_files_apart_by(shows_btimes);
        stage.server().put_file("d/f", "content");
        let fh = stage.open("d/f", OpenFlags::existing(Access::ReadWrite)).await;
        stage.faulty.cut();
        stage.server().move_to("d/f", to);
        stage.faulty.restore_without_handles(Errno::ESTALE);
        assert_eq!(stage.put(fh, 0, "x").await, Err(Errno::ESTALE), "{to}");
        assert_eq!(stage.content(to), "content");
        stage.recovering.close(fh);
        stage.nothing_leaked().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_loss_during_the_search_for_a_renamed_file_is_another_attempt() {
    for call in [Call::Opendir, Call::Readdir] {
        let stage = telling_files_apart();
        stage.server().put_file("d/f", "content");
        let fh = stage.open("d/f", OpenFlags::existing(Access::ReadWrite)).await;
        stage.faulty.cut();
        stage.server().move_to("d/f", "d/g");
        stage.faulty.restore_without_handles(Errno::ESTALE);
        stage.faulty.fail(call, 1, Errno::EHOSTDOWN);
        stage.put(fh, 0, "CON").await.unwrap();
        assert_eq!(stage.content("d/g"), "CONtent");
        stage.recovering.close(fh);
        stage.nothing_leaked().await;
    }
}

/// L4: many files that were renamed or removed in one directory do not list it once each.
#[tokio::test(start_paused = true)]
async fn files_that_are_searched_in_one_directory_share_a_listing() {
    const FILES: usize = 20;
    let stage = telling_files_apart();
    let mut open = Vec::new();
    for at in 0..FILES {
        stage.server().put_file(&format!("d/f{at}"), "content");
        let flags = OpenFlags::existing(Access::ReadWrite);
        open.push(stage.open(&format!("d/f{at}"), flags).await);
    }
    let renamed = |to: &str| {
        stage.faulty.cut();
        stage.faulty.reset_calls();
        for at in 0..FILES {
            stage.server().move_to(&format!("d/f{at}"), &format!("{to}{at}"));
        }
        stage.faulty.restore_without_handles(Errno::ESTALE);
    };
    renamed("d/g");
    for fh in &open {
        stage.put(*fh, 0, "CON").await.unwrap();
    }
    assert_eq!(stage.faulty.calls(Call::Opendir), 1);
    // The names are known; a name that is in the last listing may have gone since.
    for at in 0..FILES {
        stage.server().move_to(&format!("d/g{at}"), &format!("d/f{at}"));
    }
    renamed("d/h");
    for fh in &open {
        stage.put(*fh, 0, "Con").await.unwrap();
    }
    assert!(stage.faulty.calls(Call::Opendir) <= 2, "{}", stage.faulty.calls(Call::Opendir));
    for at in 0..FILES {
        assert_eq!(stage.content(&format!("d/h{at}")), "Content");
        stage.server().move_to(&format!("d/h{at}"), &format!("d/f{at}"));
    }
    // To where no listing has them: those that wait for a listing share the next one.
    renamed("elsewhere");
    let gate = stage.faulty.hold(Call::Opendir, 1);
    let mut writes = Vec::new();
    for fh in &open {
        let mut write: Started<'_, _> = Box::pin(stage.put(*fh, 0, "x"));
        assert!(poll_once(&mut write).is_pending());
        writes.push(write);
    }
    gate.arrived().await;
    others_run().await;
    gate.release();
    for write in writes {
        assert_eq!(write.await, Err(Errno::ESTALE));
    }
    assert!(stage.faulty.calls(Call::Opendir) <= 3, "{}", stage.faulty.calls(Call::Opendir));
    open.into_iter().for_each(|fh| stage.recovering.close(fh));
    stage.nothing_leaked().await;
}

/// L4: files of several directories are searched at the same time.
#[tokio::test(start_paused = true)]
async fn a_search_does_not_wait_for_one_in_another_directory() {
    let stage = telling_files_apart();
    let mut open = Vec::new();
    for dir in ["c", "d"] {
        stage.server().put_file(&format!("{dir}/f"), "content");
        let flags = OpenFlags::existing(Access::ReadWrite);
        open.push(stage.open(&format!("{dir}/f"), flags).await);
    }
    stage.faulty.cut();
    stage.server().move_to("c/f", "c/g");
    stage.server().move_to("d/f", "d/g");
    stage.faulty.restore_without_handles(Errno::ESTALE);
    let gate = stage.faulty.hold(Call::Opendir, 1);
    let mut first: Started<'_, _> = Box::pin(stage.put(open[0], 0, "CON"));
    assert!(poll_once(&mut first).is_pending());
    gate.arrived().await;
    stage.put(open[1], 0, "CON").await.unwrap();
    gate.release();
    first.await.unwrap();
    open.into_iter().for_each(|fh| stage.recovering.close(fh));
    stage.nothing_leaked().await;
}

/// L4: as logrotate with `copytruncate` does. Without identities it may be another file.
#[tokio::test(start_paused = true)]
async fn a_log_that_was_truncated_at_the_server_goes_on_if_it_is_known_to_be_the_same() {
    for (is_known, is_lost) in [(true, true), (true, false), (false, true), (false, false)] {
        let stage = if is_known { telling_files_apart() } else { Stage::new() };
        let fh = stage.open("log", appending()).await;
        stage.put(fh, 0, "one").await.unwrap();
        stage.recovering.flush(fh).await.unwrap();
        stage.server().put_file("log", "");
        if is_lost {
            stage.blink();
        }
        let (result, content) = match is_known {
            true => (Ok(()), "two"),
            false => (Err(Errno::ESTALE), ""),
        };
        assert_eq!(stage.put(fh, 0, "two").await, result, "known {is_known}, lost {is_lost}");
        assert_eq!(stage.content("log"), content);
        stage.recovering.close(fh);
        stage.nothing_leaked().await;
    }
}
