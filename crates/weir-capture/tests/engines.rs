//! Engines end to end: frames that go in at one end are in the ring, whole and counted.

mod engines {
    mod af_packet;
    mod classic;
    mod common;
    mod generator;
    mod pattern;
    mod replay;
}
