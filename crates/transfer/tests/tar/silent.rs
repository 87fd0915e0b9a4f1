//! Peer sides that take a command and then say nothing, or let nobody in. The clock is the test's
//! own.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::RemotePath;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use transfer::tar::{ANSWER_LIMIT, Compress, Declined, LOGIN_LIMIT, Streamed, Streaming, listing};
use transfer::{Options, Progress, Running, Shell, ShellError, Silent};

use super::round_trip::{pull_of, push_of};

/// Says so much, and nothing behind it. When it is left its end is told by `ended`.
struct Mute {
    says: &'static str,
    ended: Arc<Semaphore>,
}

#[async_trait::async_trait]
impl Shell for Mute {
    async fn start(&self, _: &[u8]) -> Result<Running, ShellError> {
        let (stdout, mut output) = tokio::io::duplex(1 << 16);
        let (stdin, mut input) = tokio::io::duplex(1 << 16);
        let (says, ended) = (self.says, self.ended.clone());
        tokio::spawn(async move {
            output.write_all(says.as_bytes()).await.unwrap();
            while let Ok(1..) = input.read(&mut [0; 256]).await {}
            ended.add_permits(1);
        });
        let exit = Box::pin(std::future::pending());
        Ok(Running { stdin: Box::new(stdin), stdout: Box::new(stdout), exit })
    }
}

/// Lets nobody in.
struct Closed;

#[async_trait::async_trait]
impl Shell for Closed {
    async fn start(&self, _: &[u8]) -> Result<Running, ShellError> {
        let exit = Box::pin(async { Err(ShellError::NoLogin("not you".to_owned())) });
        let (stdout, _) = tokio::io::duplex(1);
        Ok(Running { stdin: Box::new(tokio::io::sink()), stdout: Box::new(stdout), exit })
    }
}

fn streaming(shell: Arc<dyn Shell>) -> Streaming {
    Streaming {
        shell,
        options: Options::default(),
        compress: Compress::Never,
        only_if_fast: true,
        progress: Arc::new(Progress::default()),
        events: Arc::new(Silent),
        reusable_login: None,
        greeted: Arc::default(),
    }
}

/// What becomes of a stream each way, and how long that takes.
async fn streamed(shell: Arc<dyn Shell>) -> Vec<(Declined, Duration)> {
    let dir = tempfile::tempdir().unwrap();
    let streaming = streaming(shell);
    let pull = pull_of(Path::new("/usr"), Some("include"), dir.path(), "x");
    let push = push_of(dir.path(), Path::new("/tmp"), "copy");
    let mut all = Vec::new();
    for is_push in [false, true] {
        let began = Instant::now();
        let streamed = match is_push {
            true => streaming.push(&push).await.unwrap(),
            false => streaming.pull(&pull).await.unwrap(),
        };
        let Streamed::Declined(declined) = streamed else { panic!("{streamed:?}") };
        all.push((declined, began.elapsed()));
    }
    all
}

#[tokio::test(start_paused = true)]
async fn who_says_nothing_is_waited_for_no_longer_than_a_login_may_take() {
    for (says, limit) in
        [("", LOGIN_LIMIT), ("a banner\n", LOGIN_LIMIT), ("sshoal-1 gnu dir\n", ANSWER_LIMIT)]
    {
        let ended = Arc::new(Semaphore::new(0));
        for (declined, took) in streamed(Arc::new(Mute { says, ended: ended.clone() })).await {
            assert!(matches!(&declined, Declined::Lost(why) if why.contains("no answer")));
            assert!(took >= limit && took < limit + Duration::from_secs(1), "{says} {took:?}");
            // Nothing of it is left.
            ended.acquire().await.unwrap().forget();
        }
    }
    let ended = Arc::new(Semaphore::new(0));
    let shell: Arc<dyn Shell> = Arc::new(Mute { says: "", ended: ended.clone() });
    let left = listing::log_in(&shell, b"/usr", &RemotePath::root(), &Options::default()).await;
    assert!(matches!(left, Ok(None)));
    ended.acquire().await.unwrap().forget();
}

#[tokio::test]
async fn who_lets_nobody_in_is_told_from_who_has_no_commands() {
    for (declined, _) in streamed(Arc::new(Closed)).await {
        assert_eq!(declined, Declined::NoLogin("not you".to_owned()));
    }
    let shell: Arc<dyn Shell> = Arc::new(Closed);
    let left = listing::log_in(&shell, b"/usr", &RemotePath::root(), &Options::default()).await;
    assert!(matches!(left, Err(why) if why == "not you"));
}
