//! How long and how wide a link is.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use sandbox::link::{Link, LinkOptions, echo};

use crate::failure::{Failure, Result};
use crate::worker::Connection;

/// Round trips that are timed on a short link. Their median is stable to 1 % from there on.
const PINGS: usize = 301;

/// On a long link there are as many as fit into this, [`PINGS_LEAST`] at least: what a timer is
/// late by matters less there.
const PINGS_FOR: Duration = Duration::from_secs(2);
const PINGS_LEAST: usize = 11;

/// How long bulk data flow, and how much of it at most.
const BULK_FOR: Duration = Duration::from_millis(400);
const BULK_MOST_BYTES: u64 = 512 << 20;

/// What is not counted at the beginning: filling the pipe, TCP's slow start.
const BULK_WARM: Duration = Duration::from_millis(100);

/// On a real host, where TCP has to find out how wide the link is.
const SSH_BULK_FOR: Duration = Duration::from_millis(2500);
const SSH_BULK_WARM: Duration = Duration::from_millis(1000);

/// Longest wait for one answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figures {
    /// Median round trip of one byte.
    pub(crate) rtt_us: f64,
    /// Of bulk data, from the server.
    pub(crate) bytes_per_s: f64,
}

/// Measures a link over TCP, with servers of its own behind it, and gives it back with no target
/// set. Without options there is no link, and the bare loopback is measured.
pub(crate) fn through_tcp(options: Option<LinkOptions>) -> Result<(Option<Link>, Figures)> {
    let failed = |error: io::Error| Failure::failed(format!("cannot measure the link: {error}"));
    measure_tcp(options).map_err(failed)
}

fn measure_tcp(options: Option<LinkOptions>) -> io::Result<(Option<Link>, Figures)> {
    let server = TcpListener::bind("127.0.0.1:0")?;
    let target = server.local_addr()?;
    let link = options.map(|options| Link::start(target, options)).transpose()?;
    let port = link.as_ref().map_or(target.port(), Link::port);
    let rtt = options.map_or(Duration::ZERO, |options| options.rtt);
    let connect = || -> io::Result<(TcpStream, TcpStream)> {
        let client = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port)))?;
        client.set_nodelay(true)?;
        client.set_read_timeout(Some(PATIENCE))?;
        let (server, _) = server.accept()?;
        server.set_nodelay(true)?;
        server.set_write_timeout(Some(PATIENCE))?;
        Ok((client, server))
    };
    let (mut client, server) = connect()?;
    let pour = thread::Builder::new().name("link-bulk".to_owned()).spawn(move || pour(server))?;
    let bytes_per_s = rate(BULK_FOR + rtt, BULK_WARM + rtt, |buffer| client.read(buffer));
    // The sender learns from it that it is enough.
    let _ = client.shutdown(Shutdown::Both);
    drop(client);
    let _ = pour.join();
    // Round trips come last: the first ones wait until the wire is free of what is left.
    let (mut client, server) = connect()?;
    let echo = thread::Builder::new().name("link-echo".to_owned()).spawn(move || echo(server))?;
    let rtt_us = median_rtt_us(rtt, || round_trip(&mut client));
    drop(client);
    let _ = echo.join();
    Ok((link, Figures { rtt_us: rtt_us?, bytes_per_s: bytes_per_s? }))
}

/// Sends until the reader closes the connection.
fn pour(mut stream: TcpStream) -> io::Result<()> {
    let piece = vec![0; 256 << 10];
    let mut sent = 0;
    while sent < BULK_MOST_BYTES {
        stream.write_all(&piece)?;
        sent += piece.len() as u64;
    }
    Ok(())
}

