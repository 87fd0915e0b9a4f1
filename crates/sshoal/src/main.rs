//! Starts the program `sshoal`, which is the library beside this file.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    sshoal::main()
}
