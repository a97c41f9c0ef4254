//! Inputs that are not text: what one image, point cloud, token matrix, grid or frame buffer occupies on a device,
//! and what a batch of them does. Sizes are of the data alone: a framework rounds each allocation up (PyTorch to
//! 512 bytes), and drivers may pad the rows of a frame; neither is counted here.

use std::fmt;
use std::str::FromStr;

use plimsoll_units::{Bytes, DType};
use serde::Serialize;

use crate::gpus::clip;

/// What the data is; decides which dimensions are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum InputKind {
    /// Width x height x channels.
    Image,
    /// Points x features.
    Points,
    /// Token ids, or tokens x width of the embedding.
    Tokens,
    /// Any array.
    Grid,
    /// Width x height in a pixel format, in one or more buffers.
    Frame,
}

impl InputKind {
    const ALL: [InputKind; 5] =
        [InputKind::Image, InputKind::Points, InputKind::Tokens, InputKind::Grid, InputKind::Frame];

    /// The word before the colon.
    pub const fn name(self) -> &'static str {
        match self {
            InputKind::Image => "image",
            InputKind::Points => "points",
            InputKind::Tokens => "tokens",
            InputKind::Grid => "grid",
            InputKind::Frame => "frame",
        }
    }

    /// The names of the dimensions, for terms and messages.
    const fn dimensions(self) -> &'static str {
        match self {
            InputKind::Image => {
                "WIDTHxHEIGHTxCHANNELS (or WIDTHxHEIGHT and a pixel format), such as image:3840x2160x3:f32"
            }
            InputKind::Points => "POINTSxFEATURES, such as points:1000000x128",
            InputKind::Tokens => "TOKENS or TOKENSxWIDTH, such as tokens:100000x1024:f16",
            InputKind::Grid => "1 to 8 sizes, such as grid:1024x1024x1024x5:f64",
            InputKind::Frame => {
                "WIDTHxHEIGHT and a pixel format, such as frame:7680x4320:rgba16f*3"
            }
        }
    }

    fn accepts(self, dimensions: usize, pixels: bool) -> bool {
        match self {
            InputKind::Image => dimensions == if pixels { 2 } else { 3 },
            InputKind::Points => dimensions == 2,
            InputKind::Tokens => (1..=2).contains(&dimensions),
            InputKind::Grid => (1..=8).contains(&dimensions),
            InputKind::Frame => dimensions == 2,
        }
    }
}

/// How the pixels of a frame are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// So many bytes for every pixel.
    Linear(u64),
    /// So many bytes for every block of 4 x 4 pixels; the last block of a row or column is padded.
    Block(u64),
    /// Full-size luma and half-size interleaved chroma, so many bytes for every sample (4:2:0).
    Planar420(u64),
}

macro_rules! pixel_formats {
    ($($variant:ident, $name:literal, $layout:expr, [$($alias:literal),*], $doc:literal;)*) => {
        /// A pixel format of a graphics or video interface.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum PixelFormat { $(#[doc = $doc] $variant,)* }

        impl PixelFormat {
            /// Every format, in declaration order.
            pub const ALL: &'static [PixelFormat] = &[$(PixelFormat::$variant,)*];

            /// The name that inputs use.
            pub const fn name(self) -> &'static str {
                match self { $(PixelFormat::$variant => $name,)* }
            }

            const fn layout(self) -> Layout {
                match self { $(PixelFormat::$variant => $layout,)* }
            }

            const fn aliases(self) -> &'static [&'static str] {
                match self { $(PixelFormat::$variant => &[$($alias),*],)* }
            }
        }
    };
}

