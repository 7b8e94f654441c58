//! The null monitor counts frames in place. It runs with `--count`, or if there is no other consumer.

use weir_consumer::Null;

use super::RunConsumer;

pub(super) fn open() -> Box<dyn RunConsumer> {
    Box::new(Null::new())
}
