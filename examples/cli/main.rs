//! SQL on a small cluster whose joins are filtered before the shuffle.
//!
//! Without arguments: starts four workers, generates TPC-H data on the first run, shows on three
//! joins what runtime filters save, and opens a prompt. `--help` lists the rest.
//!
//! | module       | what it does                                                            |
//! |--------------|-------------------------------------------------------------------------|
//! | `args`       | the command line                                                        |
//! | `cluster`    | workers and the coordinating session; all use of the library is in here |
//! | `data`       | tables: generated TPC-H, or the files of a folder                       |
//! | `run`        | one statement: plan, execute, report                                    |
//! | `compare`    | one query with filters off and on                                       |
//! | `demo`       | the demonstration                                                       |
//! | `output`     | results, reports and tables as text                                     |
//! | `prompt`     | the interactive prompt                                                  |

mod args;
mod cluster;
mod compare;
mod data;
mod demo;
mod error;
mod output;
mod prompt;
mod run;

use std::io::{IsTerminal, Read, Write};
use std::process::ExitCode;

use clap::Parser;

use crate::args::Args;
use crate::cluster::{Cluster, Session};
use crate::error::{CliError, Result};
use crate::output::Output;
use crate::run::Script;

/// DataFusion plans recursively; an unoptimised build needs more than a thread's usual 2 MiB.
const STACK_BYTES: usize = 16 * 1024 * 1024;

fn main() -> ExitCode {
    let args = Args::parse();
    // Not on the main thread, whose stack size is not ours to choose.
    let session = std::thread::Builder::new()
        .name("cli".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || start(&args));
    let result = match session {
        Ok(thread) => thread
            .join()
            .unwrap_or_else(|_| Err(CliError::failed("the program failed, see above"))),
        Err(e) => Err(CliError::failed(format!("cannot start a thread: {e}"))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if let Some(message) = error.message() {
                // Nothing is left to be done if even that cannot be written.
                let _ = writeln!(std::io::stderr(), "error: {message}");
            }
            ExitCode::from(error.exit_code())
        }
    }
}

fn start(args: &Args) -> Result<()> {
    let cannot_start = |e| CliError::failed(format!("cannot start the async runtime: {e}"));
    // Queries and workers run apart from what listens to the user: an operator that computes for
    // seconds without a pause must not hold up Ctrl-C.
    let engine = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_stack_size(STACK_BYTES)
        .build()
        .map_err(cannot_start)?;
    let control = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(cannot_start)?;
    let result = control.block_on(async {
        // First what can be refused at once, then what takes time.
        let mut output = Output::new(args)?;
        let scripts = read_scripts(args)?;
        let cluster = Cluster::start(args, engine.handle()).await?;
        let result = serve(args, &cluster, scripts, &mut output).await;
        if !matches!(result, Err(CliError::Interrupted)) {
            cluster.shutdown().await;
        }
        result
    });
    // What a cancelled query still computes ends with the process.
    engine.shutdown_background();
    control.shutdown_background();
    result
}

async fn serve(
    args: &Args,
    cluster: &Cluster,
    scripts: Option<Vec<Script>>,
    output: &mut Output,
) -> Result<()> {
    let session = cluster.session(args).await?;
    if let Some(dir) = &args.data {
        data::register_folder(&session, dir).await?;
    }
    if args.wants_tpch() {
        let tpch = data::provide_tpch(args.tpch_scale())?;
        data::register_tpch(&session, &tpch).await?;
        if args.wants_demo() {
            demo::run(&session, cluster, &tpch, output).await?;
        }
    }
    match scripts {
        Some(scripts) => run_scripts(args, &session, &scripts, output).await,
        None if std::io::stdin().is_terminal() => prompt::run(args, &session, output).await,
        // The demonstration is over, and nobody is there to type.
        None => Ok(()),
    }
}

/// The SQL given with `-c`, `--file`, or on a standard input that is no terminal; `None` if the
/// prompt is to be opened.
fn read_scripts(args: &Args) -> Result<Option<Vec<Script>>> {
    let mut scripts: Vec<Script> = args.commands.iter().cloned().map(Script::typed).collect();
    for file in &args.files {
        scripts.push(if file.as_os_str() == "-" {
            Script::typed(read_stdin()?)
        } else {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let text = std::fs::read_to_string(file)
                .map_err(|e| CliError::failed(format!("cannot read {}: {e}", file.display())))?;
            Script::file(name.into_owned(), text)
        });
    }
    if scripts.is_empty() && !args.wants_demo() && !std::io::stdin().is_terminal() {
        scripts.push(Script::typed(read_stdin()?));
    }
    Ok((!scripts.is_empty()).then_some(scripts))
}

fn read_stdin() -> Result<String> {
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|e| CliError::failed(format!("cannot read standard input: {e}")))?;
    Ok(text)
}

async fn run_scripts(
    args: &Args,
    session: &Session,
    scripts: &[Script],
    output: &mut Output,
) -> Result<()> {
    if args.compare {
        let comparisons = compare::run_scripts(session, scripts, output).await?;
        return compare::conclude(&comparisons);
    }
    for script in scripts {
        for statement in session.parse(&script.text)? {
            run::interruptible(run::statement(session, statement, output)).await?;
        }
    }
    Ok(())
}
