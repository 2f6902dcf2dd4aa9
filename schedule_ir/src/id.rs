//! Typed ids. An id is the index of its object in the program's list; the two can disagree only in a
//! program read from a file, and invariant S rejects that.

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $noun:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// The id as an index into the list it belongs to.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($noun, " {}"), self.0)
            }
        }
    };
}

id!(
    /// Index into [`crate::Program::buffers`].
    BufferId,
    "buffer"
);
id!(
    /// Index into [`crate::Program::instructions`].
    InstrId,
    "instr"
);
id!(
    /// Index into [`crate::Program::counters`].
    CounterId,
    "counter"
);
id!(
    /// Index into [`crate::Program::sms`]: a block id, not a physical multiprocessor.
    SmId,
    "sm"
);
id!(
    /// Index into the stream of the SM that holds it, [`crate::Sm::stream`].
    RunId,
    "run"
);
