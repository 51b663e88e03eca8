//! How long probes may wait.
