// y[n, out] (+)= x[n, in] W^T, W [out, in], with cuBLASLt.
//
// cuBLASLt has dozens of algorithms for a product, and most of them add the terms of a sum in one
// order, whatever their tiles: these form a class of equal bits. While a model loads, the fastest
// algorithm of one class is chosen for each band of numbers of rows, and proved to give a row the
// same bits as the algorithm of the most rows. A number of rows that cuBLASLt refuses nevertheless
// is computed in parts.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/common/cuda/cuda_device.h"
#include "kernels/common/cuda/ptx.cuh"
#include "kernels/common/device_cuda.h"
#include "kernels/common/device_memory.h"
#include "kernels/ops/matmul_device.h"
#include "kernels/ops/product_chain.h"

namespace ovq::kernels::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
// An algorithm serves the numbers of rows up to one of these and above the one before.
constexpr std::array<int64_t, 6> kBands = {4, 16, 64, 256, 1024, 8192};
constexpr int64_t kEveryCount = 64;  // up to here every number of rows is run, above some are
constexpr int64_t kSomeCounts = 16;
constexpr int64_t kPlaces = 4;      // of a call's rows among those of the longest call
constexpr int64_t kTestRows = 509;  // that are different: a prime, so that all places get all
constexpr int64_t kMostElements = int64_t{1} << 25;  // of y in a call: four y are 512 MiB
constexpr int kMaxAlgorithms = 16;                   // asked for at a time
constexpr int kTimings = 8;                          // the first also warms up
constexpr uint32_t kAlignment = 16;  // bytes; alignment of the rows of x, of the weights and of y
constexpr int kCompareThreads = 256;

// One of cuBLASLt's, or our own product of few rows (product_chain.h).
struct Algorithm {
  cublasLtMatmulAlgo_t chosen = {};
  bool is_chain = false;

  bool operator==(const Algorithm& other) const {
    return is_chain == other.is_chain && std::memcmp(&chosen, &other.chosen, sizeof(chosen)) == 0;
  }
};

// The algorithm for at most `most_rows` rows.
struct Choice {
  int64_t most_rows;
  Algorithm algorithm;
};

// Ends the process: these calls only fill in descriptions, and fail for no input.
void CheckCublas(cublasStatus_t status, const char* file = __builtin_FILE(),
                 int line = __builtin_LINE()) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  std::fprintf(stderr, "%s:%d: cuBLASLt: %s\n", file, line, cublasLtGetStatusString(status));
  std::abort();
}

// Returns the device's handle. It and its workspace are created at the first use, while a model
// loads. Null if the library does not work here.
cublasLtHandle_t Handle(CudaDevice& device) {
  if (device.cublas == nullptr) {
    cublasLtHandle_t handle = nullptr;
    Buffer workspace(Device::kCuda, kWorkspaceBytes);
    if (cublasLtCreate(&handle) != CUBLAS_STATUS_SUCCESS) return nullptr;
    device.cublas_workspace = std::move(workspace);
    device.cublas = std::shared_ptr<void>(
        handle, [](void* made) { cublasLtDestroy(static_cast<cublasLtHandle_t>(made)); });
  }
  return static_cast<cublasLtHandle_t>(device.cublas.get());
}

cudaDataType_t DataType(DType type) { return type == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

cublasLtMatrixLayoutOpaque_t Layout(cudaDataType_t type, int64_t rows, int64_t columns) {
  cublasLtMatrixLayoutOpaque_t layout;
  CheckCublas(cublasLtMatrixLayoutInit(&layout, type, static_cast<uint64_t>(rows),
                                       static_cast<uint64_t>(columns), rows));
  return layout;
}

template <class T>
void Prefer(cublasLtMatmulPreferenceOpaque_t& preference,
            cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  CheckCublas(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)));
}

int32_t Configured(const Algorithm& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  int32_t value = -1;
  CheckCublas(cublasLtMatmulAlgoConfigGetAttribute(&algorithm.chosen, attribute, &value,
                                                   sizeof(value), nullptr));
  return value;
}

