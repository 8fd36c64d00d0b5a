#include "tests/kernels/mixers/attention_cases.h"

namespace ovq::kernels::test {
namespace {

// No sinks, few, and more than a window holds.
const MixerCases kBlockSliding([] {
  int number = 0;
  return AlsoInInt8(AttentionCases("block_sliding_attention", [&](const AttentionCaseShape& s,
                                                                  MixerCase& c) {
    static constexpr int64_t kSinks[] = {0, 70, 20, 150, 3, 1};
    const int i = number++;
    const int64_t chunks = s.chunk_len > 96 ? 1 : i == 0 ? 3 : 2;
    absl::StrAppend(&c.name, "W", s.chunk_len, "n", chunks, "s", kSinks[i]);
    c.section = {{"chunk_len", s.chunk_len}, {"n_bswa_chunks", chunks}, {"sink_len", kSinks[i]}};
  }));
}());

}  // namespace
}  // namespace ovq::kernels::test
