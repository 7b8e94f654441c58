//! Compiles the BPF programs and generates their skeletons.

use std::env;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

const PROGRAMS: [&str; 3] = ["capture", "count", "xsk"];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let target = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target");
    // The UAPI headers of the target: Debian keeps <asm/...> in a folder by architecture.
    let (define, include) = match target.as_str() {
        "x86_64" => ("-D__TARGET_ARCH_x86", "/usr/include/x86_64-linux-gnu"),
        "aarch64" => ("-D__TARGET_ARCH_arm64", "/usr/include/aarch64-linux-gnu"),
        other => panic!("the bpf engine is built for x86_64 and aarch64, not {other}"),
    };
    let bpf = Path::new("../../bpf");
    for name in PROGRAMS {
        SkeletonBuilder::new()
            .source(bpf.join(format!("{name}.bpf.c")))
            .clang_args([define, "-I", include, "-Wall", "-Wno-unused-function", "-Werror"])
            .build_and_generate(out.join(format!("{name}.skel.rs")))
            .unwrap_or_else(|error| panic!("compiling bpf/{name}.bpf.c: {error:#}"));
    }
    println!("cargo:rerun-if-changed=../../bpf");
}
