//! The answer to a server that asks for roots.

#[cfg(feature = "files")]
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

/// The answer to `roots/list`. Cheap to clone; two answers with the same roots are equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Roots(Arc<str>);

impl Roots {
    /// The answer with these URIs.
    pub fn of(uris: impl IntoIterator<Item = String>) -> Self {
        let roots: Vec<Value> = uris.into_iter().map(|uri| json!({"uri": uri})).collect();
        Self(json!({"roots": roots}).to_string().into())
    }

    /// A client's answer, reduced to its roots and normalized. `None` if the answer has no list of roots.
    pub fn answered(text: &str) -> Option<Self> {
        let mut answer: Value = serde_json::from_str(text).ok()?;
        let roots = answer.get_mut("roots").filter(|roots| roots.is_array())?.take();
        Some(Self(json!({"roots": roots}).to_string().into()))
    }

    /// The result, as JSON.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The `file://` URI of a file or folder.
#[cfg(feature = "files")]
pub(crate) fn file_uri(path: &Path) -> String {
    let mut uri = String::from("file://");
    for byte in path.as_os_str().as_encoded_bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(byte) {
            uri.push(char::from(*byte));
        } else {
            uri += &format!("%{byte:02X}");
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_and_answers() {
        let roots = Roots::of([file_uri(Path::new("/home/a b/größe")), "file:///".to_owned()]);
        let written = r#"{"roots":[{"uri":"file:///home/a%20b/gr%C3%B6%C3%9Fe"},{"uri":"file:///"}]}"#;
        assert_eq!(roots.as_str(), written);
        let same = r#"{"_meta":{"n":1}, "roots": [ {"uri":"file:///a"} ]}"#;
        assert_eq!(Roots::answered(same), Roots::answered(r#"{"roots":[{"uri":"file:///a"}]}"#));
        assert_ne!(Roots::answered(same), Roots::answered(r#"{"roots":[{"uri":"file:///b"}]}"#));
        assert_eq!(Roots::answered(r#"{"roots":{}}"#), None);
    }
}
