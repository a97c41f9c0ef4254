//! SVG to pixels. The fonts are compiled in, so that text appears on machines without any: Noto Sans, under the SIL
//! Open Font License 1.1, from the crate `notosans`.

use std::sync::Arc;

use resvg::{tiny_skia, usvg};

/// Largest side of a picture, in pixels.
const MOST: f32 = 16_384.0;

/// Why a picture could not be drawn.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenderError {
    /// The text is not an SVG picture.
    #[error("the picture cannot be read: {0}")]
    Svg(#[from] usvg::Error),
    /// The scale leaves no picture, or one too large.
    #[error(
        "scale {scale} gives {width} x {height} pixels; both sides must be between 1 and 16384"
    )]
    Size {
        /// What was asked for.
        scale: f32,
        /// Width in pixels.
        width: f32,
        /// Height in pixels.
        height: f32,
    },
    /// The pixels could not be packed.
    #[error("the pixels cannot be packed as PNG: {0}")]
    Png(String),
}

/// Draws an SVG picture in its light colours as PNG, `scale` pixels to its unit.
///
/// # Errors
/// [`RenderError`] for text that is not SVG or a scale that gives no usable size.
pub fn png(svg: &str, scale: f32) -> Result<Vec<u8>, RenderError> {
    let mut options = usvg::Options { font_family: "Noto Sans".to_owned(), ..Default::default() };
    let fonts = options.fontdb_mut();
    for font in [notosans::REGULAR_TTF, notosans::BOLD_TTF] {
        fonts.load_font_source(usvg::fontdb::Source::Binary(Arc::new(font)));
    }
    fonts.set_sans_serif_family("Noto Sans");
    let tree = usvg::Tree::from_str(svg, &options)?;
    let size = tree.size();
    let (width, height) = ((size.width() * scale).ceil(), (size.height() * scale).ceil());
    let wrong = || RenderError::Size { scale, width, height };
    if !(1.0..=MOST).contains(&width) || !(1.0..=MOST).contains(&height) {
        return Err(wrong());
    }
    let mut pixels = tiny_skia::Pixmap::new(width as u32, height as u32).ok_or_else(wrong)?;
    let transform = tiny_skia::Transform::from_scale(scale, scale);
    resvg::render(&tree, transform, &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| RenderError::Png(error.to_string()))
}
