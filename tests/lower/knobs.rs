//! Each knob: two values, two programs.
