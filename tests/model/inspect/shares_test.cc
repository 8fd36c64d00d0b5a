#include "model/inspect/shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/files.h"
#include "model/load_config.h"
#include "tests/folders.h"
#include "tests/model/edited_model.h"

namespace ovq::model::test {
namespace {

using ::testing::HasSubstr;
using OrderedJson = nlohmann::ordered_json;

// A model with two layers of two heads that --memory can bound, and a file of sequences for it.
class MeasureSharesTest : public ::testing::Test {
 protected:
  MeasureSharesTest() {
    EditedModel model("ovq-head-shares");
    model.config["ovq"].erase("shares");
    model.Write(folder_);
    std::string lines;
    for (int i = 0; i < 4; ++i) {
      OrderedJson line = {{"tokens", OrderedJson::array()}, {"scored", OrderedJson::array()}};
      for (int t = 0; t < 100; ++t) {
        line["tokens"].push_back((t * t + 3 * i + t / 7) % 40);
        if (t % 3 == 1) line["scored"].push_back(t);
      }
      lines += line.dump() + "\n";
    }
    folder_.Write("exam.jsonl", lines);
    options_.file = absl::StrCat(folder_.path(), "/exam.jsonl");
    options_.slots = 24;
    options_.sequences = 2;
    options_.threads = 1;
  }

  absl::StatusOr<OrderedJson> Measure() {
    return MeasureShares(folder_.path(), options_,
                         [this](const std::string& line) { absl::StrAppend(&said_, line, "\n"); });
  }
  OrderedJson Config() {
    return OrderedJson::parse(*ReadFile(absl::StrCat(folder_.path(), "/config.json"), 1 << 20));
  }

