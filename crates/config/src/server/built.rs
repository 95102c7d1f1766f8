//! The settings of a server that is made in code, one method each.
//!
//! They are the keys of a server in a configuration file, and a server that is made in code behaves like one that is read from
//! a file. What does not go with the way a server is reached, such as a header for a program, makes the server unusable: it is
//! not started, and its status says why. Nothing that was asked for is left out silently.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{
    Confinement, Interactive, Isolation, Launch, Limits, Output, Queue, Retry, ServerConfig, ToolOverride,
};
use crate::filter::ToolFilter;
use crate::proxy::Proxy;
use crate::roots::Roots;
use crate::secret::Secret;

impl ServerConfig {
    /// Gives a program this variable. Its value is never shown.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        match &mut self.launch {
            Launch::Stdio(stdio) => drop(stdio.env.insert(name.into(), Secret::new(value))),
            other => only("env", "a program", other),
        }
        self
    }

    /// Lets a program inherit these variables, besides those that every program gets.
    #[must_use]
    pub fn inherit_env(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        match &mut self.launch {
            Launch::Stdio(stdio) => stdio.inherit_env.extend(names.into_iter().map(Into::into)),
            other => only("inherit_env", "a program", other),
        }
        self
    }

    /// Runs a program in this folder.
    #[must_use]
    pub fn cwd(mut self, folder: impl Into<PathBuf>) -> Self {
        match &mut self.launch {
            Launch::Stdio(stdio) => stdio.cwd = Some(folder.into()),
            other => only("cwd", "a program", other),
        }
        self
    }

    /// Sends this header with every request to a server at an address. Its value is never shown.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        match &mut self.launch {
            Launch::Remote(remote) => drop(remote.headers.insert(name.into(), Secret::new(value))),
            other => only("headers", "a server at an address", other),
        }
        self
    }

    /// Reaches a server at an address through this proxy.
    #[must_use]
    pub fn proxy(mut self, proxy: Proxy) -> Self {
        match &mut self.launch {
            Launch::Remote(remote) => remote.proxy = Some(proxy),
            other => only("proxy", "a server at an address", other),
        }
        self
    }

    /// Offers only the tools that this filter admits.
    #[must_use]
    pub fn filter(self, filter: ToolFilter) -> Self {
        Self { filter, ..self }
    }

    /// Limits how many of its calls run at once, and how many wait.
    #[must_use]
    pub fn queue(self, queue: Queue) -> Self {
        Self { queue, ..self }
    }

    /// Decides who shares one process of it. With [`Isolation::Call`] an absent limit is that of [`Limits::OF_A_CALL`].
    #[must_use]
    pub fn isolation(self, isolation: Isolation) -> Self {
        let limits = self.limits;
        Self { isolation, ..self }.limits(limits)
    }

    /// Limits what its processes and calls may use. With [`Isolation::Call`] an absent limit is that of [`Limits::OF_A_CALL`].
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        let limits = match self.isolation {
            Isolation::Call => limits.or(Limits::OF_A_CALL),
            Isolation::Shared | Isolation::Session => limits,
        };
        Self { limits, ..self }
    }

    /// Confines what its processes may reach.
    #[must_use]
    pub fn confinement(self, confinement: Confinement) -> Self {
        Self { confinement: Some(confinement), ..self }
    }

    /// Settings of one of its tools, by the server's own name for it.
    #[must_use]
    pub fn tool(mut self, name: impl Into<String>, settings: ToolOverride) -> Self {
        self.tools.insert(name.into(), settings);
        self
    }

    /// Decides whether the names of its tools carry its own.
    #[must_use]
    pub fn prefix(self, prefix: bool) -> Self {
        Self { prefix: Some(prefix), ..self }
    }

    /// How long a call may stay silent, in place of the gateway's time.
    #[must_use]
    pub fn request_timeout(self, limit: Duration) -> Self {
        Self { request_timeout: Some(limit), ..self }
    }

    /// How long a call may take in total, in place of the gateway's time.
    #[must_use]
    pub fn max_total(self, limit: Duration) -> Self {
        Self { max_total: Some(limit), ..self }
    }

    /// How long one of its questions may stay unanswered, in place of the gateway's time.
    #[must_use]
    pub fn question_timeout(self, limit: Duration) -> Self {
        Self { question_timeout: Some(limit), ..self }
    }

    /// How long a cancelled call keeps its lock and its places, in place of the gateway's time.
    #[must_use]
    pub fn cancel_grace(self, limit: Duration) -> Self {
        Self { cancel_grace: Some(limit), ..self }
    }

    /// Decides whether a call whose server was lost is repeated.
    #[must_use]
    pub fn retry(self, retry: Retry) -> Self {
        Self { retry, ..self }
    }

    /// Decides what happens to results that do not match their tool's output schema.
    #[must_use]
    pub fn output(self, output: Output) -> Self {
        Self { output, ..self }
    }

    /// Decides whether it is started again when it ends.
    #[must_use]
    pub fn restart(self, restart: bool) -> Self {
        Self { restart, ..self }
    }

    /// Starts it only on first use.
    #[must_use]
    pub fn lazy(self, lazy: bool) -> Self {
        Self { lazy, ..self }
    }

    /// Ends it when it was unused for this long.
    #[must_use]
    pub fn idle_timeout(self, limit: Duration) -> Self {
        Self { idle_timeout: Some(limit), ..self }
    }

    /// Decides whether calls of clients that can answer questions get a process or session of their own.
    #[must_use]
    pub fn interactive(self, interactive: Interactive) -> Self {
        Self { interactive, ..self }
    }

    /// Answers it with these folders when it asks for roots.
    #[must_use]
    pub fn roots(self, uris: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { roots: Some(Roots::of(uris.into_iter().map(Into::into))), ..self }
    }
}

