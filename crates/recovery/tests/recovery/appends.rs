//! Appends to a file whose end is moved by other changes, while the connection is lost. Each change
//! is executed once, in an order that is possible without a loss.

use std::sync::Arc;
use std::time::Duration;

use base::{Access, AttrChange, Errno, Fh, OpenFlags, Remote, Result};
use bytes::Bytes;
use recovery::Recovering;
use testkit::faulty::{Gate, Which};
use testkit::{Call, path};

use super::stage::{Stage, appending, others_run, poll_once};

/// The initial content of the file.
const BEFORE: &str = "0123456789";

/// One change of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Append(&'static str),
    /// Through another handle.
    AppendToo(&'static str),
    /// Through the handle that appends.
    Cut(u64),
    /// By path.
    CutByName(u64),
    /// By an open with truncation.
    Empty,
    /// Through a separate handle.
    Write(u64, &'static str),
    /// Through the handle that appends. It does not move the end.
    Chmod,
}

use Step::{Append, AppendToo, Chmod, Cut, CutByName, Empty, Write};

const STEPS: [Step; 9] = [
    Append("abc"),
    Append("01"),
    AppendToo("de"),
    Cut(4),
    Cut(14),
    CutByName(7),
    Empty,
    Write(8, "WRITE"),
    Chmod,
];

/// The handles of the file.
#[derive(Clone, Copy)]
struct Handles {
    appends: Fh,
    appends_too: Fh,
    writes: Fh,
}

fn size(size: u64) -> AttrChange {
    AttrChange { size: Some(size), ..AttrChange::default() }
}

impl Step {
    /// The route of a step: steps on one route keep their order.
    fn route(self) -> u8 {
        match self {
            Append(_) | Cut(_) => 0,
            AppendToo(_) => 1,
            Write(..) | Chmod => 2,
            CutByName(_) => 3,
            Empty => 4,
        }
    }

    async fn take(self, recovering: Arc<Recovering>, handles: Handles) -> Result<()> {
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        match self {
            Append(text) => recovering.write(handles.appends, 0, bytes(text)).await,
            AppendToo(text) => recovering.write(handles.appends_too, 0, bytes(text)).await,
            Cut(to) => recovering.fsetattr(handles.appends, size(to)).await,
            CutByName(to) => recovering.setattr(&path("f"), size(to)).await,
            Empty => {
                let flags = OpenFlags { truncate: true, ..OpenFlags::existing(Access::Write) };
                let opened = recovering.open(&path("f"), flags).await?;
                recovering.close(opened.fh);
                Ok(())
            }
            Write(offset, text) => recovering.write(handles.writes, offset, bytes(text)).await,
            Chmod => {
                let change = AttrChange { perm: Some(0o640), ..AttrChange::default() };
                recovering.fsetattr(handles.writes, change).await
            }
        }
    }

    fn happen(self, content: &mut Vec<u8>) {
        match self {
            Append(text) | AppendToo(text) => content.extend(text.bytes()),
            Cut(to) | CutByName(to) => content.resize(to as usize, 0),
            Empty => content.clear(),
            Write(offset, text) => {
                let end = offset as usize + text.len();
                content.resize(content.len().max(end), 0);
                content[offset as usize..end].copy_from_slice(text.as_bytes());
            }
            Chmod => {}
        }
    }
}

/// All valid contents of the file afterwards.
fn outcomes(steps: &[Step]) -> Vec<Vec<u8>> {
    fn go_on(left: &[Step], content: &[u8], into: &mut Vec<Vec<u8>>) {
        if left.is_empty() {
            into.push(content.to_vec());
        }
        for (index, step) in left.iter().enumerate() {
            if left[..index].iter().any(|before| before.route() == step.route()) {
                continue;
            }
            let mut content = content.to_vec();
            step.happen(&mut content);
            go_on(&[&left[..index], &left[index + 1..]].concat(), &content, into);
        }
    }
    let mut into = Vec::new();
    go_on(steps, BEFORE.as_bytes(), &mut into);
    into
}

/// The inner remote, and how it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InnerRemote {
    /// One link, which is restored at once.
    Link,
    /// Two gateways. The link of the active one is restored at once.
    Pool,
    /// Two gateways, of which one does not come back.
    OtherGateway,
}

