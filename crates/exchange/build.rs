//! Compiles the wire contract without an installed `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = "../../proto";
    println!("cargo:rerun-if-changed={root}/runtime_filter.proto");
    let descriptors = protox::compile(["runtime_filter.proto"], [root])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
