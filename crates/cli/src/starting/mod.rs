//! Shows how servers start: as live lines on a terminal, as plain lines in a pipe, as log lines of a gateway that serves.
//!
//! Looks at the servers a few times a second, because their last words are worth showing too, and those are many and cheap to
//! look up. Decides nothing about servers.

mod board;
mod seen;

use std::time::Duration;

use bridgehead::Gateway;
use bridgehead::control::Instance;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::info;

use self::board::{Board, Happening};
pub(crate) use self::seen::{Seen, Stage};
use super::instance::{Refused, get};
use super::{log, output, screen};

/// How often the servers of this process are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How often a running gateway is asked.
const ASK: Duration = Duration::from_millis(300);
/// Live lines appear after this time; a start that is over sooner shows none.
const FIRST: Duration = Duration::from_millis(300);

/// How a start is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Lines that are redrawn.
    Live,
    /// A line for each thing that happens.
    Plain,
    /// The same as log lines, without what the gateway logs anyway.
    Log,
    /// Not at all.
    Silent,
}

/// Who shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shower {
    /// `serve`, whose log is on stderr.
    Gateway {
        /// Whether a client reads that log.
        stdio: bool,
    },
    /// A command that is about starting servers.
    Command,
    /// A command that starts servers to get its work done.
    Aside,
}

impl Form {
    /// The form that fits stderr and the options for the log.
    pub(crate) fn of(shower: Shower) -> Self {
        Self::fitting(shower, screen::is_live() && !output::talks_json(), log::is_off())
    }

    const fn fitting(shower: Shower, live: bool, off: bool) -> Self {
        match shower {
            _ if off => Self::Silent,
            Shower::Gateway { stdio: true } => Self::Log,
            _ if live => Self::Live,
            Shower::Gateway { stdio: false } => Self::Log,
            Shower::Command => Self::Plain,
            Shower::Aside => Self::Silent,
        }
    }
}

/// What becomes of live lines when the start is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// They stay as ordinary text.
    Keep,
    /// They are removed, because the command prints its own result.
    Clear,
}

/// Shows how the servers of a gateway in this process start, until `until` is over. Dropping the future removes live lines.
pub(crate) async fn watch<T>(gateway: &Gateway, form: Form, then: Then, until: impl Future<Output = T>) -> T {
    if form == Form::Silent {
        return until.await;
    }
    let mut show = Show::new(form);
    tokio::pin!(until);
    let outcome = loop {
        show.update(seen::here(gateway));
        tokio::select! {
            outcome = &mut until => break outcome,
            () = tokio::time::sleep(LOOK) => {}
        }
    };
    show.update(seen::here(gateway));
    show.end(then);
    outcome
}

/// How long a gateway may take to notice a changed file.
const NOTICES_WITHIN: Duration = Duration::from_secs(30);

/// When a running gateway last took over a configuration. Take it before you change the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark(Value);

impl Mark {
    /// The mark of a gateway.
    ///
    /// # Errors
    /// If the gateway does not answer.
    pub(crate) async fn of(instance: &Instance) -> Result<Self, Refused> {
        get(instance, "status").await.map(|status| Self::in_status(&status))
    }

    fn in_status(status: &Value) -> Self {
        Self(status["reload"]["time"].clone())
    }
}

/// What a running gateway made of a changed file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TakenOver {
    /// The servers that were asked for, as they were seen last. One whose start is not over took too long.
    pub(crate) servers: Vec<Seen>,
    /// Whether the new configuration is in effect, and what the gateway says about it; `None` if it has not finished.
    pub(crate) reload: Option<(bool, String)>,
}

