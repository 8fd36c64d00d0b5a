// y[n, out] (+)= x[n, in] W^T, W [out, in], with cuBLASLt.
#include <cublasLt.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/common/cuda/cuda_device.h"
#include "kernels/common/device_cuda.h"
#include "kernels/ops/matmul_device.h"

namespace ovq::kernels::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
// The number of rows that the algorithm is chosen for: between decode, which wants many thread
// blocks even where `out` is small, and prefill, which wants large tiles.
constexpr int64_t kTypicalRows = 64;
constexpr int64_t kCheckedElements = int64_t{1} << 26;  // elements of y in the check of rows
constexpr int kMaxAlgorithms = 16;
constexpr uint32_t kAlignment = 16;  // bytes; alignment of the rows of x, of the weights and of y

// The library's own type is an unnamed struct, which containers do not accept.
struct Algorithm {
  cublasLtMatmulAlgo_t chosen;
};

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

// cuBLASLt's matrices have contiguous columns: y^T [out, n] = (W^T)^T [out, in] x^T [in, n]. So the
// rows of x are its columns, and no stride or alignment depends on how many there are.
struct CublasProduct {
  int64_t in, out;
  DType compute;
  Buffer weights;  // [out, in]
  cublasLtMatmulDescOpaque_t operation;
  Algorithm algorithm;

  CublasProduct(DeviceContext& context, const StackedWeights& source);
  cublasStatus_t Run(DeviceContext& context, int64_t n, const void* x, float* y, bool accumulate);
  std::vector<Algorithm> Algorithms(DeviceContext& context);
  bool SameBitsForAnyRows(DeviceContext& context, bool accumulate);
  // The most rows of one call. Longer calls are split, because the check compares bits only up to
  // here; this keeps the check's y within 256 MiB.
  int64_t most_rows() const {
    return std::clamp<int64_t>(kCheckedElements / out, kTypicalRows, 512);
  }
  void Apply(DeviceContext& context, TensorView x, TensorView y, bool accumulate);
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

cublasStatus_t CublasProduct::Run(DeviceContext& context, int64_t n, const void* x, float* y,
                                  bool accumulate) {
  const float one = 1, beta = accumulate ? 1 : 0;
  cublasLtMatrixLayoutOpaque_t w_layout = Layout(DataType(compute), in, out);
  cublasLtMatrixLayoutOpaque_t x_layout = Layout(DataType(compute), in, n);
  cublasLtMatrixLayoutOpaque_t y_layout = Layout(CUDA_R_32F, out, n);
  CudaDevice& device = context.cuda();
  return cublasLtMatmul(Handle(device), &operation, &one, weights.as<void>(), &w_layout, x,
                        &x_layout, &beta, y, &y_layout, y, &y_layout, &algorithm.chosen,
                        device.cublas_workspace.as<void>(), kWorkspaceBytes, device.stream);
}

int32_t Configured(const Algorithm& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  int32_t value = -1;
  CheckCublas(cublasLtMatmulAlgoConfigGetAttribute(&algorithm.chosen, attribute, &value,
                                                   sizeof(value), nullptr));
  return value;
}

std::string Name(const Algorithm& algorithm) {
  return absl::StrCat("algorithm ", Configured(algorithm, CUBLASLT_ALGO_CONFIG_ID), ", tile ",
                      Configured(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID), ", stages ",
                      Configured(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID));
}

// Candidates, best first; none that splits a sum over thread blocks, whose order could depend on
// timing.
std::vector<Algorithm> CublasProduct::Algorithms(DeviceContext& context) {
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
  cublasLtMatrixLayoutOpaque_t w_layout = Layout(DataType(compute), in, out);
  cublasLtMatrixLayoutOpaque_t x_layout = Layout(DataType(compute), in, kTypicalRows);
  cublasLtMatrixLayoutOpaque_t y_layout = Layout(CUDA_R_32F, out, kTypicalRows);
  cublasLtMatmulHeuristicResult_t results[kMaxAlgorithms];
  int n_results = 0;
  std::vector<Algorithm> algorithms;
  if (cublasLtMatmulAlgoGetHeuristic(Handle(context.cuda()), &operation, &w_layout, &x_layout,
                                     &y_layout, &y_layout, &preference, kMaxAlgorithms, results,
                                     &n_results) != CUBLAS_STATUS_SUCCESS) {
    return algorithms;
  }
  for (int i = 0; i < n_results; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back({results[i].algo});
  }
  return algorithms;
}

// Compares calls of n rows, taken from many places of a long call, with the same rows of that call.
// With accumulate they are added to zeros, because that may be another kernel.
bool CublasProduct::SameBitsForAnyRows(DeviceContext& context, bool accumulate) {
  const int64_t most = most_rows();
  const size_t x_row = static_cast<size_t>(in) * DTypeBytes(compute);
  const size_t y_row = static_cast<size_t>(out) * sizeof(float);
  const std::vector<std::byte> rows = TestRows(most, in, compute);
  const Buffer x = context.Upload(rows.data(), rows.size());
  const Buffer y(Device::kCuda, static_cast<size_t>(most) * y_row);
  const auto run = [&](int64_t first, int64_t n, std::vector<std::byte>& rows) {
    rows.resize(static_cast<size_t>(n) * y_row);
    if (accumulate) {
      CheckCuda(cudaMemsetAsync(y.as<void>(), 0, rows.size(), context.cuda().stream));
    }
    const void* from = x.as<std::byte>() + static_cast<size_t>(first) * x_row;
    if (Run(context, n, from, y.as<float>(), accumulate) != CUBLAS_STATUS_SUCCESS) return false;
    context.CopyToHost(rows.data(), y.as<void>(), rows.size());
    return true;
  };
  std::vector<std::byte> expected, part;
  if (!run(0, most, expected)) return false;
  for (int64_t n : {1, 2, 3, 7, 8, 16, 17, 33, 64, 65, 128, 129, 200, 257, 384, 511}) {
    // About 16 places, odd ones among them.
    const int64_t step = (most - n) / 16 | 1;
    for (int64_t first = 0; first + n <= most; first += step) {
      if (!run(first, n, part)) return false;
      const std::byte* same = expected.data() + static_cast<size_t>(first) * y_row;
      if (std::memcmp(part.data(), same, part.size()) != 0) return false;
    }
  }
  return true;
}

void CublasProduct::Apply(DeviceContext& context, TensorView x, TensorView y, bool accumulate) {
  const auto start = reinterpret_cast<uintptr_t>(x.data) | reinterpret_cast<uintptr_t>(y.data);
  Check(start % kAlignment == 0, "rows of a matrix product start at multiples of 16 bytes");
  const size_t x_row = static_cast<size_t>(in) * DTypeBytes(compute);
  const int64_t most = most_rows();
  for (int64_t row = 0; row < x.shape[0]; row += most) {
    const int64_t n = std::min(most, x.shape[0] - row);
    CheckCublas(Run(context, n, x.as<std::byte>() + static_cast<size_t>(row) * x_row,
                    y.as<float>() + row * out, accumulate));
  }
}

}  // namespace

