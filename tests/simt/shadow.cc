#include "tests/simt/shadow.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace ovq::simt {
namespace {

// Stamp: interval << 32 | clock << 13 | atomic << 12 | who.
constexpr int kClockShift = 13;
constexpr uint64_t kClockMax = (1 << 19) - 1;
constexpr uint64_t kAtomic = 1 << 12;
constexpr uint32_t kWhoMask = 0xfff;
// Values of `who` that are not one thread: several lanes of a warp (+ its number), or threads of
// several warps.
constexpr uint32_t kFirstLanes = 2048;
constexpr uint32_t kManyWarps = kWhoMask;
// Intervals that never come.
constexpr uint64_t kUnfinishedCopy = 0xffffffffull << 32;
constexpr uint64_t kSplit = 0xfffffffeull << 32;
constexpr uint32_t kLastInterval = 0xf0000000;

uint32_t Who(uint64_t stamp) { return stamp & kWhoMask; }
uint32_t Clock(uint64_t stamp) { return (stamp >> kClockShift) & kClockMax; }
uint32_t Interval(uint64_t stamp) { return stamp >> 32; }
bool IsUnfinished(uint64_t stamp) { return Interval(stamp) == Interval(kUnfinishedCopy); }
bool IsSplit(uint64_t stamp) { return stamp == kSplit; }

// kManyWarps if it belongs to none.
uint32_t WarpIndex(uint32_t who) {
  if (who == kManyWarps) return kManyWarps;
  return who >= kFirstLanes ? who - kFirstLanes : who / 32;
}

std::string Name(uint32_t who) {
  if (who == kManyWarps) return "threads of several warps";
  if (who >= kFirstLanes) return "lanes of warp " + std::to_string(who - kFirstLanes);
  return "thread " + std::to_string(who);
}

Conflict ConflictWith(size_t byte, Verdict verdict, uint64_t written, uint64_t read) {
  return {static_cast<int64_t>(byte), verdict,
          Who(verdict == Verdict::kRaceWithRead ? read : written)};
}

}  // namespace

std::string Conflict::Text() const {
  switch (verdict) {
    case Verdict::kFine:
      break;
    case Verdict::kUnwritten:
      return "uninitialised: nobody wrote the byte";
    case Verdict::kUnfinished:
      return "unfinished copy: the copy of " + Name(who) + " to this byte has not been waited for";
    case Verdict::kRaceWithWrite:
      return "race: " + Name(who) + " wrote the byte with no barrier between";
    case Verdict::kRaceWithRead:
      return "race: " + Name(who) + " read the byte with no barrier between";
  }
  return "";
}

void WarpClocks::Reset() {
  std::fill(std::begin(now_), std::end(now_), 0);
  floor_ = 0;
  if (partial_) std::memset(known_, 0, sizeof(known_));
  partial_ = false;
}

void WarpClocks::Sync(uint32_t mask) {
  if (mask == ~0u) {
    floor_ = *std::max_element(std::begin(now_), std::end(now_)) + 1;
    std::fill(std::begin(now_), std::end(now_), floor_);
    return;
  }
  partial_ = true;
  uint32_t joined[32] = {};
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    ++now_[lane];
    for (int other = 0; other < 32; ++other) {
      joined[other] = std::max(joined[other], known_[lane][other]);
    }
    joined[lane] = now_[lane];
  }
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    std::copy(std::begin(joined), std::end(joined), known_[std::countr_zero(rest)]);
  }
}

void Shadow::Resize(size_t bytes) {
  words_.resize(bytes / 4 + 1);
  bytes_.resize(words_.size() * 4);
}

void Shadow::Clear() {
  std::fill(words_.begin(), words_.end(), Cell());
  std::fill(bytes_.begin(), bytes_.end(), Cell());
  first_ = now_ = 1;
}

void Shadow::NextBlock() {
  if (now_ > kLastInterval) Clear();
  first_ = ++now_;
}

inline uint64_t Shadow::Stamp(const Actor& actor, bool atomic) const {
  const uint32_t warp = actor.thread / 32;
  const uint64_t who = actor.whole_warp ? kFirstLanes + warp : actor.thread;
  const uint64_t clock = std::min<uint64_t>(actor.clocks->Now(actor.thread % 32), kClockMax);
  return static_cast<uint64_t>(now_) << 32 | clock << kClockShift | (atomic ? kAtomic : 0) | who;
}

// Whether the access comes before the actor's present one; both lie in this interval. Where the
// stamp tells too little, the answer is yes.
inline bool Shadow::OrderedByWarp(uint64_t stamp, const Actor& actor) {
  const uint32_t who = Who(stamp);
  if (!actor.whole_warp && who == actor.thread) return true;
  if (WarpIndex(who) != actor.thread / 32) return false;
  const uint32_t clock = Clock(stamp);
  if (clock == kClockMax) return true;
  if (actor.whole_warp) return actor.clocks->OrderedForAll(clock);
  if (who >= kFirstLanes) return actor.clocks->partial() || actor.clocks->OrderedForAll(clock);
  return actor.clocks->Ordered(who % 32, clock, actor.thread % 32);
}

