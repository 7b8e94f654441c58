//! Decompresses lz4 files: reads all lz4 frames of a file, and reports a truncated file as an error.

use std::io::{self, ErrorKind, Read};

use lz4_flex::frame::FrameDecoder;

/// The decompressed bytes. The library's decoder stops after each lz4 frame, and accepts an lz4 frame that was
/// truncated between two blocks as complete; this type handles both cases. Source: the LZ4 frame format.
pub struct Lz4<R: Read> {
    /// The decoder of the current lz4 frame. Always `Some` between two calls.
    decoder: Option<FrameDecoder<Counted<R>>>,
}

impl<R: Read> Lz4<R> {
    pub fn new(input: R) -> Lz4<R> {
        let input = Counted { input, bytes: 0, has_ended: false };
        Lz4 { decoder: Some(FrameDecoder::new(input)) }
    }
}

impl<R: Read> Read for Lz4<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(decoder) = &mut self.decoder else { return Ok(0) };
            let read = decoder.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let Counted { bytes, has_ended, .. } = *decoder.get_ref();
            if bytes == 0 {
                return Ok(0);
            }
            if has_ended {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "the lz4 file is cut off"));
            }
            // An lz4 frame has ended. Another one may follow, with another block size.
            let input = self.decoder.take().map(FrameDecoder::into_inner);
            self.decoder = input.map(|input| FrameDecoder::new(Counted { bytes: 0, ..input }));
        }
    }
}

/// Counts the bytes of an lz4 frame, and records whether the input has ended.
struct Counted<R> {
    input: R,
    bytes: u64,
    has_ended: bool,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.bytes += read as u64;
        self.has_ended = read == 0 && !buffer.is_empty();
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use lz4_flex::frame::{BlockMode, FrameEncoder, FrameInfo};

    use super::*;

    fn packed(plain: &[u8], info: FrameInfo) -> Vec<u8> {
        let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut plain = Vec::new();
        Lz4::new(bytes).read_to_end(&mut plain)?;
        Ok(plain)
    }

    #[test]
    fn all_frames_are_read_and_none_that_is_cut_off_is_whole() {
        let plain: Vec<u8> = (0..20_000_u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        for info in [
            FrameInfo::new(),
            FrameInfo::new().block_mode(BlockMode::Linked).content_checksum(true),
        ] {
            let one = packed(&plain, info.clone());
            let file = [&one[..], &packed(b"", info.clone()), &packed(b"more", info)].concat();
            assert!(read(&file).unwrap() == [&plain[..], b"more"].concat());
            for cut in 1..one.len() {
                assert!(read(&one[..cut]).is_err(), "{cut} of {}", one.len());
            }
            assert!(read(&file[..file.len() - 1]).is_err());
        }
        assert_eq!(read(b"").unwrap(), b"");
    }
}
