//! TPC-DS data and queries for tests and benchmarks.