pixel_formats! {
    R8, "r8", Layout::Linear(1), ["r8unorm", "gray8"], "One 8-bit channel.";
    R16f, "r16f", Layout::Linear(2), ["r16float"], "One half-precision channel.";
    R32f, "r32f", Layout::Linear(4), ["r32float"], "One single-precision channel.";
    Rg16f, "rg16f", Layout::Linear(4), ["rg16float"], "Two half-precision channels.";
    Rg32f, "rg32f", Layout::Linear(8), ["rg32float"], "Two single-precision channels.";
    Rgb8, "rgb8", Layout::Linear(3), ["bgr8"], "Three packed 8-bit channels.";
    Rgba8, "rgba8", Layout::Linear(4), ["bgra8", "rgba8unorm", "bgra8unorm", "rgba8srgb"], "Four 8-bit channels.";
    Rgb10a2, "rgb10a2", Layout::Linear(4), ["rgb10a2unorm", "a2b10g10r10"], "Ten bits for each colour, two for alpha.";
    Rg11b10f, "rg11b10f", Layout::Linear(4), ["r11g11b10f"], "Three small floats in four bytes.";
    Rgba16f, "rgba16f", Layout::Linear(8), ["rgba16float"], "Four half-precision channels.";
    Rgba32f, "rgba32f", Layout::Linear(16), ["rgba32float"], "Four single-precision channels.";
    Depth16, "depth16", Layout::Linear(2), ["d16"], "16-bit depth.";
    Depth24s8, "depth24s8", Layout::Linear(4), ["d24s8"], "24-bit depth and 8-bit stencil.";
    Depth32f, "depth32f", Layout::Linear(4), ["d32f"], "Single-precision depth.";
    Bc1, "bc1", Layout::Block(8), ["dxt1"], "Block-compressed colour, half a byte a pixel.";
    Bc3, "bc3", Layout::Block(16), ["dxt5"], "Block-compressed colour and alpha, one byte a pixel.";
    Bc4, "bc4", Layout::Block(8), [], "Block-compressed single channel.";
    Bc5, "bc5", Layout::Block(16), [], "Block-compressed two channels.";
    Bc6h, "bc6h", Layout::Block(16), [], "Block-compressed high-range colour.";
    Bc7, "bc7", Layout::Block(16), [], "Block-compressed colour and alpha of high quality.";
    Nv12, "nv12", Layout::Planar420(1), ["yuv420p", "i420"], "8-bit 4:2:0 video, 1.5 bytes a pixel.";
    P010, "p010", Layout::Planar420(2), [], "10-bit 4:2:0 video in 16-bit samples, 3 bytes a pixel.";
}

impl PixelFormat {
    /// The format of a name, in any case.
    pub fn find(name: &str) -> Option<Self> {
        let wanted = name.trim().to_ascii_lowercase();
        Self::ALL
            .iter()
            .copied()
            .find(|format| format.name() == wanted || format.aliases().contains(&wanted.as_str()))
    }

    /// Bytes of one frame; `None` where they exceed 2^64 - 1.
    pub fn frame_bytes(self, width: u64, height: u64) -> Option<u64> {
        match self.layout() {
            Layout::Linear(bytes) => product(&[width, height, bytes]),
            Layout::Block(bytes) => product(&[width.div_ceil(4), height.div_ceil(4), bytes]),
            Layout::Planar420(bytes) => {
                let chroma = product(&[width.div_ceil(2), height.div_ceil(2), 2])?;
                product(&[width, height])?.checked_add(chroma)?.checked_mul(bytes)
            }
        }
    }
}

/// What one element is: a number, or a pixel in a format of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Element {
    /// A plain element type.
    Number(DType),
    /// A pixel.
    Pixel(PixelFormat),
}

/// The name that inputs use.
impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Element::Number(dtype) => dtype.name(),
            Element::Pixel(format) => format.name(),
        })
    }
}

impl Serialize for Element {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One sample of data. Every value of this type has a size that fits in 64 bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DataInput {
    /// What the data is.
    pub kind: InputKind,
    /// The sizes as they were written, none of them zero.
    pub shape: Vec<u64>,
    /// What one element is.
    pub element: Element,
    /// Buffers of a frame; 1 for everything else.
    pub buffers: u64,
    /// Bytes of one sample, all buffers together.
    pub sample_bytes: Bytes,
}

/// One number of the answer, with the way to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct InputTerm {
    /// What it is: `sample` or `batch`.
    pub name: &'static str,
    /// How the inputs give the bytes.
    pub formula: String,
    /// The inputs by name, in the order of the formula.
    pub inputs: Vec<(String, u64)>,
    /// The result.
    pub bytes: Bytes,
}

