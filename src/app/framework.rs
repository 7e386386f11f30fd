//! Facts about an app from files that can be read without PHP.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Version;

/// The cached configuration, which replaces all configuration files; `None` if there is none.
///
/// `real_env` looks up the process environment only, as Laravel does before it
/// reads `.env`: `APP_CONFIG_CACHE` moves the file.
///
/// # Source
///
/// `Illuminate\Foundation\Application::getCachedConfigPath`.
pub fn cached_config_path(
    base: &Path,
    real_env: impl Fn(&str) -> Option<String>,
) -> Option<PathBuf> {
    let moved = real_env("APP_CONFIG_CACHE").and_then(|raw| super::cast(&raw));
    let path = base.join(moved.as_deref().unwrap_or("bootstrap/cache/config.php"));
    path.is_file().then_some(path)
}

/// The version that composer installed, else that in the framework's source, else that in composer's lock file.
pub fn framework_version(base: &Path) -> Option<String> {
    let json = |file: &str| -> Option<Value> {
        serde_json::from_slice(&std::fs::read(base.join(file)).ok()?).ok()
    };
    let installed = || {
        let json = json("vendor/composer/installed.json")?;
        // Composer 2 writes an object around the list, composer 1 the list itself.
        package_version(json.get("packages").unwrap_or(&json))
    };
    let constant = || {
        let file = base.join("vendor/laravel/framework/src/Illuminate/Foundation/Application.php");
        let text = std::fs::read(file).ok()?;
        let text = String::from_utf8_lossy(&text);
        let (_, rest) = text.split_once("const VERSION = '")?;
        Some(rest.split_once('\'')?.0.to_owned())
    };
    let locked = || package_version(json("composer.lock")?.get("packages")?);
    let found = [installed(), constant(), locked()].into_iter().flatten();
    // A branch such as `dev-master` is less precise than the next source.
    let mut found = found.map(|version| version.trim_start_matches('v').to_owned());
    found.find(|version| version.parse::<Version>().is_ok())
}

fn package_version(packages: &Value) -> Option<String> {
    let packages = packages.as_array()?;
    let framework = packages.iter().find(|package| {
        let name = package.get("name").and_then(Value::as_str);
        name == Some("laravel/framework")
    })?;
    Some(framework.get("version")?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tempfile::TempDir;

    use super::*;

    /// Paths and texts.
    type Files<'a> = &'a [(&'a str, &'a str)];

    fn app(files: Files<'_>) -> TempDir {
        let dir = TempDir::new().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn the_version_is_found_where_it_is() {
        const INSTALLED: &str = "vendor/composer/installed.json";
        let installed = |version: &str| {
            json!({"packages": [{"name": "a/b", "version": "1"}, {"name": "laravel/framework", "version": version}]}).to_string()
        };
        let application = "class Application\n{\n    const VERSION = '9.52.22';\n}";
        let list = r#"[{"name":"laravel/framework","version":"v5.8.38"}]"#;
        let lock = installed("v10.20.0");
        let constant = "vendor/laravel/framework/src/Illuminate/Foundation/Application.php";
        let branch = installed("dev-master");
        #[rustfmt::skip]
        let rows: [(Files<'_>, Option<&str>); 6] = [
            (&[(INSTALLED, list), ("composer.lock", &lock)], Some("5.8.38")),
            (&[(constant, application), ("composer.lock", &lock)], Some("9.52.22")),
            (&[(INSTALLED, &branch), (constant, application)], Some("9.52.22")),
            (&[("composer.lock", &lock)], Some("10.20.0")),
            (&[(INSTALLED, "{ not json")], None),
            (&[], None),
        ];
        for (files, version) in rows {
            let found = framework_version(app(files).path());
            assert_eq!(found.as_deref(), version, "{files:?}");
        }
    }

    #[test]
    fn the_cached_configuration_is_where_a_variable_says() {
        let dir = app(&[
            ("bootstrap/cache/config.php", "<?php return [];"),
            ("elsewhere/c.php", "<?php return [];"),
        ]);
        let usual = dir.path().join("bootstrap/cache/config.php");
        let moved = dir.path().join("elsewhere/c.php");
        let absolute = moved.to_str().unwrap();
        #[rustfmt::skip]
        let rows = [
            (None, Some(&usual)), (Some("null"), Some(&usual)), (Some("elsewhere/c.php"), Some(&moved)),
            (Some(absolute), Some(&moved)), (Some("nowhere.php"), None), (Some(""), None),
        ];
        for (value, expected) in rows {
            let real = |name: &str| {
                let named = value.filter(|_| name == "APP_CONFIG_CACHE");
                named.map(str::to_owned)
            };
            assert_eq!(
                cached_config_path(dir.path(), real).as_ref(),
                expected,
                "{value:?}"
            );
        }
    }
}
