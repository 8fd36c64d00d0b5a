// Prefill and decode speed of a whole model, from a folder or of the paper's shapes on random
// weights. Prints tokens/s, the bytes that a token moves (weights and live state), the fraction of
// the read bandwidth measured in this run, and the slowest batch of a chunk over the median one,
// where each batch's time is its median over all passes.
//
//   bench_decode [--shape 77m|77m-group4|77m-group8|257m|478m] [--mixer ovq_attention,...]
//                [--threads 2] [--contexts 128,1024,...] [--sessions 1,4,8,16]
//                [--state-dtype bf16|f32|i8|bf16,i8,...]
//                [--centroids 2048|4096,2048,...] [--states read|random] [--passes 5]
//                [--prefills 1] [--weights checkpoint|int8|checkpoint,int8]
//   bench_decode --model FOLDER [--memory model,exact,closest-pair,...] [--threads 2] ...
//
// Several mixers, and several kinds of weights and states of each, are timed in turn within one
// run. Several --centroids give one value for each mixer, as rules differ in how many slots N
// leaves. Each prompt is prefilled --prefills times in turn; the median counts. --shape kvm-120m or
// kvm-350m: checkpoints of the KVM paper's format, with --mixer one of its configurations
// (kvm_paper_model.h). --states random: random states instead of prefilled ones, for contexts that
// take hours to prefill; contexts are then multiples of 256, where no chunk is unfinished. Not for
// closest pairs, whose states refer to one another, nor for int8. A model whose logits differ by
// one bit between token-by-token and whole-prompt runs is not timed.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>

#include "absl/strings/ascii.h"
#include "kernels/mixers/common/slots.h"
#include "model/cache_policy.h"
#include "model/language_model.h"
#include "tests/bench/bench_util.h"
#include "tests/bench/kvm_paper_model.h"
#include "tests/bench/random_model.h"

namespace ovq::bench {
namespace {

constexpr int kMaxSessions = 16;
constexpr int kPrefillRows = 512;  // in a batch
constexpr int64_t kChunk = 256;    // a multiple of every model's chunk length

// Address range of one session; pages are allocated when touched.
class StateBuffer {
 public:
  StateBuffer(const model::StateLayout& layout, int32_t slot_cap)
      : layout_(layout), slot_cap_(slot_cap) {
    void* memory = mmap(nullptr, layout.virtual_bytes(), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    Check(memory != MAP_FAILED, "address space of a session");
    base_ = static_cast<std::byte*>(memory);
    for (const model::StateLayout::Image& image : layout.images()) {
      std::ranges::copy(*image.bytes, base_ + image.offset);
    }
  }
  ~StateBuffer() { munmap(base_, layout_.virtual_bytes()); }
  StateBuffer(const StateBuffer&) = delete;
  StateBuffer& operator=(const StateBuffer&) = delete;

  std::byte* base() const { return base_; }
  void CopyFrom(const StateBuffer& other, int64_t position) {
    for (const kernels::StateExtent& extent : layout_.extents_at(position, slot_cap_)) {
      std::memcpy(base_ + extent.offset, other.base_ + extent.offset, extent.bytes);
    }
  }
  // Fills the state with small bfloat16 numbers; a pair of them is also a small float32.
  void FillRandomly(int64_t position, std::mt19937& random) {
    for (const kernels::StateExtent& extent : layout_.extents_at(position, slot_cap_)) {
      const auto n = static_cast<int64_t>(extent.bytes / sizeof(kernels::BF16));
      auto* values = reinterpret_cast<kernels::BF16*>(base_ + extent.offset);
      for (int64_t i = 0; i < n; ++i) {
        values[i] =
            kernels::RoundToBF16(static_cast<float>(static_cast<int32_t>(random())) * 0x1p-35f);
      }
    }
  }

 private:
  const model::StateLayout& layout_;
  const int32_t slot_cap_;
  std::byte* base_;
};

// A setting to time: n_sessions sessions at `position`.
struct Setting {
  int64_t position;
  int n_sessions;
  std::vector<double> step_seconds;          // one for each pass
  std::vector<std::vector<double>> at_step;  // for each batch of a chunk, one for each pass

