//! The content of a report, before it has a form.

use std::collections::BTreeMap;

use maud::Markup;

use crate::measure::{Measure, Unit};
use crate::quoting::shown_command;
use crate::results::{Latency, LeftOut, Measured, Outcome, Ratio, SubjectInfo, Summary, Usage};
use crate::stats::FailureLine;
use crate::units;

use super::view::{Figure, Figures, View, family_of, label, title};
use super::{bars, cpu_trace, method, published, ranking};

/// Characters of a failure that are shown: a program may report an error for each of many files.
const FAILURE_CHARACTERS: usize = 240;

/// A whole report.
pub(super) struct Document {
    pub(super) title: String,
    /// Date, link, size, number of rounds.
    pub(super) facts: String,
    /// What the marks mean.
    pub(super) legend: String,
    /// What a reader must know first.
    pub(super) banners: Vec<String>,
    pub(super) sections: Vec<Section>,
    /// How many of the sections have the result of the run.
    pub(super) first: usize,
}

pub(super) struct Section {
    /// Unique in a document; printable in an attribute.
    pub(super) id: String,
    pub(super) title: String,
    /// Not shown on a terminal.
    pub(super) only_in_files: bool,
    pub(super) blocks: Vec<Block>,
}

pub(super) enum Block {
    List {
        heading: String,
        lines: Vec<String>,
    },
    Table(Table),
    /// For the page only: the figures are also in a table.
    Charts(Vec<Drawing>),
    Command(String),
}

/// A chart.
pub(super) struct Drawing {
    pub(super) title: String,
    /// Behind the title.
    pub(super) caption: String,
    /// For a reader who does not see it: its name, and what it shows.
    pub(super) name: String,
    pub(super) described: String,
    pub(super) height: f64,
    pub(super) marks: Markup,
}

pub(crate) struct Table {
    pub(super) caption: String,
    /// Without the column of row names.
    pub(super) header: Vec<String>,
    pub(super) rows: Vec<Row>,
    /// Cells are words rather than figures.
    pub(super) words: bool,
}

pub(crate) struct Row {
    pub(super) name: String,
    /// For a terminal.
    pub(super) short: String,
    pub(super) cells: Vec<Cell>,
}

/// One figure, or words.
#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    pub(super) value: String,
    pub(super) is_best: bool,
    /// Its quartiles.
    pub(super) spread: Option<String>,
    pub(super) ratio: Option<Judged>,
    /// Failures, wrong data.
    pub(super) bad: Option<String>,
    /// Words behind it, such as the published figure.
    pub(super) note: Option<String>,
}

/// The failure of a sample with such data.
pub(super) const WRONG_DATA: &str = "wrong data";

/// A ratio as it is shown.
#[derive(Clone, Debug)]
pub(super) struct Judged {
    /// With `≈` where it may be chance.
    pub(super) text: String,
    /// It is significant, and this side of 1.
    pub(super) is_better: Option<bool>,
}

impl Judged {
    pub(super) fn of(ratio: &Ratio) -> Judged {
        let mark = if ratio.significant { "" } else { "≈" };
        let text = format!("{mark}{}", units::ratio(ratio.value));
        Judged { text, is_better: ratio.significant.then_some(ratio.value > 1.0) }
    }
}

impl From<String> for Cell {
    fn from(value: String) -> Cell {
        Cell { value, ..Cell::default() }
    }
}

impl Cell {
    pub(super) fn of(figure: &Figure<'_>, figures: &Figures<'_>) -> Cell {
        let shown = |value: f64| figures.scale.show(value);
        match figure {
            Figure::Absent => "–".to_owned().into(),
            Figure::Failed { wrong_data } => {
                let word = if *wrong_data { WRONG_DATA } else { "failed" };
                Cell { bad: Some(word.to_owned()), ..Cell::default() }
            }
            Figure::Value { summary, is_best, wrong_data } => Cell {
                value: shown(summary.spread.median),
                is_best: *is_best,
                spread: (summary.n > 1).then(|| {
                    format!("{}–{}", shown(summary.spread.low), shown(summary.spread.high))
                }),
                ratio: summary.ratio.as_ref().map(Judged::of),
                bad: match (*wrong_data, summary.failed) {
                    (true, _) => Some(WRONG_DATA.to_owned()),
                    (false, 0) => None,
                    (false, failed) => Some(format!("{failed} failed")),
                },
                note: None,
            },
        }
    }
}

