//! The name under which programs ask for the library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libweir.so.1");
    // Symbols have the version `libweir.so.1`, so that a process may have another generation of the library beside it.
    // A version script with a name of our own is not to be had: rustc hands the linker one without a name, which keeps
    // everything but `weir_*` inside, and GNU ld takes no other beside that; lld takes it and ignores it.
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=bfd");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--default-symver");
}
