//! The log of a mount in the background: the journal, syslog, a file. The services are sockets of
//! the test, in a mount namespace of its own.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sandbox::namespace;
use sandbox::sshd::Options;

use crate::installed::{assert_quiet_success, daemon_of};
use crate::process::{eventually, run};
use crate::world::{World, program_path};

const LIMIT: Duration = Duration::from_secs(60);

/// The datagram after which a test's service ends.
const END: &str = "end of the test";

/// A namespace in which `$1` is the socket of the journal (or, with `$2`, of syslog), and no other
/// service exists.
const SERVICES: &str = r#"
set -e
socket=$1 service=$2; shift 2
mount -t tmpfs tmpfs /run
mkdir -p /run/dev/shm /run/systemd/journal
for device in null zero tty fuse urandom random ptmx; do
    if [ -e "/dev/$device" ]; then
        touch "/run/dev/$device"
        mount --bind "/dev/$device" "/run/dev/$device"
    fi
done
mkdir /run/dev/pts
mount --bind /dev/pts /run/dev/pts
mount --rbind /run/dev /dev
case $service in
    journal) ln -s "$socket" /run/systemd/journal/socket ;;
    syslog) ln -s "$socket" /dev/log ;;
esac
exec "$@"
"#;

/// A mount in the background whose log a test reads.
struct Logged {
    place: PathBuf,
    daemon: Pid,
    socket: PathBuf,
    /// Read by a thread: the kernel keeps only a few datagrams.
    lines: Receiver<String>,
}

impl Logged {
    /// `service`: which of the services exists.
    fn mount(world: &World, service: &str, options: &[&str]) -> Logged {
        let place = world.mountpoint();
        let socket = world.local(format!("{service}-socket"));
        let received = UnixDatagram::bind(&socket).unwrap();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 16 * 1024];
            while let Ok(read) = received.recv(&mut buffer) {
                let line = String::from_utf8(buffer[..read].to_vec()).unwrap();
                if line == END || sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut command = namespace::command();
        command.env_remove("SSH_AUTH_SOCK").env_remove("XDG_RUNTIME_DIR");
        command.args(["sh", "-c", SERVICES, "sh"]).arg(&socket).arg(service);
        command.arg(program_path()).arg("-F").arg(world.sshd().config_path());
        command.arg(world.source()).arg(&place).args(options);
        assert_quiet_success(&run(&mut command));
        let daemon = Pid::from_raw(daemon_of(&place).cast_signed()).unwrap();
        Logged { place, daemon, socket, lines }
    }

    /// The mount point as other processes see it, since the mount is only in the namespace.
    fn inside(&self) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.daemon.as_raw_nonzero()));
        root.join(self.place.strip_prefix("/").unwrap())
    }

    /// The next datagram.
    fn next(&self) -> String {
        self.lines.recv_timeout(LIMIT).expect("a line of the log")
    }

    /// The datagrams up to the one that contains `text`.
    fn until(&self, text: &str) -> Vec<String> {
        let (mut all, began) = (Vec::new(), Instant::now());
        loop {
            all.push(self.next());
            if all.last().is_some_and(|line| line.contains(text)) {
                return all;
            }
            assert!(began.elapsed() < LIMIT, "no line with '{text}': {all:#?}");
        }
    }

    fn unmount(&self) {
        kill_process(self.daemon, Signal::TERM).unwrap();
        let process = format!("/proc/{}", self.daemon.as_raw_nonzero());
        eventually(LIMIT, "it ends", || !Path::new(&process).exists());
    }
}

/// The value of a field of the journal.
fn field<'a>(datagram: &'a str, name: &str) -> &'a str {
    let value = datagram.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("no {name}: {datagram}"))
}

