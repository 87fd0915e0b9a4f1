//! One pair of directories: entries matched by name.

use std::collections::HashMap;
use std::sync::Arc;

use base::{Attr, Errno, FileKind, Name, Remote, RemotePath};
use tokio::task::JoinSet;

use super::decide::{Verdict, decide};
use super::folding::{Folding, may_collide};
use super::{FileSystems, Found, Listed, Pair, is_foreign, list, list_readable};
use crate::collisions::NewNames;
use crate::deletion::{Absent, Deletion};
use crate::digest;
use crate::dir::{Dir, Last, Need, Place};
use crate::job::Tree;
use crate::outcome::{Doing, Fault, Problem};
use crate::run::{Core, differing};
use crate::sink::Sink;
use crate::step::{Action, Skip, Step, Why};
use crate::task::{at_most, blocking, ended};
use crate::temporary::{self, Partial};

/// Longest path of a directory that is entered, in bytes: four times what Linux takes at once. A
/// server that lists a directory within itself has an end there.
const PATH_MAX_BYTES: usize = 16 << 10;

/// Names of a directory that are queried at once, to find those that the target does not distinguish.
const FOLDED_AT_ONCE: usize = 64;

/// Names at the target that may be what an interrupted run has left, by the part of their own name.
type Partials = HashMap<Vec<u8>, Vec<Partial>>;

/// Compares the entries of a pair.
pub(super) async fn pair(core: Arc<Core>, pair: Pair) -> Found {
    compared(&core, &pair).await.unwrap_or_else(|problem| {
        // Its entries were not counted, so this is one problem.
        core.problem(&problem);
        Found::default()
    })
}

async fn compared(core: &Arc<Core>, pair: &Pair) -> Result<Found, Problem> {
    let dir_name = &pair.own.place.name;
    let failed = |doing| Problem::failed(dir_name, doing);
    if dir_name.as_bytes().len() > PATH_MAX_BYTES {
        return Err(failed(Doing::ListSource)(Errno::ENAMETOOLONG));
    }
    let at_target = async {
        match pair.there {
            true => listing_of_target(core, &pair.own).await,
            false => Ok(Listed::default()),
        }
    };
    let (listed, at_target) =
        tokio::join!(listing_of_source(core, pair.source, &pair.from), at_target);
    let Listed { entries: listed, failed: failed_source } =
        listed.map_err(failed(Doing::ListSource))?;
    let Listed { entries: at_target, failed: failed_target } =
        at_target.map_err(failed(Doing::ListTarget))?;
    let mut failed_target: HashMap<Name, Errno> = failed_target.into_iter().collect();
    let (mut there, mut partials) = sort_out(at_target, &listed);
    for (entry, errno) in failed_source {
        let name = dir_name.join(&entry);
        if !may_be_excluded(core, &name) {
            core.problem(&Problem::failed(&name, Doing::LookSource)(errno));
            failed_target.remove(&entry);
        }
        // An excluded entry stays, too, since its kind is not known.
        there.remove(&entry);
    }
    let surplus = match there.is_empty() {
        true => Vec::new(),
        false => surplus(&there, &listed),
    };
    let folding = Folding::new(&surplus, &listed);
    find_folded(core, dir_name, &folding, &mut there).await;
    let mut steps = Vec::new();
    for (entry, attr) in listed {
        let name = dir_name.join(&entry);
        if core.job.options.filter.excludes(&name, attr.is_dir()) {
            // What is excluded is not deleted either.
            if !core.job.options.delete_excluded {
                there.remove(&entry);
                failed_target.remove(&entry);
            }
            continue;
        }
        let (paths, there) = ((pair.from.join(&entry), name), there.remove(&entry));
        let mut step = Step::new(pair.source, paths, attr, there, pair.own.clone());
        if let Some(errno) = failed_target.remove(&entry) {
            let problem = Problem::failed(&step.name, Doing::LookTarget)(errno);
            core.planned(&step);
            core.ended(&step, Err(problem));
            continue;
        }
        step.partials = partials.remove(&*temporary::stem(&entry)).unwrap_or_default();
        steps.push(step);
    }
    if core.job.options.hard_links {
        find_names(core, pair.source, &mut steps).await;
    }
    let mut found = Found::default();
    for (step, verdict) in settle(core, steps).await {
        enter(core, pair.file_systems, step, verdict, &mut found).await;
    }
    note_new_names(core, &pair.own, &found.steps, pair.deletes && !there.is_empty());
    if pair.deletes {
        gather_deletions(core, pair, there, &folding, &found.steps);
        for (entry, errno) in failed_target {
            let name = dir_name.join(&entry);
            if core.job.options.delete_excluded || !may_be_excluded(core, &name) {
                core.problem(&Problem::failed(&name, Doing::LookTarget)(errno));
            }
        }
    }
    Ok(found)
}

