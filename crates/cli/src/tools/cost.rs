//! `bridgehead tools cost`: how much of a model's context the definitions of the tools take.
//!
//! Tokens are an estimate: the bytes of a definition as a client gets it, divided by four. Tokenizers differ, and clients
//! send more or less than the definition; the figures are for comparing servers and finding the largest tools.

use bridgehead_wire::Raw;
use serde_json::{Value, json};

use super::super::output;
use super::super::reply::{self, Failures};

/// How many bytes count as a token.
const BYTES_PER_TOKEN: u64 = 4;
/// How many of a server's largest tools are named.
const NAMED: usize = 3;

/// The definitions of all servers, the most expensive server first.
#[derive(Debug)]
pub(super) struct Cost {
    servers: Vec<Server>,
}

/// The definitions of one server, the largest first.
#[derive(Debug)]
struct Server {
    name: String,
    tools: Vec<(String, u64)>,
}

impl Cost {
    /// Adds up these definitions.
    pub(super) fn new(tools: &[Raw], server_of: impl Fn(&str) -> String) -> Self {
        let mut servers: Vec<Server> = Vec::new();
        for tool in tools {
            let decoded: Value = tool.decode().unwrap_or_default();
            let name = decoded["name"].as_str().unwrap_or_default().to_owned();
            let server = server_of(&name);
            let entry = (name, tool.as_str().len() as u64);
            match servers.iter_mut().find(|one| one.name == server) {
                Some(server) => server.tools.push(entry),
                None => servers.push(Server { name: server, tools: vec![entry] }),
            }
        }
        for server in &mut servers {
            server.tools.sort_by(|(one, bytes), (other, others)| others.cmp(bytes).then(one.cmp(other)));
        }
        servers.sort_by(|one, other| other.bytes().cmp(&one.bytes()).then(one.name.cmp(&other.name)));
        Self { servers }
    }

    fn bytes(&self) -> u64 {
        self.servers.iter().map(Server::bytes).sum()
    }

    fn tools(&self) -> usize {
        self.servers.iter().map(|server| server.tools.len()).sum()
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let title = ["SERVER", "TOOLS", "BYTES", "TOKENS, ESTIMATED", "LARGEST"];
        let mut rows = vec![title.map(str::to_owned).to_vec()];
        let row = |name: &str, tools: usize, bytes: u64, largest: String| {
            vec![
                output::one_line(name, 64),
                tools.to_string(),
                bytes.to_string(),
                tokens(bytes).to_string(),
                output::one_line(&largest, 500),
            ]
        };
        for server in &self.servers {
            let largest = server.tools.iter().take(NAMED);
            let largest: Vec<String> =
                largest.map(|(name, bytes)| format!("{name} {}", tokens(*bytes))).collect();
            rows.push(row(&server.name, server.tools.len(), server.bytes(), largest.join(", ")));
        }
        rows.push(row("total", self.tools(), self.bytes(), String::new()));
        output::table(&rows)
    }

    /// For programs.
    pub(super) fn json(&self, failures: &Failures) -> Value {
        let tool =
            |(name, bytes): &(String, u64)| json!({"name": name, "bytes": bytes, "tokens": tokens(*bytes)});
        let server = |server: &Server| {
            json!({
                "server": server.name,
                "bytes": server.bytes(),
                "tokens": tokens(server.bytes()),
                "tools": server.tools.iter().map(tool).collect::<Vec<_>>(),
            })
        };
        json!({
            "estimate": format!("bytes/{BYTES_PER_TOKEN}"),
            "servers": self.servers.iter().map(server).collect::<Vec<_>>(),
            "total": {"tools": self.tools(), "bytes": self.bytes(), "tokens": tokens(self.bytes())},
            "failed": reply::failed(failures),
        })
    }
}

impl Server {
    fn bytes(&self) -> u64 {
        self.tools.iter().map(|(_, bytes)| bytes).sum()
    }
}

const fn tokens(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// JOIN-8: servers and tools are listed by what they cost, with the largest tools named and a total.
    #[test]
    fn what_definitions_cost() {
        let tool = |name: &str, size: usize| {
            let fill = size - format!(r#"{{"name":"{name}","x":""}}"#).len();
            Raw::parse(format!(r#"{{"name":"{name}","x":"{}"}}"#, "-".repeat(fill))).unwrap()
        };
        let tools = [
            tool("a__one", 50),
            tool("b__one", 101),
            tool("b__two", 40),
            tool("b__three", 200),
            tool("b__four", 60),
            tool("server_ping", 30),
        ];
        let owner = |name: &str| name.split_once("__").map_or("(gateway)", |(server, _)| server).to_owned();
        let cost = Cost::new(&tools, owner);
        insta::assert_snapshot!(cost.text(), @r"
        SERVER     TOOLS  BYTES  TOKENS, ESTIMATED  LARGEST
        b          4      401    101                b__three 50, b__one 26, b__four 15
        a          1      50     13                 a__one 13
        (gateway)  1      30     8                  server_ping 8
        total      6      481    121
        ");
        let told = cost.json(&[("c".to_owned(), "r".to_owned())]);
        assert_eq!(told["total"], json!({"tools": 6, "bytes": 481, "tokens": 121}));
        assert_eq!(told["estimate"], "bytes/4");
        assert_eq!(told["servers"][0]["tools"][3], json!({"name": "b__two", "bytes": 40, "tokens": 10}));
        assert_eq!(told["failed"], json!([{"server": "c", "reason": "r"}]));
    }
}
