//! A directory of this machine as a [`base::Remote`], by native system calls.
#![forbid(unsafe_code)]
