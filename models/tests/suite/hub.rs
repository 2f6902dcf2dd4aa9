//! The hub client against a server on this machine: download, cache, offline use, tokens and refusals.

use crate::common;
use amk_models::{Checkpoint, Hub, Source};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub with one model, `owner/tiny`, that counts its requests.
struct Server {
    endpoint: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(folder: &Path, token: Option<&str>) -> Self {
        let files: BTreeMap<String, Vec<u8>> = std::fs::read_dir(folder)
            .unwrap()
            .map(|e| e.unwrap().path())
            .map(|p| {
                (p.file_name().unwrap().to_str().unwrap().to_string(), std::fs::read(&p).unwrap())
            })
            .collect();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (log, token) = (requests.clone(), token.map(str::to_string));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                answer(stream, &files, token.as_deref(), &log);
            }
        });
        Self { endpoint, requests }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// Answers one request and closes the connection.
fn answer(
    mut stream: TcpStream,
    files: &BTreeMap<String, Vec<u8>>,
    token: Option<&str>,
    log: &Mutex<Vec<String>>,
) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut first = String::new();
    if reader.read_line(&mut first).unwrap_or(0) == 0 {
        return;
    }
    let path = first.split_whitespace().nth(1).unwrap_or_default().to_string();
    let (mut range, mut auth) = (None, None);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) <= 2 {
            break;
        }
        let (name, value) = line.trim().split_once(':').unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "range" => range = value.trim().strip_prefix("bytes=").map(str::to_string),
            "authorization" => auth = Some(value.trim().to_string()),
            _ => {}
        }
    }
    log.lock().unwrap().push(path.clone());
    let reply = |stream: &mut TcpStream, status: &str, headers: &str, body: &[u8]| {
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n{headers}\r\n",
            body.len()
        );
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    };
    if let Some(t) = token.filter(|t| auth.as_deref() != Some(&format!("Bearer {t}"))) {
        assert!(!t.is_empty());
        return reply(&mut stream, "401 Unauthorized", "", b"");
    }
    if path.starts_with("/api/models/owner/tiny/revision/main") {
        let siblings: Vec<_> = files.keys().map(|f| serde_json::json!({"rfilename": f})).collect();
        let body = serde_json::json!({"sha": COMMIT, "siblings": siblings}).to_string();
        return reply(&mut stream, "200 OK", "Content-Type: application/json\r\n", body.as_bytes());
    }
    let Some(data) = path.strip_prefix("/owner/tiny/resolve/main/").and_then(|f| files.get(f))
    else {
        return reply(&mut stream, "404 Not Found", "", b"");
    };
    let etag = format!(
        "X-Repo-Commit: {COMMIT}\r\nETag: \"{}-{}\"\r\n",
        path.len(),
        path.replace('/', "-")
    );
    match range.as_deref().and_then(|r| r.split_once('-')) {
        Some((start, end)) => {
            let start: usize = start.parse().unwrap();
            let end = end.parse::<usize>().map_or(data.len(), |e| (e + 1).min(data.len()));
            let headers =
                format!("{etag}Content-Range: bytes {start}-{}/{}\r\n", end - 1, data.len());
            reply(&mut stream, "206 Partial Content", &headers, &data[start..end]);
        }
        None => reply(&mut stream, "200 OK", &etag, data),
    }
}

fn hub(endpoint: &str, cache: &Path) -> Hub {
    Hub {
        endpoint: Some(endpoint.to_string()),
        cache: cache.to_path_buf(),
        token: None,
        offline: false,
        progress: false,
    }
}

