// GPU benchmark: decode batches, chunk updates and prefill of the paper's 478M shape with full
// dictionaries in bfloat16, together with the copy bandwidth and matrix rate of the same run.
//
//   bench_cuda [--json FILE] [--smoke] [--state-dtype bf16|i8] [--only NAME,...]
//              [--sessions N,...] [--position N] [--prompt N] [--steps N]
//              [--profile] [--keep-model FOLDER]
//
// --state-dtype i8: dictionaries and windows are int8, everything else is unchanged.
// --smoke: a tiny model and few batches, to check that the program works.
// --only: of check, ceilings, prefill, decode, chunk_updates, ovq_prefill, products; default: all.
// --sessions: of the decode batches; --position: where their sessions stand; --steps: how many are
//   timed; --prompt: tokens of a prompt.
// --profile: nothing is timed. The last step of the prompts and a decode batch of each number of
//   sessions, as far as they are wanted, run between cudaProfilerStart and cudaProfilerStop.
// --keep-model: the random model is written into this folder and stays there, or is the one there.
//
// Where logits differ by one bit between token-by-token and whole-prompt runs, the result says so
// (`same_bits`), and the exit status is 1. docs/cuda.md explains the figures.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "kernels/common/product_choices.h"
#include "tests/bench/bench_util.h"
#include "tests/bench/cuda_model_bench.h"
#include "tests/bench/cuda_ovq_bench.h"
#include "tests/bench/cuda_product_bench.h"
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
           .decode_sessions = {1, 8, 16, 32, 64, 128, 256, 620},  // 620: what 80 GB hold
           .decode_position = 10'240'000,
           .decode_steps = 128,
           .update_sessions = 64,
           .update_passes = 5,
           .prefill_sessions = 8,
           .prefill_tokens = 65536,
           .prefill_chunk_tokens = 1024,
           .checked_tokens = 300,
           .product_rows = {1, 16, 64, 256, 8192}}};
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
           .checked_tokens = 40,
           .product_rows = {1, 40}}};
}

