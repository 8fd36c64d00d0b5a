#include "tests/kernels/mixers/attention_cases.h"

namespace ovq::test {
namespace {

const MixerCases kOvq(AttentionCases("ovq_attention",
                                     [](const AttentionCaseShape& s, MixerCase& c) {
                                       absl::StrAppend(&c.name, "L", s.chunk_len, "N", s.slots);
                                       c.section = {{"chunk_size", s.chunk_len}};
                                       c.slot_cap = s.slots;
                                     }));

}  // namespace
}  // namespace ovq::test
