//! A server: what ssh would do, name and network, login, SFTP, the directory, clock and speed.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::io::AsyncReadExt;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use base::{Access, FileKind, OpenGuard, Remote, RemotePath};
use host::{Direct, DirectUse, Helper, Host};
use sftp::{Client, Extension, FileAttrs, OpenFlags};
use ssh::{Cause, Dialer};

use super::authentication;
use super::login::Line;
use super::{Check, Checks};
use crate::connector::{LoginError, SshConnector, log_in};
use crate::helper::commands::{self, State};
use crate::mount::request::MountRequest;
use crate::quantity::{bytes, count, latency};
use crate::sources::Origin;
use crate::stack;
use crate::transfer::operand::in_home;
use crate::transfer::shell;

/// How long one address may take to answer.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How long a login may take, with the user's answers to ssh's questions.
const LOGIN_LIMIT: Duration = Duration::from_secs(60);

/// How long any other check may take.
pub const CHECK_LIMIT: Duration = Duration::from_secs(10);

/// How long the throughput is measured.
const MEASUREMENT: Duration = Duration::from_secs(2);

/// Bytes in flight of that: two windows of OpenSSH's channel, so that the window is always full.
const IN_FLIGHT_BYTES: u64 = 4 << 20;

/// Further logins at once: as many as a mount opens for a large file.
const FURTHER: usize = 3;

/// A difference of the clocks that confuses programs which compare times of files, such as make.
const CLOCK_LIMIT: i64 = 2;

/// What sshoal uses if the server offers it, with what is missing otherwise.
const EXTENSIONS: [(Extension, &str); 5] = [
    (Extension::Limits, "reads and writes have the size that every server takes"),
    (Extension::PosixRename, "a rename does not replace its target (-o workaround=rename)"),
    (Extension::Fsync, "fsync fails (-o workaround=fsync)"),
    (Extension::Hardlink, "no hard links"),
    (Extension::Statvfs, "df is not known, and a full disk is EIO"),
];

/// Checks all hosts of the request.
pub async fn check(checks: &mut Checks, request: &MountRequest) {
    for spec in &request.sources {
        let Origin::Hosts { gateways, directory } = &spec.origin else { continue };
        let configs = match stack::ssh_configs(request, spec) {
            Ok(configs) => configs,
            Err(problem) => return checks.add(Check::wrong("options", problem.to_string())),
        };
        for (gateway, config) in gateways.iter().zip(configs) {
            checks.add(Check::fine("host", gateway.to_string()));
            check_host(checks, config, directory, Some(&request.host)).await;
        }
    }
}

/// Checks one host. Ends at the first step without which no later one can succeed. Without the
/// options of a mount, helper and direct connections are left out.
pub async fn check_host(
    checks: &mut Checks,
    config: ssh::Config,
    directory: &[u8],
    options: Option<&host::Config>,
) {
    let is_ssh = config.transport == ssh::Transport::Ssh;
    // The messages are those of the check of the login.
    let dialer = match Dialer::new(config.clone(), Arc::new(|_: &str| {})) {
        Ok(dialer) => dialer,
        Err(error) => return checks.add(failed("options", &error.to_string(), error.hint())),
    };
    if is_ssh && !network(checks, &dialer).await {
        return;
    }
    let client = match timeout(LOGIN_LIMIT, log_in(&dialer, true)).await {
        Ok(Ok(client)) => client,
        Ok(Err(why)) => return login_failed(checks, &dialer, &why).await,
        Err(_) => return checks.add(silent("login", LOGIN_LIMIT)),
    };
    if is_ssh {
        authentication::check_accepted(checks, &dialer).await;
    }
    checks.add(Check::fine("login", "SFTP answers"));
    checks.add(protocol(&client));
    checks.add(in_time("directory", readable(&client, directory, &dialer)).await);
    let round_trip = client.round_trip().map(|it| it.as_micros() as u64);
    checks.add(match round_trip {
        Some(us) => Check::fine("round trip", latency(us)),
        None => Check::unknown("round trip", "no request was answered"),
    });
    checks.add(in_time("throughput", throughput(&client)).await);
    if is_ssh {
        if let Some(options) = options {
            checks.add(in_time("helper", helper(config.clone(), &options.helper)).await);
            if options.direct != Direct::No {
                checks.add(in_time("direct", direct(config.clone(), options)).await);
            }
        }
        checks.add(in_time("more sessions", further_logins(&dialer)).await);
        checks.add(in_time("clock", clock(config)).await);
    }
}

async fn login_failed(checks: &mut Checks, dialer: &Dialer, why: &LoginError) {
    let is_explained = match why.refusal() {
        Some(failure) => authentication::check_refused(checks, dialer, failure).await,
        None => false,
    };
    let check = why.check(dialer).await;
    checks.add(match is_explained {
        true => Check { remedy: None, ..check },
        false => check,
    });
}

