//! A float32 parameter that survives text and JSON exactly, NaN and infinities included (a program
//! that carries them is well formed as a file and rejected by invariant S).

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A float32 constant of an instruction, compared bit by bit.
#[derive(Clone, Copy, Debug)]
pub struct Scalar(pub f32);

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}
impl Eq for Scalar {}

impl std::fmt::Display for Scalar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The shortest text that reads back to the same float32; NaN loses its payload only.
        write!(f, "{:?}", self.0)
    }
}

impl std::str::FromStr for Scalar {
    type Err = std::num::ParseFloatError;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        s.parse().map(Scalar)
    }
}

impl Serialize for Scalar {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.to_string())
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map_err(|_| D::Error::custom(format!("{text:?} is not a float32")))
    }
}
