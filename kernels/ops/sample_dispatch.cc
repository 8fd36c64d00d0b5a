#include <algorithm>

#include "base/check.h"
#include "kernels/ops/sample_device.h"

namespace ovq::kernels {

void ReadLogits(DeviceContext& context, TensorView logits, LogitsReading& reading) {
  Check(logits.dtype == DType::kF32 && logits.shape.rank() == 2 && logits.shape[1] > 0,
        "ReadLogits: logits are a float32 matrix");
  const int64_t n_rows = logits.shape[0], vocab = logits.shape[1];
  const auto is_row = [&](int64_t row) { return row >= 0 && row < n_rows; };
  for (const RowDraw& draw : reading.draws) Check(is_row(draw.row), "ReadLogits: a draw's row");
  for (const RowToken& token : reading.tokens) {
    Check(is_row(token.row) && token.id >= 0 && token.id < vocab, "ReadLogits: a token's row, id");
  }
  for (RowBest& best : reading.bests) {
    Check(is_row(best.row) && best.n > 0, "ReadLogits: a row and how many of its best");
    best.best.resize(static_cast<size_t>(std::min<int64_t>(best.n, vocab)));
  }
  reading.log_sum_exp.resize(static_cast<size_t>(n_rows));
  Dispatch<cpu::ReadLogits, cuda::ReadLogits>(context, logits, reading);
}

}  // namespace ovq::kernels