/// The result of a check, unless it takes too long.
pub async fn in_time(what: &str, check: impl Future<Output = Check>) -> Check {
    timeout(CHECK_LIMIT, check).await.unwrap_or_else(|_| silent(what, CHECK_LIMIT))
}

pub fn silent(what: &str, limit: Duration) -> Check {
    Check::wrong(what, format!("no answer within {} s", limit.as_secs()))
}

pub fn failed(what: &str, why: &str, hint: Option<&str>) -> Check {
    let check = Check::wrong(what, why);
    match hint {
        Some(hint) => check.remedy(hint),
        None => check,
    }
}

/// What ssh would do, and whether the address answers. Returns whether a login makes sense.
async fn network(checks: &mut Checks, dialer: &Dialer) -> bool {
    let mut settings = Vec::new();
    for keyword in ["hostname", "port", "user", "proxyjump", "proxycommand", "controlpath"] {
        if let Some(value) = dialer.setting(keyword).await.filter(|value| value != "none") {
            settings.push((keyword, value));
        }
    }
    if settings.is_empty() {
        checks.add(Check::unknown("ssh -G", "ssh does not print its settings"));
        return true;
    }
    let shown: Vec<String> = settings.iter().map(|(key, value)| format!("{key} {value}")).collect();
    checks.add(Check::fine("ssh -G", shown.join(", ")));
    let is_name = |keyword: &str| keyword != "port";
    let names = settings.iter().filter(|(keyword, _)| is_name(keyword));
    checks.names.extend(names.map(|(_, value)| value.clone()));
    let value = |wanted: &str| {
        let found = settings.iter().find(|(keyword, _)| *keyword == wanted);
        found.map(|(_, value)| value.as_str())
    };
    if value("proxyjump").or(value("proxycommand")).is_some() {
        checks.add(Check::unknown("network", "ssh connects through another host or program"));
        return true;
    }
    let (Some(host), Some(port)) =
        (value("hostname"), value("port").and_then(|it| it.parse().ok()))
    else {
        return true;
    };
    reach(checks, host, port).await
}

async fn reach(checks: &mut Checks, host: &str, port: u16) -> bool {
    let addresses = match addresses(host, lookup_host((host, port))).await {
        Ok(addresses) => addresses,
        Err(check) => {
            checks.add(check);
            return false;
        }
    };
    let mut errors = Vec::new();
    for address in &addresses {
        match banner(*address).await {
            Ok(banner) => {
                checks.add(Check::fine("network", format!("{address}: {banner}")));
                return true;
            }
            Err(error) => errors.push(format!("{address}: {error}")),
        }
    }
    checks.add(failed("network", &errors.join("\n"), Cause::Refused.hint()));
    false
}

/// The addresses of `host`, which `lookup` finds.
async fn addresses(
    host: &str,
    lookup: impl Future<Output = io::Result<impl Iterator<Item = SocketAddr>>>,
) -> Result<Vec<SocketAddr>, Check> {
    match timeout(CHECK_LIMIT, lookup).await {
        Ok(Ok(addresses)) => Ok(addresses.collect()),
        Ok(Err(error)) => {
            Err(failed("name", &format!("{host}: {error}"), Cause::UnknownHost.hint()))
        }
        // The resolver tries unreachable name servers for longer.
        Err(_) => Err(silent("name", CHECK_LIMIT)),
    }
}

/// The first line of the server at `address`.
async fn banner(address: SocketAddr) -> io::Result<String> {
    let late = || io::Error::from(io::ErrorKind::TimedOut);
    let mut stream =
        timeout(CONNECT_LIMIT, TcpStream::connect(address)).await.map_err(|_| late())??;
    let mut buffer = [0; 255];
    let read = timeout(CONNECT_LIMIT, stream.read(&mut buffer)).await.map_err(|_| late())??;
    let text = String::from_utf8_lossy(&buffer[..read]);
    match text.lines().find(|line| line.starts_with("SSH-")) {
        Some(line) => Ok(line.trim().to_owned()),
        None => Err(io::Error::other("no SSH server answers there")),
    }
}

fn protocol(client: &Client) -> Check {
    let server = client.server();
    let handles = server.max_handles.map_or_else(String::new, |max| format!(", {max} handles"));
    let limits = format!(
        "reads of {}, writes of {}{handles}",
        bytes(server.max_read.into()),
        bytes(server.max_write.into())
    );
    let missing: Vec<String> = EXTENSIONS
        .iter()
        .filter(|(extension, _)| !server.extensions.has(*extension))
        .map(|(extension, effect)| format!("no {}: {effect}", extension.name()))
        .collect();
    match missing.is_empty() {
        true => Check::fine("SFTP", limits),
        false => Check::note("SFTP", format!("{limits}\n{}", missing.join("\n"))),
    }
}

