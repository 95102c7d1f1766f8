//! The error codes of JSON-RPC and of MCP.

/// The text is not JSON.
pub const PARSE_ERROR: i64 = -32700;
/// The JSON is not a JSON-RPC message, or not one allowed here.
pub const INVALID_REQUEST: i64 = -32600;
/// No such method, or it is not offered.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// The parameters are invalid; also for unknown tools, prompts, cursors and (modern) resources.
pub const INVALID_PARAMS: i64 = -32602;
/// Our own failure, or one of an upstream that has no better code.
pub const INTERNAL_ERROR: i64 = -32603;
/// Legacy: no such resource.
pub const RESOURCE_NOT_FOUND: i64 = -32002;
/// Modern: a mirrored HTTP header and the body differ.
pub const HEADER_MISMATCH: i64 = -32020;
/// Modern: the request needs a client capability that it did not declare.
pub const MISSING_CLIENT_CAPABILITY: i64 = -32021;
/// Modern: the protocol version is not served here.
pub const UNSUPPORTED_PROTOCOL_VERSION: i64 = -32022;
/// Not part of the protocol: widespread SDKs answer this when a connection closes during a request.
pub const CONNECTION_CLOSED: i64 = -32000;
/// Not part of the protocol: widespread SDKs answer this when a request takes too long.
pub const REQUEST_TIMEOUT: i64 = -32001;
/// The user has to open a page first (2025-11-25 only).
pub const URL_ELICITATION_REQUIRED: i64 = -32042;
