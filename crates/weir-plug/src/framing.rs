//! Messages in a byte stream: each message follows its length, four bytes, big-endian.

use std::io::{self, ErrorKind, Read, Write};

/// Returns one message of at most `bytes_max` bytes, or `None` at the end of the stream. Does not read ahead.
///
/// # Errors
/// `InvalidData` for a longer message, `UnexpectedEof` for an incomplete one, and errors of the stream.
pub fn receive(stream: &mut impl Read, bytes_max: u32) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    let mut got = 0;
    while got < length.len() {
        match stream.read(&mut length[got..]) {
            Ok(0) if got == 0 => return Ok(None),
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => got += bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let length = u32::from_be_bytes(length);
    if length > bytes_max {
        let said = format!("a message of {length} bytes; {bytes_max} are allowed");
        return Err(io::Error::new(ErrorKind::InvalidData, said));
    }
    // Memory is allocated as bytes come: announcing a large length does not cost memory.
    let mut message = Vec::new();
    stream.by_ref().take(length.into()).read_to_end(&mut message)?;
    if message.len() < length as usize {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(message))
}

/// Sends one message.
///
/// # Errors
/// `InvalidData` for a message whose length does not fit into four bytes, and errors of the stream.
pub fn send(stream: &mut impl Write, message: &[u8]) -> io::Result<()> {
    let length = u32::try_from(message.len()).map_err(|_| ErrorKind::InvalidData)?;
    // Written in one piece, so that a reader is not woken for the length alone.
    let mut bytes = Vec::with_capacity(4 + message.len());
    bytes.extend(length.to_be_bytes());
    bytes.extend(message);
    stream.write_all(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Gives its bytes in pieces of these sizes.
    struct Pieces<'a>(&'a [u8], Vec<usize>);

    impl Read for Pieces<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let piece = self.1.pop().unwrap_or(1).clamp(1, into.len().max(1));
            (&mut self.0).take(piece as u64).read(into)
        }
    }

    proptest! {
        #[test]
        fn messages_arrive_as_they_were_sent_however_the_stream_is_cut(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..5),
            pieces in prop::collection::vec(1usize..100, 0..50),
        ) {
            let mut bytes = Vec::new();
            messages.iter().for_each(|message| send(&mut bytes, message).unwrap());
            let mut stream = Pieces(&bytes, pieces);
            for message in messages {
                prop_assert_eq!(receive(&mut stream, 300).unwrap(), Some(message));
            }
            prop_assert_eq!(receive(&mut stream, 300).unwrap(), None);
        }

        #[test]
        fn any_bytes_are_messages_an_end_or_an_error_and_nothing_is_read_ahead(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut stream = &bytes[..];
            loop {
                let before = stream.len();
                match receive(&mut stream, 64) {
                    Ok(Some(message)) => prop_assert_eq!(before - stream.len(), 4 + message.len()),
                    Ok(None) => { prop_assert!(stream.is_empty()); break }
                    Err(_) => break,
                }
            }
        }
    }

    #[test]
    fn a_length_alone_takes_no_memory() {
        let error = receive(&mut &[0xff, 0xff, 0xff, 0xff, b'{'][..], u32::MAX).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        let error = receive(&mut &[0, 0, 0, 2, b'{', b'}'][..], 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert_eq!(receive(&mut &[0, 0][..], 1).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}