std::string Name(const std::vector<Choice>& choices) {
  std::string name;
  for (const auto& [most_rows, algorithm] : choices) {
    absl::StrAppend(&name, name.empty() ? "to " : "; to ", most_rows, " rows ");
    if (algorithm.is_chain) {
      name += "our own of few rows";
      continue;
    }
    absl::StrAppend(&name, "algorithm ", Configured(algorithm, CUBLASLT_ALGO_CONFIG_ID), ", tile ",
                    Configured(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID), ", stages ",
                    Configured(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID));
  }
  return name;
}

// cuBLASLt's matrices have contiguous columns: y^T [out, n] = (W^T)^T [out, in] x^T [in, n]. So the
// rows of x are its columns, and no stride or alignment depends on how many there are.
struct CublasProduct {
  int64_t in, out;
  DType compute;
  Buffer weights;  // [out, in]
  cublasLtMatmulDescOpaque_t operation;
  std::vector<Choice> choices;  // by ascending numbers of rows

  struct Layouts {
    cublasLtMatrixLayoutOpaque_t w, x, y;
  };

  CublasProduct(DeviceContext& context, const StackedWeights& source);
  Layouts MakeLayouts(int64_t n) const {
    return {Layout(DataType(compute), in, out), Layout(DataType(compute), in, n),
            Layout(CUDA_R_32F, out, n)};
  }
  size_t x_row_bytes() const { return static_cast<size_t>(in) * DTypeBytes(compute); }
  // The most rows of a call; more are split.
  int64_t most_rows() const {
    return std::clamp(kMostElements / out, kBands.front(), kBands.back());
  }
  cublasStatus_t Run(DeviceContext& context, const Algorithm& algorithm, int64_t n, const void* x,
                     float* y, bool accumulate);
  const Algorithm& AlgorithmFor(int64_t n) const {
    return std::ranges::find_if(choices, [n](const Choice& band) { return n <= band.most_rows; })
        ->algorithm;
  }
  void Apply(DeviceContext& context, TensorView x, TensorView y, bool accumulate);
  void ApplyRows(DeviceContext& context, int64_t n, const std::byte* x, float* y, bool accumulate);
  // Product::fused
  bool ApplyFused(DeviceContext& context, const ProductRows& x, TensorView y, ProductEnd end) const;
};

CublasProduct::CublasProduct(DeviceContext& context, const StackedWeights& source)
    : in(source.in),
      out(source.out),
      compute(source.compute),
      weights(UploadItems(context, source.out, source.row_bytes(),
                          [&](int64_t row, std::byte* bytes) { CopyRow(source, row, bytes); })) {
  CheckCublas(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  CheckCublas(cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                             sizeof(transposed)));
}

cublasStatus_t CublasProduct::Run(DeviceContext& context, const Algorithm& algorithm, int64_t n,
                                  const void* x, float* y, bool accumulate) {
  if (algorithm.is_chain) {
    if (n > kMaxChainRows) return CUBLAS_STATUS_NOT_SUPPORTED;
    LaunchChain(context, {.weights = weights.as<BF16>(),
                          .x = static_cast<const BF16*>(x),
                          .y = y,
                          .n = n,
                          .in = in,
                          .out = out,
                          .accumulate = accumulate});
    return CUBLAS_STATUS_SUCCESS;
  }
  CudaDevice& device = context.cuda();
  const float one = 1, beta = accumulate ? 1 : 0;
  Layouts of = MakeLayouts(n);
  return cublasLtMatmul(Handle(device), &operation, &one, weights.as<void>(), &of.w, x, &of.x,
                        &beta, y, &of.y, y, &of.y, &algorithm.chosen,
                        device.cublas_workspace.as<void>(), kWorkspaceBytes, device.stream);
}

void CublasProduct::Apply(DeviceContext& context, TensorView x, TensorView y, bool accumulate) {
  const auto start = reinterpret_cast<uintptr_t>(x.data) | reinterpret_cast<uintptr_t>(y.data);
  Check(start % kAlignment == 0, "rows of a matrix product start at multiples of 16 bytes");
  const int64_t most = choices.back().most_rows;
  for (int64_t row = 0; row < x.shape[0]; row += most) {
    ApplyRows(context, std::min(most, x.shape[0] - row),
              x.as<std::byte>() + static_cast<size_t>(row) * x_row_bytes(),
              y.as<float>() + row * out, accumulate);
  }
}

