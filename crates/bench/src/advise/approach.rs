//! Up to the login: what ssh would do, what it can, what the server offers, how far it is.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::process::Command;
use std::time::{Duration, Instant};

use super::kexinit::{self, Heard, Offer};
use crate::executor::Executor;
use crate::failure::Failure;
use crate::server::Server;

/// `ssh -G` and `ssh -Q` only read files.
const ASK_LIMIT: Duration = Duration::from_secs(30);

/// Longest time for a TCP connection, and for each piece of what the server says first.
const PATIENCE: Duration = Duration::from_secs(10);

/// Longest offer, with the greeting.
const OFFER_MOST_BYTES: usize = 128 << 10;

/// Connections that are timed, and made only for that. A server that counts connections without a
/// login against their address (`PerSourcePenalties`) does not mind so few.
const CONNECTIONS: usize = 3;

/// What ssh, as the user has set it up, would do (`ssh -G`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    /// Address or name, and port.
    pub(super) address: String,
    /// Of its sshd.
    pub(super) port: u16,
    /// Another program leads to the host, so that there is no TCP connection to it from here.
    pub(super) proxied: bool,
    /// In order of preference.
    pub(super) ciphers: Vec<String>,
    /// In order of preference.
    pub(super) macs: Vec<String>,
    /// As ssh shows it: `lowdelay throughput`.
    pub(super) ipqos: String,
    /// Compression is on.
    pub(super) compression: bool,
    /// Sessions share one connection.
    pub(super) shared: bool,
}

impl Settings {
    /// What the user's configuration makes of the server.
    pub(super) fn ask(server: &Server, executor: &Executor) -> Result<Settings, Failure> {
        let mut command = Command::new("ssh");
        command.arg("-G").args(without_ours(server.ssh_options(None))).arg(server.destination());
        Settings::said(command, executor)
    }

    /// What an `ssh -G` says.
    pub(super) fn said(command: Command, executor: &Executor) -> Result<Settings, Failure> {
        let said = executor.succeed(command, ASK_LIMIT)?.output.stdout;
        Ok(Settings::parse(&String::from_utf8_lossy(&said)))
    }

    /// Lines `keyword value`, keywords in small letters (ssh(1), `-G`).
    fn parse(text: &str) -> Settings {
        let mut settings = Settings::default();
        for (keyword, value) in text.lines().filter_map(|line| line.split_once(' ')) {
            match keyword {
                "hostname" => value.clone_into(&mut settings.address),
                "port" => settings.port = value.parse().unwrap_or(0),
                "proxycommand" | "proxyjump" => settings.proxied |= value != "none",
                "ciphers" => settings.ciphers = list(value),
                "macs" => settings.macs = list(value),
                "ipqos" => settings.ipqos = value.escape_debug().to_string(),
                "compression" => settings.compression = value == "yes",
                "controlpath" => settings.shared = value != "none",
                _ => (),
            }
        }
        settings
    }
}

/// The options by which a run keeps its connections apart hide what the user has.
fn without_ours(options: Vec<OsString>) -> Vec<OsString> {
    let is_ours = |word: &OsString| word.to_str().is_some_and(|word| word.starts_with("Control"));
    let mut kept: Vec<OsString> = Vec::new();
    for word in options {
        if is_ours(&word) {
            kept.pop();
        } else {
            kept.push(word);
        }
    }
    kept
}

