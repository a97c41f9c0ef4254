//! What a file is, judged by its first bytes and not by its name.

/// How many bytes of a file [`file_kind`] looks at.
pub const SNIFF_LEN: usize = 64;

/// A kind of file that this crate reads, or one that is often taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileKind {
    /// GGUF: read it with [`crate::gguf`].
    Gguf,
    /// A model file of the years before GGUF.
    GgmlLegacy,
    /// safetensors: read it with [`crate::safetensors`].
    Safetensors,
    /// A zip archive, as `torch.save` writes: read it with [`crate::torch_checkpoint`].
    Zip,
    /// A bare pickle, as `torch.save` wrote before version 1.6: read it with [`crate::torch_checkpoint`].
    Pickle,
    /// A JSON object.
    Json,
    /// The placeholder that Git LFS leaves when the file itself was not pulled.
    GitLfsPointer,
    /// A web page.
    Html,
    /// No bytes at all.
    Empty,
}

/// What the first [`SNIFF_LEN`] bytes of a file (or all, where it is shorter) say; `None` where they say nothing.
pub fn file_kind(first: &[u8]) -> Option<FileKind> {
    let text = first.trim_ascii_start();
    let after = |n: usize| first.get(n).copied();
    match first {
        [] => Some(FileKind::Empty),
        [b'G', b'G', b'U', b'F', ..] => Some(FileKind::Gguf),
        // Stored as a little-endian word, so the letters come reversed.
        [b'l' | b'f' | b't' | b'a', b'm' | b'j', b'g', b'g', ..] => Some(FileKind::GgmlLegacy),
        [b'P', b'K', 3 | 5, 4 | 6, ..] => Some(FileKind::Zip),
        [0x80, 0..=5, ..] => Some(FileKind::Pickle),
        _ if first.starts_with(b"version https://git-lfs") => Some(FileKind::GitLfsPointer),
        // A header length below 2^40, then the brace that begins the header.
        _ if after(8) == Some(b'{') && first.get(5..8) == Some(&[0, 0, 0]) => {
            Some(FileKind::Safetensors)
        }
        _ if text.starts_with(b"{") => Some(FileKind::Json),
        _ if text.starts_with(b"<") => Some(FileKind::Html),
        _ => None,
    }
}

/// What to tell someone whose file is not of the format it was read as.
pub(crate) fn hint(first: &[u8]) -> &'static str {
    match file_kind(first) {
        Some(FileKind::Gguf) => "it is a GGUF file; name it .gguf",
        Some(FileKind::GgmlLegacy) => {
            "it is a ggml file from before GGUF; convert it with llama.cpp's convert_llama_ggml_to_gguf.py"
        }
        Some(FileKind::Safetensors) => "it is a safetensors file; name it .safetensors",
        Some(FileKind::Zip) => "it is a zip archive; a torch checkpoint is named .pt, .pth or .bin",
        Some(FileKind::Pickle) => "it is a pickle; a torch checkpoint is named .pt, .pth or .bin",
        Some(FileKind::Json) => "it is JSON; a configuration is named config.json",
        Some(FileKind::GitLfsPointer) => {
            "it is a Git LFS pointer, not the file; run `git lfs pull` in its folder"
        }
        Some(FileKind::Html) => "it is a web page; fetch the raw file instead",
        Some(FileKind::Empty) => "fetch it again",
        None => "check the path, or fetch the file again",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_files_by_their_first_bytes() {
        for (first, kind) in [
            (&b"GGUF\x03\0\0\0"[..], Some(FileKind::Gguf)),
            (b"lmgg\0\0\0\0", Some(FileKind::GgmlLegacy)),
            (b"tjgg\x03\0\0\0", Some(FileKind::GgmlLegacy)),
            (b"\x40\0\0\0\0\0\0\0{\"a\"", Some(FileKind::Safetensors)),
            (b"PK\x03\x04", Some(FileKind::Zip)),
            (b"\x80\x02\x8a\x0a", Some(FileKind::Pickle)),
            (b" {\"a\"", Some(FileKind::Json)),
            (b"version https://git-lfs.github.com/spec/v1", Some(FileKind::GitLfsPointer)),
            (b"<!doctype html>", Some(FileKind::Html)),
            (b"", Some(FileKind::Empty)),
            (b"\0\0\0\0\0\0\0\0", None),
        ] {
            assert_eq!(file_kind(first), kind, "{}", first.escape_ascii());
        }
    }
}
