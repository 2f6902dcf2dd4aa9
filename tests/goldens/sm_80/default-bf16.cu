// amk-default: one persistent cooperative kernel for sm_80.
// Instructions are data: the kernel runs the tables of the program whose hash stands below and nothing else.
// ---- types, conversions, tensor-core product -----------------------------------------------
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

struct alignas(16) Quad { u32 x, y, z, w; };
struct alignas(8) Pair { u32 x, y; };

// ---- primitives: CUDA spellings and PTX that order nothing -----------------------------------
#define AMK_KERNEL(threads) __global__ __launch_bounds__(threads, 1)
#define AMK_GRID_CONSTANT __grid_constant__
#define AMK_DYNAMIC_SHARED(name) extern __shared__ __align__(128) u8 name[]
#define AMK_FN __device__ __forceinline__
#define AMK_DATA __device__
#define AMK_BLOCK blockIdx.x
#define AMK_BLOCKS gridDim.x
#define AMK_THREAD threadIdx.x
AMK_FN u32 amk_thread_again() {
  u32 t;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
  return t;
}
#define AMK_UNROLL _Pragma("unroll")
#define AMK_NO_UNROLL _Pragma("unroll 1")

AMK_FN u32 amk_bits(float v) { return __float_as_uint(v); }
AMK_FN float amk_float(u32 v) { return __uint_as_float(v); }
// Two floats to two bf16, round to nearest even; `a` in the low half.
AMK_FN u32 bf16_pack(float a, float b) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
  return r;
}
AMK_FN float f16_float(u16 h) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(h));
  return r;
}
AMK_FN float amk_rcp_approx(float b) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
  return r;
}
// 2^x to two units in the last place; nothing below the least normal number.
AMK_FN float amk_exp2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
AMK_FN float amk_rsqrt_approx(float x) {
  float r;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// 8 bytes of shared memory for the lanes that need them, zeros for the others.
AMK_FN u32 amk_shared_address(const void* p);
AMK_FN Pair amk_load_shared_pair_if(bool needed, const u8* p) {
  Pair v;
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\n@p ld.shared.v2.u32 { %0, %1}, [%2];\n}"
               : "=&r"(v.x), "=&r"(v.y) : "r"(amk_shared_address(p)), "r"((u32)needed));
  return v;
}
AMK_FN u32 amk_shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
// Read-only data that nothing writes while the kernel runs.
AMK_FN u32 amk_load_constant(const u32* p) { return __ldg(p); }
// A line of 32 words of such data, a word a lane. The load is issued where it stands.
struct Record {
  u32 mine;
  AMK_FN void load(const u32* p, u32 lane) { asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(mine) : "l"(p + lane)); }
  AMK_FN u32 word(u32 i) const { return __shfl_sync(~0u, mine, i); }
};
AMK_FN Quad amk_load_constant4(const void* p) {
  const uint4 v = __ldg((const uint4*)p);
  return {v.x, v.y, v.z, v.w};
}
AMK_FN Pair amk_load_constant2(const void* p) {
  const uint2 v = __ldg((const uint2*)p);
  return {v.x, v.y};
}
AMK_FN float amk_load_constant_float(const float* p) { return __ldg(p); }
AMK_FN u16 amk_load_constant_half(const u16* p) { return __ldg(p); }
AMK_FN bool amk_warp_all(bool v) { return __all_sync(~0u, v); }
AMK_FN u32 amk_shfl(u32 v, u32 lane) { return __shfl_sync(~0u, v, lane); }
AMK_FN float amk_shfl_xor(float v, u32 mask) { return __shfl_xor_sync(~0u, v, mask); }
AMK_FN u64 amk_shfl_xor64(u64 v, u32 mask) { return __shfl_xor_sync(~0u, v, mask); }
AMK_FN float amk_shfl_down(float v, u32 by) { return __shfl_down_sync(~0u, v, by); }
AMK_FN u64 amk_clock() { return clock64(); }
AMK_FN u64 amk_nanoseconds() { u64 v; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(v)); return v; }

