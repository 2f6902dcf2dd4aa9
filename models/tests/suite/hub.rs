//! The hub client against a server on this machine: download, cache, offline use, tokens and refusals.

use crate::common;
use amk_models::{Checkpoint, Hub, Source};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const OLD: &str = "89abcdef0123456789abcdef0123456789abcdef";

/// A hub with one model, `owner/tiny`, that keeps its requests: the path, and the bytes asked for.
struct Server {
    endpoint: String,
    requests: Arc<Mutex<Vec<String>>>,
    mood: Arc<Mutex<Mood>>,
}

/// How the server behaves.
#[derive(Clone)]
struct Mood {
    /// Commits by revision.
    revisions: Vec<(&'static str, &'static str)>,
    /// Answers that are cut off after so many bytes, and how many answers to cut.
    cut: (usize, usize),
    /// Whether parts of files are given as whole files, as servers do that know no ranges.
    whole: bool,
    /// Where `main` is once its listing was given.
    moves_to: Option<&'static str>,
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
        let revisions = vec![("main", COMMIT), ("v1", OLD), ("refs%2Fpr%2F1", OLD)];
        let mood =
            Arc::new(Mutex::new(Mood { revisions, cut: (0, 0), whole: false, moves_to: None }));
        let shared = mood.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                answer(stream, &files, token.as_deref(), &log, &shared);
            }
        });
        Self { endpoint, requests, mood }
    }

    fn change(&self, change: impl FnOnce(&mut Mood)) {
        change(&mut self.mood.lock().unwrap());
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
    mood: &Mutex<Mood>,
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
    let asked = range.as_ref().map(|r| format!(" {r}")).unwrap_or_default();
    log.lock().unwrap().push(format!("{path}{asked}"));
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
    let known = mood.lock().unwrap().clone();
    let commit = |revision: &str| known.revisions.iter().find(|(r, _)| *r == revision);
    if let Some(revision) = path.strip_prefix("/api/models/owner/tiny/revision/") {
        let Some((_, commit)) = commit(revision.trim_end_matches('?')) else {
            return reply(&mut stream, "404 Not Found", "", b"");
        };
        if let Some(moved) = known.moves_to {
            mood.lock().unwrap().revisions[0].1 = moved;
        }
        let siblings: Vec<_> = files.keys().map(|f| serde_json::json!({"rfilename": f})).collect();
        let body = serde_json::json!({"sha": commit, "siblings": siblings}).to_string();
        return reply(&mut stream, "200 OK", "Content-Type: application/json\r\n", body.as_bytes());
    }
    let wanted = path.strip_prefix("/owner/tiny/resolve/").and_then(|p| p.split_once('/'));
    let found = wanted.and_then(|(r, file)| Some((commit(r)?.1, file, files.get(file)?)));
    let Some((commit, file, data)) = found else {
        return reply(&mut stream, "404 Not Found", "", b"");
    };
    let etag = format!("X-Repo-Commit: {commit}\r\nETag: \"{}-{file}\"\r\n", data.len());
    let Some((start, end)) = range.as_deref().and_then(|r| r.split_once('-')) else {
        return reply(&mut stream, "200 OK", &etag, data);
    };
    let start: usize = start.parse().unwrap();
    if end.is_empty() && known.whole {
        return reply(&mut stream, "200 OK", &etag, data);
    }
    let last = end.parse::<usize>().map_or(data.len(), |e| (e + 1).min(data.len()));
    let headers = format!("{etag}Content-Range: bytes {start}-{}/{}\r\n", last - 1, data.len());
    let part = &data[start..last];
    let (keep, left) = known.cut;
    if end.is_empty() && left > 0 && part.len() > keep {
        mood.lock().unwrap().cut.1 -= 1;
        // The length is promised, and the connection ends before it.
        let length = part.len();
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n"
        );
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&part[..keep]));
        return;
    }
    reply(&mut stream, "206 Partial Content", &headers, part);
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

