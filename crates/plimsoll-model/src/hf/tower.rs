//! Vision and audio towers.
