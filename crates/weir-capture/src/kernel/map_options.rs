//! Options with which libbpf creates a map.

/// Returns options for a map with these flags (`BPF_F_*`, linux/bpf.h).
pub(crate) fn map_options(flags: u32) -> libbpf_sys::bpf_map_create_opts {
    libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        map_flags: flags,
        ..Default::default()
    }
}
