//! The CLI example as a stranger meets it: what it prints, and what it says of bad input.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::support::tpch_folder;

/// `cargo test` builds the examples beside the folder of the test binaries.
fn binary() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let target = test.parent().unwrap().parent().unwrap();
    let binary = target.join("examples").join("cli");
    assert!(binary.exists(), "run `cargo build --example cli` first");
    binary
}

fn cli(args: &[&str]) -> Output {
    Command::new(binary())
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn on_data(args: &[&str]) -> Output {
    let folder = tpch_folder(0.01);
    cli(&[
        &["--data", folder.to_str().unwrap(), "--workers", "2"],
        args,
    ]
    .concat())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
fn assert_one_line(output: &Output, code: i32, says: &str) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "not one line: {stderr}");
    assert!(stderr.contains(says), "'{stderr}' does not say '{says}'");
    assert!(!stderr.contains("panicked") && !stderr.contains("backtrace"));
}

#[test]
fn bad_input_is_one_clear_line_and_exit_code_1() {
    let cases: [(&[&str], &str); 8] = [
        (&["-c", "select * from nowhere"], "nowhere"),
        (&["-c", "selekt 1"], "selekt"),
        (&["-c", "select nothing from orders"], "nothing"),
        (&["--file", "no/such/file.sql"], "no/such/file.sql"),
        (
            &["--set", "runtime_filter.nothing=1", "-c", "select 1"],
            "nothing",
        ),
        (
            &["--set", "runtime_filter.target_fpp=often", "-c", "select 1"],
            "often",
        ),
        (
            &["--set", "datafusion.no.such.key=1", "-c", "select 1"],
            "no",
        ),
        (
            &[
                "--set",
                "runtime_filter.target_fpp=7",
                "-c",
                "select count(*) from orders",
            ],
            "target_fpp",
        ),
    ];
    for (args, says) in cases {
        assert_one_line(&on_data(args), 1, says);
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("broken.parquet"), b"PAR1 not a table").unwrap();
    let broken = cli(&[
        "--data",
        folder.path().to_str().unwrap(),
        "-c",
        "select * from broken",
    ]);
    assert_one_line(&broken, 1, "broken");
    assert_one_line(
        &cli(&["--data", "no/such/folder", "-c", "select 1"]),
        1,
        "no/such/folder",
    );
    let unreachable = ["--worker", "http://127.0.0.1:1", "-c", "select 1"];
    assert_one_line(&cli(&unreachable), 1, "http://127.0.0.1:1");
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let cases: [&[&str]; 6] = [
        &["--no-such-flag"],
        &["--workers", "none"],
        &["--format", "xml"],
        &["--set", "no-equals-sign"],
        &["--worker", "not a url"],
        &["--tpch", "-1"],
    ];
    for args in cases {
        let output = cli(args);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{args:?}: {}",
            text(&output.stderr)
        );
        assert!(!text(&output.stderr).contains("panicked"));
    }
}

#[test]
fn rows_come_in_three_formats() {
    let sql = "select r_regionkey, r_name from region where r_regionkey < 2 order by r_regionkey";
    let csv = on_data(&["--format", "csv", "-c", sql]);
    assert_eq!(
        text(&csv.stdout),
        "r_regionkey,r_name\n0,AFRICA\n1,AMERICA\n"
    );
    let json = on_data(&["--format", "json", "-c", sql]);
    let rows: Vec<serde_json::Value> = text(&json.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[1]["r_name"], "AMERICA");
    let table = text(&on_data(&["--format", "table", "-c", sql]).stdout);
    assert!(
        table.contains("AFRICA") && table.contains("r_regionkey"),
        "{table}"
    );
}

#[test]
fn a_report_is_one_line_of_json_per_query() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.jsonl");
    let join = "select count(*) from orders join lineitem on l_orderkey = o_orderkey \
        where o_orderdate < date '1992-03-01'";
    let output = on_data(&[
        "--set",
        "datafusion.optimizer.hash_join_single_partition_threshold=0",
        "--set",
        "datafusion.optimizer.hash_join_single_partition_threshold_rows=0",
        "--report-file",
        file.to_str().unwrap(),
        "-c",
        join,
        "-c",
        "select 1",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let lines = std::fs::read_to_string(file).unwrap();
    let reports: Vec<serde_json::Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(reports.len(), 2);
    let filter = &reports[0]["filters"][0];
    assert_eq!(filter["verdict"], "applied", "{lines}");
    assert!(
        filter["probe"]["rows_dropped"].as_u64().unwrap() > 50_000,
        "{lines}"
    );
    for key in [
        "polls_before_verdict",
        "first_polls",
        "timeouts",
        "wait_ms",
        "arrived",
    ] {
        assert!(!filter["probe"][key].is_null(), "{key} in {lines}");
    }
    for key in ["bytes", "logical_bytes", "rows"] {
        assert!(
            reports[0]["shuffle"][key].as_u64().unwrap() > 0,
            "{key} in {lines}"
        );
    }
    assert!(reports[0]["filter_traffic"]["bytes_up"].as_u64().unwrap() > 0);
    assert_eq!(reports[1]["filters"].as_array().unwrap().len(), 0);
}

#[test]
fn compare_says_that_rows_are_equal() {
    let sql = runtime_filter_tpch::query(3).unwrap();
    let output = on_data(&["--compare", "-c", sql]);
    let stdout = text(&output.stdout);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{stdout}{}",
        text(&output.stderr)
    );
    assert!(stdout.contains("yes"), "{stdout}");
}

#[test]
fn explain_shows_the_nodes_and_their_metrics() {
    let explain = |what: &str| {
        let sql = format!(
            "{what} select count(*) from orders join lineitem on l_orderkey = o_orderkey \
             where o_orderdate < date '1992-03-01'"
        );
        let set = "datafusion.optimizer.hash_join_single_partition_threshold";
        let rows = format!("{set}_rows=0");
        let bytes = format!("{set}=0");
        text(&on_data(&["--set", &rows, "--set", &bytes, "-c", &sql]).stdout)
    };
    let plan = explain("explain");
    assert!(plan.contains("RuntimeFilterBuildExec: filter=0"), "{plan}");
    assert!(plan.contains("RuntimeFilterProbeExec: filter=0"), "{plan}");
    let analyzed = explain("explain analyze");
    assert!(analyzed.contains("rows_dropped"), "{analyzed}");
    let verdict = "Inner o_orderkey = l_orderkey: filter 0";
    assert!(!plan.contains(verdict), "{plan}");
    let verbose = explain("explain verbose");
    assert!(verbose.contains("RuntimeFilterRule, verdicts"), "{verbose}");
    assert!(verbose.contains(verdict), "{verbose}");
}
