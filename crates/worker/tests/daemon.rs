//! The worker daemon as a process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn daemon(args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_runtime-filter-worker"))
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn announced(process: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(process.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    line.trim()
        .strip_prefix("listening on http://")
        .expect("an address")
        .to_owned()
}

fn wait(process: &mut Child) -> std::process::ExitStatus {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(status) = process.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            process.kill().unwrap();
            panic!("the daemon does not stop");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn stops_cleanly_on_either_signal() {
    for signal in ["-INT", "-TERM"] {
        let mut process = daemon(&["--listen", "127.0.0.1:0"]);
        let addr = announced(&mut process);
        TcpStream::connect(&addr).expect("it serves once it says so");
        let sent = Command::new("kill")
            .args([signal, &process.id().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
        assert_eq!(wait(&mut process).code(), Some(0), "after {signal}");
    }
}

#[test]
fn an_address_in_use_is_one_clear_line() {
    let mut first = daemon(&["--listen", "127.0.0.1:0"]);
    let addr = announced(&mut first);
    let mut second = daemon(&["--listen", &addr]);
    assert_eq!(wait(&mut second).code(), Some(1));
    let mut stderr = String::new();
    second
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut stderr)
        .unwrap();
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(
        stderr.contains(&addr) && stderr.contains("port 0"),
        "{stderr}"
    );
    first.kill().unwrap();
    first.wait().unwrap();
}

#[test]
fn wrong_usage_is_exit_code_2() {
    for args in [
        &["--listen", "nowhere"][..],
        &["--no-such-flag"],
        &["--listen"],
    ] {
        let mut process = daemon(args);
        assert_eq!(wait(&mut process).code(), Some(2), "{args:?}");
    }
}
