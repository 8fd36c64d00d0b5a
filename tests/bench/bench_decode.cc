// Prefill and decode speed of a whole model of the paper's shapes on random weights: tokens/s,
// bytes a token moves (weights and live state), fraction of the read bandwidth measured in this
// run.
//
//   bench_decode [--shape 77m|257m|478m] [--mixer ovq_attention] [--threads 2]
//                [--contexts 128,1024,...] [--sessions 1,4,8,16] [--state-dtype bf16|f32]
//                [--passes 5]
//
// A model whose step-by-step and whole-prompt logits differ by one bit is not timed.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>

#include "model/language_model.h"
#include "tests/bench/bench_util.h"
#include "tests/bench/random_model.h"

namespace ovq::bench {
namespace {

constexpr int kMaxSessions = 16;
constexpr int kPrefillRows = 512;  // of a step
constexpr int32_t kSlotCap = 2048;

// One session's address range; pages appear as they are touched.
class SessionMemory {
 public:
  explicit SessionMemory(const StateLayout& layout) : layout_(layout) {
    void* memory = mmap(nullptr, layout.virtual_bytes(), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    Check(memory != MAP_FAILED, "address space of a session");
    base_ = static_cast<std::byte*>(memory);
  }
  ~SessionMemory() { munmap(base_, layout_.virtual_bytes()); }
  SessionMemory(const SessionMemory&) = delete;
  SessionMemory& operator=(const SessionMemory&) = delete;

  std::byte* base() const { return base_; }
  void CopyFrom(const SessionMemory& other, int64_t position) {
    for (const StateExtent& extent : layout_.extents_at(position, kSlotCap)) {
      std::memcpy(base_ + extent.offset, other.base_ + extent.offset, extent.bytes);
    }
  }

 private:
  const StateLayout& layout_;
  std::byte* base_;
};

// What is timed: n_sessions sessions at `position`.
struct Setting {
  int64_t position;
  int n_sessions;
  std::vector<double> step_seconds;  // one a pass
};

class Bench {
 public:
  Bench(const LanguageModel& model, DeviceContext& context)
      : model_(model), context_(context), random_(3), prefilled_(model.layout()) {
    for (int i = 0; i < kMaxSessions; ++i) {
      sessions_.push_back(std::make_unique<SessionMemory>(model.layout()));
    }
  }

  bool SplitKeepsEveryBit() {
    constexpr int kTokens = 300;
    const std::vector<int32_t> tokens = Tokens(kTokens);
    const SessionMemory whole(model_.layout()), steps(model_.layout());
    const std::vector<float> expected = Forward({&whole}, tokens, 0, kTokens);
    std::vector<float> logits;
    for (int t = 0; t < kTokens; ++t) {
      const std::vector<float> row = Forward({&steps}, {tokens[t]}, t, 1);
      logits.insert(logits.end(), row.begin(), row.end());
    }
    return std::memcmp(logits.data(), expected.data(), logits.size() * sizeof(float)) == 0;
  }

  // Takes one session from context to context, keeps its state at each; prints the speed.
  void Prefill(const std::vector<int64_t>& contexts) {
    int64_t position = 0;
    for (const int64_t context : contexts) {
      const double begin = Seconds();
      const int64_t from = position;
      while (position < context) {
        const auto n = static_cast<int>(std::min<int64_t>(kPrefillRows, context - position));
        Forward({&prefilled_}, Tokens(n), position, /*n_logits=*/1);
        position += n;
      }
      const double speed = static_cast<double>(context - from) / (Seconds() - begin);
      std::printf("prefill %8lld %9d %12.1f   (from %lld)\n", static_cast<long long>(context), 1,
                  speed, static_cast<long long>(from));
      std::fflush(stdout);
      kept_[context] = std::make_unique<SessionMemory>(model_.layout());
      kept_[context]->CopyFrom(prefilled_, context);
    }
  }

  // One chunk of steps, so that the share of dictionary updates is as in a long run.
  void TimePass(Setting& setting) {
    constexpr int kSteps = 128;
    std::vector<const SessionMemory*> batch;
    for (int i = 0; i < setting.n_sessions; ++i) {
      sessions_[i]->CopyFrom(*kept_.at(setting.position), setting.position);
      batch.push_back(sessions_[i].get());
    }
    const std::vector<int32_t> tokens = Tokens(setting.n_sessions);
    Forward(batch, tokens, setting.position, 1);  // the copy left the caches in a state of its own
    const double begin = Seconds();
    for (int t = 1; t <= kSteps; ++t) Forward(batch, tokens, setting.position + t, 1);
    setting.step_seconds.push_back((Seconds() - begin) / kSteps);
  }