// One call, or two of half the rows where it is refused: cuBLASLt refuses some numbers of rows,
// also such that cublasLtMatmulAlgoCheck allows.
void CublasProduct::ApplyRows(DeviceContext& context, int64_t n, const std::byte* x, float* y,
                              bool accumulate) {
  const cublasStatus_t status = Run(context, AlgorithmFor(n), n, x, y, accumulate);
  if (status == CUBLAS_STATUS_SUCCESS) return;
  if (n == 1) {
    throw RefusedByDevice(absl::StrCat("cuBLASLt refused a product of one row, ", in,
                                       " inputs and ", out,
                                       " outputs: ", cublasLtGetStatusString(status)));
  }
  const int64_t half = n / 2;
  ApplyRows(context, half, x, y, accumulate);
  ApplyRows(context, n - half, x + static_cast<size_t>(half) * x_row_bytes(), y + half * out,
            accumulate);
}

bool CublasProduct::ApplyFused(DeviceContext& context, const ProductRows& x, TensorView y,
                               ProductEnd end) const {
  const int64_t n = x.x.shape[0];
  if (n > choices.back().most_rows || !AlgorithmFor(n).is_chain) return false;
  return ApplyChain(context, {weights.as<void>(), compute, {out, in}}, x, y, end);
}

__global__ void __launch_bounds__(kCompareThreads)
    CompareKernel(const uint4* a, const uint4* b, int64_t n, uint32_t* differs) {
  AllowNextKernel();
  const int64_t step = int64_t{gridDim.x} * kCompareThreads;
  for (int64_t i = int64_t{blockIdx.x} * kCompareThreads + threadIdx.x; i < n; i += step) {
    const uint4 x = a[i], y = b[i];
    if (x.x != y.x || x.y != y.y || x.z != y.z || x.w != y.w) *differs = 1;
  }
}

// Chooses the algorithms of one shape, with the weights of the first product that has it.
class Chooser {
 public:
  Chooser(DeviceContext& context, CublasProduct& product);
  ~Chooser();
  // By ascending numbers of rows; empty if no class of equal bits serves all bands.
  std::vector<Choice> Choose();

 private:
  // Algorithms of equal bits, with the seconds that each takes for the most rows of each band;
  // infinite where it is refused.
  struct Timed {
    Algorithm algorithm;
    std::vector<double> seconds;
  };
  using Class = std::vector<Timed>;

  std::vector<Algorithm> Candidates(int64_t n);
  std::vector<Class> Classes();
  std::string FirstRow(const Algorithm& algorithm, int64_t n);
  double Seconds(const Algorithm& algorithm, int64_t n, double fastest);
  std::vector<Choice> ChooseFrom(const Class& algorithms);
  bool IsProved(const Algorithm& algorithm, int64_t least, int64_t most);
  bool Expect(const Algorithm& algorithm);
  void Compare(const uint4* a, const uint4* b, size_t bytes);
  bool SameBits(const Algorithm& algorithm, int64_t n, bool accumulate);
  float* Begin(const Buffer& y, int64_t first, int64_t n, bool accumulate);