  double SlowestOverMedian() const {
    std::vector<double> steps;
    for (const std::vector<double>& seconds : at_step) steps.push_back(Median(seconds));
    return *std::ranges::max_element(steps) / Median(steps);
  }
};

class Bench {
 public:
  Bench(std::string name, std::unique_ptr<model::LanguageModel> model, int32_t slot_cap,
        kernels::DeviceContext& context)
      : name_(std::move(name)),
        owned_(std::move(model)),
        model_(*owned_),
        slot_cap_(slot_cap),
        context_(context),
        random_(3) {
    for (int i = 0; i < kMaxSessions; ++i) sessions_.push_back(NewSession());
  }

  bool SplitKeepsEveryBit() {
    constexpr int kTokens = 300;
    const std::vector<int32_t> tokens = Tokens(kTokens);
    const auto whole = NewSession(), steps = NewSession();
    const std::vector<float> expected = Forward({whole.get()}, tokens, 0, kTokens);
    std::vector<float> logits;
    for (int t = 0; t < kTokens; ++t) {
      const std::vector<float> row = Forward({steps.get()}, {tokens[t]}, t, 1);
      logits.insert(logits.end(), row.begin(), row.end());
    }
    return std::memcmp(logits.data(), expected.data(), logits.size() * sizeof(float)) == 0;
  }

  // Prefills one session from context to context, and keeps its state at each.
  void Prefill(const std::vector<int64_t>& contexts) {
    const auto session = NewSession();
    int64_t position = 0;
    for (const int64_t context : contexts) {
      const double begin = Seconds();
      while (position < context) {
        const auto n = static_cast<int>(std::min<int64_t>(kPrefillRows, context - position));
        Forward({session.get()}, Tokens(n), position, /*n_logits=*/1);
        position += n;
      }
      prefill_seconds_[context].push_back(Seconds() - begin);
      kept_[context] = NewSession();
      kept_[context]->CopyFrom(*session, context);
    }
  }
  void PrintPrefills() const {
    int64_t from = 0;
    for (const auto& [context, seconds] : prefill_seconds_) {
      const double speed = static_cast<double>(context - from) / Median(seconds);
      std::printf("%-28s prefill %8lld %9d %12.1f   (from %lld)\n", name_.c_str(),
                  static_cast<long long>(context), 1, speed, static_cast<long long>(from));
      from = context;
    }
    std::fflush(stdout);
  }

  void MakeUpStates(const std::vector<int64_t>& contexts) {
    for (const int64_t context : contexts) {
      Check(context % kChunk == 0, "--states random: contexts are multiples of 256");
      kept_[context] = NewSession();
      kept_[context]->FillRandomly(context, random_);
    }
  }

  // Times one chunk of batches, so that dictionary updates have their usual share.
  void TimePass(Setting& setting) {
    constexpr int kSteps = kChunk;
    std::vector<const StateBuffer*> batch;
    for (int i = 0; i < setting.n_sessions; ++i) {
      sessions_[i]->CopyFrom(*kept_.at(setting.position), setting.position);
      batch.push_back(sessions_[i].get());
    }
    const std::vector<int32_t> tokens = Tokens(setting.n_sessions);
    Forward(batch, tokens, setting.position, 1);  // warms the caches after the copy
    setting.at_step.resize(kSteps);
    const double begin = Seconds();
    for (int t = 1; t <= kSteps; ++t) {
      const double before = Seconds();
      Forward(batch, tokens, setting.position + t, 1);
      setting.at_step[t - 1].push_back(Seconds() - before);
    }
    setting.step_seconds.push_back((Seconds() - begin) / kSteps);
  }

  void Print(const Setting& setting, double bandwidth) const {
    const double step = Median(setting.step_seconds);
    const int n = setting.n_sessions;
    const double bytes = model_.weight_count().ReadBy(n) / n +
                         static_cast<double>(model_.layout().bytes_at(setting.position, slot_cap_));
    std::printf("%-28s decode  %8lld %9d %12.1f %14.0f %10.2f %8.2f\n", name_.c_str(),
                static_cast<long long>(setting.position), n, n / step, bytes,
                bytes * n / step / bandwidth, setting.SlowestOverMedian());
  }

 private:
  std::unique_ptr<StateBuffer> NewSession() const {
    return std::make_unique<StateBuffer>(model_.layout(), slot_cap_);
  }
  std::vector<int32_t> Tokens(int n) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < n; ++i) {
      tokens.push_back(static_cast<int32_t>(random_() % model_.config().vocab_size));
    }
    return tokens;
  }

