//! The progress of a copy or a fetch, as one line of a terminal.

use std::time::Duration;

use indicatif::ProgressStyle;

/// Width of the bar in columns.
const BAR: usize = 14;

/// Width of a terminal that does not report any, in columns.
const USUAL_COLUMNS: u16 = 80;

/// The values shown.
pub struct Frame {
    pub files: u64,
    pub all: u64,
    pub bytes: u64,
    pub total: u64,
    /// Bytes transferred over the network; the rate and the time left are computed from these.
    pub moved: u64,
    /// `all` and `total` are final.
    pub planned: bool,
    pub elapsed: Duration,
    /// Formats a number of bytes.
    pub unit: fn(u64) -> String,
}

impl Frame {
    /// A line of at most this many columns; the least important parts are left out first.
    pub fn line(&self, width: usize) -> String {
        let unit = self.unit;
        let filled = match self.total {
            0 => 0,
            total => (BAR as u64 * self.bytes.min(total) / total) as usize,
        };
        let rate = self.moved as f64 / self.elapsed.as_secs_f64().max(1e-3);
        let mut parts = vec![format!("{} of {}", unit(self.bytes), unit(self.total))];
        parts.push(format!("{}/s", unit(rate as u64)));
        // The total is not known yet.
        if self.planned && self.moved > 0 {
            let left = self.total.saturating_sub(self.bytes) as f64 / rate.max(1.0);
            parts.push(format!("{} left", clock(left)));
        }
        let more = if self.planned { "" } else { "+" };
        parts.push(format!("{} of {}{more} files", self.files, self.all));
        let mut line = format!("{}{}", "#".repeat(filled), "-".repeat(BAR - filled));
        for part in parts {
            if line.len() + 2 + part.len() <= width {
                line += "  ";
                line += &part;
            }
        }
        line.truncate(width);
        line
    }
}

/// A bar that shows only its message.
pub fn style() -> ProgressStyle {
    ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// The maximum width of a line on this terminal, in columns.
pub fn columns() -> usize {
    let columns = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(0, |it| it.ws_col);
    let columns = if columns == 0 { USUAL_COLUMNS } else { columns };
    // A line of the full width wraps on some terminals.
    usize::from(columns) - 1
}

/// Seconds as minutes and seconds, with hours if any.
fn clock(seconds: f64) -> String {
    let seconds = seconds as u64;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        hours => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity;

    fn frame(files: (u64, u64), bytes: (u64, u64), planned: bool) -> Frame {
        let (elapsed, unit) = (Duration::from_secs(60), quantity::bytes);
        let ((files, all), (bytes, total)) = (files, bytes);
        Frame { files, all, bytes, total, moved: bytes, planned, elapsed, unit }
    }

    #[test]
    fn a_line_fits_every_terminal() {
        for (files, bytes) in [
            ((0, 0), (0, 0)),
            ((5, 3006), (1 << 20, 1_260_000_000)),
            ((1_234_567, 2_345_678), (123_456_789_012, 999_999_999_999)),
        ] {
            for planned in [true, false] {
                let frame = frame(files, bytes, planned);
                for width in [10, 40, 79, 120, 200] {
                    assert!(frame.line(width).len() <= width, "{}", frame.line(width));
                }
                let wide = frame.line(120);
                assert!(wide.ends_with(if planned { " files" } else { "+ files" }), "{wide}");
            }
        }
    }

    #[test]
    fn usual_figures_all_fit_in_80_columns() {
        assert_eq!(
            frame((1002, 3006), (420 << 20, 1260 << 20), true).line(79),
            "####----------  420 MiB of 1.2 GiB  7 MiB/s  2:00 left  1002 of 3006 files"
        );
    }

    #[test]
    fn what_was_here_before_is_no_part_of_the_rate() {
        let resumed = Frame { moved: 60 << 20, ..frame((1, 2), (900 << 20, 1000 << 20), true) };
        let line = resumed.line(79);
        assert!(line.contains("  1 MiB/s  1:40 left  "), "{line}");
    }
}