inline Verdict Shadow::CheckRead(const Cell& cell, const Actor& actor, bool atomic) const {
  if (OrderedByBarrier(cell.written)) return Verdict::kFine;
  if (IsUnfinished(cell.written)) return Verdict::kUnfinished;
  if (Interval(cell.written) != now_) return Verdict::kUnwritten;
  if (atomic && (cell.written & kAtomic) != 0) return Verdict::kFine;
  return OrderedByWarp(cell.written, actor) ? Verdict::kFine : Verdict::kRaceWithWrite;
}

inline Verdict Shadow::CheckWrite(const Cell& cell, const Actor& actor, bool atomic) const {
  if (IsUnfinished(cell.written)) return Verdict::kUnfinished;
  if (Interval(cell.written) == now_ && !(atomic && (cell.written & kAtomic) != 0) &&
      !OrderedByWarp(cell.written, actor)) {
    return Verdict::kRaceWithWrite;
  }
  if (Interval(cell.read) == now_ && !OrderedByWarp(cell.read, actor)) {
    return Verdict::kRaceWithRead;
  }
  return Verdict::kFine;
}

inline void Shadow::NoteRead(Cell& cell, uint64_t stamp, const Actor& actor) const {
  const uint64_t before = cell.read;
  cell.read = stamp;
  if (Interval(before) != now_ || Who(before) == Who(stamp)) return;
  const uint32_t warp = actor.thread / 32;
  const uint32_t who = WarpIndex(Who(before)) == warp ? kFirstLanes + warp : kManyWarps;
  const uint64_t clock = std::max(Clock(before), Clock(stamp));
  cell.read = static_cast<uint64_t>(now_) << 32 | clock << kClockShift | who;
}

void Shadow::Split(size_t word) {
  if (IsSplit(words_[word].written)) return;
  std::fill_n(bytes_.begin() + word * 4, 4, words_[word]);
  words_[word].written = kSplit;
}

// Calls visit with each cell of the bytes until it objects.
template <class Visit>
inline Conflict Shadow::ForCells(size_t begin, size_t bytes, Visit visit) {
  const size_t end = begin + bytes;
  for (size_t byte = begin; byte < end;) {
    const size_t word = byte / 4;
    const bool whole = byte % 4 == 0 && end - byte >= 4;
    if (whole && !IsSplit(words_[word].written)) {
      const Verdict verdict = visit(words_[word]);
      if (verdict != Verdict::kFine) {
        return ConflictWith(byte, verdict, words_[word].written, words_[word].read);
      }
      byte += 4;
      continue;
    }
    Split(word);
    for (size_t stop = whole ? byte + 4 : byte + 1; byte < stop; ++byte) {
      const Verdict verdict = visit(bytes_[byte]);
      if (verdict != Verdict::kFine) {
        return ConflictWith(byte, verdict, bytes_[byte].written, bytes_[byte].read);
      }
    }
    const Cell* cells = &bytes_[word * 4];
    const auto same = [&](const Cell& cell) {
      return cell.written == cells[0].written && cell.read == cells[0].read;
    };
    if (whole && std::all_of(cells + 1, cells + 4, same)) words_[word] = cells[0];
  }
  return {};
}

Conflict Shadow::Read(size_t begin, size_t bytes, const Actor& actor) {
  const uint64_t stamp = Stamp(actor, false);
  return ForCells(
      begin, bytes, [&](Cell & cell) __attribute__((always_inline)) {
        // The thread has read it already, since the last write: that one would have reset the
        // stamp.
        if (cell.read == stamp) return Verdict::kFine;
        const Verdict verdict = CheckRead(cell, actor, false);
        if (verdict == Verdict::kFine) NoteRead(cell, stamp, actor);
        return verdict;
      });
}

Conflict Shadow::Write(size_t begin, size_t bytes, const Actor& actor) {
  const uint64_t stamp = Stamp(actor, false);
  return ForCells(
      begin, bytes, [&](Cell & cell) __attribute__((always_inline)) {
        const Verdict verdict = CheckWrite(cell, actor, false);
        if (verdict == Verdict::kFine) cell = {stamp, 0};
        return verdict;
      });
}

Conflict Shadow::Atomic(size_t begin, size_t bytes, const Actor& actor) {
  const uint64_t stamp = Stamp(actor, true);
  return ForCells(
      begin, bytes, [&](Cell & cell) __attribute__((always_inline)) {
        const Verdict read = CheckRead(cell, actor, true);
        if (read != Verdict::kFine) return read;
        const Verdict verdict = CheckWrite(cell, actor, true);
        if (verdict == Verdict::kFine) cell = {stamp, 0};
        return verdict;
      });
}

Conflict Shadow::BeginCopy(size_t begin, size_t bytes, const Actor& actor) {
  return ForCells(
      begin, bytes, [&](Cell & cell) __attribute__((always_inline)) {
        const Verdict verdict = CheckWrite(cell, actor, false);
        if (verdict == Verdict::kFine) cell = {kUnfinishedCopy | actor.thread, 0};
        return verdict;
      });
}

void Shadow::EndCopy(size_t begin, size_t bytes, const Actor& actor) {
  const uint64_t stamp = Stamp(actor, false);
  ForCells(
      begin, bytes, [&](Cell & cell) __attribute__((always_inline)) {
        cell = {stamp, 0};
        return Verdict::kFine;
      });
}

}  // namespace ovq::simt
