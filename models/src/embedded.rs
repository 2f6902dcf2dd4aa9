//! The default model, compiled into the program from `models/default/`.

use crate::files::Files;

/// What the embedded model is called in reports.
pub const NAME: &str = "amk-default";

/// The embedded model's files.
pub(crate) fn files() -> Files {
    /// Gives the bytes an alignment that lets every tensor be read in place.
    #[repr(C, align(64))]
    struct Aligned<T: ?Sized>(T);
    static WEIGHTS: &Aligned<[u8]> = &Aligned(*include_bytes!("../default/model.safetensors"));
    Files::embedded(
        "the embedded model",
        &[
            ("config.json", include_bytes!("../default/config.json")),
            ("generation_config.json", include_bytes!("../default/generation_config.json")),
            ("model.safetensors", &WEIGHTS.0),
            ("tokenizer.json", include_bytes!("../default/tokenizer.json")),
            ("tokenizer_config.json", include_bytes!("../default/tokenizer_config.json")),
        ],
    )
}

/// The golden file of the embedded model, as HuggingFace transformers made it.
pub(crate) const GOLDEN: &[u8] = include_bytes!("../default/golden.json");
