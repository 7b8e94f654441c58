//! Compiles the BPF programs and generates their skeletons.

use std::env;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

/// The BPF programs, named after their engines. Those in `tests` are not part of the product; only tests
/// and examples load them.
const PROGRAMS: [&str; 7] = [
    "af_packet",
    "af_packet_pattern",
    "af_xdp",
    "bpf",
    "tests/block_test",
    "tests/flow_test",
    "tests/rcu_test",
];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let target = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target");
    // The UAPI headers of the target: Debian keeps <asm/...> in a folder by architecture.
    let (define, include) = match target.as_str() {
        "x86_64" => ("-D__TARGET_ARCH_x86", "/usr/include/x86_64-linux-gnu"),
        "aarch64" => ("-D__TARGET_ARCH_arm64", "/usr/include/aarch64-linux-gnu"),
        other => panic!("the bpf engine is built for x86_64 and aarch64, not {other}"),
    };
    let bpf = Path::new("bpf");
    for program in PROGRAMS {
        let source = bpf.join(format!("{program}.bpf.c"));
        let name = program.rsplit('/').next().expect("a name");
        let args = [define, "-I", include, "-I", "bpf", "-Wall", "-Wno-unused-function", "-Werror"];
        SkeletonBuilder::new()
            .source(&source)
            .clang_args(args)
            .build_and_generate(out.join(format!("{name}.skel.rs")))
            .unwrap_or_else(|error| panic!("compiling {}: {error:#}", source.display()));
    }
    println!("cargo:rerun-if-changed=bpf");
    #[cfg(feature = "dpdk")]
    dpdk::build();
}

/// Compiles the C code between the engine `dpdk` and DPDK, whose receive path is inline functions.
#[cfg(feature = "dpdk")]
mod dpdk {
    use std::process::Command;

    /// DPDK's libraries. Drivers are not linked: DPDK loads them when it starts.
    const LIBRARIES: [&str; 5] = ["rte_ethdev", "rte_mbuf", "rte_mempool", "rte_ring", "rte_eal"];

    pub fn build() {
        let folder = "src/engines/dpdk";
        let mut shim = cc::Build::new();
        for source in ["shim", "make"] {
            shim.file(format!("{folder}/{source}.c"));
        }
        // All flags in order: `-include rte_config.h` and `-march` are part of DPDK's interface.
        shim.flags(pkg_config("--cflags").split_whitespace());
        shim.flag("-Wall").flag("-Wextra").flag("-Werror").compile("weir_dpdk");
        for flag in pkg_config("--libs-only-L").split_whitespace() {
            println!("cargo:rustc-link-search=native={}", flag.trim_start_matches("-L"));
        }
        for library in LIBRARIES {
            println!("cargo:rustc-link-lib={library}");
        }
        println!("cargo:rerun-if-changed={folder}");
    }

    fn pkg_config(what: &str) -> String {
        let output = Command::new("pkg-config").args([what, "libdpdk >= 22.11"]).output();
        let output = output.expect("pkg-config runs: install pkg-config");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "the feature dpdk needs DPDK 22.11 or later: install libdpdk-dev ({error})"
        );
        String::from_utf8(output.stdout).expect("flags are text")
    }
}
