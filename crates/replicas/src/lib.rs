//! Several [`base::Remote`]s that show one and the same directory, as one: the load is spread over
//! them, and one that fails is left out.
#![forbid(unsafe_code)]
