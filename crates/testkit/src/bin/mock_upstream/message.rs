//! Parses the client's messages as far as a mock needs, keeping the text of every member.
//!
//! Only the shape is checked here: the server decides whether a request fits its era.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

/// Any message; its members show which kind it is.
#[derive(Deserialize)]
pub(crate) struct Message<'a> {
    #[serde(borrow)]
    pub(crate) id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) params: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) result: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) error: Option<&'a RawValue>,
}

/// The parameters that any method may use.
#[derive(Default, Deserialize)]
pub(crate) struct Params<'a> {
    #[serde(borrow)]
    pub(crate) name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) uri: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) arguments: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) cursor: Option<Cow<'a, str>>,
    #[serde(rename = "requestId", borrow)]
    pub(crate) request_id: Option<&'a RawValue>,
    #[serde(rename = "protocolVersion", borrow)]
    pub(crate) protocol_version: Option<Cow<'a, str>>,
    #[serde(rename = "inputResponses", borrow)]
    pub(crate) input_responses: Option<&'a RawValue>,
    #[serde(rename = "requestState", borrow)]
    pub(crate) request_state: Option<&'a RawValue>,
    #[serde(rename = "_meta", borrow)]
    pub(crate) meta: Option<Meta<'a>>,
}

/// The envelope of the modern era, and the progress token of both.
#[derive(Default, Deserialize)]
pub(crate) struct Meta<'a> {
    #[serde(rename = "io.modelcontextprotocol/protocolVersion", borrow)]
    pub(crate) protocol_version: Option<Cow<'a, str>>,
    #[serde(rename = "io.modelcontextprotocol/clientCapabilities", borrow)]
    pub(crate) client_capabilities: Option<&'a RawValue>,
    #[serde(rename = "progressToken", borrow)]
    pub(crate) progress_token: Option<&'a RawValue>,
}

impl<'a> Message<'a> {
    /// The parameters; absent ones read as empty.
    pub(crate) fn params(&self) -> Result<Params<'a>, serde_json::Error> {
        self.params.map_or_else(|| Ok(Params::default()), |raw| serde_json::from_str(raw.get()))
    }
}