async fn readable(client: &Client, directory: &[u8], dialer: &Dialer) -> Check {
    let what = "directory";
    let path = &*in_home(directory);
    let path = if path.is_empty() { b"." } else { path };
    let shown = path.escape_ascii().to_string();
    let opened = async {
        let real = client.realpath(path).await?;
        let handle = client.opendir(path).await?;
        client.readdir(&handle).await?;
        client.close(&handle).await?;
        Ok::<_, sftp::Error>(real)
    };
    match opened.await {
        Ok(real) => {
            let real = real.escape_ascii().to_string();
            Check::fine(what, &real).naming(real)
        }
        // Some servers say of a file that it does not exist.
        Err(_) if is_file(client, path).await => {
            Check::wrong(what, format!("{shown}: not a directory on the server"))
                .remedy("a source is a directory: name the one that contains the file")
        }
        Err(error) => {
            let check = Check::wrong(what, format!("{shown}: {error}"));
            let rule = "a relative directory is below the home directory of the login";
            if dialer.config().transport != ssh::Transport::Ssh {
                return check.remedy(rule);
            }
            let line = Line::of_ssh(dialer, "");
            line.name(check.remedy(format!("{rule}, which this lists:\n{} ls -la", line.text)))
        }
    }
}

/// Whether something other than a directory has this name.
async fn is_file(client: &Client, path: &[u8]) -> bool {
    let mode = client.stat(path).await.ok().and_then(|attrs| attrs.permissions);
    mode.and_then(FileKind::from_mode).is_some_and(|kind| kind != FileKind::Directory)
}

/// Reads from the server's `/dev/zero` for a while.
async fn throughput(client: &Client) -> Check {
    let what = "throughput";
    let open = client.open(b"/dev/zero", OpenFlags::READ, FileAttrs::default());
    let Ok(handle) = open.await else {
        return Check::unknown(what, "the server has no /dev/zero for this login");
    };
    let piece = client.server().max_read.min(256 << 10);
    let (began, mut carried, mut offset) = (Instant::now(), 0, 0);
    let mut calls = VecDeque::new();
    while began.elapsed() < MEASUREMENT {
        while (calls.len() as u64) < IN_FLIGHT_BYTES / u64::from(piece) {
            calls.push_back(client.read(&handle, offset, piece));
            offset += u64::from(piece);
        }
        let answer = match calls.pop_front() {
            Some(call) => call.await,
            None => break,
        };
        match answer {
            Ok(data) => carried += data.map_or(0, |data| data.len() as u64),
            Err(error) => return Check::wrong(what, error.to_string()),
        }
    }
    let rate = carried as f64 / began.elapsed().as_secs_f64();
    for call in calls {
        let _ = call.await;
    }
    let _ = client.close(&handle).await;
    Check::fine(what, format!("{:.0} MB/s from the server, over one session", rate / 1e6))
}

/// Whether the helper serves, if it is there. ssh may not ask the user again.
async fn helper(config: ssh::Config, option: &Helper) -> Check {
    let what = "helper";
    let destination = config.destination.to_string();
    let connector = match SshConnector::new(config) {
        Ok(connector) => Arc::new(connector.again()),
        Err(problem) => return Check::unknown(what, problem.to_string()),
    };
    let serves = |place: &str, server: &host::Server| {
        Check::fine(what, format!("{place}, version {}", commands::version(server)))
    };
    match commands::state(&connector, option).await {
        Ok(State::Subsystem(server)) => serves("the server's SFTP subsystem", &server),
        Ok(State::Serves { path, server }) => serves(&path, &server).naming(path),
        Ok(State::Absent) => Check::fine(what, "none, and not needed"),
        Ok(State::Unfit { path, why }) if matches!(option, Helper::At(_)) => {
            Check::wrong(what, format!("{path} does not serve: {why}"))
                .remedy("mounts fail with this helper=; correct it")
                .naming(path)
        }
        Ok(State::Unfit { path, why }) => {
            Check::note(what, format!("{path} does not serve: {why}"))
                .remedy(format!(
                    "mounts use plain SFTP; -o helper=no saves a login, and this replaces it:\n\
                     sshoal helper install {destination}"
                ))
                .naming(path)
        }
        Err(_) => Check::unknown(what, "it needs a further login, which failed"),
    }
}