  DeviceContext& context_;
  CudaDevice& device_;
  CublasProduct& product_;
  std::vector<int64_t> bands_;  // the most rows of each
  Buffer x_;                    // [most rows, in]
  Buffer added_to_;             // [most rows, out], random: y before a product is added to it
  Buffer expected_[2];          // [most rows, out], of a product, and of one that is added
  Buffer y_;                    // [most rows, out]
  Buffer differs_;              // one uint32_t
  Buffer flushed_;              // twice the size of the L2 cache, which reading it empties
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

Chooser::Chooser(DeviceContext& context, CublasProduct& product)
    : context_(context),
      device_(context.cuda()),
      product_(product),
      differs_(Device::kCuda, sizeof(uint32_t)) {
  const int64_t most = product.most_rows();
  for (const int64_t band : kBands) {
    if (band < most) bands_.push_back(band);
  }
  bands_.push_back(most);
  const size_t x_row = product.x_row_bytes();
  const size_t y_bytes = static_cast<size_t>(most * product.out) * sizeof(float);
  x_ = Buffer(Device::kCuda, static_cast<size_t>(most) * x_row);
  for (Buffer* buffer : {&added_to_, &expected_[0], &expected_[1], &y_}) {
    *buffer = Buffer(Device::kCuda, y_bytes);
  }
  const auto fill = [&](const Buffer& buffer, const std::vector<std::byte>& rows) {
    for (size_t at = 0; at < buffer.bytes(); at += rows.size()) {
      const size_t n = std::min(rows.size(), buffer.bytes() - at);
      std::byte* const to = buffer.as<std::byte>() + at;
      if (at == 0) Upload(device_, to, rows.data(), n);
      if (at > 0) CopyOnDevice(device_, to, buffer.as<void>(), n);
    }
  };
  fill(x_, TestRows(kTestRows, product.in, product.compute));
  fill(added_to_, TestRows(1, kTestRows * std::min<int64_t>(product.out, 64), DType::kF32));
  int l2_bytes = 0;
  CheckCuda(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device_.ordinal));
  flushed_ = Buffer(Device::kCuda, 2 * static_cast<size_t>(std::max(l2_bytes, 1)));
  CheckCuda(cudaEventCreate(&begin_));
  CheckCuda(cudaEventCreate(&end_));
}

Chooser::~Chooser() {
  CheckCuda(cudaEventDestroy(begin_));
  CheckCuda(cudaEventDestroy(end_));
}

// Lists our own and what cuBLASLt offers for n rows; none of it splits a sum over thread blocks,
// whose order could depend on timing.
std::vector<Algorithm> Chooser::Candidates(int64_t n) {
  std::vector<Algorithm> algorithms;
  const char* wanted = std::getenv("OVQ_CUDA_PRODUCTS");
  const bool only_cublas = wanted != nullptr && std::string_view(wanted) == "cublas";
  if (!only_cublas && product_.compute == DType::kBF16 && n <= kMaxChainRows &&
      FitsChain(context_, product_.in, product_.out)) {
    algorithms.push_back({.is_chain = true});
  }
  cublasLtMatmulPreferenceOpaque_t preference;
  CheckCublas(cublasLtMatmulPreferenceInit(&preference));
  Prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
  Prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    Prefer(preference, attribute, kAlignment);
  }
  CublasProduct::Layouts of = product_.MakeLayouts(n);
  cublasLtMatmulHeuristicResult_t results[kMaxAlgorithms];
  int n_results = 0;
  if (cublasLtMatmulAlgoGetHeuristic(Handle(device_), &product_.operation, &of.w, &of.x, &of.y,
                                     &of.y, &preference, kMaxAlgorithms, results,
                                     &n_results) != CUBLAS_STATUS_SUCCESS) {
    return algorithms;
  }
  for (int i = 0; i < n_results; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS)
      algorithms.push_back({.chosen = results[i].algo});
  }
  return algorithms;
}

// Prepares `n` rows of y for a product whose first row is `first` of x_, and returns them.
float* Chooser::Begin(const Buffer& y, int64_t first, int64_t n, bool accumulate) {
  const size_t row = static_cast<size_t>(product_.out) * sizeof(float);
  if (accumulate) {
    CopyOnDevice(device_, y.as<void>(),
                 added_to_.as<std::byte>() + static_cast<size_t>(first) * row,
                 static_cast<size_t>(n) * row);
  }
  return y.as<float>();
}

// The first row of a call of n, alone and added to others; empty if a call is refused.
std::string Chooser::FirstRow(const Algorithm& algorithm, int64_t n) {
  const size_t row = static_cast<size_t>(product_.out) * sizeof(float);
  std::string rows(2 * row, '\0');
  for (const bool accumulate : {false, true}) {
    if (product_.Run(context_, algorithm, n, x_.as<void>(), Begin(y_, 0, n, accumulate),
                     accumulate) != CUBLAS_STATUS_SUCCESS) {
      return {};
    }
    context_.CopyToHost(rows.data() + (accumulate ? row : 0), y_.as<void>(), row);
  }
  return rows;
}

