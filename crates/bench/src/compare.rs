//! Two runs, and what changed between them beyond the noise.
