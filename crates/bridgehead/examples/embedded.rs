//! A whole gateway inside a program, with its own tool, its own record of calls and an event subscriber.
//! `cargo run -p bridgehead --example embedded`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{error::Error, io::ErrorKind, sync::Arc};

use bridgehead::bridge::{ConnectOptions, TransportFactory, connect_to_server, memory_transport, operations};
use bridgehead::events::Delivery;
use bridgehead::{AuditError, AuditSink, Enter, EnterFuture, Exit, NativeTool, Server, Ticket, Transport};
use parking_lot::Mutex;
use serde_json::json;

/// Keeps the record of calls in memory, one line per event.
#[derive(Default)]
struct Ledger(Mutex<Vec<String>>);

impl AuditSink for Ledger {
    fn enter(&self, event: &Enter) -> EnterFuture {
        let mut lines = self.0.lock();
        lines.push(format!("{} begins", event.tool()));
        Box::pin(std::future::ready(Ok(Some(Ticket::new(1, lines.len() as u64)))))
    }

    fn exit(&self, _ticket: Option<Ticket>, event: Exit) -> Result<(), AuditError> {
        self.0.lock().push(format!("{} ended", event.tool()));
        Ok(())
    }
}

/// Calls the tool once. Returns its answer, the record, and the topic of the event about it.
pub(crate) async fn run() -> Result<(String, Vec<String>, String), Box<dyn Error>> {
    let ledger = Arc::new(Ledger::default());
    let greet = NativeTool::new("greet", "Greets.", json!({"type": "object"}), |arguments, _| async move {
        Ok(json!(format!("hello, {}", arguments["name"].as_str().unwrap_or("you"))))
    });
    let (client, theirs) = memory_transport();
    let options = Server::builder().process_handlers(false).register(greet).audit(Arc::clone(&ledger) as _);
    let server = options.transport(Transport::Memory(theirs)).build()?;
    let mut happenings = server.gateway().events().subscribe(16);
    let running = server.start().await?;
    let client = Mutex::new(Some(client));
    let taken = move |_: &str| std::future::ready(client.lock().take().ok_or(ErrorKind::NotConnected.into()));
    let factory = TransportFactory::new(taken);
    let options = ConnectOptions::default().factory(factory);
    let bridge = connect_to_server("memory:gateway", options).await?;
    let tools = operations(&bridge).await?;
    let greet = tools.iter().find(|tool| tool.spec.name == "greet").ok_or("there is no `greet`")?;
    let answer = greet.run(&json!({"name": "world"})).await?.data["data"].to_string();
    let Some(Delivery::Event(told)) = happenings.next().await else { return Err("nothing was told".into()) };
    bridge.close().await;
    running.stop().await;
    Ok((answer, ledger.0.lock().clone(), told.topic().to_string()))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("{:#?}", run().await?);
    Ok(())
}
