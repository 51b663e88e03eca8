//! Compiles the wire contract without an installed `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = "../../proto";
    println!("cargo:rerun-if-changed={root}/runtime_filter.proto");
    let descriptors = protox::compile(["runtime_filter.proto"], [root])?;
    tonic_prost_build::configure()
        // One encoded filter is shared by the messages to all workers.
        .bytes(".runtime_filter.v1.Verdict")
        .compile_fds(descriptors)?;
    Ok(())
}
