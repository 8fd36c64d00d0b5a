// GPU benchmark: decode batches, chunk updates and prefill of the paper's 478M shape with full
// dictionaries in bfloat16, together with the copy bandwidth and matrix rate of the same run.
//
//   bench_cuda [--json FILE] [--smoke] [--state-dtype bf16|i8]
//
// --state-dtype i8: dictionaries and windows are int8, everything else is unchanged.
// --smoke: a tiny model and few batches, to check that the program works. A model whose logits
// differ
// by one bit between token-by-token and whole-prompt runs is not timed. docs/cuda.md explains the
// figures.
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "kernels/common/product_choices.h"
#include "tests/bench/bench_util.h"
#include "tests/bench/cuda_model_bench.h"
#include "tests/bench/cuda_ovq_bench.h"
#include "tests/bench/random_model.h"

extern const char kBuildStamp[];  // printed by tests/gpu/build_stamp.sh: words, then JSON

namespace ovq::bench {
namespace {

struct Case {
  ModelShape shape;
  Scale scale;
};

// n(10,240,000) = 2047 of 2048 centroids.
Case FullCase() {
  return {PaperShape("478m"),
          {.chunk_len = 128,
           .slot_cap = 2048,
           .decode_sessions = {1, 16, 64, 256},
           .decode_position = 10'240'000,
           .decode_steps = 256,
           .update_sessions = 64,
           .update_passes = 5,
           .prefill_sessions = 8,
           .prefill_tokens = 65536,
           .prefill_chunk_tokens = 1024,
           .checked_tokens = 300}};
}

Case SmokeCase() {
  return {{.n_layers = 2, .d_model = 64, .n_heads = 1, .d_ff = 64, .vocab = 64},
          {.chunk_len = 16,
           .slot_cap = 64,
           .decode_sessions = {1, 3},
           .decode_position = 16'000,
           .decode_steps = 4,
           .update_sessions = 2,
           .update_passes = 1,
           .prefill_sessions = 2,
           .prefill_tokens = 64,
           .prefill_chunk_tokens = 32,
           .checked_tokens = 40}};
}

std::filesystem::path WriteModel(const Case& which) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("ovq-bench-cuda-" + std::to_string(getpid()));
  WriteRandomModel(folder, which.shape, "ovq_attention");
  nlohmann::json config = RandomModelConfig(which.shape, "ovq_attention");
  config["ovq"] = {{"chunk_size", which.scale.chunk_len}, {"max_centroids", which.scale.slot_cap}};
  config["sliding_window"] = which.scale.chunk_len;
  std::ofstream(folder / "config.json") << config.dump(1);
  return folder;
}

void Describe(const Ceilings& ceilings, Report& report) {
  const GpuFacts gpu = DescribeGpu();
  report.root()["gpu"] = {{"name", gpu.name},
                          {"memory_bytes", gpu.memory_bytes},
                          {"l2_bytes", gpu.l2_bytes},
                          {"multiprocessors", gpu.n_multiprocessors},
                          {"driver_version", gpu.driver_version},
                          {"runtime_version", gpu.runtime_version}};
  report.root()["ceilings"] = {{"copy_bytes_per_s", ceilings.copy_bytes_per_s},
                               {"read_bytes_per_s", ceilings.read_bytes_per_s},
                               {"matmul_flops_per_s", ceilings.matmul_flops_per_s},
                               {"note", ceilings.note}};
  report.Write();
  std::printf("%s: copy %.0f GB/s, read %.0f GB/s, bfloat16 product %.0f TFLOP/s %s\n",
              gpu.name.c_str(), ceilings.copy_bytes_per_s * 1e-9, ceilings.read_bytes_per_s * 1e-9,
              ceilings.matmul_flops_per_s * 1e-12, ceilings.note.c_str());
  std::fflush(stdout);
}

int Run(const Case& which, kernels::DeviceContext& context, const std::string& folder,
        Report& report) {
  model::ModelOptions options;
  options.compute_dtype = kernels::DType::kBF16;
  options.state_dtype = which.scale.state_dtype;
  options.limits.max_slot_cap = which.scale.slot_cap;
  auto model = model::LanguageModel::Load(folder, options, context);
  if (!model.ok()) {
    std::fprintf(stderr, "bench_cuda: %s\n", std::string(model.status().message()).c_str());
    return 1;
  }
  for (const kernels::ProductChoice& choice : kernels::ProductChoices()) {
    report.root()["products"].push_back({{"in", choice.in},
                                         {"out", choice.out},
                                         {"weights", choice.weights},
                                         {"product", choice.product + ": " + choice.detail},
                                         {"count", choice.count}});
    std::printf("%s\n", choice.ToString().c_str());
  }
  const Ceilings ceilings = MeasureCeilings(context);
  Describe(ceilings, report);
  CudaModelBench bench(**model, context, which.scale, ceilings, report);
  if (!bench.SplitKeepsEveryBit()) {
    report.root()["refused"] = "whole prompt and single steps differ";
    report.Write();
    std::printf("not timed: whole prompt and single steps differ\n");
    return 1;
  }
  bench.Prefill();
  bench.Decode();
  bench.ChunkUpdates();
  OvqPrefill(context, which.scale, which.shape.n_heads, ceilings, report);
  return 0;
}

int Main(int argc, char** argv) {
  bool smoke = false;
  std::string json, state_dtype = "bf16";
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--smoke") {
      smoke = true;
    } else if (argument == "--json" && i + 1 < argc) {
      json = argv[++i];
    } else if (argument == "--state-dtype" && i + 1 < argc) {
      state_dtype = argv[++i];
    } else {
      std::fprintf(stderr,
                   "bench_cuda: expected [--json FILE] [--smoke] [--state-dtype bf16|i8], got %s\n",
                   argv[i]);
      return 2;
    }
  }
  if (state_dtype != "bf16" && state_dtype != "i8") {
    std::fprintf(stderr, "bench_cuda: --state-dtype: expected bf16 or i8, got %s\n",
                 state_dtype.c_str());
    return 2;
  }
  auto context = kernels::DeviceContext::Make(kernels::Device::kCuda, 0);
  if (!context.ok()) {
    std::fprintf(stderr, "bench_cuda: %s\n", std::string(context.status().message()).c_str());
    return 1;
  }
  (*context)->BindThread();
  Report report(json);
  report.root()["build"] = nlohmann::json::parse(std::strchr(kBuildStamp, '{'));
  report.root()["state_dtype"] = state_dtype;
  Case which = smoke ? SmokeCase() : FullCase();
  if (state_dtype == "i8") which.scale.state_dtype = kernels::DType::kI8;
  const std::filesystem::path folder = WriteModel(which);
  const int status = Run(which, **context, folder.string(), report);
  std::filesystem::remove_all(folder);
  return status;
}

}  // namespace
}  // namespace ovq::bench

int main(int argc, char** argv) { return ovq::bench::Main(argc, argv); }