/// Median over as many round trips as make sense for one of about `expected`.
fn median_rtt_us(
    expected: Duration,
    mut round_trip: impl FnMut() -> io::Result<()>,
) -> io::Result<f64> {
    // The first ones find everything asleep.
    for _ in 0..3 {
        round_trip()?;
    }
    let fitting = PINGS_FOR.as_nanos() / expected.as_nanos().max(1);
    let pings = usize::try_from(fitting).unwrap_or(PINGS).clamp(PINGS_LEAST, PINGS);
    let mut times = Vec::with_capacity(pings);
    for _ in 0..pings {
        let start = Instant::now();
        round_trip()?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times[pings / 2].as_secs_f64() * 1e6)
}

/// Bytes a second of what `read` gives, from `warm` after the first byte on until `length` after
/// it, or its end.
fn rate(
    length: Duration,
    warm: Duration,
    mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
) -> io::Result<f64> {
    let mut buffer = vec![0; 256 << 10];
    // A signal is not the end of a measurement.
    let mut read = |buffer: &mut [u8]| loop {
        match read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            got => return got,
        }
    };
    read(&mut buffer)?;
    let start = Instant::now();
    let (mut bytes, mut since) = (0_u64, start);
    let mut counted = 0_u64;
    loop {
        let got = read(&mut buffer)?;
        let now = Instant::now();
        bytes += got as u64;
        if got == 0 || now - start >= length {
            // A flow that ended before it was warm counts whole.
            let (bytes, since) = if counted == 0 { (bytes, start) } else { (counted, since) };
            return Ok(bytes as f64 / (now - since).as_secs_f64().max(1e-9));
        }
        if now - start < warm {
            since = now;
        } else {
            counted += got as u64;
        }
    }
}

/// Measures what ssh makes of a real link: the round trip of one byte through `ssh HOST cat`, and
/// what `ssh HOST 'cat /dev/zero'` brings. `ssh` gives an `ssh` up to the host.
pub(crate) fn through_ssh(ssh: impl Fn() -> Command) -> Result<Figures> {
    let failed =
        |error: io::Error| Failure::failed(format!("cannot measure the link through ssh: {error}"));
    let start = |program: &str| {
        let mut ssh = ssh();
        ssh.arg(program).process_group(0);
        let connection = Connection::start(ssh)?;
        connection.stream.set_read_timeout(Some(PATIENCE))?;
        Ok::<_, io::Error>(connection)
    };
    let measure = || {
        let mut cat = start("cat")?;
        let rtt_us = round_trip(&mut cat.stream).and_then(|()| {
            // The first one had the login in it.
            let again = Instant::now();
            round_trip(&mut cat.stream)?;
            median_rtt_us(again.elapsed(), || round_trip(&mut cat.stream))
        });
        cat.kill();
        let rtt_us = rtt_us?;
        let mut zeros = start("cat /dev/zero")?;
        let bytes_per_s = rate(SSH_BULK_FOR, SSH_BULK_WARM, |buffer| zeros.stream.read(buffer));
        zeros.kill();
        Ok(Figures { rtt_us, bytes_per_s: bytes_per_s? })
    };
    measure().map_err(failed)
}

/// A byte there and back.
fn round_trip(stream: &mut (impl Read + Write)) -> io::Result<()> {
    stream.write_all(b"x")?;
    stream.read_exact(&mut [0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_counts_no_byte_of_the_warm_up_and_no_time_without_its_bytes() {
        let (length, warm) = (Duration::from_millis(60), Duration::from_millis(20));
        // A thousand bytes in a millisecond at the least, since a sleep is never too short; the
        // first ones come in one piece.
        let mut pieces = std::iter::once(1_000_000).chain(std::iter::repeat(1_000));
        let steady = rate(length, warm, |_| {
            thread::sleep(Duration::from_millis(1));
            Ok(pieces.next().unwrap_or(0))
        });
        let steady = steady.unwrap();
        assert!(steady > 0.0 && steady <= 1e6, "{steady}");
        // One that ends before it is warm counts whole.
        let mut short = [1_000, 5_000, 0].into_iter();
        assert!(rate(length, warm, |_| Ok(short.next().unwrap_or(0))).unwrap() > 0.0);
        assert!(rate(length, warm, |_| Err(io::ErrorKind::TimedOut.into())).is_err());
    }
}
