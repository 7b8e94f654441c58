//! Engines end to end: every frame that is sent is complete in the ring, and counted.

mod engines {
    mod af_packet;
    mod classic;
    mod common;
    mod generator;
    mod pattern;
    mod replay;
}
