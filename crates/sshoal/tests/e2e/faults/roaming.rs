//! A client that gets another address while its connections last, as a laptop in another network:
//! what is sent from the old address goes nowhere, and nothing reports that.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use sandbox::network::Network;
use sandbox::sshd::{Options, SftpServer};

use crate::behaviours::pattern;
use crate::mount::Mount;
use crate::process::succeed;
use crate::world::{World, program_path};

const SERVER: &str = "10.77.0.1";

/// A new connection has to take the place of the old one within this time: less than the 45 s after
/// which ssh notices it, and the 60 s of `request_timeout`.
const LIMIT: Duration = Duration::from_secs(30);

/// More than is read ahead.
const CONTENT_BYTES: usize = 48 << 20;

/// A server and a client with a link between their networks.
struct Site {
    world: World,
    client: Network,
    _server: Network,
}

fn within(network: &Network, words: &str) {
    let prefix = network.words();
    let mut command = Command::new(&prefix[0]);
    succeed(command.args(&prefix[1..]).args(words.split_whitespace()));
}

impl Site {
    /// `None` where no networks can be made: only root can, and not in every container.
    fn new() -> Option<Site> {
        let (client, server) = (Network::start(&[]).ok()?, Network::start(&[]).ok()?);
        let pid = server.path().components().nth(2).unwrap();
        let pid = pid.as_os_str().to_str().unwrap();
        within(&client, &format!("ip link add near type veth peer name far netns {pid}"));
        within(&server, &format!("ip address add {SERVER}/24 dev far"));
        within(&server, "ip link set far up");
        within(&client, "ip address add 10.77.0.2/24 dev near");
        within(&client, "ip link set near up");
        let helper = format!("{} helper", program_path().display());
        let world = World::with(Options {
            sftp_server: SftpServer::Command(helper),
            settings: vec![format!("ListenAddress {SERVER}")],
            prefix: server.words(),
            ..Options::default()
        });
        Some(Site { world, client, _server: server })
    }

    fn mount(&self, options: &str) -> Mount {
        let (prefix, inner) = (self.client.words(), self.world.command());
        let mut command = Command::new(&prefix[0]);
        command.args(&prefix[1..]).arg(inner.get_program()).args(inner.get_args());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let place = self.world.mountpoint();
        command.args(["-f", "-o", &format!("HostName={SERVER},{options}")]);
        command.arg(self.world.source()).arg(&place);
        Mount::start(command, place).with_errors()
    }

    fn roam(&self, from: u8, to: u8) {
        within(&self.client, &format!("ip address del 10.77.0.{from}/24 dev near"));
        within(&self.client, &format!("ip address add 10.77.0.{to}/24 dev near"));
    }
}

/// The result of a call that waits for a new connection.
fn soon<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, result) = channel();
    thread::spawn(move || sender.send(call()));
    result.recv_timeout(LIMIT).expect("a new connection")
}

fn goes_on(options: &str) {
    let Some(site) = Site::new() else {
        eprintln!("skipped: no networks can be made");
        return;
    };
    fs::write(site.world.served("read"), pattern(CONTENT_BYTES)).unwrap();
    let mount = site.mount(options);
    let mut written = File::create(mount.at("written")).unwrap();
    let mut read = File::open(mount.at("read")).unwrap();
    let mut first = vec![0; 1000];
    read.read_exact(&mut first).unwrap();
    site.roam(2, 3);
    let (mut output, at) = (written.try_clone().unwrap(), mount.at("dir"));
    soon(move || {
        fs::create_dir(at).unwrap();
        output.write_all(&pattern(500_000)).unwrap();
        output.sync_all().unwrap();
    });
    assert!(site.world.served("dir").is_dir());
    // Nothing but the content is requested.
    site.roam(3, 4);
    let rest = soon(move || {
        let mut rest = Vec::new();
        read.read_to_end(&mut rest).unwrap();
        rest
    });
    assert!([first, rest].concat() == pattern(CONTENT_BYTES));
    written.write_all(b"end").unwrap();
    drop(written);
    let found = fs::read(site.world.served("written")).unwrap();
    assert!(found == [pattern(500_000), b"end".to_vec()].concat());
    let said = mount.words();
    assert_eq!(said.matches("; a new one replaces it").count(), 2, "{said}");
}

#[test]
fn a_mount_goes_on_from_another_address() {
    goes_on("helper=no");
}

#[test]
fn a_mount_with_direct_connections_goes_on_from_another_address() {
    goes_on("direct=yes");
}
