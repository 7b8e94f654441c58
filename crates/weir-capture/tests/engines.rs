//! Engines end to end: frames that are sent are complete in the ring, and counted.

mod engines {
    mod af_packet;
    mod classic;
    mod common;
    mod generator;
    mod pattern;
    mod replay;
}
