//! Creates a container image of one program and its libraries, without downloading anything.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packs the program as `/NAME` into an archive in `dir`, for `docker import`.
///
/// # Errors
/// A file cannot be copied, or `ldd` or `tar` is missing.
pub fn pack_image(program: &Path, name: &str, dir: &Path) -> io::Result<PathBuf> {
    let tree = dir.join("tree");
    place(program, &tree.join(name))?;
    let libraries = Command::new("ldd").arg(program).output()?;
    for line in String::from_utf8_lossy(&libraries.stdout).lines() {
        let path = line.split_whitespace().find(|word| word.starts_with('/'));
        let Some(path) = path.map(Path::new) else { continue };
        place(path, &tree.join(path.strip_prefix("/").expect("it is absolute")))?;
    }
    let tar = dir.join("image.tar");
    // The container's user must be able to read everything, whatever this process's umask.
    let mut pack = Command::new("tar");
    pack.args(["--mode=a+rX", "-C"]).arg(&tree).arg("-cf").arg(&tar).arg(".");
    let packed = pack.status()?;
    match packed.success() {
        true => Ok(tar),
        false => Err(io::Error::other(format!("tar does not pack {}", tree.display()))),
    }
}

fn place(file: &Path, at: &Path) -> io::Result<()> {
    fs::create_dir_all(at.parent().unwrap_or(Path::new("/")))?;
    fs::copy(file, at)?;
    // Some systems have libraries that are not executable.
    fs::set_permissions(at, Permissions::from_mode(0o755))
}
