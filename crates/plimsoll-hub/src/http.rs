//! Requests: whole small files and ranges of large ones, each with a cap, a time limit and retries, and every
//! way to fail turned into a [`HubError`] that says what to do.

use std::fs;
use std::io::Read;
use std::sync::Arc;
use std::thread;

use plimsoll_formats::sniff::{self, FileKind};
use ureq::http::{HeaderMap, Response, header};
use ureq::tls::{PemItem, RootCerts, TlsConfig};
use ureq::{Agent, Body, Proxy};

use crate::config::host_of;
use crate::{HubConfig, HubError, RepoRef};

/// Most bytes that are read and thrown away where a server ignores ranges.
const MAX_SKIPPED: u64 = 64 << 20;

/// A client for one hub.
pub(crate) struct Client {
    agent: Agent,
    config: HubConfig,
}

/// A piece of a file.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) bytes: Vec<u8>,
    /// Length of the whole file, where the server says it.
    pub(crate) file_len: Option<u64>,
}

/// What is asked for, for messages.
pub(crate) struct Target<'a> {
    pub(crate) reference: &'a RepoRef,
    /// `None` for the repository itself.
    pub(crate) file: Option<&'a str>,
    pub(crate) url: String,
}

impl Client {
    pub(crate) fn new(config: &HubConfig) -> Result<Client, HubError> {
        let scheme = ["http://", "https://"].iter().any(|s| config.endpoint.starts_with(s));
        if !scheme || host_of(&config.endpoint).is_empty() {
            return Err(HubError::Setting {
                setting: "HF_ENDPOINT",
                value: config.endpoint.escape_debug().to_string(),
                accepted: "an address such as https://huggingface.co",
            });
        }
        let proxy = match &config.proxy {
            None => None,
            Some(text) => Some(Proxy::new(text).map_err(|_| HubError::Setting {
                setting: "HTTPS_PROXY",
                value: text.escape_debug().to_string(),
                accepted: "an address such as http://proxy:3128",
            })?),
        };
        let mut tls = TlsConfig::builder();
        if let Some(path) = &config.certificates {
            tls = tls.root_certs(certificates(path)?);
        }
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .user_agent(concat!("plimsoll/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .max_redirects(5)
            .redirect_auth_headers(ureq::config::RedirectAuthHeaders::SameHost)
            .max_response_header_size(64 << 10)
            .timeout_connect(Some(config.connect_timeout))
            .timeout_global(Some(config.request_timeout))
            .proxy(proxy)
            .tls_config(tls.build())
            .build()
            .new_agent();
        Ok(Client { agent, config: config.clone() })
    }

    /// The address of a file at a revision.
    pub(crate) fn file_url(&self, repo: &str, revision: &str, file: &str) -> String {
        let file = file.split('/').map(encode).collect::<Vec<_>>().join("/");
        format!("{}/{repo}/resolve/{}/{file}", self.config.endpoint, encode(revision))
    }

    /// The address of a repository's listing at a revision.
    pub(crate) fn listing_url(&self, repo: &str, revision: &str) -> String {
        format!("{}/api/models/{repo}/revision/{}", self.config.endpoint, encode(revision))
    }

    /// A whole file of at most `limit` bytes.
    pub(crate) fn whole(&self, target: &Target<'_>, limit: u64) -> Result<Vec<u8>, HubError> {
        self.retrying(|| {
            let response = self.send(target, None)?;
            if response.status() != 200 {
                return Err(self.refusal(target, &response));
            }
            let length = response.body().content_length();
            if let Some(bytes) = length.filter(|n| *n > limit) {
                return Err(HubError::TooLarge { url: target.url.clone(), bytes, limit });
            }
            let bytes = self.body(target, response, length, limit + 1)?;
            if bytes.len() as u64 > limit {
                let bytes = bytes.len() as u64;
                return Err(HubError::TooLarge { url: target.url.clone(), bytes, limit });
            }
            Ok(bytes)
        })
    }

    /// The bytes `begin .. begin + length` of a file, fewer where it ends before.
    pub(crate) fn range(
        &self,
        target: &Target<'_>,
        begin: u64,
        length: u64,
    ) -> Result<Piece, HubError> {
        let last = begin.saturating_add(length).saturating_sub(1);
        let range = format!("bytes={begin}-{last}");
        self.retrying(|| {
            let response = self.send(target, Some(&range))?;
            match response.status().as_u16() {
                206 => self.partial(target, response, &range, begin, length),
                // The server ignores ranges and sends everything; what is behind the range stays unread.
                200 => {
                    let file_len = response.body().content_length();
                    if begin > MAX_SKIPPED {
                        return Err(HubError::Range {
                            url: target.url.clone(),
                            range: range.clone(),
                            answer: "200, the whole file".to_owned(),
                        });
                    }
                    let wanted = begin.saturating_add(length);
                    let expected = file_len.map(|n| n.min(wanted));
                    let mut bytes = self.body(target, response, expected, wanted)?;
                    let skipped = bytes.len().min(begin as usize);
                    bytes.drain(..skipped);
                    Ok(Piece { bytes, file_len })
                }
                416 => {
                    let answer = text(response.headers(), header::CONTENT_RANGE.as_str());
                    let file_len = answer.strip_prefix("bytes */").and_then(|n| n.parse().ok());
                    if file_len == Some(0) {
                        return Ok(Piece { bytes: Vec::new(), file_len });
                    }
                    let answer = format!("416 {answer}").trim_end().to_owned();
                    Err(HubError::Range { url: target.url.clone(), range: range.clone(), answer })
                }
                _ => Err(self.refusal(target, &response)),
            }
        })
    }

    fn partial(
        &self,
        target: &Target<'_>,
        response: Response<Body>,
        range: &str,
        begin: u64,
        length: u64,
    ) -> Result<Piece, HubError> {
        let answer = text(response.headers(), header::CONTENT_RANGE.as_str()).to_owned();
        let wrong = || HubError::Range {
            url: target.url.clone(),
            range: range.to_owned(),
            answer: format!("206 {}", answer.escape_debug()),
        };
        // "bytes BEGIN-LAST/LENGTH", where the length may be a star.
        let parts = answer.strip_prefix("bytes ").and_then(|rest| rest.split_once('/'));
        let (span, file_len) = parts.ok_or_else(wrong)?;
        let (first, last) = span.split_once('-').ok_or_else(wrong)?;
        let (first, last): (u64, u64) =
            (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
        let file_len: Option<u64> = match file_len {
            "*" => None,
            digits => Some(digits.parse().map_err(|_| wrong())?),
        };
        let expected = last.checked_sub(first).and_then(|n| n.checked_add(1));
        let fits = first == begin
            && expected.is_some_and(|n| n <= length)
            && file_len.is_none_or(|file_len| last < file_len);
        let expected = expected.filter(|_| fits).ok_or_else(wrong)?;
        let bytes = self.body(target, response, Some(expected), expected)?;
        Ok(Piece { bytes, file_len })
    }

    /// Reads at most `limit` bytes of an answer; where `expected` is known, exactly so many must come.
    fn body(
        &self,
        target: &Target<'_>,
        response: Response<Body>,
        expected: Option<u64>,
        limit: u64,
    ) -> Result<Vec<u8>, HubError> {
        let html = response.body().mime_type().is_some_and(|mime| mime == "text/html");
        let mut bytes = Vec::new();
        let read = response.into_body().into_reader().take(limit).read_to_end(&mut bytes);
        let got = bytes.len() as u64;
        if let Err(e) = read {
            if e.kind() == std::io::ErrorKind::TimedOut {
                return Err(self.timeout(target));
            }
            return Err(match expected {
                Some(expected) if got < expected => {
                    HubError::Truncated { url: target.url.clone(), got, expected }
                }
                _ => HubError::Protocol { url: target.url.clone(), reason: e.to_string() },
            });
        }
        if let Some(expected) = expected.filter(|n| got < *n) {
            return Err(HubError::Truncated { url: target.url.clone(), got, expected });
        }
        if html || sniff::file_kind(&bytes) == Some(FileKind::Html) {
            return Err(HubError::WebPage { url: target.url.clone() });
        }
        Ok(bytes)
    }

    fn send(&self, target: &Target<'_>, range: Option<&str>) -> Result<Response<Body>, HubError> {
        let mut request = self.agent.get(&target.url);
        if let Some(token) = &self.config.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.secret()));
        }
        if let Some(range) = range {
            request = request.header(header::RANGE, range);
        }
        request.call().map_err(|e| self.failure(target, &e))
    }

