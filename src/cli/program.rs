//! What the program calls itself: a custom worker has a name and a version of its own.

/// Name and version of the program.
#[derive(Debug, Clone)]
pub(super) struct Program {
    pub(super) name: String,
    pub(super) version: String,
}

impl Default for Program {
    /// The name of the executable file; only artisand's version is known.
    fn default() -> Self {
        let file = std::env::current_exe().ok();
        let name = file.as_deref().and_then(|file| file.file_name()?.to_str());
        Self {
            name: name.unwrap_or("artisand").to_owned(),
            version: format!("(artisand {})", env!("CARGO_PKG_VERSION")),
        }
    }
}
