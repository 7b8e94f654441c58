//! `struct weir_options` of the header.

use std::ffi::{c_char, c_int};
use std::mem::{offset_of, size_of};
use std::path::PathBuf;

use weir_client::protocol::{Direction, Open};
use weir_client::{Address, ClientError, SOCKET, address};

use crate::failure::Failure;
use crate::text;

const OWN_RINGS: u32 = 1;
const BLOCKS: u32 = 2;

/// `struct weir_options` of the header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Options {
    size: usize,
    socket: *const c_char,
    filter: *const c_char,
    feed_name: *const c_char,
    snaplen: u32,
    direction: c_int,
    sample: u32,
    flows: u32,
    flags: u32,
    /// Fills what would be padding, which a library could not tell from a member that a newer header adds.
    reserved: u32,
}

const _: () = assert!(offset_of!(Options, reserved) + size_of::<u32>() == size_of::<Options>());

/// A request to open a source of a daemon.
pub struct Asked {
    pub socket: PathBuf,
    pub open: Open,
    pub blocks: bool,
}

impl Options {
    const DEFAULT: Options = Options {
        size: size_of::<Options>(),
        socket: std::ptr::null(),
        filter: std::ptr::null(),
        feed_name: std::ptr::null(),
        snaplen: 0,
        direction: 0,
        sample: 0,
        flows: 0,
        flags: 0,
        reserved: 0,
    };

    /// Copies the options of a caller. If the caller was built with an older header, its struct has fewer members: the
    /// others get their default, 0. With a newer header it may have more members, as long as these are 0.
    ///
    /// # Errors
    /// An option that this library does not know is set.
    ///
    /// # Safety
    /// `options` is NULL, or is aligned and points to a `usize`, `size`, and to as many bytes as that says.
    pub unsafe fn read(options: *const Options) -> Result<Options, Failure> {
        let mut own = Options::DEFAULT;
        if options.is_null() {
            return Ok(own);
        }
        // SAFETY: `size` is the first member of the struct in all versions.
        let size = unsafe { options.cast::<usize>().read() };
        if size < offset_of!(Options, filter) || size > 64 * size_of::<Options>() {
            return Err(Failure::argument(format!(
                "options.size is {size}: make the options with weir_default_options()"
            )));
        }
        let known = size.min(size_of::<Options>());
        // SAFETY: the caller promises that `size` bytes can be read. `known` is at most `size` and at most the size of
        // `own`. Any bytes are valid for integers and pointers.
        unsafe {
            std::ptr::copy_nonoverlapping(options.cast::<u8>(), (&raw mut own).cast::<u8>(), known);
        }
        // SAFETY: these bytes follow the copied ones and end at `size`.
        let more =
            unsafe { std::slice::from_raw_parts(options.cast::<u8>().add(known), size - known) };
        if own.reserved != 0 || more.iter().any(|byte| *byte != 0) {
            return Err(Failure::unsupported(
                "an option is set that this libweir does not know; install a newer one",
            ));
        }
        Ok(own)
    }

    /// Returns the request for the source `name` with these options.
    ///
    /// # Errors
    /// The name or an option is invalid.
    ///
    /// # Safety
    /// The strings are NULL or end with NUL.
    pub unsafe fn asked(&self, name: *const c_char) -> Result<Asked, Failure> {
        // SAFETY: as the caller promises; the texts are copied before this returns.
        let (name, socket, filter, feed_name) = unsafe {
            (
                text::from_c("the name", name)?,
                text::from_c("options.socket", self.socket)?,
                text::from_c("options.filter", self.filter)?,
                text::from_c("options.feed_name", self.feed_name)?,
            )
        };
        let name = name.unwrap_or_default();
        let rest = name.strip_prefix(address::PREFIX);
        let rest = rest.ok_or_else(|| ClientError::Name(name.to_owned()))?;
        let Address { source, part } = Address::parse(rest)?;
        if self.flags & !(OWN_RINGS | BLOCKS) != 0 {
            return Err(Failure::unsupported(format!(
                "options.flags is {:#x}: this libweir knows WEIR_OWN_RINGS and WEIR_BLOCKS",
                self.flags
            )));
        }
        let direction = match self.direction {
            0 => Direction::Both,
            1 => Direction::In,
            2 => Direction::Out,
            other => {
                return Err(Failure::argument(format!(
                    "options.direction is {other}: write WEIR_BOTH, WEIR_IN or WEIR_OUT"
                )));
            }
        };
        let given = |number: u32| Some(number).filter(|number| *number != 0);
        let open = Open {
            feed: 0,
            source,
            filter: filter.unwrap_or_default().to_owned(),
            snaplen: given(self.snaplen),
            direction,
            part,
            sample: given(self.sample),
            flows: given(self.flows),
            own: self.flags & OWN_RINGS != 0,
            name: feed_name.filter(|name| !name.is_empty()).map(str::to_owned),
        };
        Ok(Asked { socket: socket_of(socket), open, blocks: self.flags & BLOCKS != 0 })
    }
}

