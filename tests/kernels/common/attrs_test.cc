#include "kernels/common/attrs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ovq {
namespace {

using testing::HasSubstr;

Attrs Example() {
  Attrs attrs("ovq.");
  attrs.Set("size", int64_t{128});
  attrs.Set("rate", 0.5);
  attrs.Set("on", true);
  attrs.Set("name", std::string("silu"));
  attrs.Set("nothing", std::monostate());
  attrs.Set("widths", std::vector<int64_t>{1, 2, 3});
  attrs.Set("types", std::vector<std::string>{"a", "b"});
  return attrs;
}

TEST(Attrs, ReadsEveryType) {
  const Attrs attrs = Example();
  EXPECT_EQ(attrs.Int("size", 1, 128).value(), 128);
  EXPECT_EQ(attrs.IntOr("size", 7, 1, 128).value(), 128);
  EXPECT_EQ(attrs.FloatOr("rate", 1, 0, 1).value(), 0.5);
  EXPECT_EQ(attrs.FloatOr("size", 1, 0, 200).value(), 128.0);  // an integer is a number
  EXPECT_TRUE(attrs.BoolOr("on", false).value());
  EXPECT_EQ(attrs.StringOr("name", "gelu").value(), "silu");
  EXPECT_EQ(attrs.Strings("types").value(), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(attrs.Has("size"));
}

TEST(Attrs, AbsentAndNullTakeTheFallback) {
  const Attrs attrs = Example();
  for (const char* key : {"absent", "nothing"}) {
    EXPECT_FALSE(attrs.Has(key)) << key;
    EXPECT_EQ(attrs.IntOr(key, 7, 0, 9).value(), 7) << key;
    EXPECT_EQ(attrs.FloatOr(key, 0.25, 0, 1).value(), 0.25) << key;
    EXPECT_TRUE(attrs.BoolOr(key, true).value()) << key;
    EXPECT_EQ(attrs.StringOr(key, "x").value(), "x") << key;
    EXPECT_EQ(attrs.Int(key, 0, 9).status().code(), absl::StatusCode::kInvalidArgument) << key;
    EXPECT_FALSE(attrs.Strings(key).ok()) << key;
  }
}

TEST(Attrs, WrongValuesNameTheField) {
  const Attrs attrs = Example();
  EXPECT_EQ(attrs.Int("size", 2, 127).status().message(),
            "ovq.size: expected an integer in [2, 127], got 128");
  EXPECT_EQ(attrs.Int("absent", 2, 127).status().message(),
            "ovq.absent: expected an integer in [2, 127], but it is missing");
  EXPECT_THAT(attrs.Int("rate", 0, 1).status().message(), HasSubstr("got 0.5"));
  EXPECT_THAT(attrs.FloatOr("rate", 1, 0.6, 1).status().message(), HasSubstr("ovq.rate"));
  EXPECT_THAT(attrs.FloatOr("name", 1, 0, 1).status().message(), HasSubstr("\"silu\""));
  EXPECT_THAT(attrs.BoolOr("size", true).status().message(), HasSubstr("true or false"));
  EXPECT_THAT(attrs.StringOr("on", "").status().message(), HasSubstr("got true"));
  EXPECT_THAT(attrs.Strings("widths").status().message(), HasSubstr("a list of 3 integers"));
  EXPECT_FALSE(attrs.IntOr("size", 5, 0, 100).ok());
}

TEST(Attrs, OneIntegerOrOnePerLayer) {
  const Attrs attrs = Example();
  EXPECT_EQ(attrs.IntPerLayer("size", 3, 0, 200).value(), (std::vector<int64_t>{128, 128, 128}));
  EXPECT_EQ(attrs.IntPerLayer("widths", 3, 1, 3).value(), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_THAT(attrs.IntPerLayer("widths", 4, 1, 3).status().message(), HasSubstr("4 layers"));
  EXPECT_THAT(attrs.IntPerLayer("widths", 3, 1, 2).status().message(), HasSubstr("one is 3"));
  EXPECT_FALSE(attrs.IntPerLayer("size", 3, 0, 100).ok());
  EXPECT_FALSE(attrs.IntPerLayer("name", 3, 0, 100).ok());
}

TEST(Attrs, UnreadFieldsAreErrors) {
  Attrs attrs("model.");
  attrs.Set("used", int64_t{1});
  attrs.Set("misspelt", int64_t{1});
  attrs.Set("ignored", int64_t{1});
  EXPECT_TRUE(attrs.Has("misspelt"));  // asking whether it is there does not read it
  EXPECT_TRUE(attrs.Int("used", 0, 1).ok());
  attrs.Ignore("ignored");
  EXPECT_EQ(attrs.CheckAllRead().message(), "model.misspelt: unknown field");
  EXPECT_TRUE(attrs.Int("misspelt", 0, 1).ok());
  EXPECT_TRUE(attrs.CheckAllRead().ok());
}

}  // namespace
}  // namespace ovq
