// Speed of each mixer alone: one layer of the paper's 77M shape (d_model 768, 6 heads of 128,
// window and chunk 128, N = 2048), bfloat16, random weights. For each context length the tokens/s
// of a prompt's steps of 512 tokens, and for each number of sessions those of decoding with the
// bytes that a token reads and rewrites and the fractions of this run's read bandwidth that the
// bytes read, and all of them, come to.
//
//   bench_mixers [--threads 2] [--longest 65536] [--sessions 1,4,8,16]
//                [--mixers ovq_attention,gated_delta_net]
//
// A mixer whose step-by-step and whole-prompt results differ by one bit is not timed.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>

#include "kernels/mixers/mixer.h"
#include "tests/bench/bench_util.h"

namespace ovq::bench {
namespace {

constexpr int kModelDim = 768;
constexpr int kPromptRows = 512;  // of one step
constexpr int32_t kSlotCap = 2048;

// Sessions' memory begins at a page, as a server's does: parts of their states are then aligned.
struct alignas(4096) Page {
  std::byte bytes[4096];
  bool operator==(const Page&) const = default;
};
class SessionMemory {
 public:
  explicit SessionMemory(size_t bytes = 0) : pages_((bytes + sizeof(Page) - 1) / sizeof(Page)) {}
  std::byte* data() { return pages_.data()->bytes; }
  bool operator==(const SessionMemory&) const = default;

