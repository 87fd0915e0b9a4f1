//! The way in: the handshake, and the task that receives replies.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use base::task::batch;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::inbox::Inbox;
use super::pending::{Completed, Expect};
use super::{Packet, Shared, accept_version};
use crate::codec::{Reply, Request, Version};
use crate::error::{Error, Result};

/// How much of the text that came instead of SFTP is shown, in bytes.
const SHOWN_NOISE_BYTES: usize = 200;

/// How long the rest of that text is waited for; it is written at once or not at all.
const NOISE_PATIENCE: Duration = Duration::from_millis(500);

/// Reads once; an end of the stream is an error.
async fn fill(reader: &mut (impl AsyncRead + Unpin), inbox: &mut Inbox) -> Result<()> {
    let mut room = inbox.room()?;
    match reader.read_buf(&mut room).await {
        Ok(0) => Err(Error::Disconnected("the server has closed the connection".into())),
        Ok(_) => Ok(()),
        Err(error) => Err(Error::Disconnected(error.to_string())),
    }
}

/// Receives VERSION.
pub(super) async fn handshake(
    reader: &mut (impl AsyncRead + Unpin),
    inbox: &mut Inbox,
) -> Result<Version> {
    let mut received = Ok(());
    loop {
        match inbox.next() {
            Ok(Some(packet)) => match Version::decode(&packet) {
                Ok(version) => return accept_version(version),
                Err(malformed) => return Err(malformed.into()),
            },
            // The length is impossible, as text makes it, or the stream ended before it was told.
            Err(error) => return Err(noise(reader, inbox).await.unwrap_or(error)),
            Ok(None) => match received {
                Ok(()) => received = fill(reader, inbox).await,
                Err(error) => return Err(noise(reader, inbox).await.unwrap_or(error)),
            },
        }
    }
}

/// What a server said that begins with text; `None` when it does not look like that.
async fn noise(reader: &mut (impl AsyncRead + Unpin), inbox: &Inbox) -> Option<Error> {
    let mut text = inbox.rest().to_vec();
    let is_text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace() || *byte == 27;
    if !text.first().is_some_and(is_text) {
        return None;
    }
    let rest = async {
        while text.len() < SHOWN_NOISE_BYTES
            && reader.read_buf(&mut text).await.is_ok_and(|n| n > 0)
        {}
    };
    let _ = tokio::time::timeout(NOISE_PATIENCE, rest).await;
    let mut shown = String::new();
    for chunk in text[..text.len().min(SHOWN_NOISE_BYTES)].utf8_chunks() {
        let _ = write!(shown, "{}{}", chunk.valid().escape_debug(), chunk.invalid().escape_ascii());
    }
    Some(Error::Protocol(format!(
        "server sent text before the SFTP stream: \"{shown}\" (a shell start-up file that prints?)"
    )))
}

/// The reader task: receives replies until the connection ends.
pub(super) async fn run(shared: Arc<Shared>, mut reader: impl AsyncRead + Unpin, mut inbox: Inbox) {
    let ended = shared.ended.notified();
    tokio::pin!(ended);
    ended.as_mut().enable();
    let _guard = shared.finished_by_panic();
    if shared.end().is_some() {
        return;
    }
    let why = loop {
        // Replies may have come with VERSION.
        if let Err(error) = batch(|| receive(&shared, &mut inbox)) {
            break error;
        }
        tokio::select! {
            biased;
            () = &mut ended => return,
            filled = fill(&mut reader, &mut inbox) => {
                if let Err(error) = filled {
                    break error;
                }
            }
        }
    };
    batch(|| shared.finish(why));
}

/// Brings all complete replies to their requests.
fn receive(shared: &Arc<Shared>, inbox: &mut Inbox) -> Result<()> {
    shared.pending().hear();
    let mut made_room = false;
    while let Some(packet) = inbox.next()? {
        let (id, reply) = Reply::decode(&packet)?;
        let completed = shared.pending().complete(id, reply)?;
        made_room = true;
        match completed {
            Completed::Wake(waker) => waker.wake(),
            Completed::Forgotten(reply) => discard(shared, reply),
        }
    }
    if made_room {
        shared.wake_next();
    }
    Ok(())
}

/// Sees to a reply that nobody waits for: what it holds open is closed.
pub(super) fn discard(shared: &Arc<Shared>, reply: Reply) {
    if let Reply::Handle(handle) = reply {
        let request = Request::Close { handle: handle.as_bytes() };
        shared.send_unattended(Packet::new(&request), Expect::Status);
    }
}