std::optional<Product> MakeCublasProduct(DeviceContext& context, const StackedWeights& weights,
                                         std::string& what) {
  // The check's result per shape, kept because every layer asks again; empty: no algorithm passes.
  static std::mutex mutex;
  static std::map<std::tuple<int64_t, int64_t, DType>, std::optional<Algorithm>> verdicts;
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
  what = "no algorithm of cuBLASLt gives a row the same bits for any number of rows";
  const std::lock_guard lock(mutex);
  const auto [verdict, is_new] =
      verdicts.try_emplace({weights.in, weights.out, weights.compute}, std::nullopt);
  if (!is_new && !verdict->second) return std::nullopt;

  const auto product = std::make_shared<CublasProduct>(context, weights);
  const auto passes = [&](const Algorithm& algorithm) {
    product->algorithm = algorithm;
    return product->SameBitsForAnyRows(context, /*accumulate=*/false) &&
           product->SameBitsForAnyRows(context, /*accumulate=*/true);
  };
  if (is_new) {
    const std::vector<Algorithm> all = product->Algorithms(context);
    const auto found = std::find_if(all.begin(), all.end(), passes);
    if (found == all.end()) return std::nullopt;
    verdict->second = *found;
  }
  product->algorithm = *verdict->second;
  what = Name(product->algorithm);
  return Product{product->weights.bytes(),
                 [product](DeviceContext& context, TensorView x, TensorView y, bool accumulate) {
                   product->Apply(context, x, y, accumulate);
                 }};
}

}  // namespace ovq::kernels::cuda
