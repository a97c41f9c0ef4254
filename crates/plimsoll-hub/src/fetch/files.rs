//! One repository at one commit: each file from the hub cache, the own cache or the network, in this order.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, ErrorKind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use plimsoll_formats::FormatError;
use plimsoll_formats::gguf::{self, GgufFile};
use plimsoll_formats::index::is_plain_path;
use plimsoll_formats::safetensors::{self, SafetensorsHeader};
use plimsoll_formats::torch_checkpoint::{self, Checkpoint};
use serde::Deserialize;

use super::Note;
use crate::cache::{Caches, read_capped};
use crate::fetched::FetchedFile;
use crate::http::{Client, Piece, Target};
use crate::reference::is_commit;
use crate::remote::RemoteFile;
use crate::{HubConfig, HubError, RepoRef};

/// Longest listing of a repository.
const MAX_LISTING: u64 = 64 << 20;
/// Name of a listing in the own cache; no file of a repository is called so.
const LISTING: &str = ".listing";
/// First range of a safetensors file. Most headers have some tens of kilobytes.
const SAFETENSORS_FIRST: u64 = 64 << 10;
/// First range of a GGUF file. A header holds the tokenizer: some megabytes.
const GGUF_FIRST: u64 = 2 << 20;
/// Longest header of a GGUF file.
const GGUF_MOST: u64 = 256 << 20;

pub(super) struct Session<'a> {
    client: &'a Client,
    config: &'a HubConfig,
    pub(super) reference: &'a RepoRef,
    caches: Caches,
    online: bool,
    /// The commit, where it is known.
    pub(super) commit: Option<String>,
    /// All files, sorted; `None` where the server lists none.
    pub(super) names: Option<Vec<String>>,
    pub(super) notes: Vec<Note>,
    /// What was fetched, by name.
    pub(super) files: Mutex<BTreeMap<String, FetchedFile>>,
}

