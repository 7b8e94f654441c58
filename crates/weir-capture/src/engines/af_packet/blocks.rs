//! The blocks that a packet socket shares with the kernel, and whose turn it is with each.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a block, the unit that the kernel hands over: the longest frame and its header fit.
pub(super) const BLOCK_BYTES: usize = 128 << 10;
/// Blocks of a socket: 32 MiB. A block is handed over at the latest when its time-out has passed, full or
/// not, so on any link this thread may be away for this many time-outs, a second, before frames are lost.
pub(super) const BLOCKS: usize = 256;
const _: () = assert!(BLOCK_BYTES > weir_frame::record::CAPLEN_MAX as usize + 4096);
const _: () = assert!((BLOCKS * BLOCK_BYTES) as u64 <= crate::limits::BUFFER_BYTES_MAX);
/// Offset of `tpacket_hdr_v1.block_status` in a block. Source: linux/if_packet.h.
const STATUS_AT: usize = 8;

/// The mapping.
pub(super) struct Blocks {
    base: NonNull<u8>,
    /// The block that the kernel hands over next: it fills them in turn.
    next: usize,
}

// SAFETY: the mapping belongs to no thread; it is reached through `&mut self` only, and by the kernel.
unsafe impl Send for Blocks {}

impl Blocks {
    /// Maps the ring that was set up on `socket`.
    pub(super) fn map(socket: BorrowedFd<'_>) -> io::Result<Blocks> {
        // SAFETY: a null hint lets the kernel choose the place, so no other mapping is touched. A
        // packet socket's ring is mapped whole or not at all, and cannot shrink while it is mapped.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                BLOCKS * BLOCK_BYTES,
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
        Ok(Blocks { base, next: 0 })
    }

    /// The next block, if the kernel has handed it over. It goes back when the result is dropped.
    pub(super) fn next(&mut self) -> Option<Block<'_>> {
        // Pairs with the kernel's write barrier before it sets the status (`prb_flush_block`,
        // net/packet/af_packet.c): the frames are whole before the block is ours.
        let ours = self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER != 0;
        // Not `then_some`: it would make a `Block` in any case and drop it, and dropping gives back.
        if ours { Some(Block { blocks: self }) } else { None }
    }

    fn start(&self) -> NonNull<u8> {
        debug_assert!(self.next < BLOCKS);
        // SAFETY: in bounds: `next` is below BLOCKS (kept by `Block::drop`, its only writer), and the
        // mapping has BLOCKS * BLOCK_BYTES bytes.
        unsafe { self.base.add(self.next * BLOCK_BYTES) }
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
        unsafe { libc::munmap(self.base.as_ptr().cast::<c_void>(), BLOCKS * BLOCK_BYTES) };
    }
}

/// One block while it is ours.
pub(super) struct Block<'a> {
    blocks: &'a mut Blocks,
}

impl Block<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: in bounds and alive: the block at `start` is BLOCK_BYTES of the mapping, which
        // outlives the borrow. Races: between handing a block over and getting it back the kernel
        // does not write it; we got it by the acquire load in `Blocks::next`, and give it back in
        // `drop`, after every borrow of these bytes has ended.
        unsafe { std::slice::from_raw_parts(self.blocks.start().as_ptr(), BLOCK_BYTES) }
    }
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        // Release: all reading is done before the kernel may write again.
        self.blocks.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.blocks.next = (self.blocks.next + 1) % BLOCKS;
    }
}
