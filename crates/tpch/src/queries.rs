//! The 22 queries.

/// Number of TPC-H queries: [`query`] knows `1..=QUERY_COUNT`.
pub const QUERY_COUNT: u8 = 22;

/// The text of TPC-H query `n`, one SQL statement without a final semicolon, or `None` when `n` is
/// not in `1..=22`.
///
/// The substitution parameters are the specification's validation values. Two texts depart from its
/// letter: Q15 names its view in a `WITH` clause, so that it is one statement, and Q11 takes the
/// fraction 0.0001 of scale 1 at every scale.
pub fn query(n: u8) -> Option<&'static str> {
    Some(match n {
        1 => include_str!("../queries/q1.sql"),
        2 => include_str!("../queries/q2.sql"),
        3 => include_str!("../queries/q3.sql"),
        4 => include_str!("../queries/q4.sql"),
        5 => include_str!("../queries/q5.sql"),
        6 => include_str!("../queries/q6.sql"),
        7 => include_str!("../queries/q7.sql"),
        8 => include_str!("../queries/q8.sql"),
        9 => include_str!("../queries/q9.sql"),
        10 => include_str!("../queries/q10.sql"),
        11 => include_str!("../queries/q11.sql"),
        12 => include_str!("../queries/q12.sql"),
        13 => include_str!("../queries/q13.sql"),
        14 => include_str!("../queries/q14.sql"),
        15 => include_str!("../queries/q15.sql"),
        16 => include_str!("../queries/q16.sql"),
        17 => include_str!("../queries/q17.sql"),
        18 => include_str!("../queries/q18.sql"),
        19 => include_str!("../queries/q19.sql"),
        20 => include_str!("../queries/q20.sql"),
        21 => include_str!("../queries/q21.sql"),
        22 => include_str!("../queries/q22.sql"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_exactly_the_22_queries_each_one_statement() {
        assert_eq!(query(0), None);
        assert_eq!(query(QUERY_COUNT + 1), None);
        for n in 1..=QUERY_COUNT {
            let text = query(n).unwrap_or_default();
            assert!(
                text.starts_with("select") || text.starts_with("with"),
                "Q{n}"
            );
            assert!(!text.contains(';'), "Q{n} holds more than one statement");
        }
    }
}
