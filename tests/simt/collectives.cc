#include "tests/simt/collectives.h"

#include <bit>

namespace ovq::simt {
namespace {

const LaneValue& At(const void* const* arguments, uint32_t lane) {
  return *static_cast<const LaneValue*>(arguments[lane]);
}

}  // namespace

void WriteSources(const void* const* arguments, uint32_t mask) {
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const LaneValue& value = At(arguments, std::countr_zero(rest));
    value.out = At(arguments, value.source).in;
  }
}

void WriteBallot(const void* const* arguments, uint32_t mask) {
  uint32_t ballot = 0;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if (At(arguments, lane).in != 0) ballot |= 1u << lane;
  }
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    At(arguments, std::countr_zero(rest)).out = ballot;
  }
}

void WriteMatches(const void* const* arguments, uint32_t mask) {
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const LaneValue& value = At(arguments, std::countr_zero(rest));
    value.out = 0;
    for (uint32_t others = mask; others != 0; others &= others - 1) {
      const int lane = std::countr_zero(others);
      if (At(arguments, lane).in == value.in) value.out |= 1u << lane;
    }
  }
}

void FailSource(const char* operation, uint32_t source, Where where) {
  Executor::Get().SetFailure(std::string(operation) + " at " + where.file_name() + ":" +
                                 std::to_string(where.line()) + " reads lane " +
                                 std::to_string(source) + ", which is not in the mask",
                             nullptr);
  Executor::Get().Leave();
}

}  // namespace ovq::simt
