//! Opens that overlap with other opens, renames, and changes by other clients: all handles of a
//! file stay usable after a loss.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use base::{Access, AttrChange, Create, Errno, OpenFlags, Remote, RenameMode};
use testkit::{Call, path};

use super::stage::{Stage, Started, appending, making, others_run, poll_once};

/// Two overlapping opens of one file, answered in either order: a change through one handle is
/// expected of the other after a loss.
#[tokio::test(start_paused = true)]
async fn overlapping_opens_share_one_file() {
    for (held, flags) in [(1, making()), (2, making()), (1, appending()), (2, appending())] {
        let stage = Stage::new();
        stage.server().put_file("f", "0123456789");
        let gate = stage.faulty.hold_answer(Call::Open, held);
        let at = path("f");
        let release = async {
            gate.arrived().await;
            others_run().await;
            gate.release();
        };
        let (one, other) = (stage.recovering.open(&at, flags), stage.recovering.open(&at, flags));
        let (one, other, ()) = tokio::join!(one, other, release);
        let (one, other) = (one.unwrap().fh, other.unwrap().fh);
        stage.put(one, 10, "one").await.unwrap();
        stage.blink();
        stage.put(other, 13, "other").await.unwrap();
        stage.put(one, 18, "one").await.unwrap();
        let perm = AttrChange { perm: Some(0o600), ..AttrChange::default() };
        stage.recovering.fsetattr(other, perm).await.unwrap();
        stage.recovering.rename(&at, &path("g"), RenameMode::Replace).await.unwrap();
        stage.blink();
        assert_eq!(stage.read(one).await.unwrap(), b"0123456789oneotherone", "{held}");
        assert_eq!(stage.read(other).await.unwrap(), b"0123456789oneotherone", "{held}");
        stage.recovering.close(one);
        stage.recovering.close(other);
        stage.nothing_leaked().await;
    }
}

/// The first of two overlapping opens is answered, written through, and renamed, before the other
/// one is answered.
#[tokio::test(start_paused = true)]
async fn a_change_before_the_reply_to_an_overlapping_open_is_expected() {
    for renamed in [false, true] {
        let stage = Stage::new();
        stage.server().put_file("f", "0123456789");
        let gate = stage.faulty.hold_answer(Call::Open, 2);
        let (at, flags) = (path("f"), OpenFlags::existing(Access::ReadWrite));
        let first = async {
            let fh = stage.recovering.open(&at, flags).await.unwrap().fh;
            gate.arrived().await;
            stage.put(fh, 10, "one").await.unwrap();
            if renamed {
                stage.recovering.rename(&at, &path("g"), RenameMode::Replace).await.unwrap();
            }
            gate.release();
            fh
        };
        let (other, one) = {
            let mut one = Box::pin(first);
            assert!(poll_once_any(&mut one).is_pending());
            tokio::join!(stage.recovering.open(&at, flags), one)
        };
        let other = other.unwrap().fh;
        stage.blink();
        assert_eq!(stage.read(other).await.unwrap(), b"0123456789one", "{renamed}");
        stage.put(other, 13, "other").await.unwrap();
        stage.blink();
        assert_eq!(stage.read(one).await.unwrap(), b"0123456789oneother", "{renamed}");
    }
}

/// Attributes returned by an open may lack a change that was in flight when it was sent, even if
/// that is answered first: each session has its own order.
#[tokio::test(start_paused = true)]
async fn a_change_missing_in_an_overlapping_open_is_expected() {
    for existing in [true, false] {
        let stage = Stage::new();
        stage.server().put_file("f", "0123456789");
        let flags = if existing { appending() } else { making() };
        let one = stage.open("f", flags).await;
        let at = path("f");
        let writing = stage.faulty.hold(Call::Write, 1);
        let mut write: Started<'_, _> = Box::pin(stage.put(one, 10, "one"));
        assert!(poll_once(&mut write).is_pending());
        writing.arrived().await;
        let opening = stage.faulty.hold_answer(Call::Open, 1);
        let release = async {
            opening.arrived().await;
            writing.release();
            write.await.unwrap();
            opening.release();
        };
        let (other, ()) = tokio::join!(stage.recovering.open(&at, flags), release);
        let other = other.unwrap().fh;
        stage.blink();
        stage.put(one, 13, "and one").await.unwrap();
        stage.put(other, 20, "and other").await.unwrap();
        assert_eq!(stage.content("f"), "0123456789oneand oneand other");
    }
}

fn poll_once_any<T>(call: &mut (impl Future<Output = T> + Unpin)) -> Poll<T> {
    Pin::new(call).poll(&mut Context::from_waker(Waker::noop()))
}

/// An open whose path is renamed before it is answered.
#[tokio::test(start_paused = true)]
async fn an_open_that_races_a_rename_is_found_by_the_new_name() {
    let stage = Stage::new();
    stage.server().put_file("f", "content");
    let gate = stage.faulty.hold_answer(Call::Open, 1);
    let at = path("f");
    let renaming = async {
        gate.arrived().await;
        stage.recovering.rename(&at, &path("g"), RenameMode::Replace).await.unwrap();
        gate.release();
    };
    let opening = stage.recovering.open(&at, OpenFlags::existing(Access::Read));
    let (opened, ()) = tokio::join!(opening, renaming);
    let fh = opened.unwrap().fh;
    stage.blink();
    assert_eq!(stage.read(fh).await.unwrap(), b"content");
}

