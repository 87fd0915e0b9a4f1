//! How to connect to the server, which SFTP requests to send, and what to do with several hosts.

use host::{Direct, Helper};
use recovery::RetryPolicy;
use replicas::Mode;
use ssh::{Destination, Transport, TypedPassword};
use union::{ActionPolicy, CreatePolicy};

use super::{MountOption, choice, custom, flag, number, seconds, text};
use crate::helper::place;
use crate::mount::draft::Draft;

/// More sessions gain nothing, and a server delays or refuses that many logins.
const MAX_CONNS: u32 = 64;

/// The limit that `bytes` stands for: 0 is none.
fn limit(bytes: u32) -> Option<u32> {
    (bytes > 0).then_some(bytes)
}

/// The parts of `HOST`, `HOST:PORT`, `[ADDRESS]` or `[ADDRESS]:PORT`.
fn host_and_port(text: &str) -> Option<(String, Option<u16>)> {
    let (at, directory) = Destination::parse(format!("ssh://{text}").as_bytes()).ok()?;
    let is_plain = at.user().is_none() && directory.is_empty();
    is_plain.then(|| (at.host().to_owned(), at.port()))
}

pub(super) const OPTIONS: &[MountOption] = &[
    flag("reconnect", |draft| draft.request.host.reconnect = true)
        .help("reconnect when the connection is lost (default)"),
    flag("noreconnect", |draft| draft.request.host.reconnect = false)
        .help("do not reconnect; all access fails once the connection is lost")
        .also(&["no_reconnect"])
        .prominent(),
    seconds("request_timeout", |draft, time| draft.request.host.stall_limit = time)
        .help("disconnect a server that does not answer a request for this long (default 60)")
        .also(&["stall"])
        .prominent(),
    number("max_conns", 1, MAX_CONNS, |draft, number| draft.max_conns = Some(number as usize))
        .help("open SSH connections while throughput improves, up to N (default 8, at most 64)")
        .prominent()
        .changeable(|request| Some(request.host.max_conns.to_string())),
    flag("delay_connect", |draft| draft.request.host.delay_connect = true)
        .help("connect at the first access, not before mounting"),
    flag("no_check_root", |draft| draft.request.host.check_root = false)
        .help("do not check before mounting that the remote directory exists"),
    text("ssh_config", "FILE", Draft::set_ssh_config).help("configuration file of ssh (-F)"),
    text("sftp_server", "SERVER", |draft, value| draft.request.ssh.sftp_server = Some(value))
        .help("SFTP subsystem, or a command if it contains a '/' ('sudo /usr/lib/sftp-server')")
        .prominent(),
    custom("helper", "auto|no|install|PATH", |draft, value| {
        draft.helper = Some(match value {
            "auto" => Helper::Auto,
            "no" => Helper::No,
            "install" => Helper::Install,
            path => Helper::At(place::from_option(path).ok_or_else(|| {
                "must be auto, no, install, or the path of a program, which contains a '/'"
                    .to_owned()
            })?),
        });
        Ok(())
    })
    .help(
        "sshoal's own SFTP server: use it if found (auto, default), never, install it, or use PATH",
    ),
    choice(
        "direct",
        &[
            ("no", |draft| draft.request.host.direct = Direct::No),
            ("yes", |draft| draft.request.host.direct = Direct::Yes),
            ("require", |draft| draft.request.host.direct = Direct::Require),
        ],
    )
    .help("send data over TLS to a port of the helper, past ssh; require: or fail (default no)"),
    custom("direct_ports", "LOW-HIGH", |draft, text| {
        let (low, high) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
        let ports = port(low).zip(port(high)).filter(|(low, high)| low <= high);
        let why = || "must be a port or a range of ports, as in 7000-7009".to_owned();
        draft.request.host.direct_ports = ports.ok_or_else(why)?;
        Ok(())
    })
    .help("the ports on which the helper may listen for direct=yes (default: any free one)"),
    custom("direct_address", "HOST[:PORT]", |draft, text| {
        let why = || "must be a name or an address, with [] around one of IPv6".to_owned();
        draft.request.host.direct_address = Some(host_and_port(text).ok_or_else(why)?);
        Ok(())
    })
    .help("connect here for direct=yes, not to the address that the helper reports"),
    choice(
        "compress",
        &[
            ("no", |draft| draft.request.host.compresses = false),
            ("yes", |draft| draft.request.host.compresses = true),
        ],
    )
    .help("compress packets to and from the helper; for links slower than 10 MB/s (default no)"),
    text("ssh_command", "COMMAND", Draft::set_ssh_command)
        .help("run this command instead of ssh; spaces separate arguments, '\\ ' is a space"),
    custom("ssh_protocol", "2", |_, version| match version {
        "2" => Ok(()),
        "1" => Err("no ssh supports version 1 any more; omit the option".to_owned()),
        _ => Err("must be 2".to_owned()),
    })
    .help("version of the SSH protocol; OpenSSH supports only 2 since 2017"),
    flag("password_stdin", |draft| draft.request.ssh.password_stdin = true)
        .help("read the password from standard input (as pam_mount needs)"),
    choice(
        "keep_password",
        &[
            ("yes", |draft| draft.request.ssh.typed_password = TypedPassword::Kept),
            ("no", |draft| draft.request.ssh.typed_password = TypedPassword::Noted),
        ],
    )
    .help("keep a password typed while mounting, in memory, for further logins (default yes)"),
    number("directport", 1, u16::MAX as u32, |draft, port| {
        draft.set_transport(Transport::DirectPort(port as u16));
    })
    .help("connect to this TCP port of the host, without ssh or encryption"),
    custom("vsock", "CID:PORT", |draft, text| {
        let address = text.split_once(':');
        let parsed = address.and_then(|(cid, port)| Some((cid.parse().ok()?, port.parse().ok()?)));
        let (cid, port) =
            parsed.ok_or_else(|| "needs two numbers, as in vsock=3:5000".to_owned())?;
        draft.set_transport(Transport::Vsock { cid, port });
        Ok(())
    })
    .help("connect to this vsock address of a virtual machine or its host, without ssh"),
    flag("passive", |draft| draft.set_transport(Transport::Passive))
        .help("use standard input and output as the SFTP connection; implies -f")
        .also(&["slave"]),
    flag("disable_hardlink", |draft| draft.request.host.disable_hardlink = true)
        .help("link(2) fails with EPERM"),
    number("max_read", 0, u32::MAX, |draft, bytes| draft.request.host.max_read = limit(bytes))
        .help("maximum bytes of one SFTP READ; 0: the server's limit (default)"),
    number("max_write", 0, u32::MAX, |draft, bytes| draft.request.host.max_write = limit(bytes))
        .help("maximum bytes of one SFTP WRITE; 0: the server's limit (default)"),
    flag("sync_readdir", |draft| draft.request.host.sync_readdir = true)
        .help("send one READDIR request at a time"),
    custom("workaround", "LIST", Draft::set_workarounds).help(
        "colon-separated list of [no]rename, [no]renamexdev, [no]fsync, none, all (default none)",
    ),
];

