//! Unions: what a change at one source is in the tree.
//!
//! The thread that repeats changes must not wake a task of the runtime. So it queries the sources
//! through another thread, which has descriptors and starts the tasks.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use base::RemotePath;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use union::Union;

use super::plan::{Action, Place, Step};

/// Paths that are queried at the same time.
const MAX_QUERIES: usize = 64;

/// How long the answers for some paths are awaited. A source that takes longer is about to be
/// unreachable.
const LIMIT: Duration = Duration::from_secs(5);

/// What the sources have at a path, in the order of search: the number of each, and whether its
/// entry is a directory.
type Entries = Vec<(u64, Option<bool>)>;

struct Query {
    paths: Vec<RemotePath>,
    answer: Sender<HashMap<RemotePath, Entries>>,
}

/// The sources of a union. Contains no descriptor.
pub(super) struct Sources(Sender<Query>);

impl Sources {
    /// Must be called inside a runtime. Does not keep the union.
    pub(super) fn new(union: &Arc<Union>) -> io::Result<Sources> {
        let (union, runtime) = (Arc::downgrade(union), Handle::current());
        let (sender, queries) = channel::<Query>();
        let start = move || {
            for query in queries {
                drop(runtime.spawn(answer(union.clone(), query)));
            }
        };
        thread::Builder::new().name("sources".into()).spawn(start)?;
        Ok(Sources(sender))
    }

    /// What these steps, each a change at one source, are in the tree.
    pub(super) fn shown(&self, steps: &[Step]) -> Vec<Step> {
        let mut paths: Vec<RemotePath> = steps.iter().flat_map(Step::places).map(path).collect();
        paths.sort_unstable();
        paths.dedup();
        let (answer, answered) = channel();
        let sent = self.0.send(Query { paths, answer });
        let entries = sent.ok().and_then(|()| answered.recv().ok()).unwrap_or_default();
        steps.iter().flat_map(|step| shown(step, &entries)).collect()
    }
}

async fn answer(union: Weak<Union>, Query { paths, answer }: Query) {
    let mut known = HashMap::new();
    for some in paths.chunks(MAX_QUERIES) {
        let Some(union) = union.upgrade() else { return };
        let mut queries = JoinSet::new();
        for path in some.iter().cloned() {
            let union = union.clone();
            queries.spawn(async move { union.entries(&path).await.map(|found| (path, found)) });
        }
        let all = async {
            while let Some(answered) = queries.join_next().await {
                known.extend(answered.ok().and_then(Result::ok));
            }
        };
        if tokio::time::timeout(LIMIT, all).await.is_err() {
            break;
        }
    }
    // The mount may have ended.
    let _ = answer.send(known);
}

fn path(place: &Place) -> RemotePath {
    place.path.join(&place.name)
}

/// What a change of the entry of one source is in the tree.
enum Seen {
    /// The same change.
    Same,
    /// Nothing: the entry is hidden, or merged with directories of other sources.
    Nothing,
    /// These changes: another entry is shown.
    Another(Vec<(Action, bool)>),
}

/// `source` had or has an entry, which `is_dir` describes, among these.
fn seen(entries: Option<&Entries>, source: u64, is_dir: bool, (had, has): (bool, bool)) -> Seen {
    // One that is not known is not repeated.
    let Some(entries) = entries else { return Seen::Nothing };
    if entries.is_empty() {
        // No other source could have one.
        return Seen::Same;
    }
    let visible = |own: bool| {
        let entry = |(number, other): &(u64, Option<bool>)| match *number == source {
            true => own.then_some((source, is_dir)),
            false => other.map(|is_dir| (*number, is_dir)),
        };
        entries.iter().find_map(entry)
    };
    match (visible(had), visible(has)) {
        (Some((_, true)), Some((_, true))) if had && has && is_dir => Seen::Same,
        (Some((_, true)), Some((_, true))) | (None, None) => Seen::Nothing,
        (Some((before, false)), Some((after, false))) if before == after => match after == source {
            true => Seen::Same,
            false => Seen::Nothing,
        },
        (Some((_, false)), Some((_, false))) => {
            let all = Action::Change { attributes: true, modified: true, written: true };
            Seen::Another(vec![(all, false)])
        }
        (Some((_, before)), Some((_, after))) => {
            Seen::Another(vec![(Action::Remove, before), (Action::Create, after)])
        }
        (None, Some(_)) | (Some(_), None) => Seen::Same,
    }
}

