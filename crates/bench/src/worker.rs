//! Our own generators, each run as a process of its own: `sshoal bench-worker`.