/// GGUF files need neither a config nor safetensors; of several, one is to be named.
#[test]
fn gguf_files_are_fetched_alone() {
    let folder = tempfile::tempdir().unwrap();
    let own = common::checkpoint("gguf").join("mixed.gguf");
    std::fs::copy(&own, folder.path().join("mixed.gguf")).unwrap();
    std::fs::write(folder.path().join("README.md"), "a page").unwrap();
    let server = Server::start(folder.path(), None);
    let cache = tempfile::tempdir().unwrap();
    let online = hub(&server.endpoint, cache.path());
    let local = Checkpoint::from_folder(&own).unwrap();
    let loads = |hub: &Hub, id: &str| {
        let c = Checkpoint::from_hub(hub, id, "main").unwrap();
        assert_eq!((c.config(), c.weights().bytes()), (local.config(), local.weights().bytes()));
        assert_eq!(c.name(), id);
    };
    loads(&online, "owner/tiny");
    let asked = server.requests();
    assert!(!asked.iter().any(|r| r.contains("README")), "{asked:?}");
    let offline = Hub { offline: true, ..online.clone() };
    for hub in [&online, &offline, &hub("http://127.0.0.1:9", cache.path())] {
        loads(hub, "owner/tiny");
        loads(hub, "owner/tiny:mixed.gguf");
    }
    // Nothing but listings since.
    let later = &server.requests()[asked.len()..];
    assert!(later.iter().all(|r| r.starts_with("/api/models/")), "{later:?}");

    std::fs::copy(&own, folder.path().join("other.gguf")).unwrap();
    let server = Server::start(folder.path(), None);
    let cache = tempfile::tempdir().unwrap();
    let online = hub(&server.endpoint, cache.path());
    let says = |hub: &Hub, id: &str| Checkpoint::from_hub(hub, id, "main").unwrap_err().to_string();
    let text = says(&online, "owner/tiny");
    assert!(
        text.ends_with(
            "has no safetensors but 2 GGUF files (mixed.gguf, other.gguf); say which, for example owner/tiny:mixed.gguf"
        ),
        "{text}"
    );
    let text = says(&online, "owner/tiny:none.gguf");
    assert!(
        text.ends_with("has no none.gguf; its GGUF files are: mixed.gguf, other.gguf"),
        "{text}"
    );
    let offline = Hub { offline: true, ..online.clone() };
    assert!(says(&offline, "owner/tiny:other.gguf").contains("does not hold other.gguf"));
    loads(&online, "owner/tiny:other.gguf");
    loads(&offline, "owner/tiny:other.gguf");
    loads(&online, "owner/tiny:mixed.gguf");
    assert!(says(&offline, "owner/tiny").contains("2 GGUF files"));
    // Beside safetensors they are not looked at unless one is named.
    let both = common::checkpoint("llama-odd-f32");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(both.join(file), folder.path().join(file)).unwrap();
    }
    let server = Server::start(folder.path(), None);
    let cache = tempfile::tempdir().unwrap();
    let online = hub(&server.endpoint, cache.path());
    let c = Checkpoint::from_hub(&online, "owner/tiny", "main").unwrap();
    assert_eq!(c.config(), Checkpoint::from_folder(&both).unwrap().config());
    loads(&online, "owner/tiny:mixed.gguf");
}

/// A branch that moves on in the middle, and a cache that takes no note of where it stands.
#[test]
fn faults_of_the_moment_are_the_environments() {
    let server = Server::start(&common::checkpoint("llama-odd-f32"), None);
    let cache = tempfile::tempdir().unwrap();
    let online = hub(&server.endpoint, cache.path());
    server.change(|m| m.moves_to = Some(OLD));
    let error = Checkpoint::from_hub(&online, "owner/tiny", "main").unwrap_err();
    let expected = format!(
        "owner/tiny changed on {} while it was being fetched; run the command again",
        server.endpoint
    );
    assert_eq!((error.to_string(), error.is_environment()), (expected, true));
    // The next run sees the branch where it is.
    Checkpoint::from_hub(&online, "owner/tiny", "main").unwrap();
    let refs = cache.path().join("models--owner--tiny/refs");
    std::fs::remove_dir_all(&refs).unwrap();
    std::fs::write(&refs, "").unwrap();
    let error = Checkpoint::from_hub(&online, "owner/tiny", "main").unwrap_err();
    let text = error.to_string();
    let start = format!("the hub's cache {} cannot be written: ", cache.path().display());
    assert!(text.starts_with(&start), "{text}");
    assert!(text.ends_with("; set HF_HOME to another folder") && error.is_environment(), "{text}");
}

/// The parts of a GGUF file are fetched together, and one that is missing is named before anything is fetched.
#[test]
fn parts_of_gguf_files_are_fetched_together() {
    let folder = tempfile::tempdir().unwrap();
    for part in 1..=2 {
        let name = format!("m-0000{part}-of-00002.gguf");
        std::fs::write(folder.path().join(name), b"GGUF").unwrap();
    }
    let server = Server::start(folder.path(), None);
    let cache = tempfile::tempdir().unwrap();
    let online = hub(&server.endpoint, cache.path());
    for id in ["owner/tiny", "owner/tiny:m-00002-of-00002.gguf"] {
        let path = online.fetch(id, "main").unwrap();
        let offline = Hub { offline: true, ..online.clone() };
        assert_eq!(offline.fetch(id, "main").unwrap(), path);
        for part in 1..=2 {
            assert!(path.with_file_name(format!("m-0000{part}-of-00002.gguf")).is_file());
        }
    }
    std::fs::remove_file(folder.path().join("m-00002-of-00002.gguf")).unwrap();
    let server = Server::start(folder.path(), None);
    let cache = tempfile::tempdir().unwrap();
    let error = hub(&server.endpoint, cache.path()).fetch("owner/tiny", "main").unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "owner/tiny on {} has no m-00002-of-00002.gguf; its GGUF files are: m-00001-of-00002.gguf",
            server.endpoint
        )
    );
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

