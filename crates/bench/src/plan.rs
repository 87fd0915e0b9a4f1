//! What a run is to do: subjects, works, quantities.
