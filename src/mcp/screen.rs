//! Standard input and output of the server, with a look at each line first: a message whose objects name a key twice is
//! answered with an error. The protocol's library would keep the last value without a word, and something else would be
//! judged than a reader of the message thinks.

use std::sync::Arc;

use amk_schedule_ir::unique::Unique;
use serde_json::{Value as Json, json};
use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, DuplexStream, Stdout,
};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

/// Bytes that wait between two tasks.
const WAITING: usize = 1 << 16;
/// JSON-RPC's code of a message that is no valid request.
const INVALID: i64 = -32600;

/// The error a line deserves for naming a key twice; `None` for any other line, JSON or not.
pub(super) fn refusal(line: &[u8]) -> Option<Json> {
    let error = serde_json::from_slice::<Unique>(line).err()?;
    // A line that is no JSON is the library's to refuse.
    let message: Json = serde_json::from_slice(line).ok()?;
    let id = message.get("id").cloned().unwrap_or(Json::Null);
    let error = json!({ "code": INVALID, "message": error.to_string() });
    Some(json!({ "jsonrpc": "2.0", "id": id, "error": error }))
}

/// What a server reads from and writes to, and the task that brings what it wrote to standard output.
pub(super) fn streams() -> (DuplexStream, DuplexStream, JoinHandle<std::io::Result<()>>) {
    let (to_server, input) = tokio::io::duplex(WAITING);
    let (output, from_server) = tokio::io::duplex(WAITING);
    let out = Arc::new(Mutex::new(tokio::io::stdout()));
    tokio::spawn(receive(tokio::io::stdin(), to_server, Arc::clone(&out)));
    let sent = tokio::spawn(send(from_server, out));
    (input, output, sent)
}

async fn say(out: &Mutex<Stdout>, line: &[u8]) -> std::io::Result<()> {
    let mut out = out.lock().await;
    out.write_all(line).await?;
    out.flush().await
}

async fn receive(
    from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    out: Arc<Mutex<Stdout>>,
) -> std::io::Result<()> {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).await? > 0 {
        match refusal(&line) {
            Some(error) => say(&out, format!("{error}\n").as_bytes()).await?,
            None => to.write_all(&line).await?,
        }
        line.clear();
    }
    Ok(())
}

async fn send(from: impl AsyncRead + Unpin, out: Arc<Mutex<Stdout>>) -> std::io::Result<()> {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).await? > 0 {
        say(&out, &line).await?;
        line.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_named_twice_is_refused_wherever_it_is() {
        let line = br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"validate","arguments":{"knobs":{"rotation":1,"rotation":2}}}}"#;
        let error = refusal(line).unwrap();
        assert_eq!(
            (error["id"].as_u64(), error["error"]["code"].as_i64()),
            (Some(7), Some(INVALID))
        );
        assert!(
            error["error"]["message"].as_str().unwrap().contains("\"rotation\" is given twice")
        );
        assert_eq!(refusal(br#"{"id":1,"id":1}"#).unwrap()["id"], 1);
        assert_eq!(refusal(br#"{"id":1,"params":{"a":{"b":1},"b":{"a":1}}}"#), None);
        assert_eq!(refusal(b"no JSON"), None);
        assert_eq!(refusal(b"\n"), None);
    }
}