/// Whether a name of an entry of unknown kind is excluded.
fn may_be_excluded(core: &Core, name: &RemotePath) -> bool {
    [false, true].into_iter().any(|is_dir| core.job.options.filter.excludes(name, is_dir))
}

/// The names of the target that the source has not, in the order of names.
fn surplus(there: &HashMap<Name, Attr>, listed: &[(Name, Attr)]) -> Vec<Name> {
    let is_surplus = |name: &&Name| listed.binary_search_by(|(it, _)| it.cmp(name)).is_err();
    let mut surplus: Vec<Name> = there.keys().filter(is_surplus).cloned().collect();
    surplus.sort_unstable();
    surplus
}

/// Takes names of the source for those of the target that differ by case or form alone, where the
/// target does not tell them apart: it answers for a name that it has not listed.
async fn find_folded(
    core: &Core,
    dir: &RemotePath,
    folding: &Folding,
    there: &mut HashMap<Name, Attr>,
) {
    let pairs = folding.pairs().filter(|(_, name)| !there.contains_key(*name)).enumerate();
    let works = pairs.map(|(at, (surplus, name))| {
        let (remote, path) = (core.job.target.remote.clone(), dir.join(name));
        let (pair, path) = ((surplus.clone(), name.clone()), core.job.target.path_of(&path));
        async move { (at, pair, remote.lstat(&path).await) }
    });
    let works: Vec<_> = works.collect();
    let mut answers = at_most(FOLDED_AT_ONCE, works).await;
    answers.sort_unstable_by_key(|(at, _, _)| *at);
    for (_, (surplus, name), seen) in answers {
        // The walk that lists ahead has read directories since, which changes their access times.
        if let (Ok(seen), Some(listed)) = (seen, there.get(&surplus))
            && (Attr { atime: listed.atime, ..seen }) == *listed
            && !there.contains_key(&name)
        {
            there.remove(&surplus);
            there.insert(name, seen);
        }
    }
}

/// The directory as it was listed ahead, or as it is.
async fn listing(core: &Core, tree: &Tree, path: &RemotePath) -> base::Result<Listed> {
    match listed_ahead(tree, path) {
        Some(listed) => Ok(listed),
        None => list_twice(core, &tree.remote, path).await,
    }
}

/// As [`list_readable`], once more with few entries in progress if the server may have been out of
/// handles. Its answer is FAILURE, which is `EIO` for a directory.
async fn list_twice(
    core: &Core,
    remote: &Arc<dyn Remote>,
    path: &RemotePath,
) -> base::Result<Listed> {
    match list_readable(remote, path).await {
        Err(errno @ (Errno::EIO | Errno::EMFILE | Errno::ENFILE)) if remote.may_be_lost() => {
            let again = core.flow.with_few(list_readable(remote, path)).await;
            again.unwrap_or(Err(errno))
        }
        listed => listed,
    }
}

fn listed_ahead(tree: &Tree, path: &RemotePath) -> Option<Listed> {
    let entries = tree.ahead.as_ref()?.take(path)?;
    Some(Listed { entries, ..Listed::default() })
}

