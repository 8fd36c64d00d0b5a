#include <cublasLt.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <vector>

#include "kernels/common/tensor.h"
#include "tests/simt/simt.h"
#include "tests/simt/stream.h"

namespace ovq::simt {
namespace {

std::mutex mutex;
std::vector<CublasAlgorithm>& Algorithms() {
  static auto* algorithms = new std::vector<CublasAlgorithm>;
  return *algorithms;
}

const CublasAlgorithm* Find(const cublasLtMatmulAlgo_t& algorithm) {
  const std::lock_guard lock(mutex);
  const auto found =
      std::ranges::find(Algorithms(), static_cast<int>(algorithm.data[0]), &CublasAlgorithm::id);
  return found == Algorithms().end() ? nullptr : &*found;
}

float Element(const void* data, cudaDataType_t type, int64_t i) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[i];
  return kernels::ToFloat(static_cast<const kernels::BF16*>(data)[i]);
}

// d[column][row] = sum_k a[row][k] b[column][k] + beta c, one chain of float32 sums.
struct Multiplication {
  CublasAlgorithm how;
  cublasLtMatrixLayoutOpaque_t a_layout, b_layout, d_layout;
  const void *a, *b;
  float beta;
  float* d;

  float Sum(int64_t row, int64_t column) const {
    const auto depth = static_cast<int64_t>(a_layout.rows);
    const int64_t at_once = how.links ? 16 : 1;
    double sum = 0;
    for (int64_t i = 0; i < depth; ++i) {
      const int64_t k = how.descending ? depth - 1 - i : i;
      sum += double{Element(a, a_layout.type, row * a_layout.leading + k)} *
             Element(b, b_layout.type, column * b_layout.leading + k);
      if ((i + 1) % at_once == 0 || i + 1 == depth) sum = static_cast<float>(sum);
    }
    return static_cast<float>(sum);
  }
  void Run() const {
    Delay(std::chrono::seconds(d_layout.columns <= 16 ? how.few_rows_delay : how.delay));
    for (int64_t column = 0; column < static_cast<int64_t>(d_layout.columns); ++column) {
      for (int64_t row = 0; row < static_cast<int64_t>(d_layout.rows); ++row) {
        const float sum = Sum(row, column);
        float& y = d[column * d_layout.leading + row];
        y = beta == 0 ? sum : sum + beta * y;
      }
    }
  }
};

bool Refuses(const CublasAlgorithm& algorithm, uint64_t rows) {
  return static_cast<int64_t>(rows) == algorithm.refuses;
}

}  // namespace

void SetCublas(std::vector<CublasAlgorithm> algorithms) {
  const std::lock_guard lock(mutex);
  Algorithms() = std::move(algorithms);
}

}  // namespace ovq::simt

using namespace ovq::simt;

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "another status";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  const std::lock_guard lock(mutex);
  if (Algorithms().empty()) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = reinterpret_cast<cublasLtHandle_t>(&Algorithms());
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDescOpaque_t* description, cublasComputeType_t,
                                      cudaDataType_t) {
  *description = {CUBLAS_OP_N};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDescOpaque_t* description,
                                              cublasLtMatmulDescAttributes_t, const void* value,
                                              size_t bytes) {
  if (bytes != sizeof(description->transposes_a)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&description->transposes_a, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayoutOpaque_t* layout, cudaDataType_t type,
                                        uint64_t rows, uint64_t columns, int64_t leading) {
  *layout = {type, rows, columns, leading};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreferenceOpaque_t* preference) {
  *preference = {};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreferenceOpaque_t*,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t bytes, size_t*) {
  const int32_t id =
      attribute == CUBLASLT_ALGO_CONFIG_ID ? static_cast<int32_t>(algorithm->data[0]) : 0;
  if (bytes != sizeof(id)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(value, &id, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDescOpaque_t*, cublasLtMatrixLayoutOpaque_t*,
    cublasLtMatrixLayoutOpaque_t* b, cublasLtMatrixLayoutOpaque_t*, cublasLtMatrixLayoutOpaque_t*,
    cublasLtMatmulPreferenceOpaque_t*, int wanted, cublasLtMatmulHeuristicResult_t results[],
    int* found) {
  const std::lock_guard lock(mutex);
  *found = 0;
  for (const CublasAlgorithm& algorithm : Algorithms()) {
    if (*found == wanted) break;
    if (Refuses(algorithm, b->columns)) continue;
    results[*found] = {};
    results[(*found)++].algo.data[0] = static_cast<uint64_t>(algorithm.id);
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDescOpaque_t*, const void* alpha,
                              const void* a, const cublasLtMatrixLayoutOpaque_t* a_layout,
                              const void* b, const cublasLtMatrixLayoutOpaque_t* b_layout,
                              const void* beta, const void*, const cublasLtMatrixLayoutOpaque_t*,
                              void* d, const cublasLtMatrixLayoutOpaque_t* d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void*, size_t,
                              cudaStream_t stream) {
  const CublasAlgorithm* found = Find(*algorithm);
  if (found == nullptr || Refuses(*found, b_layout->columns)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (*static_cast<const float*>(alpha) != 1) return CUBLAS_STATUS_INVALID_VALUE;
  const Multiplication work = {.how = *found,
                               .a_layout = *a_layout,
                               .b_layout = *b_layout,
                               .d_layout = *d_layout,
                               .a = a,
                               .b = b,
                               .beta = *static_cast<const float*>(beta),
                               .d = static_cast<float*>(d)};
  Submit(stream, [work] {
    work.Run();
    return cudaSuccess;
  });
  return CUBLAS_STATUS_SUCCESS;
}