// A folder that has this model already stays as it is.
void WriteModel(const Case& which, const std::filesystem::path& folder) {
  nlohmann::json config = RandomModelConfig(which.shape, "ovq_attention");
  config["ovq"] = {{"chunk_size", which.scale.chunk_len}, {"max_centroids", which.scale.slot_cap}};
  config["sliding_window"] = which.scale.chunk_len;
  if (which.shape.vocab >= 256) config["tokenizer"] = "bytes";  // so that a server has texts
  std::ifstream there(folder / "config.json");
  if (there && nlohmann::json::parse(there, nullptr, false) == config) return;
  WriteRandomModel(folder, which.shape, "ovq_attention");
  std::ofstream(folder / "config.json") << config.dump(1);
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

constexpr const char* kNames[] = {"check",         "ceilings",    "prefill", "decode",
                                  "chunk_updates", "ovq_prefill", "products"};

struct Flags {
  bool smoke = false, profile = false;
  std::string json, state_dtype = "bf16", keep_model;
  std::vector<std::string> only{std::begin(kNames), std::end(kNames)};
  std::vector<int64_t> sessions;                // empty: the case's
  int64_t position = 0, prompt = 0, steps = 0;  // 0: the case's

  bool Wants(const char* name) const { return std::ranges::find(only, name) != only.end(); }
};

int Run(const Case& which, const Flags& flags, kernels::DeviceContext& context,
        const std::string& folder, Report& report) {
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
  Ceilings ceilings;
  if (flags.Wants("ceilings") && !flags.profile) ceilings = MeasureCeilings(context);
  Describe(ceilings, report);
  CudaModelBench bench(**model, context, which.scale, ceilings, report);
  if (flags.profile) {
    bench.Profile(flags.Wants("prefill"), flags.Wants("decode"));
    return 0;
  }
  const bool same = !flags.Wants("check") || bench.SplitKeepsEveryBit();
  if (flags.Wants("prefill")) bench.Prefill();
  if (flags.Wants("decode")) bench.Decode();
  if (flags.Wants("chunk_updates")) bench.ChunkUpdates();
  if (flags.Wants("ovq_prefill")) {
    OvqPrefill(context, which.scale, which.shape.n_heads, ceilings, report);
  }
  if (flags.Wants("products")) {
    Products(context, which.shape, which.scale.product_rows, ceilings, report);
  }
  return same ? 0 : 1;
}

// The number of a flag from 1 to `most`; other values end the program.
int64_t Bounded(const std::string& flag, int64_t value, int64_t most) {
  if (value >= 1 && value <= most) return value;
  std::fprintf(stderr, "bench_cuda: %s: expected 1 to %lld, got %lld\n", flag.c_str(),
               static_cast<long long>(most), static_cast<long long>(value));
  std::exit(2);
}

void Read(const std::string& flag, const std::string& value, Flags& flags) {
  if (flag == "--json") {
    flags.json = value;
  } else if (flag == "--state-dtype" && (value == "bf16" || value == "i8")) {
    flags.state_dtype = value;
  } else if (flag == "--keep-model") {
    flags.keep_model = value;
  } else if (flag == "--sessions") {
    flags.sessions = Numbers(value);
    for (const int64_t n : flags.sessions) Bounded(flag, n, 1024);
  } else if (flag == "--position") {
    flags.position = Bounded(flag, std::atoll(value.c_str()), 1 << 30);
  } else if (flag == "--prompt") {
    flags.prompt = Bounded(flag, std::atoll(value.c_str()), 1 << 20);
  } else if (flag == "--steps") {
    flags.steps = Bounded(flag, std::atoll(value.c_str()), 1 << 16);
  } else if (flag == "--only" && std::ranges::all_of(Names(value), [](const std::string& name) {
               return std::ranges::find(kNames, name) != std::end(kNames);
             })) {
    flags.only = Names(value);
  } else {
    std::fprintf(stderr,
                 "bench_cuda: expected [--json FILE] [--smoke] [--state-dtype bf16|i8] "
                 "[--only check,ceilings,prefill,decode,chunk_updates,ovq_prefill,products] "
                 "[--sessions N,...] [--position N] [--prompt N] [--steps N] [--profile] "
                 "[--keep-model FOLDER], "
                 "got %s %s\n",
                 flag.c_str(), value.c_str());
    std::exit(2);
  }
}

Case CaseOf(const Flags& flags) {
  Case which = flags.smoke ? SmokeCase() : FullCase();
  Scale& scale = which.scale;
  if (flags.state_dtype == "i8") scale.state_dtype = kernels::DType::kI8;
  if (!flags.sessions.empty()) {
    scale.decode_sessions.assign(flags.sessions.begin(), flags.sessions.end());
  }
  if (flags.position > 0) scale.decode_position = flags.position;
  if (flags.prompt > 0) {  // up to whole steps
    const int64_t step = scale.prefill_chunk_tokens;
    scale.prefill_tokens = (flags.prompt + step - 1) / step * step;
  }
  if (flags.steps > 0) scale.decode_steps = static_cast<int>(flags.steps);
  return which;
}

int Main(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--smoke" || argument == "--profile") {
      (argument == "--smoke" ? flags.smoke : flags.profile) = true;
    } else {
      Read(argument, i + 1 < argc ? argv[i + 1] : "", flags);
      ++i;
    }
  }
  auto context = kernels::DeviceContext::Make(kernels::Device::kCuda, 0);
  if (!context.ok()) {
    std::fprintf(stderr, "bench_cuda: %s\n", std::string(context.status().message()).c_str());
    return 1;
  }
  (*context)->BindThread();
  Report report(flags.json);
  report.root()["build"] = nlohmann::json::parse(std::strchr(kBuildStamp, '{'));
  report.root()["state_dtype"] = flags.state_dtype;
  const Case which = CaseOf(flags);
  const std::filesystem::path folder =
      flags.keep_model.empty()
          ? std::filesystem::temp_directory_path() / ("ovq-bench-cuda-" + std::to_string(getpid()))
          : std::filesystem::path(flags.keep_model);
  WriteModel(which, folder);
  const int status = Run(which, flags, **context, folder.string(), report);
  if (flags.keep_model.empty()) std::filesystem::remove_all(folder);
  return status;
}

}  // namespace
}  // namespace ovq::bench

int main(int argc, char** argv) { return ovq::bench::Main(argc, argv); }
