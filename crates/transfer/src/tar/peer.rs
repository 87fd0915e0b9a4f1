//! The dialogue with the command of [`script`](super::script), up to the archive.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::compress::{self, Compress, Method};
use crate::shell::{NOISE_LIMIT_BYTES, Running, Shell, ShellError};

use super::script::{Greeting, RATE_BYTES, SAMPLE_BYTES};

/// Time limit of a login and the first answer after it. ssh does not report when it has logged in
/// and no longer asks its user for anything, so this is the sum of: a minute for the connection,
/// through a jump host with a login of its own (`ConnectTimeout`); two minutes that sshd allows for
/// a login (`LoginGraceTime`); and two more for a server that starts slowly.
pub const LOGIN_LIMIT: Duration = Duration::from_secs(300);

/// Time limit of an answer after the greeting that needs no work. ssh notices a dead link in 45 s.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Time limit of an answer for which the server walks a tree, on disks that may be slow, or that is
/// large for a slow link. Without the answer the copy continues over SFTP.
const LONG_ANSWER_LIMIT: Duration = Duration::from_secs(300);

/// Limit of a line that is an answer.
const LINE_LIMIT_BYTES: usize = 4096;

/// The server, ready for the archive.
pub(super) struct Peer {
    pub running: Running,
    pub greeting: Greeting,
    /// The compression of the archive.
    pub method: Option<Method>,
    /// The round trip, if it was measured.
    pub round_trip: Option<Duration>,
    /// The link's rate from the server in bytes per second, if it was measured.
    pub rate: Option<f64>,
}

impl Peer {
    /// Starts the command and sends `words`: the first requests the greeting, the others need not
    /// wait for it.
    pub(super) async fn greet(
        shell: &dyn Shell,
        command: &[u8],
        words: &[u8],
    ) -> Result<Peer, ShellError> {
        within(LOGIN_LIMIT, Peer::greet_patiently(shell, command, words)).await
    }

    async fn greet_patiently(
        shell: &dyn Shell,
        command: &[u8],
        words: &[u8],
    ) -> Result<Peer, ShellError> {
        let mut running = shell.start(command).await?;
        // If the command does not read, its answer is the error.
        let _ = running.stdin.write_all(words).await;
        let mut seen = 0;
        let greeting = loop {
            let Ok(line) = line(&mut running).await else {
                return Err(close_reason(running).await);
            };
            if let Some(greeting) = Greeting::parse(&line) {
                break greeting;
            }
            seen += line.len() + 1;
            if seen > NOISE_LIMIT_BYTES {
                return Err(ShellError::Refused(
                    "it answers something else than a shell does".into(),
                ));
            }
        };
        Ok(Peer { running, greeting, method: None, round_trip: None, rate: None })
    }

    /// Measures the round trip.
    pub(super) async fn measure_round_trip(&mut self) -> Result<Duration, ShellError> {
        let since = Instant::now();
        self.ask("hello", ANSWER_LIMIT).await?;
        let round_trip = since.elapsed();
        self.round_trip = Some(round_trip);
        Ok(round_trip)
    }

    /// Whether there are files for which several sessions are faster than one stream.
    pub(super) async fn has_big_files(&mut self) -> Result<bool, ShellError> {
        Ok(self.number("big").await? > 0)
    }

    /// Chooses the compression that pays on this link and for this data.
    pub(super) async fn choose_method(
        &mut self,
        wish: Compress,
        can_sample: bool,
    ) -> Result<(), ShellError> {
        match wish {
            Compress::Never => return Ok(()),
            Compress::Always(method) => {
                self.method = Some(method).filter(|it| self.greeting.methods.contains(it));
                return Ok(());
            }
            Compress::Auto if self.greeting.methods.is_empty() => return Ok(()),
            Compress::Auto => {}
        }
        let mut rates = Vec::new();
        let rate = loop {
            rates.push(self.measure_rate().await?);
            let pays = |rate| compress::candidate(rate, &self.greeting.methods).is_some();
            if let Some(rate) = settled(&rates, pays) {
                break rate;
            }
        };
        self.rate = Some(rate);
        tracing::debug!("of the link's rate, in bytes a second: {rates:?}");
        let candidate = compress::candidate(rate, &self.greeting.methods);
        if let Some(method) = candidate
            && can_sample
        {
            let packed = self.number(&format!("sample-{method}")).await?;
            if !compress::is_worth(SAMPLE_BYTES, packed) {
                return Ok(());
            }
        }
        self.method = candidate;
        Ok(())
    }