/// As [`listing`], of a directory of the target. If its mode keeps its owner out, it is changed
/// first, as everything in it would be copied again otherwise; it gets its own mode at its end.
async fn listing_of_target(core: &Core, own: &Dir) -> base::Result<Listed> {
    let (remote, path) = (&core.job.target.remote, &own.place.path);
    let listed = listing(core, &core.job.target, path).await;
    let there = own.place.last.as_ref().and_then(|last| last.there);
    if core.job.options.dry_run || there.is_none_or(|there| there.perm & 0o500 == 0o500) {
        return listed;
    }
    let is_refused = match &listed {
        Err(errno) => *errno == Errno::EACCES,
        Ok(listed) if is_empty(listed) => is_closed(remote, path).await,
        Ok(listed) => listed.failed.iter().any(|(_, errno)| *errno == Errno::EACCES),
    };
    match is_refused && own.ready().await.is_ok() {
        true => list_readable(remote, path).await,
        false => listed,
    }
}

fn is_empty(listed: &Listed) -> bool {
    listed.entries.is_empty() && listed.failed.is_empty()
}

/// Whether nothing in a directory can be looked at, so that OpenSSH's server lists nothing.
async fn is_closed(remote: &Arc<dyn Remote>, path: &RemotePath) -> bool {
    let any = Name::new(b"any").expect("it is one");
    remote.lstat(&path.join(&any)).await == Err(Errno::EACCES)
}

/// As [`listing`], of a source: what looks empty is. What else it leaves out is asked for beside it
/// ([`unseen`](crate::unseen)).
///
/// OpenSSH's server leaves out what it cannot look at, which is everything in a directory that may
/// be read and not be entered. To take that for empty is to lack it at the target, and to delete it
/// there.
async fn listing_of_source(core: &Core, source: usize, path: &RemotePath) -> base::Result<Listed> {
    let tree = &core.job.sources[source].tree;
    if let Some(listed) = listed_ahead(tree, path) {
        return Ok(listed);
    }
    core.ask_for_unseen(source);
    let listed = list_twice(core, &tree.remote, path).await?;
    match tree.local.is_none() && is_empty(&listed) && is_closed(&tree.remote, path).await {
        true => Err(Errno::EACCES),
        false => Ok(listed),
    }
}

/// The target's entries by name, and what may be left of an earlier run: nothing that the source
/// has too.
fn sort_out(
    at_target: Vec<(Name, Attr)>,
    source: &[(Name, Attr)],
) -> (HashMap<Name, Attr>, Partials) {
    let mut partials = Partials::new();
    for (name, attr) in &at_target {
        if let Some((stem, partial)) = Partial::parse(name, attr)
            && matches!(attr.kind, FileKind::Regular | FileKind::Symlink)
            && source.binary_search_by(|(other, _)| other.cmp(name)).is_err()
        {
            partials.entry(stem.to_vec()).or_default().push(partial);
        }
    }
    (at_target.into_iter().collect(), partials)
}

/// Notes the new names of a directory, if one of them may collide with another name.
pub(super) fn note_new_names(core: &Core, dir: &Arc<Dir>, steps: &[Step], has_surplus: bool) {
    let is_new = |step: &&Step| step.there.is_none() && step.changes();
    let names = steps.iter().filter(is_new).filter_map(|step| step.name.file_name());
    let names: Vec<Name> = names.collect();
    let all: Vec<Name> = match names.is_empty() || has_surplus {
        true => Vec::new(),
        false => steps.iter().filter_map(|step| step.name.file_name()).collect(),
    };
    if !names.is_empty() && (has_surplus || may_collide(all.iter())) {
        let new = NewNames { dir: dir.clone(), names, has_surplus };
        core.deferred.lock().new_names.push(new);
    }
}

