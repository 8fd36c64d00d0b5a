#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/flags.h"
#include "base/status_macros.h"
#include "kernels/mixers/common/slots.h"
#include "model/cache_policy.h"
#include "model/inspect/inspect.h"

namespace ovq::model {
namespace {

constexpr int64_t kMaxPosition = std::numeric_limits<int32_t>::max();

Flags Declare(InspectOptions& o) {
  Flags flags;
  flags.AddArgument("MODEL", Text(o.folder, "a folder or a GGUF file"),
                    "model folder (config.json, *.safetensors, tokenizer) or GGUF file");
  flags.Add("positions", "N,N,...", Integers(o.positions, 1, kMaxPosition),
            "lengths of sessions whose state is measured", "32768,131072,1048576");
  flags.Add(
      "slot-caps", "N,N,...", Integers(o.slot_caps, kernels::kMinSlotCap, kernels::kMaxSlotCap),
      "dictionary caps of these sessions",
      "the model's default cap; of models that the server's --memory can bound 2048, 8192 and "
      "32768");
  std::vector<std::pair<std::string, kernels::DType>> state_dtypes;
  for (const kernels::DType dtype : kernels::AllSlots::kDTypes) {
    state_dtypes.emplace_back(absl::AsciiStrToLower(kernels::DTypeName(dtype)), dtype);
  }
  flags.Add("state-dtype", "TYPE", Choice(o.state_dtype, state_dtypes),
            "keys and values in session states",
            "bf16 for BF16 and quantized checkpoints, else f32");
  flags.Add(
      "shares", "FILE", Text(o.shares.file, "a file"),
      "measure how layers share a session's slots, on this UTF-8 text or, if it ends in .jsonl, "
      "on lines {\"tokens\": [ids], \"scored\": [indices]}; prints no report");
  std::vector<std::pair<std::string, std::string>> memories;
  for (const CachePolicy& policy : CachePolicies()) {
    if (HasSlots(policy)) memories.emplace_back(policy.name, policy.name);
  }
  flags.Add("memory", "NAME", Choice(o.shares.memory, memories), "whose shares, as of ovq-server");
  flags.Add("slots", "N", Number(o.shares.slots, kernels::kMinSlotCap, int64_t{1} << 20),
            "max_centroids that are shared out");
  flags.Add("tokens", "N", Number(o.shares.tokens, 2, int64_t{1} << 24), "a sequence of the text");
  flags.Add("sequences", "N", Number(o.shares.sequences, 1, 1024),
            "sequences to measure on; as many others are tried");
  flags.Add("threads", "N", Number(o.shares.threads, 0, 1024), "threads for that; 0: all");
  flags.AddSwitch("by-head", o.shares.by_head,
                  "then shares of key/value heads, from those of their layers on");
  flags.AddSwitch("write", o.shares.write,
                  "the shares and what was kept beside them into config.json, if they lose less");
  flags.AddSwitch(
      "json", [&o] { o.json = true; }, "the report as one JSON object");
  flags.AddEnd(
      "help", [&o] { o.help = true; }, "this text; also -h");
  flags.AddEnd(
      "version", [&o] { o.version = true; }, "the program's name and version");
  return flags;
}

// Refuses flags of the measurement without --shares, and those of the report with it.
absl::Status CheckTogether(const Flags& flags) {
  if (flags.given("shares")) {
    for (const char* report : {"positions", "slot-caps", "state-dtype"}) {
      if (!flags.given(report)) continue;
      return absl::InvalidArgumentError(absl::StrCat("--", report, " does not go with --shares"));
    }
    return absl::OkStatus();
  }
  for (const char* measured :
       {"memory", "slots", "tokens", "sequences", "threads", "by-head", "write"}) {
    if (!flags.given(measured)) continue;
    return absl::InvalidArgumentError(absl::StrCat("--", measured, " needs --shares"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<InspectOptions> ParseInspectOptions(std::span<const std::string> args) {
  InspectOptions options;
  Flags flags = Declare(options);
  RETURN_IF_ERROR(flags.Read(args));
  if (options.help || options.version) return options;
  if (options.folder.empty()) {
    return absl::InvalidArgumentError("MODEL: expected a model folder or a GGUF file, got none");
  }
  RETURN_IF_ERROR(CheckTogether(flags));
  return options;
}

std::string InspectHelp() {
  InspectOptions options;
  return absl::StrCat(
      "ovq-inspect: what a model folder holds, and everything that is wrong with it.\n\n"
      "usage: ovq-inspect MODEL [flags]     (--name value or --name=value)\n\n",
      Declare(options).Help(),
      "\nReads the config, the tokenizer and, once, the tensors, with the checks of a server's\n"
      "start, but keeps no weights: a folder larger than the memory is fine.\n"
      "The flags from --memory to --write need --shares, with which it loads the model, and "
      "--write\n"
      "replaces config.json.\n"
      "The report is on stdout; every problem is a line of its own: file, field or tensor, what\n"
      "was expected.\n"
      "Exit status: 0 no problem, 1 problems, 2 bad usage.\n");
}

}  // namespace ovq::model