#[test]
fn the_journal_gets_a_line_for_each_event() {
    let world = World::new();
    fs::write(world.served("file"), "text").unwrap();
    let logged = Logged::mount(&world, "journal", &["-o", "ro"]);
    let place = logged.place.to_str().unwrap();
    let mounted = logged.next();
    assert_eq!(field(&mounted, "SYSLOG_IDENTIFIER"), "sshoal");
    assert_eq!(field(&mounted, "SYSLOG_PID"), logged.daemon.as_raw_nonzero().to_string());
    assert_eq!(field(&mounted, "SSHOAL_MOUNT"), place);
    assert_eq!(field(&mounted, "PRIORITY"), "6");
    let text = format!("{place}: mounted {}, read-only", world.source());
    assert_eq!(field(&mounted, "MESSAGE"), text);

    world.sshd().kill_sessions();
    let lost = logged.until("session ended").pop().unwrap();
    assert_eq!(field(&lost, "PRIORITY"), "4");
    let host = format!("MESSAGE={place}: {}: ", world.sshd().alias());
    assert!(lost.contains(&format!("{host}session ended: ")), "{lost}");
    assert_eq!(fs::read_to_string(logged.inside().join("file")).unwrap(), "text");
    let again = logged.until("connected again, ").pop().unwrap();
    assert!(again.contains(&host) && again.contains(" s after the loss"), "{again}");

    logged.unmount();
    let unmounted = logged.until(": unmounted").pop().unwrap();
    assert_eq!(field(&unmounted, "MESSAGE"), format!("{place}: unmounted"));
}

/// What a server writes is escaped, is limited in number, and cannot look like another line.
#[test]
fn syslog_gets_no_forged_lines_and_not_too_many() {
    let dir = tempfile::tempdir().unwrap();
    let banner = dir.path().join("banner");
    fs::write(&banner, "").unwrap();
    let settings = vec![format!("Banner {}", banner.display())];
    let world = World::with(Options { settings, ..Options::default() });
    let logged = Logged::mount(&world, "syslog", &[]);
    let (place, pid) = (logged.place.to_str().unwrap(), logged.daemon.as_raw_nonzero());
    let tag = format!("sshoal[{pid}]: {place}: ");
    let mounted = logged.next();
    assert_eq!(mounted, format!("<30>{tag}mounted {}", world.source()));

    let forged = "<24>sshoal[1]: /: data was lost\u{1b}[2J\u{202e}\r\nMESSAGE=x\n";
    fs::write(&banner, forged.repeat(50)).unwrap();
    world.sshd().kill_sessions();
    eventually(LIMIT, "it is back", || fs::metadata(logged.inside()).is_ok());
    logged.unmount();
    let lines = logged.until(" times)");
    let of_ssh = lines.iter().filter(|line| line.contains(": ssh: ")).count();
    // 20 a minute, as far as the socket had room, and the report about the others.
    assert!((2..=21).contains(&of_ssh), "{lines:#?}");
    assert!(lines.last().unwrap().contains("(repeated 80 times)"), "{lines:#?}");
    for line in &lines {
        assert!(line.starts_with(&format!("<28>{tag}")) || line.starts_with("<30>"), "{line}");
        assert!(!line.contains(|char: char| char.is_control() || char == '\u{202e}'), "{line:?}");
    }
    assert!(lines.iter().any(|line| line.contains("data was lost")), "{lines:#?}");
}

#[test]
fn without_a_service_a_mount_works_and_a_named_one_must_exist() {
    let world = World::new();
    let logged = Logged::mount(&world, "none", &[]);
    logged.unmount();
    UnixDatagram::unbound().unwrap().send_to(END.as_bytes(), &logged.socket).unwrap();
    assert_eq!(logged.lines.iter().collect::<Vec<_>>(), [""; 0]);

    let place = world.mountpoint();
    let mut command = namespace::command();
    command.args(["sh", "-c", SERVICES, "sh", "/nonexistent", "none"]);
    command.arg(program_path()).arg("-F").arg(world.sshd().config_path());
    command.arg(world.source()).arg(&place).args(["-o", "log=syslog"]);
    let said = crate::world::refusal(&mut command);
    assert!(said.contains("log=syslog: /dev/log: No such file"), "{said}");
}
