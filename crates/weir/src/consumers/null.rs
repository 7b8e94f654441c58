//! The null monitor, `--count` or no other consumer: it counts frames where they lie.

use weir_consumer::Null;

use super::RunConsumer;

pub(super) fn open() -> Box<dyn RunConsumer> {
    Box::new(Null::new())
}
