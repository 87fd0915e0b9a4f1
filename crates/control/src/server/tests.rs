use super::*;
use crate::Change;
use crate::job::CacheJob;
use crate::status::MountStatus;
use std::sync::Mutex;
use tokio::sync::Notify;

/// A mount whose changes never end by themselves, but for one.
#[derive(Default)]
struct Mount {
    begun: Notify,
    dropped: Arc<Notify>,
    changes: Mutex<Vec<Change>>,
}

struct Told(Arc<Notify>);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[async_trait]
impl Asked for Mount {
    async fn answer(&self, wish: Wish, told: watch::Sender<Tally>) -> Result<Reply, Problem> {
        let status = MountStatus { pid: 77, ..MountStatus::default() };
        match wish {
            Wish::Status => return Ok(Reply::Status(Box::new(status))),
            Wish::Stats => {
                let counters = Some(Box::default());
                return Ok(Reply::Status(Box::new(MountStatus { counters, ..status })));
            }
            Wish::Branch(change) => {
                self.changes.lock().unwrap().push(change.clone());
                if matches!(change, Change::Remove { .. }) {
                    return Err(Problem::new("branch", "no such branch"));
                }
            }
            Wish::Cache(CacheJob::Check { .. }) => {
                return Ok(Reply::Tally(Tally { files: 2, ..Tally::default() }));
            }
            Wish::Cache(_) => drop(told.send_replace(Tally { files: 1, ..Tally::default() })),
            _ => {}
        }
        let _told = Told(self.dropped.clone());
        self.begun.notify_one();
        std::future::pending().await
    }

    async fn log_in(
        &self,
        host: String,
        secret: &mut (dyn AsyncRead + Send + Unpin),
    ) -> Result<Login<'_>, Problem> {
        let mut line = [0; 3];
        secret.read_exact(&mut line).await.unwrap();
        match &line {
            b"pw\n" if host == "h" => Ok(Box::pin(async { Ok(()) })),
            b"..\n" => {
                let told = Told(self.dropped.clone());
                self.begun.notify_one();
                Ok(Box::pin(async move {
                    let _told = told;
                    std::future::pending().await
                }))
            }
            _ => Err(Problem::new(host, "refused")),
        }
    }
}

/// The secret is sent only when the daemon is ready for it.
#[tokio::test]
async fn a_secret_follows_the_request() {
    for (secret, expected) in [("pw\n", "\"done\"\n"), ("no\n", "{\"refused\":")] {
        let mount = Arc::<Mount>::default();
        let (ours, _serving) = connected(&mount);
        let (reader, mut writer) = ours.into_split();
        let mut reader = BufReader::new(reader);
        let mut line = String::new();
        writer.write_all(b"{\"protocol\":1,\"wish\":\"login\",\"host\":\"h\"}\n").await.unwrap();
        reader.read_line(&mut line).await.unwrap();
        assert_eq!(line, "\"working\"\n");
        line.clear();
        writer.write_all(secret.as_bytes()).await.unwrap();
        reader.read_line(&mut line).await.unwrap();
        assert!(line.starts_with(expected), "{line}");
    }
}

/// A connection to a mount.
fn connected(mount: &Arc<Mount>) -> (UnixStream, JoinHandle<()>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (ours, tokio::spawn(converse(theirs, mount.clone(), Arc::new(Semaphore::new(MAX_JOBS)))))
}

/// All that is answered to `words`.
async fn answer(words: &[u8]) -> String {
    let mount = Arc::<Mount>::default();
    let (mut peer, connection) = connected(&mount);
    // The other side may leave in the middle.
    let _ = peer.write_all(words).await;
    let mut heard = String::new();
    let _ = peer.read_to_string(&mut heard).await;
    connection.await.unwrap();
    heard
}

