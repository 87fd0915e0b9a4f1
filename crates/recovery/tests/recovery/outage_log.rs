//! Log messages about an outage.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::Remote;
use testkit::path;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

use super::stage::Stage;

/// Collects warnings, each as one line.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").unwrap();
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_logged_with_the_reason_of_the_last_attempt_to_connect() {
    for (known, logged) in [(None, "Host is down"), (Some("refused\n  a hint"), "refused")] {
        let log = Log::default();
        let _guard = tracing::subscriber::set_default(log.clone());
        let stage = Stage::new();
        known.into_iter().for_each(|why| stage.faulty.set_why_disconnected(why));
        stage.cut_for(Duration::from_secs(11));
        stage.recovering.lstat(&path("")).await.unwrap();
        assert!(log.lines()[0].ends_with(&format!("still trying ({logged})")), "{:?}", log.lines());
    }
}

/// L10: a long outage is logged once, and its end once.
#[tokio::test(start_paused = true)]
async fn an_outage_of_ten_seconds_and_its_end_are_logged_once() {
    for (outage_secs, warnings) in [(9, 0), (11, 1), (3_600, 1)] {
        let log = Log::default();
        let _guard = tracing::subscriber::set_default(log.clone());
        let stage = Stage::new();
        stage.cut_for(Duration::from_secs(outage_secs));
        // Without a call, an outage is not logged.
        assert_eq!(log.lines(), [""; 0]);
        let root = path("");
        let waiting = stage.recovering.lstat(&root);
        let ten_seconds = tokio::time::sleep(Duration::from_millis(10_500));
        tokio::pin!(waiting);
        tokio::select! {
            biased;
            _ = &mut waiting => assert_eq!(warnings, 0, "it waits"),
            () = ten_seconds => {
                let lines = log.lines();
                assert_eq!(lines.len(), warnings, "{lines:?}");
                assert!(lines[0].contains("not responding, still trying"), "{lines:?}");
                waiting.await.unwrap();
            }
        }
        let lines = log.lines();
        assert_eq!(lines.len(), 2 * warnings, "{outage_secs} s: {lines:?}");
        if let Some(last) = lines.last() {
            let after = last.split_once("OK, after ").expect("the end of the outage is logged").1;
            let secs: u64 = after.trim_end_matches(" s").parse().unwrap();
            assert!(secs >= outage_secs && secs < outage_secs + 60, "{last}");
        }
    }
}