/// What is left over at the target when all of the source's names were taken out. Left-overs of
/// what is copied now are continued, or removed with that.
fn gather_deletions(
    core: &Core,
    pair: &Pair,
    mut there: HashMap<Name, Attr>,
    folding: &Folding,
    steps: &[Step],
) {
    let copied =
        steps.iter().filter(|step| matches!(step.action, Action::Copy(_) | Action::MakeLink(_)));
    for partial in copied.flat_map(|step| &step.partials) {
        there.remove(&partial.file);
    }
    let own = &pair.own;
    let mut deletions: Vec<Deletion> = there
        .into_iter()
        .filter(|(last, attr)| !is_at_work(core, own, last, attr))
        .map(|(last, attr)| (own.place.name.join(&last), last, attr))
        .filter(|(name, _, attr)| !core.job.options.keeps(name, attr.is_dir()))
        .map(|(name, last, attr)| {
            // What is left out may be at the source.
            let is_excluded = core.job.options.filter.excludes(&name, attr.is_dir());
            let (source, path) = (pair.source, pair.from.join(&last));
            let absent =
                (!is_excluded).then(|| Absent { source, path, alias: folding.alias(&last) });
            let file_system = pair.file_systems.target;
            Deletion { dir: own.clone(), name, attr, absent, file_system }
        })
        .collect();
    deletions.sort_by(|a, b| a.name.cmp(&b.name));
    core.deferred.lock().deletions.extend(deletions);
}

/// Whether another run writes to the file, where that can be detected.
fn is_at_work(core: &Core, own: &Dir, name: &Name, attr: &Attr) -> bool {
    let lasts = Partial::parse(name, attr).is_some_and(|(_, partial)| partial.lasts());
    let path = own.place.path.join(name);
    lasts && core.sink.as_ref().is_some_and(|sink| matches!(sink.lock(&path), Ok(None)))
}

/// Finds which of the files have other names, where the source reports that, and what these files
/// are at the target, where that reports it.
async fn find_names(core: &Core, source: usize, steps: &mut [Step]) {
    find_names_at_source(core, source, steps).await;
    let here = |step: &Step| step.identity.is_some() && step.there.is_some_and(|it| !it.is_dir());
    for step in steps.iter_mut().filter(|step| here(step)) {
        let id = step.there.and_then(|there| there.id());
        step.identity_there = id.map(|id| (id.device, id.number));
    }
    let Some(sink) = core.sink.clone() else { return };
    let wanted = steps.iter().enumerate().filter(|(_, step)| here(step));
    let wanted = wanted.map(|(at, step)| (at, core.job.target.path_of(&step.name))).collect();
    for (at, identity) in identities(sink, wanted).await {
        steps[at].identity_there = identity.map(|(device, inode, _)| (device, inode));
    }
}

/// Device, inode and number of names of local files, each with its number.
async fn identities(
    sink: Arc<Sink>,
    wanted: Vec<(usize, RemotePath)>,
) -> Vec<(usize, Option<(u64, u64, u64)>)> {
    let identity = move |(at, path): (usize, RemotePath)| (at, sink.identity(&path));
    blocking(move || wanted.into_iter().map(identity).collect()).await
}

async fn find_names_at_source(core: &Core, source: usize, steps: &mut [Step]) {
    for step in steps.iter_mut().filter(|step| step.attr.kind == FileKind::Regular) {
        let id = step.attr.inode.filter(|inode| inode.links > 1).and_then(|inode| inode.id);
        step.identity = id.map(|id| (id.device, id.number));
    }
    let Some(sink) = core.here[source].clone() else {
        let is_unknown = |step: &Step| {
            let is_regular = step.attr.kind == FileKind::Regular;
            is_regular && step.attr.id().is_none() && !step.attr.has_one_name()
        };
        if steps.iter().any(is_unknown)
            && let Some(links) = core.links(source).await
        {
            for step in steps.iter_mut().filter(|step| is_unknown(step)) {
                step.identity = links.get(&step.from).copied();
            }
        }
        return;
    };
    let regular = steps.iter().enumerate().filter(|(_, it)| it.attr.kind == FileKind::Regular);
    let wanted = regular.map(|(at, step)| (at, step.from.clone())).collect();
    for (at, identity) in identities(sink, wanted).await {
        if let Some((device, inode, links)) = identity
            && links > 1
        {
            steps[at].identity = Some((device, inode));
        }
    }
}