impl Queue {
    /// A queue of its own in which this many calls run at once.
    #[must_use]
    pub fn of(concurrency: usize) -> Self {
        Self { concurrency, ..Self::default() }
    }

    /// Refuses a call when this many are waiting.
    #[must_use]
    pub fn max_waiting(self, calls: usize) -> Self {
        Self { max_waiting: calls, ..self }
    }

    /// Shares the queue with every server and tool whose queue has the same name.
    #[must_use]
    pub fn named(self, name: impl Into<Arc<str>>) -> Self {
        Self { name: Some(name.into()), ..self }
    }
}

/// Makes a server unusable that was given a setting of servers of another kind. The first reason stays.
fn only(key: &str, kind: &str, launch: &mut Launch) {
    if !matches!(launch, Launch::Unusable { .. }) {
        *launch = Launch::Unusable { reason: format!("`{key}` is only for {kind}") };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::GatewaySettings;

    fn program() -> ServerConfig {
        ServerConfig::program("one", "x", ["y"]).unwrap()
    }

    fn remote() -> ServerConfig {
        ServerConfig::remote("one", "https://mcp.example.com").unwrap()
    }

    /// LIB-7: what belongs to a program and what belongs to an address goes where it belongs, and nowhere else. A server that
    /// was given the other kind says so instead of leaving it out.
    #[test]
    fn settings_fit_the_way_a_server_is_reached() {
        let Launch::Stdio(stdio) = program().env("KEY", "hunter2").inherit_env(["LANG"]).cwd("/srv").launch
        else {
            panic!("it is a program")
        };
        assert_eq!(stdio.env["KEY"].expose(), "hunter2");
        assert_eq!((stdio.inherit_env, stdio.cwd), (vec!["LANG".to_owned()], Some("/srv".into())));
        let Launch::Remote(remote_launch) = remote().header("X-Team", "tools").launch else {
            panic!("it is remote")
        };
        assert_eq!(remote_launch.headers["X-Team"].expose(), "tools");

        #[track_caller]
        fn check(server: ServerConfig, expected: &str) {
            let Launch::Unusable { reason } = server.launch else { panic!("it would start") };
            assert_eq!(reason, expected);
        }
        check(remote().env("KEY", "v").header("X-Team", "v"), "`env` is only for a program");
        check(remote().inherit_env(["LANG"]), "`inherit_env` is only for a program");
        check(remote().cwd("/srv"), "`cwd` is only for a program");
        check(program().header("X-Team", "v"), "`headers` is only for a server at an address");
        check(
            program().proxy("http://127.0.0.1:3128".parse().unwrap()),
            "`proxy` is only for a server at an address",
        );
    }

    /// LIB-7: calls with processes of their own have the limits that a file would give them, in whichever order it is said.
    #[test]
    fn limits_of_a_call_do_not_depend_on_the_order() {
        let own = Limits { memory: Some(1 << 30), ..Limits::default() };
        for server in [
            program().limits(own).isolation(Isolation::Call),
            program().isolation(Isolation::Call).limits(own),
        ] {
            assert_eq!(server.limits, own.or(Limits::OF_A_CALL));
        }
        assert_eq!(program().limits(own).isolation(Isolation::Session).limits, own);
    }

    /// LIB-7: a time that a server has itself stays; the others are those of its gateway, or else the defaults.
    #[test]
    fn absent_times_are_the_gateways() {
        let seconds = Duration::from_secs;
        let gateway = GatewaySettings {
            request_timeout: seconds(1),
            max_total: seconds(2),
            question_timeout: seconds(3),
            cancel_grace: seconds(4),
            ..GatewaySettings::default()
        };
        let clocks = |server: &ServerConfig| {
            let clocks = server.clocks();
            [clocks.silent, clocks.total, clocks.question, clocks.cancel].map(|time| time.as_secs())
        };
        assert_eq!(clocks(&program()), [300, 3_600, 600, 5]);
        assert_eq!(clocks(&program().behind(&gateway)), [1, 2, 3, 4]);
        assert_eq!(clocks(&remote().max_total(seconds(9)).behind(&gateway)), [1, 9, 3, 4]);
        let own = program().request_timeout(seconds(7)).question_timeout(seconds(8));
        assert_eq!(clocks(&own.behind(&gateway)), [7, 2, 8, 4]);
        let defaults = GatewaySettings::default();
        let launch = program().launch;
        assert_eq!(
            clocks(&ServerConfig::new("two".parse().unwrap(), launch, &gateway).behind(&defaults)),
            [1, 2, 3, 4]
        );
    }
}
