//! The hub reader against a server in a thread.

mod server;

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_formats::{gguf, safetensors, torch_checkpoint};
use plimsoll_hub::{FetchedModel, Hub, HubConfig, HubError, Note, RepoRef, Token};
use server::{Behaviour, COMMIT, Server};

fn data(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plimsoll-formats/tests/data");
    fs::read(folder.join(name)).unwrap()
}

fn files(list: &[(&str, Vec<u8>)]) -> BTreeMap<String, Vec<u8>> {
    list.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone())).collect()
}

const CONFIG: &[u8] = br#"{"model_type": "llama"}"#;

/// A repository with two shards, as most are.
fn sharded() -> Behaviour {
    let index = br#"{"metadata":{"total_size":710},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#;
    Behaviour {
        files: files(&[
            ("README.md", b"#".to_vec()),
            ("config.json", CONFIG.to_vec()),
            ("model-00001-of-00002.safetensors", data("small.safetensors")),
            ("model-00002-of-00002.safetensors", data("small.safetensors")),
            ("model.safetensors.index.json", index.to_vec()),
        ]),
        ..Behaviour::default()
    }
}

fn config(server: &Server) -> HubConfig {
    HubConfig {
        endpoint: server.endpoint.clone(),
        retry_delay: Duration::from_millis(1),
        request_timeout: Duration::from_secs(20),
        ..HubConfig::default()
    }
}

fn fetch(config: HubConfig, reference: &str) -> Result<FetchedModel, HubError> {
    Hub::new(config)?.fetch(&reference.parse::<RepoRef>()?)
}

/// A folder that goes with its owner.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("plimsoll-hub-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_sharded_model_takes_headers_only() {
    let server = Server::start(sharded());
    let model = fetch(config(&server), "hf:org/name").unwrap();
    assert_eq!(model.commit.as_deref(), Some(COMMIT));
    assert_eq!(model.config.as_deref(), Some(CONFIG));
    assert_eq!(model.index.unwrap().total_size.unwrap().get(), 710);
    let names: Vec<_> = model.safetensors.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]);
    assert_eq!(model.safetensors[0].1.tensors.len(), 7);
    assert!(model.notes.is_empty());
    let requests = server.requests.lock().unwrap();
    let shard = requests.iter().find(|r| r.path.ends_with("00001-of-00002.safetensors")).unwrap();
    assert!(shard.path.contains(COMMIT), "files are fetched at the commit: {}", shard.path);
    assert_eq!(shard.range, Some((0, 65_535)));
    assert_eq!(requests.len(), 5);
}

