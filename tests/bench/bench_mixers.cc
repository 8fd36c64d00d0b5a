// Speed of each mixer alone: one layer of the paper's 77M shape (BenchCase of
// tests/kernels/mixers/mixer_test_util.h) with random weights. Prints, for each context length,
// prefill tokens/s in batches of 512 tokens and, for each number of sessions, decode tokens/s, the
// bytes that a token reads and rewrites, and two fractions of this run's read bandwidth: of the
// bytes read and of all bytes.
//
//   bench_mixers [--threads 2] [--contexts 128,1024,4096,16384,65536]
//                [--sessions 1,4,8,16] [--mixers ovq_attention,gated_delta_net]
//
// Contexts ascend; all their tokens are prefilled, however long that takes.
//
// A mixer whose results differ by one bit between token-by-token and whole-prompt runs is not
// timed.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>

#include "kernels/mixers/mixer.h"
#include "tests/bench/bench_util.h"
#include "tests/kernels/mixers/mixer_test_util.h"

namespace ovq::bench {
namespace {

constexpr int kModelDim = 768;
constexpr int kPromptRows = 512;  // in one batch
constexpr int32_t kSlotCap = 2048;

// Session memory starts at a page, as in a server, so that parts of a state are aligned.
struct alignas(4096) Page {
  std::byte bytes[4096];
  bool operator==(const Page&) const = default;
};
class StateBuffer {
 public:
  explicit StateBuffer(size_t bytes = 0) : pages_((bytes + sizeof(Page) - 1) / sizeof(Page)) {}
  std::byte* data() { return pages_.data()->bytes; }
  bool operator==(const StateBuffer&) const = default;