const INNER_REMOTES: [InnerRemote; 3] =
    [InnerRemote::Link, InnerRemote::Pool, InnerRemote::OtherGateway];

impl InnerRemote {
    fn stage(self) -> Stage {
        if self == InnerRemote::Link { Stage::new() } else { Stage::pool() }
    }
}

/// Starts all steps at once. When the link breaks, `answered` of their requests were answered, and
/// `arrived` more have arrived.
async fn take_all(inner_remote: InnerRemote, steps: &[Step], answered: usize, arrived: usize) {
    let case = format!("{inner_remote:?}: {steps:?}, {answered} answered and {arrived} arrived");
    let stage = inner_remote.stage();
    stage.server().put_file("f", BEFORE);
    let handles = Handles {
        appends: stage.open("f", appending()).await,
        appends_too: stage.open("f", appending()).await,
        writes: stage.open("f", OpenFlags::existing(Access::ReadWrite)).await,
    };
    stage.server().set_pending(true);
    let gates: Vec<Gate> = (answered as u64 + 1..=steps.len() as u64)
        .map(|nth| match nth <= (answered + arrived) as u64 {
            true => stage.faulty.hold_answer(Which::Any, nth),
            false => stage.faulty.hold(Which::Any, nth),
        })
        .collect();
    let taken = steps.iter().map(|step| tokio::spawn(step.take(stage.recovering.clone(), handles)));
    let taken: Vec<_> = taken.collect();
    others_run().await;
    stage.faulty.cut();
    stage.faulty.clear();
    if inner_remote != InnerRemote::OtherGateway {
        stage.faulty.restore_without_handles(Errno::ESTALE);
    }
    drop(gates);
    for (taken, step) in taken.into_iter().zip(steps) {
        let result = tokio::time::timeout(Duration::from_secs(3600), taken).await;
        let result = result.unwrap_or_else(|_| panic!("{case}: {step:?} hangs")).unwrap();
        assert_eq!(result, Ok(()), "{case}: {step:?}");
    }
    let content = stage.server().content("f");
    assert!(
        outcomes(steps).contains(&content),
        "{case}: the content is {:?}",
        String::from_utf8_lossy(&content)
    );
    stage.faulty.restore_without_handles(Errno::ESTALE);
    let attr = stage.recovering.fstat(handles.writes).await;
    let attr = attr.unwrap_or_else(|errno| panic!("{case}: {errno}"));
    assert_eq!(attr.size, content.len() as u64, "{case}");
    // Nothing was lost, and the outcome of each append could be determined.
    if inner_remote != InnerRemote::OtherGateway {
        assert_eq!(stage.recovering.fsync(handles.writes).await, Ok(()), "{case}");
    }
    for fh in [handles.appends, handles.appends_too, handles.writes] {
        stage.recovering.close(fh);
    }
    stage.nothing_leaked().await;
}

async fn take_all_at_any_loss(steps: &[Step]) {
    for answered in 0..=steps.len() {
        for arrived in 0..=steps.len() - answered {
            for inner_remote in INNER_REMOTES {
                take_all(inner_remote, steps, answered, arrived).await;
            }
        }
    }
}

/// L3
#[tokio::test(start_paused = true)]
async fn changes_of_the_end_of_a_file_do_not_overlap_appends() {
    for one in STEPS {
        for two in STEPS {
            take_all_at_any_loss(&[one, two]).await;
        }
    }
}

/// L3
#[tokio::test(start_paused = true)]
async fn appends_around_changes_of_the_end_of_a_file() {
    for moves in STEPS {
        for last in STEPS {
            take_all_at_any_loss(&[Append("abc"), moves, last]).await;
            take_all_at_any_loss(&[moves, AppendToo("de"), last]).await;
        }
    }
}