    /// A request that got no answer.
    fn failure(&self, target: &Target<'_>, e: &ureq::Error) -> HubError {
        let host = host_of(&target.url).to_owned();
        let url = target.url.clone();
        match e {
            ureq::Error::Timeout(_) => self.timeout(target),
            ureq::Error::HostNotFound => {
                HubError::NoNetwork { host, reason: "the name is unknown".to_owned() }
            }
            ureq::Error::ConnectionFailed => {
                HubError::NoNetwork { host, reason: "the connection failed".to_owned() }
            }
            ureq::Error::Io(e) if e.kind() == std::io::ErrorKind::TimedOut => self.timeout(target),
            ureq::Error::Io(e) => HubError::NoNetwork { host, reason: e.to_string() },
            ureq::Error::Tls(_) | ureq::Error::Rustls(_) => HubError::Protocol {
                url,
                reason: format!("{e}; behind a proxy with its own certificates, set SSL_CERT_FILE"),
            },
            ureq::Error::TooManyRedirects => HubError::Protocol {
                url,
                reason: "more than 5 redirects; check HF_ENDPOINT".to_owned(),
            },
            e => HubError::Protocol { url, reason: e.to_string() },
        }
    }

    fn timeout(&self, target: &Target<'_>) -> HubError {
        let seconds = self.config.request_timeout.as_secs();
        HubError::Timeout { host: host_of(&target.url).to_owned(), seconds }
    }