/// Why a text is not a data input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// No kind before a colon, or an unknown one.
    #[error(
        "`{text}` is not a kind of data; write image, points, tokens, grid or frame and a colon, such as image:3840x2160x3:f32"
    )]
    Kind {
        /// What stood there.
        text: String,
    },
    /// One size is not a number, or zero.
    #[error("size `{text}` of the {} is {reason}; write {}", .kind.name(), .kind.dimensions())]
    Size {
        /// What the data is.
        kind: InputKind,
        /// The size.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Too many or too few sizes.
    #[error("{found} sizes do not make {}; write {}", article(*.kind), .kind.dimensions())]
    Sizes {
        /// What the data is.
        kind: InputKind,
        /// How many there are.
        found: usize,
    },
    /// Neither an element type nor a pixel format that the kind accepts.
    #[error("`{text}` is not {}", accepted(*.kind))]
    Element {
        /// What the data is.
        kind: InputKind,
        /// What stood there.
        text: String,
    },
    /// The number of buffers is not a number from 1 up, or the data is no frame.
    #[error(
        "`{text}` is not a number of buffers; a frame may end in *3 or `x 3 buffers`, other data in nothing (use --batch)"
    )]
    Buffers {
        /// What stood there.
        text: String,
    },
    /// The size does not fit in 64 bits.
    #[error("{what} is larger than 16 EiB; check the sizes of `{text}`")]
    TooLarge {
        /// A sample, or the batch.
        what: &'static str,
        /// The data.
        text: String,
    },
    /// A batch of nothing.
    #[error("a batch of 0 samples holds nothing; write 1 or more")]
    EmptyBatch,
}

fn article(kind: InputKind) -> String {
    match kind {
        InputKind::Image => "an image".to_owned(),
        InputKind::Points | InputKind::Tokens => kind.name().to_owned(),
        _ => format!("a {}", kind.name()),
    }
}

fn accepted(kind: InputKind) -> String {
    const TYPES: &str =
        "an element type (f64, f32, bf16, f16, fp8, i64, i32, i16, i8, u8, bool, c64)";
    let formats: Vec<&str> = PixelFormat::ALL.iter().map(|format| format.name()).collect();
    match kind {
        InputKind::Frame => format!("a pixel format ({})", formats.join(", ")),
        InputKind::Image => format!("{TYPES} or a pixel format ({})", formats.join(", ")),
        _ => TYPES.to_owned(),
    }
}

impl FromStr for DataInput {
    type Err = InputError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_input(text)
    }
}

/// Reads `image:3840x2160x3:f32`, `points:1000000x128`, `tokens:100000x1024:f16`, `grid:64x64x64:f64`,
/// `frame:7680x4320:rgba16f*3` and `frame:7680x4320 rgba16f x 3 buffers`. The element type is f32 when absent, i64
/// for token ids.
///
/// ```
/// use plimsoll_catalog::inputs::parse_input;
/// let image = parse_input("image:3840x2160x3:f32").unwrap();
/// assert_eq!(image.sample_bytes.get(), 3840 * 2160 * 3 * 4);
/// assert_eq!(image.batch_bytes(8).unwrap().to_string(), "759.38 MiB");
/// ```
///
/// # Errors
/// [`InputError`], which names the part that is wrong and what is accepted.
pub fn parse_input(text: &str) -> Result<DataInput, InputError> {
    let (word, rest) = text.split_once(':').unwrap_or((text, ""));
    let wanted = word.trim().to_ascii_lowercase();
    let Some(kind) = InputKind::ALL.into_iter().find(|kind| kind.name() == wanted) else {
        return Err(InputError::Kind { text: clip(word.trim()) });
    };
    let (sizes, rest) = split_sizes(rest.trim());
    let (element, buffers) = split_buffers(kind, rest)?;
    let shape = parse_sizes(kind, sizes)?;
    let element = match (element, kind) {
        ("", InputKind::Tokens) if shape.len() == 1 => Element::Number(DType::I64),
        ("", InputKind::Image | InputKind::Points | InputKind::Tokens | InputKind::Grid) => {
            Element::Number(DType::F32)
        }
        _ => parse_element(kind, element)?,
    };
    if !kind.accepts(shape.len(), matches!(element, Element::Pixel(_))) {
        return Err(InputError::Sizes { kind, found: shape.len() });
    }
    let Some(bytes) = element_bytes(&shape, element).and_then(|bytes| bytes.checked_mul(buffers))
    else {
        return Err(InputError::TooLarge { what: "one sample", text: clip(text) });
    };
    Ok(DataInput { kind, shape, element, buffers, sample_bytes: Bytes::new(bytes) })
}

