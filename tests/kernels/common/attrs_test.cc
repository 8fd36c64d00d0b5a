#include "kernels/common/attrs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/problems.h"

namespace ovq::kernels {
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

// The status of reading one field of `attrs`.
template <class Fn>
std::string ErrorText(const Attrs& attrs, Fn&& read) {
  AttrReader reader(attrs);
  read(reader);
  return std::string(reader.status().message());
}

TEST(Attrs, ReadsEveryType) {
  const Attrs attrs = Example();
  AttrReader reader(attrs);
  EXPECT_EQ(reader.Int("size", 1, 128), 128);
  EXPECT_EQ(reader.IntOr("size", 7, 1, 128), 128);
  EXPECT_EQ(reader.FloatOr("rate", 1, 0, 1), 0.5);
  EXPECT_EQ(reader.FloatOr("size", 1, 0, 200), 128.0);  // an integer is a number
  EXPECT_TRUE(reader.BoolOr("on", false));
  EXPECT_EQ(reader.StringOr("name", "gelu"), "silu");
  EXPECT_EQ(reader.Strings("types"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(reader.ChoiceOr("name", std::vector<std::string_view>{"gelu", "silu"}), 1);
  EXPECT_TRUE(attrs.Has("size"));
  EXPECT_TRUE(reader.ok());
}

TEST(Attrs, ReadsListsOfNumbers) {
  Attrs attrs("mamba2.");
  attrs.Set("range", std::vector<double>{0.5, std::nan("")});
  attrs.Set("integers", std::vector<int64_t>{1, 2});
  attrs.Set("number", 3.0);
  AttrReader reader(attrs);
  EXPECT_EQ(reader.FloatsOr("range", {0, 9}, 0, 1), (std::vector<double>{0.5, 9}));  // null
  EXPECT_EQ(reader.FloatsOr("integers", {0, 0}, 0, 2), (std::vector<double>{1, 2}));
  EXPECT_EQ(reader.FloatsOr("absent", {7}, 0, 1), (std::vector<double>{7}));
  EXPECT_TRUE(reader.ok());
  const auto error = [&](const char* key, std::vector<double> fallback) {
    return ErrorText(attrs, [&](AttrReader& r) { r.FloatsOr(key, fallback, 0, 1); });
  };
  EXPECT_EQ(error("integers", {0, 0}), "mamba2.integers: expected numbers in [0, 1], one is 2");
  EXPECT_EQ(error("range", {0}),
            "mamba2.range: expected a list of 1 numbers, got a list of 2 numbers");
  EXPECT_EQ(error("number", {0, 0}), "mamba2.number: expected a list of 2 numbers, got 3");
  EXPECT_THAT(ErrorText(attrs, [](AttrReader& r) { r.Int("range", 0, 1); }),
              HasSubstr("got a list of 2 numbers"));
}

TEST(Attrs, AbsentAndNullTakeTheFallback) {
  const Attrs attrs = Example();
  for (const char* key : {"absent", "nothing"}) {
    AttrReader reader(attrs);
    EXPECT_FALSE(attrs.Has(key)) << key;
    EXPECT_EQ(reader.IntOr(key, 7, 0, 9), 7) << key;
    EXPECT_EQ(reader.FloatOr(key, 0.25, 0, 1), 0.25) << key;
    EXPECT_TRUE(reader.BoolOr(key, true)) << key;
    EXPECT_EQ(reader.StringOr(key, "x"), "x") << key;
    EXPECT_EQ(reader.ChoiceOr(key, std::vector<std::string_view>{"gelu", "silu"}), 0) << key;
    EXPECT_TRUE(reader.ok()) << key;
    reader.Int(key, 0, 9);
    EXPECT_EQ(reader.status().code(), absl::StatusCode::kInvalidArgument) << key;
    EXPECT_NE(ErrorText(attrs, [&](AttrReader& r) { r.Strings(key); }), "") << key;
  }
}

TEST(Attrs, TheFirstErrorOfEachFieldStays) {
  const Attrs attrs = Example();
  AttrReader reader(attrs);
  EXPECT_EQ(reader.Int("size", 0, 1), 0);
  EXPECT_FALSE(reader.BoolOr("rate", true));
  reader.Fail("size", "expected what else");
  EXPECT_EQ(reader.Int("size", 0, 128), 128);
  EXPECT_THAT(SplitProblems(reader.status()),
              testing::ElementsAre(
                  absl::InvalidArgumentError("ovq.size: expected an integer in [0, 1], got 128"),
                  absl::InvalidArgumentError("ovq.rate: expected true or false, got 0.5")));
}

TEST(Attrs, WrongValuesNameTheField) {
  using R = AttrReader;
  const Attrs attrs = Example();
  const auto error = [&](auto read) { return ErrorText(attrs, read); };
  EXPECT_EQ(error([](R& r) { r.Int("size", 2, 127); }),
            "ovq.size: expected an integer in [2, 127], got 128");
  EXPECT_EQ(error([](R& r) { r.Int("absent", 2, 127); }),
            "ovq.absent: expected an integer in [2, 127], but it is missing");
  EXPECT_THAT(error([](R& r) { r.Int("rate", 0, 1); }), HasSubstr("got 0.5"));
  EXPECT_THAT(error([](R& r) { r.FloatOr("rate", 1, 0.6, 1); }), HasSubstr("ovq.rate"));
  EXPECT_THAT(error([](R& r) { r.FloatOr("name", 1, 0, 1); }), HasSubstr("\"silu\""));
  EXPECT_THAT(error([](R& r) { r.BoolOr("size", true); }), HasSubstr("true or false"));
  EXPECT_THAT(error([](R& r) { r.StringOr("on", ""); }), HasSubstr("got true"));
  EXPECT_THAT(error([](R& r) { r.Strings("widths"); }), HasSubstr("a list of 3 integers"));
  EXPECT_THAT(error([](R& r) { r.IntOr("size", 5, 0, 100); }), HasSubstr("[0, 100]"));
  EXPECT_EQ(error([](R& r) {
              r.ChoiceOr("name", std::vector<std::string_view>{"gelu", "none"});
            }),
            "ovq.name: unknown value 'silu'; known: gelu, none");
}

TEST(Attrs, OneIntegerOrOnePerLayer) {
  using R = AttrReader;
  const Attrs attrs = Example();
  AttrReader reader(attrs);
  EXPECT_EQ(reader.IntPerLayer("size", 3, 0, 200), (std::vector<int64_t>{128, 128, 128}));
  EXPECT_EQ(reader.IntPerLayer("widths", 3, 1, 3), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_TRUE(reader.ok());
  const auto error = [&](auto read) { return ErrorText(attrs, read); };
  EXPECT_THAT(error([](R& r) { r.IntPerLayer("widths", 4, 1, 3); }), HasSubstr("4 layers"));
  EXPECT_THAT(error([](R& r) { r.IntPerLayer("widths", 3, 1, 2); }), HasSubstr("one is 3"));
  EXPECT_NE(error([](R& r) { r.IntPerLayer("size", 3, 0, 100); }), "");
  AttrReader other(attrs);
  other.Int("absent", 0, 1);
  EXPECT_EQ(other.IntPerLayer("widths", 3, 1, 3), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(other.IntPerLayer("widths", 3, 1, 2), (std::vector<int64_t>{0, 0, 0}));
  EXPECT_NE(error([](R& r) { r.IntPerLayer("name", 3, 0, 100); }), "");
}

TEST(Attrs, UnreadFieldsAreErrors) {
  Attrs attrs("model.");
  attrs.Set("used", int64_t{1});
  attrs.Set("misspelt", int64_t{1});
  attrs.Set("ignored", int64_t{1});
  EXPECT_TRUE(attrs.Has("misspelt"));  // Has does not count as reading
  AttrReader reader(attrs);
  EXPECT_EQ(reader.Int("used", 0, 1), 1);
  attrs.Ignore("ignored");
  EXPECT_EQ(attrs.CheckAllRead().message(), "model.misspelt: unknown field");
  attrs.Set("zzz", int64_t{1});
  EXPECT_EQ(SplitProblems(attrs.CheckAllRead()).size(), 2u);
  EXPECT_EQ(reader.Int("zzz", 0, 0), 0);
  EXPECT_EQ(SplitProblems(attrs.CheckAllRead()).size(), 1u);
  EXPECT_EQ(reader.Int("misspelt", 0, 1), 1);
  EXPECT_TRUE(attrs.CheckAllRead().ok());
}

TEST(Attrs, AbsentFieldsLeaveValuesThatAreChecked) {
  const Attrs attrs = Example();
  AttrReader reader(attrs);
  int size = 1, absent = 5, missing = 0;
  float rate = 1;
  bool on = false;
  enum class Kind { kGelu, kSilu } kind = Kind::kGelu;
  reader.Int("size", size, 1, 128);
  reader.Int("absent", absent, 1, 9);
  reader.Float("rate", rate, 0, 1);
  reader.Bool("on", on);
  reader.Choice("name", kind, std::vector<std::string_view>{"gelu", "silu"});
  EXPECT_TRUE(size == 128 && absent == 5 && rate == 0.5f && on && kind == Kind::kSilu);
  EXPECT_TRUE(reader.ok()) << reader.status();
  reader.Int("missing", missing, 2, 9);
  EXPECT_EQ(reader.status().message(),
            "ovq.missing: expected an integer in [2, 9], but it is missing");
  EXPECT_EQ(missing, 2);  // so that what follows from it is right
}

TEST(Attrs, FindsAndNamesFieldsAsTheFileDoes) {
  Attrs attrs("text.");
  attrs.Set("in_file", int64_t{3}, "outer.in_file");
  attrs.Set("ours", int64_t{4});  // means something else in this file
  const FieldNames names = {{"size", "in_file"}, {"rows", "columns", /*is_filled=*/true}};
  AttrReader reader(attrs, names);
  int size = 0, ours = 7, rows = 0;
  reader.Int("size", size, 1, 9);
  reader.Int("ours", ours, 1, 9);
  EXPECT_EQ(size, 3);
  EXPECT_EQ(ours, 7);
  EXPECT_EQ(attrs.CheckAllRead().message(), "text.ours: unknown field");
  reader.Int("size", size, 5, 9);
  reader.Int("rows", rows, 1, 9);
  EXPECT_THAT(
      SplitProblems(reader.status()),
      testing::ElementsAre(
          absl::InvalidArgumentError("outer.in_file: expected an integer in [5, 9], got 3"),
          absl::InvalidArgumentError("text.columns: expected an integer in [1, 9], got 0")));
  AttrReader check("ovq.", {});
  check.Int("size", size, 1, 4);
  EXPECT_EQ(check.status().message(), "ovq.size: expected an integer in [1, 4], got 5");
}

// With another name, "extra" might be read.
TEST(Attrs, AWrongChoiceLeavesOpenWhatIsRead) {
  for (const char* choice : {"name", "on"}) {
    Attrs attrs = Example();
    attrs.Set("extra", int64_t{1});
    AttrReader reader(attrs);
    reader.ChoiceOr(choice, std::vector<std::string_view>{"gelu", "none"});
    EXPECT_FALSE(reader.ok());
    EXPECT_TRUE(attrs.CheckAllRead().ok()) << choice;
  }
}

}  // namespace
}  // namespace ovq::kernels
