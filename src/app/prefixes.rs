//! The formulas by which an app's skeleton makes its Redis key prefix.

/// The formula in an app's `config/database.php`, by the skeleton the app was created from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabasePrefix {
    /// Laravel 5.5 to 5.8.34: no prefix.
    None,
    /// Laravel 5.8.35 to 12.0: `slug(APP_NAME, '_')` and `_database_`.
    Underscore,
    /// Laravel 12.1 and later: `slug(APP_NAME, '-')` and `-database-`.
    Dash,
}

impl DatabasePrefix {
    /// Finds the formula in the text of `config/database.php`.
    pub fn in_config(php: &str) -> Option<Self> {
        if php.contains("_database_") {
            Some(Self::Underscore)
        } else if php.contains("-database-") {
            Some(Self::Dash)
        } else {
            None
        }
    }

    /// The formula of the skeleton of a Laravel version such as `8`, `12.0` or `13.31.0`.
    pub fn of_version(version: &str) -> Option<Self> {
        let mut parts = version
            .trim_start_matches('v')
            .split('.')
            .map(str::parse::<u32>);
        let major = parts.next()?.ok()?;
        let minor = parts.next().and_then(Result::ok);
        Some(match (major, minor) {
            (..=5, _) => Self::None,
            (6..=11, _) | (12, Some(0)) => Self::Underscore,
            _ => Self::Dash,
        })
    }

    /// The prefix for an app of this name; `None` if the name needs Laravel's table of transliterations.
    pub fn for_app(self, name: &str) -> Option<String> {
        match self {
            Self::None => Some(String::new()),
            Self::Underscore => slug(name, '_').map(|slug| slug + "_database_"),
            Self::Dash => slug(name, '-').map(|slug| slug + "-database-"),
        }
    }
}

/// `Str::slug` of ASCII text; `None` for other text.
///
/// # Source
///
/// `Illuminate\Support\Str::slug` (docs/protocol/app-config.md 4).
pub fn slug(text: &str, separator: char) -> Option<String> {
    if !text.is_ascii() {
        return None;
    }
    let other = if separator == '_' { '-' } else { '_' };
    let at = format!("{separator}at{separator}");
    let text = text
        .replace(other, &separator.to_string())
        .replace('@', &at)
        .to_ascii_lowercase();
    let kept = text
        .chars()
        .filter(|c| *c == separator || c.is_ascii_alphanumeric() || c.is_ascii_whitespace());
    let mut slug = String::new();
    for c in kept {
        if c.is_ascii_alphanumeric() {
            slug.push(c);
        } else if !slug.ends_with(separator) {
            slug.push(separator);
        }
    }
    Some(slug.trim_matches(separator).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_follow_the_skeleton() {
        let rows = [
            ("8", "Laravel", Some("laravel_database_")),
            ("12.0.1", "My App", Some("my_app_database_")),
            ("12.1", "My_App @ Home!", Some("my-app-at-home-database-")),
            ("13.31.0", "Laravel", Some("laravel-database-")),
            ("5.6", "x", Some("")),
            ("11", "Żółć", None),
        ];
        for (version, name, expected) in rows {
            let prefix = DatabasePrefix::of_version(version).unwrap().for_app(name);
            assert_eq!(prefix.as_deref(), expected, "{version} {name}");
        }
        assert_eq!(
            DatabasePrefix::in_config("env('APP_NAME').'-database-'"),
            Some(DatabasePrefix::Dash)
        );
    }
}