/// Unions and pools, and what calls do while a host is unreachable.
pub(super) const MANY_HOSTS: &[MountOption] = &[
    flag("hard", |draft| draft.request.retry = RetryPolicy::Hard)
        .help("calls wait for an unreachable host, and can be interrupted (default)")
        .changeable(|request| (request.retry == RetryPolicy::Hard).then(String::new)),
    seconds("soft", |draft, time| draft.request.retry = RetryPolicy::Soft(time))
        .help("calls wait this long for an unreachable host, then fail with ETIMEDOUT")
        .prominent()
        .changeable(|request| match request.retry {
            RetryPolicy::Soft(time) => Some(time.as_secs_f64().to_string()),
            _ => None,
        }),
    choice(
        "stale",
        &[
            ("ok", |draft| draft.request.vfs.serve_stale = true),
            ("no", |draft| draft.request.vfs.serve_stale = false),
        ],
    )
    .help("ok: serve cached data of any age while a host is unreachable (default no)")
    .changeable(|request| Some(if request.vfs.serve_stale { "ok" } else { "no" }.to_owned())),
    choice(
        "create",
        &[
            ("epff", |draft| draft.create = Some(CreatePolicy::EpFf)),
            ("ff", |draft| draft.create = Some(CreatePolicy::Ff)),
            ("epmfs", |draft| draft.create = Some(CreatePolicy::EpMfs)),
            ("mfs", |draft| draft.create = Some(CreatePolicy::Mfs)),
            ("rand", |draft| draft.create = Some(CreatePolicy::Rand)),
        ],
    )
    .help("branch on which new files are created, as in mergerfs (default epff)")
    .prominent(),
    choice(
        "action",
        &[
            ("first", |draft| draft.action = Some(ActionPolicy::First)),
            ("all", |draft| draft.action = Some(ActionPolicy::All)),
        ],
    )
    .help("apply changes to the first branch that has the file, or to all (default first)"),
    choice(
        "pool",
        &[
            ("balance", |draft| draft.pool = Some(Mode::Balance)),
            ("hash", |draft| draft.pool = Some(Mode::Hash)),
            ("failover", |draft| draft.pool = Some(Mode::Failover)),
        ],
    )
    .help("how the gateways of a pool (gw1,gw2:dir) share requests (default balance)")
    .prominent(),
];
