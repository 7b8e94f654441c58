//! Options for the display of a frame.

/// Parts of a frame that are shown or left out. The default is one line with the main fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// TTL, id, offset, flags, protocol, lengths and checksums, too.
    pub verbose: bool,
    /// MAC addresses, ethertype and length of the frame, too.
    pub link: bool,
    /// Checksums are not looked at, as far as `verbose` would.
    pub unchecked: bool,
    /// Bytes below the line.
    pub bytes: Dump,
    /// How those are written.
    pub form: DumpForm,
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

/// How bytes are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DumpForm {
    /// 16 to a line, as hexadecimal numbers and as characters.
    #[default]
    HexAndText,
    /// 16 to a line, as hexadecimal numbers.
    Hex,
    /// As characters, with the line ends that are among them.
    Text,
}
