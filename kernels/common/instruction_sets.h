// The environment variable OVQ_MAX_ISA, which caps the instruction sets that the CPU's kernels use:
// Highway's, oneDNN's, and those of kernels that ask the processor themselves. It is for tests and
// timings of what older machines run.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ovq::kernels {

// A cap allows what comes before it, too, as far as the processor has it.
enum class InstructionSet : uint8_t {
  kBaseline,    // "baseline": what every x86-64 has
  kAvx2,        // "avx2", with FMA
  kAvx2Vnni,    // "avx2_vnni": products of bytes in vectors of 256 bits (AVX-VNNI)
  kAvx512,      // "avx512": F, BW, CD, DQ and VL
  kAvx512Vnni,  // "avx512_vnni"
  kAvx512Bf16,  // "avx512_bf16"
  kAmx,         // "amx"
};

// InvalidArgument: not one of the names above.
absl::StatusOr<InstructionSet> ParseInstructionSet(std::string_view name);

// Reads OVQ_MAX_ISA and caps Highway's instruction sets, once in a process; call it before kernels
// run (DeviceContext::Make does). InvalidArgument: the variable has another value, or the machine
// is not an x86-64.
absl::Status CapInstructionSets();

// The cap; kAmx where there is none. Any thread.
InstructionSet MaxInstructionSet();

// Whether the processor has AVX-VNNI and the cap allows it.
bool HasAvxVnni();
// Whether the processor is an ARM with dot products of bytes (ARMv8.2's option, which ARMv8.4 has).
bool HasNeonDotProducts();

}  // namespace ovq::kernels
