//! Files that take the place of others, in directories where other users may write, too.
//!
//! A file is written under a random name that did not exist before, in the
//! directory where it belongs, and renamed when it is complete: readers see
//! the old one or the new one, and a full disk leaves the old one. Mode and
//! owner are set on the open file, so nothing that was planted under any name
//! is written to, given away or opened up.

use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::Path;

use tempfile::NamedTempFile;

/// Name under which a file is written, followed by random characters.
const PREFIX: &str = ".artisand-";

/// Replaces `path` by a file with these contents; a link there is replaced, and what it leads to stays.
///
/// The file has `mode` less the umask; without one it has owner and mode of
/// the file that it replaces, and if there is none, what the umask leaves of 0666.
///
/// # Errors
///
/// What the system said. `path` is then as it was, and nothing is left beside it.
pub(crate) fn replace(path: &Path, contents: &[u8], mode: Option<u32>) -> std::io::Result<()> {
    if std::fs::metadata(path).is_ok_and(|old| !old.is_file()) {
        let text = "it is there and not a regular file";
        return Err(std::io::Error::new(std::io::ErrorKind::AlreadyExists, text));
    }
    let old = std::fs::symlink_metadata(path)
        .ok()
        .filter(|old| mode.is_none() && old.is_file());
    // With the mode of the old one it is for its owner only until it has that owner.
    let created = if old.is_some() {
        0o600
    } else {
        mode.unwrap_or(0o666)
    };
    let mut file = beside(path, created)?;
    if let Some(old) = old {
        // Only root may give files away; a worker of the app's own user need not.
        let _ = fchown(file.as_file(), Some(old.uid()), Some(old.gid()));
        let permissions = std::fs::Permissions::from_mode(old.mode() & 0o777);
        file.as_file().set_permissions(permissions)?;
    }
    file.write_all(contents)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// Tries whether a file can be made in the directory of `path`; leaves none.
///
/// # Errors
///
/// What the system said.
pub(crate) fn try_beside(path: &Path) -> std::io::Result<()> {
    beside(path, 0o600)?.close()
}

fn beside(path: &Path, mode: u32) -> std::io::Result<NamedTempFile> {
    let directory = path.parent().filter(|parent| *parent != Path::new(""));
    tempfile::Builder::new()
        .prefix(PREFIX)
        .permissions(std::fs::Permissions::from_mode(mode))
        .tempfile_in(directory.unwrap_or(Path::new(".")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn a_file_is_replaced_and_what_a_link_leads_to_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (directory.path().join("a"), directory.path().join("other"));
        std::fs::write(&other, "other's").unwrap();
        std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        replace(&path, b"one", Some(0o600)).unwrap();
        assert!(!path.is_symlink());
        assert_eq!(mode(&path), 0o600);
        replace(&path, b"two", None).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!((mode(&path), mode(&other)), (0o600, 0o644));
        assert_eq!(std::fs::read(&other).unwrap(), b"other's");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    #[test]
    fn what_is_no_regular_file_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("null");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        for path in [link.as_path(), directory.path()] {
            let error = replace(path, b"one", None).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
        }
        assert!(link.is_symlink());
    }
}
