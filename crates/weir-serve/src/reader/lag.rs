//! Computes how many frames a client's slowest consumer has not read, and how many of these were overwritten.

use weir_ring::{Ring, Start, Words};

use super::{Reader, Sleeping};

/// The frames that a consumer has not read, by its reported position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lag {
    /// Number of these frames.
    pub frames: u64,
    /// Number of these frames that were overwritten. The position may be 0.1 s old, so the consumer may have read them
    /// before.
    pub lapped: u64,
}

impl Lag {
    /// Returns the lag of a consumer whose next frame has the ordinal `position`.
    pub(crate) fn of<M: Words>(ring: &Ring<M>, position: u64) -> Lag {
        let frames = ring.frames_written().saturating_sub(position);
        if frames == 0 {
            return Lag::default();
        }
        // A lapped consumer goes on where a reader that starts at its position would begin. If such a reader cannot be
        // created, 0 is assumed.
        let reader = weir_ring::Reader::new(ring, Start::Ordinal(position));
        let lapped = reader.map_or(0, |reader| reader.lapped());
        Lag { frames, lapped: lapped.min(frames) }
    }

    fn and(self, other: Lag) -> Lag {
        Lag { frames: self.frames + other.frames, lapped: self.lapped + other.lapped }
    }
}

impl Reader {
    /// Returns the lag of the slowest consumer; `None` if there are no consumers.
    #[must_use]
    pub fn lag(&self) -> Option<Lag> {
        if let Some(copy) = self.copy.get() {
            return copy.relay.lag();
        }
        let reads = self.reads();
        let state = self.state();
        let of_one = |sleeping: &Sleeping| {
            let lines = (sleeping.first_line..).zip(&reads.rings).zip(&reads.from);
            let lags = lines.map(|((line, ring), from)| {
                Lag::of(ring, sleeping.waker.position(line).max(*from))
            });
            lags.fold(Lag::default(), Lag::and)
        };
        state.sleepers.values().map(of_one).max()
    }
}

#[cfg(test)]
mod tests {
    use weir_frame::pcapng::Interface;
    use weir_frame::record::Meta;
    use weir_ring::{Clock, RingSpec, Writer, WriterKind, memory};

    use super::*;

    #[test]
    fn overwritten_frames_are_lapped_and_others_are_not() {
        let spec = RingSpec {
            data_blocks: 4,
            interfaces: vec![Interface {
                name: "eth0".into(),
                link_type: 1,
                ..Interface::default()
            }],
            cpu: None,
            clock: Clock::Foreign,
            writer: WriterKind::User,
        };
        let mut writer = Writer::new(memory::create_memfd("lag-test", &spec).unwrap());
        let mut push = |frames: u64| {
            for _ in 0..frames {
                writer.push(&Meta { wire_len: 1500, ..Meta::default() }, &[1; 1500]);
            }
            writer.publish();
            writer.ring().clone()
        };
        let ring = push(10);
        assert_eq!(Lag::of(&ring, 4), Lag { frames: 6, lapped: 0 });
        assert_eq!(Lag::of(&ring, 10), Lag::default());
        let all = 10 + 20_000;
        let ring = push(20_000);
        let lag = Lag::of(&ring, 4);
        assert_eq!(lag.frames, all - 4);
        assert!(lag.lapped > 0 && lag.lapped < lag.frames, "{lag:?}");
        // The number of lapped frames is the one that a reader from there gets.
        let reader = weir_ring::Reader::new(&ring, Start::Ordinal(4)).unwrap();
        assert_eq!(lag.lapped, reader.lapped());
    }
}
