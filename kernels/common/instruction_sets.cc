#include "kernels/common/instruction_sets.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "hwy/targets.h"

namespace ovq::kernels {
namespace {

constexpr const char* kVariable = "OVQ_MAX_ISA";
constexpr std::array<std::string_view, 7> kNames = {
    "baseline", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx"};

absl::StatusOr<InstructionSet> ReadVariable() {
  const char* const value = std::getenv(kVariable);
  if (value == nullptr) return InstructionSet::kAmx;
#if HWY_ARCH_X86
  return ParseInstructionSet(value);
#else
  return absl::InvalidArgumentError(
      absl::StrCat(kVariable, ": caps the instruction sets of x86-64, which this machine is not"));
#endif
}

const absl::StatusOr<InstructionSet>& Cap() {
  static const auto* const cap = new absl::StatusOr<InstructionSet>(ReadVariable());
  return *cap;
}

// Highway's targets beyond the cap. On x86 a better target has a lower bit, so that this covers
// those of newer versions, too.
int64_t TargetsBeyond([[maybe_unused]] InstructionSet cap) {
#if HWY_ARCH_X86
  if (cap < InstructionSet::kAvx2) return 2 * HWY_AVX2 - 1;
  if (cap < InstructionSet::kAvx512) return HWY_AVX2 - 1;
  if (cap < InstructionSet::kAvx512Vnni) return HWY_AVX3 - 1;
#endif
  return 0;
}

}  // namespace

absl::StatusOr<InstructionSet> ParseInstructionSet(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found != kNames.end()) return static_cast<InstructionSet>(found - kNames.begin());
  std::string names;
  for (const std::string_view known : kNames) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", AbslView(known));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(kVariable, ": expected one of ", names, ", got '", AbslView(name), "'"));
}

absl::Status CapInstructionSets() {
  static const bool is_capped = [] {
    const int64_t beyond = TargetsBeyond(MaxInstructionSet());
    if (beyond != 0) hwy::DisableTargets(beyond);
    return true;
  }();
  (void)is_capped;
  return Cap().status();
}

InstructionSet MaxInstructionSet() { return Cap().value_or(InstructionSet::kAmx); }

bool HasAvxVnni() {
#if defined(__x86_64__)
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 4 & 1) != 0;
  }();
  return has && MaxInstructionSet() >= InstructionSet::kAvx2Vnni;
#else
  return false;
#endif
}

bool HasNeonDotProducts() {
#if defined(__aarch64__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return false;
#endif
}

}  // namespace ovq::kernels
