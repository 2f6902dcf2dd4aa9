//! amk