#[test]
fn a_revision_is_a_snapshot_of_its_own() {
    let server = Server::start(&common::checkpoint("llama-odd-f32"), None);
    let cache = tempfile::tempdir().unwrap();
    let online = hub(&server.endpoint, cache.path());
    let folder = |c: &Checkpoint| match c.source() {
        Source::Hub { path, .. } => path.file_name().unwrap().to_str().unwrap().to_string(),
        other => panic!("{other:?}"),
    };
    let main = Checkpoint::from_hub(&online, "owner/tiny", "main").unwrap();
    let tag = Checkpoint::from_hub(&online, "owner/tiny", "v1").unwrap();
    let pr = Checkpoint::from_hub(&online, "owner/tiny", "refs/pr/1").unwrap();
    assert_eq!([folder(&main), folder(&tag), folder(&pr)], [COMMIT, OLD, OLD]);
    let text = Checkpoint::from_hub(&online, "owner/tiny", "v2").unwrap_err().to_string();
    assert!(text.contains("404") && text.contains("no such revision"), "{text}");
    let offline = Hub { offline: true, ..online };
    assert_eq!(folder(&Checkpoint::from_hub(&offline, "owner/tiny", "v1").unwrap()), OLD);
    let text = Checkpoint::from_hub(&offline, "owner/tiny", "v2").unwrap_err().to_string();
    assert!(text.starts_with("HF_HUB_OFFLINE is set"), "{text}");
}

/// A branch that moved on is fetched anew, and offline the newest that was seen is used.
#[test]
fn a_branch_that_moved_is_followed() {
    let server = Server::start(&common::checkpoint("llama-odd-f32"), None);
    server.change(|m| m.revisions = vec![("main", OLD)]);
    let cache = tempfile::tempdir().unwrap();
    let online = hub(&server.endpoint, cache.path());
    let path = |hub: &Hub| hub.fetch("owner/tiny", "main").unwrap();
    assert!(path(&online).ends_with(OLD));
    server.change(|m| m.revisions = vec![("main", COMMIT)]);
    assert!(path(&online).ends_with(COMMIT));
    let offline = Hub { offline: true, ..online.clone() };
    assert!(path(&offline).ends_with(COMMIT));
    // Back again: nothing is fetched, and it counts offline too.
    server.change(|m| m.revisions = vec![("main", OLD)]);
    let before = server.requests().len();
    assert!(path(&online).ends_with(OLD) && path(&offline).ends_with(OLD));
    assert_eq!(server.requests().len(), before + 1);
}

#[test]
fn a_download_that_was_broken_off_is_gone_on_with() {
    let local = common::checkpoint("llama-odd-f32");
    let weights = std::fs::read(local.join("model.safetensors")).unwrap();
    let server = Server::start(&local, None);
    let cache = tempfile::tempdir().unwrap();
    let online = Hub { progress: true, ..hub(&server.endpoint, cache.path()) };
    // The client tries a file three times; then it is the next run's turn.
    server.change(|m| m.cut = (weights.len() / 5, 3));
    let error = Checkpoint::from_hub(&online, "owner/tiny", "main").unwrap_err();
    assert!(error.is_environment(), "{error}");
    assert!(error.to_string().starts_with("owner/tiny could not be fetched"), "{error}");
    let before = server.requests().len();
    let c = Checkpoint::from_hub(&online, "owner/tiny", "main").unwrap();
    let resumed = server.requests().split_off(before);
    let resumed =
        resumed.iter().find(|r| r.contains("safetensors") && !r.ends_with(" 0-0")).unwrap();
    let start: usize = resumed.split(' ').nth(1).unwrap().trim_end_matches('-').parse().unwrap();
    assert!(start >= 3 * (weights.len() / 5), "{resumed}");
    let Source::Hub { path, .. } = c.source() else { panic!() };
    assert!(std::fs::read(path.join("model.safetensors")).unwrap() == weights);
}

/// A server that answers a part with the whole leaves no wrong file behind.
#[test]
fn a_file_of_another_length_is_not_kept() {
    let local = common::checkpoint("llama-odd-f32");
    let weights = std::fs::read(local.join("model.safetensors")).unwrap();
    let server = Server::start(&local, None);
    let cache = tempfile::tempdir().unwrap();
    let online = hub(&server.endpoint, cache.path());
    server.change(|m| m.cut = (weights.len() / 5, 3));
    assert!(online.fetch("owner/tiny", "main").is_err());
    server.change(|m| m.whole = true);
    let error = online.fetch("owner/tiny", "main").unwrap_err();
    assert!(error.is_environment() && error.to_string().contains("bytes instead of"), "{error}");
    let path = online.fetch("owner/tiny", "main").unwrap();
    assert!(std::fs::read(path.join("model.safetensors")).unwrap() == weights);
}
