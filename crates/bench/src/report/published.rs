//! The tables of a published comparison that the run repeats, with the published figures.

use crate::measure::{AS_CACHED, Measure, Unit};
use crate::published::{Published, Shape, Tabled, Times};
use crate::results::{Measured, SubjectInfo, Usage};
use crate::units;

use super::bars;
use super::document::{self, Block, Cell, Row, Section, Table, row, table_of};
use super::view::{Figure, Figures, View, label, title};

/// No figure is known.
const UNKNOWN: &str = "–";

/// The comparison that the run repeats, if it is known here.
fn repeated(view: &View<'_>) -> Option<&'static Published> {
    Published::named(view.results.settings.repeats.as_deref()?)
}

/// Whether the section has a chart of a measure.
pub(super) fn has_chart(view: &View<'_>, measure: &Measure) -> bool {
    let mut tables = repeated(view).into_iter().flat_map(|published| published.tables);
    tables.any(|tabled| tabled.shape != Shape::Runs && tabled.has(&measure.id))
}

/// The section of the comparison.
pub(super) fn section(view: &View<'_>) -> Option<Section> {
    let published = repeated(view)?;
    let mut blocks = Vec::new();
    for tabled in published.tables {
        let tables = view.tables(|measure| tabled.has(&measure.id));
        if tables.is_empty() {
            continue;
        }
        if tabled.shape == Shape::Runs {
            blocks.extend(runs(view, published, tabled).map(Block::Table));
            continue;
        }
        blocks.push(Block::Table(subject_rows(published, tabled, &tables)));
        let charts = tables.iter().flat_map(|figures| bars::of_rows(figures, |_| true));
        blocks.push(Block::Charts(charts.collect()));
        if tabled.shape == Shape::WithDetails {
            blocks.extend(details(view, tabled));
        }
    }
    blocks.push(Block::List { heading: "The source".to_owned(), lines: facts(published) });
    Some(document::section("published", &format!("As published: {}", published.name), blocks))
}

fn facts(published: &Published) -> Vec<String> {
    let source = (!published.source.is_empty())
        .then(|| format!("Published at {} with all figures.", published.source));
    let marks = match published.figures.is_empty() && published.runs.is_empty() {
        true => format!("No published figure is known here: {UNKNOWN}."),
        false => format!(
            "Published figures are in brackets or columns of their own, with their ratio to {}; \
             {UNKNOWN} where a figure is not known here. They come from other machines: compare \
             ratios only.",
            published.baseline
        ),
    };
    let notes = published.notes.iter().map(|&note| note.to_owned());
    source.into_iter().chain([marks]).chain(notes).collect()
}

/// The published figure of a measure of a subject of the source.
fn note(published: &Published, measure: &Measure, subject: &SubjectInfo) -> Option<String> {
    if !published.subjects.contains(&subject.name.as_str()) {
        return None;
    }
    let Some(figure) = published.figure(&subject.name, &measure.id) else {
        return Some(format!("[{UNKNOWN}]"));
    };
    let about = if figure.is_rough { "about " } else { "" };
    let value = units::scale(measure.unit).show(figure.value);
    let ratio = published.ratio(figure, measure).map(|ratio| format!(" {}", units::ratio(ratio)));
    Some(format!("[{about}{value}{}]", ratio.unwrap_or_default()))
}

/// A row for each subject, a column for each measure. The columns may have different units. A figure
/// with caches as they were is in the column of the cold ones.
fn subject_rows(published: &Published, tabled: &Tabled, tables: &[Figures<'_>]) -> Table {
    let mut subjects: Vec<&SubjectInfo> = Vec::new();
    for subject in tables.iter().flat_map(|figures| &figures.subjects) {
        if !subjects.iter().any(|known| known.name == subject.name) {
            subjects.push(subject);
        }
    }
    let all = || tables.iter().flat_map(|it| it.rows.iter().map(move |row| (it, row)));
    let find = |id: &str| all().find(|(_, (measure, _))| measure.id == id);
    let is_own = |(_, (measure, _)): &(_, &(&Measure, _))| {
        measure.id.strip_suffix(AS_CACHED).is_none_or(|cold| find(cold).is_none())
    };
    let columns: Vec<_> = all().filter(is_own).collect();
    // What all of them begin with behind the name of their work is in the caption.
    let common = match tabled.measures {
        [begin] => begin.split_once('.').map_or("", |(_, rest)| rest),
        _ => "",
    };
    let header: Vec<String> = columns
        .iter()
        .map(|(figures, (measure, _))| {
            let label = label(measure, false);
            let label = label.strip_prefix(common).unwrap_or(&label);
            format!("{label}, {}", figures.scale.short)
        })
        .collect();
    let rows = subjects.into_iter().map(|subject| {
        let figure = |(figures, (_, cells)): &(&Figures<'_>, &(&Measure, Vec<_>))| {
            let number = figures.subjects.iter().position(|it| it.name == subject.name)?;
            let has_any = !matches!(cells[number], Figure::Absent);
            has_any.then(|| Cell::of(&cells[number], figures))
        };
        let cell = |column: &(_, &(&Measure, _))| {
            let measure = column.1.0;
            let as_cached = || {
                let cell = figure(&find(&format!("{}{AS_CACHED}", measure.id))?)?;
                Some(Cell { note: Some("as cached".to_owned()), ..cell })
            };
            let own = figure(column).or_else(as_cached);
            let own = own.unwrap_or_else(|| UNKNOWN.to_owned().into());
            let notes = own.note.into_iter().chain(note(published, measure, subject));
            let notes: Vec<String> = notes.collect();
            Cell { note: (!notes.is_empty()).then(|| notes.join(" ")), ..own }
        };
        let cells = columns.iter().map(cell).collect();
        Row { name: subject.name.clone(), short: subject.name.clone(), cells }
    });
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    Table::new(tabled.caption, &header, rows.collect())
}

/// The rate of copies, and the CPU of all.
fn details(view: &View<'_>, tabled: &Tabled) -> impl Iterator<Item = Block> {
    let table = |what: &str, of: &dyn Fn(&Measure, &str) -> Option<String>| {
        let measures = view.results.measures.iter().filter(|measure| tabled.has(&measure.id));
        table_of(
            view,
            format!("{}: {what}", tabled.caption),
            measures,
            |measure| (title(measure), label(measure, false)),
            |measure, subject| of(measure, &subject.name),
        )
    };
    let rate = table("MB/s", &|measure, subject| {
        let rate = view.median_of(&measure.id, subject, |it| {
            (measure.unit == Unit::Seconds && it.bytes > 0).then(|| it.bytes as f64 / it.seconds)
        });
        Some(units::significant(rate? / 1e6))
    });
    let cpu = table("percent of one CPU, client / server", &|measure, subject| {
        let client = view.median_of(&measure.id, subject, |it| Some(busy(it.client, it.seconds)));
        let server = view.median_of(&measure.id, subject, |it| Some(busy(it.server?, it.seconds)));
        let has_any = client > Some(0.0);
        let shown = [client, server].map(|it| it.map_or(UNKNOWN.to_owned(), units::significant));
        has_any.then(|| shown.join(" / "))
    });
    let tables = [rate, cpu].into_iter().flatten();
    tables.map(|table| Block::Table(table.transposed()))
}

/// Percent of one CPU.
fn busy(usage: Usage, seconds: f64) -> f64 {
    (usage.user_s + usage.system_s) / seconds * 100.0
}

/// What the runs of one program with one cipher have in common.
struct Program<'v> {
    name: String,
    runs: Vec<(u32, [f64; 3])>,
    published: Vec<&'static Times>,
    is_baseline: bool,
    has_failed: bool,
    subject: &'v str,
}

impl Program<'_> {
    /// Means of real, user and system time.
    fn means(&self) -> Option<[f64; 3]> {
        means(self.runs.iter().map(|(_, seconds)| *seconds))
    }
}