 private:
  std::vector<Page> pages_;
};

struct Layer {
  std::unique_ptr<kernels::SequenceMixer> mixer;
  kernels::LayerState where;
  size_t session_bytes, weight_bytes;
};

Layer MakeLayer(const kernels::MixerEntry& entry, int64_t longest,
                kernels::DeviceContext& context) {
  kernels::WeightCount weights;
  auto made =
      kernels::test::MakeMixer(kernels::test::BenchCase(entry.layer_type), context, &weights);
  Check(made.ok(), "the benchmark's own mixer");
  Layer layer{
      .mixer = *std::move(made), .where = {}, .session_bytes = 0, .weight_bytes = weights.bytes};
  const kernels::MixerState& state = layer.mixer->state();
  const bool grows = state.growth.exists();
  layer.where = {0, state.fixed.bytes(), state.block.bytes(), state.head_bytes(), grows ? 0 : -1};
  const int64_t slots = state.growth.capped() ? kSlotCap : longest + 4096;
  const int64_t blocks = grows ? kernels::NumBlocks(slots) : 0;
  layer.session_bytes = state.fixed.bytes() + static_cast<size_t>(blocks) * state.block.bytes();
  return layer;
}

StateBuffer NewSession(const Layer& layer) {
  StateBuffer session(layer.session_bytes);
  const kernels::StateFields& fixed = layer.mixer->state().fixed;
  for (size_t i = 0; i < fixed.list().size(); ++i) {
    const auto& initial = fixed.list()[i].initial;
    if (initial) std::ranges::copy(*initial, session.data() + fixed.offset(static_cast<int>(i)));
  }
  return session;
}

// Runs n_rows tokens for each session, all at the same position.
void Step(const Layer& layer, kernels::DeviceContext& context,
          const std::vector<std::byte*>& sessions, int64_t position, int n_rows,
          std::vector<kernels::BF16>& x, std::vector<float>& y) {
  std::vector<int32_t> token_begin{0}, caps;
  std::vector<int64_t> start;
  for (size_t i = 0; i < sessions.size(); ++i) {
    token_begin.push_back(token_begin.back() + n_rows);
    caps.push_back(kSlotCap);
    start.push_back(position);
  }
  const int64_t rows = token_begin.back();
  y.assign(static_cast<size_t>(rows) * kModelDim, 0.0f);
  const kernels::Growth& growth = layer.mixer->state().growth;
  const kernels::StagedBatch staged = kernels::StageBatch(
      context,
      {.token_begin = token_begin, .start_pos = start, .slot_cap = caps, .state = sessions},
      {&growth, growth.exists() ? size_t{1} : 0});
  kernels::ScratchScope scope(context);
  kernels::BatchTensors tensors(scope);
  layer.mixer->Forward(
      {context, staged.seqs, layer.where, tensors},
      kernels::TensorView{x.data(), kernels::DType::kBF16, {rows, kModelDim}},
      {.data = y.data(), .dtype = kernels::DType::kF32, .shape = {rows, kModelDim}});
}

bool SplitKeepsEveryBit(const Layer& layer, kernels::DeviceContext& context,
                        std::vector<kernels::BF16>& x) {
  constexpr int kTokens = 300;
  StateBuffer whole = NewSession(layer), steps = whole;
  std::vector<float> all, one, joined;
  Step(layer, context, {whole.data()}, 0, kTokens, x, all);
  for (int t = 0; t < kTokens; ++t) {
    std::vector<kernels::BF16> row(x.begin() + t * kModelDim, x.begin() + (t + 1) * kModelDim);
    Step(layer, context, {steps.data()}, t, 1, row, one);
    joined.insert(joined.end(), one.begin(), one.end());
  }
  return std::memcmp(all.data(), joined.data(), all.size() * sizeof(float)) == 0 && whole == steps;
}

// State bytes that one decoded token of one session reads.
size_t StateBytesRead(const Layer& layer, int64_t position) {
  const kernels::MixerState& state = layer.mixer->state();
  const int64_t slots = state.growth.exists() ? state.growth.live(position, kSlotCap) : 0;
  return state.fixed.bytes() + static_cast<size_t>(kernels::NumBlocks(slots)) * state.block.bytes();
}

// State bytes that a token rewrites, averaged over n_tokens.
double StateBytesWritten(const Layer& layer, int64_t position, int n_tokens) {
  size_t bytes = 0;
  for (int64_t t = position; t < position + n_tokens; ++t) {
    for (const kernels::StateExtent& extent :
         layer.mixer->UndoExtents(layer.where, {t, t + 1, kSlotCap})) {
      bytes += extent.total_bytes();
    }
  }
  return static_cast<double>(bytes) / n_tokens;
}

// A setting to time: decoding of n_sessions sessions at a position, or prefill from there on.
struct Setting {
  int64_t position;
  int n_sessions;                    // 0: prefill
  std::vector<double> seconds = {};  // of a token

  int rows() const { return n_sessions == 0 ? kPromptRows : 1; }
  int steps() const {
    return n_sessions == 0 ? 4 : 128;
  }  // whole chunks, so that updates are
     // included
};

// Times all settings of a layer in turn, pass after pass, as the machine's speed drifts.
class LayerBench {
 public:
  LayerBench(const Layer& layer, kernels::DeviceContext& context, std::vector<kernels::BF16>& x)
      : layer_(layer), context_(context), x_(x) {}

  // Prefills up to each of the positions and keeps the states there.
  void Read(const std::vector<int64_t>& positions) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    StateBuffer session = NewSession(layer_);
    int64_t at = 0;
    for (int64_t position : positions) {
      while (at < position) {
        for (kernels::BF16& value : x_) value = kernels::RoundToBF16(normal(random));
        const auto n = static_cast<int>(std::min<int64_t>(kPromptRows, position - at));
        Step(layer_, context_, {session.data()}, at, n, x_, y_);
        at += n;
      }
      kept_.emplace(position, session);
    }
  }

  void Time(std::vector<Setting>& settings) {
    for (int pass = 0; pass < 5; ++pass) {
      for (Setting& setting : settings) setting.seconds.push_back(SecondsOfToken(setting));
    }
  }

