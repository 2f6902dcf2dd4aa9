// The scheduler. This file is compiled without instrumentation: what it does orders nothing for
// ThreadSanitizer but where it says so (`order_after`, `order_before`). Functions of the C library are
// watched all the same, so nothing here grows, shrinks or moves memory while threads run.
#include "runtime.h"

#include <cstdarg>
#include <map>
#include <string>
#include <memory>
#include <sys/mman.h>
#include <ucontext.h>
#include <utility>
#include <vector>

extern "C" {
__attribute__((weak)) void* __tsan_get_current_fiber(void);
__attribute__((weak)) void* __tsan_create_fiber(unsigned flags);
__attribute__((weak)) void __tsan_switch_to_fiber(void* fiber, unsigned flags);
__attribute__((weak)) void __tsan_acquire(void* at);
__attribute__((weak)) void __tsan_release(void* at);
}

namespace amk_host {
namespace {

// Threads as the sanitizer sees them; a switch alone orders nothing.
const bool watched = __tsan_create_fiber != nullptr;
// They are dear, so that each is taken again by later launches.
std::vector<void*> identities;
void* identity_new() {
  if (!watched) return nullptr;
  if (identities.empty()) return __tsan_create_fiber(0);
  void* const fiber = identities.back();
  identities.pop_back();
  return fiber;
}
void identity_drop(void* fiber) { if (watched) identities.push_back(fiber); }
void identity_switch(void* fiber) { if (watched) __tsan_switch_to_fiber(fiber, 1); }
void order_before(void* word) { if (watched) __tsan_release(word); }
void order_after(void* word) { if (watched) __tsan_acquire(word); }

// Where a thread goes on. `swapcontext` would do everywhere, but asks the system each time.
#if defined(__x86_64__)
extern "C" void amk_host_switch(void** from, void* to);
asm(R"(
.text
amk_host_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
struct Context {
  void* top = nullptr;
  void start(void* stack, u64 bytes, void (*entry)()) {
    void** at = (void**)((u8*)stack + bytes) - 1;  // a return address would be here
    *--at = (void*)entry;
    for (u32 i = 0; i < 6; ++i) *--at = nullptr;
    top = at;
  }
};
void go(Context& from, Context& to) { amk_host_switch(&from.top, to.top); }
#else
struct Context {
  ucontext_t inner;
  void start(void* stack, u64 bytes, void (*entry)()) {
    getcontext(&inner);
    inner.uc_stack.ss_sp = stack;
    inner.uc_stack.ss_size = bytes;
    inner.uc_link = nullptr;
    makecontext(&inner, entry, 0);
  }
};
void go(Context& from, Context& to) { swapcontext(&from.inner, &to.inner); }
#endif

constexpr u64 STACK_BYTES = 256 << 10;
constexpr u32 COLLECTIVE_WORDS = 6;
constexpr u32 QUEUE_TASKS = 256;

struct Fiber;

// Two words take turns, so that one who leaves late learns nothing of the next round.
struct Barrier {
  u32 arrived = 0, threads = 0, round = 0;
  char words[2] = {};
  std::vector<Fiber*> waiting;
};
struct Collective {
  u32 arrived = 0, kind = 0, round = 0;
  u64 words[2][32][COLLECTIVE_WORDS];
  double products[2][32][4];
  std::vector<Fiber*> waiting;
};
struct Mbarrier {
  u64 mark;
  u32 count, pending, phase = 0;
  long long bytes = 0;
  char words[2] = {};
};
struct Task {
  u8* to;
  const u8* from;
  u32 bytes;
  Mbarrier* arrive;  // by one thread, after the copies in front
  Mbarrier* complete;
  u32 bar;
};
// Copies of one issuer that land in order; different queues land in any order.
struct Queue {
  void* identity = nullptr;
  u64 first = 0, end = 0;
  Task tasks[QUEUE_TASKS];
  char issued[QUEUE_TASKS];
};
struct Block {
  u32 id, left;
  u8* memory;
  Barrier named[16];
  std::vector<Barrier> warps;
  std::vector<Collective> collectives;
  std::map<u32, Mbarrier> mbarriers;
  std::map<u32, Queue> bulk;   // by mbarrier
  std::map<u32, Queue> small;  // by thread
};
struct Fiber {
  Context context;
  void* stack;
  void* identity;
  Block* block;
  u32 thread;
  const char* doing = "running";
  u32 where[6] = {};
  bool done = false;
  Loaded loaded;
};

struct Rng {
  u64 state;
  u64 next() {
    u64 z = state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  u32 below(u32 n) { return (u32)((next() >> 32) * n >> 32); }
  bool one_in(u32 n) { return below(n) == 0; }
};

struct Machine {
  Launch launch;
  Rng rng;
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Fiber*> ready, spinning;
  std::vector<std::pair<Block*, Queue*>> queues;
  Fiber* current = nullptr;
  Context home;
  void* home_identity = nullptr;
  char begun = 0, over = 0;
  u64 switches = 0, changes = 0, seen_changes = 0;
  u32 idle = 0, left = 0;
  // How often threads yield, spinners look again and copies land; chosen by the seed.
  u32 yield_in, look_in, land_in;
  bool near;  // prefer the threads that became ready last
};
Machine* m;
std::vector<std::pair<const u8*, u64>> constants;
const u8* arena;
std::vector<u8> besides;

void complete(Mbarrier& bar) {
  if (bar.pending || bar.bytes) return;
  bar.pending = bar.count;
  ++bar.phase;
  changed();
}
Mbarrier& mbarrier(Block* block, u32 at, u64 mark) {
  const auto found = block->mbarriers.find(at);
  if (found == block->mbarriers.end() || found->second.mark != mark)
    fail("block %u: the mbarrier at %u is not initialised, or its bytes were overwritten", block->id, at);
  return found->second;
}
void arrive(Block* block, u32 at, Mbarrier& bar, u32 expect) {
  order_before(&bar.words[bar.phase & 1]);
  bar.bytes += expect;
  if (bar.pending == 0) fail("block %u: more arrivals at the mbarrier at %u than it counts", block->id, at);
  --bar.pending;
  complete(bar);
}

// The first copy of a queue lands.
void land(u32 at) {
  auto [block, queue] = m->queues[at];
  const u32 place = queue->first++ % QUEUE_TASKS;
  const Task task = queue->tasks[place];
  if (queue->first == queue->end) {
    m->queues[at] = m->queues.back();
    m->queues.pop_back();
  }
  if (!queue->identity) queue->identity = identity_new();
  void* const before = watched ? __tsan_get_current_fiber() : nullptr;
  identity_switch(queue->identity);
  order_after(&queue->issued[place]);
  if (task.bytes) m->launch.copy(task.to, task.from, task.bytes);
  if (task.arrive) arrive(block, task.bar, *task.arrive, 0);
  if (task.complete) {
    order_before(&task.complete->words[task.complete->phase & 1]);
    task.complete->bytes -= task.bytes;
    complete(*task.complete);
  }
  identity_switch(before);
}
void land_any() { land(m->rng.below((u32)m->queues.size())); }
void enqueue(Queue& queue, const Task& task) {
  while (queue.end - queue.first == QUEUE_TASKS)
    for (u32 i = 0; i < m->queues.size(); ++i)
      if (m->queues[i].second == &queue) { land(i); break; }
  const u32 place = queue.end % QUEUE_TASKS;
  queue.tasks[place] = task;
  order_before(&queue.issued[place]);
  if (queue.first == queue.end++) m->queues.push_back({m->current->block, &queue});
}

void stuck() {
  fprintf(stderr, "amk host: stuck, nothing can change any more\n");
  std::map<std::pair<u32, u32>, std::map<std::string, u32>> warps;
  for (const auto& f : m->fibers) {
    if (f->done) continue;
    char text[160];
    if (!strcmp(f->doing, "spin"))
      snprintf(text, sizeof text, "instruction %u of step %u: edge %u, expected %u, seen %u", f->where[1], f->where[2],
               f->where[3], f->where[4], f->where[5]);
    else
      snprintf(text, sizeof text, "%s %u", f->doing, f->where[0]);
    ++warps[{f->block->id, f->thread / 32}][text];
  }
  for (const auto& [at, texts] : warps)
    for (const auto& [text, count] : texts)
      fprintf(stderr, "  block %u warp %u: %u threads at %s\n", at.first, at.second, count, text.c_str());
  fflush(stdout);
  _Exit(3);
}

void look_again() {
  for (Fiber* f : m->spinning) m->ready.push_back(f);
  m->spinning.clear();
}

Fiber* next() {
  if (!m->queues.empty() && m->rng.one_in(m->land_in)) land_any();
  if (m->changes != m->seen_changes) {
    m->idle = 0;
    if (m->rng.one_in(m->look_in)) { m->seen_changes = m->changes; look_again(); }
  }
  while (m->ready.empty()) {
    if (m->changes == m->seen_changes) {
      if (!m->queues.empty()) { land_any(); continue; }
      if (m->spinning.empty() || ++m->idle > 4096) stuck();
    }
    m->seen_changes = m->changes;
    look_again();
  }
  const u32 n = (u32)m->ready.size();
  u32 at = m->rng.below(n);
  if (m->near && !m->rng.one_in(16)) at = n - 1 - m->rng.below(n < 32 ? n : 32);
  Fiber* f = m->ready[at];
  m->ready[at] = m->ready.back();
  m->ready.pop_back();
  return f;
}

// Leaves the running thread where it is and runs another; it is in some list, or will be.
void leave() {
  Fiber* const from = m->current;
  Fiber* const to = next();
  if (to == from) return;
  ++m->switches;
  m->current = to;
  identity_switch(to->identity);
  go(from->context, to->context);
}
void wait(std::vector<Fiber*>& list, const char* doing, u32 what) {
  Fiber* const f = m->current;
  f->doing = doing;
  f->where[0] = what;
  list.push_back(f);
  leave();
  f->doing = "running";
}
void wake(std::vector<Fiber*>& list) {
  for (Fiber* f : list) m->ready.push_back(f);
  list.clear();
}

void fiber_main() {
  order_after(&m->begun);
  m->launch.body(m->launch.argument);
  Fiber* const f = m->current;
  f->done = true;
  order_before(&m->over);
  if (--f->block->left == 0)
    for (const auto& [block, queue] : m->queues)
      if (block == f->block) fail("block %u: copies are still under way after its last thread has ended", block->id);
  ++m->switches;
  if (--m->left == 0) {
    identity_switch(m->home_identity);
    go(f->context, m->home);
  }
  Fiber* const to = next();
  m->current = to;
  identity_switch(to->identity);
  go(f->context, to->context);
}

void barrier_wait(Barrier& bar, u32 threads, const char* doing, u32 id) {
  if (bar.arrived == 0) bar.threads = threads;
  else if (bar.threads != threads) fail("block %u: barrier %u is used for %u and %u threads", block(), id, bar.threads, threads);
  char* const word = &bar.words[bar.round & 1];
  order_before(word);
  if (++bar.arrived == threads) {
    bar.arrived = 0;
    ++bar.round;
    wake(bar.waiting);
    point();
  } else {
    wait(bar.waiting, doing, id);
  }
  order_after(word);
}

float widen(u32 half) { return std::bit_cast<float>(half << 16); }
// The products of a whole warp: lane 4g+t holds rows g and g+8 of a, column g of b.
void multiply(Collective& c) {
  const u32 set = c.round & 1;
  float a[16][16], b[8][16];
  for (u32 lane = 0; lane < 32; ++lane) {
    const u32 g = lane / 4, t = lane % 4;
    const u64* w = c.words[set][lane];
    for (u32 e = 0; e < 2; ++e) {
      const auto half = [&](u32 i) { return widen((u32)w[i] >> (16 * e) & 0xffff); };
      a[g][2 * t + e] = half(0);
      a[g + 8][2 * t + e] = half(1);
      a[g][2 * t + 8 + e] = half(2);
      a[g + 8][2 * t + 8 + e] = half(3);
      b[g][2 * t + e] = half(4);
      b[g][2 * t + 8 + e] = half(5);
    }
  }
  for (u32 lane = 0; lane < 32; ++lane)
    for (u32 i = 0; i < 4; ++i) {
      const u32 row = lane / 4 + (i / 2) * 8, column = lane % 4 * 2 + i % 2;
      double sum = 0;
      for (u32 k = 0; k < 16; ++k) sum += (double)a[row][k] * (double)b[column][k];
      c.products[set][lane][i] = sum;
    }
}
// Joins the other lanes of the warp; gives the set of words of this round.
u32 join(Collective& c, u32 kind) {
  const u32 set = c.round & 1;
  if (c.arrived == 0) c.kind = kind;
  else if (c.kind != kind) fail("block %u warp %u: its lanes are at different collectives", block(), thread() / 32);
  if (++c.arrived == 32) {
    if (kind == 1) multiply(c);
    c.arrived = 0;
    ++c.round;
    wake(c.waiting);
    point();
  } else {
    wait(c.waiting, kind == 1 ? "matrix product" : "shuffle", 0);
  }
  return set;
}
Collective& collective() { return m->current->block->collectives[thread() / 32]; }

}  // namespace

u32 thread() { return m->current->thread; }
u32 block() { return m->current->block->id; }
u32 blocks() { return m->launch.blocks; }
u8* shared() { return m->current->block->memory; }
u64 clock() { return m->switches; }
bool coin() { return m->rng.one_in(2); }
void changed() { ++m->changes; }

void point() {
  if (!m->rng.one_in(m->yield_in)) return;
  m->ready.push_back(m->current);
  leave();
}
void pause(u32 sm, u32 pc, u32 step, u32 edge, u32 expected, u32 seen) {
  Fiber* const f = m->current;
  const u32 where[6] = {sm, pc, step, edge, expected, seen};
  memcpy(f->where, where, sizeof where);
  f->doing = "spin";
  m->spinning.push_back(f);
  leave();
  f->doing = "running";
}
void aligned(const void* p, u32 bytes) {
  if ((uintptr_t)p % bytes) fail("block %u thread %u: an access of %u bytes is not aligned", block(), thread(), bytes);
}
Loaded& loaded() { return m->current->loaded; }
void set_arena(const void* p, u64 bytes) {
  arena = (const u8*)p;
  besides.assign(bytes / 4 + 2, 0);
}
volatile u8* beside(const void* p) { return besides.data() + ((const u8*)p - arena) / 8 * 2; }
void add_constant(const void* p, u64 bytes) { constants.push_back({(const u8*)p, bytes}); }
void constant(const void* p, u32 bytes) {
  if (bytes <= 16) aligned(p, bytes);
  for (const auto& [from, size] : constants)
    if ((const u8*)p >= from && (const u8*)p + (bytes <= 16 ? bytes : 1) <= from + size) return;
  fail("block %u thread %u: a load of constants reads what is not constant", block(), thread());
}
void barrier(u32 id, u32 threads) { barrier_wait(m->current->block->named[id], threads, "barrier", id); }
void warp_barrier() { barrier_wait(m->current->block->warps[thread() / 32], 32, "warp barrier", thread() / 32); }
u64 shuffle(u64 v, u32 lane) {
  Collective& c = collective();
  c.words[c.round & 1][thread() % 32][0] = v;
  return c.words[join(c, 0)][lane][0];
}
void mma(float (&out)[4], const u32 (&fragments)[6]) {
  Collective& c = collective();
  for (u32 i = 0; i < 6; ++i) c.words[c.round & 1][thread() % 32][i] = fragments[i];
  const u32 set = join(c, 1);
  for (u32 i = 0; i < 4; ++i) out[i] = (float)((double)out[i] + c.products[set][thread() % 32][i]);
}
u64 mbar_init(u32 bar, u32 count) {
  Block* const b = m->current->block;
  if (bar % 8) fail("block %u: the mbarrier at %u is not aligned", b->id, bar);
  const u64 mark = m->rng.next();
  b->mbarriers[bar] = Mbarrier{mark, count, count};
  return mark;
}
void mbar_arrive(u32 bar, u64 mark, u32 expect_bytes) {
  Block* const b = m->current->block;
  arrive(b, bar, mbarrier(b, bar, mark), expect_bytes);
}
bool mbar_test(u32 bar, u64 mark, u32 parity) {
  point();
  Mbarrier& b = mbarrier(m->current->block, bar, mark);
  if ((b.phase & 1) == parity) {
    wait(m->spinning, "mbarrier", bar);
    return false;
  }
  order_after(&b.words[parity]);
  return true;
}
void copy_bulk(u32 to, const u8* from, u32 bytes, u32 bar) {
  if (to % 16 || (uintptr_t)from % 16 || bytes % 16) fail("block %u: a bulk copy is not aligned to 16 bytes", block());
  if (to + bytes > m->launch.shared_bytes) fail("block %u: a copy ends past shared memory", block());
  Block* const b = m->current->block;
  const auto found = b->mbarriers.find(bar);
  if (found == b->mbarriers.end()) fail("block %u: a copy completes on %u, which is no mbarrier", b->id, bar);
  enqueue(b->bulk[bar], Task{b->memory + to, from, bytes, nullptr, &found->second, bar});
}
void copy16(u32 to, const u8* from) {
  if (to % 16 || (uintptr_t)from % 16) fail("block %u: a copy is not aligned to 16 bytes", block());
  if (to + 16 > m->launch.shared_bytes) fail("block %u: a copy ends past shared memory", block());
  Block* const b = m->current->block;
  enqueue(b->small[thread()], Task{b->memory + to, from, 16, nullptr, nullptr, 0});
}
void arrive_after_copies(u32 bar, u64 mark) {
  Block* const b = m->current->block;
  enqueue(b->small[thread()], Task{nullptr, nullptr, 0, &mbarrier(b, bar, mark), nullptr, bar});
}

void fail(const char* format, ...) {
  va_list list;
  va_start(list, format);
  fprintf(stderr, "amk host: ");
  vfprintf(stderr, format, list);
  fprintf(stderr, "\n");
  va_end(list);
  fflush(stdout);
  _Exit(4);
}

void run(const Launch& launch) {
  Machine machine;
  m = &machine;
  machine.launch = launch;
  machine.rng = Rng{launch.seed * 0x2545f4914f6cdd1dull + 1};
  const u32 rates[4] = {2, 8, 32, 128};
  machine.yield_in = rates[machine.rng.below(4)];
  machine.look_in = 1 << machine.rng.below(10);
  const u32 landing[4] = {1, 16, 256, 1u << 30};
  machine.land_in = landing[machine.rng.below(4)];
  machine.near = machine.rng.one_in(2);
  const u64 page = 4096, guarded = (launch.shared_bytes + page - 1) / page * page;
  for (u32 b = 0; b < launch.blocks; ++b) {
    auto block = std::make_unique<Block>();
    block->id = b;
    block->left = launch.threads;
    block->warps = std::vector<Barrier>(launch.threads / 32);
    block->collectives = std::vector<Collective>(launch.threads / 32);
    for (auto& c : block->collectives) c.waiting.reserve(32);
    for (auto& b : block->warps) b.waiting.reserve(32);
    for (auto& b : block->named) b.waiting.reserve(launch.threads);
    // The end of shared memory lies against a page that cannot be touched; fresh memory holds NaNs.
    u8* const at = (u8*)mmap(nullptr, guarded + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || mprotect(at, page, PROT_NONE) || mprotect(at + page + guarded, page, PROT_NONE))
      fail("no memory for block %u", b);
    block->memory = at + page + guarded - (launch.shared_bytes + 127) / 128 * 128;
    for (u64 i = 0; i < guarded; ++i) at[page + i] = 0xff;
    machine.blocks.push_back(std::move(block));
    for (u32 t = 0; t < launch.threads; ++t) {
      auto f = std::make_unique<Fiber>();
      f->block = machine.blocks.back().get();
      f->thread = t;
      f->identity = identity_new();
      f->stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (f->stack == MAP_FAILED) fail("no memory for thread %u of block %u", t, b);
      f->context.start(f->stack, STACK_BYTES, fiber_main);
      machine.ready.push_back(f.get());
      machine.fibers.push_back(std::move(f));
    }
  }
  machine.left = (u32)machine.fibers.size();
  machine.ready.reserve(machine.left);
  machine.spinning.reserve(machine.left);
  machine.queues.reserve((u64)launch.blocks * launch.shared_bytes / 8);
  machine.home_identity = watched ? __tsan_get_current_fiber() : nullptr;
  order_before(&machine.begun);
  Fiber* const first = next();
  machine.current = first;
  identity_switch(first->identity);
  go(machine.home, first->context);
  order_after(&machine.over);
  for (auto& f : machine.fibers) {
    identity_drop(f->identity);
    munmap(f->stack, STACK_BYTES);
  }
  for (auto& b : machine.blocks) {
    for (auto* queues : {&b->bulk, &b->small})
      for (auto& [key, queue] : *queues)
        if (queue.identity) identity_drop(queue.identity);
    u8* const low = b->memory - (guarded - (launch.shared_bytes + 127) / 128 * 128);
    munmap(low - page, guarded + 2 * page);
  }
  m = nullptr;
}
}  // namespace amk_host
