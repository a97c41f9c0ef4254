//! A hub in a thread: one repository on 127.0.0.1, with the ways that real servers answer and misbehave.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// How the server behaves.
#[derive(Clone, Default)]
pub struct Behaviour {
    pub files: BTreeMap<String, Vec<u8>>,
    /// Answers 401 without this token, 403 with another.
    pub token: Option<String>,
    /// Has no listing of files.
    pub no_listing: bool,
    /// Answers ranges with the whole file.
    pub ignores_ranges: bool,
    /// Sends this many bytes less than announced.
    pub cut: usize,
    /// Waits before each answer.
    pub delay: Duration,
    /// Sends files from another address, as a hub with a storage network does.
    pub storage: Option<String>,
    /// Redirects to itself for ever.
    pub loops: bool,
    /// Answers everything with this status and body.
    pub always: Option<(u16, &'static str, &'static str)>,
    /// Fails this many requests with 503 first.
    pub failures: Arc<Mutex<u32>>,
    /// Answers 206 with this Content-Range.
    pub content_range: Option<String>,
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Request {
    pub path: String,
    pub range: Option<(u64, u64)>,
    pub authorization: Option<String>,
}

pub struct Server {
    pub endpoint: String,
    pub requests: Arc<Mutex<Vec<Request>>>,
    stop: Arc<AtomicBool>,
    address: std::net::SocketAddr,
}

impl Server {
    pub fn start(behaviour: Behaviour) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (log, stopping) = (requests.clone(), stop.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                if stopping.load(Ordering::SeqCst) {
                    return;
                }
                let (behaviour, log) = (behaviour.clone(), log.clone());
                thread::spawn(move || {
                    if let Ok(stream) = stream {
                        let _ = serve(stream, &behaviour, &log);
                    }
                });
            }
        });
        Server { endpoint: format!("http://{address}"), requests, stop, address }
    }

    pub fn paths(&self) -> Vec<String> {
        self.requests.lock().unwrap().iter().map(|r| r.path.clone()).collect()
    }

    pub fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

fn read_request(stream: &TcpStream) -> std::io::Result<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let path = first.split(' ').nth(1).unwrap_or("").to_owned();
    let mut request = Request { path, range: None, authorization: None };
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => request.authorization = Some(value.trim().to_owned()),
            "range" => {
                let (begin, last) = value.trim()["bytes=".len()..].split_once('-').unwrap();
                request.range = Some((begin.parse().unwrap(), last.parse().unwrap()));
            }
            _ => {}
        }
    }
    Ok(request)
}

fn serve(
    mut stream: TcpStream,
    behaviour: &Behaviour,
    log: &Mutex<Vec<Request>>,
) -> std::io::Result<()> {
    let request = read_request(&stream)?;
    log.lock().unwrap().push(request.clone());
    thread::sleep(behaviour.delay);
    let mut answer = |status: u16, headers: &str, body: &[u8], cut: usize| {
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
        )?;
        // The client may have gone once it has what it wants.
        let _ = stream.write_all(&body[..length - cut.min(length)]);
        stream.shutdown(Shutdown::Write)
    };
    {
        let mut failures = behaviour.failures.lock().unwrap();
        if *failures > 0 {
            *failures -= 1;
            return answer(503, "", b"", 0);
        }
    }
    if let Some((status, headers, body)) = behaviour.always {
        return answer(status, headers, body.as_bytes(), 0);
    }
    if behaviour.loops {
        return answer(302, &format!("Location: {}\r\n", request.path), b"", 0);
    }
    if let Some(token) = &behaviour.token {
        match &request.authorization {
            Some(given) if *given == format!("Bearer {token}") => {}
            Some(_) => return answer(403, "X-Error-Code: GatedRepo\r\n", b"", 0),
            None => return answer(401, "X-Error-Code: GatedRepo\r\n", b"", 0),
        }
    }
    if let Some(revision) = request.path.strip_prefix("/api/models/org/name/revision/") {
        if behaviour.no_listing {
            return answer(404, "", b"", 0);
        }
        if ![COMMIT, "main", "refs%2Fpr%2F1"].contains(&revision) {
            return answer(404, "X-Error-Code: RevisionNotFound\r\n", b"", 0);
        }
        let siblings: Vec<_> =
            behaviour.files.keys().map(|name| format!(r#"{{"rfilename":"{name}"}}"#)).collect();
        let body = format!(r#"{{"sha":"{COMMIT}","siblings":[{}]}}"#, siblings.join(","));
        return answer(200, "Content-Type: application/json\r\n", body.as_bytes(), 0);
    }
    let file =
        request.path.strip_prefix("/org/name/resolve/").and_then(|rest| rest.split_once('/'));
    let Some((_, file)) = file else {
        return answer(404, "X-Error-Code: RepoNotFound\r\n", b"", 0);
    };
    let Some(bytes) = behaviour.files.get(file) else {
        return answer(404, "X-Error-Code: EntryNotFound\r\n", b"", 0);
    };
    if let Some(storage) = &behaviour.storage {
        return answer(302, &format!("Location: {storage}{}\r\n", request.path), b"", 0);
    }
    let whole = bytes.len() as u64;
    match request.range.filter(|_| !behaviour.ignores_ranges) {
        Some((begin, _)) if begin >= whole => {
            answer(416, &format!("Content-Range: bytes */{whole}\r\n"), b"", 0)
        }
        Some((begin, last)) => {
            let last = last.min(whole - 1);
            let range = format!("bytes {begin}-{last}/{whole}");
            let range = behaviour.content_range.clone().unwrap_or(range);
            let body = &bytes[begin as usize..=last as usize];
            answer(206, &format!("Content-Range: {range}\r\n"), body, behaviour.cut)
        }
        None => answer(200, "", bytes, behaviour.cut),
    }
}
