use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use rustls::client::ResolvesClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::version::TLS12;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::socket::{Timed, handshake};
use crate::{AsyncReader, AsyncWriter, Digest, Error, Identity, Limits, Listener, Reader, Writer};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LIMIT: Duration = Duration::from_secs(10);
const SOON: Duration = Duration::from_millis(200);

fn limits(handshakes: usize, millis: u64) -> Limits {
    let (time, pause) = (Duration::from_millis(millis), Duration::ZERO);
    Limits { handshakes, time, pause, ..Limits::default() }
}

/// A listener, its client, and the connections that it has accepted.
struct Pair {
    client: Identity,
    peer: Digest,
    listener: Listener,
    accepted: mpsc::Receiver<Served>,
}

/// An accepted connection, which ends when `_end` is dropped.
struct Served {
    reader: Reader,
    writer: Writer,
    _end: mpsc::Sender<()>,
}

impl Pair {
    fn new(limits: Limits) -> Pair {
        let (client, server) = (Identity::fresh().unwrap(), Identity::fresh().unwrap());
        let (sender, accepted) = mpsc::channel();
        let sender = Mutex::new(sender);
        let serve = move |reader, writer| {
            let (_end, ended) = mpsc::channel();
            let served = Served { reader, writer, _end };
            if sender.lock().unwrap().send(served).is_ok() {
                let _ = ended.recv();
            }
        };
        let listener = Listener::new(HERE, 0..=0, &server, client.digest(), limits, serve);
        Pair { client, peer: server.digest(), listener: listener.unwrap(), accepted }
    }

    async fn connect(&self) -> (AsyncReader, AsyncWriter) {
        self.connect_as(&self.client, self.peer).await.unwrap()
    }

    async fn connect_as(
        &self,
        client: &Identity,
        peer: Digest,
    ) -> Result<(AsyncReader, AsyncWriter), Error> {
        let poll_limit = Duration::from_micros(50);
        crate::connect(self.listener.address(), client, peer, LIMIT, poll_limit).await
    }

    fn none_accepted(&self) {
        assert!(self.accepted.recv_timeout(SOON).is_err());
    }
}

/// A listener that sends back what it receives.
fn echo(limits: Limits) -> (Identity, Digest, Listener) {
    let (client, server) = (Identity::fresh().unwrap(), Identity::fresh().unwrap());
    let serve = |mut reader: Reader, mut writer: Writer| {
        let mut buffer = vec![0; 300_000];
        while let Ok(read @ 1..) = reader.read(&mut buffer) {
            if writer.write_all(&buffer[..read]).is_err() {
                return;
            }
        }
    };
    let listener = Listener::new(HERE, 0..=0, &server, client.digest(), limits, serve).unwrap();
    (client, server.digest(), listener)
}

/// The other side neither reads nor ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_not_taken_ends_after_the_limit() {
    let pair = Pair::new(Limits::default());
    let _client = pair.connect().await;
    let mut served = pair.accepted.recv().unwrap();
    served.writer.limit_silence(Some(Duration::from_secs(1))).unwrap();
    let sent = tokio::task::spawn_blocking(move || served.writer.write_all(&vec![7; 64 << 20]));
    let sent = tokio::time::timeout(Duration::from_secs(30), sent).await.unwrap().unwrap();
    assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::TimedOut);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_of_any_length_come_back_on_several_connections() {
    let (client, peer, listener) = echo(Limits::default());
    for poll_limit in [Duration::ZERO, Duration::from_micros(50)] {
        let connected = crate::connect(listener.address(), &client, peer, LIMIT, poll_limit).await;
        let (mut reader, mut writer) = connected.unwrap();
        for len in [1, 13, 4096, 16_384, 16_385, 70_000, 3_000_000] {
            let sent: Arc<[u8]> =
                (0..len).map(|at: u32| (at.wrapping_mul(31) >> 3) as u8).collect();
            let sending = sent.clone();
            let write = async {
                writer.write_all(&sending).await.unwrap();
                writer.flush().await.unwrap();
            };
            let mut received = vec![0; sent.len()];
            let (_, read) = tokio::join!(write, reader.read_exact(&mut received));
            read.unwrap();
            assert!(*sent == *received, "{len} bytes");
        }
        // Many small ones, one after the other: the readers poll.
        let mut byte = [0];
        for at in 0..1000_u32 {
            writer.write_all(&[at as u8]).await.unwrap();
            writer.flush().await.unwrap();
            reader.read_exact(&mut byte).await.unwrap();
            assert_eq!(byte[0], at as u8);
        }
    }
}

