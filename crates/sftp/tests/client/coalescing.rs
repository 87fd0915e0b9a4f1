//! Requests sent inside a batch are written together, in order, and completely.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use base::task::batch;
use bytes::{Bytes, BytesMut};
use sftp::codec::{Request, Version};
use sftp::{Client, Options, RemoteHandle};
use tokio::io::{AsyncWrite, DuplexStream};

use super::peer::{Script, scripted};

/// A stream that counts writes.
struct Counting {
    stream: tokio::io::WriteHalf<DuplexStream>,
    writes: Arc<AtomicUsize>,
}

impl AsyncWrite for Counting {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        let all: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
        Pin::new(&mut self.stream).poll_write(context, &all)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A client over these halves of a stream, whose server has no extensions.
async fn connect(
    reader: tokio::io::ReadHalf<DuplexStream>,
    writer: impl AsyncWrite + Send + Unpin + 'static,
    script: &mut Script,
) -> Client {
    let greet = async {
        script.receive_raw().await;
        let mut out = BytesMut::new();
        Version { version: 3, extensions: [].into_iter().collect(), product: None }
            .encode(&mut out);
        script.send_raw(&out).await;
    };
    let connecting = Client::connect_halves(reader, writer, Options::default());
    let (client, ()) = tokio::join!(connecting, greet);
    client.unwrap()
}

async fn counting() -> (Client, Script, Arc<AtomicUsize>) {
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let mut script = Script::new(theirs);
    let (reader, stream) = tokio::io::split(ours);
    let writes = Arc::<AtomicUsize>::default();
    let writer = Counting { stream, writes: writes.clone() };
    let client = connect(reader, writer, &mut script).await;
    writes.store(0, Ordering::SeqCst);
    (client, script, writes)
}

fn poll<T>(call: &mut sftp::Call<T>) {
    let _ = call.poll_send(&mut Context::from_waker(Waker::noop()));
}

async fn next_path(script: &mut Script) -> String {
    let path = script.receive(|_, request| match request {
        Request::Lstat { path } => String::from_utf8_lossy(path).into_owned(),
        Request::Write { offset, .. } => format!("write {offset}"),
        other => panic!("{other:?}"),
    });
    path.await
}

#[tokio::test]
async fn requests_of_one_batch_are_one_write() {
    let (client, mut script, writes) = counting().await;
    let mut calls: Vec<_> =
        (0..20).map(|at: u32| client.lstat(at.to_string().as_bytes())).collect();
    batch(|| {
        calls[..10].iter_mut().for_each(poll);
        assert_eq!(writes.load(Ordering::SeqCst), 0);
    });
    assert_eq!(writes.load(Ordering::SeqCst), 1);
    // Outside of a batch each request is one write.
    calls[10..].iter_mut().for_each(poll);
    assert_eq!(writes.load(Ordering::SeqCst), 11);
    for at in 0..20 {
        assert_eq!(next_path(&mut script).await, at.to_string());
    }
}

#[tokio::test]
async fn packets_of_another_thread_keep_their_order() {
    let (client, mut script, _) = counting().await;
    let mut first = client.lstat(b"first");
    let mut second = client.lstat(b"second");
    batch(|| {
        poll(&mut first);
        std::thread::scope(|scope| {
            scope.spawn(|| poll(&mut second));
        });
    });
    assert_eq!(next_path(&mut script).await, "first");
    assert_eq!(next_path(&mut script).await, "second");
}

/// More than the stream accepts at once, inside and outside of batches.
#[tokio::test]
async fn nothing_is_lost_when_the_stream_is_full() {
    let (client, mut script) = scripted(&[], Options::default()).await;
    let handle = RemoteHandle::new(b"h").unwrap();
    let mut calls: Vec<_> = (0..60)
        .map(|at| client.write(&handle, at, Bytes::from(vec![7; 700 * (at as usize % 40)])))
        .collect();
    for (number, part) in calls.chunks_mut(5).enumerate() {
        if number % 3 == 0 {
            part.iter_mut().for_each(poll);
        } else {
            batch(|| part.iter_mut().for_each(poll));
        }
    }
    for at in 0..60 {
        assert_eq!(next_path(&mut script).await, format!("write {at}"));
    }
}

/// A stream that enciphers accepts bytes before it sends them, and more than it can send at once.
#[tokio::test]
async fn what_a_stream_has_accepted_is_sent() {
    // Less than one request.
    let (ours, theirs) = tokio::io::duplex(100);
    let mut script = Script::new(theirs);
    let (reader, writer) = tokio::io::split(ours);
    let writer = tokio::io::BufWriter::with_capacity(5_000, writer);
    let client = connect(reader, writer, &mut script).await;
    let path = |at: usize| format!("{at:0300}");
    let mut calls: Vec<_> = (0..100).map(|at| client.lstat(path(at).as_bytes())).collect();
    for (at, call) in calls.iter_mut().enumerate() {
        // Some alone, and some in a batch.
        match at % 3 {
            0 => poll(call),
            _ => batch(|| poll(call)),
        }
    }
    for at in 0..calls.len() {
        assert_eq!(next_path(&mut script).await, path(at));
    }
    // And one request after a pause, with nothing behind it.
    let mut last = client.lstat(b"last");
    poll(&mut last);
    assert_eq!(next_path(&mut script).await, "last");
}