#[test]
fn what_was_fetched_reads_as_a_folder() {
    let server = Server::start(sharded());
    let model = fetch(config(&server), "hf:org/name").unwrap();
    assert_eq!(model.main_file(), None);
    assert_eq!(model.names().len(), 4);
    for (name, header) in &model.safetensors {
        assert_eq!(&safetensors::read(model.open(name).unwrap()).unwrap(), header);
    }
    let mut text = Vec::new();
    model.open("config.json").unwrap().read_to_end(&mut text).unwrap();
    assert_eq!(text, CONFIG);
    assert_eq!(model.open("README.md").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_long_header_takes_a_second_range() {
    let tensors: Vec<String> = (0..2000)
        .map(|n| {
            format!(
                r#""model.layers.{n}.weight":{{"dtype":"U8","shape":[1],"data_offsets":[{n},{}]}}"#,
                n + 1
            )
        })
        .collect();
    let header = format!("{{{}}}", tensors.join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&[0; 2000]);
    let behaviour = Behaviour {
        files: files(&[("config.json", CONFIG.to_vec()), ("model.safetensors", file)]),
        ..Behaviour::default()
    };
    for ignores_ranges in [false, true] {
        let server = Server::start(Behaviour { ignores_ranges, ..behaviour.clone() });
        let model = fetch(config(&server), "org/name").unwrap();
        assert_eq!(model.safetensors[0].1.tensors.len(), 2000);
        let ranges: Vec<_> =
            server.requests.lock().unwrap().iter().filter_map(|r| r.range).collect();
        assert_eq!(ranges.len(), 2);
        assert_eq!(ranges[1].0, 65_536);
    }
}

#[test]
fn gguf_by_name_and_in_parts() {
    let behaviour = Behaviour {
        files: files(&[
            ("small-Q8_0.gguf", data("small.gguf")),
            ("F16/split-00001-of-00002.gguf", data("split-00001-of-00002.gguf")),
            ("F16/split-00002-of-00002.gguf", data("split-00002-of-00002.gguf")),
        ]),
        ..Behaviour::default()
    };
    let server = Server::start(behaviour);
    let one = fetch(config(&server), "hf:org/name:q8_0").unwrap();
    assert_eq!(one.gguf[0].1.arch(), Some("llama"));
    assert_eq!(one.main_file(), Some("small-Q8_0.gguf"));
    assert_eq!(gguf::read(one.open("small-Q8_0.gguf").unwrap()).unwrap(), one.gguf[0].1);
    let parts = fetch(config(&server), "hf:org/name:F16").unwrap();
    let names: Vec<_> = parts.gguf.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["F16/split-00001-of-00002.gguf", "F16/split-00002-of-00002.gguf"]);
    // One part stands for all; a part that is not there is named.
    let parts = fetch(config(&server), "hf:org/name:F16/split-00002-of-00002.gguf").unwrap();
    assert_eq!(parts.gguf.len(), 2);
    // Without a name the one at the top is taken.
    assert_eq!(fetch(config(&server), "hf:org/name").unwrap().gguf.len(), 1);
}

#[test]
fn torch_checkpoints_and_adapters() {
    let behaviour = Behaviour {
        files: files(&[
            ("config.json", CONFIG.to_vec()),
            ("pytorch_model.bin", data("state_dict.pt")),
        ]),
        ..Behaviour::default()
    };
    let server = Server::start(behaviour);
    let model = fetch(config(&server), "hf:org/name").unwrap();
    assert_eq!(model.torch[0].1.tensors.len(), 7);
    let again = torch_checkpoint::read(model.open("pytorch_model.bin").unwrap()).unwrap();
    assert_eq!(again, model.torch[0].1);

    let behaviour = Behaviour {
        files: files(&[
            ("adapter_config.json", b"{}".to_vec()),
            ("adapter_model.safetensors", data("small.safetensors")),
        ]),
        ..Behaviour::default()
    };
    let server = Server::start(behaviour);
    let model = fetch(config(&server), "hf:org/name").unwrap();
    assert_eq!(model.adapter_config.as_deref(), Some(&b"{}"[..]));
    assert_eq!(model.adapter_safetensors.unwrap().1.tensors.len(), 7);
    assert!(model.safetensors.is_empty());
}

#[test]
fn a_token_goes_to_the_hub_and_not_beyond() {
    let storage = Server::start(sharded());
    let address = storage.endpoint.replace("127.0.0.1", "localhost");
    let behaviour =
        Behaviour { token: Some("hf_right".to_owned()), storage: Some(address), ..sharded() };
    let server = Server::start(behaviour);
    let with = |token: Option<&str>| {
        let token = token.and_then(Token::new);
        fetch(HubConfig { token, ..config(&server) }, "hf:org/name")
    };
    assert!(matches!(with(None), Err(HubError::Unauthorized { .. })));
    let error = with(Some("hf_wrong")).unwrap_err();
    assert!(matches!(error, HubError::Forbidden { .. }));
    assert!(error.to_string().contains("accept its conditions"), "{error}");
    assert!(with(None).unwrap_err().to_string().contains("set HF_TOKEN"));
    assert_eq!(with(Some("hf_right")).unwrap().safetensors.len(), 2);
    let requests = storage.requests.lock().unwrap();
    assert!(!requests.is_empty());
    assert!(requests.iter().all(|r| r.authorization.is_none()), "{requests:?}");
}

#[test]
fn what_is_not_there_is_told_apart() {
    let server = Server::start(sharded());
    let error = |reference: &str| fetch(config(&server), reference).unwrap_err();
    assert!(matches!(error("hf:org/name@nope"), HubError::RevisionNotFound { .. }));
    assert!(matches!(error("hf:org/name:nope.safetensors"), HubError::FileNotFound { .. }));
    assert!(matches!(error("hf:org/other"), HubError::RepoNotFound { .. }));
    let mut missing = sharded();
    missing.files.remove("model-00002-of-00002.safetensors");
    let server = Server::start(missing);
    let error = fetch(config(&server), "hf:org/name").unwrap_err().to_string();
    assert!(error.contains("org/name has no file `model-00002-of-00002.safetensors`"), "{error}");
    let server =
        Server::start(Behaviour { files: files(&[("x.md", vec![])]), ..Behaviour::default() });
    assert!(matches!(fetch(config(&server), "hf:org/name"), Err(HubError::NoModel { .. })));
    let part = "split-00001-of-00002.gguf";
    let server =
        Server::start(Behaviour { files: files(&[(part, data(part))]), ..Behaviour::default() });
    let error = fetch(config(&server), "hf:org/name").unwrap_err().to_string();
    assert!(error.contains("has no file `split-00002-of-00002.gguf`"), "{error}");
}

#[test]
fn servers_without_a_listing_are_probed() {
    let server = Server::start(Behaviour { no_listing: true, ..sharded() });
    let model = fetch(config(&server), "hf:org/name").unwrap();
    assert_eq!(model.safetensors.len(), 2);
    assert_eq!((model.commit, model.notes), (None, vec![Note::NoListing]));
    let server = Server::start(Behaviour { no_listing: true, ..Behaviour::default() });
    assert!(matches!(fetch(config(&server), "hf:org/name"), Err(HubError::RepoNotFound { .. })));
}

#[test]
fn broken_answers() {
    let message = |behaviour: Behaviour| {
        let server = Server::start(behaviour);
        fetch(config(&server), "hf:org/name").unwrap_err().to_string()
    };
    for (behaviour, text) in [
        (Behaviour { cut: 5, ..sharded() }, "broke off after"),
        (Behaviour { loops: true, ..sharded() }, "more than 5 redirects"),
        (
            Behaviour { content_range: Some("bytes 7-9/10".to_owned()), ..sharded() },
            "refuses the range",
        ),
        (
            Behaviour {
                content_range: Some("bytes 0-898/18446744073709551616".to_owned()),
                ..sharded()
            },
            "refuses the range",
        ),
        (
            Behaviour { always: Some((200, "Content-Type: text/html\r\n", "<html>")), ..sharded() },
            "answers with a web page",
        ),
        (
            Behaviour { always: Some((200, "", "<!doctype html>")), ..sharded() },
            "answers with a web page",
        ),
        (Behaviour { always: Some((200, "", "{]")), ..sharded() }, "the listing is not JSON"),
        (Behaviour { always: Some((429, "", "")), ..sharded() }, "asks to slow down"),
        (Behaviour { always: Some((500, "", "")), ..sharded() }, "answers 500"),
        (Behaviour { always: Some((418, "", "")), ..sharded() }, "answers 418"),
    ] {
        let error = message(behaviour);
        assert!(error.contains(text), "{text}: {error}");
    }
    let mut empty = sharded();
    empty.files.insert("model-00001-of-00002.safetensors".to_owned(), Vec::new());
    let error = message(empty);
    assert!(error.starts_with("model-00001-of-00002.safetensors of org/name: "), "{error}");
    let mut damaged = sharded();
    damaged
        .files
        .insert("model.safetensors.index.json".to_owned(), b"{\"weight_map\": 1}".to_vec());
    assert!(message(damaged).contains("model.safetensors.index.json of org/name: weight index"));
}

#[test]
fn passing_failures_are_tried_again() {
    let server = Server::start(Behaviour { failures: Arc::new(Mutex::new(2)), ..sharded() });
    assert!(fetch(config(&server), "hf:org/name").is_ok());
    assert_eq!(server.count(), 7);
}

#[test]
fn a_slow_server_is_given_up() {
    let server = Server::start(Behaviour { delay: Duration::from_secs(5), ..sharded() });
    let config = HubConfig { request_timeout: Duration::from_secs(1), ..config(&server) };
    let error = fetch(config, "hf:org/name").unwrap_err().to_string();
    assert!(error.contains("did not answer within 1 s"), "{error}");
}

#[test]
fn the_own_cache_serves_by_commit() {
    let cache = Folder::new("own");
    let server = Server::start(sharded());
    let online = HubConfig { own_cache: Some(cache.0.clone()), ..config(&server) };
    let first = fetch(online.clone(), "hf:org/name").unwrap();
    assert_eq!(server.count(), 5);
    // The revision is looked up again; the rest is there.
    assert_eq!(fetch(online.clone(), "hf:org/name").unwrap(), first);
    assert_eq!(server.count(), 6);
    // A commit needs no look-up.
    assert_eq!(
        fetch(online.clone(), &format!("hf:org/name@{COMMIT}")).unwrap().safetensors,
        first.safetensors
    );
    assert_eq!(server.count(), 6);
    let offline = HubConfig { offline: true, ..online.clone() };
    assert_eq!(fetch(offline.clone(), "hf:org/name").unwrap(), first);
    assert_eq!(server.count(), 6);
    let error = fetch(offline, "hf:org/other").unwrap_err().to_string();
    assert!(error.contains("HF_HUB_OFFLINE is set and revision main of org/other"), "{error}");

    // A damaged copy is fetched again.
    for entry in walk(&cache.0) {
        if entry.extension().is_some_and(|e| e == "head") {
            fs::write(&entry, b"short").unwrap();
        }
        assert!(!entry.to_string_lossy().ends_with(".tmp"));
    }
    assert_eq!(fetch(online.clone(), "hf:org/name").unwrap(), first);
    assert_eq!(server.count(), 9);

    // The network fails: the copy stands in, and says so.
    let dead = server.endpoint.clone();
    drop(server);
    let model = fetch(HubConfig { endpoint: dead, retries: 0, ..online }, "hf:org/name").unwrap();
    assert!(matches!(&model.notes[..], [Note::FromCache { commit, .. }] if commit == COMMIT));
    assert_eq!(model.safetensors, first.safetensors);
}

#[test]
fn the_hub_cache_is_read_first() {
    let cache = Folder::new("hub");
    let root = cache.0.join("models--org--name");
    let snapshot = root.join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(root.join("refs")).unwrap();
    fs::write(root.join("refs/main"), COMMIT).unwrap();
    fs::write(snapshot.join("config.json"), CONFIG).unwrap();
    fs::write(snapshot.join("model.safetensors"), data("small.safetensors")).unwrap();
    let offline =
        HubConfig { offline: true, hub_cache: Some(cache.0.clone()), ..HubConfig::default() };
    let model = fetch(offline, "hf:org/name").unwrap();
    assert_eq!(model.config.as_deref(), Some(CONFIG));
    assert_eq!(model.safetensors[0].1.tensors.len(), 7);

    // Online, only the listing is asked for; what the snapshot lacks would be fetched.
    let server = Server::start(Behaviour {
        files: files(&[("config.json", b"{}".to_vec()), ("model.safetensors", vec![])]),
        ..Behaviour::default()
    });
    let online = HubConfig { hub_cache: Some(cache.0.clone()), ..config(&server) };
    assert_eq!(fetch(online, "hf:org/name").unwrap().safetensors, model.safetensors);
    assert_eq!(server.paths(), ["/api/models/org/name/revision/main"]);
}

#[test]
fn no_network_says_what_to_do() {
    let config =
        HubConfig { endpoint: "http://127.0.0.1:1".to_owned(), retries: 0, ..HubConfig::default() };
    let error = fetch(config, "hf:org/name").unwrap_err().to_string();
    assert!(error.starts_with("cannot reach 127.0.0.1:1"), "{error}");
    assert!(error.contains("give a local folder"), "{error}");
    let config = HubConfig { endpoint: "huggingface.co".to_owned(), ..HubConfig::default() };
    assert!(matches!(
        Hub::new(config).err(),
        Some(HubError::Setting { setting: "HF_ENDPOINT", .. })
    ));
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(walk(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}