// c[16x8] += a[16x16] b[16x8], bf16 in, float32 out.
AMK_FN void amk_mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 { %0,%1,%2,%3},{ %4,%5,%6,%7},{ %8,%9},{ %0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

AMK_FN float bf16_lo(u32 v) { return amk_float(v << 16); }
AMK_FN float bf16_hi(u32 v) { return amk_float(v & 0xffff0000u); }
AMK_FN float bf16_round(float v) { return bf16_lo(bf16_pack(v, 0.f)); }
AMK_FN Quad amk_load_shared(const u8* p) { return *(const Quad*)p; }
AMK_FN Pair amk_load_shared_pair(const u8* p) { return *(const Pair*)p; }
// a / b and 1 / sqrt(x) for normal numbers: the hardware's approximation and one Newton step, within
// an ulp or so, and without the library's out-of-line slow paths.
AMK_FN float amk_divide(float a, float b) {
  const float r = amk_rcp_approx(b);
  const float q = a * r;
  return fmaf(fmaf(-b, q, a), r, q);
}
AMK_FN float amk_rsqrt(float x) {
  const float r = amk_rsqrt_approx(x);
  return r * fmaf(-0.5f * x * r, r, 1.5f);
}

#define TRACE_STAMP(cx, k)

AMK_DATA const unsigned char amk_program_hash[32] = { 64, 104, 42, 69, 225, 191, 213, 253, 218, 65, 167, 105, 70, 34, 64, 180, 18, 191, 220, 147, 158, 120, 223, 232, 6, 170, 134, 126, 146, 140, 212, 3 };

// ---- constants of this program -------------------------------------------------------------
constexpr u32 NW = 8;        // consumer warps
constexpr u32 THREADS = (NW + 1) * 32;
constexpr u32 SLOTS = 29;
constexpr u32 SLOT_BYTES = 5120;
constexpr u32 TOKENS = 1;        // positions per step
constexpr u32 TERMS = 1;              // bf16 terms of an activation
constexpr u32 TAGS = 4294967295u;
constexpr u32 EPOCHS = 1;
constexpr u32 INPUT_STRIDE = 656;  // bytes of one staged input row
constexpr u32 TILE_GROUP = 16;
constexpr u32 RING_AT = 0, MBAR_AT = 148480, INPUT_AT = 148992;
constexpr u32 PARTIAL_AT = 149760, SCRATCH_AT = 157952, LOCAL_AT = 158848;
constexpr u32 CONTROL_AT = 158976, SMEM_BYTES = 163072;
constexpr u64 ARRIVALS_AT = 667648ull, TOKEN_WORD_AT = 667904ull;
constexpr u64 CANCEL_AT = 668160ull, REPORT_AT = 668416ull, COUNTERS_AT = 667392ull;
constexpr u64 BEST_AT = 666368ull, TOKENS_AT = 0ull;
constexpr u32 BEST_SLOTS = 108;

// One instruction of the table, 128 bytes: each warp keeps it in a register, a word a lane.
enum Field : u32 {
  F_OP, F_FLAGS, F_WAITS, F_WAIT_COUNT, F_SIGNALS, F_SIGNAL_COUNT, F_LO, F_HI,
  F_TILES, F_SPARE, F_K, F_IN_PITCH, F_OUT_PITCH, F_IN_PHASE, F_OUT_PHASE, F_CONST,
  F_A0, F_A1 = F_A0 + 2, F_A2 = F_A1 + 2, F_A3 = F_A2 + 2, F_A4 = F_A3 + 2,
  F_X0 = F_A4 + 2, F_X1, F_X2, F_X3, F_A5
};

struct Params {
  const u8* weights;      // packed streams of all SMs
  u8* arena;              // every other buffer, counters, boundary state
  const u8* tables;       // SM headers, instructions, runs, waits, signals
  u32* host_tokens;       // host-visible: token of step t
  u32* host_progress;     // host-visible: steps done
  u64* trace;             // stamps, or null
  u64 spin_limit;         // clock cycles a wait may take; 0 = for ever
  u32 pos0, steps, epoch_base, prompt_len;
  u32 flags;              // 1: write logits
  u32 eos_count;
  u32 eos[8];
  u32 trace_stride;       // stamps per SM
};

struct TableHead { u32 instr_at, run_at, wait_at, signal_at; };
struct SmHead { u32 instr_first, instr_count, run_first, run_count; u64 weight_at; u64 pad; };
AMK_FN const SmHead* sm_head(const Params& p, u32 sm) { return (const SmHead*)(p.tables + sizeof(TableHead)) + sm; }
// The first instruction of an SM.
AMK_FN const u32* sm_code(const Params& p, u32 sm) {
  return (const u32*)(p.tables + ((const TableHead*)p.tables)->instr_at) + (u64)sm_head(p, sm)->instr_first * 32;
}
// The same and their number, kept in shared memory: the tables are far away for what is asked once an instruction.
struct Queue { const u32* code; u64 count; };
AMK_FN Queue& sm_queue(u8* smem) { return *(Queue*)(smem + CONTROL_AT + 16); }
struct RunEntry { u32 tiles, blocks, total_blocks, tile_count; u32 window, pad0; u64 pad1; };

// ---- primitives: every instruction that orders something -------------------------------------
// Block barriers.
AMK_FN void amk_block_sync() { asm volatile("bar.sync 0;" ::: "memory"); }
// All consumer warps; the producer never takes part.
AMK_FN void amk_consumer_sync() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
AMK_FN void amk_warp_sync() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }
// A flag in shared memory that the producer polls.
AMK_FN void amk_store_shared_flag(u8* p, u32 v) {
  asm volatile("st.relaxed.cta.shared.u32 [%0], %1;" ::"r"(amk_shared_address(p)), "r"(v) : "memory");
}
AMK_FN u32 amk_load_shared_flag(const u8* p) {
  u32 v;
  asm volatile("ld.relaxed.cta.shared.u32 %0, [%1];" : "=r"(v) : "r"(amk_shared_address(p)) : "memory");
  return v;
}
// mbarriers, by shared-memory address.
AMK_FN void mbar_init(u32 bar, u32 count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
AMK_FN void mbar_arrive(u32 bar) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(bar) : "memory");
}
AMK_FN bool mbar_test(u32 bar, u32 parity) {
  u32 ok;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
      : "=r"(ok) : "r"(bar), "r"(parity) : "memory");
  return ok;
}
// Arrives once all copies this thread has issued have landed.
AMK_FN void mbar_arrive_copies(u32 bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar) : "memory");
}
// Counters.
AMK_FN u32 amk_counter_acquire(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
AMK_FN void amk_counter_release(u32* p, u32 v) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
// Packets: relaxed and gpu scope, a packet delivers its own word and orders nothing else.
AMK_FN void amk_packet_store(u64* p, u32 value, u32 tag) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(p), "l"(((u64)tag << 32) | value) : "memory");
}
AMK_FN u64 amk_packet_load(const u64* p) {
  u64 v;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
// Two neighbouring words in no particular order; `p` is 16-byte aligned.
AMK_FN void amk_packet_load2(const u64* p, u64& a, u64& b) {
  asm volatile("ld.relaxed.gpu.global.v2.b64 { %0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(p) : "memory");
}
// The step boundary.
AMK_FN u32 amk_arrive(u32* p) {
  u32 v;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(v) : "l"(p) : "memory");
  return v;
}
AMK_FN void amk_token_release(u64* p, u64 v) {
  asm volatile("st.release.gpu.global.b64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
AMK_FN u64 amk_token_acquire(const u64* p) {
  u64 v;
  asm volatile("ld.acquire.gpu.global.b64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
// Words the host polls or writes.
AMK_FN void amk_host_store(u32* p, u32 v) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
AMK_FN void amk_host_release(u32* p, u32 v) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
AMK_FN u32 amk_host_load(const u32* p) {
  u32 v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
// The word of the report of a wait given up: 0 until somebody claims it.
AMK_FN u32 amk_report_load(const u32* p) {
  u32 word;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(p) : "memory");
  return word;
}
AMK_FN bool amk_report_claim(u32* p, u32 v) { return atomicCAS(p, 0u, v) == 0; }
// Before the first look at words somebody else will write, and after a failed one: for the host's watch.
AMK_FN void amk_spin_begin() {}
AMK_FN void amk_spin_pause(u32, u32, u32, u32, u32, u32) {}
// ---- bounded waiting -----------------------------------------------------------------------
// Every wait ends: when its condition holds, or when the launch has been given up because some wait
// outlasted the limit. The first to give up reports where; the rest see the word and stop waiting.
// A warp that waits for packets goes on as a whole (`amk_warp_all`): lanes that left the loop one by one would stay apart
// behind it, and every shuffle there take 100 to 200 nanoseconds instead of twenty.
struct SpinReport { u32 given_up, sm, pc, edge, expected, seen, step, pad; };
enum Edge : u32 { EDGE_PACKET = 1, EDGE_COUNTER = 2, EDGE_BOUNDARY = 3, EDGE_RING = 4 };

struct Spin {
  u64 start = 0;
  u32 tries = 0;
  AMK_FN Spin() { amk_spin_begin(); }
  // True when waiting is over for good, and from then on.
  AMK_FN bool give_up(const Params& p, u32 sm, u32 pc, u32 step, u32 edge, u32 expected, u32 seen) {
    amk_spin_pause(sm, pc, step, edge, expected, seen);
    if (++tries & 1023) return false;
    SpinReport* report = (SpinReport*)(p.arena + REPORT_AT);
    if (amk_report_load(&report->given_up)) { --tries; return true; }
    if (!p.spin_limit) return false;
    const u64 now = amk_clock();
    if (!start) { start = now; return false; }
    if (now - start < p.spin_limit) return false;
    if (amk_report_claim(&report->given_up, 1)) {
      report->sm = sm; report->pc = pc; report->edge = edge;
      report->expected = expected; report->seen = seen; report->step = step;
    }
    --tries;
    return true;
  }
};
// ---- packets: value in the low, epoch tag in the high half of a 64-bit word ------------------
AMK_FN u32 packet_tag(u32 epoch_base, u32 step, u32 phase) {
  u64 index = (u64)epoch_base + (u64)step * EPOCHS + phase;
  if (index >= TAGS) index -= TAGS;
  return (u32)index + 1;
}
// ---- counters: release-add by writers, acquire-wait by readers -------------------------------
struct CounterOp { u32 counter, amount, per_step, pad; };
AMK_FN u32* counter_at(const Params& p, u32 id) { return (u32*)(p.arena + COUNTERS_AT + (u64)id * 128); }
// ---- the shared-memory ring ------------------------------------------------------------------
// A slot has two mbarriers: `full` completes when its chunk has landed, `empty` when every consumer
// warp has released it.
struct Ring {
  u32 base;  // shared-memory address of the first slot
  AMK_FN u32 full(u32 s) const { return base + (MBAR_AT - RING_AT) + 8 * s; }
  AMK_FN u32 empty(u32 s) const { return base + (MBAR_AT - RING_AT) + 8 * (SLOTS + s); }
  u32 slot = 0, parity = 0;  // the consumer's place
  AMK_FN void advance() {
    if (++slot == SLOTS) { slot = 0; parity ^= 1; }
  }
};
AMK_FN void ring_wait(const Ring& r) {
  while (!mbar_test(r.full(r.slot), r.parity)) {}
}
AMK_FN void ring_release(Ring& r, u32 lane) {
  amk_warp_sync();
  if (lane == 0) mbar_arrive(r.empty(r.slot));
  r.advance();
}

// A place in the ring: slot and the parity its barriers have in this round.
struct Place {
  u32 slot = 0, parity = 0;
  AMK_FN void advance() {
    if (++slot == SLOTS) { slot = 0; parity ^= 1; }
  }
};

// The producer's walk over the chunks of a stream, the same on every part. `issue(slot, source, bytes)`
// starts a copy into a slot whose previous chunk has been released.
template <class Issue>
AMK_FN void ring_walk(const Ring& r, const Params& p, const RunEntry* runs, const SmHead& mine, const u8* smem, Issue issue) {
  Place next, oldest;       // where the next chunk goes; the oldest chunk that may be in flight
  u32 in_flight = 0;
  bool first_round = true;  // nothing has to be released yet
  RunEntry next_run = {};
  if (mine.run_count) next_run = runs[0];
  for (u32 step = 0; step < p.steps; ++step) {
    const u8* source = p.weights + mine.weight_at;
    for (u32 i = 0; i < mine.run_count; ++i) {
      const RunEntry run = next_run;
      next_run = runs[i + 1 < mine.run_count ? i + 1 : 0];  // on its way while this one is copied
      u32 tile = 0, block = 0;
      while (tile < run.tile_count) {
        const u32 tiles = run.tile_count - tile < run.tiles ? run.tile_count - tile : run.tiles;
        const u32 blocks = run.total_blocks - block < run.blocks ? run.total_blocks - block : run.blocks;
        const u32 bytes = tiles * blocks * 512;
        if (!first_round)
          while (!mbar_test(r.empty(next.slot), next.parity ^ 1))
            if (amk_load_shared_flag(smem + CONTROL_AT)) goto drain;
        while (in_flight >= run.window) {
          while (!mbar_test(r.full(oldest.slot), oldest.parity)) {}
          oldest.advance();
          --in_flight;
        }
        issue(next.slot, source, bytes);
        ++in_flight;
        next.advance();
        if (next.slot == 0) first_round = false;
        source += bytes;
        block += blocks;
        if (block == run.total_blocks) { block = 0; tile += tiles; }
      }
    }
  }
drain:
  // Nothing may still be in flight when the block gives its shared memory back.
  for (; in_flight; --in_flight) {
    while (!mbar_test(r.full(oldest.slot), oldest.parity)) {}
    oldest.advance();
  }
}
// ---- primitives: copies of 16 bytes -------------------------------------------------------------
AMK_FN void amk_copy16(u32 to, const u8* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// Parts without bulk copies: the producer warp copies 16 bytes a lane; each lane's copies arrive on
// the slot's mbarrier when they have landed.
AMK_FN void ring_init(Ring& r, u8* smem, u32 t) {
  r.base = amk_shared_address(smem + RING_AT);
  if (t == 0)
    for (u32 i = 0; i < SLOTS; ++i) { mbar_init(r.full(i), 32); mbar_init(r.empty(i), NW); }
}
AMK_FN void ring_produce(const Ring& r, const Params& p, const RunEntry* runs, const SmHead& mine, const u8* smem, u32 lane) {
  ring_walk(r, p, runs, mine, smem, [&](u32 slot, const u8* source, u32 bytes) {
    const u32 to = r.base + slot * SLOT_BYTES;
    for (u32 at = lane * 16; at < bytes; at += 512) amk_copy16(to + at, source + at);
    mbar_arrive_copies(r.full(slot));
  });
}

// ---- what every op sees ----------------------------------------------------------------------
struct Context {
  const Params* p;
  u8* smem;
  u32 sm, t, w, lane;
  Record record;    // the instruction
  u32 pc, step, pos;
  u32 par;        // which of the two sets of partial sums is being filled
  // All lanes of the warp take part.
  AMK_FN u32 field(u32 f) const { return record.word(f); }
  AMK_FN u64 field64(u32 f) const { return (u64)field(f) | ((u64)field(f + 1) << 32); }
  AMK_FN u8* operand(u32 f) const { return p->arena + field64(f); }
  AMK_FN u32 tag(u32 phase) const { return packet_tag(p->epoch_base, step, phase); }
  // Ends a look at packets, for all lanes of the warp at once: every word that they want is here, or waiting is over.
  AMK_FN bool packets_end(Spin& spin, bool here, u32 tag, u32 seen) const {
    return amk_warp_all(here || spin.give_up(*p, sm, pc, step, EDGE_PACKET, tag, seen));
  }
};
enum Flags : u32 { FLAG_LAST = 1, FLAG_APPEND = 2, FLAG_UNROTATED = 4 };
enum DType : u32 { BF16, F16, F32 };
enum Sync : u32 { PLAIN, PACKET };

template <DType D> AMK_FN u32 element_bytes() { return D == F32 ? 4 : 2; }

// Four neighbouring elements of read-only data from an even element on. The arena is padded, so that
// reading past the end of a row is safe; the caller drops what it does not need.
// `issue` starts the load, `get` gives the values.
template <DType D> struct Constant4 {
  u32 a, b;
  AMK_FN void issue(const u8* base, u64 at) {
    a = amk_load_constant((const u32*)(base + at * 2));
    b = amk_load_constant((const u32*)(base + at * 2 + 4));
  }
  AMK_FN void get(float (&v)[4]) const {
    if (D == BF16) {
      v[0] = bf16_lo(a); v[1] = bf16_hi(a); v[2] = bf16_lo(b); v[3] = bf16_hi(b);
    } else {
      v[0] = f16_float((u16)a); v[1] = f16_float((u16)(a >> 16));
      v[2] = f16_float((u16)b); v[3] = f16_float((u16)(b >> 16));
    }
  }
};
template <> struct Constant4<F32> {
  Pair a, b;
  AMK_FN void issue(const u8* base, u64 at) {
    a = amk_load_constant2(base + at * 4);
    b = amk_load_constant2(base + at * 4 + 8);
  }
  AMK_FN void get(float (&v)[4]) const {
    v[0] = amk_float(a.x); v[1] = amk_float(a.y); v[2] = amk_float(b.x); v[3] = amk_float(b.y);
  }
};
template <DType D> AMK_FN float load_constant(const u8* base, u64 at) {
  if (D == F32) return amk_float(amk_load_constant((const u32*)base + at));
  const u16 h = amk_load_constant_half((const u16*)base + at);
  return D == BF16 ? amk_float((u32)h << 16) : f16_float(h);
}

// Four neighbouring elements of an activation that other SMs wrote: the loads are issued at once,
// `ready` says whether every word carries the tag, `get` gives the values.
template <Sync S, DType D> struct Input4;
template <> struct Input4<PACKET, BF16> {
  u64 a, b;
  AMK_FN void issue(const u8* base, u64 at) { amk_packet_load2((const u64*)base + at / 2, a, b); }
  AMK_FN bool ready(u32 tag, u32 valid) const {
    return (u32)(a >> 32) == tag && (valid <= 2 || (u32)(b >> 32) == tag);
  }
  AMK_FN u32 seen() const { return (u32)(a >> 32); }
  AMK_FN void get(float (&v)[4]) const {
    v[0] = bf16_lo((u32)a); v[1] = bf16_hi((u32)a); v[2] = bf16_lo((u32)b); v[3] = bf16_hi((u32)b);
  }
};
template <> struct Input4<PACKET, F32> {
  u64 a, b, c, d;
  AMK_FN void issue(const u8* base, u64 at) {
    amk_packet_load2((const u64*)base + at, a, b);
    amk_packet_load2((const u64*)base + at + 2, c, d);
  }
  AMK_FN bool ready(u32 tag, u32 valid) const {
    return (u32)(a >> 32) == tag && (valid < 2 || (u32)(b >> 32) == tag) &&
           (valid < 3 || (u32)(c >> 32) == tag) && (valid < 4 || (u32)(d >> 32) == tag);
  }
  AMK_FN u32 seen() const { return (u32)(a >> 32); }
  AMK_FN void get(float (&v)[4]) const {
    v[0] = amk_float((u32)a); v[1] = amk_float((u32)b); v[2] = amk_float((u32)c); v[3] = amk_float((u32)d);
  }
};
template <> struct Input4<PLAIN, BF16> {
  Pair q;
  AMK_FN void issue(const u8* base, u64 at) { q = *(const Pair*)(base + at * 2); }
  AMK_FN bool ready(u32, u32) const { return true; }
  AMK_FN u32 seen() const { return 0; }
  AMK_FN void get(float (&v)[4]) const {
    v[0] = bf16_lo(q.x); v[1] = bf16_hi(q.x); v[2] = bf16_lo(q.y); v[3] = bf16_hi(q.y);
  }
};
template <> struct Input4<PLAIN, F32> {
  Quad q;
  AMK_FN void issue(const u8* base, u64 at) { q = *(const Quad*)(base + at * 4); }
  AMK_FN bool ready(u32, u32) const { return true; }
  AMK_FN u32 seen() const { return 0; }
  AMK_FN void get(float (&v)[4]) const {
    v[0] = amk_float(q.x); v[1] = amk_float(q.y); v[2] = amk_float(q.z); v[3] = amk_float(q.w);
  }
};

// Stores element `at` of an activation. Two bf16 share a word, so the even lane of a pair stores both:
// neighbouring lanes hold neighbouring elements and all lanes of the warp take part.
template <Sync S, DType D> AMK_FN void store_activation(u8* base, u64 at, float v, bool valid, u32 tag) {
  if (D == BF16) {
    float next = amk_shfl_down(v, 1);
    const float next_valid = amk_shfl_down(valid ? 1.f : 0.f, 1);
    if (next_valid == 0.f) next = 0.f;
    if (valid && (at & 1) == 0) {
      const u32 both = bf16_pack(v, next);
      if (S == PACKET) amk_packet_store((u64*)base + at / 2, both, tag);
      else *((u32*)base + at / 2) = both;
    }
  } else if (valid) {
    if (S == PACKET) amk_packet_store((u64*)base + at, amk_bits(v), tag);
    else *((float*)base + at) = v;
  }
}

AMK_FN void counter_waits(Context& cx) {
  const u32 n = cx.field(F_WAIT_COUNT);
  if (n == 0) return;
  const CounterOp* op = (const CounterOp*)(cx.p->tables + ((const TableHead*)cx.p->tables)->wait_at) + cx.field(F_WAITS);
  if (cx.t == 0) {
    for (u32 i = 0; i < n; ++i) {
      const u32 want = cx.step * op[i].per_step + op[i].amount;
      const u32* counter = counter_at(*cx.p, op[i].counter);
      Spin spin;
      for (;;) {
        const u32 seen = amk_counter_acquire(counter);
        if (seen >= want || spin.give_up(*cx.p, cx.sm, cx.pc, cx.step, EDGE_COUNTER, want, seen)) break;
      }
    }
  }
  amk_consumer_sync();
}
AMK_FN void counter_signals(Context& cx) {
  const u32 n = cx.field(F_SIGNAL_COUNT);
  if (n == 0) return;
  const CounterOp* op = (const CounterOp*)(cx.p->tables + ((const TableHead*)cx.p->tables)->signal_at) + cx.field(F_SIGNALS);
  amk_consumer_sync();
  if (cx.t == 0) {
    for (u32 i = 0; i < n; ++i) amk_counter_release(counter_at(*cx.p, op[i].counter), op[i].amount);
  }
}
// ---- matrix products over the weight stream ----------------------------------------------------
// Input row K is staged once as bf16 (TERMS terms a token); K block b belongs to warp b % NW, which
// stages and consumes it, so staging needs no block barrier. Weights are the A operand, a packed block of
// 8 rows x 32 K at a time: lane L owns 16 bytes, row L/4, the 8 values from K 8*(L%4) on. Their first halves are
// rows 0 to 7 of the operand, their second halves rows 8 to 15; a token has two columns of the B operand, 2r with the first
// halves of its 8 values and 2r + 1 with the second, so that elements (row, 2r) and (row + 8, 2r + 1) of the result are
// its sums and the others mean nothing. Four tokens fill the columns of one product.
// Input loads in flight per lane: with norm weights beside them, and without.
constexpr u32 NORM_LOADS = 2, PLAIN_LOADS = 4;
// The same over the rows of several tokens.
constexpr u32 ROW_LOADS = TOKENS == 1 ? 1 : 4;
// Products of a packed block and term, four tokens each; fragments of an input K block.
constexpr u32 FOURS = (TOKENS + 3) / 4, PARTS = FOURS * TERMS;
// Sums that keep dependent products of a warp apart; packed blocks it multiplies without a branch; tiles whose
// sums are added up at once, in layers and in the LM head.
constexpr u32 MOST_SETS = 4, SETS = MOST_SETS / FOURS ? MOST_SETS / FOURS : 1, MOST_UNROLLED = 8;
constexpr u32 LAYER_GROUP = 16, HEAD_GROUP = 16;

AMK_FN float* partial_sums(const Context& cx) {
  return (float*)(cx.smem + PARTIAL_AT) + cx.par * (TILE_GROUP * 8 * TOKENS * NW);
}
AMK_FN float* square_sums(const Context& cx) {
  return (float*)(cx.smem + CONTROL_AT + 64) + cx.par * (TOKENS * NW);
}

// What is fixed about a product: elements of an input row, packed blocks of a chunk and of a whole tile, and
// the chunks that every such instruction has at least.
// Block b of a tile is term b / K_BLOCKS of K block b % K_BLOCKS.
template <u32 WIDTH_, u32 CHUNK_, u32 TOTAL_, u32 LEAST_> struct Geometry {
  static constexpr u32 WIDTH = WIDTH_, CHUNK = CHUNK_, TOTAL = TOTAL_;
  static constexpr u32 K_BLOCKS = (WIDTH + 31) / 32;
  // Whole words everywhere: no element past the row's end is ever staged.
  static constexpr bool EXACT = WIDTH % 32 == 0;
  // Every chunk holds the same number of K blocks, and its first block is warp 0's.
  static constexpr bool EVEN = TOTAL == K_BLOCKS && TOTAL % CHUNK == 0 && (CHUNK % NW == 0 || CHUNK == TOTAL);
  // Input loads of a lane that stages most, in equal batches.
  static constexpr u32 LOADS = ((K_BLOCKS + NW - 1) / NW + 3) / 4;
  // K blocks of a warp whose input fragments stay in registers from tile to tile; 0: too many, they are read again.
  static constexpr u32 EACH = (K_BLOCKS + NW - 1) / NW;
  static constexpr u32 HELD = EVEN && EACH * PARTS <= 16 ? EACH : 0;
  // Chunks that warps take into registers: where a tile has several and a warp's part of one is small.
  static constexpr u32 MOST_TAKEN = 0;
  static constexpr u32 TAKEN = !EVEN || CHUNK == TOTAL || CHUNK % NW != 0 || CHUNK / NW > 4 || TOKENS > 1 || TERMS > 8 ? 0 : LEAST_ < MOST_TAKEN ? LEAST_ : MOST_TAKEN;
  AMK_FN static constexpr u32 batch(u32 most) { return (LOADS + (LOADS + most - 1) / most - 1) / ((LOADS + most - 1) / most); }
};

// Four values of token `m` at K position `k` go to the staged rows as bf16 terms.
AMK_FN void stage4(const Context& cx, u32 m, u32 k, float (&v)[4]) {
  u8* to = cx.smem + INPUT_AT + (u64)(m * TERMS) * INPUT_STRIDE + k * 2;
AMK_UNROLL
  for (u32 term = 0; term < TERMS; ++term) {
    Pair q;
    q.x = bf16_pack(v[0], v[1]);
    q.y = bf16_pack(v[2], v[3]);
    *(Pair*)(to + term * INPUT_STRIDE) = q;
    if (term + 1 < TERMS) {
      v[0] -= bf16_lo(q.x); v[1] -= bf16_hi(q.x); v[2] -= bf16_lo(q.y); v[3] -= bf16_hi(q.y);
    }
  }
}

// Load `i` of a lane: four K blocks of the warp side by side, four elements a lane.
AMK_FN u32 load_block(const Context& cx, u32 i) { return cx.w + NW * (i * 4 + (cx.lane >> 3)); }
AMK_FN u32 load_column(const Context& cx, u32 i) { return load_block(cx, i) * 32 + (cx.lane & 7) * 4; }
template <class G> AMK_FN bool load_staged(const Context& cx, u32 i) {
  return G::K_BLOCKS % (NW * 4) == 0 ? i < G::LOADS : load_block(cx, i) < G::K_BLOCKS;
}
template <class G> AMK_FN bool load_inside(const Context& cx, u32 i) {
  return load_staged<G>(cx, i) && (G::EXACT || load_column(cx, i) < G::WIDTH);
}
// Elements of load `i` that the row still has, four at most where that matters.
template <class G> AMK_FN u32 load_left(const Context& cx, u32 i) { return G::EXACT ? 4 : G::WIDTH - load_column(cx, i); }

// The warp's share of the sum of squares of token `m`.
AMK_FN void keep_squares(const Context& cx, u32 m, float squares) {
AMK_UNROLL
  for (u32 o = 16; o; o >>= 1) squares += amk_shfl_xor(squares, o);
  if (cx.lane == 0) square_sums(cx)[m * NW + cx.w] = squares;
}

// Stages one batch of loads of token `m`: `in` and `weight` have arrived.
template <class G, bool NORM, u32 N, class In, class Weight>
AMK_FN void stage_batch(const Context& cx, u32 m, u32 first, const In* in, const Weight* weight, float& squares) {
AMK_UNROLL
  for (u32 i = 0; i < N; ++i)
    if (load_staged<G>(cx, first + i)) {
      float v[4] = {0.f, 0.f, 0.f, 0.f}, g[4] = {0.f, 0.f, 0.f, 0.f};
      if (load_inside<G>(cx, first + i)) {
        in[i].get(v);
        if (NORM) weight[i].get(g);
      }
AMK_UNROLL
      for (u32 e = 0; e < 4; ++e) {
        if (e >= load_left<G>(cx, first + i)) v[e] = g[e] = 0.f;
        if (NORM) { squares += v[e] * v[e]; v[e] *= g[e]; }
      }
      stage4(cx, m, load_column(cx, first + i), v);
    }
}

// The first chunks of an instruction in registers. Warps take them while they wait for their input, so that
// the producer finds free slots when it would else stand still.
template <class G> struct Taken {
  static constexpr u32 EACH = G::CHUNK / NW ? G::CHUNK / NW : 1;
  Quad b[G::TAKEN ? G::TAKEN : 1][EACH];
  AMK_FN void take(const Context& cx, Ring& ring) {
AMK_UNROLL
    for (u32 i = 0; i < G::TAKEN; ++i) {
      ring_wait(ring);
      const u8* at = cx.smem + RING_AT + ring.slot * SLOT_BYTES + cx.lane * 16 + cx.w * 512;
AMK_UNROLL
      for (u32 j = 0; j < EACH; ++j) b[i][j] = amk_load_shared(at + j * (NW * 512));
      ring_release(ring, cx.lane);
    }
  }
};

// Stages the input of a matrix product; norm weights are fetched before the wait. Rows of several tokens are
// fetched together as far as loads in flight go.
template <class G, Sync S, DType D, bool NORM, DType ND>
AMK_FN void stage_input(Context& cx, Ring& ring, Taken<G>& taken, const u8* input, u32 pitch, const u8* norm, u32 tag) {
  constexpr u32 N = G::batch(NORM ? NORM_LOADS : PLAIN_LOADS);
  constexpr u32 ROWS = G::LOADS > N || ROW_LOADS < N ? 1 : ROW_LOADS / N < TOKENS ? ROW_LOADS / N : TOKENS;
  constexpr u32 ELEMENT = S == PACKET ? (D == BF16 ? 4 : 8) : D == F32 ? 4 : 2;
  taken.take(cx, ring);
AMK_NO_UNROLL
  for (u32 m = 0; m < TOKENS; m += ROWS) {
    const u8* row = input + (u64)m * pitch * ELEMENT;
    float squares[ROWS] = {};
AMK_NO_UNROLL
    for (u32 first = 0; first < G::LOADS; first += N) {
      Input4<S, D> in[ROWS][N];
      Constant4<ND> weight[N];
      if (NORM) {
AMK_UNROLL
        for (u32 i = 0; i < N; ++i)
          if (load_inside<G>(cx, first + i)) weight[i].issue(norm, load_column(cx, first + i));
      }
      auto wanted = [&](u32 r, u32 i) { return (TOKENS % ROWS == 0 || m + r < TOKENS) && load_inside<G>(cx, first + i); };
      Spin spin;
      for (;;) {
        bool all = true;
        u32 seen = tag;
AMK_UNROLL
        for (u32 r = 0; r < ROWS; ++r)
AMK_UNROLL
          for (u32 i = 0; i < N; ++i)
            if (wanted(r, i)) in[r][i].issue(row + r * pitch * ELEMENT, load_column(cx, first + i));
AMK_UNROLL
        for (u32 r = 0; r < ROWS; ++r)
AMK_UNROLL
          for (u32 i = 0; i < N; ++i)
            if (wanted(r, i) && !in[r][i].ready(tag, load_left<G>(cx, first + i))) { all = false; seen = in[r][i].seen(); }
        if (S != PACKET || cx.packets_end(spin, all, tag, seen)) break;
      }
AMK_UNROLL
      for (u32 r = 0; r < ROWS; ++r)
        if (TOKENS % ROWS == 0 || m + r < TOKENS) stage_batch<G, NORM, N>(cx, m + r, first, in[r], weight, squares[r]);
    }
    if (NORM) {
AMK_UNROLL
      for (u32 r = 0; r < ROWS; ++r)
        if (TOKENS % ROWS == 0 || m + r < TOKENS) keep_squares(cx, m + r, squares[r]);
    }
  }
  amk_warp_sync();
  TRACE_STAMP(cx, 1);
}

// Elements of the embedding times its factor.
template <DType D> struct Scaled {
  Constant4<D> from;
  float factor;
  AMK_FN void get(float (&v)[4]) const {
    from.get(v);
AMK_UNROLL
    for (u32 e = 0; e < 4; ++e) v[e] *= factor;
  }
};

// The same from rows of the embedding table, which nothing has to be waited for.
template <class G, DType D, DType ND, bool FACTOR>
AMK_FN void stage_embedding(Context& cx, Ring& ring, Taken<G>& taken, const u8* table, const u8* norm, float factor) {
  taken.take(cx, ring);
  const u32* tokens = (const u32*)(cx.p->arena + TOKENS_AT);
  constexpr u32 N = G::batch(2);
AMK_NO_UNROLL
  for (u32 m = 0; m < TOKENS; ++m) {
    const u64 row = (u64)tokens[cx.pos + m] * G::WIDTH;
    float squares = 0.f;
AMK_NO_UNROLL
    for (u32 first = 0; first < G::LOADS; first += N) {
      Constant4<D> in[N];
      Constant4<ND> weight[N];
AMK_UNROLL
      for (u32 i = 0; i < N; ++i)
        if (load_inside<G>(cx, first + i)) {
          in[i].issue(table, row + load_column(cx, first + i));
          weight[i].issue(norm, load_column(cx, first + i));
        }
      if constexpr (FACTOR) {
        Scaled<D> scaled[N];
AMK_UNROLL
        for (u32 i = 0; i < N; ++i) scaled[i] = {in[i], factor};
        stage_batch<G, true, N>(cx, m, first, scaled, weight, squares);
      } else {
        stage_batch<G, true, N>(cx, m, first, in, weight, squares);
      }
    }
    keep_squares(cx, m, squares);
  }
  amk_warp_sync();
  TRACE_STAMP(cx, 1);
}

// Sums of a tile while it is being multiplied.
struct TileSums {
  float c[FOURS][SETS][4] = {};
};

// This lane's part of the staged rows, at K block 0: of the token of its column among four, the half of its 8 values.
AMK_FN const u8* staged_fragment(const Context& cx) {
  return cx.smem + INPUT_AT + (cx.lane >> 3) * (TERMS * INPUT_STRIDE) + (cx.lane & 3) * 16 + (cx.lane >> 2 & 1) * 8;
}
// The B fragments of a K block: zeros in the columns of tokens that there are not.
struct Fragment {
  Pair part[PARTS];
};
AMK_FN Fragment load_fragment(const Context& cx, const u8* input) {
  Fragment f;
AMK_UNROLL
  for (u32 i = 0; i < PARTS; ++i) {
    const u32 first = i / TERMS * 4;
    const u8* at = input + (first * TERMS + i % TERMS) * INPUT_STRIDE;
    f.part[i] = first + 4 <= TOKENS ? amk_load_shared_pair(at) : amk_load_shared_pair_if(cx.lane < 8 * (TOKENS - first), at);
  }
  return f;
}

// One packed block, the `j`-th of its chunk, times one K block of every token.
AMK_FN void block_product(const Quad& weights, const Fragment& f, u32 j, TileSums& sums) {
AMK_UNROLL
  for (u32 i = 0; i < PARTS; ++i)
    amk_mma(sums.c[i / TERMS][(j * TERMS + i % TERMS) % SETS], weights.x, weights.z, weights.y, weights.w, f.part[i].x, f.part[i].y);
}
AMK_FN void block_product(const Context& cx, const u8* weights, const u8* input, u32 j, TileSums& sums) {
  block_product(amk_load_shared(weights), load_fragment(cx, input), j, sums);
}

// Fragments that stay in registers while an instruction runs.
template <class G> struct Fragments {
  Fragment of[G::HELD ? G::HELD : 1];
  AMK_FN void load(const Context& cx) {
    const u8* input = staged_fragment(cx) + cx.w * 64;
AMK_UNROLL
    for (u32 i = 0; i < G::HELD; ++i)
      if (NW * (i + 1) <= G::K_BLOCKS || cx.w + NW * i < G::K_BLOCKS) of[i] = load_fragment(cx, input + i * (NW * 64));
  }
};

// Adds this warp's share of K blocks [lo, hi) of one bf16 term of a tile. `at` is the packed block of
// K block `lo`.
AMK_FN void term_product(const Context& cx, const u8* at, u32 lo, u32 hi, TileSums& sums) {
  u32 kb = lo + (cx.w + NW - lo % NW) % NW;  // first K block that belongs to this warp
  const u8* weights = at + cx.lane * 16 + (kb - lo) * 512;
  const u8* input = staged_fragment(cx) + kb * 64;
AMK_NO_UNROLL
  for (; kb < hi; kb += NW) {
    block_product(cx, weights, input, 0, sums);
    weights += NW * 512;
    input += NW * 64;
  }
}

// Adds blocks [lo, lo + CHUNK) of one tile from the chunk at `at`, the input read from shared memory.
template <class G> AMK_FN void tile_product_again(const Context& cx, const u8* at, u32 lo, TileSums& sums) {
  constexpr u32 EACH = G::CHUNK / NW, REST = G::CHUNK % NW, UNROLLED = EACH < MOST_UNROLLED ? EACH : MOST_UNROLLED;
  const u8* weights = at + cx.lane * 16 + cx.w * 512;
  const u8* input = staged_fragment(cx) + (lo + cx.w) * 64;
  if constexpr (UNROLLED != 0) {
AMK_NO_UNROLL
    for (u32 first = 0; first + UNROLLED <= EACH; first += UNROLLED) {
AMK_UNROLL
      for (u32 j = 0; j < UNROLLED; ++j)
        block_product(cx, weights + j * (NW * 512), input + j * (NW * 64), j, sums);
      weights += UNROLLED * NW * 512;
      input += UNROLLED * NW * 64;
    }
AMK_NO_UNROLL
    for (u32 j = 0; j < EACH % UNROLLED; ++j) {
      block_product(cx, weights, input, 0, sums);
      weights += NW * 512;
      input += NW * 64;
    }
  }
  if (REST && cx.w < REST) block_product(cx, weights, input, EACH, sums);
}
// The same, or what is left of the tile, in the way the geometry allows.
template <class G> AMK_FN void tile_product(const Context& cx, const u8* at, u32 lo, const Fragments<G>& held, TileSums& sums) {
  if constexpr (G::HELD != 0) {
    // `lo` is known here: the caller's loop is unrolled.
    constexpr u32 EACH = G::CHUNK / NW, REST = G::CHUNK % NW;
    const u8* weights = at + cx.lane * 16 + cx.w * 512;
AMK_UNROLL
    for (u32 j = 0; j < EACH; ++j)
      block_product(amk_load_shared(weights + j * (NW * 512)), held.of[lo / NW + j], j, sums);
    if (REST && cx.w < REST) block_product(amk_load_shared(weights + EACH * (NW * 512)), held.of[G::HELD - 1], EACH, sums);
  } else if constexpr (G::EVEN) {
    tile_product_again<G>(cx, at, lo, sums);
  } else {
    const u32 hi = lo + G::CHUNK < G::TOTAL ? lo + G::CHUNK : G::TOTAL;
AMK_NO_UNROLL
    for (u32 first = 0; first < G::TOTAL; first += G::K_BLOCKS) {
      const u32 from = lo > first ? lo : first, to = hi < first + G::K_BLOCKS ? hi : first + G::K_BLOCKS;
      if (from < to) term_product(cx, at + (from - lo) * 512, from - first, to - first, sums);
    }
  }
}

// Where the sums of warp `w` for token `m` lie among those of a tile: tokens that are read side by side start
// in different banks.
AMK_FN u32 partial_place(u32 m, u32 w) {
  const u32 place = TOKENS > 1 && (NW & (NW - 1)) == 0 ? w ^ (m & (NW - 1)) : w;
  return (m * NW + place) * 8;
}

// Partial sums of one tile: the warp's float32 sums per token.
AMK_FN void store_partial(const Context& cx, u32 tile, const TileSums& sums) {
  float* to = partial_sums(cx) + (u64)tile * (8 * TOKENS * NW) + (cx.lane >> 2);
AMK_UNROLL
  for (u32 q = 0; q < FOURS; ++q) {
    const u32 m = q * 4 + (cx.lane & 3);
    float sum = 0.f;
AMK_UNROLL
    for (u32 set = 0; set < SETS; ++set) sum += sums.c[q][set][0] + sums.c[q][set][3];
    if (m < TOKENS) to[partial_place(m, cx.w)] = sum;
  }
}

// Runs the products of one instruction: tiles in groups of GROUP, and after each group one block barrier and
// `finish(first_tile, tiles)`, which may read the group's sums through `tile_sum`.
template <class G, u32 GROUP = LAYER_GROUP, class Finish>
AMK_FN void linear_tiles(Context& cx, Ring& ring, u32 tile_count, const Taken<G>& taken, Finish finish) {
  const u32 per_chunk = G::CHUNK == G::TOTAL ? cx.field(F_TILES) : 1;
  // Tiles that begin in registers.
  constexpr u32 CHUNKS = G::TOTAL / G::CHUNK, EARLY = (G::TAKEN + CHUNKS - 1) / CHUNKS;
  static_assert(EARLY <= GROUP && GROUP <= TILE_GROUP, "tiles of the first group");
AMK_UNROLL
  for (u32 early = 0; early < EARLY; ++early) {
    TileSums sums;
AMK_UNROLL
    for (u32 x = 0; x < CHUNKS; ++x) {
      const u32 chunk = early * CHUNKS + x;
      if (chunk < G::TAKEN) {
        const u8* input = staged_fragment(cx) + (x * G::CHUNK + cx.w) * 64;
AMK_UNROLL
        for (u32 j = 0; j < Taken<G>::EACH; ++j)
          block_product(taken.b[chunk < G::TAKEN ? chunk : 0][j], load_fragment(cx, input + j * (NW * 64)), j, sums);
      }
    }
    constexpr u32 REST = EARLY * CHUNKS - G::TAKEN;  // chunks of the last of them
    if (early + 1 == EARLY) {
AMK_NO_UNROLL
      for (u32 x = CHUNKS - REST; x < CHUNKS; ++x) {
        ring_wait(ring);
        tile_product_again<G>(cx, cx.smem + RING_AT + ring.slot * SLOT_BYTES, x * G::CHUNK, sums);
        ring_release(ring, cx.lane);
      }
    }
    store_partial(cx, early, sums);
  }
  Fragments<G> held;
  held.load(cx);
  u32 in_chunk = 0;  // next tile within the chunk, when a chunk holds several
  auto chunk = [&](u32 lo, bool last, TileSums& sums) {
    if (in_chunk == 0) ring_wait(ring);
    tile_product<G>(cx, cx.smem + RING_AT + ring.slot * SLOT_BYTES + in_chunk * (G::TOTAL * 512), lo, held, sums);
    if (per_chunk == 1 || in_chunk + 1 == per_chunk || last) {
      ring_release(ring, cx.lane);
      in_chunk = 0;
    } else {
      ++in_chunk;
    }
  };
AMK_NO_UNROLL
  for (u32 first = 0; first < tile_count; first += GROUP) {
    const u32 count = tile_count - first < GROUP ? tile_count - first : GROUP;
AMK_NO_UNROLL
    for (u32 i = first ? 0 : EARLY; i < count; ++i) {
      TileSums sums;
      const bool last = first + i + 1 == tile_count;
      if constexpr (G::HELD != 0) {
AMK_UNROLL
        for (u32 lo = 0; lo < G::TOTAL; lo += G::CHUNK) chunk(lo, last, sums);
      } else {
AMK_NO_UNROLL
        for (u32 lo = 0; lo < G::TOTAL; lo += G::CHUNK) chunk(lo, last, sums);
      }
      store_partial(cx, i, sums);
    }
    amk_consumer_sync();
    finish(first, count);
    cx.par ^= 1;
  }
}

// Sum of one output element over the warps: one after the other.
AMK_FN float tile_sum(const Context& cx, u32 tile, u32 m, u32 column) {
  const float* from = partial_sums(cx) + (u64)tile * (8 * TOKENS * NW) + column;
  float v = 0.f;
AMK_UNROLL
  for (u32 i = 0; i < NW; ++i) v += from[partial_place(m, i)];
  return v;
}
// 1 / rms of the staged input of token `m`; valid in the first group after staging.
AMK_FN float inverse_rms(const Context& cx, u32 m, u32 width, float eps) {
  const float* from = square_sums(cx) + m * NW;
  float v = 0.f;
AMK_UNROLL
  for (u32 i = 0; i < NW; ++i) v += from[i];
  return amk_rsqrt(amk_divide(v, (float)width) + eps);
}
// The bias of an output row, from operand F_A4.
template <bool BIAS> AMK_FN float row_bias(const u8* bias, u32 row) {
  return BIAS ? load_constant<F32>(bias, row) : 0.f;
}
// Visits the outputs of a group: fn(tile, token, column, valid) by all lanes of each warp, columns of
// a tile on neighbouring lanes.
template <u32 COLUMNS, class Visit>
AMK_FN void visit_outputs(const Context& cx, u32 count, Visit visit) {
  const u32 total = count * TOKENS * COLUMNS;
AMK_NO_UNROLL
  for (u32 base = 0; base < total; base += NW * 32) {
    const u32 i = base + cx.t;
    visit(i / (TOKENS * COLUMNS), i / COLUMNS % TOKENS, i % COLUMNS, i < total);
  }
}
// ---- embed: residual rows of this SM from the table --------------------------------------------
// They are read after a matrix product has passed its own barrier.
template <DType D, bool FACTOR>
AMK_FN void op_embed(Context& cx) {
  const u32 lo = cx.field(F_LO), rows = cx.field(F_HI) - lo, width = cx.field(F_K);
  const u8* table = cx.operand(F_A1);
  float* local = (float*)(cx.smem + LOCAL_AT) + cx.field(F_X0);
  const u32* tokens = (const u32*)(cx.p->arena + TOKENS_AT);
  const float factor = FACTOR ? amk_float(cx.field(F_X1)) : 1.f;
  for (u32 i = cx.t; i < rows * TOKENS; i += NW * 32) {
    const u32 m = i / rows, r = i % rows;
    const float v = load_constant<D>(table, (u64)tokens[cx.pos + m] * width + lo + r);
    local[i] = FACTOR ? v * factor : v;
  }
}
// ---- norm_qkv -----------------------------------------------------------------------------------
template <bool EMBEDDING, Sync S, DType D, DType ND, Sync OS, bool BIAS, bool FACTOR, class G>
AMK_FN void op_norm_qkv(Context& cx, Ring& ring) {
  const u32 lo = cx.field(F_LO), hi = cx.field(F_HI), tiles = (hi - lo + 7) / 8;
  Taken<G> taken;
  const u8* norm = cx.operand(F_A1);
  if constexpr (EMBEDDING) stage_embedding<G, D, ND, FACTOR>(cx, ring, taken, cx.operand(F_A0), norm, FACTOR ? amk_float(cx.field(F_X1)) : 1.f);
  else stage_input<G, S, D, true, ND>(cx, ring, taken, cx.operand(F_A0), cx.field(F_IN_PITCH), norm, cx.tag(cx.field(F_IN_PHASE)));
  u8* out = cx.operand(F_A2);
  const u32 pitch = cx.field(F_OUT_PITCH), tag = cx.tag(cx.field(F_OUT_PHASE));
  const u8* bias = BIAS ? cx.operand(F_A4) : nullptr;
  const float eps = amk_float(cx.field(F_CONST));
  float scale[TOKENS];
  linear_tiles<G>(cx, ring, tiles, taken, [&](u32 first, u32 count) {
    if (first == 0) {
AMK_UNROLL
      for (u32 m = 0; m < TOKENS; ++m) scale[m] = inverse_rms(cx, m, G::WIDTH, eps);
    }
    visit_outputs<8>(cx, count, [&](u32 tile, u32 m, u32 column, bool valid) {
      const u32 row = lo + (first + tile) * 8 + column;
      valid = valid && row < hi;
      float v = 0.f;
      if (valid) {
        float s = scale[0];
AMK_UNROLL
        for (u32 i = 1; i < TOKENS; ++i) if (m == i) s = scale[i];
        v = tile_sum(cx, tile, m, column) * s;
        if (BIAS) v += row_bias<BIAS>(bias, row);
      }
      store_activation<OS, F32>(out, (u64)m * pitch + row, v, valid, tag);
    });
  });
}
// ---- attention: some query heads of one kv head over one split of the past ---------------------------
// LANES lanes share a position, SIDE positions a warp. Scores are kept base 2. Keys and values of the
// step itself come from shared memory, rounded as the cache rounds them.
constexpr u32 HD = 16, HEADS = 8, KV_HEADS = 2;
// Components of a head that are rotated: pairs (d, d + ROT/2) of the first ROT.
constexpr u32 ROT = 16;
constexpr u32 VE = 8;              // elements per load
constexpr u32 VECTORS = HD / VE;
constexpr u32 LANES = 8, SIDE = 32 / LANES;
constexpr u32 NV = (VECTORS + LANES - 1) / LANES;  // loads per lane and row
constexpr u32 PASS = 1;              // query heads handled at once
constexpr u32 DEPTH = 1;              // positions a lane has in flight
// Warps that share the past of a token, and tokens that are handled side by side; positions a warp takes in at once.
constexpr u32 SHARE = TOKENS == 1 ? NW : 1, ABREAST = NW / SHARE, BLOCK = SIDE * DEPTH;
constexpr u32 GROUP_MAX = 1;         // most query heads of one unit
typedef Quad KvWord;                    // one load
constexpr bool KV_F32 = false;

AMK_FN KvWord kv_load(const u8* p) { return *(const KvWord*)p; }
AMK_FN void kv_unpack(const KvWord& q, float* v) {
  v[0] = bf16_lo(q.x); v[1] = bf16_hi(q.x); v[2] = bf16_lo(q.y); v[3] = bf16_hi(q.y);
  v[4] = bf16_lo(q.z); v[5] = bf16_hi(q.z); v[6] = bf16_lo(q.w); v[7] = bf16_hi(q.w);
}
AMK_FN float kv_round(float v) { return KV_F32 ? v : bf16_round(v); }
AMK_FN void kv_store(u8* row, u32 d, float v) {
  if (KV_F32) ((float*)row)[d] = v;
  else ((u16*)row)[d] = (u16)bf16_pack(v, 0.f);
}

// Copies the unit's queries, and with them the step's keys and values where it needs these, to shared
// memory: every load of a pass is issued before any is checked. Takes part: all consumers.
template <Sync S>
AMK_FN void attention_fetch(Context& cx, const u8* from, u32 pitch, u32 q_lo, u32 heads, u32 kv_head, bool now, float* q, float* k, float* v, u32 tag) {
  constexpr u32 BATCH = 2;
  const u32 wide = heads * HD, total = wide + (now ? 2 * HD : 0);
  // Column of element `d` of a token, and where it goes.
  auto column = [&](u32 d) {
    return d < wide ? q_lo * HD + d : d < wide + HD ? (HEADS + kv_head) * HD + d - wide : (HEADS + KV_HEADS + kv_head) * HD + d - wide - HD;
  };
  auto place = [&](u32 m, u32 d) {
    return d < wide ? q + m * wide + d : d < wide + HD ? k + m * HD + d - wide : v + m * HD + d - wide - HD;
  };
AMK_NO_UNROLL
  for (u32 base = cx.w * 64; base < total * TOKENS; base += NW * 64 * BATCH) {
    const u32 first = base + cx.lane * 2;
    u64 a[BATCH], b[BATCH];
    Spin spin;
    for (;;) {
      bool here = true;
      u32 seen = tag;
AMK_UNROLL
      for (u32 x = 0; x < BATCH; ++x) {
        const u32 i = first + x * NW * 64, m = TOKENS == 1 ? 0 : i / total;
        const u64 at = (u64)m * pitch + column(i - m * total);
        if (i < total * TOKENS) {
          if (S == PACKET) amk_packet_load2((const u64*)from + at, a[x], b[x]);
          else { a[x] = ((const u32*)from)[at]; b[x] = ((const u32*)from)[at + 1]; }
        }
      }
AMK_UNROLL
      for (u32 x = 0; x < BATCH; ++x)
        if (S == PACKET && first + x * NW * 64 < total * TOKENS && ((u32)(a[x] >> 32) != tag || (u32)(b[x] >> 32) != tag)) {
          here = false;
          seen = (u32)(a[x] >> 32);
        }
      if (S != PACKET || cx.packets_end(spin, here, tag, seen)) break;
    }
AMK_UNROLL
    for (u32 x = 0; x < BATCH; ++x) {
      const u32 i = first + x * NW * 64, m = TOKENS == 1 ? 0 : i / total;
      if (i < total * TOKENS) {
        float* to = place(m, i - m * total);
        to[0] = amk_float((u32)a[x]);
        to[1] = amk_float((u32)b[x]);
      }
    }
  }
}

// Element `d` of a rotated head.
AMK_FN float rotated(const float* x, const float* rope, u32 d) {
  constexpr u32 HALF = ROT / 2;
  if (ROT < HD && d >= ROT) return x[d];
  const u32 f = d < HALF ? d : d - HALF;
  const float c = rope[f], s = rope[HALF + f];
  return d < HALF ? x[d] * c - x[d + HALF] * s : x[d] * c + x[d - HALF] * s;
}

// This lane's elements of a row in shared memory, as it is or rotated; zero past the head.
AMK_FN u32 lane_element(u32 c, u32 i) { return (i / VE * LANES + c) * VE + i % VE; }
AMK_FN void lane_row(const float* x, u32 c, float (&v)[NV * VE]) {
AMK_UNROLL
  for (u32 j = 0; j < NV; ++j) {
    const u32 d = (j * LANES + c) * VE;
    if (VE % 4 == 0) {
AMK_UNROLL
      for (u32 i = 0; i < VE; i += 4) {
        Quad a = {0, 0, 0, 0};
        if (d < HD) a = amk_load_shared((const u8*)(x + d + i));
        v[j * VE + i] = amk_float(a.x); v[j * VE + (i + 1) % VE] = amk_float(a.y);
        v[j * VE + (i + 2) % VE] = amk_float(a.z); v[j * VE + (i + 3) % VE] = amk_float(a.w);
      }
    } else {
AMK_UNROLL
      for (u32 i = 0; i < VE; ++i) v[j * VE + i] = d < HD ? x[d + i] : 0.f;
    }
  }
}
AMK_FN void lane_rotated(const float* x, const float* rope, u32 c, float (&v)[NV * VE]) {
  constexpr u32 HALF = ROT / 2;
  if constexpr (VE % 4 == 0 && HALF % VE == 0) {
AMK_UNROLL
    for (u32 j = 0; j < NV; ++j) {
      const u32 d = (j * LANES + c) * VE, f = d < HALF ? d : d - HALF, pair = d < HALF ? d + HALF : d - HALF;
AMK_UNROLL
      for (u32 i = 0; i < VE; i += 4) {
        Quad a = {0, 0, 0, 0}, b = a, cs = a, sn = a;
        const bool turned = ROT == HD || d < ROT;
        if (d < HD) a = amk_load_shared((const u8*)(x + d + i));
        if (d < HD && turned) {
          b = amk_load_shared((const u8*)(x + pair + i));
          cs = amk_load_shared((const u8*)(rope + f + i));
          sn = amk_load_shared((const u8*)(rope + HALF + f + i));
        }
        const u32 xa[4] = {a.x, a.y, a.z, a.w}, xb[4] = {b.x, b.y, b.z, b.w}, xc[4] = {cs.x, cs.y, cs.z, cs.w}, xs[4] = {sn.x, sn.y, sn.z, sn.w};
AMK_UNROLL
        for (u32 e = 0; e < 4; ++e) {
          const float s = d < HALF ? -amk_float(xs[e]) : amk_float(xs[e]);
          v[j * VE + i + e] = turned ? amk_float(xa[e]) * amk_float(xc[e]) + amk_float(xb[e]) * s : amk_float(xa[e]);
        }
      }
    }
  } else {
AMK_UNROLL
    for (u32 i = 0; i < NV * VE; ++i) {
      const u32 d = lane_element(c, i);
      v[i] = d < HD ? rotated(x, rope, d) : 0.f;
    }
  }
}

struct Softmax {
  float max[PASS], sum[PASS], out[PASS][NV * VE];
};
// This lane's share of the scores of one position under the pass's queries.
AMK_FN void softmax_dots(const float (&q)[PASS][NV * VE], const float (&k)[NV * VE], float (&scores)[PASS]) {
AMK_UNROLL
  for (u32 h = 0; h < PASS; ++h) {
    scores[h] = 0.f;
AMK_UNROLL
    for (u32 i = 0; i < NV * VE; ++i) scores[h] = fmaf(q[h][i], k[i], scores[h]);
  }
}
// The scores from the shares of all lanes that have the position; far below any other where it is not to be seen.
AMK_FN void softmax_scores(float (&scores)[PASS], bool valid) {
AMK_UNROLL
  for (u32 h = 0; h < PASS; ++h) {
    float s = scores[h];
AMK_UNROLL
    for (u32 o = 1; o < LANES; o <<= 1) s += amk_shfl_xor(s, o);
    scores[h] = valid ? s : -1e30f;
  }
}
// Takes N positions in at once: one new maximum, then their weights, which take the scores' place.
template <u32 N> AMK_FN void softmax_weights(Softmax& a, float (&scores)[N][PASS]) {
AMK_UNROLL
  for (u32 h = 0; h < PASS; ++h) {
    float top = a.max[h];
AMK_UNROLL
    for (u32 x = 0; x < N; ++x) top = fmaxf(top, scores[x][h]);
    const float keep = amk_exp2(a.max[h] - top);
    a.max[h] = top;
    a.sum[h] *= keep;
AMK_UNROLL
    for (u32 i = 0; i < NV * VE; ++i) a.out[h][i] *= keep;
AMK_UNROLL
    for (u32 x = 0; x < N; ++x) {
      scores[x][h] = scores[x][h] > -1e30f ? amk_exp2(scores[x][h] - top) : 0.f;
      a.sum[h] += scores[x][h];
    }
  }
}
AMK_FN void softmax_values(Softmax& a, const float (&weights)[PASS], const float (&v)[NV * VE]) {
AMK_UNROLL
  for (u32 h = 0; h < PASS; ++h)
AMK_UNROLL
    for (u32 i = 0; i < NV * VE; ++i) a.out[h][i] = fmaf(weights[h], v[i], a.out[h][i]);
}

template <Sync S, Sync OS, DType OD, bool SPLIT>
AMK_FN void op_attention(Context& cx) {
  const u32 flags = cx.field(F_FLAGS), q_lo = cx.field(F_LO), heads = GROUP_MAX == 1 ? 1 : cx.field(F_HI) - q_lo;
  const u32 kv_head = cx.field(F_X0), split = cx.field(F_X1), splits = cx.field(F_X2), capacity = cx.field(F_X3);
  const bool last = flags & FLAG_LAST;
  const u32 pitch = cx.field(F_IN_PITCH), tag = cx.tag(cx.field(F_IN_PHASE)), out_tag = cx.tag(cx.field(F_OUT_PHASE));
  const u32 out_pitch = cx.field(F_OUT_PITCH);
  const float scale = amk_float(cx.field(F_CONST)) * 1.4426950408889634f;
  const u8* qkv = cx.operand(F_A0);
  const float* rope_table = (const float*)cx.operand(F_A1);
  constexpr u32 KV_BYTES = KV_F32 ? 4 : 2;
  u8* keys = cx.operand(F_A2) + (u64)kv_head * capacity * HD * KV_BYTES;
  u8* values = cx.operand(F_A3) + (u64)kv_head * capacity * HD * KV_BYTES;
  u8* out = cx.operand(F_A4);
  float* q = (float*)(cx.smem + SCRATCH_AT);                  // [TOKENS][heads * HD]
  float* k_now = q + TOKENS * GROUP_MAX * HD;                 // [TOKENS][HD]
  float* v_now = k_now + TOKENS * HD;
  float* rope = v_now + TOKENS * HD;                          // [TOKENS][ROT]
  float* parts = rope + TOKENS * HD;                          // [NW][heads][HD + 2]
  const u32 from = cx.pos * split / splits, to = cx.pos * (split + 1) / splits;
  const u32 group = cx.lane / LANES, c = cx.lane % LANES, share = cx.w % SHARE;
  // Warps that have a block of the past, the one that has the step's own positions, and those whose parts count.
  const u32 blocks = from < to ? (to - from + BLOCK - 1) / BLOCK : 0, past = blocks < SHARE ? blocks : SHARE;
  const u32 own = SHARE == 1 ? 0 : past < SHARE ? past : SHARE - 1, sharing = SHARE == 1 ? 1 : last ? own + 1 : past;

  // Past keys and values are old: their first loads go out before the wait. Words of positions behind the last are
  // those of earlier ones or zeros, and count for nothing.
  KvWord kw[DEPTH][NV] = {}, vw[DEPTH][NV] = {};
  auto prefetch = [&](const u8* rows, KvWord (&words)[NV], u32 position) {
    if (position < to) {
AMK_UNROLL
      for (u32 j = 0; j < NV; ++j)
        if (VECTORS % LANES == 0 || j * LANES + c < VECTORS) words[j] = kv_load(rows + (position * HD + (j * LANES + c) * VE) * KV_BYTES);
    }
  };
  auto prefetch_all = [&] {
AMK_UNROLL
    for (u32 x = 0; x < DEPTH; ++x) {
      prefetch(keys, kw[x], from + share * BLOCK + x * SIDE + group);
      prefetch(values, vw[x], from + share * BLOCK + x * SIDE + group);
    }
  };
  auto unpack = [&](const KvWord (&words)[NV], float (&row)[NV * VE]) {
AMK_UNROLL
    for (u32 j = 0; j < NV; ++j) {
      if (VECTORS % LANES == 0 || j * LANES + c < VECTORS) {
        kv_unpack(words[j], row + j * VE);
      } else {
AMK_UNROLL
        for (u32 i = 0; i < VE; ++i) row[j * VE + i] = 0.f;
      }
    }
  };
  if (TOKENS == 1) prefetch_all();
  // Heads that are not rotated are rotated by nothing.
  const bool rotate = !(flags & FLAG_UNROTATED);
  auto rope_element = [&](u32 i) {
    return rotate ? amk_load_constant_float(rope_table + (u64)cx.pos * ROT + i) : i % ROT < ROT / 2 ? 1.f : 0.f;
  };
  const float first_rope = cx.t < TOKENS * ROT ? rope_element(cx.t) : 0.f;
  attention_fetch<S>(cx, qkv, pitch, q_lo, heads, kv_head, last, q, k_now, v_now, tag);
  if (cx.t < TOKENS * ROT) rope[cx.t] = first_rope;
  for (u32 i = cx.t + NW * 32; i < TOKENS * ROT; i += NW * 32) rope[i] = rope_element(i);
  amk_consumer_sync();
  TRACE_STAMP(cx, 1);
AMK_NO_UNROLL
  for (u32 m0 = 0; m0 < TOKENS; m0 += ABREAST) {
    const u32 m = m0 + cx.w / SHARE, abreast = TOKENS - m0 < ABREAST ? TOKENS - m0 : ABREAST;
AMK_NO_UNROLL
    for (u32 h0 = 0; h0 < (GROUP_MAX <= PASS ? PASS : heads) && m < TOKENS && share < sharing; h0 += PASS) {
      float qr[PASS][NV * VE];
      Softmax acc;
AMK_UNROLL
      for (u32 h = 0; h < PASS; ++h) {
        acc.max[h] = -1e30f;
        acc.sum[h] = 0.f;
        // A pass may have more heads than are left; the last is then done twice and kept once.
        const u32 head = h0 + h < heads ? h0 + h : heads - 1;
        lane_rotated(q + (m * heads + head) * HD, rope + m * ROT, c, qr[h]);
AMK_UNROLL
        for (u32 i = 0; i < NV * VE; ++i) {
          acc.out[h][i] = 0.f;
          qr[h][i] *= scale;
        }
      }
      if (TOKENS > 1 || h0) prefetch_all();
AMK_NO_UNROLL
      for (u32 base = from + share * BLOCK; base < to; base += SHARE * BLOCK) {
        // Each word is loaded again where its last use lies behind and no shuffle between: the load must not be given
        // other registers, whose move into place would wait for it.
        float row[NV * VE], weights[DEPTH][PASS];
AMK_UNROLL
        for (u32 x = 0; x < DEPTH; ++x) {
          unpack(kw[x], row);
          softmax_dots(qr, row, weights[x]);
        }
AMK_UNROLL
        for (u32 x = 0; x < DEPTH; ++x) prefetch(keys, kw[x], base + SHARE * BLOCK + x * SIDE + group);
AMK_UNROLL
        for (u32 x = 0; x < DEPTH; ++x) softmax_scores(weights[x], base + x * SIDE + group < to);
        softmax_weights<DEPTH>(acc, weights);
AMK_UNROLL
        for (u32 x = 0; x < DEPTH; ++x) {
          unpack(vw[x], row);
          softmax_values(acc, weights[x], row);
        }
AMK_UNROLL
        for (u32 x = 0; x < DEPTH; ++x) prefetch(values, vw[x], base + SHARE * BLOCK + x * SIDE + group);
      }
      if (last && share == own) {
        // The step's own positions up to this token, SIDE at a time.
AMK_NO_UNROLL
        for (u32 base = 0; base <= m; base += SIDE) {
          const u32 r = base + group;
          const u32 row = r <= m ? r : m;
          float k[NV * VE], weights[1][PASS];
          lane_rotated(k_now + row * HD, rope + row * ROT, c, k);
AMK_UNROLL
          for (u32 i = 0; i < NV * VE; ++i) k[i] = kv_round(k[i]);
          softmax_dots(qr, k, weights[0]);
          softmax_scores(weights[0], r <= m);
          softmax_weights<1>(acc, weights);
          lane_row(v_now + row * HD, c, k);
AMK_UNROLL
          for (u32 i = 0; i < NV * VE; ++i) k[i] = kv_round(k[i]);
          softmax_values(acc, weights[0], k);
        }
      }
      // The positions of the warp, then one record per warp and head.
AMK_UNROLL
      for (u32 h = 0; h < PASS; ++h) {
AMK_UNROLL
        for (u32 o = LANES; o < 32; o <<= 1) {
          const float max2 = amk_shfl_xor(acc.max[h], o), sum2 = amk_shfl_xor(acc.sum[h], o);
          const float top = fmaxf(acc.max[h], max2), f1 = amk_exp2(acc.max[h] - top), f2 = amk_exp2(max2 - top);
          acc.sum[h] = acc.sum[h] * f1 + sum2 * f2;
          acc.max[h] = top;
AMK_UNROLL
          for (u32 i = 0; i < NV * VE; ++i) acc.out[h][i] = acc.out[h][i] * f1 + amk_shfl_xor(acc.out[h][i], o) * f2;
        }
        if (group == 0 && h0 + h < heads) {
          float* part = parts + (cx.w * heads + h0 + h) * (HD + 2);
          if (c == 0) { part[HD] = acc.max[h]; part[HD + 1] = acc.sum[h]; }
AMK_UNROLL
          for (u32 i = 0; i < NV * VE; ++i) {
            const u32 d = lane_element(c, i);
            if (d < HD) part[d] = acc.out[h][i];
          }
        }
      }
    }
    // Others read the step's keys and values from the cache in the next step. The warps that end last have fewest positions.
    if ((flags & FLAG_APPEND) && m0 == 0)
      for (u32 i = NW * 32 - 1 - cx.t; i < TOKENS * HD; i += NW * 32) {
        const u32 r = i / HD, d = i % HD;
        kv_store(keys + (u64)(cx.pos + r) * HD * KV_BYTES, d, rotated(k_now + r * HD, rope + r * ROT, d));
        kv_store(values + (u64)(cx.pos + r) * HD * KV_BYTES, d, v_now[i]);
      }
    amk_consumer_sync();
    const u32 total = abreast * heads * HD;
AMK_NO_UNROLL
    for (u32 base = 0; base < total; base += NW * 32) {
      const u32 i = base + cx.t;
      const bool valid = i < total;
      const u32 side = valid ? i / HD / heads : 0, h = valid ? i / HD % heads : 0, d = valid ? i % HD : 0, token = m0 + side;
      const float* first = parts + (side * SHARE * heads + h) * (HD + 2);
      float top = -1e30f, sum = 0.f, v = 0.f;
AMK_UNROLL
      for (u32 x = 0; x < SHARE; ++x)
        if (x < sharing) top = fmaxf(top, first[x * heads * (HD + 2) + HD]);
AMK_UNROLL
      for (u32 x = 0; x < SHARE; ++x)
        if (x < sharing) {
          const float* part = first + x * heads * (HD + 2);
          const float f = amk_exp2(part[HD] - top);
          sum += f * part[HD + 1];
          v += f * part[d];
        }
      if constexpr (SPLIT) {
        const u64 at = ((u64)((q_lo + h) * splits + split) * TOKENS + token) * (HD + 2);
        store_activation<OS, F32>(out, at + d, v, valid, out_tag);
        store_activation<OS, F32>(out, at + HD, top, valid && d == 0, out_tag);
        store_activation<OS, F32>(out, at + HD + 1, sum, valid && d == 0, out_tag);
      } else {
        store_activation<OS, OD>(out, (u64)token * out_pitch + (q_lo + h) * HD + d, amk_divide(v, sum), valid, out_tag);
      }
    }
    if (TOKENS > ABREAST) amk_consumer_sync();
  }
}
// ---- linear_residual: the owner adds to its float32 residual rows and publishes them ----------------
template <Sync S, DType D, Sync OS, DType OD, bool BIAS, bool FACTOR, class G>
AMK_FN void op_linear_residual(Context& cx, Ring& ring) {
  const u32 lo = cx.field(F_LO), hi = cx.field(F_HI), rows = hi - lo, tiles = (rows + 7) / 8;
  Taken<G> taken;
  stage_input<G, S, D, false, BF16>(cx, ring, taken, cx.operand(F_A0), cx.field(F_IN_PITCH), nullptr, cx.tag(cx.field(F_IN_PHASE)));
  const u8* bias = BIAS ? cx.operand(F_A4) : nullptr;
  const float factor = FACTOR ? amk_float(cx.field(F_X1)) : 1.f;
  u8* out = cx.operand(F_A2);
  float* local = (float*)(cx.smem + LOCAL_AT) + cx.field(F_X0);
  const u32 pitch = cx.field(F_OUT_PITCH), tag = cx.tag(cx.field(F_OUT_PHASE));
  linear_tiles<G>(cx, ring, tiles, taken, [&](u32 first, u32 count) {
    visit_outputs<8>(cx, count, [&](u32 tile, u32 m, u32 column, bool valid) {
      const u32 r = (first + tile) * 8 + column;
      valid = valid && r < rows;
      float v = 0.f;
      if (valid) {
        float sum = tile_sum(cx, tile, m, column);
        if (BIAS) sum += row_bias<BIAS>(bias, lo + r);
        if (FACTOR) sum *= factor;
        v = local[m * rows + r] + sum;
        local[m * rows + r] = v;
      }
      store_activation<OS, OD>(out, (u64)m * pitch + lo + r, v, valid, tag);
    });
  });
}
// ---- norm_gate_up: gate rows are even, up rows odd, so a tile gives 4 activations -----------------
template <Sync S, DType D, DType ND, Sync OS, DType OD, bool BIAS, class G>
AMK_FN void op_norm_gate_up(Context& cx, Ring& ring) {
  const u32 lo = cx.field(F_LO), hi = cx.field(F_HI), tiles = (2 * (hi - lo) + 7) / 8;
  Taken<G> taken;
  stage_input<G, S, D, true, ND>(cx, ring, taken, cx.operand(F_A0), cx.field(F_IN_PITCH), cx.operand(F_A1), cx.tag(cx.field(F_IN_PHASE)));
  u8* out = cx.operand(F_A2);
  const u32 pitch = cx.field(F_OUT_PITCH), tag = cx.tag(cx.field(F_OUT_PHASE));
  const u8* bias = BIAS ? cx.operand(F_A4) : nullptr;
  const float eps = amk_float(cx.field(F_CONST));
  float scale[TOKENS];
  linear_tiles<G>(cx, ring, tiles, taken, [&](u32 first, u32 count) {
    if (first == 0) {
AMK_UNROLL
      for (u32 m = 0; m < TOKENS; ++m) scale[m] = inverse_rms(cx, m, G::WIDTH, eps);
    }
    visit_outputs<4>(cx, count, [&](u32 tile, u32 m, u32 column, bool valid) {
      const u32 row = lo + (first + tile) * 4 + column;
      valid = valid && row < hi;
      float v = 0.f;
      if (valid) {
        float s = scale[0];
AMK_UNROLL
        for (u32 i = 1; i < TOKENS; ++i) if (m == i) s = scale[i];
        float gate = tile_sum(cx, tile, m, column * 2) * s, up = tile_sum(cx, tile, m, column * 2 + 1) * s;
        if (BIAS) {
          gate += row_bias<BIAS>(bias, 2 * row);
          up += row_bias<BIAS>(bias, 2 * row + 1);
        }
        v = amk_divide(gate, 1.f + expf(fminf(-gate, 80.f))) * up;
      }
      store_activation<OS, OD>(out, (u64)m * pitch + row, v, valid, tag);
    });
  });
}
// ---- norm_lm_head: logits of the last token and the best of these rows ------------------------------
// A key orders by value, then by the lower id; a NaN orders above everything, so that it is seen.
AMK_FN u64 argmax_key(float v, u32 id) {
  u32 u = amk_bits(v);
  u = (u & 0x80000000u) ? ~u : (u | 0x80000000u);
  if (v != v) u = 0xffffffffu;
  return ((u64)u << 32) | (u32)~id;
}
template <Sync S, DType D, DType ND, bool FACTOR, class G>
AMK_FN void op_norm_lm_head(Context& cx, Ring& ring) {
  const u32 lo = cx.field(F_LO), hi = cx.field(F_HI), tiles = (hi - lo + 7) / 8;
  Taken<G> taken;
  stage_input<G, S, D, true, ND>(cx, ring, taken, cx.operand(F_A0), cx.field(F_IN_PITCH), cx.operand(F_A1), cx.tag(cx.field(F_IN_PHASE)));
  float* logits = (float*)cx.operand(F_A2);
  u64* best = (u64*)cx.operand(F_A3) + cx.field(F_X2);
  const float eps = amk_float(cx.field(F_CONST));
  const float factor = FACTOR ? amk_float(cx.field(F_X1)) : 1.f;
  u64 key = 0;
  float scale = 0.f;
  linear_tiles<G, HEAD_GROUP>(cx, ring, tiles, taken, [&](u32 first, u32 count) {
    if (first == 0) scale = inverse_rms(cx, TOKENS - 1, G::WIDTH, eps);
    for (u32 i = cx.t; i < count * 8; i += NW * 32) {
      const u32 row = lo + first * 8 + i;
      if (row < hi) {
        const float sum = tile_sum(cx, i / 8, TOKENS - 1, i % 8) * scale, v = FACTOR ? sum * factor : sum;
        const u64 k = argmax_key(v, row);
        if (k > key) key = k;
        if (cx.p->flags & 1) logits[row] = v;
      }
    }
  });
AMK_UNROLL
  for (u32 o = 16; o; o >>= 1) {
    const u64 other = amk_shfl_xor64(key, o);
    if (other > key) key = other;
  }
  u64* keys = (u64*)(cx.smem + CONTROL_AT + 2048);
  if (cx.lane == 0) keys[cx.w] = key;
  amk_consumer_sync();
  if (cx.t == 0) {
    for (u32 i = 1; i < NW; ++i) if (keys[i] > key) key = keys[i];
    *best = key;
  }
}
// ---- the step boundary -----------------------------------------------------------------------------------
// Arrivals are one release chain; the last arriver acquires it, decides, and releases (token, stop)
// as one word with the step's tag; every SM acquires that word before the next step.
enum StopBits : u32 { STOP = 0x80000000u };
enum GivenUp : u32 { GIVEN_UP_SPIN = 1, GIVEN_UP_NAN = 2 };

template <bool ARGMAX>
AMK_FN void op_boundary(Context& cx) {
  const Params& p = *cx.p;
  const u32 tag = packet_tag(p.epoch_base, cx.step, 0);
  u64* word = (u64*)(p.arena + TOKEN_WORD_AT);
  u32* control = (u32*)(cx.smem + CONTROL_AT);
  amk_consumer_sync();
  if (cx.w == 0) {
    u32 place = 0;
    if (cx.lane == 0) place = amk_arrive((u32*)(p.arena + ARRIVALS_AT));
    place = amk_shfl(place, 0);
    amk_warp_sync();
    if ((place + 1) % AMK_BLOCKS == 0) {
      u64 key = 0;
      if constexpr (ARGMAX) {
        const u64* best = (const u64*)(p.arena + BEST_AT);
        for (u32 i = cx.lane; i < BEST_SLOTS; i += 32) if (best[i] > key) key = best[i];
AMK_UNROLL
        for (u32 o = 16; o; o >>= 1) {
          const u64 other = amk_shfl_xor64(key, o);
          if (other > key) key = other;
        }
        // Shuffles order nothing: all lanes have read the keys before lane 0 lets the next step begin.
        amk_warp_sync();
      }
      if (cx.lane == 0) {
        u32* tokens = (u32*)(p.arena + TOKENS_AT);
        const u32 next = cx.pos + TOKENS;
        u32 token = ~(u32)key, stop = cx.step + 1 == p.steps;
        if constexpr (ARGMAX) {
          if ((u32)(key >> 32) == 0xffffffffu) {
            SpinReport* report = (SpinReport*)(p.arena + REPORT_AT);
            if (amk_report_claim(&report->given_up, GIVEN_UP_NAN)) report->step = cx.step;
            stop = 1;
          }
          if (next < p.prompt_len) token = tokens[next];
          else {
            tokens[next] = token;
            for (u32 i = 0; i < p.eos_count; ++i) stop |= token == p.eos[i];
          }
        } else {
          token = 0;
        }
        stop |= amk_host_load((const u32*)(p.arena + CANCEL_AT)) != 0;
        stop |= amk_host_load(&((const SpinReport*)(p.arena + REPORT_AT))->given_up) != 0;
        amk_host_store(p.host_tokens + cx.step, token);
        amk_host_release(p.host_progress, cx.step + 1);
        amk_token_release(word, ((u64)tag << 32) | (stop ? STOP : 0u) | token);
      }
    }
    if (cx.lane == 0) {
      u64 seen;
      Spin spin;
      bool lost = false;
      for (;;) {
        seen = amk_token_acquire(word);
        if ((u32)(seen >> 32) == tag) break;
        if (spin.give_up(p, cx.sm, cx.pc, cx.step, EDGE_BOUNDARY, tag, (u32)(seen >> 32))) { lost = true; break; }
      }
      const u32 stop = lost || ((u32)seen & STOP);
      control[1] = stop;
      if (stop) amk_store_shared_flag(cx.smem + CONTROL_AT, 1);
    }
  }
  amk_consumer_sync();
}

extern "C" AMK_KERNEL(THREADS) void amk_megakernel(const AMK_GRID_CONSTANT Params p) {
  AMK_DYNAMIC_SHARED(smem);
  const u32 sm = AMK_BLOCK, t = AMK_THREAD, w = t >> 5, lane = t & 31;
  Ring ring;
  ring_init(ring, smem, t);
  if (t == 0) {
    amk_store_shared_flag(smem + CONTROL_AT, 0);
    ((u32*)(smem + CONTROL_AT))[1] = 0;
    sm_queue(smem) = {sm_code(p, sm), sm_head(p, sm)->instr_count};
  }
  amk_block_sync();
  if (w == NW) {
    // A copy: what is behind a reference would be read again after every synchronisation.
    const SmHead mine = *sm_head(p, sm);
    ring_produce(ring, p, (const RunEntry*)(p.tables + ((const TableHead*)p.tables)->run_at) + mine.run_first, mine, smem, lane);
    return;
  }
  Context cx;
  cx.p = &p; cx.smem = smem; cx.sm = sm;
  cx.par = 0; cx.pc = 0; cx.step = 0;
  cx.record.load(sm_queue(smem).code, lane);
  for (;;) {
    // Read afresh, so that what ops derive from the thread, and the place of the instructions, do not live
    // across instructions.
    cx.t = amk_thread_again(); cx.w = cx.t >> 5; cx.lane = cx.t & 31;
    cx.pos = p.pos0 + cx.step * TOKENS;
    // The next instruction is on its way while this one runs.
    Record next;
    next.load(sm_queue(smem).code + (cx.pc + 1 == sm_queue(smem).count ? 0 : cx.pc + 1) * 32, cx.lane);
    counter_waits(cx);
    TRACE_STAMP(cx, 0);
    switch (cx.field(F_OP)) {
      case 0: op_attention<PACKET, PACKET, BF16, false>(cx); break;
      case 1: op_norm_gate_up<PACKET, BF16, BF16, PACKET, BF16, false, Geometry<128, 4, 4, 1>>(cx, ring); break;
      case 2: op_norm_qkv<false, PACKET, BF16, BF16, PACKET, false, false, Geometry<128, 4, 4, 1>>(cx, ring); break;
      case 3: op_norm_lm_head<PACKET, BF16, BF16, false, Geometry<128, 4, 4, 1>>(cx, ring); break;
      case 4: op_boundary<true>(cx); break;
      case 5: op_norm_qkv<true, PLAIN, BF16, BF16, PACKET, false, false, Geometry<128, 4, 4, 1>>(cx, ring); break;
      case 6: op_embed<BF16, false>(cx); break;
      case 7: op_linear_residual<PACKET, BF16, PACKET, BF16, false, false, Geometry<128, 4, 4, 1>>(cx, ring); break;
      case 8: op_linear_residual<PACKET, BF16, PACKET, BF16, false, false, Geometry<320, 10, 10, 1>>(cx, ring); break;
      default: break;
    }
    TRACE_STAMP(cx, 2);
    counter_signals(cx);
    cx.record = next;
    if (++cx.pc == sm_queue(smem).count) {
      if (((const u32*)(smem + CONTROL_AT))[1]) break;
      cx.pc = 0;
      cx.step += 1;
    }
  }
}