    /// An answer that is not the file.
    fn refusal(&self, target: &Target<'_>, response: &Response<Body>) -> HubError {
        let reference = target.reference;
        let (repo, revision) = (reference.repo.clone(), reference.revision.clone());
        let code = text(response.headers(), "x-error-code");
        match (response.status().as_u16(), code) {
            (_, "GatedRepo") if self.config.token.is_some() => HubError::Forbidden { repo },
            (401, _) => HubError::Unauthorized { repo },
            (403, _) => HubError::Forbidden { repo },
            (404, "RepoNotFound") => HubError::RepoNotFound { repo },
            (404, "RevisionNotFound") => HubError::RevisionNotFound { repo, revision },
            (404, _) => match target.file {
                Some(file) => HubError::FileNotFound { repo, file: file.to_owned(), revision },
                // Not every server lists files; the caller tries well-known names next.
                None => HubError::Status { url: target.url.clone(), status: 404 },
            },
            (429, _) => HubError::RateLimited { host: host_of(&target.url).to_owned() },
            (status, _) => HubError::Status { url: target.url.clone(), status },
        }
    }

    fn retrying<T>(&self, request: impl Fn() -> Result<T, HubError>) -> Result<T, HubError> {
        let mut delay = self.config.retry_delay;
        for _ in 0..self.config.retries {
            match request() {
                Err(e) if e.is_transient() => thread::sleep(delay),
                other => return other,
            }
            delay = delay.saturating_mul(2);
        }
        request()
    }
}

fn certificates(path: &std::path::Path) -> Result<RootCerts, HubError> {
    let unreadable = |reason: String| HubError::Cache { path: path.to_owned(), reason };
    let pem = fs::read(path).map_err(|e| unreadable(e.to_string()))?;
    let found: Vec<_> = ureq::tls::parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if found.is_empty() {
        return Err(unreadable("it holds no PEM certificate; correct SSL_CERT_FILE".to_owned()));
    }
    Ok(RootCerts::Specific(Arc::new(found)))
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
}

/// One segment of a path, percent-encoded.
fn encode(segment: &str) -> String {
    let mut out = String::with_capacity(segment.len());
    for byte in segment.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
