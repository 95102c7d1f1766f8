//! The `traceparent` of W3C Trace Context: which trace a request belongs to, and which of its spans sent it.

use std::fmt;

/// A place in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traceparent {
    trace: u128,
    span: u64,
    flags: u8,
}

impl Traceparent {
    /// A place in a trace; `None` if an id is zero, which stands for no id.
    #[must_use]
    pub const fn new(trace: u128, span: u64, flags: u8) -> Option<Self> {
        if trace == 0 || span == 0 { None } else { Some(Self { trace, span, flags }) }
    }

    /// Parses version `00`, and of later versions the part that they share with it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let hex = |part: &str, digits: usize| {
            let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            (part.len() == digits && part.bytes().all(lower))
                .then(|| u128::from_str_radix(part, 16).ok())
                .flatten()
        };
        let mut parts = text.split('-');
        let version = hex(parts.next()?, 2)?;
        let (trace, span, flags) = (hex(parts.next()?, 32)?, hex(parts.next()?, 16)?, hex(parts.next()?, 2)?);
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return None;
        }
        Self::new(trace, u64::try_from(span).ok()?, u8::try_from(flags).ok()?)
    }

    /// The same trace, at another span.
    #[must_use]
    pub const fn continued(self, span: u64) -> Option<Self> {
        Self::new(self.trace, span, self.flags)
    }

    /// The id of the trace, as it is written.
    #[must_use]
    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace)
    }

    /// The id of the span, as it is written.
    #[must_use]
    pub fn span_id(&self) -> String {
        format!("{:016x}", self.span)
    }
}

impl fmt::Display for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, self.flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    /// PIPE-8: a trace context is parsed, continued under a span of ours, and written back unchanged.
    #[test]
    fn a_trace_goes_on() {
        let read = Traceparent::parse(GOOD).unwrap();
        assert_eq!(read.to_string(), GOOD);
        assert_eq!((read.trace_id().as_str(), read.span_id().as_str()), (&GOOD[3..35], &GOOD[36..52]));
        let ours = read.continued(0x2a).unwrap();
        assert_eq!(ours.to_string(), "00-0af7651916cd43dd8448eb211c80319c-000000000000002a-01");
        assert_eq!(read.continued(0), None);
        let later = format!("cc{}-what-comes", &GOOD[2..]);
        assert_eq!(Traceparent::parse(&later), Some(read));
    }

    #[test]
    fn what_is_no_trace_context() {
        for text in [
            "",
            "00",
            "00-1",
            &GOOD[..54],
            &GOOD.replace("00-", "ff-"),
            &format!("{GOOD}-more"),
            &GOOD.to_uppercase(),
            &GOOD.replace("b7ad6b7169203331", "0000000000000000"),
            &GOOD.replace("0af7651916cd43dd8448eb211c80319c", "00000000000000000000000000000000"),
            &GOOD.replace("b7ad", "+7ad"),
        ] {
            assert_eq!(Traceparent::parse(text), None, "{text}");
        }
    }
}
