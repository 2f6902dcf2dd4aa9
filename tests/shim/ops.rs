//! Op variants alone, and every choice of how products are written.

use std::collections::BTreeSet;
use std::fs;

use amk::codegen::{OP_VARIANTS, op_variants};
use amk::lower::{Groups, Knobs, Mode, Tiles, Variants};

use crate::build::run_alone;
use crate::support::{Case, folder};
use crate::tiny::Tiny;
use crate::tokens::{check, small};

/// Calls `tile_sum` for every output of a group of tiles, with partial sums of the warps in shared memory, and compares with
/// the sum in float64.
const SUM_ALONE: &str = r#"
#include <vector>
int main() {
  std::vector<u8> smem(SMEM_BYTES, 0xff);
  Context cx{};
  cx.smem = smem.data();
  u32 seed = 1, checked = 0;
  for (u32 par = 0; par < 2; ++par) {
    cx.par = par;
    float* partial = partial_sums(cx);
    for (u32 i = 0; i < TILE_GROUP * 8 * TOKENS * NW; ++i) {
      seed = seed * 1664525u + 1013904223u;
      partial[i] = (float)(int)seed / 2147483648.f * (float)(1 << seed % 7);
    }
    for (u32 tile = 0; tile < TILE_GROUP; ++tile)
      for (u32 m = 0; m < TOKENS; ++m)
        for (u32 column = 0; column < 8; ++column) {
          double want = 0, size = 0;
          for (u32 w = 0; w < NW; ++w) {
            const double part = partial[(tile * TOKENS + m) * (8 * NW) + w * 8 + column];
            want += part;
            size += part < 0 ? -part : part;
          }
          const double off = tile_sum(cx, tile, m, column) - want;
          if (!((off < 0 ? -off : off) <= size * 1e-6)) {
            std::printf("tile %u token %u column %u is off by %g\n", tile, m, column, off);
            return 1;
          }
          ++checked;
        }
  }
  std::printf("%u warps, %u sums\n", NW, checked);
  return checked == 2 * TILE_GROUP * 8 * TOKENS ? 0 : 2;
}
"#;

/// Each registered variant, alone, for numbers of warps that are powers of two and that are not.
#[test]
fn every_op_variant_does_what_its_op_is_defined_to() {
    let ops: BTreeSet<&str> = OP_VARIANTS.iter().map(|v| v.op).collect();
    // Whoever registers a variant of another op writes its definition here.
    assert_eq!(ops.into_iter().collect::<Vec<_>>(), ["sum"]);
    assert!(op_variants("sum").count() > 1);
    for variant in op_variants("sum") {
        for warps in [1, 2, 5, 8] {
            let name = format!("op_sum_{}_{warps}", variant.name);
            let variants = Variants { sum: Some(variant.name.to_owned()) };
            let knobs = Knobs { variants, consumer_warps: warps, ..small() };
            let model =
                Tiny { layers: 1, ..Tiny::default() }.checkpoint(&folder(&name).join("model"));
            let text = Case::new(model, 2, true, &knobs, Mode::Bf16).render().text;
            let said = run_alone(&format!("{text}{SUM_ALONE}"), &folder(&name));
            assert!(said.starts_with(&format!("{warps} warps")), "{name}: {said}");
        }
    }
    // The variants are different texts.
    let texts: BTreeSet<&str> = op_variants("sum").map(|v| v.template).collect();
    assert_eq!(texts.len(), op_variants("sum").count());
}

/// However products are written, the same tokens come out; what leaves the order of sums alone, the same bits.
#[test]
fn products_written_otherwise_say_the_same() {
    let sizes = Tiny { hidden: 128, inner: 256, layers: 1, vocab: 317, ..Tiny::default() };
    let g = Groups::default();
    let both = Groups { layers: Some(2), head: Some(4) };
    let sum = |name: &str| Variants { sum: Some(name.to_owned()) };
    let base = small();
    // One chunk a tile, so that its blocks are unrolled and fragments are held.
    let wide = Knobs { slot_bytes: Some(4096), ..small() };
    let tiles = Tiles { qkv: Some(1), gate_up: Some(3), head: Some(2) };
    let cases = [
        ("usual", true, base.clone()),
        ("grouped", true, Knobs { groups: both, ..base.clone() }),
        ("head_group", true, Knobs { groups: Groups { head: Some(2), ..g }, ..base.clone() }),
        ("cut", true, Knobs { tiles, groups: both, ..base.clone() }),
        ("balanced", true, Knobs { balance: Some("378".to_owned()), ..base.clone() }),
        ("two_sums", false, Knobs { accumulators: Some(2), ..base.clone() }),
        ("pairs", false, Knobs { variants: sum("pairs"), consumer_warps: 4, ..base.clone() }),
        ("wide", true, wide.clone()),
        ("wide_read_again", true, Knobs { fragments: Some(0), ..wide.clone() }),
        ("wide_unrolled_2", true, Knobs { fragments: Some(0), unroll: Some(2), ..wide.clone() }),
        (
            "wide_all",
            false,
            Knobs {
                fragments: Some(0),
                unroll: Some(1),
                accumulators: Some(2),
                groups: both,
                tiles,
                variants: sum("pairs"),
                consumer_warps: 3,
                ..wide
            },
        ),
    ];
    let mut bits: Option<Vec<u8>> = None;
    for (what, alike, knobs) in cases {
        let name = format!("products_{what}");
        let model = sizes.checkpoint(&folder(&name).join("model"));
        let case = Case::new(model, 3, true, &knobs, Mode::Bf16);
        check(&name, &case, Mode::Bf16, 0..1);
        let logits = fs::read(folder(&name).join("output.2.bin")).unwrap();
        if alike && !what.starts_with("wide") {
            assert_eq!(*bits.get_or_insert_with(|| logits.clone()), logits, "{name}");
        }
    }
}