  TempFolder folder_;
  ShareOptions options_;
  std::string said_;
};

TEST_F(MeasureSharesTest, LossesAreThoseOfOneLayerAloneAndEndWithASlotForEachToken) {
  options_.slots = 64;
  const auto report = Measure();
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ((*report)["curves"].size(), 2u);
  double sum = 0;
  for (const OrderedJson& curve : (*report)["curves"]) {
    EXPECT_EQ(curve["lost"]["128"], 0);  // two layers' slots, more than tokens
    EXPECT_NE(curve["lost"]["4"], 0);
  }
  for (const double share : (*report)["shares"]) sum += share;
  EXPECT_EQ(sum, 2);
  EXPECT_THAT(said_, HasSubstr("bits that are lost with 4 slots: "));
  EXPECT_THAT(said_, HasSubstr("2 other sequences: exact "));
}

TEST_F(MeasureSharesTest, HeadsStartWithTheSharesOfTheirLayersAndLoseLess) {
  const auto by_layer = Measure();
  ASSERT_TRUE(by_layer.ok()) << by_layer.status();
  options_.by_head = true;
  const auto report = Measure();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ((*report)["curves"], (*by_layer)["curves"]);
  // With the same settings and shares heads lose what their layers do.
  ASSERT_GT((*report)["heads"].size(), 1u);
  double bits = (*by_layer)["measured"]["these"];
  EXPECT_EQ((*report)["heads"][0]["bits"], bits);
  bits += 1e-9;
  for (const OrderedJson& change : (*report)["heads"]) {
    EXPECT_LT(change["bits"], bits);
    bits = change["bits"];
    EXPECT_THAT(said_, HasSubstr(absl::StrFormat("with %s %.4f", change["shares"].dump(), bits)));
  }
  EXPECT_EQ((*report)["measured"]["these"], bits);
  EXPECT_EQ((*report)["shares"], (*report)["heads"].back()["shares"]);
  double sum = 0;
  for (const OrderedJson& layer : (*report)["shares"]) {
    ASSERT_EQ(layer.size(), 2u);
    for (const double share : layer) sum += share;
  }
  EXPECT_EQ(sum, 4);
}

TEST_F(MeasureSharesTest, TheyAreWrittenForTheirRuleAlone) {
  options_.write = true;
  options_.memory = "paper";
  const OrderedJson before = Config();
  const auto report = Measure();
  ASSERT_TRUE(report.ok()) << report.status();
  OrderedJson expected = before;
  if ((*report)["written"]) expected["ovq"]["shares"] = {{"paper", (*report)["shares"]}};
  EXPECT_EQ(Config(), expected);
  EXPECT_EQ((*report)["written"], (*report)["others"]["after"].get<double>() <
                                      (*report)["others"]["before"].get<double>());
  EXPECT_TRUE(LoadConfig(folder_.path()).ok());
}

// Bits per scored token of the sequences that are measured, with equal shares.
TEST_F(MeasureSharesTest, WhatElseLosesLessIsKeptAndWrittenForTheRule) {
  options_.write = true;
  options_.slots = 16;
  OrderedJson before = Config();
  before["ovq"]["recent_tokens"] = 3;
  folder_.Write("config.json", before.dump());
  for (const char* const memory : {"closest-pair", "paper", "keydiff"}) {
    options_.memory = memory;
    folder_.Write("config.json", before.dump());
    said_.clear();
    const auto report = Measure();
    ASSERT_TRUE(report.ok()) << report.status();
    const OrderedJson& measured = (*report)["measured"];
    EXPECT_EQ(measured.contains("equal_recent_half"), memory != std::string("paper"));
    EXPECT_EQ(measured.contains("equal_variance"), memory != std::string("keydiff"));
    std::map<std::string, std::pair<std::string, OrderedJson>> kept;
    for (const std::string shares : {"equal", "these"}) {
      double least = measured[shares];
      for (const auto& [name, field, value] :
           {std::tuple("recent_half", "recent_tokens", OrderedJson(1 << 24)),
            {"variance", "variance", 1},
            {"merge_variance", "merge_variance", 1},
            {"merge_variance_twice", "merge_variance", 2},
            {"light_values", "value_weight", 0.1},
            {"heavy_values", "value_weight", 2}}) {
        const std::string tried = absl::StrCat(shares, "_", name);
        const bool of_pairs =
            field == std::string("merge_variance") || field == std::string("value_weight");
        if (of_pairs && shares == "equal") {
          EXPECT_EQ(measured.contains(tried), memory == std::string("closest-pair"));
        }
        const double bits = measured.value(tried, least);
        if (bits < least) kept[field] = {name, value};
        least = std::min(least, bits);
      }
    }
    for (const char* const field :
         {"recent_tokens", "variance", "merge_variance", "value_weight"}) {
      const OrderedJson written = Config()["ovq"].value(field, OrderedJson());
      if (kept.contains(field)) {
        EXPECT_TRUE((*report)[kept[field].first]) << memory << field;
      }
      if ((*report)["written"] && kept.contains(field)) {
        EXPECT_EQ(written[memory], kept[field].second) << memory << field;
        // The value that every rule had stays that of the others.
        for (const char* const other : {"closest-pair-all", "keydiff-all"}) {
          EXPECT_EQ(written.value(other, 0), before["ovq"].value(field, 0));
        }
      } else {
        EXPECT_EQ(written, before["ovq"].value(field, OrderedJson()));
      }
    }
    EXPECT_TRUE(LoadConfig(folder_.path(), *FindCachePolicy(memory)).ok());
  }
}

TEST_F(MeasureSharesTest, ErrorsNameTheFlagOrTheLine) {
  const auto error = [&] { return std::string(Measure().status().message()); };
  options_.sequences = 3;
  EXPECT_THAT(error(), HasSubstr("--sequences: expected 6 lines in "));
  options_.sequences = 1;
  const auto with = [&](const std::string& line) {
    folder_.Write("exam.jsonl", line + "\n" + line + "\n");
    return error();
  };
  EXPECT_THAT(with("{}"), HasSubstr("exam.jsonl:1: tokens: expected a list of ids from 0 to "));
  EXPECT_THAT(with(R"({"tokens": [1, 99999], "scored": [1]})"),
              HasSubstr("exam.jsonl:1: tokens: "));
  EXPECT_THAT(with(R"({"tokens": [1, 2, 3], "scored": [0, 1]})"),
              HasSubstr("exam.jsonl:1: scored: expected a rising list of indices from 1 to 2"));
  EXPECT_THAT(with(R"({"tokens": [1, 2, 3], "scored": [2, 2]})"), HasSubstr("scored: "));
  EXPECT_THAT(with(R"({"tokens": [1, 2, 3], "scored": []})"), HasSubstr("scored: "));
  options_.file = absl::StrCat(folder_.path(), "/none.txt");
  EXPECT_THAT(error(), HasSubstr("none.txt"));
}

}  // namespace
}  // namespace ovq::model::test