impl Table {
    /// A table of figures.
    pub(crate) fn new(caption: impl Into<String>, header: &[&str], rows: Vec<Row>) -> Table {
        let header = header.iter().map(|&word| word.to_owned()).collect();
        Table { caption: caption.into(), header, rows, words: false }
    }

    /// The table with its rows as columns.
    pub(super) fn transposed(self) -> Table {
        let rows = self.header.iter().enumerate().map(|(number, name)| Row {
            name: name.clone(),
            short: name.clone(),
            cells: self.rows.iter().map(|row| row.cells[number].clone()).collect(),
        });
        let header = self.rows.iter().map(|row| row.short.clone()).collect();
        Table { rows: rows.collect(), header, ..self }
    }
}

pub(crate) fn row(name: impl Into<String>, cells: impl IntoIterator<Item = String>) -> Row {
    let name = name.into();
    Row { short: name.clone(), name, cells: cells.into_iter().map(Cell::from).collect() }
}

pub(super) fn section(id: &str, title: &str, blocks: Vec<Block>) -> Section {
    Section { id: id.to_owned(), title: title.to_owned(), only_in_files: false, blocks }
}

/// Arranges a run.
pub(super) fn document(view: &View<'_>) -> Document {
    let (results, settings) = (view.results, &view.results.settings);
    let rounds = units::counted(settings.rounds.into(), "round");
    let factor = settings.factor.filter(|&factor| factor != 1.0);
    let factor = factor.map(|factor| format!(" × {factor}")).unwrap_or_default();
    let wrong_data = view.failures.iter().any(|line| line.wrong_data);
    let banners = [
        wrong_data.then(|| "Wrong data was seen: see the failures.".to_owned()),
        results.partial.as_ref().map(|why| format!("The run is not complete: {why}")),
    ];
    let mut sections = vec![summary(view)];
    sections.extend(published::section(view));
    let first = sections.len();
    let families = view.families();
    sections.extend(families.iter().map(|(name, tables)| family(view, name, tables)));
    sections.extend(latency(view));
    sections.extend(cost(view));
    sections.extend(cpu_trace::section(view));
    sections.push(Section {
        only_in_files: true,
        ..section("method", "Machine and method", about(view))
    });
    Document {
        title: format!("{}, {}", results.program, minute(&results.started)),
        facts: format!("link {}, size {}{factor}, {rounds}", method::link(view), settings.size),
        legend: format!(
            "Medians of {rounds}; ratios to {}, above 1 is better; ≈ may be chance.",
            settings.reference
        ),
        banners: banners.into_iter().flatten().collect(),
        sections,
        first,
    }
}

/// The ranking of the subjects, and what a reader must know of the run.
fn summary(view: &View<'_>) -> Section {
    let reference = &view.results.settings.reference;
    let header = ["best in", "clearly", "better", "worse", "≈", "typical", "failed"];
    let rows = ranking::ranks(view).into_iter().map(|(subject, cells)| row(&subject.name, cells));
    let caption = format!("summary (better, worse, ≈, typical: than {reference})");
    let mut blocks = vec![Block::Table(Table::new(caption, &header, rows.collect()))];
    let lists: [(&str, Vec<String>); 3] = [
        ("Failures", view.failures.iter().map(failure_line).collect()),
        ("Left out", left_out_lines(&view.results.left_out)),
        ("Warnings", view.warnings.clone()),
    ];
    blocks.extend(lists.map(|(heading, lines)| Block::List { heading: heading.to_owned(), lines }));
    blocks.retain(|block| !matches!(block, Block::List { lines, .. } if lines.is_empty()));
    section("summary", "Summary", blocks)
}

