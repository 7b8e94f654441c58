//! The specification of generated frames: the text that users write after `gen:`.

use std::fmt;
use std::str::FromStr;

use super::Addresses;
use crate::error::CaptureError;

/// Bytes of the FCS, which is only on the wire, never in memory.
const FCS_BYTES: u32 = 4;
/// Bytes of the smallest Ethernet frame on the wire.
const SIZE_MIN: u32 = 64;
/// Bytes of the largest frame on the wire: an IPv4 packet of 65535 bytes, Ethernet header and FCS.
const SIZE_MAX: u32 = 65_535 + 14 + FCS_BYTES;
/// Preamble, start-of-frame delimiter and inter-frame gap: the bytes that a frame takes on the wire in addition to its
/// own bytes.
const GAP_BYTES: u64 = 20;

/// Frames to generate.
#[derive(Clone, Debug, PartialEq)]
pub struct GenSpec {
    /// Bytes of each frame on the wire, with its FCS. A frame of 64 bytes has 60 bytes in memory.
    pub size_on_wire: u32,
    /// Number of 5-tuples.
    pub flows: Flows,
    /// Number of frames; `None`: no limit.
    pub frames: Option<u64>,
    /// Rate of frames.
    pub rate: Rate,
    /// Source of the time stamps.
    pub stamps: Stamps,
    /// Distance of synthetic time stamps. `None`: the distance at the rate of frames; without a rate, the distance on a
    /// fully loaded link of 10 Gbit/s.
    pub step_ns: Option<u64>,
    /// Addresses of the frames.
    pub addresses: Addresses,
}

/// Number of different 5-tuples of the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flows {
    /// All frames are of one flow.
    Single,
    /// Each frame has its own flow; flows repeat after 2^32 frames.
    Multi,
    /// This many flows (1 or more), in turn.
    N(u32),
}

impl Flows {
    /// Returns the number of flows.
    fn count(self) -> u64 {
        match self {
            Flows::Single => 1,
            Flows::Multi => 1 << 32,
            Flows::N(flows) => flows.into(),
        }
    }

    /// Returns the flow of the next frame.
    pub(super) fn after(self, flow: u32) -> u32 {
        match self {
            Flows::Single => flow,
            Flows::Multi => flow.wrapping_add(1),
            Flows::N(flows) if flow + 1 == flows => 0,
            Flows::N(_) => flow + 1,
        }
    }
}

/// Rate at which frames are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// As fast as possible.
    Max,
    /// Frames per second.
    Pps(f64),
    /// Bits per second of frames with FCS, without preamble and gap.
    Bps(f64),
}

/// Source of the time stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamps {
    /// Computed, with a fixed step from frame to frame. Two runs give the same bytes.
    Synthetic,
    /// The realtime clock, read for each frame, which halves the rate.
    PerFrame,
    /// The realtime clock, read for each burst of up to 64 frames.
    PerBurst,
}

impl Default for GenSpec {
    /// Returns 64-byte frames of one flow, as fast as possible, without a limit.
    fn default() -> Self {
        GenSpec {
            size_on_wire: SIZE_MIN,
            flows: Flows::Single,
            frames: None,
            rate: Rate::Max,
            stamps: Stamps::Synthetic,
            step_ns: None,
            addresses: Addresses::default(),
        }
    }
}

