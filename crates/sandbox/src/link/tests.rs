use super::*;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use super::cost::{BELIEVED, echo, usual_rtt};

/// A server that sends everything back, for as long as the test binary runs.
fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || echo(stream));
        }
    });
    address
}

fn link(rtt: Duration, rate_bytes_per_s: Option<u64>) -> Link {
    Link::start(echo_server(), LinkOptions { rtt, rate_bytes_per_s }).unwrap()
}

fn client(link: &Link) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", link.port())).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn ping(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"ping")?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer)?;
    assert_eq!(&answer, b"ping");
    Ok(())
}

#[test]
fn a_round_trip_takes_its_time() {
    for (rtt_us, pings) in [(200, 201), (2_000, 51), (20_000, 11)] {
        let rtt = Duration::from_micros(rtt_us);
        let link = link(rtt, None);
        let through = SocketAddr::from(([127, 0, 0, 1], link.port()));
        // No more than the greatest cost of forwarding is taken off, on either way. Load can only
        // add to it.
        let took = usual_rtt(through, pings).unwrap();
        assert!(took + 2 * BELIEVED >= rtt, "{rtt:?} is {took:?}");
    }
}

#[test]
fn the_rate_bounds_each_direction() {
    // 8 MB/s and 1 MB there and back at the same time.
    let link = link(Duration::from_millis(10), Some(8_000_000));
    let mut reader = client(&link);
    let mut writer = reader.try_clone().unwrap();
    let sent: Vec<u8> = (0..1_000_000u32).map(|i| (i ^ (i >> 8)) as u8).collect();
    let start = Instant::now();
    let received = thread::scope(|scope| {
        scope.spawn(|| writer.write_all(&sent).unwrap());
        let mut received = vec![0; sent.len()];
        reader.read_exact(&mut received).unwrap();
        received
    });
    let took = start.elapsed();
    // Bytes are seen before they are counted; a link that has obeyed has counted them.
    link.stall();
    assert!(received == sent, "the bytes came back changed");
    let least = Duration::from_millis(125 + 10);
    assert!(took >= least, "{took:?}");
    assert_eq!((link.bytes_to_target(), link.bytes_from_target()), (1_000_000, 1_000_000));
}

#[test]
fn an_end_passes_through_behind_the_bytes() {
    let link = link(Duration::from_millis(5), None);
    let mut stream = client(&link);
    stream.write_all(b"last words").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "last words");
}

#[test]
fn a_cut_resets_all_connections_and_takes_new_ones() {
    let link = link(Duration::from_millis(1), None);
    let mut streams = [client(&link), client(&link)];
    streams.iter_mut().for_each(|stream| ping(stream).unwrap());
    link.cut();
    for stream in &mut streams {
        let error = ping(stream).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe));
    }
    ping(&mut client(&link)).unwrap();
}

#[test]
fn a_stall_holds_everything_and_loses_nothing() {
    let link = link(Duration::from_millis(1), None);
    let mut stream = client(&link);
    ping(&mut stream).unwrap();
    link.stall();
    stream.write_all(b"ping").unwrap();
    // That nothing comes can only be seen by waiting: fifty round trips.
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let mut answer = [0; 4];
    let error = stream.read_exact(&mut answer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert_eq!(link.bytes_to_target(), 4);
    link.resume();
    stream.set_read_timeout(None).unwrap();
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"ping");
}

#[test]
fn a_refusal_leaves_standing_connections_alone() {
    let link = link(Duration::ZERO, None);
    let mut stream = client(&link);
    ping(&mut stream).unwrap();
    link.refuse();
    let error = TcpStream::connect(("127.0.0.1", link.port())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    ping(&mut stream).unwrap();
    link.accept();
    ping(&mut client(&link)).unwrap();
}

#[test]
fn another_target_is_for_new_connections() {
    let link = link(Duration::ZERO, None);
    let mut old = client(&link);
    ping(&mut old).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    link.set_target(listener.local_addr().unwrap());
    let mut new = client(&link);
    let (mut there, _) = listener.accept().unwrap();
    new.write_all(b"x").unwrap();
    there.read_exact(&mut [0]).unwrap();
    ping(&mut old).unwrap();
}

#[test]
fn a_dropped_link_is_gone() {
    let link = link(Duration::ZERO, None);
    let (mut stream, port) = (client(&link), link.port());
    ping(&mut stream).unwrap();
    drop(link);
    assert!(ping(&mut stream).is_err());
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}
