// y[n, out] (+)= x[n, in] W^T, W [out, in], with oneDNN; oneDNN's exact sums of bytes for int8
// weights; and the choice between oneDNN and MakeSimdProduct.
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <dnnl.hpp>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/common/instruction_sets.h"
#include "kernels/common/product_choices.h"
#include "kernels/common/weight_memory.h"
#include "kernels/ops/matmul_device.h"
#include "kernels/ops/parallel_rows.h"

namespace ovq::kernels::cpu {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;

// Calls use only these numbers of rows, because oneDNN generates code for each (0.3 ms and 0.1 MB
// on two cores of a server CPU). Rows after the last full call are padded to one of them.
constexpr int64_t kMaxRows = 512;
constexpr int64_t kRowBlock = 64;
constexpr int64_t kTestRows = kMaxRows;
constexpr int64_t kMaxUsed = 1024;  // sums that UseSums gets
constexpr std::string_view kBlocked = "brg:";
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

// The types of a product's arguments; y's elements have four bytes.
struct Types {
  memory::data_type x, weights, y;
  auto operator<=>(const Types&) const = default;
};
Types OneDnnTypes(DType compute) {
  const auto type = compute == DType::kF32 ? memory::data_type::f32 : memory::data_type::bf16;
  return {type, type, memory::data_type::f32};
}
constexpr Types kInt8Types = {memory::data_type::u8, memory::data_type::s8, memory::data_type::s32};

// A copy, zero-padded to padded_bytes.
std::byte* Padded(ScratchScope& scope, const void* from, size_t bytes, size_t padded_bytes) {
  auto* copy = scope.Allocate<std::byte>(padded_bytes);
  std::memcpy(copy, from, bytes);
  std::memset(copy + bytes, 0, padded_bytes - bytes);
  return copy;
}

// Writes row `row` of the weights [out, in] in their type.
using FillRow = std::function<void(int64_t row, void* dst)>;

// Keeps oneDNN within the cap of OVQ_MAX_ISA. It is called before oneDNN generates code.
void CapOneDnn() {
#if defined(__x86_64__)
  constexpr dnnl::cpu_isa kSets[] = {dnnl::cpu_isa::sse41,
                                     dnnl::cpu_isa::avx2,
                                     dnnl::cpu_isa::avx2_vnni,
                                     dnnl::cpu_isa::avx512_core,
                                     dnnl::cpu_isa::avx512_core_vnni,
                                     dnnl::cpu_isa::avx512_core_bf16};
  const InstructionSet cap = MaxInstructionSet();
  if (cap == InstructionSet::kAmx) return;
  Check(dnnl::set_max_cpu_isa(kSets[static_cast<size_t>(cap)]) == dnnl::status::success,
        "oneDNN takes its cap before it is used");
#endif
}

// The engine of all calls: oneDNN runs a call with memory of its own engine alone.
const dnnl::engine& Engine() {
  static const auto* const engine = [] {
    CapOneDnn();
    return new dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return *engine;
}

// One call of oneDNN: weights of this shape, packed for `packed_for` threads, with this many rows.
struct CallShape {
  int64_t in, out;
  Types types;
  int packed_for, n_threads;
  int64_t rows;
  bool accumulate;
  auto operator<=>(const CallShape&) const = default;
};

// The calls that the calling thread has made: their code serves all weights of one shape, and
// oneDNN's scratch memory is the thread's.
std::map<CallShape, dnnl::matmul>& Calls() {
  thread_local std::map<CallShape, dnnl::matmul> calls;
  return calls;
}

struct OneDnnProduct {
  int64_t in, out;
  Types types;
  int packed_for;  // threads
  dnnl::stream stream{Engine()};
  std::shared_ptr<std::byte> weight_memory{};
  memory weights{};  // there

  size_t x_row() const { return static_cast<size_t>(in) * memory::data_type_size(types.x); }
  bool is_float() const { return types.y == memory::data_type::f32; }
  size_t y_row() const { return static_cast<size_t>(out) * sizeof(float); }
  memory::desc XDesc(int64_t n) const { return {{n, in}, types.x, Tag::ab}; }
  memory::desc YDesc(int64_t n) const { return {{n, out}, types.y, Tag::ab}; }
  dnnl::matmul::primitive_desc Describe(int64_t n, const memory::desc& packed,
                                        bool accumulate) const;
  void Pack(const FillRow& fill, const memory::desc& packed);
  bool GoodForAllSizes(const std::string& implementation) const;
  // x [kTestRows, in]
  bool SameBitsForAnyRows(int n_threads, std::byte* x);
  void Run(int64_t n, void* x, void* y, bool accumulate);
  void Apply(DeviceContext& context, int64_t n, void* x, void* y, bool accumulate);
};

dnnl::matmul::primitive_desc OneDnnProduct::Describe(int64_t n, const memory::desc& packed,
                                                     bool accumulate) const {
  dnnl::primitive_attr attributes;
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  return {dnnl::matmul::desc(XDesc(n), packed, YDesc(n)), attributes, Engine()};
}

// Packs the weights in the layout that oneDNN prefers for kRowBlock rows; all sizes use it.
void OneDnnProduct::Pack(const FillRow& fill, const memory::desc& packed) {
  const size_t row_bytes = static_cast<size_t>(in) * memory::data_type_size(types.weights);
  std::vector<std::byte> plain(static_cast<size_t>(out) * row_bytes);
  for (int64_t row = 0; row < out; ++row) {
    fill(row, plain.data() + static_cast<size_t>(row) * row_bytes);
  }
  // [in, out] with `in` contiguous is the transpose of [out, in].
  memory from({{in, out}, types.weights, Tag::ba}, Engine(), plain.data());
  weight_memory = WeightMemory(packed.get_size());
  weights = memory(packed, Engine(), weight_memory.get());
  dnnl::reorder(from, weights).execute(stream, from, weights);
  stream.wait();
}

void OneDnnProduct::Run(int64_t n, void* x, void* y, bool accumulate) {
  const CallShape shape = {in, out, types, packed_for, omp_get_max_threads(), n, accumulate};
  auto found = Calls().find(shape);
  if (found == Calls().end()) {
    dnnl::matmul product(Describe(n, weights.get_desc(), accumulate));
    found = Calls().emplace(shape, std::move(product)).first;
  }
  found->second.execute(stream, {{DNNL_ARG_SRC, memory(XDesc(n), Engine(), x)},
                                 {DNNL_ARG_WEIGHTS, weights},
                                 {DNNL_ARG_DST, memory(YDesc(n), Engine(), y)}});
  stream.wait();
}

// Sums of bytes are exact in every blocked product of oneDNN, whichever it selects for a size.
bool OneDnnProduct::GoodForAllSizes(const std::string& implementation) const {
  for (int64_t n = 1; n <= kMaxRows; ++n) {
    if (RoundUpRows(n) != n) continue;
    for (bool accumulate : {false, true}) {
      if (accumulate && !is_float()) continue;
      const auto described = Describe(n, weights.get_desc(), accumulate);
      const std::string_view other = described.impl_info_str();
      if (is_float() ? other != implementation : !other.starts_with(kBlocked)) return false;
    }
  }
  return true;
}

bool OneDnnProduct::SameBitsForAnyRows(int n_threads, std::byte* x) {
  const auto columns = static_cast<size_t>(out);
  std::vector<float> expected(kTestRows * columns), y(kTestRows * columns);
  // Every multiple of kRowBlock: with AMX oneDNN 2.6 splits the sums of some shapes (2,304 inputs
  // and 258 outputs) differently from some number of rows on.
  std::vector<std::pair<int64_t, int>> calls;  // numbers of rows and threads
  for (const int64_t rows : {1, 3, 16, 64}) {
    calls.emplace_back(rows, n_threads);
    calls.emplace_back(rows, 1);
  }
  for (int64_t rows = 2 * kRowBlock; rows < kTestRows; rows += kRowBlock) {
    calls.emplace_back(rows, n_threads);
  }
  for (bool accumulate : {false, true}) {
    if (accumulate && !is_float()) continue;
    std::fill(expected.begin(), expected.end(), 0.3f);
    Run(kTestRows, x, expected.data(), accumulate);
    for (const auto& [rows, threads] : calls) {
      const ScopedThreads scoped(threads);
      const auto first = static_cast<size_t>(kTestRows - rows);
      std::fill(y.begin(), y.end(), 0.3f);
      Run(rows, x + first * x_row(), y.data(), accumulate);
      if (std::memcmp(y.data(), expected.data() + first * columns,
                      static_cast<size_t>(rows) * y_row()) != 0) {
        return false;
      }
    }
    std::erase_if(Calls(), [&](const auto& call) {
      const CallShape& shape = call.first;
      return shape.in == in && shape.out == out && shape.types == types;
    });
  }
  return true;
}

// Rows added to reach a size are zero.
void OneDnnProduct::Apply(DeviceContext& context, int64_t n, void* x, void* y, bool accumulate) {
  const ScopedThreads threads(context.n_threads());
  auto* from = static_cast<std::byte*>(x);
  auto* to = static_cast<std::byte*>(y);
  for (int64_t left = n; left > 0;) {
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

// A product of these weights, or null. passes(product) tests the first product of a shape, type and
// number of threads; its verdict holds for every layer of that shape.
template <class PassesFn>
std::shared_ptr<OneDnnProduct> MakeOneDnn(DeviceContext& context, int64_t in, int64_t out,
                                          const Types& types, const FillRow& fill,
                                          PassesFn&& passes) {
  static std::mutex mutex;
  static std::map<std::tuple<int64_t, int64_t, Types, int>, bool> verdicts;
  const int n_threads = context.n_threads();
  const ScopedThreads threads(n_threads);
  const std::lock_guard lock(mutex);
  const auto [verdict, is_new] = verdicts.try_emplace({in, out, types, n_threads}, false);
  if (!is_new && !verdict->second) return nullptr;
  verdict->second = false;  // until the test below has passed
  try {
    const auto product = std::make_shared<OneDnnProduct>(
        OneDnnProduct{.in = in, .out = out, .types = types, .packed_for = n_threads});
    const memory::desc any({in, out}, types.weights, Tag::any);
    const auto preferred = product->Describe(kRowBlock, any, false);
    const std::string implementation = preferred.impl_info_str();
    if (!implementation.starts_with(kBlocked)) return nullptr;
    product->Pack(fill, preferred.weights_desc());
    if (is_new && !(product->GoodForAllSizes(implementation) && passes(*product))) {
      return nullptr;
    }
    verdict->second = true;
    return product;
  } catch (const dnnl::error&) {  // the type is not supported on this machine
    return nullptr;
  }
}

// Rows of bytes: first the largest values, with which sums overflow first where they can, then
// arbitrary ones.
std::vector<uint8_t> TestBytes(int64_t in) {
  const std::vector<std::byte> rows = TestRows(kTestRows, in, DType::kF32);
  std::vector<uint8_t> bytes(rows.size() / sizeof(float), 255);
  for (size_t i = static_cast<size_t>(in); i < bytes.size(); ++i) {
    float value = 0;  // in [-1, 1)
    std::memcpy(&value, rows.data() + i * sizeof(float), sizeof(float));
    bytes[i] = static_cast<uint8_t>((value + 1) * 128);
  }
  return bytes;
}

// Whether the first two sums of each output equal the integer results: instruction sets before VNNI
// have sums of two products that saturate at int16.
bool SumsAreExact(OneDnnProduct& product, const Int8Weights& weights, uint8_t* x) {
  constexpr int64_t kRows = 2;
  std::vector<int32_t> sums(static_cast<size_t>(kRows * weights.out));
  product.Run(kRows, x, sums.data(), false);
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t o = 0; o < weights.out; ++o) {
      const int8_t* w = weights.values.data() + o * weights.in;
      int32_t sum = 0;
      for (int64_t i = 0; i < weights.in; ++i) sum += int32_t{x[row * weights.in + i]} * w[i];
      if (sums[row * weights.out + o] != sum) return false;
    }
  }
  return true;
}

// The name of oneDNN's implementation for kRowBlock rows.
std::string Implementation(const OneDnnProduct& product) {
  return product.Describe(kRowBlock, product.weights.get_desc(), false).impl_info_str();
}

}  // namespace

std::optional<Product> MakeOneDnnProduct(DeviceContext& context, const StackedWeights& weights) {
  const int n_threads = context.n_threads();
  const auto product = MakeOneDnn(
      context, weights.in, weights.out, OneDnnTypes(weights.compute),
      [&](int64_t row, void* dst) { CopyRow(weights, row, dst); },
      [&](OneDnnProduct& made) {
        std::vector<std::byte> x = TestRows(kTestRows, weights.in, weights.compute);
        return made.SameBitsForAnyRows(n_threads, x.data());
      });
  if (product == nullptr) return std::nullopt;
  NoteProduct(
      {weights.in, weights.out, WeightsName(weights.compute), "oneDNN", Implementation(*product)});
  return Product{product->weights.get_desc().get_size(),
                 [product](DeviceContext& context, TensorView x, TensorView y, bool accumulate) {
                   product->Apply(context, x.shape[0], x.data, y.data, accumulate);
                 }};
}

std::optional<Int8Sums> MakeOneDnnSums(DeviceContext& context, const Int8Weights& weights) {
  const int n_threads = context.n_threads();
  const auto row_bytes = static_cast<size_t>(weights.in);
  const auto product = MakeOneDnn(
      context, weights.in, weights.out, kInt8Types,
      [&](int64_t row, void* dst) {
        std::memcpy(dst, weights.values.data() + row * weights.in, row_bytes);
      },
      [&](OneDnnProduct& made) {
        std::vector<uint8_t> x = TestBytes(weights.in);
        return SumsAreExact(made, weights, x.data()) &&
               made.SameBitsForAnyRows(n_threads, reinterpret_cast<std::byte*>(x.data()));
      });
  if (product == nullptr) return std::nullopt;
  const auto apply = [product, out = weights.out](DeviceContext& context, const std::byte* x,
                                                  int64_t n, const UseSums& use) {
    ScratchScope scratch(context);
    auto* const sums = scratch.Allocate<int32_t>(static_cast<size_t>(n * out));
    product->Apply(context, n, const_cast<std::byte*>(x), sums, false);
    const int64_t parts = (out + kMaxUsed - 1) / kMaxUsed;
    ParallelRows(context, n * parts, kMaxUsed, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t row = task / parts, first = task % parts * kMaxUsed;
        const auto count = static_cast<size_t>(std::min(kMaxUsed, out - first));
        use(row, first, {sums + row * out + first, count});
      }
    });
  };
  return Int8Sums{product->weights.get_desc().get_size(), 128, Implementation(*product), apply};
}

Product MakeProduct(DeviceContext& context, const StackedWeights& weights) {
  if (auto fast = MakeOneDnnProduct(context, weights)) return *std::move(fast);
  NoteProduct({weights.in, weights.out, WeightsName(weights.compute), "own",
               "no product of oneDNN gives a row the same bits for any number of rows"});
  return MakeSimdProduct(weights);
}

}  // namespace ovq::kernels::cpu