fn failure_line(line: &FailureLine) -> String {
    let rounds: Vec<String> = line.rounds.iter().map(|round| (round + 1).to_string()).collect();
    let noun = if rounds.len() == 1 { "round" } else { "rounds" };
    let why = line.why.lines().collect::<Vec<_>>().join("; ");
    let why = match why.char_indices().nth(FAILURE_CHARACTERS) {
        Some((end, _)) => format!("{} … (the rest is in results.json)", why[..end].trim_end()),
        None => why,
    };
    format!("{} of {}, {noun} {}: {why}", line.measure, line.subject, rounds.join(", "))
}

/// A line for each reason.
fn left_out_lines(all: &[LeftOut]) -> Vec<String> {
    let of_one_reason =
        |one: &LeftOut, other: &LeftOut| (&one.why, &one.remedy) == (&other.why, &other.remedy);
    let line = |alike: &[LeftOut]| {
        let names: Vec<&str> = alike.iter().map(|it| it.name.as_str()).collect();
        let remedy = alike[0].remedy.as_ref().map_or(String::new(), |it| format!(" ({it})"));
        format!("{}: {}{remedy}", names.join(", "), alike[0].why)
    };
    all.chunk_by(of_one_reason).map(line).collect()
}

/// A time of RFC 3339 for people, without seconds and zone: `2026-11-21 09:30`.
fn minute(time: &str) -> String {
    time.get(..16).unwrap_or(time).replace('T', " ")
}

/// A table and the charts of one workload, but for those that are shown as published.
fn family(view: &View<'_>, name: &str, tables: &[Figures<'_>]) -> Section {
    let mut blocks = Vec::new();
    for figures in tables {
        let is_new = |measure: &Measure| !published::has_chart(view, measure);
        blocks.push(Block::Charts(bars::of_rows(figures, is_new)));
        blocks.push(Block::Table(measure_rows(name, figures)));
    }
    // Names from a file may hold anything.
    let plain = |char: char| if char.is_ascii_alphanumeric() { char } else { '-' };
    section(&format!("work-{}", name.chars().map(plain).collect::<String>()), name, blocks)
}

/// A table of measures as rows and subjects as columns.
fn measure_rows(name: &str, figures: &Figures<'_>) -> Table {
    let rows = figures.rows.iter().map(|(measure, cells)| Row {
        name: title(measure),
        short: label(measure, false),
        cells: cells.iter().map(|figure| Cell::of(figure, figures)).collect(),
    });
    let caption = format!("{name}, {} ({})", figures.scale.unit, figures.direction());
    Table::new(caption, &names(&figures.subjects), rows.collect())
}

fn names<'a>(subjects: &[&'a SubjectInfo]) -> Vec<&'a str> {
    subjects.iter().map(|subject| subject.name.as_str()).collect()
}

/// A figure of a sample that may be known.
type Part<'a> = &'a dyn Fn(&Measured) -> Option<f64>;

/// A table with a row for each measure of each subject for which `cells` gives any. It receives the
/// median over the rounds of something of the samples.
fn table_of_steps(
    view: &View<'_>,
    caption: &str,
    header: &[&str],
    cells: impl Fn(&dyn Fn(Part<'_>) -> Option<f64>) -> Option<Vec<String>>,
) -> Option<Block> {
    let mut rows = Vec::new();
    for measure in &view.results.measures {
        for subject in &view.results.subjects {
            let median = |part: Part<'_>| view.median_of(&measure.id, &subject.name, part);
            let Some(cells) = cells(&median) else { continue };
            let short = format!("{}, {}", measure.id, subject.name);
            rows.push(Row { short, ..row(format!("{}, {}", title(measure), subject.name), cells) });
        }
    }
    let is_empty = rows.is_empty();
    (!is_empty).then(|| Block::Table(Table::new(caption, header, rows)))
}

/// Three digits, or a dash where nothing is known.
fn figure(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), units::significant)
}

/// Percentiles of single operations, where they were timed.
fn latency(view: &View<'_>) -> Option<Section> {
    let parts: [fn(&Latency) -> f64; 7] = [
        |latency| latency.mean_us,
        |latency| latency.p50_us,
        |latency| latency.p90_us,
        |latency| latency.p99_us,
        |latency| latency.p999_us,
        |latency| latency.max_us,
        |latency| latency.count as f64,
    ];
    let header = ["mean", "50 %", "90 %", "99 %", "99.9 %", "slowest", "operations"];
    let caption = "single operations: percentiles in µs, medians of the rounds";
    let table = table_of_steps(view, caption, &header, |median| {
        let cells = parts.map(|part| median(&|it| it.latency.as_ref().map(part)));
        cells[0].is_some().then(|| cells.map(figure).into())
    });
    table.map(|table| section("latency", "Single operations", vec![table]))
}

