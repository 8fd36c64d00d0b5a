// ovq-inspect: its command line and its report.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "kernels/common/tensor.h"
#include "model/inspect/shares.h"

namespace ovq::model {

struct InspectOptions {
  std::string folder;
  bool json = false;
  bool help = false;
  bool version = false;
  std::vector<int64_t> positions = {1 << 15, 1 << 17, 1 << 20};
  std::vector<int64_t> slot_caps;  // empty: the model's default, for closest pairs three caps
  std::optional<kernels::DType> state_dtype;  // default: ModelConfig::default_dtype
  ShareOptions shares;  // with a file, shares are measured in place of the report
};

// args: the command line without the program's name. InvalidArgument names the option and what was
// expected.
absl::StatusOr<InspectOptions> ParseInspectOptions(std::span<const std::string> args);
std::string InspectHelp();

// The content of a model folder and all of its problems, found by the checks of a server's start,
// as one JSON object; docs/operations.md has its fields. Weights are mapped but not read. The
// layers are as far as config.json could be read. Sessions are under the config's own policy and,
// if they grow without bound, under closest pairs too; there are none if a layer is invalid.
nlohmann::ordered_json InspectFolder(const InspectOptions& options);
// The report for people. Problems come last, a line each, under a line with their number.
std::string ReportText(const nlohmann::ordered_json& report);

}  // namespace ovq::model