 private:
  std::vector<Page> pages_;
};

struct Layer {
  std::unique_ptr<SequenceMixer> mixer;
  LayerState where;
  size_t session_bytes;
};

void SetAll(Attrs& attrs, const std::map<std::string, int64_t>& fields) {
  for (const auto& [name, value] : fields) attrs.Set(name, value);
}

// Of the OVQ paper's 77M models.
Layer MakeLayer(const MixerEntry& entry, int64_t longest, DeviceContext& context) {
  std::mt19937 random(1);
  std::map<std::string, std::vector<BF16>> tensors;
  const WeightSource source = [&](const std::string& leaf,
                                  const Shape& shape) -> absl::StatusOr<TensorView> {
    std::vector<BF16>& values = tensors[leaf];
    std::normal_distribution<float> normal(leaf == "self_attn.beta" ? 8.0f : 0.0f, 0.04f);
    for (int64_t i = 0; i < shape.elements(); ++i) values.push_back(RoundToBF16(normal(random)));
    return TensorView{values.data(), DType::kBF16, shape};
  };
  WeightReader weights(source, DType::kBF16, context);
  Attrs model, section;
  model.Set("num_attention_heads", int64_t{6});
  model.Set("head_dim", int64_t{128});
  model.Set("sliding_window", int64_t{128});
  section.Set("chunk_size", int64_t{128});
  section.Set("max_centroids", int64_t{kSlotCap});
  section.Set("codebook_size", int64_t{kSlotCap});
  if (entry.section == "gdn") {
    SetAll(section,
           {{"num_heads", 3}, {"head_dim", 128}, {"value_head_dim", 256}, {"conv_size", 4}});
  } else if (entry.section == "mamba2") {
    SetAll(section, {{"num_heads", 12}, {"head_dim", 64}, {"state_size", 64}});
  } else if (entry.section == "mesa_net") {
    SetAll(section, {{"num_heads", 6}, {"head_dim", 128}});
  } else if (entry.section == "lattice") {
    SetAll(section, {{"num_heads", 6}, {"num_slots", 128}, {"value_head_dim", 128}});
  }
  if (entry.section == "transformer_vq") {  // its enwik8 model, which is of the same width
    SetAll(section,
           {{"num_heads", 1}, {"value_head_dim", 1536}, {"codebook_size", 512}, {"mem_len", 512}});
  }
  auto made = entry.make({.layer = 1,
                          .state = {.model = model,
                                    .section = section,
                                    .d_model = kModelDim,
                                    .kv_dtype = DType::kBF16,
                                    .device = context.device()},
                          .weights = weights,
                          .compute_dtype = DType::kBF16,
                          .context = context});
  Check(made.ok(), "the benchmark's own mixer");
  Layer layer{.mixer = *std::move(made), .where = {}, .session_bytes = 0};
  const MixerState& state = layer.mixer->state();
  const bool grows = state.growth.exists();
  layer.where = {0, state.fixed.bytes(), state.block.bytes(), grows ? 0 : -1};
  const int64_t slots = state.growth.capped() ? kSlotCap : longest + 4096;
  const int64_t blocks = grows ? BlocksOf(slots) : 0;
  layer.session_bytes = state.fixed.bytes() + static_cast<size_t>(blocks) * state.block.bytes();
  return layer;
}

SessionMemory NewSession(const Layer& layer) {
  SessionMemory session(layer.session_bytes);
  const StateFields& fixed = layer.mixer->state().fixed;
  for (size_t i = 0; i < fixed.list().size(); ++i) {
    const auto& initial = fixed.list()[i].initial;
    if (initial) std::ranges::copy(*initial, session.data() + fixed.offset(static_cast<int>(i)));
  }
  return session;
}

// One step of n_rows rows for each session, all at the same position.
void Step(const Layer& layer, DeviceContext& context, const std::vector<std::byte*>& sessions,
          int64_t position, int n_rows, std::vector<BF16>& x, std::vector<float>& y) {
  std::vector<int32_t> row_begin{0}, caps;
  std::vector<int64_t> start;
  for (size_t i = 0; i < sessions.size(); ++i) {
    row_begin.push_back(row_begin.back() + n_rows);
    caps.push_back(kSlotCap);
    start.push_back(position);
  }
  const int64_t rows = row_begin.back();
  y.assign(static_cast<size_t>(rows) * kModelDim, 0.0f);
  const Growth& growth = layer.mixer->state().growth;
  const StagedStep step = StageStep(
      context, {.row_begin = row_begin, .start_pos = start, .slot_cap = caps, .state = sessions},
      {&growth, growth.exists() ? size_t{1} : 0});
  ScratchScope scope(context);
  StepTensors tensors(scope);
  layer.mixer->Forward({context, step.seqs, layer.where, tensors},
                       {.data = x.data(), .dtype = DType::kBF16, .shape = {rows, kModelDim}},
                       {.data = y.data(), .dtype = DType::kF32, .shape = {rows, kModelDim}});
}

bool SplitKeepsEveryBit(const Layer& layer, DeviceContext& context, std::vector<BF16>& x) {
  constexpr int kTokens = 300;
  SessionMemory whole = NewSession(layer), steps = whole;
  std::vector<float> all, one, joined;
  Step(layer, context, {whole.data()}, 0, kTokens, x, all);
  for (int t = 0; t < kTokens; ++t) {
    std::vector<BF16> row(x.begin() + t * kModelDim, x.begin() + (t + 1) * kModelDim);
    Step(layer, context, {steps.data()}, t, 1, row, one);
    joined.insert(joined.end(), one.begin(), one.end());
  }
  return std::memcmp(all.data(), joined.data(), all.size() * sizeof(float)) == 0 && whole == steps;
}

// State bytes one decode step of one session reads.
size_t StateBytesRead(const Layer& layer, int64_t position) {
  const MixerState& state = layer.mixer->state();
  const int64_t slots = state.growth.exists() ? state.growth.live(position, kSlotCap) : 0;
  return state.fixed.bytes() + static_cast<size_t>(BlocksOf(slots)) * state.block.bytes();
}

// State bytes that a token rewrites, the mean of some.
double StateBytesWritten(const Layer& layer, int64_t position, int n_tokens) {
  size_t bytes = 0;
  for (int64_t t = position; t < position + n_tokens; ++t) {
    for (const StateExtent& extent : layer.mixer->Overwrites(layer.where, {t, t + 1, kSlotCap})) {
      bytes += extent.bytes;
    }
  }
  return static_cast<double>(bytes) / n_tokens;
}

// A layer at a position of a session, memory[0]; the others are copies of it.
struct Place {
  const Layer& layer;
  DeviceContext& context;
  const char* name;
  int64_t position;
  std::vector<SessionMemory>& memory;
  std::vector<BF16>& x;
};

void TimePrompt(const Place& at) {
  constexpr int kSteps = 4;
  std::vector<float> y;
  std::vector<double> seconds;
  const SessionMemory before = at.memory[0];
  for (int pass = 0; pass < 5; ++pass) {
    const double begin = Seconds();
    for (int t = 0; t < kSteps; ++t) {
      Step(at.layer, at.context, {at.memory[0].data()}, at.position + t * kPromptRows, kPromptRows,
           at.x, y);
    }
    seconds.push_back((Seconds() - begin) / kSteps);
    at.memory[0] = before;
  }
  std::printf("%-22s %8lld %9s %12.0f\n", at.name, static_cast<long long>(at.position), "prompt",
              kPromptRows / Median(seconds));
}

void TimeDecode(const Place& at, int n_sessions, double bandwidth) {
  std::vector<std::byte*> sessions;
  for (int i = 0; i < n_sessions; ++i) {
    if (i > 0) at.memory[i] = at.memory[0];
    sessions.push_back(at.memory[i].data());
  }
  const int steps = n_sessions == 1 ? 256 : 128;  // whole chunks: updates are counted in
  std::vector<float> y;
  std::vector<double> seconds;
  const SessionMemory before = at.memory[0];
  for (int pass = 0; pass < 3; ++pass) {
    const double begin = Seconds();
    for (int t = 0; t < steps; ++t) {
      Step(at.layer, at.context, sessions, at.position + t, 1, at.x, y);
    }
    seconds.push_back((Seconds() - begin) / steps);
  }
  at.memory[0] = before;
  const double token = Median(seconds) / n_sessions;
  const double read = static_cast<double>(StateBytesRead(at.layer, at.position)) +
                      static_cast<double>(at.layer.mixer->weight_bytes()) / n_sessions;
  const double rewritten = StateBytesWritten(at.layer, at.position, steps);
  std::printf("%-22s %8lld %9d %12.0f %11.0f %11.0f %10.2f %10.2f\n", at.name,
              static_cast<long long>(at.position), n_sessions, 1 / token, read, rewritten,
              read / token / bandwidth, (read + rewritten) / token / bandwidth);
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  CheckFlags(argc, argv, {"--threads", "--longest", "--sessions", "--mixers"});
  const int n_threads = std::atoi(FlagValue(argc, argv, "--threads", "2"));
  const int64_t longest = std::atoll(FlagValue(argc, argv, "--longest", "65536"));
  const std::vector<int64_t> sessions = Numbers(FlagValue(argc, argv, "--sessions", "1,4,8,16"));
  const std::vector<std::string> chosen = Names(FlagValue(argc, argv, "--mixers", ""));
  auto context = *DeviceContext::Make(Device::kCpu, n_threads);
  context->BindThread();
  const double bandwidth = ReadBandwidth(context->n_threads());
  std::printf("read bandwidth %.1f GB/s with %d threads\n", bandwidth * 1e-9, context->n_threads());
  std::printf("%-22s %8s %9s %12s %11s %11s %10s %10s\n", "mixer", "context", "sessions",
              "tokens/s", "bytes read", "rewritten", "of ceiling", "with both");
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<BF16> x(kPromptRows * kModelDim);
  for (BF16& value : x) value = RoundToBF16(normal(random));
  int failures = 0;
  for (const MixerEntry& entry : MixerRegistry()) {
    if (!chosen.front().empty() && !std::ranges::count(chosen, std::string(entry.layer_type)))
      continue;
    const Layer layer = MakeLayer(entry, longest, *context);
    if (!SplitKeepsEveryBit(layer, *context, x)) {
      std::printf("%-22s not timed: it fails the contract\n", entry.layer_type.data());
      ++failures;
      continue;
    }
    std::vector<SessionMemory> memory(static_cast<size_t>(*std::ranges::max_element(sessions)));
    memory[0] = NewSession(layer);
    std::vector<float> y;
    int64_t position = 0;
    for (int64_t target : {128, 1024, 4096, 16384, 65536, 262144, 1048576}) {
      if (target > longest) break;
      while (position < target) {
        const int n_rows = static_cast<int>(std::min<int64_t>(kPromptRows, target - position));
        for (BF16& value : x) value = RoundToBF16(normal(random));
        Step(layer, *context, {memory[0].data()}, position, n_rows, x, y);
        position += n_rows;
      }
      const Place at = {layer, *context, entry.layer_type.data(), position, memory, x};
      TimePrompt(at);
      for (int64_t n : sessions) TimeDecode(at, static_cast<int>(n), bandwidth);
    }
  }
  return failures;
}

}  // namespace
}  // namespace ovq::bench

int main(int argc, char** argv) { return ovq::bench::Main(argc, argv); }