#[tokio::test]
async fn one_line_is_answered_with_one_line() {
    let heard = answer(b"{\"protocol\":1,\"wish\":\"status\"}\n").await;
    let Ok(Reply::Status(status)) = serde_json::from_str(&heard) else { panic!("{heard}") };
    assert_eq!((status.pid, heard.matches('\n').count()), (77, 1));
    assert!(!heard.contains("counters"), "{heard}");
    let heard = answer(b"{\"protocol\":1,\"wish\":\"stats\"}\n").await;
    assert!(heard.contains("\"counters\":{"), "{heard}");
    // Fields of a later version do no harm.
    let heard = answer(b"{\"protocol\":1,\"wish\":\"status\",\"more\":[]}\n").await;
    assert!(heard.starts_with("{\"status\":"), "{heard}");
}

#[tokio::test]
async fn what_is_not_understood_is_said_so() {
    let older = answer(b"{\"protocol\":9,\"request\":{\"unknown\":1}}\n").await;
    assert!(older.contains("version 9") && older.contains(") version 1"), "{older}");
    for words in [&b"\n"[..], b"nonsense\n", b"{}\n", b"{\"protocol\":1,\"wish\":\"fly\"}\n"] {
        let heard = answer(words).await;
        assert!(heard.contains("invalid request"), "{heard}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_does_not_say_a_line_is_left() {
    let long = vec![b' '; MAX_REQUEST_BYTES as usize + 1];
    for words in [&b""[..], b"{\"protocol\":1", &long] {
        let begun = tokio::time::Instant::now();
        assert_eq!(answer(words).await, "");
        assert!(begun.elapsed() <= PEER_LIMIT * 2);
    }
}

#[tokio::test(start_paused = true)]
async fn who_takes_nothing_is_left() {
    let mount = Arc::<Mount>::default();
    let (mut writer, _reader) = tokio::io::duplex(16);
    let reply = Reply::Refused(Problem::new("x".repeat(1000), "y"));
    let error = say(&mut writer, &reply).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    drop(mount);
}

#[tokio::test]
async fn a_change_is_first_said_to_be_at_work_and_ends_with_who_wants_it() {
    let remove = b"{\"protocol\":1,\"wish\":\"branch\",\"change\":\"remove\",\"source\":\"a:\"}\n";
    let heard = answer(remove).await;
    let lines: Vec<&str> = heard.lines().collect();
    assert_eq!(lines[0], "\"working\"");
    assert!(lines[1].contains("no such branch") && lines.len() == 2, "{heard}");

    let mount = Arc::<Mount>::default();
    let (mut peer, connection) = connected(&mount);
    let add = b"{\"protocol\":1,\"wish\":\"branch\",\"change\":\"add\",\"source\":\"b:\"}\n";
    peer.write_all(add).await.unwrap();
    mount.begun.notified().await;
    assert!(!connection.is_finished());
    drop(peer);
    mount.dropped.notified().await;
    connection.await.unwrap();
    assert_eq!(*mount.changes.lock().unwrap(), [Change::Add { source: "b:".into() }]);
}

#[tokio::test]
async fn silent_peers_take_no_more_than_their_places() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("socket");
    let listener = BlockingListener::bind(&place).unwrap();
    let mount = Arc::<Mount>::default();
    let server = Server::start(listener, mount.clone()).unwrap();
    let mut busy = Vec::new();
    let add = b"{\"protocol\":1,\"wish\":\"branch\",\"change\":\"add\",\"source\":\"b:\"}\n";
    for _ in 0..MAX_CONNECTIONS {
        let mut peer = UnixStream::connect(&place).await.unwrap();
        peer.write_all(add).await.unwrap();
        mount.begun.notified().await;
        busy.push(peer);
    }
    // One more is heard when another has gone.
    let mut peer = UnixStream::connect(&place).await.unwrap();
    peer.write_all(b"{\"protocol\":1,\"wish\":\"status\"}\n").await.unwrap();
    assert_eq!(mount.changes.lock().unwrap().len(), MAX_CONNECTIONS);
    busy.pop();
    let mut heard = String::new();
    peer.read_to_string(&mut heard).await.unwrap();
    assert!(heard.starts_with("{\"status\":"), "{heard}");
    // With the server everything of it goes.
    drop(server);
    let mut peer = busy.pop().unwrap();
    let mut heard = String::new();
    peer.read_to_string(&mut heard).await.unwrap();
    assert_eq!(heard, "\"working\"\n");
}

/// Jobs beyond the limit wait, and nothing waits for them.
#[tokio::test]
async fn jobs_leave_room_for_other_requests() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("socket");
    let listener = BlockingListener::bind(&place).unwrap();
    let mount = Arc::<Mount>::default();
    let _server = Server::start(listener, mount.clone()).unwrap();
    let ask = async |words: &[u8]| {
        let mut peer = UnixStream::connect(&place).await.unwrap();
        peer.write_all(words).await.unwrap();
        let mut reader = BufReader::new(peer);
        let mut line = String::new();
        let read = tokio::time::timeout(PEER_LIMIT, reader.read_line(&mut line)).await;
        read.expect("an answer").unwrap();
        (reader, line)
    };
    let warm =
        b"{\"protocol\":1,\"wish\":\"cache\",\"cache\":\"warm\",\"paths\":[],\"at_once\":1}\n";
    let mut busy = Vec::new();
    for _ in 0..MAX_JOBS {
        busy.push(ask(warm).await);
        mount.begun.notified().await;
    }
    let (waiting, line) = ask(warm).await;
    assert_eq!(line, "\"working\"\n");
    for (words, begin) in [
        (&b"{\"protocol\":1,\"wish\":\"status\"}\n"[..], "{\"status\":"),
        (b"{\"protocol\":1,\"wish\":\"flush\"}\n", "\"working\"\n"),
    ] {
        let (_peer, line) = ask(words).await;
        assert!(line.starts_with(begin), "{line}");
    }
    mount.begun.notified().await;
    // Its turn comes when another has gone.
    busy.pop();
    mount.begun.notified().await;
    drop(waiting);
}

