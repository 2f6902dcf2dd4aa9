//! The schedule IR: types, text and JSON form, canonical hash.
