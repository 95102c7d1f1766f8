//! The value codec of mirrored headers.
/// bad
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct HeaderValueError;
/// d
pub fn decode_header_value(value: &[u8]) -> Result<String, HeaderValueError> {
    String::from_utf8(value.to_vec()).map_err(|_| HeaderValueError)
}
/// e
pub fn encode_header_value(value: &str) -> String {
    value.to_owned()
}