/// Shows how a running gateway takes over the file that was changed after `mark`, and how these servers start. The gateway has
/// [`NOTICES_WITHIN`] to notice the change, and then `within` for the start. Dropping the future removes live lines.
///
/// # Errors
/// If the gateway does not answer any more.
pub(crate) async fn watch_running(
    instance: &Instance,
    mark: &Mark,
    names: &[String],
    within: Duration,
    form: Form,
) -> Result<TakenOver, Refused> {
    let (mut show, mut until) = (Show::new(form), Instant::now() + NOTICES_WITHIN);
    let mut noticed = false;
    loop {
        let status = get(instance, "status").await?;
        let servers = seen::in_status(&status, names);
        if !noticed && servers.iter().any(|server| server.stage != Stage::Awaited) {
            (noticed, until) = (true, Instant::now() + within);
        }
        let reload = (Mark::in_status(&status) != *mark).then(|| {
            let message = status["reload"]["message"].as_str().unwrap_or_default();
            (status["reload"]["ok"] == true, message.to_owned())
        });
        show.update(servers.clone());
        let is_over = match &reload {
            Some((ok, _)) => !ok || servers.iter().all(|server| server.stage.is_settled()),
            None => false,
        };
        if is_over || Instant::now() >= until {
            show.end(Then::Clear);
            return Ok(TakenOver { servers, reload });
        }
        tokio::time::sleep(ASK).await;
    }
}

/// A start that is being shown. Dropping it removes live lines.
struct Show {
    form: Form,
    board: Board,
    began: Instant,
}

impl Show {
    fn new(form: Form) -> Self {
        Self { form, board: Board::default(), began: Instant::now() }
    }

    fn update(&mut self, seen: Vec<Seen>) {
        let now = self.began.elapsed();
        let happened = self.board.observe(now, seen);
        match self.form {
            Form::Live if now >= FIRST => {
                let (columns, rows) = screen::size();
                // Half of the screen stays for what is printed above.
                screen::draw(self.board.lines(now, (columns, rows / 2)));
            }
            Form::Plain => happened.iter().for_each(say),
            Form::Log => happened.iter().for_each(note),
            Form::Live | Form::Silent => {}
        }
    }

    fn end(self, then: Then) {
        if self.form == Form::Live {
            screen::end(then == Then::Keep);
        }
    }
}

impl Drop for Show {
    fn drop(&mut self) {
        if self.form == Form::Live {
            screen::end(false);
        }
    }
}

/// Says what happened; to programs with its parts.
fn say(happening: &Happening) {
    let (tools, reason) = match &happening.seen.stage {
        Stage::Ready { tools } => (Some(*tools), None),
        Stage::Failed { reason, .. } => (None, Some(reason)),
        _ => (None, None),
    };
    let parts = json!({
        "server": happening.seen.name,
        "state": happening.seen.stage.word(),
        "seconds": happening.after.as_secs(),
        "tools": tools,
        "reason": reason,
        "stderr": happening.stderr(),
    });
    output::talk_with(&happening.text(), &parts);
}

