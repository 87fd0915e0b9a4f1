//! What forwarding costs by itself: waking a thread, a read, a write.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::{Link, LinkOptions};

/// Round trips from which on the cost does not matter: it is 20 to 100 us, 2 % of this.
const MATTERS_BELOW: Duration = Duration::from_millis(4);

/// Time for the measurement through the link, in each of the rounds.
const MEASURED_FOR: Duration = Duration::from_millis(30);

/// Of so many rounds the best counts, each with its own measurement of the direct way: another
/// program is seldom in the way of all.
const ROUNDS: usize = 3;

/// Least and most round trips that are measured.
const PINGS: (usize, usize) = (21, 201);

/// Most that is believed. On a busy machine more is measured, but that is the other programs'
/// cost, and will be different later.
pub(super) const BELIEVED: Duration = Duration::from_micros(60);

/// The cost of one way on a link of this round trip. It is measured at that round trip, since a
/// processor that has slept for longer wakes later.
pub(super) fn one_way(rtt: Duration) -> io::Result<Duration> {
    if rtt.is_zero() || rtt > MATTERS_BELOW {
        return Ok(Duration::ZERO);
    }
    let pings = (MEASURED_FOR.as_nanos() / rtt.as_nanos()) as usize;
    let pings = pings.clamp(PINGS.0, PINGS.1);
    let echoing = start_echo()?;
    let options = LinkOptions { rtt, rate_bytes_per_s: None };
    let link = Link::start_with_cost(echoing, options, Duration::ZERO)?;
    let (mut direct, mut through) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        direct = direct.min(usual_rtt(echoing, pings)?);
        let address = SocketAddr::from(([127, 0, 0, 1], link.port()));
        through = through.min(usual_rtt(address, pings)?);
    }
    Ok((through.saturating_sub(direct + rtt) / 2).min(BELIEVED))
}

/// Starts a server that sends everything back, for the connections of the rounds.
fn start_echo() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::Builder::new().name("link-echo".to_owned()).spawn(move || {
        for stream in listener.incoming().take(2 * ROUNDS).flatten() {
            let _ = echo(stream);
        }
    })?;
    Ok(address)
}

/// Sends back what comes, until it ends.
///
/// # Errors
/// Those of the connection.
pub fn echo(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            read => stream.write_all(&buffer[..read])?,
        }
    }
}

/// The time of a byte to an echo and back, when no other program is in the way: of ten times the
/// second best.
pub(super) fn usual_rtt(address: SocketAddr, pings: usize) -> io::Result<Duration> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut times = Vec::with_capacity(pings);
    for _ in 0..pings {
        let start = Instant::now();
        stream.write_all(b"x")?;
        stream.read_exact(&mut [0])?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times[pings / 10])
}
