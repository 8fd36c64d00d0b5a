// Every registered mixer on every device keeps the same promises: style of the state, identity of
// bytes under any split, batch, thread count and place in memory, agreement with the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/mixers/mixer.h"
#include "kernels/mixers/stage.h"

namespace ovq {
namespace {

struct Case {
  std::string type;
  int n_heads, n_kv_heads, head_dim, value_head_dim;
  int chunk_len, max_centroids, window;
  DType state_dtype;
  DType compute_dtype;
};

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return c.type + "_h" + std::to_string(c.n_heads) + "g" + std::to_string(c.n_kv_heads) + "d" +
         std::to_string(c.head_dim) + "v" + std::to_string(c.value_head_dim) + "_" +
         DTypeName(c.state_dtype) + "_" + DTypeName(c.compute_dtype) + "_" +
         std::to_string(c.chunk_len) + "w" + std::to_string(c.window);
}

constexpr int kModelDim = 48;
constexpr int kTokens = 333;
constexpr size_t kGuard = 256;
constexpr std::byte kGuardByte{0xA5};

// Random weights of one layer by name; the same for every device.
class RandomLayer {
 public:
  explicit RandomLayer(uint32_t seed) : random_(seed) {}
  WeightSource source() {
    return [this](std::string_view leaf, const Shape& shape) -> absl::StatusOr<TensorView> {
      std::vector<float>& values = tensors_[std::string(leaf)];
      if (values.empty()) {
        const bool beta = leaf == "self_attn.beta";
        std::normal_distribution<float> normal(beta ? 6.0f : 0.0f, beta ? 1.0f : 0.15f);
        for (int64_t i = 0; i < shape.elements(); ++i) values.push_back(normal(random_));
      }
      return TensorView{values.data(), DType::kF32, shape};
    };
  }

 private:
  std::mt19937 random_;
  std::map<std::string, std::vector<float>> tensors_;
};

// A mixer on a device, with the layout of one session's memory: fixed part, then blocks.
class Instance {
 public:
  Instance(const Case& c, Device device, int n_threads)
      : max_centroids_(c.max_centroids), compute_dtype_(c.compute_dtype) {
    context_ = *DeviceContext::Make(device, n_threads);
    context_->BindThread();
    Attrs model, section("section.");
    model.Set("hidden_size", int64_t{kModelDim});
    model.Set("num_attention_heads", int64_t{c.n_heads});
    model.Set("num_key_value_heads", int64_t{c.n_kv_heads});
    model.Set("head_dim", int64_t{c.head_dim});
    model.Set("value_head_dim", int64_t{c.value_head_dim});
    model.Set("sliding_window", int64_t{c.window});
    section.Set("chunk_size", int64_t{c.chunk_len});
    section.Set("max_centroids", int64_t{c.max_centroids});
    section.Set("codebook_size", int64_t{c.max_centroids});
    RandomLayer layer(7);
    const WeightSource source = layer.source();
    auto made = FindMixer(c.type)->make({.layer = 3,
                                         .type = c.type,
                                         .model = model,
                                         .section = section,
                                         .weights = source,
                                         .compute_dtype = c.compute_dtype,
                                         .state_dtype = c.state_dtype,
                                         .context = *context_});
    Check(made.ok(), made.ok() ? "" : std::string(made.status().message()).c_str());
    mixer_ = *std::move(made);
    const MixerState& state = mixer_->state();
    where_ = {.fixed_offset = 0,
              .blocks_offset = state.fixed.bytes(),
              .block_stride = state.block.bytes()};
    const int64_t slots = state.growth.law == Growth::Law::kTokens ? kTokens : c.max_centroids;
    const int64_t blocks =
        state.growth.law == Growth::Law::kNone ? 0 : (slots + kBlockSlots - 1) / kBlockSlots;
    session_bytes_ = state.fixed.bytes() + static_cast<size_t>(blocks) * state.block.bytes();
  }

  size_t session_bytes() const { return session_bytes_; }
  const SequenceMixer& mixer() const { return *mixer_; }

  struct Piece {
    std::byte* session;
    int64_t start;
    std::vector<float> x;  // [n][kModelDim]
    int64_t rows() const { return static_cast<int64_t>(x.size()) / kModelDim; }
  };

  // One step over the pieces; y of all rows, the residual starting at zero.
  std::vector<float> Step(const std::vector<Piece>& pieces) {
    std::vector<float> x;
    std::vector<int32_t> row_begin{0}, caps;
    std::vector<int64_t> start;
    std::vector<std::byte*> state;
    for (const Piece& piece : pieces) {
      x.insert(x.end(), piece.x.begin(), piece.x.end());
      row_begin.push_back(row_begin.back() + static_cast<int32_t>(piece.rows()));
      caps.push_back(max_centroids_);
      start.push_back(piece.start);
      state.push_back(piece.session);
    }
    const StepSeqs seqs = {
        .row_begin = row_begin, .start_pos = start, .max_centroids = caps, .state = state};
    std::vector<BF16> narrow;
    for (float value : x) narrow.push_back(RoundToBF16(value));
    const int64_t n = row_begin.back();
    std::vector<float> y(x.size());
    const bool bf16 = compute_dtype_ == DType::kBF16;
    mixer_->Forward(StageStep(*context_, seqs).seqs,
                    {.data = bf16 ? static_cast<void*>(narrow.data()) : x.data(),
                     .dtype = compute_dtype_,
                     .shape = {n, kModelDim}},
                    where_, *context_,
                    {.data = y.data(), .dtype = DType::kF32, .shape = {n, kModelDim}});
    return y;
  }

