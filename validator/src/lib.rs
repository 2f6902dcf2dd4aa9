//! Decides whether a schedule can deadlock, race or leave its buffers.