// Seconds of a call whose weights come from memory, not from the L2 cache, and of the kernel before
// it, which empties the cache and beside which a call that starts early reads its weights. A call
// with which these take twice as long as with the fastest is not repeated.
double Chooser::Seconds(const Algorithm& algorithm, int64_t n, double fastest) {
  double best = INFINITY;
  for (int i = 0; i < kTimings; ++i) {
    CheckCuda(cudaEventRecord(begin_, device_.stream));
    Compare(flushed_.as<uint4>(), flushed_.as<uint4>(), flushed_.bytes());
    if (product_.Run(context_, algorithm, n, x_.as<void>(), y_.as<float>(), false) !=
        CUBLAS_STATUS_SUCCESS) {
      return INFINITY;
    }
    CheckCuda(cudaEventRecord(end_, device_.stream));
    CheckCuda(cudaEventSynchronize(end_));
    float milliseconds = 0;
    CheckCuda(cudaEventElapsedTime(&milliseconds, begin_, end_));
    best = std::min(best, double{milliseconds} * 1e-3);
    if (best > 2 * fastest) break;
  }
  return best;
}

// The largest first: their order, and so a model's bits, must not depend on times.
std::vector<Chooser::Class> Chooser::Classes() {
  std::vector<Algorithm> seen;
  std::vector<double> fastest(bands_.size(), INFINITY);
  std::map<std::string, Class> by_bits;
  for (const int64_t n : bands_) {
    for (const Algorithm& algorithm : Candidates(n)) {
      if (std::ranges::count(seen, algorithm) > 0) continue;
      seen.push_back(algorithm);
      const std::string bits = FirstRow(algorithm, n);
      if (bits.empty()) continue;
      Timed timed = {algorithm, {}};
      for (size_t band = 0; band < bands_.size(); ++band) {
        timed.seconds.push_back(Seconds(algorithm, bands_[band], fastest[band]));
        fastest[band] = std::min(fastest[band], timed.seconds[band]);
      }
      by_bits[bits].push_back(std::move(timed));
    }
  }
  std::vector<Class> classes;
  for (auto& [bits, algorithms] : by_bits) classes.push_back(std::move(algorithms));
  std::ranges::stable_sort(classes, std::greater(), &Class::size);
  return classes;
}

std::vector<Choice> Chooser::Choose() {
  for (const Class& algorithms : Classes()) {
    std::vector<Choice> choices = ChooseFrom(algorithms);
    if (!choices.empty()) return choices;
  }
  return {};
}

// The fastest of the class that is proved, for each band; from the longest, which gives the bits
// that the others are compared with. Our own comes before cuBLASLt's: it reads its weights while
// the kernels before it run, which the time of a call alone does not show.
std::vector<Choice> Chooser::ChooseFrom(const Class& algorithms) {
  std::vector<Choice> choices;
  for (size_t band = bands_.size(); band-- > 0;) {
    const int64_t least = band == 0 ? 1 : bands_[band - 1] + 1;
    Class by_time = algorithms;
    std::ranges::stable_sort(by_time, {}, [&](const Timed& timed) {
      return std::pair(!timed.algorithm.is_chain, timed.seconds[band]);
    });
    const auto found = std::ranges::find_if(by_time, [&](const Timed& timed) {
      if (timed.seconds[band] == INFINITY) return false;
      if (choices.empty() && !Expect(timed.algorithm)) return false;
      return IsProved(timed.algorithm, least, bands_[band]);
    });
    if (found == by_time.end()) return {};
    choices.insert(choices.begin(), {bands_[band], found->algorithm});
  }
  return choices;
}

// Sets differs_ if any of the bytes differ. Half of a multiprocessor's threads are left to the
// kernel after it.
void Chooser::Compare(const uint4* a, const uint4* b, size_t bytes) {
  const auto n = static_cast<int64_t>(bytes / sizeof(uint4));
  const int64_t blocks = (n + kCompareThreads - 1) / kCompareThreads;
  Launch(context_, CompareKernel,
         dim3(static_cast<unsigned>(std::min<int64_t>(blocks, 4 * device_.n_multiprocessors))),
         dim3(kCompareThreads), 0, a, b, n, differs_.as<uint32_t>());
}