 private:
  int32_t max_centroids_;
  DType compute_dtype_;
  std::unique_ptr<DeviceContext> context_;
  std::unique_ptr<SequenceMixer> mixer_;
  LayerState where_;
  size_t session_bytes_ = 0;
};

// Session memory between guard bytes. Starts as NaN everywhere; Reset alone makes it usable.
class Session {
 public:
  explicit Session(size_t bytes)
      : bytes_(bytes), memory_(bytes + 2 * kGuard + 64, std::byte{0xff}) {
    std::memset(memory_.data(), static_cast<int>(kGuardByte), memory_.size());
    std::memset(base(), 0xff, bytes_);
    std::memset(base(), 0, bytes_);
  }
  std::byte* base() {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data() + kGuard);
    return memory_.data() + kGuard + (64 - address % 64) % 64;
  }
  std::vector<std::byte> bytes() { return {base(), base() + bytes_}; }
  void CopyIn(const std::vector<std::byte>& from) { std::memcpy(base(), from.data(), bytes_); }
  bool GuardsIntact() {
    for (std::byte* p = memory_.data(); p != base(); ++p) {
      if (*p != kGuardByte) return false;
    }
    for (std::byte* p = base() + bytes_; p != memory_.data() + memory_.size(); ++p) {
      if (*p != kGuardByte) return false;
    }
    return true;
  }

 private:
  size_t bytes_;
  std::vector<std::byte> memory_;
};

std::vector<float> RandomRows(int n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<size_t>(n) * kModelDim);
  for (float& value : rows) value = normal(random);
  return rows;
}

std::vector<float> Rows(const std::vector<float>& all, int64_t begin, int64_t end) {
  return {all.begin() + begin * kModelDim, all.begin() + end * kModelDim};
}

// Passes all rows through one session, cut at the given positions.
std::vector<float> RunTokens(Instance& instance, Session& session, const std::vector<float>& x,
                             std::vector<int64_t> cuts) {
  const int64_t n = static_cast<int64_t>(x.size()) / kModelDim;
  cuts.push_back(n);
  std::vector<float> y;
  int64_t begin = 0;
  for (int64_t end : cuts) {
    if (end == begin) continue;
    const std::vector<float> part = instance.Step({{session.base(), begin, Rows(x, begin, end)}});
    y.insert(y.end(), part.begin(), part.end());
    begin = end;
  }
  return y;
}

template <class T>
bool SameBytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

class MixerContract : public ::testing::TestWithParam<Case> {
 protected:
  static std::vector<int64_t> EveryToken() {
    std::vector<int64_t> cuts(kTokens - 1);
    std::iota(cuts.begin(), cuts.end(), 1);
    return cuts;
  }
  static std::vector<int64_t> RandomCuts(uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int64_t> cuts;
    for (int64_t at = 0; (at += 1 + static_cast<int64_t>(random() % 90)) < kTokens;) {
      cuts.push_back(at);
    }
    return cuts;
  }
  const std::vector<float> x_ = RandomRows(kTokens, 11);
};

TEST_P(MixerContract, AnySplitGivesTheSameBytes) {
  for (Device device : {Device::kReference, Device::kCpu}) {
    SCOPED_TRACE(DeviceName(device));
    Instance instance(GetParam(), device, 1);
    Session whole(instance.session_bytes());
    const std::vector<float> expected = RunTokens(instance, whole, x_, {});
    for (const auto& cuts : {EveryToken(), RandomCuts(1), RandomCuts(2)}) {
      Session session(instance.session_bytes());
      EXPECT_TRUE(SameBytes(RunTokens(instance, session, x_, cuts), expected));
      EXPECT_TRUE(SameBytes(session.bytes(), whole.bytes()));
      EXPECT_TRUE(session.GuardsIntact());
    }
  }
}

