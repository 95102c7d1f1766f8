//! Finds the running gateway that a command means, and talks to it over its control socket.

use std::time::Duration;

use bridgehead::control::{Instance, running};
use bridgehead::{Config, Control};
use bridgehead_front::API;
use bridgehead_wire::EventBuffer;
use bytes::Bytes;
use clap::Args;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixStream;

use super::exit::Exit;
use super::output;
use super::world::World;

/// How long an answer may take to begin.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// The largest answer that is read in one piece.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// Chooses a gateway.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// The gateway to use: its id, the beginning of its id, or its pid
    #[arg(long, value_name = "ID")]
    pub(crate) instance: Option<String>,
}

impl Which {
    /// All chosen gateways: every running one, or those that match `--instance`.
    pub(crate) fn all(&self, world: &World) -> Result<Vec<Instance>, Exit> {
        let all = Control::directory(&world.variables).map(|folder| running(&folder)).unwrap_or_default();
        if all.is_empty() {
            output::talk("error: no gateway is running; start one with `bridgehead serve`");
            return Err(Exit::Unreachable);
        }
        let Some(wanted) = &self.instance else { return Ok(all) };
        let meant: Vec<Instance> = all
            .iter()
            .filter(|one| one.instance.starts_with(wanted) || one.pid.to_string() == *wanted)
            .cloned()
            .collect();
        if meant.is_empty() {
            output::talk(&format!("error: no gateway `{wanted}` is running; these are:\n{}", list(&all)));
            return Err(Exit::Unreachable);
        }
        Ok(meant)
    }

    /// The one chosen gateway; an error if several match.
    pub(crate) fn one(&self, world: &World) -> Result<Instance, Exit> {
        let mut meant = self.all(world)?;
        match meant.pop() {
            Some(only) if meant.is_empty() => {
                if let Some(file) = &only.config
                    && let Some(mistake) = world.mistake_in(file)
                {
                    output::talk(&format!(
                        "warning: `{}` cannot be used now, and what it was before stays in effect: {}",
                        file.display(),
                        output::one_line(&mistake, 1000)
                    ));
                }
                Ok(only)
            }
            Some(last) => {
                meant.push(last);
                output::talk(&format!(
                    "error: several gateways are running; choose one with --instance ID:\n{}",
                    list(&meant)
                ));
                Err(Exit::Usage)
            }
            None => Err(Exit::Unreachable),
        }
    }
}

fn list(all: &[Instance]) -> String {
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|one| {
            let place = match one.addresses.first() {
                Some(address) => format!("http://{address}"),
                None => "stdio".to_owned(),
            };
            let config = one.config.as_ref().map(|file| file.display().to_string()).unwrap_or_default();
            vec![format!("  {}", one.instance), format!("pid {}", one.pid), place, config]
        })
        .collect();
    output::talk_table(&rows).trim_end().to_owned()
}

/// The running gateway of this user that serves `config`, if any.
pub(crate) async fn serving(config: &Config, world: &World) -> Option<Instance> {
    let (file, id) = (world.file(config), world.id(config));
    let folder = Control::directory(&world.variables)?;
    for instance in running(&folder) {
        let its_file =
            instance.config.as_ref().map(|file| file.canonicalize().unwrap_or_else(|_| file.clone()));
        if its_file == file
            && instance.is_own()
            && get(&instance, "configuration").await.is_ok_and(|told| told["id"] == id.as_str())
        {
            return Some(instance);
        }
    }
    None
}

/// Why a request to the gateway failed.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The gateway cannot be reached.
    Unreachable(String),
    /// The gateway refused the request as wrong.
    Wrong(Value),
}

impl Refused {
    /// Reports it, and returns the exit code.
    pub(crate) fn tell(&self, as_json: bool) -> Exit {
        match self {
            Self::Unreachable(reason) => {
                output::talk(&format!("error: {reason}"));
                Exit::Unreachable
            }
            Self::Wrong(answer) if as_json => output::json_data(answer, Exit::Usage),
            Self::Wrong(answer) => {
                let message =
                    answer["error"]["message"].as_str().unwrap_or("the gateway refused the request");
                output::talk(&format!("error: {}", output::one_line(message, 1000)));
                Exit::Usage
            }
        }
    }
}

/// A name as part of a route.
///
/// # Errors
/// If no server or topic can have this name.
pub(crate) fn in_route(name: &str) -> Result<&str, Refused> {
    if name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_.-*".contains(letter)) {
        return Ok(name);
    }
    let message =
        format!("nothing is called `{}`; `bridgehead status` lists the servers", output::one_line(name, 200));
    Err(Refused::Wrong(json!({"error": {"message": message}})))
}

/// Sends a GET request and returns the JSON answer.
pub(crate) async fn get(instance: &Instance, route: &str) -> Result<Value, Refused> {
    whole(instance, send(instance, "GET", route, Bytes::new()).await?).await
}

/// Sends a POST request about a server.
pub(crate) async fn post(instance: &Instance, route: &str, server: &str) -> Result<Value, Refused> {
    let body = json!({"server": server}).to_string();
    whole(instance, send(instance, "POST", route, body.into()).await?).await
}

/// Passes each event of a stream to `show`, until the stream ends or `show` returns false.
pub(crate) async fn follow(
    instance: &Instance,
    route: &str,
    mut show: impl FnMut(&Value) -> bool,
) -> Result<(), Refused> {
    let response = send(instance, "GET", route, Bytes::new()).await?;
    if !response.status().is_success() {
        return whole(instance, response).await.map(drop);
    }
    let mut body = response.into_body();
    let mut events = EventBuffer::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| unreachable(instance, &error.to_string()))?;
        if let Ok(data) = frame.into_data() {
            events.push(data);
        }
        while let Some(event) = events.next_event() {
            if let Ok(event) = serde_json::from_slice(&event.data)
                && !show(&event)
            {
                return Ok(());
            }
        }
    }
    Ok(())
}

async fn send(
    instance: &Instance,
    method: &str,
    route: &str,
    body: Bytes,
) -> Result<Response<Incoming>, Refused> {
    let asking = async {
        let stream = UnixStream::connect(&instance.socket).await.map_err(|error| error.to_string())?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(format!("{API}{route}"))
            .header(HOST, "localhost")
            .body(Full::new(body))
            .map_err(|error| error.to_string())?;
        sender.send_request(request).await.map_err(|error| error.to_string())
    };
    match tokio::time::timeout(ANSWERS_WITHIN, asking).await {
        Ok(answer) => answer.map_err(|reason| unreachable(instance, &reason)),
        Err(_) => Err(unreachable(instance, &format!("no answer within {} s", ANSWERS_WITHIN.as_secs()))),
    }
}

async fn whole(instance: &Instance, response: Response<Incoming>) -> Result<Value, Refused> {
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
    let text = body.map_err(|error| unreachable(instance, &error.to_string()))?.to_bytes();
    let answer: Value = serde_json::from_slice(&text).unwrap_or_default();
    match status {
        StatusCode::OK | StatusCode::ACCEPTED => Ok(answer),
        _ => Err(Refused::Wrong(answer)),
    }
}

fn unreachable(instance: &Instance, reason: &str) -> Refused {
    Refused::Unreachable(format!(
        "cannot reach gateway {} (pid {}): {reason}",
        instance.instance, instance.pid
    ))
}
