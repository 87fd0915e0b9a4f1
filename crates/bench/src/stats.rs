//! Medians, spreads, ratios, and what chance can do.