fn shown(step: &Step, entries: &HashMap<RemotePath, Entries>) -> Vec<Step> {
    let Step { at, is_dir, source, .. } = step;
    let step_at =
        |at: &Place, action, is_dir| Step { at: at.clone(), is_dir, source: *source, action };
    let at_place = |at: &Place, action: &Action, had_has| match seen(
        entries.get(&path(at)),
        *source,
        *is_dir,
        had_has,
    ) {
        Seen::Same => vec![step_at(at, action.clone(), *is_dir)],
        Seen::Nothing => Vec::new(),
        Seen::Another(changes) => {
            let step = |(action, is_dir)| step_at(at, action, is_dir);
            changes.into_iter().map(step).collect()
        }
    };
    match &step.action {
        Action::Create => at_place(at, &step.action, (false, true)),
        Action::Remove => at_place(at, &step.action, (true, false)),
        Action::Change { .. } => at_place(at, &step.action, (true, true)),
        Action::Rename { to } => {
            let away = at_place(at, &Action::Remove, (true, false));
            let here = at_place(to, &Action::Create, (false, true));
            let is = |steps: &[Step], action| steps.len() == 1 && steps[0].action == action;
            match is(&away, Action::Remove) && is(&here, Action::Create) {
                true => vec![step.clone()],
                false => away.into_iter().chain(here).collect(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Name;
    use vfs::{ForeignChange, Ino};

    const FILE: Option<bool> = Some(false);
    const DIR: Option<bool> = Some(true);

    /// What `event` of an entry of source 2 is, in words, if the sources 1, 2 and 3 have these.
    fn seen_of(event: base::Event, is_dir: bool, others: [Option<bool>; 2]) -> String {
        let name = |text: &str| Name::new(text.as_bytes()).unwrap();
        let change = |event, text: &str| ForeignChange {
            dir: Ino::ROOT,
            path: RemotePath::root(),
            dir_number: 1,
            name: name(text),
            number: None,
            event,
            is_dir,
            cookie: 7,
            source: 2,
        };
        let changes = match event {
            base::Event::MovedAway => vec![change(event, "a"), change(base::Event::MovedHere, "b")],
            _ => vec![change(event, "a")],
        };
        let here = vec![(1, others[0]), (2, None), (3, others[1])];
        let alone = vec![(1, None), (2, None), (3, None)];
        let known = [("a", here), ("b", alone)]
            .map(|(text, entries)| (RemotePath::root().join(&name(text)), entries));
        let known = HashMap::from(known);
        let word = |step: Step| {
            let what = match &step.action {
                Action::Create => "create",
                Action::Remove => "remove",
                Action::Rename { .. } => "rename",
                Action::Change { attributes: true, modified: true, written: true } => "change",
                Action::Change { .. } => "as it is",
            };
            format!("{what} {}{}", step.at.name, if step.is_dir { "/" } else { "" })
        };
        let steps = super::super::plan::plan(&changes);
        let shown = steps.iter().flat_map(|step| shown(step, &known)).map(word);
        shown.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn only_the_visible_entry_is_seen_to_change() {
        use base::Event::{Attributes, Created, Modified, MovedAway, Removed};
        let cases = [
            // Nothing else is there.
            (Created, false, [None, None], "create a"),
            (Removed, true, [None, None], "remove a/"),
            (MovedAway, false, [None, None], "rename a"),
            (Modified, false, [None, None], "as it is a"),
            // Hidden.
            (Created, false, [FILE, None], ""),
            (Modified, false, [FILE, None], ""),
            (Modified, false, [DIR, None], ""),
            (Attributes, true, [FILE, None], ""),
            (Removed, false, [DIR, FILE], ""),
            (MovedAway, false, [FILE, None], "create b"),
            // Hides another one.
            (Modified, false, [None, FILE], "as it is a"),
            (Created, false, [None, FILE], "change a"),
            (Removed, false, [None, FILE], "change a"),
            (MovedAway, false, [None, FILE], "change a, create b"),
            (Created, false, [None, DIR], "remove a/, create a"),
            (Removed, false, [None, DIR], "remove a, create a/"),
            (Created, true, [None, FILE], "remove a, create a/"),
            // Merged.
            (Created, true, [DIR, None], ""),
            (Removed, true, [None, DIR], ""),
            (Attributes, true, [DIR, None], "as it is a/"),
            (Attributes, true, [None, DIR], "as it is a/"),
            (MovedAway, true, [DIR, DIR], "create b/"),
        ];
        for (event, is_dir, others, expected) in cases {
            let found = seen_of(event, is_dir, others);
            assert_eq!(found, expected, "{event:?} {is_dir} {others:?}");
        }
    }
}
