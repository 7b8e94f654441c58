//! Computes the drives and CPU cores for a link from the measured figures of one drive.

use serde::Serialize;

/// Bytes that a link carries with each frame: preamble, start delimiter and inter-frame gap. Source: IEEE 802.3.
const GAP_BYTES: u32 = 20;
/// Links for which the needs are computed, Gbit/s.
pub(super) const LINKS_GBPS: [f64; 3] = [10.0, 40.0, 100.0];

/// Measurements of one drive at one size of frames.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drive {
    /// Mean size on the wire, FCS included.
    pub(super) size_on_wire: u32,
    /// Mean size of a frame's pcapng record, bytes.
    pub(super) record_bytes: f64,
    /// Bytes of records kept a second.
    pub(super) bytes_per_second: f64,
    /// CPU seconds of the recorder per GB of records.
    pub(super) cpu_seconds_per_gb: f64,
}

/// Needs of a fully loaded link. Computed, not measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Need {
    /// The link's rate.
    pub link_gbps: f64,
    /// Mean size on the wire, FCS included.
    pub size_on_wire: u32,
    /// Frames a second of the fully loaded link, millions.
    pub mpps: f64,
    /// GB of pcapng records a second.
    pub records_gbytes_per_second: f64,
    /// Number of drives of the measured kind.
    pub drives: u64,
    /// Number of CPU cores of this machine's kind that the recorder uses, without the capture.
    pub cpu_cores: f64,
}

/// The fastest link whose traffic a number of drives can record. Computed, not measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Link {
    /// Number of drives of the measured kind.
    pub drives: u32,
    /// Mean size on the wire, FCS included.
    pub size_on_wire: u32,
    /// Rate of the fully loaded link that the drives can record.
    pub link_gbps: f64,
}

impl Drive {
    /// Returns the bytes of records a second of a fully loaded link.
    fn link_bytes_per_second(&self, link_gbps: f64) -> f64 {
        self.frames_per_second(link_gbps) * self.record_bytes
    }

    fn frames_per_second(&self, link_gbps: f64) -> f64 {
        link_gbps * 1e9 / 8.0 / f64::from(self.size_on_wire + GAP_BYTES)
    }

    /// Returns the needs of a fully loaded link; `None` for a drive that kept nothing.
    pub(super) fn need(&self, link_gbps: f64) -> Option<Need> {
        if self.bytes_per_second <= 0.0 {
            return None;
        }
        let bytes = self.link_bytes_per_second(link_gbps);
        Some(Need {
            link_gbps,
            size_on_wire: self.size_on_wire,
            mpps: self.frames_per_second(link_gbps) / 1e6,
            records_gbytes_per_second: bytes / 1e9,
            drives: (bytes / self.bytes_per_second).ceil() as u64,
            cpu_cores: bytes / 1e9 * self.cpu_seconds_per_gb,
        })
    }

    /// Returns the link that this number of drives can record.
    pub(super) fn link(&self, drives: u32) -> Link {
        let share = self.bytes_per_second / self.link_bytes_per_second(1.0);
        let link_gbps = f64::from(drives) * share;
        Link { drives, size_on_wire: self.size_on_wire, link_gbps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drive(bytes_per_second: f64) -> Drive {
        Drive {
            size_on_wire: 1518,
            record_bytes: 1548.0,
            bytes_per_second,
            cpu_seconds_per_gb: 0.5,
        }
    }

    #[test]
    fn a_full_link_is_its_frames_with_their_gaps() {
        let need = drive(1e9).need(10.0).unwrap();
        // 10e9 / 8 / 1538 = 812,744 frames of 1,548 B: 1.258 GB/s.
        assert!((need.mpps - 0.812_744).abs() < 1e-6, "{need:?}");
        assert!((need.records_gbytes_per_second - 1.258_128).abs() < 1e-6, "{need:?}");
        assert_eq!(need.drives, 2);
        assert!((need.cpu_cores - 0.629_064).abs() < 1e-6, "{need:?}");
    }

    #[test]
    fn a_drive_that_just_holds_it_is_enough_and_a_little_less_is_not() {
        let just = drive(1.0).link_bytes_per_second(40.0);
        assert_eq!(drive(just).need(40.0).unwrap().drives, 1);
        assert_eq!(drive(just * 0.999).need(40.0).unwrap().drives, 2);
        assert_eq!(drive(just * 1.001).need(100.0).unwrap().drives, 3);
    }

    #[test]
    fn a_drive_that_kept_nothing_is_no_answer() {
        assert_eq!(drive(0.0).need(10.0), None);
    }

    #[test]
    fn the_link_that_drives_hold_is_the_other_way_round() {
        let just = drive(1.0).link_bytes_per_second(40.0);
        assert!((drive(just / 4.0).link(4).link_gbps - 40.0).abs() < 1e-9);
    }
}