  void Print(const Setting& setting, const char* name, double bandwidth) const {
    const double token = Median(setting.seconds);
    const auto position = static_cast<long long>(setting.position);
    if (setting.n_sessions == 0) {
      std::printf("%-22s %8lld %9s %12.0f\n", name, position, "prompt", 1 / token);
      return;
    }
    const double read = static_cast<double>(StateBytesRead(layer_, setting.position)) +
                        static_cast<double>(layer_.weight_bytes) / setting.n_sessions;
    const double rewritten = StateBytesWritten(layer_, setting.position, setting.steps());
    std::printf("%-22s %8lld %9d %12.0f %11.0f %11.0f %10.2f %10.2f\n", name, position,
                setting.n_sessions, 1 / token, read, rewritten, read / token / bandwidth,
                (read + rewritten) / token / bandwidth);
    std::fflush(stdout);
  }

 private:
  double SecondsOfToken(const Setting& setting) {
    const auto n_sessions = static_cast<size_t>(std::max(1, setting.n_sessions));
    memory_.resize(std::max(memory_.size(), n_sessions));
    std::vector<std::byte*> sessions;
    for (size_t i = 0; i < n_sessions; ++i) {
      memory_[i] = kept_.at(setting.position);
      sessions.push_back(memory_[i].data());
    }
    const double begin = Seconds();
    for (int t = 0; t < setting.steps(); ++t) {
      Step(layer_, context_, sessions, setting.position + t * setting.rows(), setting.rows(), x_,
           y_);
    }
    const auto tokens =
        static_cast<double>(setting.steps() * setting.rows()) * static_cast<double>(n_sessions);
    return (Seconds() - begin) / tokens;
  }

  const Layer& layer_;
  kernels::DeviceContext& context_;
  std::vector<kernels::BF16>& x_;
  std::vector<float> y_;
  std::map<int64_t, StateBuffer> kept_;
  std::vector<StateBuffer> memory_;
};

int Main(int argc, char** argv) {
  CheckFlags(argc, argv, {"--threads", "--contexts", "--sessions", "--mixers"});
  const int n_threads = std::atoi(FlagValue(argc, argv, "--threads", "2"));
  const std::vector<int64_t> contexts =
      Numbers(FlagValue(argc, argv, "--contexts", "128,1024,4096,16384,65536"));
  const std::vector<int64_t> sessions = Numbers(FlagValue(argc, argv, "--sessions", "1,4,8,16"));
  const std::vector<std::string> chosen = Names(FlagValue(argc, argv, "--mixers", ""));
  for (const std::string& name : chosen) {
    Check(name.empty() || kernels::FindMixer(name) != nullptr, "--mixers: no such layer type");
  }
  auto context = ValueOrExit(kernels::DeviceContext::Make(kernels::Device::kCpu, n_threads));
  context->BindThread();
  const double bandwidth = ReadBandwidth(context->n_threads());
  std::printf("read bandwidth %.1f GB/s with %d threads\n", bandwidth * 1e-9, context->n_threads());
  std::printf("%-22s %8s %9s %12s %11s %11s %10s %10s\n", "mixer", "context", "sessions",
              "tokens/s", "bytes read", "rewritten", "of ceiling", "with both");
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<kernels::BF16> x(kPromptRows * kModelDim);
  for (kernels::BF16& value : x) value = kernels::RoundToBF16(normal(random));
  int failures = 0;
  for (const kernels::MixerEntry& entry : kernels::MixerRegistry()) {
    if (!chosen.front().empty() && !std::ranges::count(chosen, std::string(entry.layer_type)))
      continue;
    const Layer layer = MakeLayer(entry, *std::ranges::max_element(contexts), *context);
    if (!SplitKeepsEveryBit(layer, *context, x)) {
      std::printf("%-22s not timed: it fails the contract\n", entry.layer_type.data());
      ++failures;
      continue;
    }
    LayerBench bench(layer, *context, x);
    bench.Read(contexts);
    std::vector<Setting> settings;
    for (int64_t position : contexts) {
      settings.push_back({position, 0});
      for (int64_t n : sessions) settings.push_back({position, static_cast<int>(n)});
    }
    bench.Time(settings);
    for (const Setting& setting : settings) {
      bench.Print(setting, entry.layer_type.data(), bandwidth);
    }
  }
  return failures;
}

}  // namespace
}  // namespace ovq::bench

int main(int argc, char** argv) { return ovq::bench::Main(argc, argv); }
