//! Where filters run.

/// Where a feed's frames are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FilterLocation {
    /// There is nothing to choose.
    #[default]
    Nowhere,
    /// In the kernel, at the hook.
    Hook,
    /// There, too, by a classic BPF program, which cannot count what it leaves out.
    Classic,
    /// In user space, by machine code.
    Compiled,
    /// In user space, step by step.
    Interpreted,
}

impl FilterLocation {
    /// As reports have it.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        match self {
            FilterLocation::Nowhere => None,
            FilterLocation::Hook => Some("hook"),
            FilterLocation::Classic => Some("hook, classic"),
            FilterLocation::Compiled => Some("user space, compiled"),
            FilterLocation::Interpreted => Some("user space, interpreted"),
        }
    }
}
