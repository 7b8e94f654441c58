//! Compiles the BPF programs of the generator and generates their skeleton.

use std::env;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let target = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target");
    // UAPI headers of the target: Debian has <asm/...> in a folder for each architecture.
    let include = format!("/usr/include/{target}-linux-gnu");
    let source = Path::new("bpf/wire_generator.bpf.c");
    SkeletonBuilder::new()
        .source(source)
        .clang_args(["-I", &include, "-Wall", "-Werror"])
        .build_and_generate(out.join("wire_generator.skel.rs"))
        .unwrap_or_else(|error| panic!("compiling bpf/wire_generator.bpf.c: {error:#}"));
    println!("cargo:rerun-if-changed={}", source.display());
}
