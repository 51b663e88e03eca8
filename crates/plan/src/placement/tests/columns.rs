//! How far key columns can be followed.