#[test]
fn a_model_is_fetched_once_and_then_answered_from_the_cache() {
    let server = Server::start(&common::checkpoint("llama-sharded-bf16"), None);
    let cache = tempfile::tempdir().unwrap();
    let online = hub(&server.endpoint, cache.path());
    let c = Checkpoint::from_hub(&online, "owner/tiny", "main").unwrap();
    let local = Checkpoint::from_folder(&common::checkpoint("llama-sharded-bf16")).unwrap();
    assert_eq!(c.config(), local.config());
    assert_eq!(c.weights().bytes(), local.weights().bytes());
    assert!(
        matches!(c.source(), Source::Hub { id, revision, .. } if id == "owner/tiny" && revision == "main")
    );
    assert_eq!(c.name(), "owner/tiny");
    let first = server.requests();
    assert!(first.iter().filter(|r| r.contains("/model-0000")).count() >= 4, "{first:?}");

    // A second time only the listing is asked for.
    Checkpoint::from_hub(&online, "owner/tiny", "main").unwrap();
    assert_eq!(server.requests().len(), first.len() + 1);

    // Offline nothing is asked at all.
    let offline = Hub { offline: true, ..online.clone() };
    Checkpoint::from_hub(&offline, "owner/tiny", "main").unwrap();
    assert_eq!(server.requests().len(), first.len() + 1);

    // With the server gone the cache answers.
    let gone = hub("http://127.0.0.1:9", cache.path());
    Checkpoint::from_hub(&gone, "owner/tiny", "main").unwrap();
}

#[test]
fn what_is_not_cached_is_refused_offline() {
    let cache = tempfile::tempdir().unwrap();
    let offline = Hub { offline: true, ..hub("http://127.0.0.1:9", cache.path()) };
    let error = Checkpoint::from_hub(&offline, "owner/tiny", "main").unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("HF_HUB_OFFLINE is set and the cache")
            && text.contains("config.json of owner/tiny"),
        "{text}"
    );
    assert!(!error.is_environment());
}

#[test]
fn an_unreachable_server_is_the_environments_fault() {
    let cache = tempfile::tempdir().unwrap();
    let error =
        Checkpoint::from_hub(&hub("http://127.0.0.1:9", cache.path()), "owner/tiny", "main")
            .unwrap_err();
    assert!(error.is_environment());
    assert!(
        error.to_string().starts_with("owner/tiny could not be fetched from http://127.0.0.1:9"),
        "{error}"
    );
}

#[test]
fn unknown_and_private_models_are_told_apart() {
    let server = Server::start(&common::checkpoint("llama-odd-f32"), None);
    let cache = tempfile::tempdir().unwrap();
    let text = Checkpoint::from_hub(&hub(&server.endpoint, cache.path()), "owner/none", "main")
        .unwrap_err()
        .to_string();
    assert_eq!(
        text,
        format!(
            "{} answers 404 for owner/none: there is no such model, or no such revision; check the spelling",
            server.endpoint
        )
    );

    let server = Server::start(&common::checkpoint("llama-odd-f32"), Some("secret"));
    let mut hub = hub(&server.endpoint, cache.path());
    let text = Checkpoint::from_hub(&hub, "owner/tiny", "main").unwrap_err().to_string();
    assert!(text.contains("answers 401") && text.contains("set HF_TOKEN"), "{text}");
    hub.token = Some("wrong".into());
    assert!(
        Checkpoint::from_hub(&hub, "owner/tiny", "main")
            .unwrap_err()
            .to_string()
            .contains("the token has no access")
    );
    hub.token = Some("secret".into());
    Checkpoint::from_hub(&hub, "owner/tiny", "main").unwrap();
}

#[test]
fn a_repository_without_safetensors_is_refused_before_anything_is_fetched() {
    let folder = common::write(&common::small_config(), &[]);
    std::fs::rename(
        folder.path().join("model.safetensors"),
        folder.path().join("pytorch_model.bin"),
    )
    .unwrap();
    let server = Server::start(folder.path(), None);
    let cache = tempfile::tempdir().unwrap();
    let text = Checkpoint::from_hub(&hub(&server.endpoint, cache.path()), "owner/tiny", "main")
        .unwrap_err()
        .to_string();
    assert!(text.contains("has no model.safetensors"), "{text}");
    assert_eq!(server.requests().len(), 1);
}

/// Case 11: a folder loads whatever the environment says about hubs, and no request is made.
#[test]
fn folders_never_touch_the_network() {
    let server = Server::start(&common::checkpoint("llama-odd-f32"), None);
    let path = common::checkpoint("llama-odd-f32");
    let c = Checkpoint::open(path.to_str(), false).unwrap();
    assert!(matches!(c.source(), Source::Folder { .. }));
    assert_eq!(c.name(), "llama-odd-f32");
    assert!(server.requests().is_empty());
    let text = Checkpoint::open(Some("./no/such/folder"), false).unwrap_err().to_string();
    assert_eq!(
        text,
        "./no/such/folder is neither a folder nor a hub id such as owner/name; check the path"
    );
}
