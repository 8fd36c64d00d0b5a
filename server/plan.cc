#include "server/plan.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/common/state_memory.h"
#include "model/language_model.h"
#include "model/tokenizer.h"
#include "model/weights.h"

namespace ovq {

DType StateDType(const Options& options, const ModelConfig& config) {
  return options.state_dtype.value_or(config.weights_dtype == DType::kBF16 ? DType::kBF16
                                                                           : DType::kF32);
}

namespace {

absl::StatusOr<StateLayout> LayoutOf(const Options& options, const ModelConfig& config) {
  const StateLimits limits = {.max_slot_cap = options.max_slot_cap,
                              .max_unbounded_tokens = options.max_context};
  const size_t page = options.device == Device::kCuda ? kUsualGpuPageBytes : kHostPageBytes;
  return PlanStateLayout(config, StateDType(options, config), limits, options.device, page);
}

// A session whose last position is known reserves its size there, any other its cap.
struct Row {
  int64_t slot_cap;
  std::string tokens;
  size_t bytes;
  std::string full_kv_bytes;
};

std::string KvBytes(int64_t tokens, size_t bytes_per_token) {
  uint64_t product = 0;
  const bool over =
      __builtin_mul_overflow(static_cast<uint64_t>(tokens), bytes_per_token, &product);
  return over ? absl::StrCat("over ", std::numeric_limits<uint64_t>::max()) : absl::StrCat(product);
}

std::vector<Row> MakeRows(const Options& options, const ModelConfig& config,
                          const StateLayout& layout) {
  const size_t kv = FullKvBytesPerToken(config, StateDType(options, config));
  std::vector<int64_t> caps = options.plan_slot_caps;
  if (caps.empty() || !layout.has_slot_cap()) {
    caps = {layout.default_slot_cap()};
  }
  std::vector<Row> rows;
  for (const int64_t cap : caps) {
    rows.push_back({cap, "any", layout.bytes_cap(cap), "-"});
    for (const int64_t tokens : options.plan_tokens) {
      if (layout.has_unbounded() && tokens > options.max_context) continue;
      rows.push_back(
          {cap, absl::StrCat(tokens), layout.bytes_at(tokens, cap), KvBytes(tokens, kv)});
    }
  }
  return rows;
}

}  // namespace

absl::StatusOr<std::string> PlanText(const Options& options) {
  absl::StatusOr<ModelConfig> config = LoadConfig(options.model);
  if (!config.ok()) return config.status();
  absl::StatusOr<StateLayout> layout = LayoutOf(options, *config);
  if (!layout.ok()) return layout.status();

  const size_t memory = *options.state_memory_bytes;
  std::string text =
      absl::StrFormat("model %s, states in %s on %s: %d bytes for states, at most %d sessions\n",
                      config->name, StateDType(options, *config) == DType::kBF16 ? "bf16" : "f32",
                      DeviceName(options.device), memory, options.max_sessions);
  if (options.device == Device::kCuda) {
    absl::StrAppendFormat(&text, "assuming that the GPU gives memory in pages of %d bytes\n",
                          kUsualGpuPageBytes);
  }
  absl::StrAppendFormat(&text, "%13s %16s %16s %14s %10s %20s\n", "max_centroids", "tokens",
                        "bytes_reserved", "fit_in_memory", "sessions", "full_kv_cache_bytes");
  for (const Row& row : MakeRows(options, *config, *layout)) {
    const size_t fit = memory / row.bytes;
    absl::StrAppendFormat(&text, "%13d %16s %16d %14d %10d %20s\n", row.slot_cap, row.tokens,
                          row.bytes, fit, std::min(fit, static_cast<size_t>(options.max_sessions)),
                          row.full_kv_bytes);
  }
  return text;
}

absl::StatusOr<std::string> CheckConfig(const CommandLine& line) {
  const Options& options = line.options;
  absl::StatusOr<ModelConfig> config = LoadConfig(options.model);
  if (!config.ok()) return config.status();
  if (absl::Status status = LayoutOf(options, *config).status(); !status.ok()) return status;
  if (absl::Status status = Weights::Open(options.model).status(); !status.ok()) return status;
  if (absl::Status status = Tokenizer::Load(options.model, *config).status(); !status.ok()) {
    return status;
  }
  std::string text;
  for (const Setting& setting : line.settings) {
    absl::StrAppendFormat(&text, "%s = %s    # %s\n", setting.name, setting.value, setting.origin);
  }
  return text;
}

}  // namespace ovq