/// Looks at contents where that is what decides, some at once.
pub(super) async fn settle(core: &Arc<Core>, steps: Vec<Step>) -> Vec<(Step, Verdict)> {
    let verdict = |step: &Step| decide(&core.job.options, &step.attr, step.there.as_ref());
    let verdicts: Vec<Verdict> = steps.iter().map(verdict).collect();
    let mut settled: Vec<_> = steps.into_iter().zip(verdicts).collect();
    let mut looks = JoinSet::new();
    for (at, (step, verdict)) in settled.iter().enumerate() {
        if let Verdict::ByDigest | Verdict::ByTarget = verdict
            && let Some(there) = step.there
        {
            let room = core.comparing.clone().acquire_owned().await;
            let (core, source, from) = (core.clone(), step.source, (step.from.clone(), step.attr));
            let to = (core.job.target.path_of(&step.name), there);
            looks.spawn(async move {
                let same = same_content(&core, source, (&from.0, &from.1), (&to.0, &to.1)).await;
                drop(room);
                (at, same)
            });
        }
    }
    while let Some(look) = looks.join_next().await {
        let (at, same) = ended(look).await;
        let verdict = &mut settled[at].1;
        *verdict = match (same, &*verdict) {
            (Ok(true), _) => Verdict::SameContent,
            // If a file could not be read, its copy fails and is reported.
            (_, Verdict::ByDigest) => Verdict::Is(Action::Copy(Why::Digest)),
            _ => Verdict::Is(Action::MakeLink(Why::Digest)),
        };
    }
    settled
}

/// Whether both files, or both links, have the same in them. Their attributes are those of their
/// listings.
pub(crate) async fn same_content(
    core: &Core,
    source: usize,
    (from, attr): (&RemotePath, &Attr),
    (to, there): (&RemotePath, &Attr),
) -> base::Result<bool> {
    let (source, target) = (&core.job.sources[source].tree, &core.job.target);
    if attr.kind == FileKind::Regular {
        let digests = tokio::join!(
            digest::of_known(source, from, attr, &core.reading),
            digest::of_known(target, to, there, &core.reading)
        );
        return Ok(digests.0? == digests.1?);
    }
    let links = tokio::join!(source.remote.readlink(from), target.remote.readlink(to));
    Ok(links.0? == links.1?)
}

/// What an interrupted run has left of a single file, by listing its directory.
pub(super) async fn left_of(core: &Core, dir: &Dir, file: &Name) -> Vec<Partial> {
    let listed = list_readable(&core.job.target.remote, &dir.place.path).await;
    let (_, mut partials) = sort_out(listed.unwrap_or_default().entries, &[]);
    partials.remove(&*temporary::stem(file)).unwrap_or_default()
}

