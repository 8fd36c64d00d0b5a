// Fuzzes config.json and, after a byte 0, generation_config.json: either an error that names the
// field, or a model whose states have sizes and whose weights have names.
#include "model/language_model.h"
#include "model/load_config.h"
#include "model/weights.h"
#include "tests/fuzz/bytes.h"
#include "tests/model/model_test_util.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ovq;
  static const model::test::TempFolder folder;
  fuzz::Bytes bytes(data, size);
  folder.Write("config.json", bytes.Word());
  if (bytes.empty()) {
    std::filesystem::remove(folder.file("generation_config.json"));
  } else {
    folder.Write("generation_config.json", bytes.Rest());
  }
  for (const model::CachePolicy& policy : model::CachePolicies()) {
    const absl::StatusOr<model::ModelConfig> config = model::LoadConfig(folder.path(), policy);
    model::ModelConfig partial;
    const absl::Status status = model::LoadConfig(folder.path(), partial, policy);
    Check(config.status() == status, "the config, and as much of it as can be read");
    if (!config.ok()) {
      Check(!status.message().empty(), "an error says what is wrong");
      continue;
    }
    // Reporting all missing weights takes time quadratic in the number of layers.
    model::Weights none;
    Check(config->n_layers > 8 || !model::LanguageModel::Check(*config, none).ok(),
          "no model is without weights");
    const absl::StatusOr<model::StateLayout> layout =
        model::PlanStateLayout(*config, kernels::DType::kBF16, model::StateLimits{},
                               kernels::Device::kCpu, kernels::kHostPageBytes);
    if (!layout.ok()) continue;
    const int64_t cap = layout->default_slot_cap();
    size_t before = 0;
    for (const int64_t position : {0, 1, 1000, 1 << 20}) {
      const size_t now = layout->bytes_at(position, cap);
      Check(before <= now && layout->live_bytes_at(position, cap) <= now, "states only grow");
      before = now;
    }
    Check(before <= layout->bytes_cap(cap), "up to their cap");
    Check(layout->bytes_cap(cap) <= layout->virtual_bytes(), "within their range");
  }
  return 0;
}
