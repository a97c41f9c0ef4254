//! `hf:org/name[@revision][:FILE]`.

use std::fmt;
use std::str::FromStr;

use plimsoll_formats::index::is_plain_path;

use crate::HubError;

/// A repository on a hub, at a revision, and perhaps a file in it.
///
/// ```
/// use plimsoll_hub::RepoRef;
/// let reference: RepoRef = "hf:org/model-GGUF@main:Q4_K_M".parse()?;
/// assert_eq!(reference.repo, "org/model-GGUF");
/// assert_eq!(reference.revision, "main");
/// assert_eq!(reference.file.as_deref(), Some("Q4_K_M"));
/// assert_eq!("hf:gpt2".parse::<RepoRef>()?.to_string(), "hf:gpt2");
/// # Ok::<(), plimsoll_hub::HubError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RepoRef {
    /// `org/name`, or the bare name of the hub's oldest models.
    pub repo: String,
    /// A branch, tag or commit; `main` where none was given.
    pub revision: String,
    /// A file of the repository, or a part of a GGUF file's name that tells it from the others, such as
    /// `Q4_K_M`.
    pub file: Option<String>,
}

impl FromStr for RepoRef {
    type Err = HubError;

    /// Reads the text with or without `hf:` in front.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = |reason| HubError::Reference { text: text.escape_debug().to_string(), reason };
        let rest = text.strip_prefix("hf:").unwrap_or(text);
        let (rest, file) = match rest.split_once(':') {
            Some((rest, file)) => (rest, Some(file)),
            None => (rest, None),
        };
        let (repo, revision) = match rest.split_once('@') {
            Some((repo, revision)) => (repo, revision),
            None => (rest, "main"),
        };
        let parts: Vec<&str> = repo.split('/').collect();
        if parts.len() > 2 {
            return Err(fail("a repository is org/name, with one slash"));
        }
        if !parts.iter().all(|part| is_repo_part(part)) {
            return Err(fail(
                "organisation and name have 1 to 96 letters, digits, `.`, `_` or `-`, and neither begin nor end \
                 with `.` or `-`",
            ));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-/+".contains(c);
        if !is_plain_path(revision) || revision.len() > 255 || !revision.chars().all(plain) {
            return Err(fail("the revision is no branch, tag or commit"));
        }
        if file.is_some_and(|file| !is_plain_path(file)) {
            return Err(fail("the file is no path within the repository"));
        }
        Ok(RepoRef {
            repo: repo.to_owned(),
            revision: revision.to_owned(),
            file: file.map(str::to_owned),
        })
    }
}

impl fmt::Display for RepoRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}", self.repo)?;
        if self.revision != "main" {
            write!(f, "@{}", self.revision)?;
        }
        match &self.file {
            Some(file) => write!(f, ":{file}"),
            None => Ok(()),
        }
    }
}

fn is_repo_part(part: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let edge = |c: char| c == '.' || c == '-';
    (1..=96).contains(&part.len())
        && part.chars().all(plain)
        && !part.starts_with(edge)
        && !part.ends_with(edge)
        && !part.contains("..")
        && !part.contains("--")
}

/// Whether a revision is a full commit, which never changes its meaning.
pub(crate) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, repo, revision, file) in [
            ("hf:org/name", "org/name", "main", None),
            ("org/name", "org/name", "main", None),
            ("hf:gpt2@v1.0", "gpt2", "v1.0", None),
            ("hf:o/n@refs/pr/1", "o/n", "refs/pr/1", None),
            ("hf:o/n:sub/m.gguf", "o/n", "main", Some("sub/m.gguf")),
        ] {
            let reference: RepoRef = text.parse().unwrap();
            let found = (&*reference.repo, &*reference.revision, reference.file.as_deref());
            assert_eq!(found, (repo, revision, file), "{text}");
            assert_eq!(reference.to_string().parse::<RepoRef>().unwrap(), reference);
        }
    }

    #[test]
    fn refuses_what_could_leave_the_hub_or_the_cache() {
        for text in [
            "",
            "hf:",
            "hf:/x",
            "hf:a/b/c",
            "hf:../x",
            "hf:a/..",
            "hf:a/b@../c",
            "hf:a/b@",
            "hf:a/b@x y",
            "hf:a/b:",
            "hf:a/b:../x",
            "hf:a/b:/x",
            "hf:a b/c",
            "hf:a/b?x",
            "hf:a/b%2f",
            "hf:a\u{1b}/b",
            "hf:a--b/c",
        ] {
            let error = text.parse::<RepoRef>().unwrap_err().to_string();
            assert!(error.contains("write hf:org/name") && !error.contains('\u{1b}'), "{error}");
        }
    }
}
