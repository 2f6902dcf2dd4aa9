// Runs a rendered kernel on the host: main CASE SEED [MUTANT]. CASE is a folder with `case.txt` (see
// README.md) and its files; tokens and a hash of the output are printed launch by launch. Exit code 0 when every launch
// ended by itself, 1 when one was given up, 3 when it got stuck, 4 when the text broke a rule.
#include <string>
#include <vector>

#include "runtime.h"

namespace amk_host { unsigned mutant = 0; }
#include "kernel.cpp"

namespace {
struct Memory {
  u8* at = nullptr;
  u64 bytes = 0;
};
// A file in memory aligned as device allocations are.
Memory read(const std::string& path) {
  FILE* const in = fopen(path.c_str(), "rb");
  if (!in || fseek(in, 0, SEEK_END)) amk_host::fail("cannot read %s", path.c_str());
  Memory m;
  m.bytes = (u64)ftell(in);
  m.at = (u8*)aligned_alloc(256, (m.bytes + 255) / 256 * 256 + 256);
  rewind(in);
  if (fread(m.at, 1, m.bytes, in) != m.bytes) amk_host::fail("cannot read %s", path.c_str());
  fclose(in);
  return m;
}
void write(const std::string& path, const u8* at, u64 bytes) {
  FILE* const out = fopen(path.c_str(), "wb");
  if (!out || fwrite(at, 1, bytes, out) != bytes || fclose(out)) amk_host::fail("cannot write %s", path.c_str());
}
struct Range {
  u64 at, bytes;
};
void copy(u8* to, const u8* from, u32 bytes) {
  for (u32 i = 0; i < bytes; i += 8) *(u64*)(to + i) = *(const u64*)(from + i);
}
void body(void* argument) { amk_megakernel(*(const Params*)argument); }
u64 hash(const u8* at, u64 bytes) {
  u64 h = 0xcbf29ce484222325ull;
  for (u64 i = 0; i < bytes; ++i) h = (h ^ at[i]) * 0x100000001b3ull;
  return h;
}
}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) amk_host::fail("usage: main CASE SEED [MUTANT]");
  const std::string folder = std::string(argv[1]) + "/";
  u64 seed = strtoull(argv[2], nullptr, 0);
  if (argc > 3) amk_host::mutant = (u32)strtoul(argv[3], nullptr, 0);
  const Memory tables = read(folder + "tables.bin"), arena = read(folder + "arena.bin"), weights = read(folder + "weights.bin");
  const std::vector<u8> before(arena.at, arena.at + arena.bytes);
  const u64 tables_hash = hash(tables.at, tables.bytes), weights_hash = hash(weights.at, weights.bytes);
  amk_host::add_constant(tables.at, tables.bytes);
  amk_host::add_constant(weights.at, weights.bytes);
  amk_host::set_arena(arena.at, arena.bytes);
  std::vector<Range> zero, kept;
  Range output = {0, 0};
  u32 blocks = 0, launches = 0;
  bool given_up = false;
  FILE* const in = fopen((folder + "case.txt").c_str(), "r");
  if (!in) amk_host::fail("cannot read %scase.txt", folder.c_str());
  char what[16];
  while (fscanf(in, " %15s", what) == 1) {
    const std::string word = what;
    Range r;
    if (word == "blocks") {
      if (fscanf(in, "%u", &blocks) != 1) amk_host::fail("case.txt: blocks takes a number");
    } else if (word != "launch") {
      if (fscanf(in, "%llu %llu", &r.at, &r.bytes) != 2) amk_host::fail("case.txt: %s takes two numbers", what);
      if (word == "zero") zero.push_back(r);
      if (word == "output") output = r;
      if (word == "kept" || word == "constant") kept.push_back(r);
      if (word == "constant") amk_host::add_constant(arena.at + r.at, r.bytes);
    } else {
      Params p = {};
      if (fscanf(in, "%u %u %u %u %u %llu", &p.pos0, &p.steps, &p.epoch_base, &p.prompt_len, &p.flags, &p.spin_limit) != 6)
        amk_host::fail("case.txt: launch takes six numbers");
      while (p.eos_count < 8 && fscanf(in, "%u", &p.eos[p.eos_count]) == 1) ++p.eos_count;
      std::vector<u32> tokens(p.steps);
      u32 progress = 0;
      p.weights = weights.at;
      p.arena = arena.at;
      p.tables = tables.at;
      p.host_tokens = tokens.data();
      p.host_progress = &progress;
      for (const Range& z : zero) memset(arena.at + z.at, 0, z.bytes);
      const amk_host::Launch launch = {blocks, THREADS, SMEM_BYTES, seed++, body, &p, copy};
      amk_host::run(launch);
      printf("tokens");
      for (u32 i = 0; i < progress; ++i) printf(" %u", tokens[i]);
      printf("\n");
      const SpinReport& report = *(const SpinReport*)(arena.at + REPORT_AT);
      if (report.given_up) {
        given_up = true;
        printf("given up %u: sm %u instruction %u edge %u expected %u seen %u step %u\n", report.given_up, report.sm, report.pc,
               report.edge, report.expected, report.seen, report.step);
      }
      for (const Range& k : kept)
        if (memcmp(before.data() + k.at, arena.at + k.at, k.bytes)) amk_host::fail("the arena was overwritten in %llu+%llu", k.at, k.bytes);
      if (hash(tables.at, tables.bytes) != tables_hash) amk_host::fail("the tables were overwritten");
      if (hash(weights.at, weights.bytes) != weights_hash) amk_host::fail("the weights were overwritten");
      if (output.bytes) {
        printf("output %016llx\n", hash(arena.at + output.at, output.bytes));
        write(folder + "output." + std::to_string(launches) + ".bin", arena.at + output.at, output.bytes);
      }
      ++launches;
    }
  }
  fclose(in);
  return given_up;
}
