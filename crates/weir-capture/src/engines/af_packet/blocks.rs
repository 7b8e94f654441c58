//! The blocks that a packet socket shares with the kernel, and their ownership.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use weir_frame::record::CAPLEN_MAX;

use crate::limits::BUFFER_BYTES_MAX;

/// Bytes of all blocks of a socket.
pub(super) const BLOCKS_BYTES: usize = BUFFER_BYTES_MAX as usize;
/// Smallest and largest size of a block, in bytes.
const BLOCK_BYTES_MIN: usize = 128 << 10;
const BLOCK_BYTES_MAX: usize = 1 << 20;
/// Bytes that a block needs in addition to its longest frame: for the block's header, the frame's header and the
/// link-layer header.
const HEADERS_BYTES: usize = 4096;
const _: () = assert!(CAPLEN_MAX as usize + HEADERS_BYTES <= BLOCK_BYTES_MAX);
/// Offset of `tpacket_hdr_v1.block_status` in a block. Source: linux/if_packet.h.
const STATUS_AT: usize = 8;

/// Size of a block in bytes: a power of two. The kernel hands over whole blocks, and truncates a frame that is longer
/// than a block can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockBytes(usize);

impl BlockBytes {
    /// Returns the smallest size that holds frames of `frame_bytes` bytes.
    ///
    /// The kernel hands a block over after a time-out at the latest, even if the block is not full. So the thread that
    /// reads the blocks may be delayed by up to one time-out for each block before frames are lost: by a second with
    /// the 256 blocks of the smallest size, by 128 ms with the 32 blocks of the largest size. Small blocks also have a
    /// better chance to be in the processor's cache when they are read.
    pub(super) fn for_frames_of(frame_bytes: u32) -> BlockBytes {
        let bytes = (frame_bytes as usize).saturating_add(HEADERS_BYTES).min(BLOCK_BYTES_MAX);
        BlockBytes(bytes.next_power_of_two().max(BLOCK_BYTES_MIN))
    }

    pub(super) fn get(self) -> usize {
        self.0
    }

    /// Returns the number of blocks of a socket.
    pub(super) fn count(self) -> usize {
        BLOCKS_BYTES / self.0
    }
}

/// The mapping of all blocks of a socket.
pub(super) struct Blocks {
    base: NonNull<u8>,
    block_bytes: BlockBytes,
    /// The block that the kernel hands over next. It fills the blocks in order.
    next: usize,
}

// SAFETY: the mapping is not bound to a thread. This process accesses it through `&mut self` only; the kernel accesses
// it, too.
unsafe impl Send for Blocks {}

impl Blocks {
    /// Maps the ring that was set up on `socket` with blocks of the size `block_bytes`.
    pub(super) fn map(socket: BorrowedFd<'_>, block_bytes: BlockBytes) -> io::Result<Blocks> {
        // SAFETY: the hint is null, so the kernel chooses an address where no other mapping is. The kernel maps a
        // packet socket's ring whole or not at all, and the ring cannot shrink while it is mapped.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                BLOCKS_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                socket.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("mmap gives no null without MAP_FIXED");
        Ok(Blocks { base, block_bytes, next: 0 })
    }

    /// Returns the next block, if the kernel has handed it over. Dropping the result gives the block back to the
    /// kernel.
    pub(super) fn next(&mut self) -> Option<Block<'_>> {
        // Pairs with the kernel's write barrier before it sets the status (`prb_flush_block`, net/packet/af_packet.c):
        // the frames are completely written before the status says that the block is ours.
        let ours = self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER != 0;
        // `then_some` would be wrong here: it would always create a `Block`, and drop it if the block is not ours,
        // which gives the block back.
        if ours { Some(Block { blocks: self }) } else { None }
    }

    fn start(&self) -> NonNull<u8> {
        debug_assert!(self.next < self.block_bytes.count());
        // SAFETY: in bounds: `next` is below the number of blocks (kept by `Block::drop`, its only writer), and that
        // many blocks are BLOCKS_BYTES, which the mapping has: both are powers of two.
        unsafe { self.base.add(self.next * self.block_bytes.get()) }
    }

    fn status(&self) -> &AtomicU32 {
        // SAFETY: in bounds and alive: within the block at `start`, and only `drop` unmaps. Aligned:
        // blocks begin on pages and 8 is a multiple of 4. Races: the kernel loads and stores this
        // word whole; on our side it is touched as `AtomicU32`, or read as bytes of a `Block` while
        // it is ours and nobody stores to it.
        unsafe { AtomicU32::from_ptr(self.start().add(STATUS_AT).cast().as_ptr()) }
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `map` got from mmap; a `Block` borrows `self`, so none is left.
        unsafe { libc::munmap(self.base.as_ptr().cast::<c_void>(), BLOCKS_BYTES) };
    }
}

/// A block that this process owns: the kernel has handed it over.
pub(super) struct Block<'a> {
    blocks: &'a mut Blocks,
}

impl Block<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: in bounds and alive: the block at `start` is `block_bytes` of the mapping, which
        // outlives the borrow. Races: between handing a block over and getting it back the kernel
        // does not write it; we got it by the acquire load in `Blocks::next`, and give it back in
        // `drop`, after every borrow of these bytes has ended.
        unsafe {
            std::slice::from_raw_parts(self.blocks.start().as_ptr(), self.blocks.block_bytes.get())
        }
    }
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        // Release: all reads of the block are done before the kernel may write into it again.
        self.blocks.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.blocks.next = (self.blocks.next + 1) % self.blocks.block_bytes.count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_no_larger_than_its_longest_frame_needs() {
        let sizes = [(0, 128, 256), (65_550, 128, 256), (185_000, 256, 128), (196_608, 256, 128)]
            .into_iter()
            .chain([(262_144, 512, 64), (524_280, 1024, 32), (u32::MAX, 1024, 32)]);
        for (frame_bytes, kib, blocks) in sizes {
            let size = BlockBytes::for_frames_of(frame_bytes);
            assert_eq!((size.get(), size.count()), (kib << 10, blocks), "{frame_bytes}");
        }
    }
}
