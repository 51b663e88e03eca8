//! What is worth a filter.
