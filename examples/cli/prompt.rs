//! The interactive prompt.

use std::io::Write;
use std::path::PathBuf;

use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Editor, Helper};

use crate::args::Args;
use crate::cluster::Session;
use crate::compare;
use crate::data::APP_FOLDER;
use crate::error::{CliError, Result};
use crate::output::{self, Output};
use crate::run;

const WELCOME: &str = "\nType SQL, ended by `;`. \\? shows help, \\q or Ctrl-D quits.\n";

const HELP: &str = "\
  SELECT ...;                              run a query (Ctrl-C cancels it)
  EXPLAIN SELECT ...;                      the plan, with its filters
  EXPLAIN ANALYZE SELECT ...;              the plan that ran, with metrics
  SET runtime_filter.enabled = false;      change a setting (also datafusion.*, distributed.*)
  \\set                                     list the settings runtime_filter.*
  \\d                                       list the tables (DESCRIBE t; lists columns)
  \\compare SELECT ...;                     run with filters off and on, and compare
  \\q                                       quit
";

const HISTORY_FILE: &str = "history.txt";

pub(crate) async fn run(args: &Args, session: &Session, output: &mut Output) -> Result<()> {
    let cannot_open = |e| CliError::failed(format!("cannot open the prompt: {e}"));
    let config = Config::builder().auto_add_history(true).build();
    let mut editor: Editor<SqlHelper, FileHistory> =
        Editor::with_config(config).map_err(cannot_open)?;
    editor.set_helper(Some(SqlHelper));
    let history = history_file();
    if let Some(file) = &history {
        // There is none on the first run.
        let _ = editor.load_history(file);
    }
    output::emit(WELCOME)?;
    loop {
        // This blocks the thread, in which nothing else happens meanwhile: workers have their own.
        let line = match editor.readline("sql> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(e) => return Err(CliError::failed(format!("cannot read the prompt: {e}"))),
        };
        if let Some(file) = &history {
            // A prompt without history is still a prompt.
            let _ = editor.append_history(file);
        }
        let ended = match command(line.trim()) {
            Command::Quit => break,
            Command::Help => output::emit(HELP),
            Command::Settings => output::emit(&session.filter_settings()),
            Command::Tables => output::emit(&format!("{}\n", session.tables().join("\n"))),
            Command::Unknown(name) => Err(CliError::failed(format!(
                "no command {name}, \\? lists them"
            ))),
            Command::Sql(sql) if args.compare => compared(session, sql, output).await,
            Command::Compare(sql) => compared(session, sql, output).await,
            Command::Sql(sql) => executed(session, sql, output).await,
        };
        match ended {
            Ok(()) => {}
            Err(CliError::BrokenPipe) => return Err(CliError::BrokenPipe),
            Err(error) => {
                let message = error.message().unwrap_or_default();
                // If standard error is closed, the prompt itself will notice.
                let _ = writeln!(std::io::stderr(), "error: {message}");
            }
        }
    }
    Ok(())
}

async fn executed(session: &Session, sql: &str, output: &mut Output) -> Result<()> {
    for statement in session.parse(sql)? {
        run::interruptible(run::statement(session, statement, output)).await?;
    }
    Ok(())
}

async fn compared(session: &Session, sql: &str, output: &mut Output) -> Result<()> {
    let scripts = [run::Script::typed(sql.to_owned())];
    let comparisons = compare::run_scripts(session, &scripts, output).await?;
    compare::conclude(&comparisons)
}

enum Command<'a> {
    Quit,
    Help,
    Settings,
    Tables,
    Compare(&'a str),
    Unknown(&'a str),
    Sql(&'a str),
}

fn command(line: &str) -> Command<'_> {
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    match word.trim_end_matches(';') {
        "\\q" | "quit" | "exit" => Command::Quit,
        "\\?" | "\\h" | "help" if rest.is_empty() => Command::Help,
        "\\d" => Command::Tables,
        "\\set" => Command::Settings,
        "\\compare" => Command::Compare(rest),
        name if name.starts_with('\\') => Command::Unknown(name),
        _ => Command::Sql(line),
    }
}

/// `None` if the user has no data folder, or it cannot be written.
fn history_file() -> Option<PathBuf> {
    let dir = dirs::data_dir()?.join(APP_FOLDER);
    std::fs::create_dir_all(&dir).ok()?;
    Some(dir.join(HISTORY_FILE))
}

/// Lets Enter end the input only when a statement is complete.
struct SqlHelper;

impl Validator for SqlHelper {
    fn validate(&self, ctx: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if is_complete(ctx.input()) {
            ValidationResult::Valid(None)
        } else {
            ValidationResult::Incomplete
        })
    }
}

/// Whether the input is a command, or SQL that ends with a `;` outside of any quotes or comment.
fn is_complete(input: &str) -> bool {
    let text = input.trim();
    if text.is_empty() {
        return true;
    }
    match command(text) {
        Command::Quit
        | Command::Help
        | Command::Settings
        | Command::Tables
        | Command::Unknown(_) => return true,
        Command::Compare(sql) => return is_complete(sql),
        Command::Sql(_) => {}
    }
    // An open quote or comment is an error of the tokenizer.
    let Ok(tokens) = Tokenizer::new(&GenericDialect {}, text).tokenize() else {
        return false;
    };
    let last = tokens.iter().rfind(|t| !matches!(t, Token::Whitespace(_)));
    matches!(last, Some(Token::SemiColon) | None)
}

impl Completer for SqlHelper {
    type Candidate = String;
}

impl Hinter for SqlHelper {
    type Hint = String;
}

impl Highlighter for SqlHelper {}

impl Helper for SqlHelper {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enter_ends_the_input_at_a_semicolon_outside_quotes_and_comments() {
        assert!(is_complete("select 1;"));
        assert!(is_complete("select ';' ; -- done"));
        assert!(!is_complete("select 1"));
        assert!(!is_complete("select ';"));
        assert!(!is_complete("select 1 -- ;"));
        assert!(!is_complete("select 1 /* ;"));
        assert!(is_complete("\\d"));
        assert!(is_complete("\\q"));
        assert!(is_complete("  "));
        assert!(!is_complete("\\compare select 1"));
        assert!(is_complete("\\compare select 1;"));
    }
}
