//! The end of a run in which an identity does not hold.

use std::any::Any;
use std::panic::resume_unwind;

/// An identity that does not hold.
struct Broken(String);

/// Ends the run. Unlike a panic, this prints nothing: during shrinking, hundreds of runs end like this.
pub fn broken(what: impl Into<String>) -> ! {
    resume_unwind(Box::new(Broken(what.into())))
}

/// Ends the run unless the condition holds.
macro_rules! hold {
    ($condition:expr, $($what:tt)+) => {
        if !$condition {
            $crate::broken::broken(format!($($what)+));
        }
    };
}
pub(crate) use hold;

/// Returns the message for the end of a run: a broken identity, or a panic.
pub fn text_of(end: &(dyn Any + Send)) -> String {
    if let Some(Broken(what)) = end.downcast_ref() {
        return what.clone();
    }
    let message = end.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let message = message.or_else(|| end.downcast_ref::<String>().cloned());
    format!("panic: {}", message.unwrap_or_default())
}
