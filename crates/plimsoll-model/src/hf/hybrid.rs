//! Recurrent and hybrid decoders.

use super::ImportError;
use super::keys::Keys;
use crate::arch::Architecture;

/// The architecture, if `family` is one of these.
pub(super) fn build(_keys: &Keys<'_>, _family: &str) -> Result<Option<Architecture>, ImportError> {
    Ok(None)
}