/// Decides about a step, and adds the pair that follows from it.
pub(super) async fn enter(
    core: &Arc<Core>,
    file_systems: FileSystems,
    mut step: Step,
    verdict: Verdict,
    found: &mut Found,
) {
    step.action = action(core, &step.attr, step.there.as_ref(), verdict);
    if step.attr.is_dir() {
        let parent = Some(step.dir.clone());
        return enter_dir(core, step, parent, file_systems, found).await;
    }
    let in_the_way = step.there.filter(|there| step.changes() && there.is_dir());
    let in_the_way = match in_the_way {
        Some(there) if !is_empty_there(core, &step).await => there,
        _ => return found.steps.push(step),
    };
    // An excluded directory is kept with all that is in it.
    if !core.job.options.delete || core.job.options.keeps(&step.name, true) {
        // Found again, and reported, when the step is executed; a dry run would not find it.
        if core.job.options.dry_run {
            core.planned(&step);
            let name = step.name.clone();
            return core.ended(&step, Err(Fault::DirectoryInTheWay.of(&name)));
        }
        return found.steps.push(step);
    }
    core.planned(&step);
    let (name, attr) = (step.name.clone(), in_the_way);
    let (dir, file_system) = (step.dir.clone(), file_systems.target);
    let deletion = Deletion { dir, name, attr, absent: None, file_system };
    step.there = None;
    // None of its other names waits for it.
    step.identity = None;
    let mut late = core.deferred.lock();
    late.deletions.push(deletion);
    late.steps.push(step);
}

/// Whether what is at the target in the step's place has nothing in it.
async fn is_empty_there(core: &Core, step: &Step) -> bool {
    let path = core.job.target.path_of(&step.name);
    list(&core.job.target.remote, &path).await.is_ok_and(|entries| entries.is_empty())
}

/// What to do, now that contents were looked at.
pub(super) fn action(core: &Core, attr: &Attr, there: Option<&Attr>, verdict: Verdict) -> Action {
    match (verdict, there) {
        (Verdict::Is(action), _) => action,
        (_, Some(there)) => {
            let change = differing(core, attr, there);
            match change.is_empty() {
                true => Action::Nothing,
                false => Action::SetAttr(change),
            }
        }
        (_, None) => Action::Skip(Skip::Absent),
    }
}

/// A directory in `parent`: its step, and the pair if its entries are to be compared.
pub(super) async fn enter_dir(
    core: &Arc<Core>,
    mut step: Step,
    parent: Option<Arc<Dir>>,
    file_systems: FileSystems,
    found: &mut Found,
) {
    if matches!(step.action, Action::Skip(_)) {
        return found.steps.push(step);
    }
    let there = step.there.filter(Attr::is_dir);
    let place = Place {
        name: step.name.clone(),
        path: core.job.target.path_of(&step.name),
        need: need(step.there.as_ref()),
        parent,
        last: Some(Last {
            source: step.source,
            from: step.from.clone(),
            attr: step.attr,
            there: step.there,
            action: step.action.clone(),
        }),
    };
    let own = Dir::new(place, core.job.target.remote.clone(), step.dir.over());
    step.own = Some(own.clone());
    let (source, from) = (step.source, step.from.clone());
    found.steps.push(step);
    let remote = &core.job.sources[source].tree.remote;
    let (is_foreign, deletes) = tokio::join!(
        is_foreign(remote, &from, file_systems.source),
        deletes_in(core, &own, there.is_some(), file_systems)
    );
    match is_foreign {
        Ok(true) => {}
        Ok(false) => {
            let there = there.is_some();
            found.pairs.push(Pair { source, from, own, there, deletes, file_systems });
        }
        Err(errno) => {
            core.problem(&Problem::failed(&own.place.name, Doing::LookSource)(errno));
        }
    }
}

/// Whether what the source does not have is deleted in a directory of the target.
async fn deletes_in(core: &Core, own: &Dir, there: bool, file_systems: FileSystems) -> bool {
    if !core.job.options.delete || !there {
        return core.job.options.delete;
    }
    match is_foreign(&core.job.target.remote, &own.place.path, file_systems.target).await {
        Ok(is_foreign) => !is_foreign,
        Err(errno) => {
            core.problem(&Problem::failed(&own.place.name, Doing::LookTarget)(errno));
            false
        }
    }
}

/// What must be done before anything in a directory is changed.
fn need(there: Option<&Attr>) -> Need {
    match there {
        None => Need::Make,
        Some(there) if !there.is_dir() => Need::Replace,
        Some(there) if there.perm & 0o700 != 0o700 => Need::Widen(there.perm | 0o700),
        Some(_) => Need::Nothing,
    }
}
