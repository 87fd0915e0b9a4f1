//! What this machine is, for the report.