/// CPU of both sides, and memory of the client.
fn cost(view: &View<'_>) -> Option<Section> {
    type Sides = fn(&Summary) -> (Option<f64>, Option<f64>);
    let gigabyte: Sides = |s| (s.client_cpu_s_per_gb, s.server_cpu_s_per_gb);
    let thousand: Sides = |s| (s.client_cpu_s_per_kop, s.server_cpu_s_per_kop);
    // A subject without processes, such as the local disk, has no CPU.
    let has = |sides: (Option<f64>, Option<f64>)| !matches!(sides, (None | Some(0.0), None));
    let any = |measure: &Measure, sides: Sides| {
        view.summaries.iter().any(|s| s.measure == measure.id && has(sides(s)))
    };
    let mut blocks = Vec::new();
    for (per, sides, other, moves_data) in
        [("GB", gigabyte, thousand, true), ("1000 operations", thousand, gigabyte, false)]
    {
        let preferred = |m: &Measure| (m.unit == Unit::BytesPerSecond) == moves_data;
        let wanted = |m: &Measure| any(m, sides) && (preferred(m) || !any(m, other));
        let table = table_of(
            view,
            format!("CPU seconds per {per}, client / server"),
            view.results.measures.iter().filter(|measure| wanted(measure)),
            |measure| (title(measure), label(measure, true)),
            |measure, subject| {
                let sides = sides(view.summary(&measure.id, &subject.name)?);
                has(sides).then(|| format!("{} / {}", figure(sides.0), figure(sides.1)))
            },
        );
        blocks.extend(table.map(Block::Table));
    }
    let memory = table_of(
        view,
        "greatest memory of the client side, MiB".to_owned(),
        view.families().into_iter().map(|(family, _)| family),
        |family| ((*family).to_owned(), (*family).to_owned()),
        |family, subject| {
            let of_both =
                |s: &&Summary| s.subject == subject.name && family_of(&s.measure) == *family;
            let peaks = view.summaries.iter().filter(of_both).filter_map(|s| s.peak_memory_bytes);
            peaks.max().map(units::mebibytes)
        },
    );
    blocks.extend(memory.map(Block::Table));
    blocks.extend(steps(view));
    blocks.extend(requests(view));
    let is_empty = blocks.is_empty();
    (!is_empty).then(|| section("cost", "CPU, memory and bytes on the link", blocks))
}

/// User and system time of all processes, and bytes on the link, of each step.
fn steps(view: &View<'_>) -> Option<Block> {
    let times: [fn(&Measured) -> Option<Usage>; 3] =
        [|it| Some(it.client), |it| it.application, |it| it.server];
    let has_wire = view.results.samples.iter().any(
        |sample| matches!(&sample.outcome, Outcome::Measured(measured) if measured.wire.is_some()),
    );
    let header = ["real s", "client", "program", "server", "MB out/in"];
    let header = if has_wire { &header[..] } else { &header[..4] };
    let caption = "each step: user+system time in s of the client, of the program that uses a mount, of \
                   the server; bytes on the link to/from the server; medians of the rounds";
    table_of_steps(view, caption, header, |median| {
        let mut cells = vec![units::significant(median(&|it| Some(it.seconds))?)];
        cells.extend(times.map(|usage| {
            let user = median(&|it| Some(usage(it)?.user_s));
            let both = user.zip(median(&|it| Some(usage(it)?.system_s)));
            // The kernel divides by ticks of 10 ms.
            both.map_or_else(|| "–".to_owned(), |(user, system)| format!("{user:.2}+{system:.2}"))
        }));
        if has_wire {
            let to = median(&|it| Some(it.wire?.to_server_bytes as f64 / 1e6));
            let from = median(&|it| Some(it.wire?.from_server_bytes as f64 / 1e6));
            cells.push([to, from].map(figure).join("/"));
        }
        Some(cells)
    })
}

