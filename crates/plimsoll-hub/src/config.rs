//! Where the hub is, who asks, and where caches lie.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A secret for the hub. It never prints.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token; surrounding white space is dropped. `None` where nothing printable is left, or where it holds
    /// what no header can.
    pub fn new(text: &str) -> Option<Token> {
        let text = text.trim();
        let fits =
            !text.is_empty() && text.len() <= 4096 && text.bytes().all(|b| b.is_ascii_graphic());
        fits.then(|| Token(text.to_owned()))
    }

    pub(crate) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Settings of a [`crate::Hub`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubConfig {
    /// The hub's address, without a slash at the end.
    pub endpoint: String,
    /// Sent to the hub itself, never to the servers it redirects to.
    pub token: Option<Token>,
    /// Whether to use caches alone.
    pub offline: bool,
    /// The cache of the Hugging Face libraries, read and never written.
    pub hub_cache: Option<PathBuf>,
    /// The cache of this crate: configurations and headers by commit.
    pub own_cache: Option<PathBuf>,
    /// A proxy, such as `http://proxy:3128`.
    pub proxy: Option<String>,
    /// A file of PEM certificates to trust instead of the built-in ones.
    pub certificates: Option<PathBuf>,
    /// Limit for a connection.
    pub connect_timeout: Duration,
    /// Limit for one request, from its start to the end of its answer.
    pub request_timeout: Duration,
    /// How often a request that failed for a passing reason is made again.
    pub retries: u32,
    /// The wait before the first of these; it doubles with each.
    pub retry_delay: Duration,
    /// Requests at a time.
    pub parallel: usize,
}

impl Default for HubConfig {
    /// The public hub, no token, no caches.
    fn default() -> Self {
        HubConfig {
            endpoint: "https://huggingface.co".to_owned(),
            token: None,
            offline: false,
            hub_cache: None,
            own_cache: None,
            proxy: None,
            certificates: None,
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(60),
            retries: 2,
            retry_delay: Duration::from_millis(300),
            parallel: 8,
        }
    }
}

impl HubConfig {
    /// Settings from the variables that the Hugging Face libraries use: `HF_ENDPOINT`, `HF_TOKEN` (or the file
    /// `HF_TOKEN_PATH`, else `HF_HOME/token`), `HF_HUB_OFFLINE`, `HF_HUB_CACHE`, `HF_HOME`; from `HTTPS_PROXY`,
    /// `ALL_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`; and `PLIMSOLL_CACHE` for the own cache. `lookup` gives the value of a
    /// variable; an empty one counts as unset. The token's file is read here.
    ///
    /// ```
    /// use plimsoll_hub::HubConfig;
    /// let config = HubConfig::from_lookup(|name| match name {
    ///     "HF_ENDPOINT" => Some("http://mirror.local/".to_owned()),
    ///     "HF_HUB_OFFLINE" => Some("1".to_owned()),
    ///     "HOME" => Some("/home/ada".to_owned()),
    ///     _ => None,
    /// });
    /// assert_eq!(config.endpoint, "http://mirror.local");
    /// assert!(config.offline);
    /// assert_eq!(config.hub_cache.unwrap(), std::path::Path::new("/home/ada/.cache/huggingface/hub"));
    /// ```
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> HubConfig {
        let get = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        let path = |name: &str| get(name).map(PathBuf::from);
        let flag = |name: &str| {
            let value = get(name).map(|v| v.trim().to_ascii_uppercase());
            value.is_some_and(|v| matches!(&*v, "1" | "ON" | "YES" | "TRUE"))
        };
        let home = path("HOME").or_else(|| path("USERPROFILE"));
        let caches = path("XDG_CACHE_HOME").or_else(|| home.map(|home| home.join(".cache")));
        let hf_home = path("HF_HOME").or_else(|| caches.as_ref().map(|c| c.join("huggingface")));
        let hub_cache = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| hf_home.as_ref().map(|home| home.join("hub")));
        let token_file =
            path("HF_TOKEN_PATH").or_else(|| hf_home.as_ref().map(|home| home.join("token")));
        let token = get("HF_TOKEN")
            .or_else(|| get("HUGGING_FACE_HUB_TOKEN"))
            .and_then(|text| Token::new(&text))
            .or_else(|| {
                if flag("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
                    None
                } else {
                    read_token(token_file.as_deref()?)
                }
            });
        let defaults = HubConfig::default();
        let endpoint = get("HF_ENDPOINT").unwrap_or(defaults.endpoint.clone());
        let endpoint = endpoint.trim().trim_end_matches('/').to_owned();
        let proxy = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"]
            .iter()
            .find_map(|name| get(name))
            .filter(|_| {
                let list = get("NO_PROXY").or_else(|| get("no_proxy")).unwrap_or_default();
                !is_exempt(host_of(&endpoint), &list)
            });
        HubConfig {
            endpoint,
            token,
            offline: flag("HF_HUB_OFFLINE") || flag("TRANSFORMERS_OFFLINE"),
            hub_cache,
            own_cache: path("PLIMSOLL_CACHE").or_else(|| caches.map(|c| c.join("plimsoll"))),
            proxy,
            certificates: path("SSL_CERT_FILE").or_else(|| path("REQUESTS_CA_BUNDLE")),
            ..defaults
        }
    }
}

/// Host and port of an address.
pub(crate) fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    host.rsplit_once('@').map_or(host, |(_, host)| host)
}

/// Whether `NO_PROXY` exempts a host: `*`, the host itself, or a domain above it.
fn is_exempt(host: &str, list: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    list.split(',').map(|entry| entry.trim().trim_start_matches("*.").trim_start_matches('.')).any(
        |entry| {
            let above = name.strip_suffix(entry).is_some_and(|rest| rest.ends_with('.'));
            !entry.is_empty() && (entry == "*" || entry == name || entry == host || above)
        },
    )
}

fn read_token(path: &Path) -> Option<Token> {
    let mut text = String::new();
    File::open(path).ok()?.take(4096).read_to_string(&mut text).ok()?;
    Token::new(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_never_prints() {
        let config = HubConfig { token: Token::new(" hf_secret\n"), ..HubConfig::default() };
        assert!(!format!("{config:?}").contains("secret"));
        assert_eq!(config.token.unwrap().secret(), "hf_secret");
        assert_eq!(Token::new("a\nb"), None);
        assert_eq!(Token::new(" "), None);
    }

    #[test]
    fn proxies_are_left_out_where_told() {
        for (list, exempt) in [
            ("", false),
            ("*", true),
            ("hub.local", true),
            (".local", true),
            ("*.local", true),
            ("ocal", false),
            ("other, hub.local:80", true),
        ] {
            assert_eq!(is_exempt("hub.local:80", list), exempt, "{list}");
        }
        assert_eq!(host_of("http://user@hub.local:80/x?y"), "hub.local:80");
    }

    #[test]
    fn empty_variables_count_as_unset() {
        let config = HubConfig::from_lookup(|_| Some(String::new()));
        assert_eq!(config, HubConfig::default());
    }
}
