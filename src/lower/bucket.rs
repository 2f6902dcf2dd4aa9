//! Buckets of decode positions: one program each, since the best number of attention splits grows
//! with the context.

use amk_schedule_ir::Bucket;

/// The buckets a model of `max_positions` positions is served with: `0..=255`, then up to 1,023,
/// 4,095 and so on by fours, the last cut at the model's end.
pub fn buckets(max_positions: u64) -> Vec<Bucket> {
    let mut out = Vec::new();
    let mut first = 0u64;
    let mut end = 256u64;
    while first < max_positions {
        out.push(Bucket { first, last: end.min(max_positions) - 1 });
        first = end;
        end = end.saturating_mul(4);
    }
    out
}

/// The bucket of `position` for steps of `tokens` positions; `None` where such a step does not fit.
pub fn bucket_of(max_positions: u64, tokens: u64, position: u64) -> Option<Bucket> {
    let last = max_positions.checked_sub(tokens)?;
    let bucket = buckets(max_positions).into_iter().find(|b| position <= b.last)?;
    (position <= last).then_some(Bucket { first: bucket.first, last: bucket.last.min(last) })
}