/// Whether data can go past ssh, as the options ask for.
async fn direct(config: ssh::Config, options: &host::Config) -> Check {
    let what = "direct";
    let destination = config.destination.to_string();
    let connector = match SshConnector::new(config) {
        Ok(connector) => Arc::new(connector.again()),
        Err(problem) => return Check::unknown(what, problem.to_string()),
    };
    // Here it is required, so that the reason is an error.
    let is_required = options.direct == Direct::Require;
    let options = host::Config {
        base: b"/".to_vec(),
        follow_symlinks: true,
        direct: Direct::Require,
        max_conns: 1,
        ..options.clone()
    };
    let why = match Host::connect(connector, options).await {
        Ok(host) => match host.status().direct {
            Some(DirectUse::At(address)) => {
                let rate = match direct_rate(&host).await {
                    Some(rate) => format!(", {:.0} MB/s from the server", rate / 1e6),
                    None => String::new(),
                };
                return Check::fine(what, format!("TLS 1.3 to {address}{rate}"));
            }
            Some(DirectUse::Unused(why)) => why,
            None => "none was made".to_owned(),
        },
        Err(error) => error.to_string(),
    };
    let check = match is_required {
        true => Check::wrong(what, why),
        false => Check::note(what, why),
    };
    check.remedy(format!(
        "the helper is put there by `sshoal helper install {destination}`; a firewall has to let \
         the ports of direct_ports pass; direct_address names another way"
    ))
}

/// Reads a file again and again over the one session of `host`, and returns bytes per second: the
/// helper's program, because the helper opens no devices. `None` if it cannot be read, as with
/// `helper --root`.
async fn direct_rate(host: &Host) -> Option<f64> {
    let program = RemotePath::parse(b"proc/self/exe").ok()?;
    let opened = host.open(&program, base::OpenFlags::existing(Access::Read)).await.ok()?;
    let file = OpenGuard::new(host, opened.fh);
    let pieces = (host.fstat(file.fh()).await.ok()?.size / IN_FLIGHT_BYTES).max(1);
    let began = Instant::now();
    let reader = || async {
        let mut carried = 0;
        for piece in (0..pieces).cycle() {
            if began.elapsed() >= MEASUREMENT {
                break;
            }
            let read = host.read(file.fh(), piece * IN_FLIGHT_BYTES, IN_FLIGHT_BYTES as u32);
            carried += read.await.ok().filter(|data| !data.is_empty())?.len();
        }
        Some(carried)
    };
    // Enough in flight for a long link, since nothing but TCP limits it.
    let carried = tokio::join!(reader(), reader(), reader(), reader());
    let carried = carried.0? + carried.1? + carried.2? + carried.3?;
    Some(carried as f64 / began.elapsed().as_secs_f64())
}

/// Opens several sessions at once, as a mount does for a large file.
async fn further_logins(dialer: &Dialer) -> Check {
    let what = "more sessions";
    let one = || log_in(dialer, false);
    let (one, two, three) = tokio::join!(one(), one(), one());
    let answers = [one, two, three];
    let refused = answers.iter().filter_map(|answer| answer.as_ref().err());
    let Some(why) = refused.clone().next() else {
        return Check::fine(what, format!("{FURTHER} at once"));
    };
    let refused = count(refused.count() as u64, "login");
    Check::note(what, format!("{refused} of {FURTHER} failed: {why}")).remedy(
        "mounts work with fewer sessions, large files are slower on long links; a login that \
         asks for a password has one session; on the server, MaxStartups and MaxSessions of \
         sshd_config(5) limit logins",
    )
}

/// Compares the clocks by `date` at the server.
async fn clock(config: ssh::Config) -> Check {
    let what = "clock";
    let asked = async {
        let shell = shell::of(vec![config], false)?;
        let mut running = shell.start(b"date +%s").await.ok()?;
        drop(running.stdin);
        let mut text = String::new();
        running.stdout.read_to_string(&mut text).await.ok()?;
        let remote: i64 = text.trim().parse().ok()?;
        // `date` printed it a round trip ago.
        let here = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs() as i64;
        Some(remote - here)
    };
    match asked.await {
        None => Check::unknown(what, "the server runs no commands for this login"),
        Some(difference) if difference.abs() <= CLOCK_LIMIT => Check::fine(what, "same time"),
        Some(difference) => {
            let direction = if difference > 0 { "ahead" } else { "behind" };
            let found = format!("the server is {} s {direction}", difference.abs());
            Check::note(what, found).remedy(
                "make and rsync compare times of files; as root on both: timedatectl set-ntp true",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_name_server_that_does_not_answer_is_waited_for_as_long_as_any_check() {
        let lookup = std::future::pending::<io::Result<std::iter::Empty<SocketAddr>>>();
        let check = addresses("host", lookup).await.unwrap_err();
        assert_eq!((&*check.what, &*check.found), ("name", "no answer within 10 s"));
    }
}