/// L3: an operation through a handle follows the operations that were begun before it.
#[tokio::test(start_paused = true)]
async fn an_operation_queues_behind_a_queued_change() {
    let stage = Stage::new();
    stage.server().put_file("f", BEFORE);
    let fh = stage.open("f", appending()).await;
    let gate = stage.faulty.hold_answer(Call::Write, 1);
    let recovering = &stage.recovering;
    let mut append = recovering.write(fh, 0, Bytes::from_static(b"abc"));
    let mut cut = recovering.fsetattr(fh, size(2));
    let mut stat = recovering.fstat(fh);
    let mut chmod =
        recovering.fsetattr(fh, AttrChange { perm: Some(0o600), ..AttrChange::default() });
    let mut next = recovering.write(fh, 0, Bytes::from_static(b"de"));
    assert!(poll_once(&mut append).is_pending() && gate.has_arrived());
    assert!(poll_once(&mut cut).is_pending());
    assert!(poll_once(&mut stat).is_pending());
    assert!(poll_once(&mut chmod).is_pending() && poll_once(&mut next).is_pending());
    assert_eq!(stage.content("f"), "0123456789abc", "it waits for what becomes of the append");
    gate.release();
    let (append, cut, stat, chmod, next) = tokio::join!(append, cut, stat, chmod, next);
    assert_eq!((append, cut, chmod, next), (Ok(()), Ok(()), Ok(()), Ok(())));
    assert_eq!(stat.unwrap().size, 2);
    assert_eq!(stage.content("f"), "01de");
}

/// L3: a cancelled waiter does not block others.
#[tokio::test(start_paused = true)]
async fn a_queued_change_that_is_cancelled_is_not_sent() {
    let stage = Stage::new();
    stage.server().put_file("f", BEFORE);
    let fh = stage.open("f", appending()).await;
    let gate = stage.faulty.hold_answer(Call::Write, 1);
    let recovering = &stage.recovering;
    let mut append = recovering.write(fh, 0, Bytes::from_static(b"abc"));
    assert!(poll_once(&mut append).is_pending());
    let mut cut = recovering.fsetattr(fh, size(2));
    assert!(poll_once(&mut cut).is_pending());
    let mut next = recovering.write(fh, 0, Bytes::from_static(b"de"));
    assert!(poll_once(&mut next).is_pending());
    drop(cut);
    stage.blink();
    gate.release();
    assert_eq!(tokio::join!(append, next), (Ok(()), Ok(())));
    assert_eq!(stage.content("f"), "0123456789abcde");
}

/// L3: a cancelled append may be in the file or not. The next one checks that first.
#[tokio::test(start_paused = true)]
async fn an_append_after_a_cancelled_one_is_in_the_file_once() {
    for arrived in [false, true] {
        for next_arrived in [false, true] {
            let stage = Stage::new();
            stage.server().put_file("f", BEFORE);
            let fh = stage.open("f", appending()).await;
            let recovering = &stage.recovering;
            let gate = match arrived {
                true => stage.faulty.hold_answer(Call::Write, 1),
                false => stage.faulty.hold(Call::Write, 1),
            };
            let mut dropped = recovering.write(fh, 0, Bytes::from_static(b"abc"));
            assert!(poll_once(&mut dropped).is_pending());
            drop((dropped, gate));
            let gate = match next_arrived {
                true => stage.faulty.hold_answer(Call::Write, 1),
                false => stage.faulty.hold(Call::Write, 1),
            };
            let mut next = recovering.write(fh, 0, Bytes::from_static(b"de"));
            assert!(poll_once(&mut next).is_pending());
            gate.arrived().await;
            stage.blink();
            gate.release();
            assert_eq!(next.await, Ok(()));
            let expected = if arrived { "0123456789abcde" } else { "0123456789de" };
            assert_eq!(stage.content("f"), expected, "{arrived} {next_arrived}");
        }
    }
}
