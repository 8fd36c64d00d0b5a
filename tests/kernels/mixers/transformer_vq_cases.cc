#include "absl/strings/str_cat.h"
#include "kernels/mixers/transformer_vq/transformer_vq.h"
#include "tests/kernels/mixers/mixer_test_util.h"

namespace ovq::kernels::test {
namespace {

MixerCase TransformerVqCase(const TransformerVqShape& s, DType dtype) {
  return {.type = "transformer_vq",
          .name = absl::StrCat("h", s.n_heads, "d", s.head_dim, "v", s.value_dim, "N", s.n_codes,
                               "M", s.mem_len, s.has_means ? "" : "forgets"),
          .model = {},
          .section = {{"num_heads", s.n_heads},
                      {"head_dim", s.head_dim},
                      {"value_head_dim", s.value_dim},
                      {"codebook_size", s.n_codes},
                      {"mem_len", s.mem_len},
                      {"agg_cache", s.has_means}},
          // Codes as far from 0 as keys are; biases that are felt beside queries.
          .weights = {{"self_attn.codebook", {0.0f, 0.4f}},
                      {"self_attn.xl_u", {0.0f, 1.0f}},
                      {"self_attn.xl_v", {0.0f, 1.0f}}},
          .slot_cap = 0,
          .output_terms = int64_t{s.n_heads} * s.value_dim,
          .kv_dtype = dtype,
          .compute_dtype = dtype};
}

// Windows shorter and longer than a span, of a span's length and of two keys; values that fill
// their slices and that do not.
const MixerCases kTransformerVq({
    TransformerVqCase({1, 16, 96, 24, 12}, DType::kF32),
    TransformerVqCase({2, 20, 40, 70, 100}, DType::kF32),
    TransformerVqCase({1, 32, 130, 200, 64}, DType::kF32),
    TransformerVqCase({3, 64, 64, 5, 1}, DType::kBF16),
    TransformerVqCase({2, 16, 24, 40, 33, false}, DType::kF32),
});

// The shape of its enwik8 model, which has the same width.
const BenchFields kTransformerVqBench("transformer_vq", {{"num_heads", 1},
                                                         {"value_head_dim", 1536},
                                                         {"codebook_size", 512},
                                                         {"mem_len", 512}});

}  // namespace
}  // namespace ovq::kernels::test
