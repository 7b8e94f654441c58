//! Exports flows to an IPFIX collector.
//!
//! | module | contents |
//! |---|---|
//! | [`target`] | address of a collector |
//! | `message` | messages, built record by record |
//! | `element`, `flow`, `options` | fields, records of flows, and options records |
//! | `session` | state of a session: the templates and options that the collector has received |
//! | `pace` | rate limit for messages over UDP |
//! | `transport`, `udp`, `tcp`, `unacked` | sending of messages, and counts of those that arrived |
//!
//! A message has either templates and options, or flows. So a message with flows can still be sent in a later session
//! than the one in which it was encoded. Source: RFC 7011; RFC 5103 for both directions in one record.

mod element;
mod flow;
mod message;
mod options;
mod pace;
mod session;
pub mod target;
mod tcp;
mod transport;
mod udp;
mod unacked;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use weir_flow::{FlowRecord, Octets};

use self::flow::{Layout, Layouts};
use self::message::Message;
use self::pace::Pace;
use self::session::{Exported, Session};
pub use self::target::{Protocol, Target, TargetError};
use self::tcp::Tcp;
use self::transport::{Ready, Transport};
use self::udp::Udp;
use crate::export::{Batch, Counts, Export, ExportError, Origin};
use crate::limits::{
    ADDRESSES_MAX, DATAGRAM_BYTES, DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, MESSAGE_BYTES_MAX,
    NOTES_PACE_BYTES, USER_TIMEOUT,
};

/// Set ids of templates and options templates. Source: RFC 7011 section 3.3.2.
const TEMPLATE_SET: u16 = 2;
const OPTIONS_TEMPLATE_SET: u16 = 3;

/// Settings of an IPFIX export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The observation domain, by which a collector distinguishes several exports of one machine. Default: 1.
    pub domain: u32,
    /// Whether records have both directions, as in [`FlowConfig`](weir_flow::FlowConfig).
    pub biflow: bool,
    /// Which bytes of a frame are counted, as in [`FlowConfig`](weir_flow::FlowConfig).
    pub octets: Octets,
    /// Largest size of a message over UDP, from 576 to 65,507 bytes. Default: 1400. Over TCP it is always 65,535.
    pub datagram_bytes: usize,
    /// Interval at which templates and options are sent again over UDP, and statistics over TCP. Default: 60 s.
    pub refresh_interval: Duration,
    /// Number of messages after which templates are sent again over UDP. Default: 128.
    pub refresh_messages: u32,
    /// Whether to send options: names of interfaces and statistics of the export. nfdump 1.7.1 does not count such
    /// records, so it reports a sequence error whenever they are sent again. Default: true.
    pub options: bool,
    /// Over TCP, the connection ends if sent data is not acknowledged for this time. Default: 30 s.
    pub user_timeout: Duration,
    /// Most flows to send in a second, because they may come faster than a collector empties its socket. Default:
    /// `None`, no limit. Templates and options over UDP have their own limit, [`NOTES_PACE_BYTES`].
    pub pace: Option<NonZeroU32>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            domain: 1,
            biflow: false,
            octets: Octets::Ip,
            datagram_bytes: DATAGRAM_BYTES,
            refresh_interval: Duration::from_secs(60),
            refresh_messages: 128,
            options: true,
            user_timeout: USER_TIMEOUT,
            pace: None,
        }
    }
}

/// An export to a collector of IPFIX.
///
/// It never fails once it is open. While the collector is unreachable, flows are counted as unsent. Over UDP a flow
/// counts as sent if the kernel took its message and no ICMP error reported a closed port; over TCP, when the
/// collector's machine has acknowledged the message. Neither proves that the collector has read the flow.
pub struct Ipfix {
    name: String,
    config: Config,
    transport: Box<dyn Transport>,
    is_datagrams: bool,
    /// Flows that wait until their message is full, or until the next tick.
    data: Message,
    /// Templates and options that wait to be sent.
    notes: Message,
    /// Buffer in which a flow's record is encoded.
    record: Vec<u8>,
    used: Layouts,
    origins: Arc<Vec<Origin>>,
    session: Session,
    refreshed: Instant,
    pace: Pace,
    exported: Exported,
    /// Flows that were dropped because there was no session, or because their template could not be sent.
    unsent: u64,
    /// Whether a message of templates and options could not be sent.
    notes_failed: bool,
    /// The flows of `unsent`, and those whose message the transport did not take.
    not_handed_over: u64,
}

/// Selects one of the two messages of [`Ipfix`].
#[derive(Clone, Copy)]
enum Which {
    Data,
    Notes,
}

