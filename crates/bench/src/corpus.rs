//! The data of the works: made once a run from a seed, with their digests.
