//! Names that an interface may have.

use std::fmt;
use std::str::FromStr;

/// Bytes of an interface's name in the kernel, including the terminating zero. Source: linux/if.h, IFNAMSIZ.
pub(crate) const NAME_BYTES: usize = 16;

/// The name of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetdevName(String);

impl NetdevName {
    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Checks the name. Source: `dev_valid_name`, net/core/dev.c. `%` is the kernel's placeholder for a number.
impl FromStr for NetdevName {
    type Err = String;

    fn from_str(text: &str) -> Result<NetdevName, String> {
        let is_bad = |c: char| matches!(c, '/' | ':' | '%') || c.is_whitespace() || c.is_control();
        if matches!(text, "" | "." | "..") || text.len() >= NAME_BYTES || text.contains(is_bad) {
            return Err(format!(
                "'{text}' cannot be the name of an interface: 1 to {} bytes, without '/', ':', '%' and blanks; try \
                 weir0",
                NAME_BYTES - 1
            ));
        }
        if matches!(text, "all" | "default") {
            return Err(format!(
                "'{text}' stands for all interfaces in the kernel's settings; try weir0"
            ));
        }
        Ok(NetdevName(text.to_owned()))
    }
}

impl fmt::Display for NetdevName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_the_kernel_takes() {
        for good in ["weir0", "a", "fifteen-bytes-x", "ids.0", "weir0@x"] {
            assert_eq!(good.parse::<NetdevName>().expect(good).as_str(), good);
        }
        for bad in ["", ".", "..", "sixteen-bytes-xy", "a/b", "a:b", "a b", "weir%d", "all", "a\n"]
        {
            assert!(bad.parse::<NetdevName>().unwrap_err().contains("weir0"), "{bad}");
        }
    }
}
