#include "tests/simt/collectives.h"

#include <bit>

namespace ovq::simt {
namespace {

const LaneValue& At(const void* const* arguments, uint32_t lane) {
  return *static_cast<const LaneValue*>(arguments[lane]);
}

void GiveSources(const void* const* arguments, uint32_t mask) {
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const LaneValue& value = At(arguments, std::countr_zero(rest));
    value.out = At(arguments, value.source).in;
  }
}

void GiveBallot(const void* const* arguments, uint32_t mask) {
  uint32_t ballot = 0;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if (At(arguments, lane).in != 0) ballot |= 1u << lane;
  }
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    At(arguments, std::countr_zero(rest)).out = ballot;
  }
}

void GiveMatches(const void* const* arguments, uint32_t mask) {
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const LaneValue& value = At(arguments, std::countr_zero(rest));
    value.out = 0;
    for (uint32_t others = mask; others != 0; others &= others - 1) {
      const int lane = std::countr_zero(others);
      if (At(arguments, lane).in == value.in) value.out |= 1u << lane;
    }
  }
}

}  // namespace

uint32_t Lane() { return Executor::Get().CurrentLane(); }

uint64_t Shuffle(const char* operation, uint32_t mask, uint64_t value, uint32_t source,
                 Where where) {
  Executor& executor = Executor::Get();
  if ((mask >> source & 1) == 0) {
    executor.Fail(std::string(operation) + " at " + where.file_name() + ":" +
                      std::to_string(where.line()) + " reads lane " + std::to_string(source) +
                      ", which is not in the mask",
                  nullptr);
  }
  LaneValue lane{value, source, 0};
  executor.Meet(operation, mask, where, &lane, GiveSources);
  return lane.out;
}

uint32_t Ballot(const char* operation, uint32_t mask, bool predicate, Where where) {
  LaneValue lane{predicate, 0, 0};
  Executor::Get().Meet(operation, mask, where, &lane, GiveBallot);
  return static_cast<uint32_t>(lane.out);
}

uint32_t MatchAny(uint32_t mask, uint64_t value, Where where) {
  LaneValue lane{value, 0, 0};
  Executor::Get().Meet("__match_any_sync", mask, where, &lane, GiveMatches);
  return static_cast<uint32_t>(lane.out);
}

}  // namespace ovq::simt