TEST_P(MixerContract, CompanyAndThreadsDoNotMatter) {
  Instance alone(GetParam(), Device::kCpu, 1);
  Session expected_session(alone.session_bytes());
  const std::vector<float> expected = RunTokens(alone, expected_session, x_, {});

  Instance crowded(GetParam(), Device::kCpu, 2);
  std::vector<std::vector<float>> inputs;
  std::vector<Session> sessions;
  for (uint32_t i = 0; i < 8; ++i) {
    inputs.push_back(i == 4 ? x_ : RandomRows(kTokens, 100 + i));
    sessions.emplace_back(crowded.session_bytes());
  }
  std::mt19937 random(5);
  std::vector<int64_t> done(8, 0);
  std::vector<float> y;
  while (done[4] < kTokens) {
    std::vector<Instance::Piece> pieces;
    int64_t first_row = 0, rows_before = 0, rows = 0;
    for (size_t i = 0; i < 8; ++i) {
      const int64_t n =
          std::min<int64_t>(kTokens - done[i], 1 + static_cast<int64_t>(random() % 70));
      if (n == 0) continue;
      if (i == 4) {
        first_row = rows_before;
        rows = n;
      }
      pieces.push_back({sessions[i].base(), done[i], Rows(inputs[i], done[i], done[i] + n)});
      done[i] += n;
      rows_before += n;
    }
    const std::vector<float> step = Rows(crowded.Step(pieces), first_row, first_row + rows);
    y.insert(y.end(), step.begin(), step.end());
  }
  EXPECT_TRUE(SameBytes(y, expected));
  EXPECT_TRUE(SameBytes(sessions[4].bytes(), expected_session.bytes()));
  for (Session& session : sessions) EXPECT_TRUE(session.GuardsIntact());
}

TEST_P(MixerContract, MovedStateContinuesAsIfNeverMoved) {
  Instance instance(GetParam(), Device::kCpu, 1);
  Session stayed(instance.session_bytes()), first(instance.session_bytes()),
      second(instance.session_bytes());
  const std::vector<float> expected = RunTokens(instance, stayed, x_, {200});
  instance.Step({{first.base(), 0, Rows(x_, 0, 200)}});
  const std::vector<std::byte> blob = first.bytes();
  std::memset(first.base(), 0xff, blob.size());
  second.CopyIn(blob);
  const std::vector<float> y = instance.Step({{second.base(), 200, Rows(x_, 200, kTokens)}});
  EXPECT_TRUE(SameBytes(y, Rows(expected, 200, kTokens)));
  EXPECT_TRUE(SameBytes(second.bytes(), stayed.bytes()));
}

TEST_P(MixerContract, CpuAgreesWithReference) {
  const Case& c = GetParam();
  Instance reference(c, Device::kReference, 1), cpu(c, Device::kCpu, 1);
  Session reference_session(reference.session_bytes()), cpu_session(cpu.session_bytes());
  const std::vector<float> expected = RunTokens(reference, reference_session, x_, {});
  const std::vector<float> y = RunTokens(cpu, cpu_session, x_, {});
  // Outputs are sums of n_heads * value_head_dim products of size ~0.15: in float32 the error is a
  // small multiple of 2^-23 sqrt(terms) (softmax scores up to beta = 8 multiply it by 8). bfloat16
  // rounds keys, values and the attended vector, each to 2^-9 relative, and a rounding that falls
  // the other way moves an output by that much; stochastic rounding moves a mean by up to 2^-8.
  const bool bf16 = c.state_dtype == DType::kBF16 || c.compute_dtype == DType::kBF16;
  const double scale = 0.15 * std::sqrt(static_cast<double>(c.n_heads * c.value_head_dim));
  const double tolerance = bf16 ? scale * 8 * 0x1p-8 : scale * 64 * 0x1p-23;
  double worst = 0;
  size_t where = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const double error = std::abs(static_cast<double>(y[i]) - expected[i]);
    if (!(error <= worst)) {
      worst = error;
      where = i;
    }
  }
  EXPECT_LE(worst, tolerance) << "token " << where / kModelDim << " channel " << where % kModelDim
                              << ": " << y[where] << " expected " << expected[where];
}

TEST_P(MixerContract, RunsFarBeyondTwoToTheForty) {
  Instance instance(GetParam(), Device::kCpu, 1);
  if (instance.mixer().state().growth.law == Growth::Law::kTokens) return;
  Session whole(instance.session_bytes()), split(instance.session_bytes());
  const int64_t start = (int64_t{1} << 40) / (GetParam().chunk_len * kBlockSlots) *
                        (GetParam().chunk_len * kBlockSlots);
  const std::vector<float> x = Rows(x_, 0, 200);
  const std::vector<float> expected = instance.Step({{whole.base(), start, x}});
  for (float value : expected) ASSERT_TRUE(std::isfinite(value));
  std::vector<float> y;
  for (int64_t t = 0; t < 200; ++t) {
    const std::vector<float> row = instance.Step({{split.base(), start + t, Rows(x, t, t + 1)}});
    y.insert(y.end(), row.begin(), row.end());
  }
  EXPECT_TRUE(SameBytes(y, expected));
  EXPECT_TRUE(SameBytes(whole.bytes(), split.bytes()));
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const MixerEntry& entry : MixerRegistry()) {
    const std::string type(entry.layer_type);
    const DType f32 = DType::kF32, bf16 = DType::kBF16;
    cases.push_back({type, 2, 2, 32, 32, 16, 24, 16, f32, f32});
    cases.push_back({type, 4, 2, 16, 24, 48, 100, 65, f32, f32});
    cases.push_back({type, 2, 1, 20, 16, 128, 300, 128, bf16, f32});
    cases.push_back({type, 3, 3, 64, 64, 100, 64, 1, bf16, bf16});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, MixerContract, ::testing::ValuesIn(Cases()), CaseName);

}  // namespace
}  // namespace ovq
