//! Random shapes.
