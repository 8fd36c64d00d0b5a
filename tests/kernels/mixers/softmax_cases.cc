#include "tests/kernels/mixers/attention_cases.h"

namespace ovq::kernels::test {
namespace {

const MixerCases kFull(AlsoInInt8(AttentionCases("full_attention",
                                                 [](const AttentionCaseShape&, MixerCase&) {})));
const MixerCases kSliding(AlsoInInt8(AttentionCases("sliding_attention",
                                                    [](const AttentionCaseShape& s, MixerCase& c) {
                                                      absl::StrAppend(&c.name, "w", s.window);
                                                      c.model["sliding_window"] = s.window;
                                                    })));

}  // namespace
}  // namespace ovq::kernels::test
