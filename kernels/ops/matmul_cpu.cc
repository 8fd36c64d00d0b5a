// y[n, out] (+)= x[n, in] W^T, W [out, in], with oneDNN: OneDnnProduct, and the choice between it
// and SimdProduct.
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "kernels/ops/matmul_device.h"

namespace ovq {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;

// Calls have these numbers of rows only, because oneDNN generates code for each (0.3 ms and 0.1 MB
// on two cores of a server CPU). Rows after the last full call are padded to one of them.
constexpr int64_t kMaxRows = 512;
constexpr int64_t kRowBlock = 64;
int64_t RoundUpRows(int64_t n) {
  if (n <= 8) return n;
  for (int64_t size : {12, 16, 24, 32, 48}) {
    if (n <= size) return size;
  }
  return (n + kRowBlock - 1) / kRowBlock * kRowBlock;
}

// oneDNN takes its number of threads from the calling thread's OpenMP setting.
class ScopedThreads {
 public:
  explicit ScopedThreads(int n) : before_(omp_get_max_threads()) { omp_set_num_threads(n); }
  ~ScopedThreads() { omp_set_num_threads(before_); }
  ScopedThreads(const ScopedThreads&) = delete;
  ScopedThreads& operator=(const ScopedThreads&) = delete;

 private:
  int before_;
};

memory::data_type DataType(DType type) {
  return type == DType::kF32 ? memory::data_type::f32 : memory::data_type::bf16;
}

}  // namespace

struct OneDnnProduct::State {
  int64_t in, out;
  DType compute;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::string implementation;
  memory weights;
  // Filled as sizes come up. One thread at a time uses a Linear, so there is no lock.
  std::unordered_map<int64_t, dnnl::matmul> products;  // by 2 * rows + accumulate

  memory::desc XDesc(int64_t n) const { return {{n, in}, DataType(compute), Tag::ab}; }
  memory::desc YDesc(int64_t n) const { return {{n, out}, memory::data_type::f32, Tag::ab}; }
  dnnl::matmul::primitive_desc Describe(int64_t n, const memory::desc& packed,
                                        bool accumulate) const;
  void Pack(const StackedWeights& source, const memory::desc& packed);
  void Run(int64_t n, void* x, float* y, bool accumulate);
  void RunPadded(DeviceContext& context, int64_t n, int64_t size, const std::byte* x, float* y,
                 bool accumulate);
  bool SameImplementationForAllSizes() const;
  bool SameBitsForAnyRows(int n_threads);
};

dnnl::matmul::primitive_desc OneDnnProduct::State::Describe(int64_t n, const memory::desc& packed,
                                                            bool accumulate) const {
  dnnl::primitive_attr attributes;
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  return {dnnl::matmul::desc(XDesc(n), packed, YDesc(n)), attributes, engine};
}

// The layout is the one oneDNN prefers for kRowBlock rows, used for every size.
void OneDnnProduct::State::Pack(const StackedWeights& source, const memory::desc& packed) {
  const size_t row_bytes = static_cast<size_t>(in) * DTypeBytes(compute);
  std::vector<std::byte> plain(static_cast<size_t>(out) * row_bytes);
  for (int64_t row = 0; row < out; ++row) {
    std::byte* dst = plain.data() + static_cast<size_t>(row) * row_bytes;
    if (compute == DType::kF32) {
      CopyRow(source, row, reinterpret_cast<float*>(dst));
    } else {
      CopyRow(source, row, reinterpret_cast<BF16*>(dst));
    }
  }
  // [in, out] with `in` contiguous is the transpose of [out, in].
  memory from({{in, out}, DataType(compute), Tag::ba}, engine, plain.data());
  weights = memory(packed, engine);
  dnnl::reorder(from, weights).execute(stream, from, weights);
  stream.wait();
}

void OneDnnProduct::State::Run(int64_t n, void* x, float* y, bool accumulate) {
  auto found = products.find(2 * n + accumulate);
  if (found == products.end()) {
    dnnl::matmul product(Describe(n, weights.get_desc(), accumulate));
    found = products.emplace(2 * n + accumulate, std::move(product)).first;
  }
  found->second.execute(stream, {{DNNL_ARG_SRC, memory(XDesc(n), engine, x)},
                                 {DNNL_ARG_WEIGHTS, weights},
                                 {DNNL_ARG_DST, memory(YDesc(n), engine, y)}});
  stream.wait();
}

// Runs n rows as a call of `size` rows; the added ones are zero.
void OneDnnProduct::State::RunPadded(DeviceContext& context, int64_t n, int64_t size,
                                     const std::byte* x, float* y, bool accumulate) {
  ScratchScope scratch(context);
  const size_t x_row = static_cast<size_t>(in) * DTypeBytes(compute);
  const auto rows = static_cast<size_t>(n);
  const auto padding = static_cast<size_t>(size - n);
  const auto columns = static_cast<size_t>(out);
  std::byte* wide_x = scratch.Allocate<std::byte>(static_cast<size_t>(size) * x_row);
  float* wide_y = scratch.Allocate<float>(static_cast<size_t>(size) * columns);
  std::memcpy(wide_x, x, rows * x_row);
  std::memset(wide_x + rows * x_row, 0, padding * x_row);
  if (accumulate) {
    std::memcpy(wide_y, y, rows * columns * sizeof(float));
    std::memset(wide_y + rows * columns, 0, padding * columns * sizeof(float));
  }
  Run(size, wide_x, wide_y, accumulate);
  std::memcpy(y, wide_y, rows * columns * sizeof(float));
}