impl GenSpec {
    /// Returns the bytes of each frame in memory.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        (self.size_on_wire - FCS_BYTES) as usize
    }

    /// Returns the frames per second; `None`: as fast as possible.
    #[must_use]
    pub fn rate_pps(&self) -> Option<f64> {
        match self.rate {
            Rate::Max => None,
            Rate::Pps(rate) => Some(rate),
            Rate::Bps(rate) => Some(rate / f64::from(self.size_on_wire * 8)),
        }
    }

    /// Returns the distance of synthetic time stamps, in ns.
    #[must_use]
    pub fn step_ns(&self) -> u64 {
        let at_rate = || self.rate_pps().map(|rate| (1e9 / rate) as u64);
        // At 10 Gbit/s a byte takes 0.8 ns.
        let at_10g = || (u64::from(self.size_on_wire) + GAP_BYTES) * 8 / 10;
        self.step_ns.or_else(at_rate).unwrap_or_else(at_10g)
    }

    /// Returns the bytes on the wire of the smallest possible frame.
    fn size_min(&self) -> u32 {
        let addressing = self.addresses.addressing();
        addressing
            .map_or(SIZE_MIN, |addressing| addressing.frame_bytes_min(false) as u32 + FCS_BYTES)
    }

    /// # Errors
    /// [`CaptureError::Options`] with the valid values.
    pub(super) fn check(&self) -> Result<(), CaptureError> {
        let wrong = |text: String| Err(CaptureError::Options(text));
        let addressing = self.addresses.addressing();
        if let Some(addressing) = &addressing {
            let checked =
                addressing.check().and_then(|()| addressing.check_flows(self.flows.count()));
            checked.map_err(|reason| CaptureError::Options(format!("gen: {reason}")))?;
        }
        let (min, max) = match &addressing {
            Some(addressing) => (self.size_min(), addressing.frame_bytes_max() as u32 + FCS_BYTES),
            None => (SIZE_MIN, SIZE_MAX),
        };
        if !(min..=max).contains(&self.size_on_wire) {
            let size = self.size_on_wire;
            return wrong(format!(
                "gen: size={size} is out of range: {min} to {max} bytes on the wire, FCS included"
            ));
        }
        if self.flows == Flows::N(0) {
            return wrong("gen: flows=0 holds no frame; write single, multi, or 1 or more".into());
        }
        match self.rate_pps() {
            Some(rate) if !(rate > 0.0 && rate.is_finite()) => {
                wrong("gen: rate must be above zero; leave it out for full speed".into())
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for GenSpec {
    type Err = CaptureError;

    /// Parses `size=64,flows=1000,frames=1M,rate=1Mpps,clock=real,step=100`, and addresses with the names of the flags
    /// of `weir gen`: `dst-ip=10.0.0.7,dst-port=514,vlan=5,42`. All parts are optional; an empty text is the default.
    /// Without a size, frames have the smallest size for their headers.
    fn from_str(text: &str) -> Result<GenSpec, CaptureError> {
        let mut spec = GenSpec::default();
        let mut seen = Vec::new();
        for part in parts(text) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            if seen.contains(&name) {
                return Err(CaptureError::Options(format!("gen: {name} is given twice")));
            }
            seen.push(name);
            spec.set(name, value).map_err(|way_out| {
                CaptureError::Options(format!("gen: '{part}' is not understood; {way_out}"))
            })?;
        }
        if !seen.contains(&"size") {
            spec.size_on_wire = spec.size_min();
        }
        spec.check()?;
        Ok(spec)
    }
}

impl GenSpec {
    /// Sets one option. The error describes the format.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        if let Some(set) = self.addresses.set(name, value) {
            return set;
        }
        match name {
            "size" => self.size_on_wire = value.parse().map_err(|_| "write bytes: size=64")?,
            "flows" => {
                self.flows = match value {
                    "single" => Flows::Single,
                    "multi" => Flows::Multi,
                    number => Flows::N(
                        number
                            .parse()
                            .map_err(|_| "write flows=single, flows=multi or flows=1000")?,
                    ),
                }
            }
            "frames" => {
                let frames = scaled(value, &[("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9)]);
                let frames = frames.filter(|frames| (1.0..1e19).contains(frames));
                self.frames =
                    Some(frames.ok_or("write frames=1000, frames=10k or frames=1M")? as u64);
            }
            "rate" => self.rate = rate(value).ok_or("write rate=max, rate=1Mpps or rate=1Gbps")?,
            "clock" => {
                self.stamps = match value {
                    "synthetic" => Stamps::Synthetic,
                    "real" => Stamps::PerFrame,
                    "burst" => Stamps::PerBurst,
                    _ => return Err("write clock=synthetic, clock=real or clock=burst".into()),
                }
            }
            "step" => {
                self.step_ns = Some(value.parse().map_err(|_| "write nanoseconds: step=100")?);
            }
            _ => {
                let addresses = "src-mac, dst-mac, src-ip, dst-ip, src-port, dst-port and vlan";
                let others = "size, flows, frames, rate, clock and step";
                return Err(format!("there are {others}, and {addresses}"));
            }
        }
        Ok(())
    }
}

/// Splits a text into options. The comma between VLAN IDs does not separate options.
fn parts(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let mut end = rest.find(',').unwrap_or(rest.len());
        if rest.starts_with("vlan=") {
            let is_id =
                |more: &&str| !more.is_empty() && more.bytes().all(|byte| byte.is_ascii_digit());
            let more = rest[end..].split(',').skip(1).take_while(|more| is_id(more));
            end += more.map(|more| more.len() + 1).sum::<usize>();
        }
        parts.push(&rest[..end]);
        rest = rest[end..].trim_start_matches(',');
    }
    parts
}

fn rate(text: &str) -> Option<Rate> {
    if text == "max" {
        return Some(Rate::Max);
    }
    let pps = [("pps", 1.0), ("kpps", 1e3), ("Mpps", 1e6)];
    let bps = [("bps", 1.0), ("kbps", 1e3), ("Mbps", 1e6), ("Gbps", 1e9)];
    scaled(text, &pps).map(Rate::Pps).or_else(|| scaled(text, &bps).map(Rate::Bps))
}

/// Parses a number above zero with one of these units.
fn scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (_, scale) = units.iter().find(|(name, _)| *name == unit)?;
    let number = number.parse::<f64>().ok()? * scale;
    (number > 0.0 && number.is_finite()).then_some(number)
}

impl fmt::Display for GenSpec {
    /// Writes a text that [`FromStr`] parses, with the size and every option that is not the default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "size={}", self.size_on_wire)?;
        match self.flows {
            Flows::Single => {}
            Flows::Multi => f.write_str(",flows=multi")?,
            Flows::N(flows) => write!(f, ",flows={flows}")?,
        }
        if let Some(frames) = self.frames {
            write!(f, ",frames={frames}")?;
        }
        match self.rate {
            Rate::Max => {}
            Rate::Pps(rate) => write!(f, ",rate={rate}pps")?,
            Rate::Bps(rate) => write!(f, ",rate={rate}bps")?,
        }
        match self.stamps {
            Stamps::Synthetic => {}
            Stamps::PerFrame => f.write_str(",clock=real")?,
            Stamps::PerBurst => f.write_str(",clock=burst")?,
        }
        self.step_ns.map_or(Ok(()), |step| write!(f, ",step={step}"))?;
        write!(f, "{}", self.addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_is_read_and_written() {
        assert_eq!("".parse::<GenSpec>().unwrap(), GenSpec::default());
        let text = "size=1518,flows=1000,frames=2000000,rate=1500000pps,clock=burst,step=5";
        let spec: GenSpec = text.parse().unwrap();
        assert_eq!(spec.to_string(), text);
        assert_eq!(spec.frame_bytes(), 1514);
        let spec: GenSpec = "frames=2M,flows=multi,rate=1.5Gbps,clock=real".parse().unwrap();
        assert_eq!((spec.frames, spec.rate), (Some(2_000_000), Rate::Bps(1.5e9)));
        assert_eq!(spec.to_string().parse::<GenSpec>().unwrap(), spec);
        let spec: GenSpec = "flows=single,rate=max,clock=synthetic".parse().unwrap();
        assert_eq!(spec, GenSpec::default());
    }

    #[test]
    fn addresses_have_the_names_of_the_flags_of_weir_gen() {
        let text = "size=82,flows=10,src-mac=02:00:00:00:00:0a,dst-mac=02:00:00:00:00:0b,src-ip=flow,\
                    dst-ip=2001:db8::7,src-port=7,dst-port=514,vlan=5,42";
        let spec: GenSpec = text.parse().unwrap();
        assert_eq!(spec.to_string(), text);
        let addressing = spec.addresses.addressing().unwrap();
        assert_eq!((addressing.vlans, addressing.source), (vec![5, 42], None));
        // Without a size, the smallest possible one. A second VLAN ID may be followed by other options.
        let spec: GenSpec = "vlan=5,42,dst-ip=2001:db8::7,frames=3".parse().unwrap();
        assert_eq!((spec.size_on_wire, spec.frames), (82, Some(3)));
        assert_eq!("dst-ip=10.0.0.7".parse::<GenSpec>().unwrap().size_on_wire, 64);
        assert_eq!(GenSpec::default().addresses.addressing(), None);
    }

    #[test]
    fn nonsense_says_how_to_write_it() {
        for (bad, way_out) in [
            ("size", "size=64"),
            ("size=63", "64 to 65553"),
            ("size=73,dst-ip=::1", "74 to"),
            ("dst-mac=1", "02:00:5e"),
            ("src-ip=eth0", "flow"),
            ("dst-ip=eth0", "dst-ip=10.0.0.7"),
            ("dst-port=65536", "dst-port=514"),
            ("vlan=4095", "0 to 4094"),
            ("vlan=1,2,3", "0 to 4094"),
            ("src-ip=10.0.0.1,dst-ip=::1", "one family"),
            ("src-port=1,flows=multi", "131072 flows"),
            ("size=65554", "64 to 65553"),
            ("size=-1", "size=64"),
            ("flows=0", "1 or more"),
            ("flows=some", "flows=multi"),
            ("frames=0", "frames=10k"),
            ("frames=1e30", "frames=10k"),
            ("rate=0pps", "rate=1Mpps"),
            ("rate=fast", "rate=1Mpps"),
            ("clock=atomic", "clock=burst"),
            ("step=1us", "step=100"),
            ("speed=9", "there are size"),
            ("size=64,size=65", "twice"),
            ("64", "there are size"),
        ] {
            let error = bad.parse::<GenSpec>().unwrap_err().to_string();
            assert!(error.contains(way_out), "{bad}: {error}");
        }
    }

    #[test]
    fn the_step_follows_the_rate_or_a_full_link() {
        let step = |text: &str| text.parse::<GenSpec>().unwrap().step_ns();
        assert_eq!(step(""), 67);
        assert_eq!(step("rate=1Mpps"), 1000);
        assert_eq!(step("rate=1Mpps,step=3"), 3);
        assert_eq!(step("size=1250,rate=1Gbps"), 10_000);
    }
}
