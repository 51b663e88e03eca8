//! Random queries over random data, with filters on and off.
