// What the kernel text needs of a GPU, on the host: threads that are fibers of one OS thread, moved by
// a seeded scheduler; barriers, warp collectives, mbarriers and deferred copies. See README.md.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace amk_host {
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

// The running thread.
u32 thread();
u32 block();
u32 blocks();
u8* shared();  // its block's shared memory
u64 clock();   // switches of the scheduler so far

// A place where another thread may run first.
void point();
// Some word that threads poll has changed.
void changed();
// A poll has failed: others run first. Ends the process when nothing can change any more.
void pause(u32 sm, u32 pc, u32 step, u32 edge, u32 expected, u32 seen);
bool coin();
// Packet words loaded since the running thread began to wait, as the bytes beside them.
struct Loaded {
  static constexpr u32 MOST = 64;
  u32 count = 0;
  volatile u8* bytes[MOST];
};
Loaded& loaded();
// The two bytes beside a 64-bit word of the arena.
volatile u8* beside(const void* p);
// Ends the process unless `p` is a multiple of `bytes`.
void aligned(const void* p, u32 bytes);
// Ends the process unless the bytes are read-only for the whole launch.
void constant(const void* p, u32 bytes);

// Named barrier of the block, for `threads` threads.
void barrier(u32 id, u32 threads);
void warp_barrier();
// Warp collectives; they order nothing.
u64 shuffle(u64 v, u32 lane);
void mma(float (&c)[4], const u32 (&fragments)[6]);

// mbarriers by shared-memory address; `mark` is what `mbar_init` gave.
u64 mbar_init(u32 bar, u32 count);
void mbar_arrive(u32 bar, u64 mark, u32 expect_bytes);
bool mbar_test(u32 bar, u64 mark, u32 parity);
// Copies, performed later by somebody else.
void copy_bulk(u32 to, const u8* from, u32 bytes, u32 bar);
void copy16(u32 to, const u8* from);
void arrive_after_copies(u32 bar, u64 mark);

// A launch.
struct Launch {
  u32 blocks, threads, shared_bytes;
  u64 seed;
  void (*body)(void*);
  void* argument;
  // Performs one copy, in a translation unit that is instrumented where the kernel is.
  void (*copy)(u8* to, const u8* from, u32 bytes);
};
// The memory packets live in.
void set_arena(const void* p, u64 bytes);
// Byte ranges that are read-only while kernels run.
void add_constant(const void* p, u64 bytes);
// Runs all threads to their end.
void run(const Launch& launch);
[[noreturn]] void fail(const char* format, ...);
}  // namespace amk_host
