//! Finds the query texts within the sources of the engine, so that they are not kept twice.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const ENGINE: &str = "datafusion-distributed";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../../Cargo.lock");
    let folder = engine()?.join("testdata/tpcds/queries");
    let mut list = String::from("static QUERIES: [&str; 99] = [\n");
    for number in 1..=99 {
        let path = folder.join(format!("q{number}.sql"));
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        writeln!(list, "{text:?},")?;
    }
    list.push_str("];\n");
    fs::write(Path::new(&env::var("OUT_DIR")?).join("queries.rs"), list)?;
    Ok(())
}

/// The folder of the engine's sources.
fn engine() -> Result<PathBuf, Box<dyn Error>> {
    let output = Command::new(env::var("CARGO")?)
        .args(["metadata", "--format-version=1", "--locked", "--offline"])
        .current_dir(env::var("CARGO_MANIFEST_DIR")?)
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().ok_or("no packages")?;
    let manifest = packages
        .iter()
        .find(|package| package["name"] == ENGINE)
        .and_then(|package| package["manifest_path"].as_str())
        .ok_or_else(|| format!("{ENGINE} is not among the packages"))?;
    let folder = Path::new(manifest).parent();
    Ok(folder.ok_or("a manifest without a folder")?.to_path_buf())
}
