//! Textbook filters.