fn list(value: &str) -> Vec<String> {
    value.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// What this ssh knows of a kind (`cipher`, `mac`), wanted or not.
pub(super) fn known(kind: &str, executor: &Executor) -> Result<Vec<String>, Failure> {
    let mut command = Command::new("ssh");
    command.args(["-Q", kind]);
    let said = executor.succeed(command, ASK_LIMIT)?.output.stdout;
    Ok(String::from_utf8_lossy(&said).lines().map(str::to_owned).collect())
}

/// What plain TCP has told.
#[derive(Clone, Debug)]
pub(super) struct Met {
    /// Where the server is.
    pub(super) address: IpAddr,
    /// The shortest time for a connection: one round trip, with nothing of ssh in it.
    pub(super) rtt_us: f64,
    /// What it offers.
    pub(super) offer: Offer,
}

/// Connects without logging in. An error is a reason to ask ssh instead.
pub(super) fn meet(settings: &Settings) -> io::Result<Met> {
    if settings.proxied {
        return Err(io::Error::other("another program leads to it"));
    }
    let addresses = (settings.address.as_str(), settings.port).to_socket_addrs()?;
    let mut refused = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        match meet_at(address) {
            Ok(met) => return Ok(met),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

fn meet_at(address: SocketAddr) -> io::Result<Met> {
    let mut rtt = Duration::MAX;
    let mut connect = || {
        let start = Instant::now();
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        rtt = rtt.min(start.elapsed());
        io::Result::Ok(stream)
    };
    let offer = listen(connect()?)?;
    for _ in 1..CONNECTIONS {
        connect()?;
    }
    Ok(Met { address: address.ip(), rtt_us: rtt.as_secs_f64() * 1e6, offer })
}

/// Says who we are, and hears the offer, which OpenSSH makes only then.
fn listen(mut stream: TcpStream) -> io::Result<Offer> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(b"SSH-2.0-sshoal\r\n")?;
    let start = Instant::now();
    let mut heard = Vec::new();
    let mut buffer = [0; 4096];
    while heard.len() < OFFER_MOST_BYTES && start.elapsed() < PATIENCE {
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => heard.extend_from_slice(&buffer[..read]),
        }
        match kexinit::hear(&heard) {
            Heard::More => (),
            Heard::Offer(offer) => return Ok(offer),
            Heard::Nonsense(why) => return Err(io::Error::other(why)),
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// What a login tells that was watched with `-vv`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Login {
    /// The cipher from the server to the client that was taken.
    pub(super) cipher: String,
    /// `<implicit>` where the cipher needs none.
    pub(super) mac: String,
    /// The server's offer, as ssh has understood it.
    pub(super) offer: Offer,
}

impl Login {
    /// Logs in once, with the ciphers that ssh takes by itself.
    pub(super) fn watch(server: &Server, executor: &Executor) -> Result<Login, Failure> {
        let mut ssh = server.ssh(None);
        // With -v alone ssh does not tell the offer. The log's level may be set to less.
        ssh.args(["-vv", "true"]);
        let said = executor.succeed(ssh, super::flow::LIMIT)?.output.stderr;
        let login = Login::parse(&String::from_utf8_lossy(&said));
        if login.cipher.is_empty() {
            return Err(Failure::failed("ssh -vv does not tell which cipher it has taken"));
        }
        Ok(login)
    }

    fn parse(words: &str) -> Login {
        let mut login = Login::default();
        let mut is_servers = false;
        for line in words.lines() {
            let Some((_, line)) = line.split_once(": ") else { continue };
            let line = line.trim_end();
            if let Some(taken) = line.strip_prefix("kex: server->client cipher: ") {
                let mut words = taken.split_ascii_whitespace();
                login.cipher = words.next().unwrap_or_default().to_owned();
                login.mac = words.nth(1).unwrap_or_default().to_owned();
            } else if let Some(version) = line.strip_prefix("Remote protocol version 2.0, ") {
                let version = version.trim_start_matches("remote software version ");
                login.offer.version = version.escape_debug().to_string();
            } else if line.ends_with("KEXINIT proposal") {
                is_servers = line.starts_with("peer server");
            } else if is_servers && let Some((what, names)) = line.split_once(": ") {
                match what {
                    "ciphers stoc" => login.offer.ciphers = list(names),
                    "MACs stoc" => login.offer.macs = list(names),
                    "compression stoc" => login.offer.compression = list(names),
                    _ => (),
                }
            }
        }
        login
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_those_of_the_user() {
        let text = "hostname 10.0.0.1\nport 2222\nciphers a,b\nmacs m\nipqos lowdelay throughput\n\
            compression yes\ncontrolmaster auto\ncontrolpath /c/%h\nproxyjump gate\n";
        let settings = Settings::parse(text);
        assert_eq!((settings.address.as_str(), settings.port), ("10.0.0.1", 2222));
        assert_eq!((settings.ciphers, settings.macs), (list("a,b"), list("m")));
        assert_eq!(settings.ipqos, "lowdelay throughput");
        assert!(settings.compression && settings.shared && settings.proxied);
        let plain = Settings::parse("controlmaster false\nproxycommand none\ncontrolpath none\n");
        assert_eq!(plain, Settings::default());
    }

    #[test]
    fn only_our_own_options_are_left_out() {
        let options = ["-F", "Control", "-o", "BatchMode=yes", "-o", "ControlPath=none"];
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let kept = without_ours(words(&options[2..]));
        assert_eq!(kept, words(&["-o", "BatchMode=yes"]));
    }

    #[test]
    fn a_login_tells_the_offer_of_the_server_and_not_of_the_client() {
        let words = "debug1: Remote protocol version 2.0, remote software version Op\u{7}en\r\n\
            debug2: local client KEXINIT proposal\r\ndebug2: ciphers stoc: mine\r\n\
            debug2: peer server KEXINIT proposal\r\ndebug2: KEX algorithms: x\r\n\
            debug2: ciphers ctos: up\r\ndebug2: ciphers stoc: a,b\r\ndebug2: MACs stoc: m\r\n\
            debug2: compression stoc: none,zlib@openssh.com\r\n\
            debug1: kex: server->client cipher: b MAC: <implicit> compression: none\r\n";
        let login = Login::parse(words);
        assert_eq!((login.cipher.as_str(), login.mac.as_str()), ("b", "<implicit>"));
        let expected = Offer {
            version: "Op\\u{7}en".into(),
            ciphers: list("a,b"),
            macs: list("m"),
            compression: list("none,zlib@openssh.com"),
        };
        assert_eq!(login.offer, expected);
        assert_eq!(Login::parse("Permission denied (publickey)."), Login::default());
    }
}
