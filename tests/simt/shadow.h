// Shadow: the state of every byte of a block's shared memory: who wrote it last and who read it
// since, and when. A block barrier orders everything before it before everything after; between two
// block barriers only __syncwarp orders accesses, those of the lanes that take part. Other warp
// collectives order none: CUDA's guide says that they imply no memory barrier.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ovq::simt {

// WarpClocks: the order of accesses by a warp's lanes since the last block barrier. Every lane has
// a clock that advances at each __syncwarp it takes part in.
class WarpClocks {
 public:
  void Reset();
  void Sync(uint32_t mask);
  uint32_t Now(uint32_t lane) const { return now_[lane]; }
  // Whether what writer did at its time `clock` comes before what reader does now.
  bool Ordered(uint32_t writer, uint32_t clock, uint32_t reader) const {
    return clock < floor_ || (partial_ && clock < known_[reader][writer]);
  }
  // Ordered for all lanes as readers.
  bool OrderedForAll(uint32_t clock) const { return clock < floor_; }
  bool partial() const { return partial_; }

 private:
  uint32_t now_[32] = {};
  uint32_t floor_ = 0;    // everything before this time is known to all lanes
  bool partial_ = false;  // whether known_ holds more than floor_ says
  uint32_t known_[32][32] = {};
};

// The thread or warp that accesses shared memory.
struct Actor {
  uint32_t thread;  // within the block
  bool whole_warp;  // for all lanes of the thread's warp at once, as ldmatrix does
  const WarpClocks* clocks;
};

enum class Verdict : uint32_t { kFine, kUnwritten, kUnfinished, kRaceWithWrite, kRaceWithRead };

// A forbidden access: its first conflicting byte, and the kind of conflict.
struct Conflict {
  int64_t byte = -1;  // none if negative
  Verdict verdict = Verdict::kFine;
  uint32_t who = 0;
  explicit operator bool() const { return byte >= 0; }
  std::string Text() const;
};

class Shadow {
 public:
  void Resize(size_t bytes);
  // The next block starts: no byte counts as written.
  void NextBlock();
  // All threads have met at a block barrier.
  void NextInterval() { ++now_; }
  // Forgets everything, unfinished copies included.
  void Clear();

  Conflict Read(size_t begin, size_t bytes, const Actor& actor);
  Conflict Write(size_t begin, size_t bytes, const Actor& actor);
  // A read and a write that conflicts with no other atomic one.
  Conflict Atomic(size_t begin, size_t bytes, const Actor& actor);
  // The bytes are the target of a copy that lands later; until then nobody may touch them.
  Conflict BeginCopy(size_t begin, size_t bytes, const Actor& actor);
  void EndCopy(size_t begin, size_t bytes, const Actor& actor);

 private:
  // Stamps of the last write and of the reads since: interval, clock, atomic, who.
  struct Cell {
    uint64_t written = 0;
    uint64_t read = 0;
  };

  // Inlined by force: they run for every access, from more places than the compiler would do it
  // for.
  [[gnu::always_inline]] uint64_t Stamp(const Actor& actor, bool atomic) const;
  bool OrderedByBarrier(uint64_t stamp) const {
    return static_cast<uint32_t>((stamp >> 32) - first_) < now_ - first_;
  }
  [[gnu::always_inline]] static bool OrderedByWarp(uint64_t stamp, const Actor& actor);
  [[gnu::always_inline]] Verdict CheckRead(const Cell& cell, const Actor& actor, bool atomic) const;
  [[gnu::always_inline]] Verdict CheckWrite(const Cell& cell, const Actor& actor,
                                            bool atomic) const;
  [[gnu::always_inline]] void NoteRead(Cell& cell, uint64_t stamp, const Actor& actor) const;
  template <class Visit>
  [[gnu::always_inline]] Conflict ForCells(size_t begin, size_t bytes, Visit visit);
  void Split(size_t word);

  // A cell for each word of four bytes; a word of which bytes were accessed alone is split: its
  // bytes have cells of their own until a whole word is written again.
  std::vector<Cell> words_;
  std::vector<Cell> bytes_;
  // Intervals between block barriers are numbered through, over blocks and launches.
  uint32_t first_ = 1;
  uint32_t now_ = 1;
};

}  // namespace ovq::simt