// Makes the bits of this algorithm those that the others are compared with. False if it is refused.
bool Chooser::Expect(const Algorithm& algorithm) {
  const int64_t most = bands_.back();
  for (const bool accumulate : {false, true}) {
    if (product_.Run(context_, algorithm, most, x_.as<void>(),
                     Begin(expected_[accumulate], 0, most, accumulate),
                     accumulate) != CUBLAS_STATUS_SUCCESS) {
      return false;
    }
  }
  return true;
}

// Whether the algorithm is accepted for the numbers of rows that are tried, from `least` to `most`,
// and gives rows the expected bits.
bool Chooser::IsProved(const Algorithm& algorithm, int64_t least, int64_t most) {
  CheckCuda(cudaMemsetAsync(differs_.as<void>(), 0, sizeof(uint32_t), device_.stream));
  const int64_t step = most <= kEveryCount ? 1 : (most - least) / kSomeCounts | 1;
  for (int64_t n = least; n <= most; n += step) {
    if (!SameBits(algorithm, n, false) || !SameBits(algorithm, n, true)) return false;
  }
  if (!SameBits(algorithm, most, false) || !SameBits(algorithm, most, true)) return false;
  uint32_t differs = 0;
  context_.CopyToHost(&differs, differs_.as<void>(), sizeof(differs));
  return differs == 0;
}

// Runs calls of n rows from several places and has their bits compared with the expected ones. With
// accumulate they are added to others, because that may be another kernel. False if one is refused.
bool Chooser::SameBits(const Algorithm& algorithm, int64_t n, bool accumulate) {
  const size_t y_row = static_cast<size_t>(product_.out) * sizeof(float);
  const int64_t last = bands_.back() - n;
  for (int64_t place = 0; place < kPlaces; ++place) {
    const int64_t first = last * place / (kPlaces - 1);
    if (product_.Run(context_, algorithm, n,
                     x_.as<std::byte>() + static_cast<size_t>(first) * product_.x_row_bytes(),
                     Begin(y_, first, n, accumulate), accumulate) != CUBLAS_STATUS_SUCCESS) {
      return false;
    }
    Compare(y_.as<uint4>(),
            reinterpret_cast<const uint4*>(expected_[accumulate].as<std::byte>() +
                                           static_cast<size_t>(first) * y_row),
            static_cast<size_t>(n) * y_row);
    if (first == last) break;
  }
  return true;
}

}  // namespace

std::optional<Product> MakeCublasProduct(DeviceContext& context, const StackedWeights& weights,
                                         std::string& what) {
  // The choices of each shape, kept because every layer asks again; none: no class serves it.
  static std::mutex mutex;
  static std::map<std::tuple<int64_t, int64_t, DType>, std::vector<Choice>> choices_of;
  const bool aligned = weights.row_bytes() % kAlignment == 0 &&
                       static_cast<size_t>(weights.out) * sizeof(float) % kAlignment == 0;
  if (!aligned) {
    what = "rows are no multiples of 16 bytes";
    return std::nullopt;
  }
  if (Handle(context.cuda()) == nullptr) {
    what = "cuBLASLt cannot be used";
    return std::nullopt;
  }
  what = "no algorithms of cuBLASLt give a row the same bits for any number of rows";
  const std::lock_guard lock(mutex);
  const std::tuple shape = {weights.in, weights.out, weights.compute};
  auto found = choices_of.find(shape);
  if (found != choices_of.end() && found->second.empty()) return std::nullopt;

  const auto product = std::make_shared<CublasProduct>(context, weights);
  if (found == choices_of.end()) {
    found = choices_of.emplace(shape, Chooser(context, *product).Choose()).first;
    if (found->second.empty()) return std::nullopt;
  }
  product->choices = found->second;
  what = Name(product->choices);
  return Product{product->weights.bytes(),
                 [product](DeviceContext& context, TensorView x, TensorView y, bool accumulate) {
                   product->Apply(context, x, y, accumulate);
                 },
                 [product](DeviceContext& context, const ProductRows& x, TensorView y,
                           ProductEnd end) { return product->ApplyFused(context, x, y, end); }};
}

}  // namespace ovq::kernels::cuda
