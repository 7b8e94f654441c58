//! Engines end to end: what goes in at one end is in the ring, whole and counted.

mod engines {
    mod af_packet;
    mod classic;
    mod common;
    mod generator;
    mod pattern;
    mod replay;
}
