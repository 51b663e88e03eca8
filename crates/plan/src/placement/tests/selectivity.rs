//! What equality with a text keeps: hand-computed shares.

use datafusion::physical_plan::statistics::StatisticsContext;

use super::super::selectivity::correction;
use super::support::{plan, session};

async fn corrected(sql: &str) -> f64 {
    let context = session(&[]).await;
    correction(&StatisticsContext::new(), &plan(&context, sql).await)
}

fn assert_close(ours: f64, expected: f64) {
    assert!((ours - expected).abs() < 1e-9, "{ours} is not {expected}");
}

/// `fact` has 40,000 rows in four partitions, `dim` 160; none knows its distinct counts.
#[tokio::test]
async fn equality_with_a_text_keeps_one_in_two_hundred_or_in_all_rows() {
    let share = corrected("select f_key from fact where f_name = 'a'").await;
    assert_close(share, (1.0 / 200.0) / 0.2);
    let share = corrected("select d_key from dim where 'a' = d_name").await;
    assert_close(share, (1.0 / 160.0) / 0.2);
}

#[tokio::test]
async fn what_the_statistics_can_judge_is_left_alone() {
    for sql in [
        "select f_key from fact",
        "select f_key from fact where f_value = 7",
        "select f_key from fact where f_name <> 'a'",
        "select f_key from fact where f_name = 'a' or f_value = 1",
    ] {
        assert_close(corrected(sql).await, 1.0);
    }
}

#[tokio::test]
async fn a_join_takes_the_share_of_the_side_that_thins_it_out() {
    let both = "select f_key from fact {join} dim on f_key = d_key where ";
    let inner = both.replace("{join}", "join");
    assert_close(
        corrected(&format!("{inner} d_name = 'a'")).await,
        (1.0 / 160.0) / 0.2,
    );
    assert_close(
        corrected(&format!("{inner} f_name = 'a'")).await,
        (1.0 / 200.0) / 0.2,
    );
    let unmatched =
        "select f_key from fact left join (select * from dim where d_name = 'a') on f_key = d_key";
    assert_close(corrected(unmatched).await, 1.0);
}
