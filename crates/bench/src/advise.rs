//! `--advise`: which ciphers and settings would be faster here, measured.
