// Runs a rendered kernel on the host: main CASE SEED [MUTANT]. CASE is a folder with `case.txt` (see
// README.md) and the files it names; tokens and a hash of the output are printed launch by launch. Exit code 0 when every launch
// ended by itself, 1 when one was given up, 3 when it got stuck, 4 when the text broke a rule.
#include <fstream>
#include <sstream>
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
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) amk_host::fail("cannot read %s", path.c_str());
  Memory m;
  m.bytes = (u64)in.tellg();
  m.at = (u8*)aligned_alloc(256, (m.bytes + 255) / 256 * 256 + 256);
  in.seekg(0);
  in.read((char*)m.at, (std::streamsize)m.bytes);
  return m;
}
void copy(u8* to, const u8* from, u32 bytes) {
  for (u32 i = 0; i < bytes; i += 8) *(u64*)(to + i) = *(const u64*)(from + i);
}
void body(void* argument) { amk_megakernel(*(const Params*)argument); }
}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) amk_host::fail("usage: main CASE SEED [MUTANT]");
  const std::string folder = std::string(argv[1]) + "/";
  u64 seed = strtoull(argv[2], nullptr, 0);
  if (argc > 3) amk_host::mutant = (u32)strtoul(argv[3], nullptr, 0);
  std::ifstream in(folder + "case.txt");
  if (!in) amk_host::fail("cannot read %scase.txt", folder.c_str());
  const Memory tables = read(folder + "tables.bin"), arena = read(folder + "arena.bin"), weights = read(folder + "weights.bin");
  amk_host::add_constant(tables.at, tables.bytes);
  amk_host::add_constant(weights.at, weights.bytes);
  amk_host::set_arena(arena.at, arena.bytes);
  std::vector<std::pair<u64, u64>> zero;
  u32 blocks = 0, launches = 0;
  u64 output_at = 0, output_bytes = 0;
  std::string line;
  bool given_up = false;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string what;
    words >> what;
    if (what == "blocks") words >> blocks;
    if (what == "constant" || what == "zero" || what == "output") {
      u64 at = 0, bytes = 0;
      words >> at >> bytes;
      if (what == "constant") amk_host::add_constant(arena.at + at, bytes);
      if (what == "zero") zero.push_back({at, bytes});
      if (what == "output") { output_at = at; output_bytes = bytes; }
    }
    if (what != "launch") continue;
    Params p = {};
    words >> p.pos0 >> p.steps >> p.epoch_base >> p.prompt_len >> p.flags >> p.spin_limit;
    while (p.eos_count < 8 && words >> p.eos[p.eos_count]) ++p.eos_count;
    std::vector<u32> tokens(p.steps);
    u32 progress = 0;
    p.weights = weights.at;
    p.arena = arena.at;
    p.tables = tables.at;
    p.host_tokens = tokens.data();
    p.host_progress = &progress;
    for (const auto& [at, bytes] : zero) memset(arena.at + at, 0, bytes);
    const amk_host::Launch launch = {blocks, THREADS, SMEM_BYTES, seed++, body, &p, copy};
    amk_host::run(launch);
    printf("tokens");
    for (u32 i = 0; i < progress; ++i) printf(" %u", tokens[i]);
    printf("\n");
    const SpinReport& r = *(const SpinReport*)(arena.at + REPORT_AT);
    if (r.given_up) {
      given_up = true;
      printf("given up %u: sm %u instruction %u edge %u expected %u seen %u step %u\n", r.given_up, r.sm, r.pc, r.edge, r.expected,
             r.seen, r.step);
    }
    if (output_bytes) {
      u64 hash = 0xcbf29ce484222325ull;
      for (u64 i = 0; i < output_bytes; ++i) hash = (hash ^ arena.at[output_at + i]) * 0x100000001b3ull;
      printf("output %016llx\n", hash);
      std::ofstream out(folder + "output." + std::to_string(launches) + ".bin", std::ios::binary);
      out.write((const char*)arena.at + output_at, (std::streamsize)output_bytes);
    }
    ++launches;
  }
  return given_up;
}