/// A file is created by a name whose former file is being renamed, and the replies arrive in either
/// order. After a loss, each handle is that of its own file.
#[tokio::test(start_paused = true)]
async fn a_file_created_by_a_name_that_is_being_renamed_is_another_file() {
    for (content, renamed_first) in [("", false), ("", true), ("content", false), ("content", true)]
    {
        let stage = Stage::new();
        let recovering = &stage.recovering;
        let old = stage.create("a").await;
        stage.put(old, 0, content).await.unwrap();
        let (one, other) = (path("a"), path("b"));
        let gate = stage.faulty.hold_answer(Call::Rename, 1);
        let opened = stage.faulty.hold_answer(Call::Open, 1);
        let flags = OpenFlags { create: Create::Exclusive(0o644), ..making() };
        let (renamed, new, ()) = tokio::join!(
            recovering.rename(&one, &other, RenameMode::Replace),
            async {
                gate.arrived().await;
                recovering.open(&one, flags).await
            },
            async {
                gate.arrived().await;
                opened.arrived().await;
                let gates = if renamed_first { [&gate, &opened] } else { [&opened, &gate] };
                for gate in gates {
                    gate.release();
                    others_run().await;
                }
            }
        );
        renamed.unwrap();
        let new = new.unwrap().fh;
        for lost in [true, false] {
            if lost {
                stage.blink();
            }
            stage.put(old, 0, "the old one").await.unwrap();
            stage.put(new, 0, "the new one").await.unwrap();
            assert_eq!(stage.content("a"), "the new one", "{content:?}");
            assert_eq!(stage.content("b"), "the old one", "{content:?}");
        }
        recovering.close(old);
        recovering.close(new);
        stage.nothing_leaked().await;
    }
}

/// Another client has written to the file; a second open observes that, and both handles stay
/// usable.
#[tokio::test(start_paused = true)]
async fn a_change_by_others_observed_by_a_second_open_is_the_same_file() {
    for content in ["0123456789 and more", "9876543210"] {
        let stage = Stage::new();
        stage.server().put_file("f", "0123456789");
        let flags = OpenFlags::existing(Access::ReadWrite);
        let one = stage.open("f", flags).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        stage.server().put_file("f", content);
        stage.server().set_mtime("f", 2_000_000_000);
        let other = stage.open("f", flags).await;
        stage.blink();
        assert_eq!(stage.read(one).await.unwrap(), content.as_bytes());
        stage.put(other, 0, "ours").await.unwrap();
        stage.blink();
        let written = format!("ours{}", &content[4..]);
        assert_eq!(stage.read(one).await.unwrap(), written.as_bytes());
    }
}

/// Another client has appended to the file while no handle of it is open at the server. A later
/// open observes that, and the earlier descriptor stays valid.
#[tokio::test(start_paused = true)]
async fn a_later_open_of_a_grown_file_keeps_the_earlier_descriptor() {
    let content: String = (0..100).map(|number| format!("line {number}\n")).collect();
    for flushes in [false, true] {
        let stage = Stage::new();
        stage.server().put_file("f", content.as_str());
        let flags = if flushes { appending() } else { OpenFlags::existing(Access::Read) };
        let fh = stage.open("f", flags).await;
        if flushes {
            stage.recovering.flush(fh).await.unwrap();
        } else {
            stage.read(fh).await.unwrap();
            stage.blink();
        }
        let grown = content.clone() + "and more";
        stage.server().put_file("f", grown.as_str());
        let later = stage.open("f", OpenFlags::existing(Access::Read)).await;
        match flushes {
            true => stage.put(fh, 0, "!").await.unwrap(),
            false => assert_eq!(stage.read(fh).await.unwrap(), grown.as_bytes()),
        }
        // Both know the file.
        stage.blink();
        let expected = if flushes { grown + "!" } else { grown };
        assert_eq!(stage.read(later).await.unwrap(), expected.as_bytes(), "{flushes}");
        stage.recovering.close(fh);
        stage.recovering.close(later);
        stage.nothing_leaked().await;
    }
}

/// Another file has replaced an open one: the two are never treated as one.
#[tokio::test(start_paused = true)]
async fn a_second_open_of_another_file_is_another_file() {
    let stage = Stage::new();
    stage.server().put_file("f", "0123456789");
    let flags = OpenFlags::existing(Access::ReadWrite);
    let one = stage.open("f", flags).await;
    stage.server().put_file("new", "the other one, which is longer");
    stage.server().move_to("new", "f");
    let other = stage.open("f", flags).await;
    assert_eq!(stage.read(one).await.unwrap(), b"0123456789");
    stage.blink();
    assert_eq!(stage.read(one).await, Err(Errno::ESTALE));
    assert_eq!(stage.read(other).await.unwrap(), b"the other one, which is longer");
}

/// An open observes the file between two changes through another handle, and the connection is lost
/// before both handles can be compared: it is treated as the same file.
#[tokio::test(start_paused = true)]
async fn a_state_between_two_changes_is_the_same_file() {
    let stage = Stage::new();
    stage.server().put_file("f", "0123456789");
    let flags = OpenFlags::existing(Access::ReadWrite);
    let one = stage.open("f", flags).await;
    let (seen, answered) =
        (stage.faulty.hold(Call::Open, 1), stage.faulty.hold_answer(Call::Open, 1));
    let at = path("f");
    let mut opening = stage.recovering.open(&at, flags);
    assert!(poll_once(&mut opening).is_pending());
    let size = AttrChange { size: Some(0), ..AttrChange::default() };
    stage.recovering.fsetattr(one, size).await.unwrap();
    seen.release();
    assert!(poll_once(&mut opening).is_pending());
    answered.arrived().await;
    stage.put(one, 0, "0123456789, and more").await.unwrap();
    stage.faulty.fail(Call::Fstat, 1, Errno::EHOSTDOWN);
    answered.release();
    let other = opening.await.unwrap().fh;
    stage.blink();
    assert_eq!(stage.read(one).await.unwrap(), b"0123456789, and more");
    assert_eq!(stage.read(other).await.unwrap(), b"0123456789, and more");
}
