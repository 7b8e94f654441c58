//! The two rings between an AF_XDP socket and the kernel: through the RX ring the kernel passes filled chunks, and
//! through the fill ring it gets empty chunks back. Indices are 32-bit counters that wrap around; `index & (size - 1)`
//! is the slot.
//!
//! For every descriptor that is read, one chunk is given back, so both rings advance equally: the chunk at RX index `i`
//! goes to fill index `i + chunks`, where `chunks` is the total number of chunks. So several threads can work on one
//! ring without synchronization: each can compute the fill index for its chunks.

use std::sync::atomic::{AtomicU64, Ordering};

use super::area::Area;

/// A filled chunk. It contains a frame or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// Offset of the bytes in the UMEM.
    pub(super) address: u64,
    /// The number of bytes.
    pub(super) len: u32,
    /// Whether the frame continues in the next descriptor.
    pub(super) continues: bool,
}

/// The offsets of one ring's words and slots: `struct xdp_ring_offset`, linux/if_xdp.h.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) producer: usize,
    pub(super) consumer: usize,
    pub(super) flags: usize,
    pub(super) slots: usize,
}

/// 64-bit words of an RX slot: `struct xdp_desc` { u64 addr; u32 len; u32 options }.
const RX_SLOT_WORDS: usize = 2;

pub(super) struct Rings {
    rx: Area,
    rx_places: Places,
    fill: Area,
    fill_places: Places,
    /// The number of slots of each ring, which is also the number of chunks: a power of two.
    size: u32,
}

impl Rings {
    pub(super) fn new(
        rx: Area,
        rx_places: Places,
        fill: Area,
        fill_places: Places,
        size: u32,
    ) -> Rings {
        assert!(size.is_power_of_two());
        let rings = Rings { rx, rx_places, fill, fill_places, size };
        // Panics now rather than later if the slots are not within the areas.
        let _ = (rings.rx_slots(), rings.fill_slots());
        rings
    }

    /// Returns the RX index up to which the kernel has filled descriptors.
    #[inline]
    pub(super) fn filled(&self) -> u32 {
        // Pairs with the kernel's release: descriptors and frames below this index are complete.
        self.rx.u32(self.rx_places.producer).load(Ordering::Acquire)
    }

    /// Returns the descriptor at an index that is below [`filled`](Rings::filled) and was not released.
    #[inline]
    pub(super) fn descriptor(&self, index: u32) -> Descriptor {
        let slot = (index & (self.size - 1)) as usize * RX_SLOT_WORDS;
        let slots = self.rx_slots();
        let address = slots[slot].load(Ordering::Relaxed);
        let second = slots[slot + 1].load(Ordering::Relaxed);
        Descriptor {
            address,
            len: second as u32,
            continues: (second >> 32) as u32 & libc::XDP_PKT_CONTD != 0,
        }
    }

    /// Sets the chunk that the kernel gets back for the descriptor at `index`. The kernel sees it after
    /// [`release`](Rings::release).
    #[inline]
    pub(super) fn give_back(&self, index: u32, address: u64) {
        let slot = (index & (self.size - 1)) as usize;
        self.fill_slots()[slot].store(address, Ordering::Relaxed);
    }

    /// Releases all descriptors below `index`, and so gives their chunks back to the kernel.
    pub(super) fn release(&self, index: u32) {
        // Each store pairs with an acquire in the kernel: before it come our reads of the RX slots, and our stores of
        // the addresses.
        self.rx.u32(self.rx_places.consumer).store(index, Ordering::Release);
        let fill = index.wrapping_add(self.size);
        self.fill.u32(self.fill_places.producer).store(fill, Ordering::Release);
    }

    /// Gives all chunks to the kernel. Must be called once, before all other operations.
    pub(super) fn give_all(&self, chunk_bytes: u32) {
        for index in 0..self.size {
            self.give_back(index, u64::from(index) * u64::from(chunk_bytes));
        }
        self.release(0);
    }

    /// Returns true if the kernel requests a system call after chunks were given back.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        let flags = self.fill.u32(self.fill_places.flags).load(Ordering::Relaxed);
        flags & libc::XDP_RING_NEED_WAKEUP != 0
    }

    #[inline]
    fn rx_slots(&self) -> &[AtomicU64] {
        self.rx.u64s(self.rx_places.slots, self.size as usize * RX_SLOT_WORDS)
    }

    #[inline]
    fn fill_slots(&self) -> &[AtomicU64] {
        self.fill.u64s(self.fill_places.slots, self.size as usize)
    }
}

/// The kernel's side of both rings, for tests and benches: it replaces the NIC.
pub(super) mod kernel {
    use weir_ring::memory::Placement;

    use super::{Area, Ordering, Places, RX_SLOT_WORDS, Rings};

    const PLACES: Places = Places { producer: 0, consumer: 64, flags: 128, slots: 192 };

    /// Creates both rings in anonymous memory.
    pub(in crate::engines::af_xdp) fn rings(size: u32) -> std::io::Result<Rings> {
        let bytes = |slot_words: usize| PLACES.slots + size as usize * slot_words * 8;
        let rx = Area::anonymous(bytes(RX_SLOT_WORDS), Placement::default())?;
        let fill = Area::anonymous(bytes(1), Placement::default())?;
        Ok(Rings::new(rx, PLACES, fill, PLACES, size))
    }

    /// Operations that the kernel does in service.
    impl Rings {
        /// Takes the next empty chunk, calls `write` to fill it, and adds a descriptor of `len` bytes, which begin
        /// `offset` bytes into the chunk, to the RX ring. Returns false if there is no chunk or no slot.
        pub(in crate::engines::af_xdp) fn receive(
            &self,
            len: u32,
            offset: u32,
            continues: bool,
            write: impl FnOnce(u64),
        ) -> bool {
            let fill = |at| self.fill.u32(at);
            let (taken, given) = (
                fill(self.fill_places.consumer).load(Ordering::Relaxed),
                fill(self.fill_places.producer).load(Ordering::Acquire),
            );
            let rx = |at| self.rx.u32(at);
            let (made, released) = (
                rx(self.rx_places.producer).load(Ordering::Relaxed),
                rx(self.rx_places.consumer).load(Ordering::Acquire),
            );
            if taken == given || made.wrapping_sub(released) == self.size {
                return false;
            }
            let slot = (taken & (self.size - 1)) as usize;
            let address = self.fill_slots()[slot].load(Ordering::Relaxed) + u64::from(offset);
            fill(self.fill_places.consumer).store(taken.wrapping_add(1), Ordering::Release);
            write(address);
            let slot = (made & (self.size - 1)) as usize * RX_SLOT_WORDS;
            let options = u64::from(continues) * u64::from(libc::XDP_PKT_CONTD);
            self.rx_slots()[slot].store(address, Ordering::Relaxed);
            self.rx_slots()[slot + 1].store(u64::from(len) | options << 32, Ordering::Relaxed);
            rx(self.rx_places.producer).store(made.wrapping_add(1), Ordering::Release);
            true
        }

        /// Fills all released chunks again at once, with the same descriptors, like a NIC that always has frames
        /// waiting. Every slot must have been filled before.
        pub(in crate::engines::af_xdp) fn refill(&self) {
            let released = self.rx.u32(self.rx_places.consumer).load(Ordering::Acquire);
            let made = released.wrapping_add(self.size);
            let producer = self.rx.u32(self.rx_places.producer);
            // Stored only if something was released, because all copiers read this word.
            if producer.load(Ordering::Relaxed) != made {
                producer.store(made, Ordering::Release);
            }
        }
    }
}
