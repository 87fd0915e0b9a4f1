//! Messages on standard error, which may be closed or full.

/// As in the standard library, but without a panic if standard error cannot be written: the exit
/// code still reports the result (`sshoal status 2>&1 | head -1`).
macro_rules! eprintln {
    ($($message:tt)*) => {{
        use std::io::Write as _;
        let _ = std::io::stderr().write_all(format!("{}\n", format_args!($($message)*)).as_bytes());
    }};
}
