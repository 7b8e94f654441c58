//! The null monitor, `--count` or no other consumer: it counts frames where they lie.

use anyhow::Result;
use weir_consumer::Null;

use super::{Input, RunConsumer};

pub(super) fn open(input: &Input<'_>) -> Result<Box<dyn RunConsumer>> {
    Ok(Box::new(Null::new(input.rings, input.numbering.clone())?))
}
