//! Templates of one op by name.
//!
//! An op, or a part of one, that can be written in several ways has a template for each, registered here: a knob chooses
//! by name, and nothing else of the kernel knows which it is. The first of an op is what is used unless another is
//! chosen. Each is tested alone: `tests/shim/ops.rs` runs every one of them on the host against the definition of its
//! op, [`crate::search::failing`] those that are not used by default on the device, before a campaign there may use them.

/// A way to write an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpVariant {
    /// What it is a way of.
    pub op: &'static str,
    pub name: &'static str,
    /// File below `templates/`.
    pub template: &'static str,
    /// For a person or an agent.
    pub about: &'static str,
}

/// Every template that stands for another.
pub const OP_VARIANTS: &[OpVariant] = &[
    OpVariant {
        op: "sum",
        name: "serial",
        template: "ops/sum/serial.cu.j2",
        about: "one warp's sum after the other",
    },
    OpVariant {
        op: "sum",
        name: "pairs",
        template: "ops/sum/pairs.cu.j2",
        about: "sums of neighbouring warps first, then sums of those: a chain as long as the logarithm of the warps",
    },
];

/// The variants of an op, what is used by default first.
pub fn op_variants(op: &str) -> impl Iterator<Item = &'static OpVariant> {
    OP_VARIANTS.iter().filter(move |v| v.op == op)
}

/// A variant by op and name.
pub fn op_variant(op: &str, name: &str) -> Option<&'static OpVariant> {
    op_variants(op).find(|v| v.name == name)
}
