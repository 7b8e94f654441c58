//! No panic leaves the library.

use weir_abi::caught;

use crate::failure::{Code, Failure};

/// Returns the result of `body`, or [`Code::Internal`] if `body` panics. The feed then refuses further calls except
/// `weir_error`, `weir_break` and `weir_close`.
pub fn guarded<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    caught(body).unwrap_or_else(|text| {
        Err(Failure { code: Code::Internal, text: format!("a bug of libweir: {text}") })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_failure_with_its_text() {
        let failure = guarded::<()>(|| panic!("of all things")).unwrap_err();
        assert_eq!(failure.code, Code::Internal);
        assert!(failure.text.contains("of all things"), "{failure:?}");
        assert_eq!(guarded(|| Ok(1)).unwrap(), 1);
    }
}