/// The part of a listing that is used.
#[derive(Deserialize)]
struct Listing {
    sha: Option<String>,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

impl Listing {
    fn names(self) -> Vec<String> {
        let mut names: Vec<String> = self.siblings.into_iter().map(|s| s.rfilename).collect();
        names.retain(|name| is_plain_path(name));
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl<'a> Session<'a> {
    /// Finds the commit and the listing.
    pub(super) fn open(
        client: &'a Client,
        config: &'a HubConfig,
        reference: &'a RepoRef,
    ) -> Result<Session<'a>, HubError> {
        let caches = Caches::new(config, reference);
        let online = !config.offline;
        let mut session = Session {
            client,
            config,
            reference,
            caches,
            online,
            commit: None,
            names: None,
            notes: Vec::new(),
            files: Mutex::default(),
        };
        // A commit never changes, so a listing of one that is at hand is the listing.
        if is_commit(&reference.revision) && session.use_cached(&reference.revision, false) {
            return Ok(session);
        }
        if !online {
            let known = session.caches.commit(&reference.revision);
            if known.is_some_and(|commit| session.use_cached(&commit, true)) {
                return Ok(session);
            }
            let what = format!("revision {}", reference.revision);
            return Err(session.offline(&what));
        }
        let url = client.listing_url(&reference.repo, &reference.revision);
        let target = Target { reference, file: None, url };
        match client.whole(&target, MAX_LISTING) {
            Ok(bytes) => session.use_listing(&target, &bytes)?,
            Err(HubError::Status { status: 404 | 405 | 501, .. }) => {}
            Err(e) if e.is_network() => {
                let known = session.caches.commit(&reference.revision);
                match known.filter(|commit| session.use_cached(commit, true)) {
                    Some(commit) => {
                        session.online = false;
                        session.notes.push(Note::FromCache { commit, reason: e.to_string() });
                    }
                    None => return Err(e),
                }
            }
            Err(e) => return Err(e),
        }
        Ok(session)
    }

    fn use_listing(&mut self, target: &Target<'_>, bytes: &[u8]) -> Result<(), HubError> {
        let listing: Listing = serde_json::from_slice(bytes).map_err(|e| HubError::Protocol {
            url: target.url.clone(),
            reason: format!("the listing is not JSON as a hub sends it ({e}); check HF_ENDPOINT"),
        })?;
        self.commit = listing.sha.clone().filter(|sha| is_commit(sha));
        if let Some(commit) = &self.commit {
            self.caches.remember_commit(&self.reference.revision, commit);
            self.caches.keep_whole(commit, LISTING, bytes);
        }
        self.names = Some(listing.names());
        Ok(())
    }

    /// Takes the listing of a commit from a cache; with `partial`, also that of an incomplete snapshot.
    fn use_cached(&mut self, commit: &str, partial: bool) -> bool {
        let own = self.caches.whole(commit, LISTING);
        let own = own.and_then(|bytes| serde_json::from_slice::<Listing>(&bytes).ok());
        let names = match own {
            Some(listing) => Some(listing.names()),
            None if partial => self.caches.hub_listing(commit),
            None => None,
        };
        let found = names.is_some();
        if found {
            (self.names, self.commit) = (names, Some(commit.to_owned()));
        }
        found
    }

    fn offline(&self, what: &str) -> HubError {
        HubError::Offline {
            repo: self.reference.repo.clone(),
            what: what.to_owned(),
            places: self.caches.places(),
        }
    }

    pub(super) fn no_file(&self, file: &str) -> HubError {
        HubError::FileNotFound {
            repo: self.reference.repo.clone(),
            file: file.to_owned(),
            revision: self.reference.revision.clone(),
        }
    }

    pub(super) fn format(&self, file: &str, source: FormatError) -> HubError {
        HubError::Format {
            repo: self.reference.repo.clone(),
            file: file.to_owned(),
            source: Box::new(source),
        }
    }

    /// Where a file is on the hub: at the commit, so that all files of one model belong together.
    fn target<'f>(&'f self, file: &'f str) -> Result<Target<'f>, HubError> {
        if !self.online {
            return Err(self.offline(file));
        }
        let revision = self.commit.as_deref().unwrap_or(&self.reference.revision);
        let url = self.client.file_url(&self.reference.repo, revision, file);
        Ok(Target { reference: self.reference, file: Some(file), url })
    }

    /// A whole file of at most `limit` bytes.
    pub(super) fn whole(&self, file: &str, limit: u64) -> Result<Vec<u8>, HubError> {
        if let Some(commit) = &self.commit {
            if let Some(path) = self.caches.hub_file(commit, file) {
                self.keep(file, FetchedFile::Local(path.clone()));
                return read_capped(&path, limit)
                    .map_err(|e| HubError::Cache { path, reason: e.to_string() });
            }
            let cached = self.caches.whole(commit, file);
            if let Some(bytes) = cached.filter(|bytes| bytes.len() as u64 <= limit) {
                self.keep(file, FetchedFile::head(bytes.clone(), None));
                return Ok(bytes);
            }
        }
        let bytes = self.client.whole(&self.target(file)?, limit)?;
        if let Some(commit) = &self.commit {
            self.caches.keep_whole(commit, file, &bytes);
        }
        self.keep(file, FetchedFile::head(bytes.clone(), None));
        Ok(bytes)
    }

    fn keep(&self, file: &str, fetched: FetchedFile) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.insert(file.to_owned(), fetched);
    }

    /// Whether a small file is there.
    pub(super) fn exists(&self, file: &str, limit: u64) -> Result<bool, HubError> {
        found(self.whole(file, limit))
    }

    /// Whether a large file is there.
    pub(super) fn begins(&self, file: &str) -> Result<bool, HubError> {
        found(self.target(file).and_then(|target| self.client.range(&target, 0, 8)))
    }

    /// The header of a safetensors file.
    pub(super) fn safetensors(&self, file: &str) -> Result<SafetensorsHeader, HubError> {
        if let Some(reader) = self.local(file)? {
            return safetensors::read(reader).map_err(|source| self.format(file, source));
        }
        let most = safetensors::PREFIX_LEN + safetensors::MAX_HEADER_LEN;
        self.head(file, SAFETENSORS_FIRST, most, |bytes, file_len| {
            let header = safetensors::parse_prefix(bytes, file_len)?;
            Ok((header.data_offset, header))
        })
    }

    /// The header of a GGUF file.
    pub(super) fn gguf(&self, file: &str) -> Result<GgufFile, HubError> {
        if let Some(reader) = self.local(file)? {
            return gguf::read(reader).map_err(|source| self.format(file, source));
        }
        self.head(file, GGUF_FIRST, GGUF_MOST, |bytes, file_len| {
            let header = gguf::read_prefix(bytes, file_len)?;
            Ok((header.data_offset, header))
        })
    }

