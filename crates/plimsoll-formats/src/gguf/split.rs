//! Names of split files: `model-00001-of-00003.gguf`.

/// Most parts that a name may promise; published files have a few dozen.
pub const MAX_PARTS: u32 = 4096;

/// A name with a part number in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitName {
    /// What stands in front of the number, path included.
    pub stem: String,
    /// This part, from 1.
    pub part: u32,
    /// How many there are.
    pub parts: u32,
    extension: String,
}

impl SplitName {
    /// Reads `STEM-00001-of-00003.gguf`. `None` for any other name, and where the number is not among the parts.
    ///
    /// ```
    /// use plimsoll_formats::gguf::SplitName;
    /// let name = SplitName::parse("dir/m-00002-of-00003.gguf").unwrap();
    /// assert_eq!((name.part, name.parts), (2, 3));
    /// assert_eq!(name.siblings()[2], "dir/m-00003-of-00003.gguf");
    /// assert_eq!(SplitName::parse("m.gguf"), None);
    /// ```
    pub fn parse(name: &str) -> Option<SplitName> {
        SplitName::parse_any(name).filter(|split| split.extension == "gguf")
    }

    /// The same for any extension, as sharded safetensors are named.
    pub(crate) fn parse_any(name: &str) -> Option<SplitName> {
        let (rest, extension) = name.rsplit_once('.')?;
        let (rest, parts) = rest.rsplit_once("-of-")?;
        let (stem, part) = rest.rsplit_once('-')?;
        let number = |text: &str| {
            let digits = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| text.parse::<u32>().ok()).flatten()
        };
        let (part, parts) = (number(part)?, number(parts)?);
        let extension = extension.to_owned();
        let valid = parts <= MAX_PARTS && (1..=parts).contains(&part);
        valid.then(|| SplitName { stem: stem.to_owned(), part, parts, extension })
    }

    /// The name of another part, from 1.
    pub fn sibling(&self, part: u32) -> String {
        format!("{}-{part:05}-of-{:05}.{}", self.stem, self.parts, self.extension)
    }

    /// The names of all parts, in order; at most [`MAX_PARTS`].
    pub fn siblings(&self) -> Vec<String> {
        (1..=self.parts).map(|part| self.sibling(part)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_five_digits_within_range_count() {
        for name in [
            "m-00000-of-00003.gguf",
            "m-00004-of-00003.gguf",
            "m-1-of-3.gguf",
            "m-00001-of-99999.gguf",
            "m-00001-of-00003",
            "m-00001-of-00003.bin",
            "m-+0001-of-00003.gguf",
            "-of-.gguf",
            "",
        ] {
            assert_eq!(SplitName::parse(name), None, "{name}");
        }
        let name = SplitName::parse("a-00001-of-00002-00003-of-00003.gguf").unwrap();
        assert_eq!(name.sibling(1), "a-00001-of-00002-00001-of-00003.gguf");
    }
}
