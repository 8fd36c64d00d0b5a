// CheckState finds errors in every layer and names them.
#include "kernels/mixers/state_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "model/state_check.h"
#include "tests/model/new_session.h"

namespace ovq::model {
namespace {

using testing::HasSubstr;

constexpr int64_t kPosition = 150, kCap = 100;

kernels::Growth ToCap() {
  return {.name = "to the cap",
          .live = [](int64_t position, int64_t cap) { return std::min(position, cap); },
          .period = 1,
          .default_slot_cap = kCap};
}

// A window; slots up to a cap; slots of both growth laws, one of which has a check of its own.
StateLayout Layout() {
  const auto begins = std::make_shared<std::vector<std::byte>>(40, std::byte{1});
  std::vector<kernels::MixerState> layers(4);
  layers[0].name = "window";
  layers[0].fixed = kernels::StateFields({{"words", kernels::DType::kU32, {10}, {0, 5e8}, begins}});
  layers[1].name = "rows";
  layers[1].growth = ToCap();
  layers[1].block = kernels::StateFields(
      {{"near", kernels::DType::kI32, {kernels::kBlockSlots}, {.is_slot = true}},
       {"near", kernels::DType::kI32, {kernels::kBlockSlots}, {.is_slot = true}}});
  layers[1].block_heads = 2;
  layers[2].name = "tokens";
  layers[2].fixed =
      kernels::StateFields({{"best", kernels::DType::kF32, {3}, {.least = -HUGE_VAL}}});
  layers[2].growth = kernels::GrowsByToken();
  layers[2].block =
      kernels::StateFields({{"keys", kernels::DType::kBF16, {kernels::kBlockSlots, 8}}});
  layers[2].check = [](const kernels::LayerBytes& layer) {
    EXPECT_EQ(layer.parts[0].live, layer.position);
    return layer.Fixed<float>(0)[2] == 7 ? absl::DataLossError("no seven") : absl::OkStatus();
  };
  layers[3] = layers[1];
  layers[3].name = "rows by head";
  layers[3].fixed =
      kernels::StateFields({{"best", kernels::DType::kI32, {2, 3}, {.is_slot = true}}});
  layers[3].growth = ToCap().WithShares({0.25, 1.75});
  return {layers, {.max_slot_cap = 1000, .max_unbounded_tokens = 1000}};
}

class StateCheck : public testing::Test {
 protected:
  StateCheck() : bytes_(layout_.live_bytes_at(kPosition, kCap)) {}
  // Sets a number at this offset of a session's address range.
  template <class T>
  void Set(size_t offset, T value) {
    size_t packed = 0;
    for (const kernels::StateExtent& extent : layout_.live_extents_at(kPosition, kCap)) {
      if (offset >= extent.offset && offset < extent.offset + extent.bytes) {
        std::memcpy(bytes_.data() + packed + offset - extent.offset, &value, sizeof value);
        return;
      }
      packed += extent.bytes;
    }
    FAIL() << "not in use";
  }
  size_t Field(int layer, int field, int64_t block) const {
    return layout_.layer(layer).FieldOffset(layout_.mixers()[layer], field, block);
  }
  std::string Check() {
    return std::string(CheckState(layout_, kPosition, kCap, bytes_).message());
  }

  const StateLayout layout_ = Layout();
  std::vector<std::byte> bytes_;
};

TEST_F(StateCheck, NamesLayerMixerFieldAndElement) {
  EXPECT_EQ(Check(), "");
  Set(Field(1, 1, 1) + 5 * 4, int32_t{99});
  EXPECT_EQ(Check(), "");  // the last live slot
  Set(Field(1, 1, 1) + 5 * 4, int32_t{100});
  EXPECT_EQ(Check(), "state of layer 1, rows: block 1, head 1: near[5] is 100, expected 0 to 99");
  Set(Field(1, 1, 1) + 5 * 4, int32_t{0});
  Set(Field(2, 0, 2) + 63 * 16, kernels::RoundToBF16(HUGE_VALF));
  EXPECT_EQ(
      Check(),
      "state of layer 2, tokens: block 2, head 0: keys[504] is inf, expected a finite number");
  Set(Field(2, 0, 2) + 63 * 16, kernels::BF16{});
  Set(layout_.layer(0).fixed_offset + 9 * 4, uint32_t{500'000'001});
  EXPECT_THAT(Check(), HasSubstr("state of layer 0, window: words[9] is 500000001, expected 0 to"));
}

// One head has 25 slots, the other 150: an index valid for one is out of range for the other.
TEST_F(StateCheck, HeadsHaveSlotsOfTheirOwn) {
  const size_t best = layout_.layer(3).fixed_offset;
  Set(best + 5 * 4, int32_t{149});
  Set(Field(3, 1, 2) + 63 * 4, int32_t{149});
  EXPECT_EQ(Check(), "");
  Set(best + 2 * 4, int32_t{25});
  EXPECT_EQ(Check(), "state of layer 3, rows by head: best[2] is 25, expected 0 to 24");
  Set(best + 2 * 4, int32_t{24});
  Set(Field(3, 0, 0) + 8, int32_t{25});
  EXPECT_EQ(Check(),
            "state of layer 3, rows by head: block 0, head 0: near[2] is 25, expected 0 to 24");
  Set(Field(3, 0, 0) + 8, int32_t{24});
  Set(Field(3, 1, 2) + 63 * 4, int32_t{150});
  EXPECT_EQ(Check(),
            "state of layer 3, rows by head: block 2, head 1: near[63] is 150, expected 0 to 149");
}

TEST_F(StateCheck, RangesAreOfTheFieldsAndChecksOfTheMixers) {
  Set(layout_.layer(2).fixed_offset, -HUGE_VALF);
  EXPECT_EQ(Check(), "");
  Set(layout_.layer(2).fixed_offset, HUGE_VALF);
  EXPECT_THAT(Check(), HasSubstr("best[0] is inf"));
  Set(layout_.layer(2).fixed_offset, 0.0f);
  Set(layout_.layer(2).fixed_offset + 8, 7.0f);
  EXPECT_EQ(Check(), "state of layer 2, tokens: no seven");
}

TEST_F(StateCheck, OfAnotherSizeItIsNone) {
  bytes_.pop_back();
  EXPECT_THAT(Check(), HasSubstr("bytes, expected"));
}

TEST_F(StateCheck, NothingReadIsANewSession) {
  std::vector<std::byte> fresh = model::test::NewSession(layout_);
  fresh.resize(layout_.live_bytes_at(0, kCap));
  EXPECT_EQ(CheckState(layout_, 0, kCap, fresh), absl::OkStatus());
  fresh[fresh.size() - 1] = std::byte{1};
  EXPECT_THAT(std::string(CheckState(layout_, 0, kCap, fresh).message()),
              HasSubstr("not the one that sessions begin with"));
}

}  // namespace
}  // namespace ovq::model
