// Where a check of a whole state looks, and what it calls what it finds.
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

namespace ovq {
namespace {

using testing::HasSubstr;

constexpr int64_t kPosition = 150, kCap = 100;

Growth ToCap() {
  return {.name = "to the cap",
          .live = [](int64_t position, int64_t cap) { return std::min(position, cap); },
          .period = 1,
          .default_slot_cap = kCap};
}

// Window; slots up to a cap; slots of both laws, of which one is seen by a check of its own.
StateLayout Layout() {
  const auto begins = std::make_shared<std::vector<std::byte>>(40, std::byte{1});
  std::vector<MixerState> layers(3);
  layers[0].name = "window";
  layers[0].fixed = StateFields({{"words", DType::kU32, {10}, {0, 5e8}, begins}});
  layers[1].name = "rows";
  layers[1].growth = ToCap();
  layers[1].block = StateFields({{"near", DType::kI32, {kBlockSlots}, {.is_slot = true}},
                                 {"near", DType::kI32, {kBlockSlots}, {.is_slot = true}}});
  layers[2].name = "tokens";
  layers[2].fixed = StateFields({{"best", DType::kF32, {3}, {.least = -HUGE_VAL}}});
  layers[2].growth = GrowsByToken();
  layers[2].block = StateFields({{"keys", DType::kBF16, {kBlockSlots, 8}}});
  layers[2].check = [](const LayerBytes& layer) {
    EXPECT_EQ(layer.live, layer.position);
    return layer.Fixed<float>(0)[2] == 7 ? absl::DataLossError("no seven") : absl::OkStatus();
  };
  return {layers, {.max_slot_cap = 1000, .max_unbounded_tokens = 1000}};
}

class StateCheck : public testing::Test {
 protected:
  StateCheck() : bytes_(layout_.live_bytes_at(kPosition, kCap)) {}
  // Sets a number at this offset of a session's address range.
  template <class T>
  void Set(const std::byte* at, T value) {
    size_t packed = 0;
    const auto offset = static_cast<size_t>(at - session());
    for (const StateExtent& extent : layout_.live_extents_at(kPosition, kCap)) {
      if (offset >= extent.offset && offset < extent.offset + extent.bytes) {
        std::memcpy(bytes_.data() + packed + offset - extent.offset, &value, sizeof value);
        return;
      }
      packed += extent.bytes;
    }
    FAIL() << "not in use";
  }
  std::byte* session() { return range_.data(); }
  std::string Check() {
    return std::string(CheckState(layout_, kPosition, kCap, bytes_).message());
  }

  const StateLayout layout_ = Layout();
  std::vector<std::byte> bytes_, range_ = std::vector<std::byte>(layout_.virtual_bytes());
};

TEST_F(StateCheck, NamesLayerMixerFieldAndElement) {
  EXPECT_EQ(Check(), "");
  Set(layout_.layer(1).block(session(), 1) + 256 + 5 * 4, int32_t{99});
  EXPECT_EQ(Check(), "");  // the last live slot
  Set(layout_.layer(1).block(session(), 1) + 256 + 5 * 4, int32_t{100});
  EXPECT_EQ(Check(), "state of layer 1, rows: block 1, head 1: near[5] is 100, expected 0 to 99");
  Set(layout_.layer(1).block(session(), 1) + 256 + 5 * 4, int32_t{0});
  Set(layout_.layer(2).block(session(), 2) + 63 * 16, RoundToBF16(HUGE_VALF));
  EXPECT_EQ(
      Check(),
      "state of layer 2, tokens: block 2, head 0: keys[504] is inf, expected a finite number");
  Set(layout_.layer(2).block(session(), 2) + 63 * 16, BF16{});
  Set(layout_.layer(0).fixed(session()) + 9 * 4, uint32_t{500'000'001});
  EXPECT_THAT(Check(), HasSubstr("state of layer 0, window: words[9] is 500000001, expected 0 to"));
}

TEST_F(StateCheck, RangesAreOfTheFieldsAndChecksOfTheMixers) {
  Set(layout_.layer(2).fixed(session()), -HUGE_VALF);
  EXPECT_EQ(Check(), "");
  Set(layout_.layer(2).fixed(session()), HUGE_VALF);
  EXPECT_THAT(Check(), HasSubstr("best[0] is inf"));
  Set(layout_.layer(2).fixed(session()), 0.0f);
  Set(layout_.layer(2).fixed(session()) + 8, 7.0f);
  EXPECT_EQ(Check(), "state of layer 2, tokens: no seven");
}

TEST_F(StateCheck, OfAnotherSizeItIsNone) {
  bytes_.pop_back();
  EXPECT_THAT(Check(), HasSubstr("bytes, expected"));
}

TEST_F(StateCheck, NothingReadIsANewSession) {
  std::vector<std::byte> fresh = layout_.NewSession();
  fresh.resize(layout_.live_bytes_at(0, kCap));
  EXPECT_EQ(CheckState(layout_, 0, kCap, fresh), absl::OkStatus());
  fresh[fresh.size() - 1] = std::byte{1};
  EXPECT_THAT(std::string(CheckState(layout_, 0, kCap, fresh).message()),
              HasSubstr("not the one that sessions begin with"));
}

}  // namespace
}  // namespace ovq