bool OneDnnProduct::State::SameImplementationForAllSizes() const {
  for (int64_t n = 1; n <= kMaxRows; ++n) {
    if (RoundUpRows(n) != n) continue;
    for (bool accumulate : {false, true}) {
      const std::string name = Describe(n, weights.get_desc(), accumulate).impl_info_str();
      if (name != implementation) return false;
    }
  }
  return true;
}

bool OneDnnProduct::State::SameBitsForAnyRows(int n_threads) {
  constexpr int64_t kRows = 192;
  const auto columns = static_cast<size_t>(out);
  const size_t x_row = static_cast<size_t>(in) * DTypeBytes(compute);
  std::vector<std::byte> x(kRows * x_row);
  uint32_t seed = 1;
  for (size_t i = 0; i < static_cast<size_t>(kRows * in); ++i) {
    seed = seed * 1664525u + 1013904223u;
    const float value = static_cast<float>(seed >> 8) * 0x1p-23f - 1;
    if (compute == DType::kF32) {
      reinterpret_cast<float*>(x.data())[i] = value;
    } else {
      reinterpret_cast<BF16*>(x.data())[i] = RoundToBF16(value);
    }
  }
  std::vector<float> expected(kRows * columns), y(kRows * columns);
  for (bool accumulate : {false, true}) {
    std::fill(expected.begin(), expected.end(), 0.3f);
    Run(kRows, x.data(), expected.data(), accumulate);
    for (const auto& [rows, threads] : {std::pair{1, n_threads},
                                        {3, n_threads},
                                        {16, n_threads},
                                        {64, n_threads},
                                        {1, 1},
                                        {64, 1}}) {
      const ScopedThreads scoped(threads);
      const auto first = static_cast<size_t>(kRows - rows);
      std::fill(y.begin(), y.end(), 0.3f);
      if (threads != n_threads) products.clear();  // made for another number of threads
      Run(rows, x.data() + first * x_row, y.data(), accumulate);
      if (std::memcmp(y.data(), expected.data() + first * columns,
                      static_cast<size_t>(rows) * columns * sizeof(float)) != 0) {
        return false;
      }
    }
    products.clear();
  }
  return true;
}

OneDnnProduct::OneDnnProduct(std::unique_ptr<State> state) : state_(std::move(state)) {}
OneDnnProduct::~OneDnnProduct() = default;

size_t OneDnnProduct::bytes() const { return state_->weights.get_desc().get_size(); }

std::unique_ptr<OneDnnProduct> OneDnnProduct::Make(const StackedWeights& weights,
                                                   DeviceContext& context) {
  // The verdict on a shape holds for every layer of that shape.
  static std::mutex mutex;
  static std::map<std::tuple<int64_t, int64_t, DType, int>, bool> verdicts;
  const ScopedThreads threads(context.n_threads());
  const std::tuple key(weights.in, weights.out, weights.compute, context.n_threads());
  const std::lock_guard lock(mutex);
  const auto known = verdicts.find(key);
  if (known != verdicts.end() && !known->second) return nullptr;
  try {
    auto state = std::make_unique<State>();
    state->in = weights.in;
    state->out = weights.out;
    state->compute = weights.compute;
    const memory::desc any({weights.in, weights.out}, DataType(weights.compute), Tag::any);
    const auto preferred = state->Describe(kRowBlock, any, false);
    state->implementation = preferred.impl_info_str();
    bool good = state->implementation.starts_with("brg:");
    if (good) {
      state->Pack(weights, preferred.weights_desc());
      if (known == verdicts.end()) {
        good = state->SameImplementationForAllSizes() &&
               state->SameBitsForAnyRows(context.n_threads());
      }
    }
    verdicts[key] = good;
    if (!good) return nullptr;
    return std::unique_ptr<OneDnnProduct>(new OneDnnProduct(std::move(state)));
  } catch (const dnnl::error&) {  // the type is not supported on this machine
    verdicts[key] = false;
    return nullptr;
  }
}

void OneDnnProduct::Apply(DeviceContext& context, TensorView x, TensorView y,
                          bool accumulate) const {
  const ScopedThreads threads(context.n_threads());
  const size_t x_row = static_cast<size_t>(state_->in) * DTypeBytes(state_->compute);
  const int64_t n = x.shape[0];
  for (int64_t row = 0; row < n;) {
    std::byte* from = x.as<std::byte>() + static_cast<size_t>(row) * x_row;
    float* to = y.as<float>() + row * state_->out;
    int64_t take = std::min(n - row, kMaxRows);
    if (take > kRowBlock) take = take / kRowBlock * kRowBlock;
    const int64_t size = RoundUpRows(take);
    if (size == take) {
      state_->Run(take, from, to, accumulate);
    } else {
      state_->RunPadded(context, take, size, from, to, accumulate);
    }
    row += take;
  }
}

namespace cpu {

void MakeProduct(DeviceContext& context, const StackedWeights& weights, Product* product) {
  if (auto fast = OneDnnProduct::Make(weights, context)) {
    *product = std::move(fast);
  } else {
    *product = std::make_unique<SimdProduct>(weights);
  }
}

}  // namespace cpu
}  // namespace ovq
