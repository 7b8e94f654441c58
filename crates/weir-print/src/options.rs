//! Options for printing a frame.

/// Selects what is printed of a frame. The default is one line with the main fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Also print TTL, id, offset, flags, protocol, lengths and checksums.
    pub verbose: bool,
    /// Also print MAC addresses, ethertype and length of the frame.
    pub link: bool,
    /// Do not verify the checksums that `verbose` would verify.
    pub unchecked: bool,
    /// Bytes to print below the line.
    pub bytes: Dump,
    /// Format of these bytes.
    pub form: DumpForm,
    /// Use colours.
    pub color: bool,
}

/// Selects the bytes to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dump {
    /// No bytes.
    #[default]
    None,
    /// The bytes after the link-layer header.
    Packet,
    /// All bytes of the frame.
    Frame,
}

/// Format of printed bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DumpForm {
    /// 16 bytes in a line, as hexadecimal numbers and as characters.
    #[default]
    HexAndText,
    /// 16 bytes in a line, as hexadecimal numbers.
    Hex,
    /// Characters, with the line breaks among them.
    Text,
}