impl Ipfix {
    /// Resolves the collector's name once, and connects if the transport is TCP.
    ///
    /// # Errors
    /// The name has no address; there is no route to it; over TCP, nobody accepts the connection, which takes 8 s at
    /// most; or the message size is out of range.
    pub fn open(target: &Target, config: Config) -> Result<Ipfix, ExportError> {
        let failed = |way_out: &str| {
            let what = format!("{target}: {way_out}");
            move |source| ExportError { what, source }
        };
        if !(DATAGRAM_BYTES_MIN..=DATAGRAM_BYTES_MAX).contains(&config.datagram_bytes) {
            let range = format!(
                "a message of {} bytes; give {DATAGRAM_BYTES_MIN} to {DATAGRAM_BYTES_MAX}",
                config.datagram_bytes
            );
            return Err(failed(&range)(io::ErrorKind::InvalidInput.into()));
        }
        let addresses = resolve(target)
            .map_err(failed("the name has no address; check it, or give the address instead"))?;
        let (transport, message_bytes): (Box<dyn Transport>, _) = match target.protocol {
            Protocol::Udp => {
                let udp = Udp::open(addresses).map_err(failed(
                    "no way to the collector; check its address, and the routes here",
                ))?;
                (Box::new(udp), config.datagram_bytes)
            }
            Protocol::Tcp => {
                let tcp = Tcp::open(addresses, config.user_timeout).map_err(failed(
                    "nobody takes the connection; start the collector, with TCP, or try ipfix:// for UDP",
                ))?;
                (Box::new(tcp), MESSAGE_BYTES_MAX)
            }
        };
        Ok(Ipfix::over(transport, target, message_bytes, config))
    }

    fn over(
        transport: Box<dyn Transport>,
        target: &Target,
        message_bytes: usize,
        config: Config,
    ) -> Ipfix {
        let now = Instant::now();
        Ipfix {
            name: target.to_string(),
            config,
            transport,
            is_datagrams: target.protocol == Protocol::Udp,
            data: Message::new(message_bytes),
            notes: Message::new(message_bytes),
            record: Vec::new(),
            used: Layouts::default(),
            origins: Arc::default(),
            session: Session::default(),
            refreshed: now,
            pace: Pace::new(),
            exported: Exported::default(),
            unsent: 0,
            notes_failed: false,
            not_handed_over: 0,
        }
    }

    fn put(&mut self, record: &FlowRecord) {
        let layout = Layout::of(record, self.config.biflow, self.config.octets);
        self.used.insert(layout);
        self.record.clear();
        layout.put_record(record, &mut self.record);
        if !self.data.put(layout.template_id(), &self.record) {
            self.flush();
            assert!(self.data.put(layout.template_id(), &self.record), "a flow fits any message");
        }
        self.data.flows += 1;
    }

    /// Sends the waiting flows. Before them, sends the templates and options that the collector needs to read them.
    fn flush(&mut self) {
        if self.data.is_empty() {
            return;
        }
        match self.transport.prepare() {
            Ready::Yes => self.refresh_if_due(),
            Ready::NewSession => {
                self.session = Session::default();
                self.refreshed = Instant::now();
            }
            Ready::TemplatesLost => self.forget_what_was_told(),
            Ready::No => return self.drop_data(),
        }
        if !self.tell() {
            // Without its templates the collector could not read the flows.
            self.forget_what_was_told();
            return self.drop_data();
        }
        self.send(Which::Data);
    }

    fn drop_data(&mut self) {
        self.unsent += self.data.flows;
        self.not_handed_over += self.data.flows;
        self.data.clear();
    }

    fn refresh_if_due(&mut self) {
        let is_time = self.refreshed.elapsed() >= self.config.refresh_interval;
        let is_many = self.session.messages_since_refresh >= self.config.refresh_messages;
        if is_time && self.is_datagrams {
            self.forget_what_was_told();
        } else if is_time {
            self.session.has_statistics = false;
            self.refreshed = Instant::now();
        } else if is_many && self.is_datagrams {
            self.session.forget_templates();
        }
    }

    fn forget_what_was_told(&mut self) {
        self.session = Session { sequence: self.session.sequence, ..Session::default() };
        self.refreshed = Instant::now();
    }