/// The sizes, and what follows them: after a colon, or from the first word that is not an x between sizes.
fn split_sizes(text: &str) -> (&str, &str) {
    let star = text.find('*').unwrap_or(text.len());
    if let Some(colon) = text.find(':').filter(|colon| *colon < star) {
        return (&text[..colon], text[colon + 1..].trim());
    }
    let word = text.match_indices(char::is_whitespace).find(|(at, _)| {
        let word = text[*at..].trim_start();
        let times = word.trim_start_matches(['x', 'X']);
        let separates =
            times.len() < word.len() && !times.starts_with(|c: char| c.is_ascii_alphabetic());
        word.starts_with(|c: char| c.is_ascii_alphabetic()) && !separates
    });
    let end = word.map_or(star, |(at, _)| at.min(star));
    (&text[..end], text[end..].trim())
}

/// The element, and the buffers of a frame: `*3`, `x 3` or `x 3 buffers` behind it.
fn split_buffers(kind: InputKind, text: &str) -> Result<(&str, u64), InputError> {
    let wrong = |text: &str| InputError::Buffers { text: clip(text) };
    let lower = text.to_ascii_lowercase();
    let word = ["buffers", "buffer"].into_iter().find(|word| lower.ends_with(word));
    let body = word.map_or(text, |word| text[..text.len() - word.len()].trim_end());
    // An x counts only where a space sets it apart: `complex64` ends in no count.
    let times = body.rsplit_once(['x', 'X', '\u{d7}']).filter(|(head, number)| {
        head.ends_with(char::is_whitespace) && digits(number.trim()).is_some()
    });
    match body.split_once('*').or(times) {
        None if word.is_some() => Err(wrong(text)),
        None => Ok((body, 1)),
        Some(_) if kind != InputKind::Frame => Err(wrong(text)),
        Some((element, number)) => match digits(number.trim()) {
            Some(buffers) if buffers > 0 => Ok((element.trim_end(), buffers)),
            _ => Err(wrong(number.trim())),
        },
    }
}

fn parse_sizes(kind: InputKind, text: &str) -> Result<Vec<u64>, InputError> {
    // Eight sizes are the most that any kind accepts; a text with more is not read to its end.
    const MOST: usize = 9;
    let parts = text.split(['x', 'X', '\u{d7}']).take(MOST);
    parts
        .map(|part| {
            let part = part.trim();
            let wrong = |reason| InputError::Size { kind, text: clip(part), reason };
            match digits(part) {
                Some(0) => Err(wrong("zero")),
                Some(size) => Ok(size),
                None if part.is_empty() => Err(wrong("missing")),
                None if part.bytes().all(|b| b.is_ascii_digit()) => Err(wrong("too large")),
                None => Err(wrong("not a whole number")),
            }
        })
        .collect()
}

/// Digits only, with `_` between them as in Rust; no sign.
fn digits(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    if !plain || !text.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    text.replace('_', "").parse().ok()
}

fn parse_element(kind: InputKind, text: &str) -> Result<Element, InputError> {
    let pixel = PixelFormat::find(text).map(Element::Pixel);
    let number = text.parse::<DType>().ok().filter(|d| d.is_plain()).map(Element::Number);
    let element = match kind {
        InputKind::Frame => pixel,
        InputKind::Image => number.or(pixel),
        _ => number,
    };
    element.ok_or_else(|| InputError::Element { kind, text: clip(text) })
}

