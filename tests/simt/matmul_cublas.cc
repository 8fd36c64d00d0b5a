// Replaces kernels/ops/matmul_cublas.cu on the host, where there is no cuBLASLt: products of
// bfloat16 are those of few rows, sixteen rows at a time.
#include <algorithm>
#include <memory>

#include "kernels/ops/matmul_device.h"
#include "kernels/ops/product_chain.h"

namespace ovq::kernels::cuda {

std::optional<Product> MakeCublasProduct(DeviceContext& context, const StackedWeights& weights,
                                         std::string& what) {
  what = "the host executor has no cuBLASLt";
  if (weights.compute != DType::kBF16 || weights.out % 4 != 0 ||
      !FitsChain(context, weights.in, weights.out)) {
    return std::nullopt;
  }
  const auto memory = std::make_shared<Buffer>(
      UploadItems(context, weights.out, weights.row_bytes(),
                  [&](int64_t row, std::byte* bytes) { CopyRow(weights, row, bytes); }));
  const TensorView w = {memory->as<void>(), weights.compute, {weights.out, weights.in}};
  const auto apply = [memory, w](DeviceContext& context, TensorView x, TensorView y,
                                 bool accumulate) {
    for (int64_t row = 0; row < x.shape[0]; row += kMaxChainRows) {
      LaunchChain(context, {.weights = w.as<BF16>(),
                            .x = x.as<BF16>() + row * w.shape[1],
                            .y = y.as<float>() + row * w.shape[0],
                            .n = std::min(kMaxChainRows, x.shape[0] - row),
                            .in = w.shape[1],
                            .out = w.shape[0],
                            .accumulate = accumulate});
    }
  };
  const auto fused = [memory, w](DeviceContext& context, const ProductRows& x, TensorView y,
                         ProductEnd end) { return ApplyChain(context, w, x, y, end); };
  return Product{memory->bytes(), apply, fused};
}

}  // namespace ovq::kernels::cuda