/// A peer that does not read: what is enciphered is limited, and a write waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_waits_while_the_peer_reads_nothing() {
    let pair = Pair::new(Limits::default());
    let (_reader, mut writer) = pair.connect().await;
    let mut served = pair.accepted.recv().unwrap();
    let block = vec![7; 1 << 20];
    let mut sent = 0_u64;
    while tokio::time::timeout(SOON, writer.write_all(&block)).await.is_ok() {
        sent += 1;
        assert!(sent < 100, "nothing limits what is sent");
    }
    let drain = tokio::task::spawn_blocking(move || {
        let mut total = 0_u64;
        let mut buffer = vec![0; 1 << 20];
        loop {
            match served.reader.read(&mut buffer) {
                Ok(0) => return total,
                read => {
                    let read = read.unwrap();
                    assert!(buffer[..read].iter().all(|byte| *byte == 7));
                    total += read as u64;
                }
            }
        }
    });
    writer.flush().await.unwrap();
    drop(writer);
    assert!(drain.await.unwrap() >= sent << 20);
}

/// As the helper waits for a client that has promised not to be silent for longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_whose_waits_have_a_limit_polls_as_well() {
    // Each wait for a byte is a short one, also on a busy machine.
    let poll_limit = Duration::from_millis(100);
    let pair = Pair::new(Limits { poll_limit, ..Limits::default() });
    let (_reader, mut writer) = pair.connect().await;
    let mut served = pair.accepted.recv().unwrap();
    let reading = tokio::task::spawn_blocking(move || {
        let reader = &mut served.reader;
        (0..1000).any(|_| {
            assert!(reader.is_readable_within(LIMIT).unwrap());
            reader.read_exact(&mut [0]).unwrap();
            reader.polls()
        })
    });
    while !reading.is_finished() {
        // The reader waits by then.
        tokio::time::sleep(Duration::from_millis(1)).await;
        // It may have ended.
        let _ = writer.write_all(&[1]).await;
        let _ = writer.flush().await;
    }
    assert!(reading.await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_client_and_another_server_are_refused() {
    let pair = Pair::new(Limits::default());
    let other = Identity::fresh().unwrap();
    assert!(pair.connect_as(&other, pair.peer).await.is_err());
    pair.none_accepted();
    assert!(pair.connect_as(&pair.client, other.digest()).await.is_err());
    pair.none_accepted();
    pair.connect().await;
    pair.accepted.recv().unwrap();
}

/// A client with this configuration is not accepted.
async fn refuses(config: ClientConfig) {
    let pair = Pair::new(Limits::default());
    let address = pair.listener.address();
    let name = ServerName::try_from("sshoal").unwrap();
    let tried = tokio::task::spawn_blocking(move || {
        let socket = TcpStream::connect(address).unwrap();
        let mut timed = Timed::new(&socket, Instant::now() + LIMIT);
        let mut tls = ClientConnection::new(Arc::new(config), name).unwrap().into();
        handshake(&mut tls, &mut timed)?;
        // In TLS 1.3 the client learns later that it was refused.
        tls.complete_io(&mut timed)?;
        match tls.reader().read(&mut [0]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            result => result,
        }
    });
    assert!(tried.await.unwrap().is_err());
    pair.none_accepted();
    pair.connect().await;
    pair.accepted.recv().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_key_is_refused() {
    // It accepts any server, so that only the listener can refuse.
    let config = Identity::fresh().unwrap().client(Digest([0; 32])).unwrap();
    let mut config = Arc::unwrap_or_clone(config);
    config.dangerous().set_certificate_verifier(Arc::new(Any));
    config.client_auth_cert_resolver = Arc::new(NoKey);
    refuses(config).await;
}

/// It presents the public key of another one, whose private key it has not.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_cannot_sign_for_its_key_is_refused() {
    let pair = Pair::new(Limits::default());
    let thief = Identity::fresh().unwrap();
    let stolen = pair.client.with_private_key_of(&thief);
    assert_eq!(stolen.digest(), pair.client.digest());
    assert!(pair.connect_as(&stolen, pair.peer).await.is_err());
    pair.none_accepted();
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_1_2_is_refused() {
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS12])
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    refuses(config).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_ends_the_connection() {
    let pair = Pair::new(Limits::default());
    let mut socket = TcpStream::connect(pair.listener.address()).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket.write_all(&[0xff; 4096]).unwrap();
    is_closed(&mut socket);
    pair.none_accepted();
    pair.connect().await;
    pair.accepted.recv().unwrap();
}

fn is_closed(socket: &mut TcpStream) {
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let mut rest = Vec::new();
    if let Err(error) = socket.read_to_end(&mut rest) {
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}

/// Also if each sends a byte from time to time.
#[tokio::test(flavor = "multi_thread")]
async fn slow_peers_take_their_turns_and_are_closed() {
    let pair = Pair::new(limits(2, 500));
    let began = Instant::now();
    let address = pair.listener.address();
    let mut slow: Vec<_> = (0..2).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut trickling = slow[0].try_clone().unwrap();
    let trickle = std::thread::spawn(move || {
        // The header of a handshake record, whose rest comes slowly.
        for byte in [22, 3, 1, 1, 0, 1, 0, 0, 250].into_iter().cycle() {
            if trickling.write_all(&[byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    std::thread::sleep(Duration::from_millis(50));
    // Both handshakes are taken: this one begins when one of them has timed out.
    pair.connect().await;
    pair.accepted.recv().unwrap();
    assert!(began.elapsed() >= Duration::from_millis(400));
    slow.iter_mut().for_each(is_closed);
    trickle.join().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn further_connections_wait_until_one_ends() {
    let pair = Pair::new(Limits { connections: 1, ..limits(1, 10_000) });
    let _first = pair.connect().await;
    let served = pair.accepted.recv().unwrap();
    let poll_limit = Duration::ZERO;
    let address = pair.listener.address();
    let second = crate::connect(address, &pair.client, pair.peer, SOON, poll_limit).await;
    assert!(second.is_err());
    drop(served);
    pair.connect().await;
    pair.accepted.recv().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_times_out() {
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let client = Identity::fresh().unwrap();
    let connected = crate::connect(address, &client, client.digest(), SOON, Duration::ZERO).await;
    let error = connected.err().unwrap();
    assert!(
        matches!(&error, Error::Io(error) if error.kind() == io::ErrorKind::TimedOut),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_listener_ends_handshakes_and_connections() {
    let (client, peer, listener) = echo(Limits::default());
    let address = listener.address();
    let connected = crate::connect(address, &client, peer, LIMIT, Duration::ZERO).await;
    let (mut reader, _writer) = connected.unwrap();
    let mut half = TcpStream::connect(address).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    drop(listener);
    is_closed(&mut half);
    assert!(matches!(reader.read(&mut [0]).await, Ok(0) | Err(_)));
    assert!(crate::connect(address, &client, peer, LIMIT, Duration::ZERO).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_socket_is_the_end_of_both_halves() {
    let pair = Pair::new(Limits::default());
    let (mut reader, writer) = pair.connect().await;
    let Served { reader: mut theirs, writer: mut to_us, _end } = pair.accepted.recv().unwrap();
    drop(writer);
    assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
    assert!(theirs.is_readable_within(SOON).unwrap());
    drop(_end);
    assert!(matches!(reader.read(&mut [0]).await, Ok(0) | Err(_)));
    while to_us.write_all(&[0; 100]).is_ok() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_waits_for_a_limited_time() {
    let pair = Pair::new(Limits::default());
    let (_reader, mut writer) = pair.connect().await;
    let mut served = pair.accepted.recv().unwrap();
    assert!(!served.reader.is_readable_within(SOON).unwrap());
    writer.write_all(b"xy").await.unwrap();
    writer.flush().await.unwrap();
    assert!(served.reader.is_readable_within(LIMIT).unwrap());
    for expected in b"xy" {
        let mut byte = [0];
        served.reader.read_exact(&mut byte).unwrap();
        assert_eq!(byte[0], *expected);
        // The second byte is deciphered with the first one.
        assert_eq!(served.reader.is_readable_within(SOON).unwrap(), *expected == b'x');
    }
}

#[test]
fn all_ports_may_be_taken() {
    let pair = Pair::new(Limits::default());
    let port = pair.listener.address().port();
    let (server, limits) = (Identity::fresh().unwrap(), Limits::default());
    let digest = pair.client.digest();
    let result = Listener::new(HERE, port..=port, &server, digest, limits, |_, _| {});
    assert!(matches!(result, Err(Error::NoPort(low, high)) if (low, high) == (port, port)));
}

/// Accepts every server.
#[derive(Debug)]
struct Any;

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// Has no key.
#[derive(Debug)]
struct NoKey;

impl ResolvesClientCert for NoKey {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn only_raw_public_keys(&self) -> bool {
        true
    }

    fn has_certs(&self) -> bool {
        false
    }
}
