//! Options for the display of a frame.

/// Parts of a frame that are shown or left out. The default is one line with the main fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// TTL, id, offset, flags, protocol, lengths and checksums, too.
    pub verbose: bool,
    /// MAC addresses, ethertype and length of the frame, too.
    pub link: bool,
    /// Bytes below the line.
    pub bytes: Dump,
    /// Colours of a terminal.
    pub color: bool,
}

/// Which bytes are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dump {
    /// None.
    #[default]
    None,
    /// Those behind the link-layer header.
    Packet,
    /// All.
    Frame,
}
