//! Sets the soname of the library, under which the dynamic linker looks for it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libweir.so.1");
    // Symbols have the version `libweir.so.1`, so that a process may load two major versions of the library. A version
    // script of our own cannot set it: rustc passes the linker an anonymous version script, which hides all symbols but
    // `weir_*`, and GNU ld rejects a second script beside an anonymous one. lld would accept it and ignore it.
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=bfd");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--default-symver");
}
