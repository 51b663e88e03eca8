//! Where build and probe nodes go.
