//! Compiles the BPF programs of the interface and generates their skeleton.

use std::env;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let target = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target");
    // The UAPI headers of the target: Debian keeps <asm/...> in a folder by architecture.
    let include = format!("/usr/include/{target}-linux-gnu");
    let source = Path::new("bpf/netdev.bpf.c");
    SkeletonBuilder::new()
        .source(source)
        .clang_args(["-I", &include, "-I", "bpf", "-Wall", "-Werror"])
        .build_and_generate(out.join("netdev.skel.rs"))
        .unwrap_or_else(|error| panic!("compiling bpf/netdev.bpf.c: {error:#}"));
    println!("cargo:rerun-if-changed={}", source.display());
    println!("cargo:rerun-if-changed=bpf/compiler.h");
}