#[test]
fn only_the_user_and_root_are_answered() {
    let me = geteuid().as_raw();
    assert!(is_allowed(me) && is_allowed(0));
    assert!(!is_allowed(me + 1) && !is_allowed(u32::MAX));
}

#[tokio::test]
async fn a_job_tells_how_far_it_is_and_ends_with_who_wants_it() {
    let heard =
        answer(b"{\"protocol\":1,\"wish\":\"cache\",\"cache\":\"check\",\"paths\":[]}\n").await;
    let lines: Vec<Reply> = heard.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let tally = |files| Tally { files, ..Tally::default() };
    assert_eq!(lines, [Reply::Working, Reply::Tally(tally(2))]);

    let mount = Arc::<Mount>::default();
    let (mut peer, connection) = connected(&mount);
    let warm =
        b"{\"protocol\":1,\"wish\":\"cache\",\"cache\":\"warm\",\"paths\":[],\"at_once\":1}\n";
    peer.write_all(warm).await.unwrap();
    let mut lines = BufReader::new(&mut peer).lines();
    let mut next = async || lines.next_line().await.unwrap().unwrap();
    assert_eq!(next().await, "\"working\"");
    let told: Reply = serde_json::from_str(&next().await).unwrap();
    assert_eq!(told, Reply::Progress(tally(1)));
    mount.begun.notified().await;
    drop(peer);
    mount.dropped.notified().await;
    connection.await.unwrap();
}

#[tokio::test]
async fn a_profile_ends_with_its_client() {
    let mount = Arc::<Mount>::default();
    let (mut peer, connection) = connected(&mount);
    let profile = b"{\"protocol\":1,\"wish\":\"profile\",\"seconds\":9}\n";
    peer.write_all(profile).await.unwrap();
    mount.begun.notified().await;
    drop(peer);
    mount.dropped.notified().await;
    connection.await.unwrap();
}

#[tokio::test]
async fn a_login_ends_with_its_client() {
    let mount = Arc::<Mount>::default();
    let (mut peer, connection) = connected(&mount);
    peer.write_all(b"{\"protocol\":1,\"wish\":\"login\",\"host\":\"h\"}\n").await.unwrap();
    let mut lines = BufReader::new(&mut peer).lines();
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "\"working\"");
    peer.write_all(b"..\n").await.unwrap();
    mount.begun.notified().await;
    assert!(!connection.is_finished());
    drop(peer);
    mount.dropped.notified().await;
    connection.await.unwrap();
}
