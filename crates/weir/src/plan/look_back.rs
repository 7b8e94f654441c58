//! Settings of a recorder that writes only frames around a trigger.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use weir_store::recorder::look_back::{Asked, Began, LookBack, Span, Watch};

use crate::cli::{CaptureArgs, TriggerName};
use crate::feeds;

/// Default time that is saved after a trigger.
const AFTER: Span = Span::Time(Duration::from_secs(10));

/// Returns the settings, if a trigger was given.
pub(super) fn of(args: &CaptureArgs, is_recorder: bool) -> Result<Option<LookBack>> {
    let own = &args.look_back;
    let Some(first) = own.on_trigger.first() else { return Ok(None) };
    if !is_recorder {
        bail!(
            "--on-trigger {first} is for a directory that is recorded into, whose files are begun and completed by \
             themselves: --write DIR/ --on-trigger ..."
        );
    }
    let mut watch = Watch::default();
    for trigger in &own.on_trigger {
        let lowest =
            |limit: Option<u64>, other: u64| Some(limit.map_or(other, |limit| limit.min(other)));
        match trigger {
            TriggerName::Signal => {}
            TriggerName::Filter(text) => {
                let compile = feeds::compile_later(text);
                let compile = compile.with_context(|| format!("--on-trigger 'filter:{text}'"))?;
                watch.filters.push(Arc::from(compile));
            }
            TriggerName::Frames(rate) => {
                watch.frames_per_second = lowest(watch.frames_per_second, *rate);
            }
            TriggerName::Bits(rate) => watch.bits_per_second = lowest(watch.bits_per_second, *rate),
        }
    }
    Ok(Some(LookBack {
        before: own.save_before.unwrap_or(Span::Time(Duration::MAX)),
        after: own.save_after.unwrap_or(AFTER),
        asked: Asked::default(),
        watch,
        began: say,
    }))
}

/// Refuses to save more bytes than all rings keep as history, if that is known.
pub(super) fn check_room(look_back: &LookBack, history_bytes: Option<u64>) -> Result<()> {
    match (look_back.before, history_bytes) {
        (Span::Bytes(bytes), Some(history)) if bytes > history => bail!(
            "--save-before {}MiB: half of the rings is history at most, here {}MiB; give a larger --ring-size, or \
             leave --save-before out to save all that they have",
            bytes.div_ceil(1 << 20),
            history >> 20
        ),
        _ => Ok(()),
    }
}

fn say(began: &Began) {
    let Began { cause, before, is_short, .. } = began;
    let why = match is_short {
        true => "; at least one ring had no room for all of --save-before (--ring-size)",
        false => "",
    };
    eprintln!(
        "weir: trigger ({cause}): recording, from {:.3} s before it on{why}",
        before.as_secs_f64()
    );
}
