//! Two caches on disk. The hub cache of the Hugging Face libraries is read and never written:
//! `models--ORG--NAME/refs/REVISION` holds a commit, `snapshots/COMMIT/FILE` the files. The own cache holds what
//! this crate fetched, by commit, so that nothing in it ever goes stale: whole small files, the first bytes of
//! large ones, and listings. Files are written beside their place and renamed, so that no reader sees half of
//! one; a file that cannot be written is not cached, and a damaged one is fetched again.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::http::Piece;
use crate::reference::is_commit;
use crate::{HubConfig, RepoRef, config};

/// Longest file that is read from the own cache.
const MAX_CACHED: u64 = 512 << 20;

/// The caches of one repository.
pub(crate) struct Caches {
    /// `models--ORG--NAME` in the hub cache.
    hub: Option<PathBuf>,
    /// The same in the own cache, under the endpoint's name.
    own: Option<PathBuf>,
}

impl Caches {
    pub(crate) fn new(config: &HubConfig, reference: &RepoRef) -> Caches {
        let folder = format!("models--{}", reference.repo.replace('/', "--"));
        let host = config::host_of(&config.endpoint)
            .replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "_");
        Caches {
            hub: config.hub_cache.as_ref().map(|root| root.join(&folder)),
            own: config.own_cache.as_ref().map(|root| root.join("hub").join(host).join(&folder)),
        }
    }

    /// Where they are, for messages.
    pub(crate) fn places(&self) -> String {
        let places: Vec<_> =
            self.hub.iter().chain(&self.own).map(|path| path.display().to_string()).collect();
        if places.is_empty() { "no cache folder".to_owned() } else { places.join(" and ") }
    }

    /// The commit that a revision was last known to be, in either cache.
    pub(crate) fn commit(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let reference = |root: &Path, name: &str| {
            let text = read_capped(&root.join("refs").join(name), 64).ok()?;
            let text = String::from_utf8(text).ok()?;
            Some(text.trim().to_owned()).filter(|commit| is_commit(commit))
        };
        let hub = self.hub.as_ref().and_then(|root| reference(root, revision));
        hub.or_else(|| self.own.as_ref().and_then(|root| reference(root, &flat(revision))))
    }

    /// Remembers what a revision is now.
    pub(crate) fn remember_commit(&self, revision: &str, commit: &str) {
        if let Some(root) = &self.own
            && !is_commit(revision)
        {
            write(&root.join("refs").join(flat(revision)), &[commit.as_bytes()]);
        }
    }

    /// The file in the hub cache.
    pub(crate) fn hub_file(&self, commit: &str, file: &str) -> Option<PathBuf> {
        let path = self.hub.as_ref()?.join("snapshots").join(commit).join(file);
        path.is_file().then_some(path)
    }

    /// The names of the files at the top of a snapshot in the hub cache, sorted. The snapshot may be partial.
    pub(crate) fn hub_listing(&self, commit: &str) -> Option<Vec<String>> {
        let folder = self.hub.as_ref()?.join("snapshots").join(commit);
        let entries = fs::read_dir(folder).ok()?;
        let mut names: Vec<String> = entries
            .take(100_000)
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        Some(names)
    }

    fn own_path(&self, commit: &str, file: &str, kind: &str) -> Option<PathBuf> {
        Some(self.own.as_ref()?.join(commit).join(format!("{}.{kind}", flat(file))))
    }

    /// A whole file from the own cache.
    pub(crate) fn whole(&self, commit: &str, file: &str) -> Option<Vec<u8>> {
        read_capped(&self.own_path(commit, file, "whole")?, MAX_CACHED).ok()
    }

    /// Keeps a whole file.
    pub(crate) fn keep_whole(&self, commit: &str, file: &str, bytes: &[u8]) {
        if let Some(path) = self.own_path(commit, file, "whole") {
            write(&path, &[bytes]);
        }
    }

    /// The first bytes of a file from the own cache.
    pub(crate) fn head(&self, commit: &str, file: &str) -> Option<Piece> {
        let mut bytes = read_capped(&self.own_path(commit, file, "head")?, MAX_CACHED).ok()?;
        let file_len = u64::from_le_bytes(*bytes.first_chunk()?);
        bytes.drain(..8);
        (bytes.len() as u64 <= file_len).then_some(Piece { bytes, file_len: Some(file_len) })
    }

    /// Keeps the first bytes of a file, behind the length of the whole.
    pub(crate) fn keep_head(&self, commit: &str, file: &str, bytes: &[u8], file_len: u64) {
        if let Some(path) = self.own_path(commit, file, "head") {
            write(&path, &[&file_len.to_le_bytes(), bytes]);
        }
    }
}

/// A path as one file name. Names with `%` are refused long before.
fn flat(name: &str) -> String {
    name.replace('/', "%2F")
}

/// Reads a file of at most `limit` bytes.
pub(crate) fn read_capped(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::other(format!("more than {limit} bytes")));
    }
    Ok(bytes)
}

/// Writes beside the place, then renames. A failure leaves the cache as it was.
fn write(path: &Path, parts: &[&[u8]]) {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let Some(folder) = path.parent() else { return };
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    let beside = folder.join(format!(".{}-{number}.tmp", std::process::id()));
    let written = fs::create_dir_all(folder).and_then(|()| {
        let mut file = File::create(&beside)?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        fs::rename(&beside, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
}
