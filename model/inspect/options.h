// Command line of ovq-inspect.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/common/tensor.h"

namespace ovq::model {

struct InspectOptions {
  std::string folder;
  bool json = false;
  bool help = false;
  bool version = false;
  std::vector<int64_t> positions = {1 << 15, 1 << 17, 1 << 20};
  std::vector<int64_t> slot_caps;  // empty: the model's default, for closest pairs three caps
  std::optional<kernels::DType> state_dtype;  // default: BF16 for BF16 checkpoints, else F32
};

// args: the command line without the program's name. InvalidArgument names the option and what was
// expected.
absl::StatusOr<InspectOptions> ParseInspectOptions(std::span<const std::string> args);
std::string InspectHelp();

}  // namespace ovq::model
