// States that come from outside: what a mixer leaves passes its check, and a field with a number it
// cannot have is refused, or does no harm.
#include "kernels/mixers/state_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/mixers/ovq/ovq.h"
#include "tests/kernels/mixers/mixer_test_util.h"

namespace ovq::kernels::test {
namespace {

class StateCheck : public MixerCaseTest {
 protected:
  void SetUp() override {
    const std::string missing = WhyNoDevice(GetParam().device);
    if (!missing.empty()) GTEST_SKIP() << missing;
    instance_.emplace(GetParam(), GetParam().device, 1, n_tokens());
  }
  static bool slow() { return IsSlow(GetParam().device); }
  static int n_tokens() { return slow() ? 200 : 333; }

  const MixerState& state() const { return instance_->mixer().state(); }
  LayerBytes Layer(const std::vector<std::byte>& bytes, int64_t position) const {
    return {state(), instance_->where(), position, instance_->slot_cap(),
            [&](size_t offset) { return bytes.data() + offset; }};
  }
  absl::Status Check(const std::vector<std::byte>& bytes, int64_t position) const {
    return CheckLayer(Layer(bytes, position));
  }

  std::optional<MixerInstance> instance_;
  const std::vector<float> x_ = RandomRows(n_tokens(), 11);
};

TEST_P(StateCheck, WhatAMixerLeavesPasses) {
  MixerSession session = instance_->NewSession();
  ASSERT_TRUE(Check(session.bytes(), 0).ok()) << Check(session.bytes(), 0);
  const int64_t step = slow() ? 11 : 1;
  for (int64_t at = 0; at < n_tokens(); at += step) {
    const int64_t end = std::min<int64_t>(at + step, n_tokens());
    instance_->RunBatch({{session.base(), at, Rows(x_, at, end)}});
    const absl::Status status = Check(session.bytes(), end);
    ASSERT_TRUE(status.ok()) << "after " << end << " tokens: " << status;
  }
}

// Devices count alike, but do not keep alike what only helps them.
TEST_P(StateCheck, GoesOnFromTheReferencesState) {
  constexpr int64_t kFrom = 150;
  MixerInstance reference(GetParam(), Device::kReference, 1, n_tokens());
  MixerSession made = reference.NewSession();
  reference.Run(made, Rows(x_, 0, kFrom), {});
  ASSERT_TRUE(Check(made.bytes(), kFrom).ok()) << Check(made.bytes(), kFrom);
  MixerSession session(instance_->context(), made.bytes());
  for (const float y : instance_->Run(session, Rows(x_, kFrom, n_tokens()), {}, kFrom)) {
    ASSERT_TRUE(std::isfinite(y));
  }
  EXPECT_TRUE(session.GuardsIntact());
  EXPECT_TRUE(Check(session.bytes(), n_tokens()).ok()) << Check(session.bytes(), n_tokens());
}

// A field of the state as a run of elements.
struct Place {
  const StateField& field;
  size_t offset;
};

template <class T>
std::vector<std::byte> ToBytes(T value) {
  std::vector<std::byte> bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

TEST_P(StateCheck, AWrongNumberIsRefusedOrHarmless) {
  std::set<std::string_view> gone_on;
  // Within a chunk, as tokens wait, and where one ends.
  for (const int64_t position :
       {int64_t{150}, state().span > 1 ? 128 / state().span * state().span : 128}) {
    MixerSession whole = instance_->NewSession();
    instance_->Run(whole, Rows(x_, 0, position), {});
    const std::vector<std::byte> bytes = whole.bytes();
    std::vector<Place> places;
    const LayerState& where = instance_->where();
    const LayerBytes layer = Layer(bytes, position);
    const auto& fixed = state().fixed.list();
    for (size_t f = 0; f < fixed.size(); ++f) {
      places.push_back({fixed[f], where.fixed_offset + state().fixed.offset(static_cast<int>(f))});
    }
    const auto& fields = state().block.list();
    for (int f = 0; f < std::ssize(fields); ++f) {
      const int64_t n_blocks = NumBlocks(layer.head_part(state().FieldHead(f)).live);
      for (int64_t b = 0; b < n_blocks; b += std::max<int64_t>(1, n_blocks - 1)) {
        places.push_back({fields[f], where.FieldOffset(state(), f, b)});
      }
    }
    const int64_t live = layer.parts.front().live;
    for (const Place& place : places) {
      const auto elements = static_cast<size_t>(place.field.shape.elements());
      const bool is_bf16 = place.field.dtype == DType::kBF16,
                 is_float = is_bf16 || place.field.dtype == DType::kF32,
                 is_int8 = place.field.dtype == DType::kI8;
      const float nan = std::nanf(""), infinity = HUGE_VALF;
      const std::vector<std::vector<std::byte>> values =
          is_bf16   ? std::vector{ToBytes(RoundToBF16(nan)), ToBytes(RoundToBF16(-infinity))}
          : is_int8 ? std::vector{ToBytes(uint8_t{255}), ToBytes(uint8_t{250}),
                                  ToBytes(uint8_t{0x80}), ToBytes(uint8_t{0})}
          : is_float
              ? std::vector{ToBytes(nan), ToBytes(infinity), ToBytes(-infinity), ToBytes(-1.0f)}
              : std::vector{ToBytes(-1), ToBytes(std::numeric_limits<int32_t>::max()),
                            ToBytes(static_cast<int32_t>(live)), ToBytes(0)};
      for (const size_t element : {size_t{0}, elements / 2, elements - 1}) {
        for (size_t v = 0; v < values.size(); ++v) {
          std::vector<std::byte> wrong = bytes;
          std::copy(values[v].begin(), values[v].end(),
                    wrong.begin() +
                        static_cast<std::ptrdiff_t>(place.offset + element * values[v].size()));
          const absl::Status status = Check(wrong, position);
          if (is_float && v == 0) {
            ASSERT_FALSE(status.ok()) << place.field.name << " is not a number";
            ASSERT_THAT(std::string(status.message()),
                        testing::HasSubstr(std::string(place.field.name) + "[" +
                                           std::to_string(element) + "] is nan"));
          }
          if (is_int8 && v < 2 && element == elements - 1) {
            ASSERT_THAT(std::string(status.message()), testing::HasSubstr("] is the exponent 25"));
          }
          if (!status.ok() || wrong == bytes || element != 0) continue;
          // Slow devices: one wrong value of each field, never a float, goes on for all.
          if (slow() && (is_float || !gone_on.insert(place.field.name).second)) continue;
          MixerSession session(instance_->context(), wrong);
          instance_->Run(session, Rows(x_, position, n_tokens()), {}, position);
          ASSERT_TRUE(session.GuardsIntact()) << place.field.name << "[" << element << "]";
        }
      }
    }
  }
}

// Heads with slots of their own need not divide what a token shift keeps.
TEST(CheckLayer, ReachesTheEndOfAFieldWithoutHeads) {
  constexpr size_t kChannels = 4, kHeads = 3;
  MixerState state;
  state.fixed = StateFields({{"newest_x", DType::kF32, {kChannels}}});
  state.growth = GrowsByChunk(8, 64).WithShares({0.5, 1, 1.5});
  state.block = StateFields(std::vector<StateField>(kHeads, {"rows", DType::kF32, {kBlockSlots}}));
  state.block_heads = kHeads;
  for (size_t wrong = 0; wrong < kChannels; ++wrong) {
    std::vector<float> newest(kChannels);
    newest[wrong] = std::nanf("");
    const auto at = [&](size_t) { return reinterpret_cast<const std::byte*>(newest.data()); };
    const absl::Status status = CheckLayer({state, {}, /*position=*/0, /*slot_cap=*/64, at});
    EXPECT_EQ(status, absl::DataLossError("newest_x[" + std::to_string(wrong) +
                                          "] is nan, expected a finite number"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, StateCheck, testing::ValuesIn(MixerCases::OnDevices()),
                         MixerCaseName);

}  // namespace
}  // namespace ovq::kernels::test