/// Returns the path of the daemon's socket: `given`, else `$WEIR_SOCKET`, else the default. Programs that run with more
/// rights than their caller (AT_SECURE: set-user-ID, set-group-ID, file capabilities) ignore the variable.
pub fn socket_of(given: Option<&str>) -> PathBuf {
    // SAFETY: the call reads a value that the kernel gave the process when it started.
    let is_privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    let named =
        || std::env::var_os("WEIR_SOCKET").filter(|path| !is_privileged && !path.is_empty());
    match given.filter(|given| !given.is_empty()) {
        Some(given) => given.into(),
        None => named().map_or_else(|| SOCKET.into(), PathBuf::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Code;

    #[test]
    fn options_of_older_and_newer_headers_are_taken() {
        // SAFETY: each is aligned, and has as many bytes as it says, or says a size that is refused before more than
        // the size is read.
        unsafe {
            let own = Options { snaplen: 96, ..Options::DEFAULT };
            assert!(Options::read(&own).is_ok_and(|read| read.snaplen == 96));
            let old = Options { size: offset_of!(Options, snaplen), ..own };
            assert!(Options::read(&old).is_ok_and(|read| read.snaplen == 0));
            assert!(Options::read(std::ptr::null()).is_ok());
            let words = size_of::<Options>() / size_of::<usize>() + 2;
            let mut new = vec![0_usize; words];
            new[0] = words * size_of::<usize>();
            assert!(Options::read(new.as_ptr().cast()).is_ok());
            let reserved = Options { reserved: 1, ..own };
            assert!(Options::read(&reserved).is_err_and(|f| f.code == Code::Unsupported));
            new[words - 1] = 1;
            assert!(Options::read(new.as_ptr().cast()).is_err_and(|f| f.code == Code::Unsupported));
            for size in [0, 8, usize::MAX] {
                new[0] = size;
                assert!(
                    Options::read(new.as_ptr().cast()).is_err_and(|f| f.code == Code::Argument)
                );
            }
        }
    }

    #[test]
    fn what_is_not_known_is_refused() {
        let asked = |options: Options, name: &std::ffi::CStr| {
            // SAFETY: the texts are literals.
            unsafe { options.asked(name.as_ptr()) }
        };
        let plain = Options::DEFAULT;
        let open = asked(plain, c"host:eth0@2/4").map(|asked| asked.open).ok().unwrap();
        assert_eq!((open.source.as_str(), open.part.as_deref()), ("eth0", Some("2/4")));
        for (options, name, code) in [
            (plain, c"eth0", Code::Argument),
            (plain, c"host:", Code::Argument),
            (Options { direction: 3, ..plain }, c"host:a", Code::Argument),
            (Options { filter: c"\xff".as_ptr(), ..plain }, c"host:a", Code::Argument),
            (Options { flags: 4, ..plain }, c"host:a", Code::Unsupported),
        ] {
            assert_eq!(
                asked(options, name).err().map(|failure| failure.code),
                Some(code),
                "{name:?}"
            );
        }
    }
}
