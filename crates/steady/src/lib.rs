//! A [`base::Remote`] that outlives the connections of the one below it.
//!
//! What is below (`host`, or several gateways to one directory) fails with `EHOSTDOWN` or
//! `ETIMEDOUT` when its connection is lost, and its handles become `ESTALE`. Here such a call waits
//! until there is a connection again and then has the outcome that it would have had.
#![forbid(unsafe_code)]
