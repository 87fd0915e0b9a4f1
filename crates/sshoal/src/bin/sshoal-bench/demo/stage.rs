//! The output of the demo: headings, commands, their output, results. Colours on a terminal only.

use std::cell::Cell;
use std::io::Write;

use cli::printable;

/// Maximum lines of a command's output that are shown; the rest is counted.
const SHOWN_LINES: usize = 8;

/// Maximum length of a line, in characters: fits a usual terminal after the indentation.
const SHOWN_WIDTH: usize = 96;

pub(super) struct Stage {
    colours: bool,
    steps: Cell<usize>,
}

impl Stage {
    pub(super) fn new() -> Stage {
        let colours = rustix::termios::isatty(std::io::stdout())
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Stage { colours, steps: Cell::new(0) }
    }

    /// A closed terminal must not prevent the cleanup.
    fn line(&self, style: &str, text: &str) {
        let mut out = std::io::stdout().lock();
        let _ = match self.colours {
            true => writeln!(out, "\x1b[{style}m{text}\x1b[0m"),
            false => writeln!(out, "{text}"),
        };
        let _ = out.flush();
    }

    pub(super) fn heading(&self, text: &str) {
        self.steps.set(self.steps.get() + 1);
        self.line("0", "");
        self.line("1", &format!("{}. {text}", self.steps.get()));
    }

    pub(super) fn command(&self, line: &str) {
        self.line("36", &format!("   $ {line}"));
    }

    pub(super) fn output(&self, text: &str) {
        let lines: Vec<&str> = text.lines().collect();
        // One more line takes no more space than the line that counts it.
        let shown = if lines.len() <= SHOWN_LINES + 1 { lines.len() } else { SHOWN_LINES };
        for line in &lines[..shown] {
            let line = printable(line.replace('\t', "  "));
            let cut: String = line.chars().take(SHOWN_WIDTH).collect();
            self.line("0", &format!("     {cut}"));
        }
        if shown < lines.len() {
            self.line("2", &format!("     … and {} lines more", lines.len() - shown));
        }
    }

    pub(super) fn proof(&self, text: &str) {
        self.line("32", &format!("   ✓ {text}"));
    }

    pub(super) fn note(&self, text: &str) {
        self.line("0", &format!("   {text}"));
    }
}