  void Print(const Setting& setting, double bandwidth) const {
    const double step = Median(setting.step_seconds);
    const int n = setting.n_sessions;
    const double bytes = static_cast<double>(model_.weight_bytes()) / n +
                         static_cast<double>(model_.layout().bytes_at(setting.position, kSlotCap));
    std::printf("decode  %8lld %9d %12.1f %14.0f %10.2f\n",
                static_cast<long long>(setting.position), n, n / step, bytes,
                bytes * n / step / bandwidth);
  }

 private:
  std::vector<int32_t> Tokens(int n) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < n; ++i) {
      tokens.push_back(static_cast<int32_t>(random_() % model_.config().vocab_size));
    }
    return tokens;
  }

  // The same number of tokens for each session; logits of the last n_logits rows of each.
  std::vector<float> Forward(const std::vector<const SessionMemory*>& sessions,
                             const std::vector<int32_t>& tokens, int64_t position, int n_logits) {
    const size_t each = tokens.size() / sessions.size();
    StepBatch batch;
    for (size_t i = 0; i < sessions.size(); ++i) {
      batch.Add(std::span(tokens).subspan(i * each, each), position, kSlotCap, sessions[i]->base(),
                n_logits);
    }
    ScratchScope scope(context_);
    const TensorView logits = model_.Forward(batch, context_, scope);
    return {logits.as<float>(), logits.as<float>() + logits.shape.elements()};
  }

  const LanguageModel& model_;
  DeviceContext& context_;
  std::mt19937 random_;
  SessionMemory prefilled_;
  std::map<int64_t, std::unique_ptr<SessionMemory>> kept_;  // by context
  std::vector<std::unique_ptr<SessionMemory>> sessions_;
};

int Main(int argc, char** argv) {
  const int n_threads = std::atoi(FlagValue(argc, argv, "--threads", "2"));
  const std::vector<int64_t> contexts =
      Numbers(FlagValue(argc, argv, "--contexts", "128,512,1024,4096,16384,32768,65536"));
  const std::vector<int64_t> sessions = Numbers(FlagValue(argc, argv, "--sessions", "1,4,8,16"));
  const int passes = std::atoi(FlagValue(argc, argv, "--passes", "5"));
  const std::string shape = FlagValue(argc, argv, "--shape", "77m");
  const std::string mixer = FlagValue(argc, argv, "--mixer", "ovq_attention");
  const std::string dtype = FlagValue(argc, argv, "--state-dtype", "bf16");
  auto context = *DeviceContext::Make(Device::kCpu, n_threads);
  context->BindThread();

  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("ovq-bench-" + shape + "-" + mixer);
  if (!std::filesystem::exists(folder / "model.safetensors")) {
    WriteRandomModel(folder, PaperShape(shape), mixer);
  }
  ModelOptions options;
  options.state_dtype = dtype == "f32" ? DType::kF32 : DType::kBF16;
  options.limits.max_slot_cap = kSlotCap;
  auto model = LanguageModel::Load(folder.string(), options, *context);
  if (!model.ok()) {
    std::fprintf(stderr, "%s\n", std::string(model.status().message()).c_str());
    return 1;
  }
  std::printf("shape %s, %s, %.1fM parameters, state %s, %d threads\n", shape.c_str(),
              mixer.c_str(), static_cast<double>((*model)->parameters()) * 1e-6, dtype.c_str(),
              context->n_threads());
  Bench bench(**model, *context);
  if (!bench.SplitKeepsEveryBit()) {
    std::printf("not timed: whole prompt and single steps differ\n");
    return 1;
  }
  std::printf("%-7s %8s %9s %12s %14s %10s\n", "phase", "context", "sessions", "tokens/s",
              "bytes/token", "of ceiling");
  bench.Prefill(contexts);

  // Pass after pass over all settings, so that the machine's moods meet all of them alike.
  std::vector<Setting> settings;
  for (const int64_t position : contexts) {
    for (const int64_t n : sessions) settings.push_back({position, static_cast<int>(n), {}});
  }
  std::vector<double> bandwidths;
  for (int pass = 0; pass < passes; ++pass) {
    bandwidths.push_back(ReadBandwidth(context->n_threads()));
    for (Setting& setting : settings) bench.TimePass(setting);
  }
  const double bandwidth = Median(bandwidths);
  for (const Setting& setting : settings) bench.Print(setting, bandwidth);
  std::printf("read bandwidth %.1f GB/s, medians of %d passes\n", bandwidth * 1e-9, passes);
  return 0;
}

}  // namespace
}  // namespace ovq::bench

int main(int argc, char** argv) { return ovq::bench::Main(argc, argv); }
