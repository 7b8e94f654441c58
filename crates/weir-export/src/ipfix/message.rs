//! Builds messages, record by record.
//!
//! Source: RFC 7011 section 3.1 (the header), 3.3 (sets).

const VERSION: u16 = 10;
const HEADER_BYTES: usize = 16;
const SET_HEADER_BYTES: usize = 4;
/// Lower set ids are those of templates.
const FIRST_DATA_SET: u16 = 256;

/// A message under construction. Its buffer is reused for every message.
pub(super) struct Message {
    bytes: Vec<u8>,
    bytes_max: usize,
    /// Id and offset of the set that is still open.
    set: Option<(u16, usize)>,
    /// Number of data records, options included. Sequence numbers count these records.
    pub data_records: u32,
    /// Number of data records that are flows.
    pub flows: u64,
}

impl Message {
    /// Creates an empty message. `bytes_max` is at most 65,535.
    pub(super) fn new(bytes_max: usize) -> Message {
        let mut bytes = Vec::with_capacity(bytes_max);
        bytes.resize(HEADER_BYTES, 0);
        Message { bytes, bytes_max, set: None, data_records: 0, flows: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.len() == HEADER_BYTES
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Appends a record to the open set if that has this id, or else to a new set. Returns false if the record does not
    /// fit.
    pub(super) fn put(&mut self, set_id: u16, record: &[u8]) -> bool {
        let goes_on = self.set.is_some_and(|(id, _)| id == set_id);
        let needed = record.len() + if goes_on { 0 } else { SET_HEADER_BYTES };
        if self.bytes.len() + needed > self.bytes_max {
            return false;
        }
        if !goes_on {
            self.close_set();
            self.set = Some((set_id, self.bytes.len()));
            self.bytes.extend(set_id.to_be_bytes());
            self.bytes.extend([0; 2]);
        }
        self.bytes.extend(record);
        self.data_records += u32::from(set_id >= FIRST_DATA_SET);
        true
    }

    /// Writes the header and returns the whole message.
    pub(super) fn seal(&mut self, export_time_s: u32, sequence: u32, domain: u32) -> &[u8] {
        self.close_set();
        let length = self.bytes.len() as u16;
        self.bytes[0..2].copy_from_slice(&VERSION.to_be_bytes());
        self.bytes[2..4].copy_from_slice(&length.to_be_bytes());
        self.bytes[4..8].copy_from_slice(&export_time_s.to_be_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_be_bytes());
        self.bytes[12..16].copy_from_slice(&domain.to_be_bytes());
        &self.bytes
    }

    pub(super) fn clear(&mut self) {
        self.bytes.truncate(HEADER_BYTES);
        (self.set, self.data_records, self.flows) = (None, 0, 0);
    }

    /// Closes the open set: writes its length.
    fn close_set(&mut self) {
        if let Some((_, start)) = self.set.take() {
            let length = (self.bytes.len() - start) as u16;
            self.bytes[start + 2..start + 4].copy_from_slice(&length.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_one_template_share_a_set_and_a_message_is_never_too_long() {
        let mut message = Message::new(40);
        assert!(message.is_empty());
        assert!(message.put(2, &[9; 4]));
        assert!(message.put(300, &[1, 2]));
        assert!(message.put(300, &[3, 4]));
        assert!(message.put(301, &[5; 4]));
        assert!(!message.put(301, &[6]), "40 bytes are full");
        assert_eq!(message.data_records, 3);
        let want = [
            &[0, 10, 0, 40, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0, 9][..],
            &[0, 2, 0, 8, 9, 9, 9, 9],
            &[1, 44, 0, 8, 1, 2, 3, 4],
            &[1, 45, 0, 8, 5, 5, 5, 5],
        ];
        assert_eq!(message.seal(7, 8, 9), want.concat());
        message.clear();
        assert!(message.is_empty() && message.put(301, &[7; 20]) && !message.put(301, &[7]));
        assert_eq!(message.seal(0, 0, 0).len(), 40);
    }
}
