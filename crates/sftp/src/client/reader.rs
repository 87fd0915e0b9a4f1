//! The receiving side: the handshake, and the task that receives replies.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use base::task::batch;
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::pending::{Answered, Completed, Expect};
use super::receive_buffer::ReceiveBuffer;
use super::{Packet, Shared, accept_version};
use crate::codec::{HEADER_BYTES, Reply, Version, unpack};
use crate::error::{Error, Result};

/// Maximum bytes shown of text received instead of SFTP.
const SHOWN_TEXT_BYTES: usize = 200;

/// Time to wait for the rest of that text; it is sent at once or not at all.
const TEXT_LIMIT: Duration = Duration::from_millis(500);

/// Reads once; an end of the stream is an error.
async fn fill(reader: &mut (impl AsyncRead + Unpin), buffer: &mut ReceiveBuffer) -> Result<()> {
    let mut room = buffer.room()?;
    match reader.read_buf(&mut room).await {
        Ok(0) => Err(Error::Disconnected("the server has closed the connection".into())),
        Ok(_) => Ok(()),
        Err(error) => Err(Error::of_stream(&error)),
    }
}

/// Receives VERSION.
pub(super) async fn handshake(
    reader: &mut (impl AsyncRead + Unpin),
    buffer: &mut ReceiveBuffer,
) -> Result<Version> {
    let mut received = Ok(());
    loop {
        match buffer.next() {
            Ok(Some(packet)) => match Version::decode(&packet) {
                Ok(version) => return accept_version(version),
                Err(malformed) => return Err(malformed.into()),
            },
            // The length is impossible, as for text, or the stream ended before it.
            Err(error) => return Err(text_error(reader, buffer).await.unwrap_or(error)),
            Ok(None) => match received {
                Ok(()) => received = fill(reader, buffer).await,
                Err(error) => return Err(text_error(reader, buffer).await.unwrap_or(error)),
            },
        }
    }
}

/// The error for a server that begins with text; `None` if it does not look like text.
async fn text_error(
    reader: &mut (impl AsyncRead + Unpin),
    buffer: &ReceiveBuffer,
) -> Option<Error> {
    let mut text = buffer.rest().to_vec();
    let is_text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace() || *byte == 27;
    if !text.first().is_some_and(is_text) {
        return None;
    }
    let rest = async {
        while text.len() < SHOWN_TEXT_BYTES && reader.read_buf(&mut text).await.is_ok_and(|n| n > 0)
        {
        }
    };
    let _ = tokio::time::timeout(TEXT_LIMIT, rest).await;
    // A shell that only prints is followed by SFTP, whose first byte is 0.
    if let Some(end) = text.iter().position(|byte| *byte == 0) {
        text.truncate(end);
    }
    let mut shown = String::new();
    for chunk in text[..text.len().min(SHOWN_TEXT_BYTES)].utf8_chunks() {
        let _ = write!(shown, "{}{}", chunk.valid().escape_debug(), chunk.invalid().escape_ascii());
    }
    Some(Error::Protocol(format!(
        "server sent text before the SFTP stream: \"{shown}\"\n  if it is a refusal, ask the server's \
         administrator; else let the login's ~/.bashrc print nothing without a terminal"
    )))
}

/// The reader task: receives replies until the connection ends.
pub(super) async fn run(
    shared: Arc<Shared>,
    mut reader: impl AsyncRead + Unpin,
    mut buffer: ReceiveBuffer,
) {
    let ended = shared.ended.notified();
    tokio::pin!(ended);
    ended.as_mut().enable();
    let _guard = shared.finish_on_panic();
    if shared.end().is_some() {
        return;
    }
    let why = loop {
        // Replies may have arrived with VERSION.
        if let Err(error) = batch(|| receive(&shared, &mut buffer)) {
            break error;
        }
        tokio::select! {
            biased;
            () = &mut ended => return,
            filled = fill(&mut reader, &mut buffer) => {
                if let Err(error) = filled {
                    break error;
                }
            }
        }
    };
    batch(|| shared.finish(why));
}

/// Hands all complete replies to their requests.
fn receive(shared: &Arc<Shared>, buffer: &mut ReceiveBuffer) -> Result<()> {
    shared.pending.lock().note_received();
    let mut made_room = false;
    while let Some(packet) = buffer.next()? {
        let received = HEADER_BYTES + packet.len();
        let packet = if shared.compresses { unpacked(shared, packet)? } else { packet };
        let (id, reply) = Reply::decode(&packet)?;
        let Answered { kind, took, unexpected, then } =
            shared.pending.lock().complete(id, reply)?;
        shared.counters.answered(kind, took);
        shared.counters.received_bytes.add(received as u64);
        made_room = true;
        if let Some(error) = unexpected {
            // Only the first one is kept.
            let _ = shared.unexpected.set(error);
        }
        match then {
            Completed::Wake(waker) => waker.wake(),
            Completed::Forgotten(reply) => discard(shared, reply),
        }
    }
    if made_room {
        shared.wake_next();
    }
    Ok(())
}

/// The packet, or what it contains if it is compressed.
fn unpacked(shared: &Shared, packet: Bytes) -> Result<Bytes> {
    let Some(unpacked) = unpack(&packet, shared.options.max_packet_bytes)? else {
        return Ok(packet);
    };
    let saved = unpacked.len().saturating_sub(packet.len());
    shared.counters.received_saved_bytes.add(saved as u64);
    Ok(unpacked)
}

/// Handles a reply to a dropped call: closes its handle if it has one.
pub(super) fn discard(shared: &Arc<Shared>, reply: Result<Reply>) {
    if let Ok(Reply::Handle(handle)) = reply {
        shared.send_unattended(Packet::close(&handle), Expect::Status);
    }
}