  // Runs the same number of tokens for each session; returns the logits of the last n_logits of
  // each.
  std::vector<float> Forward(const std::vector<const StateBuffer*>& sessions,
                             const std::vector<int32_t>& tokens, int64_t position, int n_logits) {
    const size_t each = tokens.size() / sessions.size();
    model::Batch batch;
    for (size_t i = 0; i < sessions.size(); ++i) {
      batch.Add(std::span(tokens).subspan(i * each, each), position, slot_cap_, sessions[i]->base(),
                n_logits);
    }
    kernels::ScratchScope scope(context_);
    const kernels::TensorView logits = model_.Forward(batch, context_, scope);
    return {logits.as<float>(), logits.as<float>() + logits.shape.elements()};
  }

  const std::string name_;
  const std::unique_ptr<model::LanguageModel> owned_;
  const model::LanguageModel& model_;
  const int32_t slot_cap_;
  kernels::DeviceContext& context_;
  std::mt19937 random_;
  std::map<int64_t, std::unique_ptr<StateBuffer>> kept_;    // by context
  std::map<int64_t, std::vector<double>> prefill_seconds_;  // by context, one for each pass
  std::vector<std::unique_ptr<StateBuffer>> sessions_;
};

std::unique_ptr<model::LanguageModel> LoadFolder(const std::string& folder,
                                                 const model::ModelOptions& options,
                                                 kernels::DeviceContext& context) {
  auto model = model::LanguageModel::Load(folder, options, context);
  if (model.ok()) return *std::move(model);
  std::fprintf(stderr, "%s\n", std::string(model.status().message()).c_str());
  std::exit(1);
}

std::unique_ptr<model::LanguageModel> LoadRandomModel(const std::string& shape,
                                                      const std::string& mixer,
                                                      const model::ModelOptions& options,
                                                      kernels::DeviceContext& context) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("ovq-bench-" + shape + "-" + mixer);
  if (!std::filesystem::exists(folder / "model.safetensors")) {
    if (IsKvmPaperShape(shape)) {
      WriteKvmPaperModel(folder, shape, mixer);
    } else {
      WriteRandomModel(folder, PaperShape(shape), mixer);
    }
  }
  return LoadFolder(folder.string(), options, context);
}

// The policy of this name, as the server's --memory has it.
model::CachePolicy ParseCachePolicy(const std::string& name) {
  if (const model::CachePolicy* const policy = model::FindCachePolicy(name)) return *policy;
  std::fprintf(stderr, "--memory: unknown value %s\n", name.c_str());
  std::exit(2);
}

// The type of this name, as the server's --weights has it.
kernels::WeightType ParseWeightType(const std::string& name) {
  if (name == "checkpoint") return kernels::WeightType::kAsComputed;
  if (name == "int8") return kernels::WeightType::kInt8;
  std::fprintf(stderr, "--weights: unknown value %s\n", name.c_str());
  std::exit(2);
}

// The type of this name, as the server's --state-dtype has it.
kernels::DType ParseStateType(const std::string& name) {
  for (const kernels::DType dtype : kernels::AllSlots::kDTypes) {
    if (name == absl::AsciiStrToLower(kernels::DTypeName(dtype))) return dtype;
  }
  std::fprintf(stderr, "--state-dtype: unknown value %s\n", name.c_str());
  std::exit(2);
}

