//! The places where filters run.

/// The place where a feed's filter runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FilterLocation {
    /// The feed has no filter and takes every frame.
    #[default]
    Nowhere,
    /// In the kernel, at the hook.
    Hook,
    /// In the kernel, by a classic BPF program, which cannot count the frames that it rejects.
    Classic,
    /// In user space, by machine code.
    Compiled,
    /// In user space, by an interpreter.
    Interpreted,
}

impl FilterLocation {
    /// Returns the name of the place in reports; `None` for `Nowhere`.
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
