//! Where amk keeps what it can rebuild: fetched toolchains and compiled images.

use std::path::PathBuf;

/// No place for the cache could be derived from the environment.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CacheDirError {
    /// Neither `AMK_CACHE`, `XDG_CACHE_HOME` nor `HOME` names a folder.
    #[error(
        "no cache folder: neither AMK_CACHE, XDG_CACHE_HOME nor HOME is set; set AMK_CACHE to a writable folder"
    )]
    NoHome,
}

/// The root of amk's cache: `AMK_CACHE`, else `XDG_CACHE_HOME/amk`, else `HOME/.cache/amk`.
/// The folder is not created here.
///
/// # Errors
/// [`CacheDirError::NoHome`] when none of the three variables is set.
pub fn cache_root() -> Result<PathBuf, CacheDirError> {
    resolve(|name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from))
}

fn resolve(var: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf, CacheDirError> {
    if let Some(dir) = var("AMK_CACHE") {
        return Ok(dir);
    }
    // The XDG base directory specification: relative values are invalid and must be ignored.
    if let Some(dir) = var("XDG_CACHE_HOME").filter(|d| d.is_absolute()) {
        return Ok(dir.join("amk"));
    }
    var("HOME").map(|home| home.join(".cache").join("amk")).ok_or(CacheDirError::NoHome)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(vars: &[(&str, &str)]) -> Result<PathBuf, CacheDirError> {
        resolve(|name| vars.iter().find(|(k, _)| *k == name).map(|(_, v)| PathBuf::from(v)))
    }

    #[test]
    fn the_order_is_amk_then_xdg_then_home() {
        let all = [("AMK_CACHE", "/a"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(with(&all), Ok("/a".into()));
        assert_eq!(with(&all[1..]), Ok("/x/amk".into()));
        assert_eq!(with(&all[2..]), Ok("/h/.cache/amk".into()));
        assert_eq!(with(&[]), Err(CacheDirError::NoHome));
    }

    #[test]
    fn a_relative_xdg_value_is_ignored() {
        let vars = [("XDG_CACHE_HOME", "x"), ("HOME", "/h")];
        assert_eq!(with(&vars), Ok("/h/.cache/amk".into()));
    }
}