int Main(int argc, char** argv) {
  CheckFlags(
      argc, argv,
      {"--threads", "--contexts", "--sessions", "--centroids", "--states", "--passes", "--prefills",
       "--shape", "--mixer", "--state-dtype", "--model", "--memory", "--weights"});
  const int n_threads = std::atoi(FlagValue(argc, argv, "--threads", "2"));
  const std::vector<int64_t> contexts =
      Numbers(FlagValue(argc, argv, "--contexts", "128,512,1024,4096,16384,32768,65536"));
  const std::vector<int64_t> sessions = Numbers(FlagValue(argc, argv, "--sessions", "1,4,8,16"));
  const std::vector<int64_t> centroids = Numbers(FlagValue(argc, argv, "--centroids", "2048"));
  const std::string states = FlagValue(argc, argv, "--states", "read");
  const int passes = std::atoi(FlagValue(argc, argv, "--passes", "5")),
            prefills = std::atoi(FlagValue(argc, argv, "--prefills", "1"));
  const std::string shape = FlagValue(argc, argv, "--shape", "77m");
  const std::vector<std::string> dtypes = Names(FlagValue(argc, argv, "--state-dtype", "bf16"));
  auto context = ValueOrExit(kernels::DeviceContext::Make(kernels::Device::kCpu, n_threads));
  context->BindThread();
  model::ModelOptions options;
  options.limits.max_slot_cap = static_cast<int32_t>(*std::ranges::max_element(centroids));
  options.limits.max_unbounded_tokens = contexts.back() + 2 * kChunk;

  const std::string folder = FlagValue(argc, argv, "--model", "");
  const std::string names = folder.empty() ? FlagValue(argc, argv, "--mixer", "ovq_attention")
                                           : FlagValue(argc, argv, "--memory", "model");

  const std::vector<std::string> weights = Names(FlagValue(argc, argv, "--weights", "checkpoint")),
                                 timed_names = Names(names);
  Check(centroids.size() == 1 || centroids.size() == timed_names.size(),
        "--centroids: one for all, or one for each mixer or memory");

  std::vector<std::unique_ptr<Bench>> benches;
  const auto add = [&](const std::string& name, const std::string& kind, const std::string& dtype,
                       int32_t slot_cap) {
    if (!folder.empty()) options.cache_policy = ParseCachePolicy(name);
    options.weights = ParseWeightType(kind);
    options.state_dtype = ParseStateType(dtype);
    Check(states != "random" || options.state_dtype != kernels::DType::kI8,
          "--states random: not of int8");
    auto model = folder.empty() ? LoadRandomModel(shape, name, options, *context)
                                : LoadFolder(folder, options, *context);
    std::printf("%s, %s, %.1fM parameters, weights %s, state %s, N = %d, %d threads\n",
                folder.empty() ? shape.c_str() : folder.c_str(), name.c_str(),
                static_cast<double>(model->parameters()) * 1e-6, kind.c_str(), dtype.c_str(),
                slot_cap, context->n_threads());
    std::string label = name;
    if (weights.size() > 1) label += " " + kind;
    if (dtypes.size() > 1) label += " " + dtype;
    benches.push_back(std::make_unique<Bench>(label, std::move(model), slot_cap, *context));
    return benches.back()->SplitKeepsEveryBit();
  };
  for (size_t i = 0; i < timed_names.size(); ++i) {
    const std::string& name = timed_names[i];
    const auto slot_cap = static_cast<int32_t>(centroids[centroids.size() == 1 ? 0 : i]);
    for (const std::string& kind : weights) {
      for (const std::string& dtype : dtypes) {
        if (add(name, kind, dtype, slot_cap)) continue;
        std::printf("not timed: whole prompt and single steps differ\n");
        return 1;
      }
    }
  }
  std::printf("%-28s %-7s %8s %9s %12s %14s %10s %8s\n", "mixer", "phase", "context", "sessions",
              "tokens/s", "bytes/token", "of ceiling", "slowest");
  for (int pass = 0; pass < (states == "random" ? 1 : prefills); ++pass) {
    for (const std::unique_ptr<Bench>& bench : benches) {
      if (states == "random") {
        bench->MakeUpStates(contexts);
      } else {
        bench->Prefill(contexts);
      }
    }
  }
  for (const std::unique_ptr<Bench>& bench : benches) bench->PrintPrefills();

  // Passes alternate over all settings, so that other load on the machine slows all of them alike.
  std::vector<Setting> settings;
  for (const int64_t position : contexts) {
    for (const int64_t n : sessions) settings.push_back({position, static_cast<int>(n), {}, {}});
  }
  std::vector<std::vector<Setting>> timed(benches.size(), settings);
  std::vector<double> bandwidths;
  for (int pass = 0; pass < passes; ++pass) {
    bandwidths.push_back(ReadBandwidth(context->n_threads()));
    for (size_t i = 0; i < settings.size(); ++i) {
      for (size_t b = 0; b < benches.size(); ++b) benches[b]->TimePass(timed[b][i]);
    }
  }
  const double bandwidth = Median(bandwidths);
  for (size_t b = 0; b < benches.size(); ++b) {
    for (const Setting& setting : timed[b]) benches[b]->Print(setting, bandwidth);
  }
  std::printf("read bandwidth %.1f GB/s, medians of %d passes\n", bandwidth * 1e-9, passes);
  return 0;
}

}  // namespace
}  // namespace ovq::bench

int main(int argc, char** argv) { return ovq::bench::Main(argc, argv); }