    /// Starts the archive.
    pub(super) async fn begin(&mut self) -> Result<(), ShellError> {
        self.say(self.method.map_or("plain", Method::name)).await
    }

    /// Replaces the shell by an SFTP server.
    pub(super) async fn serve(&mut self) -> Result<(), ShellError> {
        self.say("sftp").await
    }

    /// The link's rate from the server, in bytes per second, from the first byte of an answer to
    /// its last.
    async fn measure_rate(&mut self) -> Result<f64, ShellError> {
        self.say("rate").await?;
        let mut block = vec![0; RATE_BYTES];
        let stdout = &mut self.running.stdout;
        let read = async {
            let first = stdout.read(&mut block).await?;
            let since = Instant::now();
            stdout.read_exact(&mut block[first..]).await?;
            Ok((RATE_BYTES - first, since.elapsed()))
        };
        let (bytes, took) = within(LONG_ANSWER_LIMIT, read).await?;
        Ok(bytes as f64 / took.as_secs_f64().max(1e-6))
    }

    async fn number(&mut self, word: &str) -> Result<u64, ShellError> {
        let answer = self.ask(word, LONG_ANSWER_LIMIT).await?;
        let text = std::str::from_utf8(&answer).unwrap_or_default().trim();
        text.parse().map_err(|_| ShellError::Lost(format!("no answer to {word}")))
    }

    async fn ask(&mut self, word: &str, limit: Duration) -> Result<Vec<u8>, ShellError> {
        let answer = async {
            self.say(word).await?;
            Ok(line(&mut self.running).await?)
        };
        within(limit, answer).await
    }

    async fn say(&mut self, word: &str) -> Result<(), ShellError> {
        Ok(self.running.stdin.write_all(format!("{word}\n").as_bytes()).await?)
    }
}

/// The answer, if it arrives in time. Otherwise the command ends.
async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, ShellError>>,
) -> Result<T, ShellError> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(ShellError::Lost(format!("no answer within {} s", limit.as_secs()))),
    }
}

/// The rate to use, when enough was measured. A busy machine makes a fast link look slow. It makes
/// a slow one look fast if it then reads at once what has arrived meanwhile. Either happens once,
/// and rarely twice.
fn settled(rates: &[f64], pays: impl Fn(f64) -> bool) -> Option<f64> {
    let (slow, fast): (Vec<f64>, Vec<f64>) = rates.iter().partition(|rate| pays(**rate));
    let agreeing = [slow, fast].into_iter().find(|rates| rates.len() >= 2)?;
    agreeing.into_iter().reduce(f64::max)
}

/// A line of the command's output, without its end.
pub(super) async fn line(running: &mut Running) -> std::io::Result<Vec<u8>> {
    let mut line = Vec::new();
    loop {
        // Nothing after the line may be read: it is the archive.
        match running.stdout.read_u8().await? {
            b'\n' => return Ok(line),
            byte if line.len() < LINE_LIMIT_BYTES => line.push(byte),
            _ => {}
        }
    }
}

/// Why a command has ended unexpectedly.
pub(super) async fn close_reason(running: Running) -> ShellError {
    let Running { stdin, stdout, exit } = running;
    drop((stdin, stdout));
    match exit.await {
        Err(error) => error,
        Ok(exit) => {
            let words = String::from_utf8_lossy(&exit.stderr);
            let last = words.lines().rev().find(|line| !line.trim().is_empty());
            let status = exit.status.map_or("by a signal".to_owned(), |it| format!("with {it}"));
            ShellError::Refused(match last {
                Some(line) => line.trim().escape_debug().to_string(),
                None => format!("its shell ended {status}"),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::settled;

    #[test]
    fn two_measurements_that_agree_decide() {
        let pays = |rate| rate < 80e6;
        for (rates, rate) in [
            (&[][..], None),
            (&[20e6], None),
            (&[20e6, 19e6], Some(20e6)),
            (&[340e6, 20e6], None),
            (&[340e6, 20e6, 18e6], Some(20e6)),
            (&[20e6, 120e6], None),
            (&[20e6, 120e6, 110e6], Some(120e6)),
        ] {
            assert_eq!(settled(rates, pays), rate, "{rates:?}");
        }
    }
}
