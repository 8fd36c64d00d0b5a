// y[n, out] (+)= x[n, in] W^T, W [out, in], with oneDNN, and the choice between it and
// MakeSimdProduct.
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/ops/matmul_device.h"

namespace ovq::cpu {
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

// A copy with zeros after it.
std::byte* Padded(ScratchScope& scope, const void* from, size_t bytes, size_t padded_bytes) {
  auto* copy = scope.Allocate<std::byte>(padded_bytes);
  std::memcpy(copy, from, bytes);
  std::memset(copy + bytes, 0, padded_bytes - bytes);
  return copy;
}

struct OneDnnProduct {
  int64_t in, out;
  DType compute;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  memory weights{};
  // Filled as sizes come up. One thread at a time uses a Linear, so there is no lock.
  std::unordered_map<int64_t, dnnl::matmul> products{};  // by 2 * rows + accumulate

  size_t x_row() const { return static_cast<size_t>(in) * DTypeBytes(compute); }
  size_t y_row() const { return static_cast<size_t>(out) * sizeof(float); }
  memory::desc XDesc(int64_t n) const { return {{n, in}, DataType(compute), Tag::ab}; }
  memory::desc YDesc(int64_t n) const { return {{n, out}, memory::data_type::f32, Tag::ab}; }
  dnnl::matmul::primitive_desc Describe(int64_t n, const memory::desc& packed,
                                        bool accumulate) const;
  void Pack(const StackedWeights& source, const memory::desc& packed);
  bool SameImplementationForAllSizes(const std::string& implementation) const;
  bool SameBitsForAnyRows(int n_threads);
  void Run(int64_t n, void* x, void* y, bool accumulate);
  void Apply(DeviceContext& context, TensorView x, TensorView y, bool accumulate);
};

dnnl::matmul::primitive_desc OneDnnProduct::Describe(int64_t n, const memory::desc& packed,
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
void OneDnnProduct::Pack(const StackedWeights& source, const memory::desc& packed) {
  std::vector<std::byte> plain(static_cast<size_t>(out) * x_row());
  for (int64_t row = 0; row < out; ++row) {
    CopyRow(source, row, plain.data() + static_cast<size_t>(row) * x_row());
  }
  // [in, out] with `in` contiguous is the transpose of [out, in].
  memory from({{in, out}, DataType(compute), Tag::ba}, engine, plain.data());
  weights = memory(packed, engine);
  dnnl::reorder(from, weights).execute(stream, from, weights);
  stream.wait();
}

void OneDnnProduct::Run(int64_t n, void* x, void* y, bool accumulate) {
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

bool OneDnnProduct::SameImplementationForAllSizes(const std::string& implementation) const {
  for (int64_t n = 1; n <= kMaxRows; ++n) {
    if (RoundUpRows(n) != n) continue;
    for (bool accumulate : {false, true}) {
      const auto described = Describe(n, weights.get_desc(), accumulate);
      if (described.impl_info_str() != implementation) return false;
    }
  }
  return true;
}

bool OneDnnProduct::SameBitsForAnyRows(int n_threads) {
  constexpr int64_t kRows = 192;
  const auto columns = static_cast<size_t>(out);
  std::vector<std::byte> x = TestRows(kRows, in, compute);
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
      Run(rows, x.data() + first * x_row(), y.data(), accumulate);
      if (std::memcmp(y.data(), expected.data() + first * columns,
                      static_cast<size_t>(rows) * y_row()) != 0) {
        return false;
      }
    }
    products.clear();
  }
  return true;
}

// Rows that a size is missing for are zero.
void OneDnnProduct::Apply(DeviceContext& context, TensorView x, TensorView y, bool accumulate) {
  const ScopedThreads threads(context.n_threads());
  auto* from = x.as<std::byte>();
  auto* to = y.as<std::byte>();
  for (int64_t left = x.shape[0]; left > 0;) {
    int64_t take = std::min(left, kMaxRows);
    if (take > kRowBlock) take = take / kRowBlock * kRowBlock;
    const int64_t size = RoundUpRows(take);
    const size_t x_bytes = static_cast<size_t>(take) * x_row();
    const size_t y_bytes = static_cast<size_t>(take) * y_row();
    if (size == take) {
      Run(take, from, to, accumulate);
    } else {
      ScratchScope scope(context);
      std::byte* wide_x = Padded(scope, from, x_bytes, static_cast<size_t>(size) * x_row());
      std::byte* wide_y = Padded(scope, to, y_bytes, static_cast<size_t>(size) * y_row());
      Run(size, wide_x, wide_y, accumulate);
      std::memcpy(to, wide_y, y_bytes);
    }
    from += x_bytes;
    to += y_bytes;
    left -= take;
  }
}

}  // namespace

std::optional<Product> MakeOneDnnProduct(DeviceContext& context, const StackedWeights& weights) {
  // The verdict on a shape holds for every layer of that shape.
  static std::mutex mutex;
  static std::map<std::tuple<int64_t, int64_t, DType, int>, bool> verdicts;
  const int n_threads = context.n_threads();
  const ScopedThreads threads(n_threads);
  const std::lock_guard lock(mutex);
  const auto [verdict, is_new] =
      verdicts.try_emplace({weights.in, weights.out, weights.compute, n_threads}, false);
  if (!is_new && !verdict->second) return std::nullopt;
  verdict->second = false;  // until the end of what follows
  try {
    const auto product = std::make_shared<OneDnnProduct>(
        OneDnnProduct{.in = weights.in, .out = weights.out, .compute = weights.compute});
    const memory::desc any({weights.in, weights.out}, DataType(weights.compute), Tag::any);
    const auto preferred = product->Describe(kRowBlock, any, false);
    const std::string implementation = preferred.impl_info_str();
    if (!implementation.starts_with("brg:")) return std::nullopt;
    product->Pack(weights, preferred.weights_desc());
    if (is_new && !(product->SameImplementationForAllSizes(implementation) &&
                    product->SameBitsForAnyRows(n_threads))) {
      return std::nullopt;
    }
    verdict->second = true;
    return Product{product->weights.get_desc().get_size(),
                   [product](DeviceContext& context, TensorView x, TensorView y, bool accumulate) {
                     product->Apply(context, x, y, accumulate);
                   }};
  } catch (const dnnl::error&) {  // the type is not supported on this machine
    return std::nullopt;
  }
}

Product MakeProduct(DeviceContext& context, const StackedWeights& weights) {
  if (auto fast = MakeOneDnnProduct(context, weights)) return *std::move(fast);
  return MakeSimdProduct(weights);
}

}  // namespace ovq::cpu
