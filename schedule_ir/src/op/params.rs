//! How parameters of ops are written and read, and the macro that declares them.

use serde::{Deserialize, Serialize};

use crate::scalar::Scalar;

/// Why an op could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamError {
    #[error("unknown op `{0}`")]
    UnknownOp(String),
    #[error("parameter `{0}` is missing")]
    Missing(&'static str),
    #[error("parameter `{key}` is `{value}`, which is not {expected}")]
    Bad { key: &'static str, value: String, expected: &'static str },
}

/// A half-open range of output rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rows {
    pub lo: u64,
    pub hi: u64,
}

impl Rows {
    /// Ordered, not empty and within `total`?
    pub fn check(self, what: &str, total: u64) -> Result<(), String> {
        if self.lo >= self.hi {
            return Err(format!("`{what}` {}..{} is empty", self.lo, self.hi));
        }
        if self.hi > total {
            return Err(format!("`{what}` {}..{} ends past {total}", self.lo, self.hi));
        }
        Ok(())
    }
}

/// Where a normalised matrix product takes its input row from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The published residual.
    Hidden,
    /// The embedding row of the step's token (first layer).
    Embedding,
}

/// What the gate goes through before it multiplies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x / (1 + exp(-x))`.
    #[default]
    Silu,
    /// `x * (1 + erf(x / sqrt 2)) / 2`.
    Gelu,
    /// `x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2`.
    GeluTanh,
}

/// A parameter type: how it prints and reads.
pub trait Param: Sized {
    /// What a value looks like, for messages.
    const EXPECTED: &'static str;
    fn print(&self) -> String;
    fn parse(text: &str) -> Option<Self>;
}

impl Param for u64 {
    const EXPECTED: &'static str = "a non-negative integer";
    fn print(&self) -> String {
        self.to_string()
    }
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl Param for u32 {
    const EXPECTED: &'static str = "a non-negative 32-bit integer";
    fn print(&self) -> String {
        self.to_string()
    }
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl Param for bool {
    const EXPECTED: &'static str = "`true` or `false`";
    fn print(&self) -> String {
        self.to_string()
    }
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl Param for Scalar {
    const EXPECTED: &'static str = "a number";
    fn print(&self) -> String {
        self.to_string()
    }
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl Param for Rows {
    const EXPECTED: &'static str = "a range `lo..hi`";
    fn print(&self) -> String {
        format!("{}..{}", self.lo, self.hi)
    }
    fn parse(text: &str) -> Option<Self> {
        let (lo, hi) = text.split_once("..")?;
        Some(Rows { lo: lo.parse().ok()?, hi: hi.parse().ok()? })
    }
}

impl Param for Source {
    const EXPECTED: &'static str = "`hidden` or `embedding`";
    fn print(&self) -> String {
        match self {
            Source::Hidden => "hidden".to_owned(),
            Source::Embedding => "embedding".to_owned(),
        }
    }
    fn parse(text: &str) -> Option<Self> {
        match text {
            "hidden" => Some(Source::Hidden),
            "embedding" => Some(Source::Embedding),
            _ => None,
        }
    }
}

impl Param for Activation {
    const EXPECTED: &'static str = "`silu`, `gelu` or `gelu_tanh`";
    fn print(&self) -> String {
        match self {
            Activation::Silu => "silu".to_owned(),
            Activation::Gelu => "gelu".to_owned(),
            Activation::GeluTanh => "gelu_tanh".to_owned(),
        }
    }
    fn parse(text: &str) -> Option<Self> {
        match text {
            "silu" => Some(Activation::Silu),
            "gelu" => Some(Activation::Gelu),
            "gelu_tanh" => Some(Activation::GeluTanh),
            _ => None,
        }
    }
}

/// Absent is said by leaving the parameter out.
impl<P: Param> Param for Option<P> {
    const EXPECTED: &'static str = P::EXPECTED;
    fn print(&self) -> String {
        self.as_ref().map_or_else(String::new, P::print)
    }
    fn parse(text: &str) -> Option<Self> {
        P::parse(text).map(Some)
    }
}

/// Is a parameter what it is where it is left out?
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Declares an op's parameter struct with its text form. Parameters after `optional` are left out of the
/// text, of JSON and so of the hash where they have the default of their type.
macro_rules! op_params {
    ($(#[$doc:meta])* pub struct $name:ident {
        $($(#[$fdoc:meta])* pub $field:ident: $ty:ty,)*
        $(optional $($(#[$odoc:meta])* pub $opt:ident: $oty:ty,)*)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$fdoc])* pub $field: $ty,)*
            $($(
                $(#[$odoc])*
                #[serde(default, skip_serializing_if = "crate::op::params::is_default")]
                pub $opt: $oty,
            )*)?
        }

        impl $name {
            pub(crate) fn write_params(&self) -> Vec<(&'static str, String)> {
                #[allow(unused_mut)]
                let mut out =
                    vec![$((stringify!($field), $crate::op::Param::print(&self.$field)),)*];
                $($(
                    if !$crate::op::params::is_default(&self.$opt) {
                        out.push((stringify!($opt), $crate::op::Param::print(&self.$opt)));
                    }
                )*)?
                out
            }

            pub(crate) fn read_params(
                get: &mut dyn FnMut(&'static str) -> Option<String>,
            ) -> Result<Self, $crate::op::ParamError> {
                let _ = &get;
                Ok($name {
                    $($field: {
                        let value = get(stringify!($field))
                            .ok_or($crate::op::ParamError::Missing(stringify!($field)))?;
                        <$ty as $crate::op::Param>::parse(&value).ok_or(
                            $crate::op::ParamError::Bad {
                                key: stringify!($field),
                                value,
                                expected: <$ty as $crate::op::Param>::EXPECTED,
                            },
                        )?
                    },)*
                    $($($opt: match get(stringify!($opt)) {
                        None => Default::default(),
                        Some(value) => <$oty as $crate::op::Param>::parse(&value).ok_or(
                            $crate::op::ParamError::Bad {
                                key: stringify!($opt),
                                value,
                                expected: <$oty as $crate::op::Param>::EXPECTED,
                            },
                        )?,
                    },)*)?
                })
            }
        }
    };
}
pub(crate) use op_params;

/// `value` is within `1..=limit`, or a sentence that names it.
pub(crate) fn positive(what: &str, value: u64, limit: u64) -> Result<(), String> {
    if value == 0 || value > limit {
        return Err(format!("`{what}` is {value}, but must be 1 to {limit}"));
    }
    Ok(())
}

/// `value`, if there is one, is finite and positive, or a sentence that names it.
pub(crate) fn optional_positive(what: &str, value: Option<Scalar>) -> Result<(), String> {
    value.map_or(Ok(()), |v| finite_positive(what, v))
}

/// `value` is finite and positive, or a sentence that names it.
pub(crate) fn finite_positive(what: &str, value: Scalar) -> Result<(), String> {
    if !value.0.is_finite() || value.0 <= 0.0 {
        return Err(format!("`{what}` is {value}, but must be finite and positive"));
    }
    Ok(())
}
