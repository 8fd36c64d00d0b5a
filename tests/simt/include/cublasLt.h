// The host executor's stand-in for cuBLASLt, as far as kernels/ops/matmul_cublas.cu calls it. Its
// algorithms are those of simt::SetCublas; there are none at first, and then the library cannot be
// used.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

enum cublasStatus_t {
  CUBLAS_STATUS_SUCCESS = 0,
  CUBLAS_STATUS_NOT_INITIALIZED = 1,
  CUBLAS_STATUS_INVALID_VALUE = 7,
  CUBLAS_STATUS_NOT_SUPPORTED = 15,
};
enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_16BF = 14 };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F = 68 };
enum cublasOperation_t { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum cublasLtMatmulDescAttributes_t { CUBLASLT_MATMUL_DESC_TRANSA = 3 };
enum cublasLtMatmulPreferenceAttributes_t {
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
  CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8,
};
enum cublasLtMatmulAlgoConfigAttributes_t {
  CUBLASLT_ALGO_CONFIG_ID = 0,
  CUBLASLT_ALGO_CONFIG_TILE_ID = 1,
  CUBLASLT_ALGO_CONFIG_STAGES_ID = 6,
};
enum cublasLtReductionScheme_t { CUBLASLT_REDUCTION_SCHEME_NONE = 0 };

using cublasLtHandle_t = struct cublasLtContext*;
struct cublasLtMatmulDescOpaque_t {
  cublasOperation_t transposes_a;
};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t leading;
};
struct cublasLtMatmulPreferenceOpaque_t {
  uint64_t unused[8];
};
struct cublasLtMatmulAlgo_t {
  uint64_t data[8];
};
struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  size_t workspaceSize;
  cublasStatus_t state;
  float wavesCount;
  int reserved[4];
};

const char* cublasLtGetStatusString(cublasStatus_t status);
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle);
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle);
cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDescOpaque_t* description,
                                      cublasComputeType_t compute, cudaDataType_t scale);
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDescOpaque_t* description,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes);
cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayoutOpaque_t* layout, cudaDataType_t type,
                                        uint64_t rows, uint64_t columns, int64_t leading);
cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreferenceOpaque_t* preference);
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreferenceOpaque_t* preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes);
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t bytes, size_t* written);
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDescOpaque_t* description,
    cublasLtMatrixLayoutOpaque_t* a, cublasLtMatrixLayoutOpaque_t* b,
    cublasLtMatrixLayoutOpaque_t* c, cublasLtMatrixLayoutOpaque_t* d,
    cublasLtMatmulPreferenceOpaque_t* preference, int wanted,
    cublasLtMatmulHeuristicResult_t results[], int* found);
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDescOpaque_t* description,
                              const void* alpha, const void* a,
                              const cublasLtMatrixLayoutOpaque_t* a_layout, const void* b,
                              const cublasLtMatrixLayoutOpaque_t* b_layout, const void* beta,
                              const void* c, const cublasLtMatrixLayoutOpaque_t* c_layout, void* d,
                              const cublasLtMatrixLayoutOpaque_t* d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream);