fn means(runs: impl Iterator<Item = [f64; 3]>) -> Option<[f64; 3]> {
    let runs: Vec<[f64; 3]> = runs.collect();
    let mean = |part: usize| runs.iter().map(|run| run[part]).sum::<f64>() / runs.len() as f64;
    (!runs.is_empty()).then(|| [mean(0), mean(1), mean(2)])
}

/// Real, user and system time of a run: of all processes of this machine's side.
fn times(measured: &Measured) -> [f64; 3] {
    let program = measured.application.unwrap_or_default();
    [
        measured.seconds,
        measured.client.user_s + program.user_s,
        measured.client.system_s + program.system_s,
    ]
}

/// Each run, and the means, the fastest first.
fn runs(view: &View<'_>, published: &Published, tabled: &Tabled) -> impl Iterator<Item = Table> {
    let mut programs = programs(view, published, tabled);
    let shown = |times: [f64; 3]| times.map(units::significant);
    let mut rows = Vec::new();
    for program in &programs {
        for (round, seconds) in &program.runs {
            let then = program.published.iter().find(|it| it.round == *round);
            let then = match then {
                Some(then) => shown(then.seconds).join(" / "),
                None => UNKNOWN.to_owned(),
            };
            let name = format!("{}, run {}", program.name, round + 1);
            rows.push(row(name, shown(*seconds).into_iter().chain([then])));
        }
        if program.has_failed {
            let failed = Cell { bad: Some("failed".to_owned()), ..Cell::default() };
            rows.push(Row { cells: vec![failed; 4], ..row(&program.name, []) });
        }
    }
    let header = ["real s", "user s", "system s", "published"];
    let caption = format!("{}: each run", tabled.caption);
    let each = Table::new(caption, &header, rows);

    let of_baseline = programs.iter().find(|it| it.is_baseline);
    let baseline = of_baseline.and_then(Program::means).map(|means| means[0]);
    let name_of_baseline = of_baseline.map_or(published.baseline, |it| it.subject).to_owned();
    let published_baseline = of_baseline.and_then(|it| means(seconds_of(&it.published)));
    programs.sort_by(|one, other| {
        let real = |it: &Program<'_>| it.means().map_or(f64::INFINITY, |means| means[0]);
        real(one).total_cmp(&real(other))
    });
    let ratio = |of: Option<f64>, to: Option<f64>| {
        let ratio = of.zip(to).map(|(of, to)| units::ratio(to / of));
        ratio.unwrap_or_else(|| UNKNOWN.to_owned())
    };
    let rows = programs.iter().filter_map(|program| {
        let means = program.means()?;
        let then = self::means(seconds_of(&program.published));
        let own = shown(means).into_iter().chain([ratio(Some(means[0]), baseline)]);
        let real_then = then.map(|then| then[0]);
        let of_source = [
            real_then.map_or(UNKNOWN.to_owned(), units::significant),
            ratio(real_then, published_baseline.map(|then| then[0])),
        ];
        Some(row(&program.name, own.chain(of_source)))
    });
    let header = ["real s", "user s", "system s", "ratio", "published s", "published ratio"];
    let caption = format!(
        "{}: means of the runs, the fastest first; ratios of means to {name_of_baseline} with its own \
         cipher, without a test of significance",
        tabled.caption
    );
    let ranking = Table::new(caption, &header, rows.collect());
    [each, ranking].into_iter().filter(|table| !table.rows.is_empty())
}

fn seconds_of(runs: &[&'static Times]) -> impl Iterator<Item = [f64; 3]> {
    runs.iter().map(|run| run.seconds)
}

/// The programs and ciphers of a table, in the order of the subjects.
fn programs<'v>(view: &'v View<'_>, published: &Published, tabled: &Tabled) -> Vec<Program<'v>> {
    let mut programs = Vec::new();
    for subject in view.results.subjects.iter().filter(|it| it.control_of.is_none()) {
        for measure in view.results.measures.iter().filter(|measure| tabled.has(&measure.id)) {
            let Some(cell) = view.index.cell(&measure.id, &subject.name) else { continue };
            let begin = tabled.measures.iter().find(|begin| measure.id.starts_with(**begin));
            let variant = begin.map_or(&*measure.id, |begin| &measure.id[begin.len()..]);
            programs.push(Program {
                name: format!("{}, {variant}", subject.name),
                runs: cell.rounds().map(|(round, measured)| (round, times(measured))).collect(),
                published: published.runs(&subject.name, &measure.id).collect(),
                is_baseline: subject.name == published.baseline && variant == "default",
                has_failed: cell.failed() > 0,
                subject: &subject.name,
            });
        }
    }
    programs
}
