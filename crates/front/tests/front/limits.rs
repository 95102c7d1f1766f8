//! The time limits of the settings reach the code that enforces them. The paused clock jumps to the next limit.

use std::convert::Infallible;
use std::time::Duration;

use bridgehead_config::HttpSettings;
use bridgehead_front::{Workers, authenticator, router, serve};
use bytes::Bytes;
use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::fake::{Fake, initialize};

const OURS: Duration = Duration::from_secs(4);

/// BOUND-4: the head of a request may take as long as `limits.head_ms` says.
#[tokio::test(start_paused = true)]
async fn a_head_has_the_time_of_the_settings() {
    let settings = HttpSettings { head_within: OURS, ..HttpSettings::default() };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let routes = router(Fake::new(), &settings, authenticator(&settings, None), shutdown.clone());
    let ending = shutdown.clone();
    let serving = tokio::spawn(async move {
        let workers = Workers::start(0).unwrap();
        serve(listener, routes, &workers, ending).await
    });
    let began = Instant::now();
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"POST /mcp HTTP/1.1\r\nhost: local").await.unwrap();
    let mut heard = Vec::new();
    // Closed, or reset because not all was read.
    drop(client.read_to_end(&mut heard).await);
    assert_eq!(began.elapsed().as_secs(), OURS.as_secs());
    shutdown.cancel();
    serving.await.unwrap().unwrap();
}

/// BOUND-4: the body of a request may take as long as `limits.body_ms` says, and a slower client is told the key.
#[tokio::test(start_paused = true)]
async fn a_body_has_the_time_of_the_settings() {
    let settings = HttpSettings { body_within: OURS, ..HttpSettings::default() };
    let routes = router(Fake::new(), &settings, authenticator(&settings, None), CancellationToken::new());
    let request = Request::post("/mcp")
        .header("host", "localhost")
        .header("accept", "*/*")
        .header("content-type", "application/json");
    let half = futures_util::stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"{")))]);
    let body =
        StreamBody::new(Box::pin(futures_util::StreamExt::chain(half, futures_util::stream::pending())));
    let began = Instant::now();
    let answer = routes.answer(request.body(body).unwrap()).await;
    assert_eq!((answer.status().as_u16(), began.elapsed().as_secs()), (408, OURS.as_secs()));
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&text).contains("`limits.body_ms`"), "{text:?}");
}

/// A silent stream carries a comment as often as `http.keep_alive_ms` says.
#[tokio::test(start_paused = true)]
async fn a_silent_stream_has_the_pace_of_the_settings() {
    let settings = HttpSettings { keep_alive: OURS, ..HttpSettings::default() };
    let routes = router(Fake::new(), &settings, authenticator(&settings, None), CancellationToken::new());
    let headers = [("host", "localhost"), ("accept", "*/*"), ("content-type", "application/json")];
    let request =
        headers.iter().fold(Request::post("/mcp"), |request, (name, value)| request.header(*name, *value));
    let body = Full::new(Bytes::from(initialize("1", "2025-06-18")));
    let opened = routes.answer(request.body(body).unwrap()).await;
    let session = opened.headers()["mcp-session-id"].clone();
    let request =
        headers.iter().fold(Request::get("/mcp"), |request, (name, value)| request.header(*name, *value));
    let request = request.header("mcp-session-id", session).body(Full::new(Bytes::new())).unwrap();
    let mut stream = routes.answer(request).await.into_body();
    let began = Instant::now();
    for turn in 1..=2 {
        let comment = stream.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(&comment[..], b": keep-alive\n\n");
        assert_eq!(began.elapsed(), OURS * turn);
    }
}
