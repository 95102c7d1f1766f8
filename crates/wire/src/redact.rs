//! Redaction.
/// Hides secrets.
#[derive(Debug, Clone, Default)]
pub struct Redactor {}
impl Redactor {
    /// text
    pub fn text(&self, text: &str) -> String {
        text.to_owned()
    }
}
