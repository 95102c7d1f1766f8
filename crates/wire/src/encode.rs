//! Writes messages into the caller's buffer; nothing is encoded twice.

use bytes::BytesMut;

use crate::{Id, Raw, RpcError, Spliced};

/// Appends a request.
pub fn request(out: &mut BytesMut, id: u64, method: &str, params: &Spliced) {
    out.reserve(64 + method.len() + params.len());
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    let mut digits = [0_u8; 20];
    out.extend_from_slice(decimal(id, &mut digits));
    out.extend_from_slice(b",\"method\":");
    put_name(out, method);
    out.extend_from_slice(b",\"params\":");
    params.write_to(out);
    out.extend_from_slice(b"}");
}

/// Appends a notification.
pub fn notification(out: &mut BytesMut, method: &str, params: Option<&Spliced>) {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"method\":");
    put_name(out, method);
    if let Some(params) = params {
        out.extend_from_slice(b",\"params\":");
        params.write_to(out);
    }
    out.extend_from_slice(b"}");
}

/// Appends the answer to the request `id`.
pub fn response(out: &mut BytesMut, id: &Id, outcome: Result<&Spliced, &RpcError>) {
    match outcome {
        Ok(result) => {
            out.reserve(40 + id.raw().bytes().len() + result.len());
            out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
            out.extend_from_slice(id.raw().bytes());
            out.extend_from_slice(b",\"result\":");
            result.write_to(out);
            out.extend_from_slice(b"}");
        }
        Err(error) => error_response(out, Some(id.raw()), error),
    }
}

/// The answer to the request `id` as slices: a long result is not copied.
pub fn response_parts(id: &Id, outcome: Result<&Spliced, &RpcError>) -> Spliced {
    let (member, value) = match outcome {
        Ok(result) => (&b",\"result\":"[..], result),
        Err(error) => (&b",\"error\":"[..], &Spliced::from(error.body().clone())),
    };
    value.between(&[b"{\"jsonrpc\":\"2.0\",\"id\":", id.raw().bytes(), member], b"}")
}

/// Appends an error answer. Without an id the member is left out: `null` is not a valid id.
pub fn error_response(out: &mut BytesMut, id: Option<&Raw>, error: &RpcError) {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\"");
    if let Some(id) = id {
        out.extend_from_slice(b",\"id\":");
        out.extend_from_slice(id.bytes());
    }
    out.extend_from_slice(b",\"error\":");
    out.extend_from_slice(error.body().bytes());
    out.extend_from_slice(b"}");
}

/// Appends a method's name as a JSON string. A peer may have chosen the name, so quotes in it are escaped.
fn put_name(out: &mut BytesMut, method: &str) {
    if method.bytes().any(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)) {
        out.extend_from_slice(Raw::string(method).bytes());
    } else {
        out.extend_from_slice(b"\"");
        out.extend_from_slice(method.as_bytes());
        out.extend_from_slice(b"\"");
    }
}

fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(number % 10).unwrap_or_default();
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl FnOnce(&mut BytesMut)) -> String {
        let mut out = BytesMut::new();
        write(&mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn writes_each_kind() {
        let params = Spliced::from(Raw::literal("{}"));
        assert_eq!(
            text(|out| request(out, u64::MAX, "tools/call", &params)),
            r#"{"jsonrpc":"2.0","id":18446744073709551615,"method":"tools/call","params":{}}"#
        );
        assert_eq!(
            text(|out| request(out, 0, "x", &params)),
            r#"{"jsonrpc":"2.0","id":0,"method":"x","params":{}}"#
        );
        assert_eq!(text(|out| notification(out, "n", None)), r#"{"jsonrpc":"2.0","method":"n"}"#);
        let id = Id::new(Raw::string("a")).unwrap();
        assert_eq!(text(|out| response(out, &id, Ok(&params))), r#"{"jsonrpc":"2.0","id":"a","result":{}}"#);
        let error = RpcError::new(1, "x");
        assert_eq!(
            text(|out| response(out, &id, Err(&error))),
            r#"{"jsonrpc":"2.0","id":"a","error":{"code":1,"message":"x"}}"#
        );
        for outcome in [Ok(&params), Err(&error), Ok(&Spliced::from(Raw::string(&"x".repeat(100_000))))] {
            let whole = text(|out| response(out, &id, outcome));
            assert_eq!(response_parts(&id, outcome).to_raw().as_str(), whole);
        }
        assert_eq!(
            text(|out| error_response(out, None, &error)),
            r#"{"jsonrpc":"2.0","error":{"code":1,"message":"x"}}"#
        );
    }
}
