#include "tests/kernels/mixers/attention_cases.h"

namespace ovq::kernels::test {
namespace {

const MixerCases kVq(AttentionCases("vq_attention", [](const AttentionCaseShape& s, MixerCase& c) {
  absl::StrAppend(&c.name, "N", s.slots);
  c.section = {{"codebook_size", s.slots}};
}));

}  // namespace
}  // namespace ovq::kernels::test
