//! `weir run`: starts a tool with libweirpcap loaded into it, so that it captures from `host:` names.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use object::Endianness;
use object::elf::{ET_DYN, FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader};

use crate::cli::RunArgs;

/// The file name of the library.
const LIBRARY: &str = "libweirpcap.so";
/// Advice if the library cannot be loaded into a tool.
const WAY_OUT: &str = "give it a network interface instead: weir attach host:NAME --netdev weir0, and capture on weir0";

/// Runs the command: replaces this process by the tool, with execve(2).
///
/// # Errors
/// The tool or the library is missing, or the tool would start without the library.
pub fn run(args: &RunArgs) -> Result<u8> {
    let [tool, arguments @ ..] = &args.command[..] else { bail!("name a tool: weir run -- TOOL") };
    let program = find_program(tool)?;
    check_loads_libraries(&program)?;
    let library = match &args.library {
        Some(path) => fs::canonicalize(path)
            .with_context(|| format!("--library {}: cannot be read", path.display()))?,
        None => find_library()?,
    };
    // The loader splits LD_PRELOAD at these characters.
    let is_taken_apart = |byte: &u8| byte.is_ascii_whitespace() || *byte == b':';
    if library.as_os_str().as_encoded_bytes().iter().any(is_taken_apart) {
        bail!(
            "{}: the loader cannot be given names with blanks or colons; move {LIBRARY}",
            library.display()
        );
    }
    let mut preload = library.into_os_string();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut command = Command::new(&program);
    command.arg0(tool).args(arguments).env("LD_PRELOAD", preload);
    if let Some(socket) = &args.socket {
        // The path is made absolute, because the tool may change its working directory.
        command.env("WEIR_SOCKET", std::path::absolute(socket)?);
    }
    if let Some(feed) = &args.feed {
        command.env("WEIR_FEED", feed);
    }
    let error = command.exec();
    Err(error).with_context(|| format!("starting {}", program.display()))
}

/// Finds the file of a tool in PATH, as a shell does.
fn find_program(tool: &OsStr) -> Result<PathBuf> {
    let can_run = |path: &Path| {
        fs::metadata(path)
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let found = if tool.as_encoded_bytes().contains(&b'/') {
        Some(PathBuf::from(tool)).filter(|path| can_run(path))
    } else {
        let folders = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&folders).map(|folder| folder.join(tool)).find(|path| can_run(path))
    };
    found.ok_or_else(|| anyhow!("{}: there is no such program", tool.display()))
}

/// Refuses a tool into which the loader would not load the library: the tool could not open `host:` names.
fn check_loads_libraries(program: &Path) -> Result<()> {
    let name = program.display();
    let found = fs::metadata(program).with_context(|| format!("{name}: cannot be read"))?;
    let is_root = rustix::process::geteuid().is_root();
    let changes_user = found.mode() & 0o4000 != 0
        && found.uid() != rustix::process::geteuid().as_raw()
        || found.mode() & 0o2000 != 0 && found.gid() != rustix::process::getegid().as_raw();
    if changes_user {
        bail!("{name} is setuid or setgid: nothing can be loaded into it; {WAY_OUT}");
    }
    let mut value = [0; 64];
    let has_capabilities =
        rustix::fs::getxattr(program, "security.capability", &mut value[..]).is_ok();
    if has_capabilities && !is_root {
        bail!(
            "{name} has file capabilities: nothing can be loaded into it but by root. Copy it (copies have none; the \
             daemon's feeds need none), or {WAY_OUT}"
        );
    }
    // A program that this user cannot read may still be executable.
    let Ok(bytes) = fs::read(program) else { return Ok(()) };
    match has_interpreter(&bytes) {
        Some(false) => {
            bail!("{name} is linked statically: nothing can be loaded into it; {WAY_OUT}")
        }
        _ => Ok(()),
    }
}

/// Returns whether an ELF program can load libraries; `None` for other files, such as scripts.
fn has_interpreter(bytes: &[u8]) -> Option<bool> {
    let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let mut headers = header.program_headers(endian, bytes).ok()?.iter();
    let has = headers.any(|header| header.p_type(endian) == PT_INTERP);
    // The loader itself has no interpreter, but can load libraries.
    Some(has || header.e_type(endian) == ET_DYN && header.e_entry(endian) == 0)
}

/// Finds the library of this program: in the program's directory after a build, or in the directories of packages.
fn find_library() -> Result<PathBuf> {
    let own = env::current_exe().context("finding this program's own file")?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    let prefix = folder.parent().unwrap_or(Path::new("/"));
    let multiarch = format!("lib/{}-linux-gnu/weir", env::consts::ARCH);
    let candidates = [
        folder.join(LIBRARY),
        prefix.join(multiarch).join(LIBRARY),
        prefix.join("lib/weir").join(LIBRARY),
    ];
    let found = candidates.iter().find(|path| path.is_file());
    found.cloned().ok_or_else(|| {
        let places: Vec<String> = candidates.iter().map(|path| path.display().to_string()).collect();
        anyhow!(
            "{LIBRARY} is in none of {}; install it (Debian: libweir1; from source: make build), or name \
             it: --library PATH",
            places.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_load_nothing_are_told_from_those_that_do() {
        let own = fs::read(env::current_exe().unwrap()).unwrap();
        assert_eq!(has_interpreter(&own), Some(true));
        assert_eq!(has_interpreter(b"#!/bin/sh\n"), None);
        assert_eq!(has_interpreter(&own[..40]), None);
        // The same file without its loader.
        let mut bytes = own.clone();
        let header = FileHeader64::<Endianness>::parse(&own[..]).unwrap();
        let endian = header.endian().unwrap();
        let headers = header.program_headers(endian, &own[..]).unwrap();
        let at = headers.iter().position(|header| header.p_type(endian) == PT_INTERP).unwrap();
        let at = header.e_phoff(endian) as usize + at * size_of_val(&headers[0]);
        bytes[at..at + 4].fill(0);
        assert_eq!(has_interpreter(&bytes), Some(false));
    }

    #[test]
    fn tools_are_found_as_a_shell_finds_them() {
        assert!(find_program(OsStr::new("sh")).unwrap().is_absolute());
        assert_eq!(find_program(OsStr::new("/bin/sh")).unwrap(), Path::new("/bin/sh"));
        for missing in ["no-such-tool", "/etc", "/etc/passwd", ""] {
            assert!(find_program(OsStr::new(missing)).is_err(), "{missing}");
        }
    }
}
