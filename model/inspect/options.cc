#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/flags.h"
#include "base/status_macros.h"
#include "kernels/mixers/common/slots.h"
#include "model/inspect/inspect.h"

namespace ovq::model {
namespace {

constexpr int64_t kMaxPosition = std::numeric_limits<int32_t>::max();

Flags Declare(InspectOptions& o) {
  Flags flags;
  flags.AddArgument("MODEL", Text(o.folder, "a folder"),
                    "model folder: config.json, *.safetensors, tokenizer");
  flags.Add("positions", "N,N,...", Integers(o.positions, 1, kMaxPosition),
            "lengths of sessions whose state is measured", "32768,131072,1048576");
  flags.Add("slot-caps", "N,N,...",
            Integers(o.slot_caps, kernels::kMinSlotCap, kernels::kMaxSlotCap),
            "dictionary caps of these sessions",
            "the model's default cap; of models that --memory can bound 2048, 8192 and 32768");
  std::vector<std::pair<std::string, kernels::DType>> state_dtypes;
  for (const kernels::DType dtype : kernels::AllSlots::kDTypes) {
    state_dtypes.emplace_back(absl::AsciiStrToLower(kernels::DTypeName(dtype)), dtype);
  }
  flags.Add("state-dtype", "TYPE", Choice(o.state_dtype, state_dtypes),
            "keys and values in session states", "bf16 for BF16 checkpoints, else f32");
  flags.AddSwitch(
      "json", [&o] { o.json = true; }, "the report as one JSON object");
  flags.AddEnd(
      "help", [&o] { o.help = true; }, "this text; also -h");
  flags.AddEnd(
      "version", [&o] { o.version = true; }, "the program's name and version");
  return flags;
}

}  // namespace

absl::StatusOr<InspectOptions> ParseInspectOptions(std::span<const std::string> args) {
  InspectOptions options;
  RETURN_IF_ERROR(Declare(options).Read(args));
  if (options.folder.empty() && !options.help && !options.version) {
    return absl::InvalidArgumentError("MODEL: expected a model folder, got none");
  }
  return options;
}

std::string InspectHelp() {
  InspectOptions options;
  return absl::StrCat(
      "ovq-inspect: what a model folder holds, and everything that is wrong with it.\n\n"
      "usage: ovq-inspect MODEL [flags]     (--name value or --name=value)\n\n",
      Declare(options).Help(),
      "\nReads the config, the tokenizer and the names, shapes and types of the tensors, with the\n"
      "checks of a server's start, but no weights: a folder larger than the memory is fine.\n"
      "The report is on stdout; every problem is a line of its own: file, field or tensor, what "
      "was\n"
      "expected.\n"
      "Exit status: 0 no problem, 1 problems, 2 bad usage.\n");
}

}  // namespace ovq::model