/// Requests of the kernel and to the server in each step, of subjects that count them.
fn requests(view: &View<'_>) -> Option<Block> {
    type Counts = BTreeMap<String, u64>;
    let sum = |of: &Counts, wanted: &dyn Fn(&str) -> bool| -> f64 {
        of.iter().filter(|(name, _)| wanted(name)).map(|(_, number)| number).sum::<u64>() as f64
    };
    let header = ["look-ups", "getattrs", "opens", "all of the kernel", "hits %", "to the server"];
    let caption = "requests in each step: of the kernel to the mount, the percentage of look-ups, \
                   getattrs, opens and reads that needed no request to the server, and requests to \
                   the server; medians of the rounds";
    table_of_steps(view, caption, &header, |median| {
        let kernel = |names: &[&str]| {
            median(&|it| Some(sum(&it.requests.as_ref()?.kernel, &|name| names.contains(&name))))
        };
        let hits = |it: &Measured| {
            let caches = &it.requests.as_ref()?.caches;
            let hits = sum(caches, &|name| name.ends_with("_hits"));
            let all = hits + sum(caches, &|name| name.ends_with("_misses"));
            (all > 0.0).then(|| 100.0 * hits / all)
        };
        let cells = [
            kernel(&["lookup"]),
            kernel(&["getattr", "statx"]),
            kernel(&["open", "create"]),
            median(&|it| Some(sum(&it.requests.as_ref()?.kernel, &|_| true))),
            median(&hits),
            median(&|it| Some(sum(&it.requests.as_ref()?.server, &|_| true))),
        ];
        cells[0].is_some().then(|| cells.map(figure).into())
    })
}

/// A table of the subjects that have any value, if any has one.
pub(super) fn table_of<T>(
    view: &View<'_>,
    caption: String,
    of: impl Iterator<Item = T>,
    name: impl Fn(&T) -> (String, String),
    value: impl Fn(&T, &SubjectInfo) -> Option<String>,
) -> Option<Table> {
    let of: Vec<T> = of.collect();
    let has = |subject: &&SubjectInfo| of.iter().any(|it| value(it, subject).is_some());
    let subjects: Vec<&SubjectInfo> = view.results.subjects.iter().filter(has).collect();
    let rows: Vec<Row> = of
        .iter()
        .filter(|it| subjects.iter().any(|subject| value(it, subject).is_some()))
        .map(|it| {
            let cell = |subject: &&SubjectInfo| value(it, subject).unwrap_or("–".to_owned());
            let (name, short) = name(it);
            Row { short, ..row(name, subjects.iter().map(cell)) }
        })
        .collect();
    let is_empty = rows.is_empty() || subjects.is_empty();
    (!is_empty).then(|| Table::new(caption, &names(&subjects), rows))
}

/// The machine, the subjects, the method, and the command.
fn about(view: &View<'_>) -> Vec<Block> {
    let results = view.results;
    let words = |caption: &str, header: &[&str], rows: Vec<Row>| {
        Block::Table(Table { words: true, ..Table::new(caption, header, rows) })
    };
    let facts = method::facts(view).into_iter().map(|(name, value)| row(name, [value]));
    let subjects = results.subjects.iter().map(|subject| {
        let control = subject.control_of.as_ref().map(|of| format!(", control of {of}"));
        let kind = format!("{}{}", subject.kind, control.unwrap_or_default());
        let cipher = subject.cipher.clone().unwrap_or("–".to_owned());
        row(&subject.name, [kind, subject.version.clone(), cipher, subject.command.clone()])
    });
    let versions = results.environment.versions.iter();
    let versions = versions.map(|(program, version)| row(program, [version.clone()]));
    let mut blocks = vec![
        words("machine and settings", &[""], facts.collect()),
        words("subjects", &["kind", "version", "cipher", "command"], subjects.collect()),
        words("programs", &[""], versions.collect()),
    ];
    if !results.settings.command.is_empty() {
        blocks.push(Block::Command(shown_command(&results.settings.command)));
    }
    blocks
}
