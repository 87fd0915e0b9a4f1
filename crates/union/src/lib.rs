//! Several [`base::Remote`]s as one tree: merged over each other in an order, or each in a place of
//! its own.
#![forbid(unsafe_code)]