    /// The tensors of a torch checkpoint.
    pub(super) fn torch(&self, file: &str) -> Result<Checkpoint, HubError> {
        if let Some(reader) = self.local(file)? {
            return torch_checkpoint::read(reader).map_err(|source| self.format(file, source));
        }
        let target = self.target(file)?;
        let mut remote = RemoteFile::open(self.client, &target)?;
        match torch_checkpoint::read(&mut remote) {
            Ok(checkpoint) => {
                self.keep(file, remote.into_fetched());
                Ok(checkpoint)
            }
            Err(source) => Err(remote.failure.take().unwrap_or(self.format(file, source))),
        }
    }

    /// The file in the hub cache, opened.
    fn local(&self, file: &str) -> Result<Option<BufReader<File>>, HubError> {
        let path = self.commit.as_ref().and_then(|commit| self.caches.hub_file(commit, file));
        let Some(path) = path else { return Ok(None) };
        self.keep(file, FetchedFile::Local(path.clone()));
        open(&path).map(|file| file.map(BufReader::new))
    }

    /// The header of a file, from the own cache or by ranges that grow until `parse` has enough. `parse` answers
    /// how many bytes the header has.
    fn head<T>(
        &self,
        file: &str,
        first: u64,
        most: u64,
        parse: impl Fn(&[u8], Option<u64>) -> Result<(u64, T), FormatError>,
    ) -> Result<T, HubError> {
        if let Some(commit) = &self.commit
            && let Some(piece) = self.caches.head(commit, file)
            && let Ok((_, header)) = parse(&piece.bytes, piece.file_len)
        {
            self.keep(file, FetchedFile::head(piece.bytes, piece.file_len));
            return Ok(header);
        }
        let target = self.target(file)?;
        let Piece { mut bytes, file_len } = self.client.range(&target, 0, first)?;
        loop {
            let have = bytes.len() as u64;
            let end = match parse(&bytes, file_len) {
                Ok((length, header)) => {
                    bytes.truncate(usize::try_from(length).unwrap_or(usize::MAX));
                    if let (Some(commit), Some(file_len)) = (&self.commit, file_len) {
                        self.caches.keep_head(commit, file, &bytes, file_len);
                    }
                    self.keep(file, FetchedFile::head(bytes, file_len));
                    return Ok(header);
                }
                Err(FormatError::Truncated { end, .. })
                    if have < most && file_len.is_none_or(|file_len| have < file_len) =>
                {
                    end
                }
                Err(source) => return Err(self.format(file, source)),
            };
            // What is missing for certain, and at least as much again as there is.
            let end = end.max(have.saturating_mul(2)).min(most).min(file_len.unwrap_or(most));
            let piece = self.client.range(&target, have, end - have)?;
            if piece.bytes.is_empty() {
                let (got, expected) = (have, end);
                return Err(HubError::Truncated { url: target.url.clone(), got, expected });
            }
            bytes.extend_from_slice(&piece.bytes);
        }
    }

    /// Applies `read` to all files, some at a time. The results keep the order; of several errors the first
    /// file's is returned among those that occurred.
    pub(super) fn all<T: Send>(
        &self,
        files: &[String],
        read: impl Fn(&str) -> Result<T, HubError> + Sync,
    ) -> Result<Vec<(String, T)>, HubError> {
        let next = AtomicUsize::new(0);
        let failed = AtomicBool::new(false);
        let done = Mutex::new(Vec::with_capacity(files.len()));
        thread::scope(|scope| {
            for _ in 0..self.config.parallel.clamp(1, 32).min(files.len()) {
                scope.spawn(|| {
                    while !failed.load(Ordering::Relaxed) {
                        let n = next.fetch_add(1, Ordering::Relaxed);
                        let Some(file) = files.get(n) else { break };
                        let result = read(file);
                        failed.fetch_or(result.is_err(), Ordering::Relaxed);
                        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                        done.push((n, result.map(|header| (file.clone(), header))));
                    }
                });
            }
        });
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_by_key(|(n, _)| *n);
        done.into_iter().map(|(_, result)| result).collect()
    }
}

fn open(path: &Path) -> Result<Option<File>, HubError> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(HubError::Cache { path: path.to_owned(), reason: e.to_string() }),
    }
}

fn found<T>(result: Result<T, HubError>) -> Result<bool, HubError> {
    match result {
        Ok(_) => Ok(true),
        Err(HubError::FileNotFound { .. }) => Ok(false),
        Err(e) => Err(e),
    }
}