fn element_bytes(shape: &[u64], element: Element) -> Option<u64> {
    match element {
        Element::Number(dtype) => product(shape)?.checked_mul(dtype.block_bytes()),
        Element::Pixel(format) => format.frame_bytes(*shape.first()?, *shape.get(1)?),
    }
}

fn product(factors: &[u64]) -> Option<u64> {
    factors.iter().try_fold(1u64, |all, factor| all.checked_mul(*factor))
}

impl DataInput {
    /// Bytes of `batch` samples.
    ///
    /// # Errors
    /// [`InputError::EmptyBatch`] for zero, [`InputError::TooLarge`] beyond 64 bits.
    pub fn batch_bytes(&self, batch: u64) -> Result<Bytes, InputError> {
        if batch == 0 {
            return Err(InputError::EmptyBatch);
        }
        self.sample_bytes
            .get()
            .checked_mul(batch)
            .map(Bytes::new)
            .ok_or_else(|| InputError::TooLarge { what: "the batch", text: self.to_string() })
    }

    /// Numbers in one sample; for a frame, pixels of all buffers.
    pub fn elements(&self) -> u64 {
        product(&self.shape).and_then(|n| n.checked_mul(self.buffers)).unwrap_or(u64::MAX)
    }

    /// How the bytes of a sample and of a batch come about.
    ///
    /// # Errors
    /// As [`DataInput::batch_bytes`].
    pub fn terms(&self, batch: u64) -> Result<Vec<InputTerm>, InputError> {
        let bytes = self.batch_bytes(batch)?;
        let mut inputs: Vec<(String, u64)> =
            self.names().into_iter().map(str::to_owned).zip(self.shape.iter().copied()).collect();
        let mut formula = match self.element {
            Element::Number(dtype) => {
                inputs.push((format!("bytes per {dtype}"), dtype.block_bytes()));
                inputs.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(" x ")
            }
            Element::Pixel(format) => match format.layout() {
                Layout::Linear(n) => {
                    inputs.push((format!("bytes per {} pixel", format.name()), n));
                    format!("width x height x bytes per {} pixel", format.name())
                }
                Layout::Block(n) => {
                    inputs.push((format!("bytes per {} block", format.name()), n));
                    format!(
                        "ceil(width / 4) x ceil(height / 4) x bytes per {} block",
                        format.name()
                    )
                }
                Layout::Planar420(n) => {
                    inputs.push((format!("bytes per {} sample", format.name()), n));
                    format!(
                        "(width x height + 2 x ceil(width / 2) x ceil(height / 2)) x bytes per {} sample",
                        format.name()
                    )
                }
            },
        };
        if self.buffers > 1 {
            formula.push_str(" x buffers");
            inputs.push(("buffers".to_owned(), self.buffers));
        }
        let sample = InputTerm { name: "sample", formula, inputs, bytes: self.sample_bytes };
        let batch = InputTerm {
            name: "batch",
            formula: "samples x bytes per sample".to_owned(),
            inputs: vec![
                ("samples".to_owned(), batch),
                ("bytes per sample".to_owned(), self.sample_bytes.get()),
            ],
            bytes,
        };
        Ok(vec![sample, batch])
    }

    fn names(&self) -> Vec<&'static str> {
        match self.kind {
            InputKind::Image | InputKind::Frame => vec!["width", "height", "channels"],
            InputKind::Points => vec!["points", "features"],
            InputKind::Tokens => vec!["tokens", "width"],
            InputKind::Grid => {
                vec!["size 1", "size 2", "size 3", "size 4", "size 5", "size 6", "size 7", "size 8"]
            }
        }
    }
}

/// The short form that [`parse_input`] reads back: `frame:7680x4320:rgba16f*3`.
impl fmt::Display for DataInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self.shape.iter().map(u64::to_string).collect();
        write!(f, "{}:{}:{}", self.kind.name(), sizes.join("x"), self.element)?;
        if self.buffers > 1 { write!(f, "*{}", self.buffers) } else { Ok(()) }
    }
}

#[cfg(test)]
#[path = "inputs_tests.rs"]
mod tests;
