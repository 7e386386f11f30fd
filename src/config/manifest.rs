//! Finds the app's directory and the manifest that goes with it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Config, Error, MANIFEST_FILE};
use crate::app::{self, Manifest};

impl Config {
    /// The current directory if it is an app's, as it is for `php artisan`, and no manifest is named that is of another
    /// app.
    pub(super) fn app_here(&self) -> Option<PathBuf> {
        let here = Path::new(".");
        let is_of_another = |path: PathBuf| {
            // A manifest that cannot be read is an error where it is used.
            let base = Manifest::read(&path).map(|manifest| manifest.paths.base);
            base.is_ok_and(|base| base.is_dir() && !app::is_same_directory(&base, here))
        };
        let is_it = app::is_app(here) && !self.named_manifest().is_some_and(is_of_another);
        is_it.then(|| here.to_owned())
    }

    /// The manifest that the environment or the file names.
    pub(super) fn named_manifest(&self) -> Option<PathBuf> {
        let named = self.process.get("ARTISAND_MANIFEST").map(PathBuf::from);
        named.or_else(|| self.file.manifest.clone())
    }

    /// Reads the manifest that is named, or the one that is there.
    pub(super) fn read_manifest(&mut self) -> Result<(), Error> {
        let of_app = self.app.as_ref().map(|app| app.join(MANIFEST_FILE));
        let path = self
            .named_manifest()
            .or_else(|| of_app.filter(|path| path.is_file()))
            .or_else(|| self.manifest_here());
        let Some(path) = path else {
            return Ok(());
        };
        let mut manifest = Manifest::read(&path)?;
        manifest.distrust_changed(self.app.as_ref().unwrap_or(&manifest.paths.base.clone()));
        self.notes.extend(manifest.notes.iter().cloned());
        self.manifest = Some((path, Arc::new(manifest)));
        Ok(())
    }

    /// The manifest in the current directory, unless it is another app's.
    fn manifest_here(&mut self) -> Option<PathBuf> {
        let path = PathBuf::from(MANIFEST_FILE);
        if !path.is_file() {
            return None;
        }
        let Some(app) = &self.app else {
            return Some(path);
        };
        // A manifest that cannot be read is an error where it is used.
        let other = Manifest::read(&path)
            .ok()
            .map(|manifest| manifest.paths.base);
        match other.filter(|other| !app::is_same_directory(other, app)) {
            None => Some(path),
            Some(other) => {
                self.notes.push(format!(
                    "{MANIFEST_FILE} in the current directory is of the app in {} and not used",
                    other.display()
                ));
                None
            }
        }
    }
}
