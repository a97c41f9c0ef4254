//! Bytes, element types, shapes and symbolic sizes, with exact parsing and printing.