    /// Sends the templates, names of interfaces and statistics that this session lacks. Returns whether all of them
    /// were sent.
    fn tell(&mut self) -> bool {
        self.notes_failed = false;
        let missing: Vec<_> = self.used.without(self.session.layouts).collect();
        for layout in missing {
            self.note(TEMPLATE_SET, |out| layout.put_template(out));
        }
        self.session.layouts = self.used;
        if self.config.options {
            self.tell_options();
        }
        if !self.notes.is_empty() {
            self.send(Which::Notes);
        }
        !self.notes_failed
    }

    fn tell_options(&mut self) {
        if !self.session.has_options {
            for template in options::templates() {
                self.note(OPTIONS_TEMPLATE_SET, |out| out.extend(template));
            }
        }
        if !Arc::ptr_eq(&self.origins, &self.session.origins) {
            let (origins, told) = (Arc::clone(&self.origins), Arc::clone(&self.session.origins));
            for (number, origin) in origins.iter().enumerate() {
                if told.get(number) != Some(origin) && !origin.interface.is_empty() {
                    let put =
                        |out: &mut Vec<u8>| options::put_interface(number as u32, origin, out);
                    self.note(options::INTERFACES, put);
                }
            }
            self.session.origins = origins;
        }
        if !self.session.has_statistics {
            // A message that was sent, but then refused or not acknowledged, does not count as exported.
            let (messages, unsent) = (self.exported.messages, self.counts().unsent);
            let handed_over = self.exported.flows + self.not_handed_over;
            let counts = Counts { sent: handed_over.saturating_sub(unsent), unsent };
            self.note(options::STATISTICS, |out| options::put_statistics(messages, counts, out));
        }
        (self.session.has_options, self.session.has_statistics) = (true, true);
    }

    /// Puts a record into the message for templates and options. If the message is full, it is sent first.
    fn note(&mut self, set_id: u16, put: impl FnOnce(&mut Vec<u8>)) {
        let mut record = Vec::new();
        put(&mut record);
        if !self.notes.put(set_id, &record) {
            self.send(Which::Notes);
            assert!(self.notes.put(set_id, &record), "a template fits any message");
        }
    }

    fn send(&mut self, which: Which) {
        self.wait_for_pace(which);
        let message = match which {
            Which::Data => &mut self.data,
            Which::Notes => &mut self.notes,
        };
        let (records, flows) = (message.data_records, message.flows);
        let bytes = message.seal(now_s(), self.session.sequence, self.config.domain);
        if self.transport.send(bytes, flows) {
            self.session.sequence = self.session.sequence.wrapping_add(records);
            self.session.messages_since_refresh += 1;
            self.exported.messages += 1;
            self.exported.flows += flows;
        } else {
            self.not_handed_over += flows;
            self.notes_failed |= matches!(which, Which::Notes);
        }
        message.clear();
    }

    /// Waits as the rate limits require. Names of a few hundred interfaces, sent at once, would overrun the collector's
    /// socket buffer.
    fn wait_for_pace(&mut self, which: Which) {
        let takes = match which {
            Which::Notes if self.is_datagrams => {
                Some(Duration::from_secs(self.notes.bytes() as u64) / NOTES_PACE_BYTES)
            }
            Which::Notes => None,
            Which::Data => self
                .config
                .pace
                .map(|a_second| Duration::from_secs(self.data.flows) / a_second.get()),
        };
        if let Some(takes) = takes {
            self.pace.wait(takes);
        }
    }
}

impl Export for Ipfix {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn take(&mut self, batch: &Batch) -> Result<(), ExportError> {
        self.origins = Arc::clone(&batch.origins);
        batch.records.iter().for_each(|record| self.put(record));
        Ok(())
    }

    fn tick(&mut self) -> Result<(), ExportError> {
        // Settle earlier messages first, so that messages sent below have until the next tick to be refused.
        self.transport.settle();
        self.flush();
        Ok(())
    }

    fn finish(&mut self) -> Result<(), ExportError> {
        self.flush();
        // A session in which statistics were never sent has no template for them.
        if self.session.has_statistics {
            self.session.has_statistics = false;
            self.tell();
        }
        self.transport.finish();
        Ok(())
    }

    fn counts(&self) -> Counts {
        let counts = self.transport.counts();
        Counts { unsent: counts.unsent + self.unsent, ..counts }
    }
}

fn resolve(target: &Target) -> io::Result<Vec<SocketAddr>> {
    let addresses = (target.host.as_str(), target.port).to_socket_addrs()?;
    let mut addresses: Vec<_> = addresses.collect();
    addresses.dedup();
    addresses.truncate(ADDRESSES_MAX);
    if addresses.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(addresses)
}

/// Returns the seconds since the Unix epoch, modulo 2^32.
fn now_s() -> u32 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs() as u32)
}