/// Logs what happened. That a server serves or does not, the gateway logs itself.
fn note(happening: &Happening) {
    let server = format!("mcp:{}", happening.seen.name);
    if happening.goes_on {
        info!(server, seconds = happening.after.as_secs(), stderr = happening.stderr(), "is still starting");
    } else if happening.seen.stage == Stage::Starting {
        info!(server, "is starting");
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;
    use tokio::task::JoinHandle;

    use super::*;

    /// A gateway that answers with these statuses, and then with the last one again and again.
    fn gateway(folder: &Path, statuses: Vec<Value>) -> (Instance, JoinHandle<()>) {
        let socket = folder.join("gateway.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let answering = tokio::spawn(async move {
            for number in 0.. {
                let (mut client, _) = listener.accept().await.unwrap();
                let asked = client.read(&mut [0; 4096]).await.unwrap();
                assert!(asked > 0, "a request");
                let body = statuses[usize::min(number, statuses.len() - 1)].to_string();
                let head =
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
                client.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
            }
        });
        let instance = json!({
            "instance": "a", "pid": 1, "started": "", "version": "1", "addresses": [], "config": null,
            "socket": socket, "token": "",
        });
        (serde_json::from_value(instance).unwrap(), answering)
    }

    /// What is seen of a change that ends with these statuses, after one from before the change.
    async fn watched(statuses: Vec<Value>, within: Duration) -> (Vec<Stage>, Option<(bool, String)>) {
        let folder = tempfile::tempdir().unwrap();
        let before =
            json!({"upstreams": [{"name": "a", "state": "ready", "tools": 1}], "reload": {"time": "1"}});
        let (instance, answering) = gateway(folder.path(), std::iter::once(before).chain(statuses).collect());
        let mark = Mark::of(&instance).await.unwrap();
        let names = ["a".to_owned(), "b".to_owned()];
        let seen = watch_running(&instance, &mark, &names, within, Form::Silent).await.unwrap();
        answering.abort();
        (seen.servers.into_iter().map(|server| server.stage).collect(), seen.reload)
    }

    /// JOIN-5: a change of a running gateway is watched until the gateway has taken it over and every server has settled, or says
    /// that it cannot, or until the time is over.
    #[tokio::test]
    async fn a_change_of_a_running_gateway_can_be_watched() {
        let long = Duration::from_secs(600);
        let status = |time: &str, ok: bool, second: &str| {
            json!({
                "upstreams": [{"name": "a", "state": "ready", "tools": 2}, {"name": "b", "state": second, "tools": 3}],
                "reload": {"time": time, "ok": ok, "message": "m"},
            })
        };
        let arriving =
            json!({"upstreams": [], "arriving": [{"name": "b", "state": "ready"}], "reload": {"time": "1"}});
        let (stages, reload) =
            watched(vec![arriving, status("2", true, "starting"), status("2", true, "ready")], long).await;
        assert_eq!(stages, [Stage::Ready { tools: 2 }, Stage::Ready { tools: 3 }]);
        assert_eq!(reload, Some((true, "m".to_owned())));

        let (stages, reload) = watched(vec![status("2", false, "starting")], long).await;
        assert_eq!(stages, [Stage::Ready { tools: 2 }, Stage::Starting], "it is not waited for");
        assert_eq!(reload, Some((false, "m".to_owned())));

        let (stages, reload) = watched(vec![status("1", true, "ready")], Duration::ZERO).await;
        assert_eq!((stages.len(), reload), (2, None), "nothing was taken over in time");

        let unnoticed = json!({"upstreams": [], "reload": {"time": "1"}});
        let arriving = json!({"upstreams": [], "arriving": [{"name": "b", "state": "starting"}], "reload": {"time": "1"}});
        let (stages, reload) = watched(vec![unnoticed, arriving], Duration::ZERO).await;
        assert_eq!(
            (stages, reload),
            (vec![Stage::Awaited, Stage::Starting], None),
            "the time of the start is over"
        );

        let folder = tempfile::tempdir().unwrap();
        let (instance, answering) = gateway(folder.path(), vec![json!({})]);
        let mark = Mark::of(&instance).await.unwrap();
        answering.abort();
        assert!(answering.await.is_err(), "it is gone");
        let gone = watch_running(&instance, &mark, &["a".to_owned()], long, Form::Silent).await;
        assert!(matches!(gone, Err(Refused::Unreachable(_))), "{gone:?}");
    }

    /// JOIN-5: live lines only on a terminal, plain lines in a pipe, log lines where a gateway serves, and nothing if the log is
    /// off.
    #[test]
    fn the_form_fits_the_place() {
        #[track_caller]
        fn check(shower: Shower, terminal: Form, pipe: Form) {
            assert_eq!(Form::fitting(shower, true, false), terminal);
            assert_eq!(Form::fitting(shower, false, false), pipe);
            assert_eq!(Form::fitting(shower, true, true), Form::Silent);
        }
        check(Shower::Gateway { stdio: false }, Form::Live, Form::Log);
        check(Shower::Gateway { stdio: true }, Form::Log, Form::Log);
        check(Shower::Command, Form::Live, Form::Plain);
        check(Shower::Aside, Form::Live, Form::Silent);
    }
}
