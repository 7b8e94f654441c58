//! Paths that no other user can replace. A privileged daemon must not read files that others can
//! write, nor listen where others could listen in its place.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use thiserror::Error;

/// Another user could replace a file.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "{}: {who} could change {}; {way}", path.display(), if *is_path { "it" } else { "what is in it" }
)]
pub struct NotPrivate {
    path: PathBuf,
    /// Whether `path` is the file itself.
    is_path: bool,
    who: &'static str,
    way: String,
}

/// Fails if a user other than root and this process's user could replace or write the path: by its own permissions, or
/// by those of a folder above it. If the path does not exist, only its folders are checked.
///
/// # Errors
/// [`NotPrivate`] with the file or folder, and a remedy.
pub fn check(path: &Path) -> Result<(), NotPrivate> {
    // A symbolic link leads to the file that is read. The folders above that file are checked; those of the link itself
    // are the administrator's responsibility.
    let real = path.canonicalize();
    let (real, is_there) = match &real {
        Ok(real) => (real.as_path(), true),
        Err(_) => (path, false),
    };
    let whole = std::path::absolute(real).unwrap_or_else(|_| real.to_owned());
    for (level, part) in whole.ancestors().enumerate() {
        if level == 0 && !is_there {
            continue;
        }
        // A process that may not read the metadata cannot use the file either. That error is reported elsewhere.
        let Ok(meta) = part.metadata() else { continue };
        // In a folder with the sticky bit, only owners can replace their files, but anybody can create files that do
        // not exist yet.
        let guards = level > 1 || (level == 1 && is_there);
        let is_sticky = guards && meta.is_dir() && meta.mode() & 0o1000 != 0;
        if let Some((who, way)) = exposed(part, &meta, is_sticky) {
            return Err(NotPrivate { path: part.to_owned(), is_path: level == 0, who, way });
        }
    }
    Ok(())
}

/// Fails if any user could replace a socket of another program, by the permissions of the socket's folder or of a
/// folder above it. The folder's owner and group are trusted, because the other program runs as them.
///
/// # Errors
/// [`NotPrivate`] with the folder, and a remedy.
pub fn check_folder_of(socket: &Path) -> Result<(), NotPrivate> {
    let Some(folder) = socket.parent() else { return Ok(()) };
    let real = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    for (level, part) in real.ancestors().enumerate() {
        let Ok(meta) = part.metadata() else { continue };
        // In a folder with the sticky bit, only owners can replace their files. That protects a folder in it, but not a
        // socket, which may not exist yet.
        let is_guarded = level > 0 && meta.mode() & 0o1000 != 0;
        if meta.mode() & 0o002 != 0 && !is_guarded {
            let way =
                format!("`chmod o-w {}`, or use a folder of the machine's own", part.display());
            return Err(NotPrivate { path: part.to_owned(), is_path: false, who: "anybody", way });
        }
    }
    Ok(())
}

/// Returns who else could replace the path, and a remedy.
fn exposed(part: &Path, meta: &Metadata, is_sticky: bool) -> Option<(&'static str, String)> {
    let name = part.display();
    if meta.uid() != 0 && meta.uid() != geteuid().as_raw() {
        return Some((
            "another user",
            format!("`chown root {name}`, or run the daemon as its owner"),
        ));
    }
    if meta.mode() & 0o022 != 0 && !is_sticky {
        // A folder with the sticky bit, such as /tmp, is meant for everybody.
        let way = if meta.mode() & 0o1000 != 0 {
            "use a folder that only its owner can change (`mkdir -m 755 DIR`)".to_owned()
        } else {
            format!("`chmod go-w {name}`")
        };
        return Some(("others", way));
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_others_can_write_or_replace_is_refused_with_the_way_out() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let file = inner.join("weir.toml");
        fs::write(&file, "").unwrap();
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        let refused = |path: &Path| check(path).unwrap_err().to_string();
        mode(&inner, 0o755);
        mode(&file, 0o644);
        assert_eq!(check(&file), Ok(()));
        assert_eq!(check(&inner.join("not there yet")), Ok(()));
        mode(&file, 0o664);
        let said = refused(&file);
        assert!(said.contains("chmod go-w") && said.contains("weir.toml"), "{said}");
        mode(&file, 0o600);
        mode(&inner, 0o777);
        assert!(
            refused(&file).contains("inner: others could change what is in it"),
            "{}",
            refused(&file)
        );
        assert!(refused(&inner.join("not there yet")).contains("inner"));
        // As with /tmp: nobody can replace the file, but anybody can make files that do not exist
        // yet.
        mode(&inner, 0o1777);
        assert_eq!(check(&file), Ok(()));
        let said = refused(&inner);
        assert!(said.contains("others could change it"), "{said}");
        assert!(said.contains("mkdir -m 755") && !said.contains("chmod"), "{said}");
        assert!(refused(&inner.join("not there yet")).contains("inner"));
    }

    #[test]
    fn a_socket_that_anybody_could_replace_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("qmp");
        let mode = |mode| fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
        for (bits, is_good) in [(0o700, true), (0o2770, true), (0o777, false), (0o1777, false)] {
            mode(bits);
            assert_eq!(check_folder_of(&socket).is_ok(), is_good, "{bits:o}");
        }
    }

    #[test]
    fn another_users_file_is_refused() {
        if !geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("weir.toml");
        fs::write(&file, "").unwrap();
        std::os::unix::fs::chown(&file, Some(65_534), None).unwrap();
        let said = check(&file).unwrap_err().to_string();
        assert!(said.contains("another user could change it") && said.contains("chown"), "{said}");
    }
}
