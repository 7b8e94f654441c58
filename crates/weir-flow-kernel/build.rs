//! Compiles the BPF programs of the flow table and generates their skeletons.

use std::env;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

/// The BPF programs. The one in `tests` is not part of the product: only `examples/flow_rates.rs` loads it.
const PROGRAMS: [&str; 2] = ["flow_table", "tests/flow_rates"];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let target = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target");
    // The UAPI headers of the target: Debian keeps <asm/...> in a directory for each architecture.
    let (define, include) = match target.as_str() {
        "x86_64" => ("-D__TARGET_ARCH_x86", "/usr/include/x86_64-linux-gnu"),
        "aarch64" => ("-D__TARGET_ARCH_arm64", "/usr/include/aarch64-linux-gnu"),
        other => panic!("the flow table is built for x86_64 and aarch64, not {other}"),
    };
    for program in PROGRAMS {
        let source = Path::new("bpf").join(format!("{program}.bpf.c"));
        let name = program.rsplit('/').next().expect("a name");
        let args = [
            define,
            // On arm64, the exchange in `weir_store_ordered` needs it.
            "-mcpu=v3",
            "-I",
            include,
            "-I",
            "bpf",
            "-Wall",
            "-Wno-unused-function",
            "-Werror",
        ];
        SkeletonBuilder::new()
            .source(&source)
            .clang_args(args)
            .build_and_generate(out.join(format!("{name}.skel.rs")))
            .unwrap_or_else(|error| panic!("compiling {}: {error:#}", source.display()));
        println!("cargo:rerun-if-changed={}", source.display());
    }
    for header in ["compiler.h", "flow.h", "flow_headers.h", "flow_table.h"] {
        println!("cargo:rerun-if-changed=bpf/{header}");
    }
}
