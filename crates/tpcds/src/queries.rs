//! The 99 queries.

include!(concat!(env!("OUT_DIR"), "/queries.rs"));

/// Number of TPC-DS queries: [`query`] knows `1..=QUERY_COUNT`.
pub const QUERY_COUNT: u8 = 99;

/// The text of TPC-DS query `n`, one SQL statement without a final semicolon, or `None` when `n` is
/// not in `1..=99`.
///
/// The texts are those that `datafusion-distributed` tests itself with: the build finds them in its
/// sources.
pub fn query(n: u8) -> Option<&'static str> {
    let text = QUERIES.get(usize::from(n).checked_sub(1)?)?;
    Some(text.trim_end().trim_end_matches(';'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_exactly_the_99_queries_each_one_statement() {
        assert_eq!(query(0), None);
        assert_eq!(query(QUERY_COUNT + 1), None);
        for n in 1..=QUERY_COUNT {
            let text = query(n).unwrap_or_default().to_lowercase();
            assert!(text.contains("select"), "Q{n}");
            assert!(!text.contains(';'), "Q{n} holds more than one statement");
        }
        assert_eq!(QUERIES.len(), usize::from(QUERY_COUNT));
    }
}
