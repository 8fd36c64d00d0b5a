// Tests of the figures and reports that are computed from records.
#include "clients/load/stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "clients/load/experiment.h"
#include "clients/load/report.h"
#include "clients/load/svg_plot.h"

namespace ovq::load {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr Clock::time_point kEpoch{};
Clock::time_point At(int ms) { return kEpoch + std::chrono::milliseconds(ms); }

Record Answer(int start_ms, int sent_ms, std::vector<std::pair<int, uint32_t>> arrivals,
              int ended_ms) {
  Record record;
  record.start = At(start_ms);
  record.send_delay_s = (sent_ms - start_ms) * 1e-3;
  record.outcome.sent = At(sent_ms);
  record.outcome.ended = At(ended_ms);
  for (const auto& [ms, tokens] : arrivals) record.outcome.arrivals.push_back({At(ms), tokens});
  record.outcome.usage = {.prompt_tokens = 10,
                          .generated_tokens = record.outcome.tokens(),
                          .state_bytes = 1000,
                          .queue_s = 0.001};
  return record;
}

Record Failure(int start_ms, int ended_ms, absl::Status status) {
  Record record;
  record.start = record.outcome.sent = At(start_ms);
  record.outcome.ended = At(ended_ms);
  record.outcome.status = std::move(status);
  return record;
}

// numpy.percentile([1, 2, 4, 8, 16], [50, 90, 95, 99]) = 4, 12.8, 14.4, 15.68; numpy.std = 5.455...
TEST(Summarize, WorkedExample) {
  const Summary s = Summarize({16, 1, 8, 2, 4});
  EXPECT_THAT(s.samples, ElementsAre(1, 2, 4, 8, 16));
  EXPECT_DOUBLE_EQ(s.mean, 6.2);
  EXPECT_DOUBLE_EQ(s.p50, 4);
  EXPECT_DOUBLE_EQ(s.p90, 12.8);
  EXPECT_DOUBLE_EQ(s.p95, 14.4);
  EXPECT_DOUBLE_EQ(s.p99, 15.68);
  EXPECT_DOUBLE_EQ(s.max, 16);
  EXPECT_NEAR(s.std * s.std, 29.76, 1e-9);  // mean of squares 68.2 minus 38.44
}

TEST(Summarize, OneSampleAndNone) {
  const Summary one = Summarize({3});
  EXPECT_DOUBLE_EQ(one.p99, 3);
  EXPECT_DOUBLE_EQ(one.std, 0);
  EXPECT_DOUBLE_EQ(Summarize({}).p99, 0);
}

TEST(Latencies, CountFromTheIntendedStart) {
  const Latencies l = ComputeLatencies(Answer(100, 130, {{200, 1}, {230, 1}, {290, 1}}, 300));
  EXPECT_DOUBLE_EQ(l.ttft, 100);
  EXPECT_DOUBLE_EQ(l.e2e, 200);
  EXPECT_DOUBLE_EQ(*l.tpot, 50);  // (200 - 100) / 2
  EXPECT_THAT(l.inter_token, ElementsAre(DoubleEq(30), DoubleEq(60)));
}

TEST(Latencies, TokensOfOneMessageShareItsWait) {
  const Latencies l = ComputeLatencies(Answer(0, 0, {{100, 2}, {130, 3}}, 130));
  EXPECT_THAT(l.inter_token, ElementsAre(DoubleEq(0), DoubleEq(10), DoubleEq(10), DoubleEq(10)));
  EXPECT_DOUBLE_EQ(*l.tpot, 7.5);
}

TEST(Latencies, ASingleTokenHasNoTimePerToken) {
  const Latencies l = ComputeLatencies(Answer(0, 0, {{100, 1}}, 110));
  EXPECT_FALSE(l.tpot.has_value());
  EXPECT_TRUE(l.inter_token.empty());
}

TEST(Goodput, BoundsAreInclusiveAndIndependent) {
  const Latencies l = ComputeLatencies(Answer(0, 0, {{200, 1}, {250, 1}}, 250));  // tpot 50
  EXPECT_TRUE(Goodput::Parse("ttft:200,tpot:50,e2e:250")->Good(l));
  EXPECT_FALSE(Goodput::Parse("ttft:199")->Good(l));
  EXPECT_FALSE(Goodput::Parse("tpot:49")->Good(l));
  EXPECT_FALSE(Goodput::Parse("e2el:249")->Good(l));
  // An answer of a single token has no time per token, so it cannot miss that bound.
  EXPECT_TRUE(Goodput::Parse("tpot:1")->Good(ComputeLatencies(Answer(0, 0, {{200, 1}}, 250))));
}

std::vector<Record> Example() {
  Record cut = Failure(0, 2000, absl::CancelledError("over"));
  cut.cut_off = true;
  return {Answer(0, 5, {{100, 1}, {200, 1}}, 200), Answer(500, 500, {{900, 1}, {1000, 1}}, 1000),
          Failure(600, 700, absl::ResourceExhaustedError("no room, said <the> \"server\"")),
          Failure(800, 900, absl::ResourceExhaustedError("later")), cut};
}

TEST(Report, CountsAndRates) {
  const Report r = MakeReport({.records = Example()}, *Goodput::Parse("ttft:200"));
  EXPECT_EQ(r.completed, 2);
  EXPECT_EQ(r.failed, 2);
  EXPECT_EQ(r.cut_off, 1);
  EXPECT_DOUBLE_EQ(r.duration_s, 2);
  EXPECT_EQ(r.input_tokens, 20);
  EXPECT_EQ(r.output_tokens, 4);
  EXPECT_DOUBLE_EQ(r.request_throughput, 1);
  EXPECT_DOUBLE_EQ(r.output_throughput, 2);
  EXPECT_DOUBLE_EQ(r.total_throughput, 12);
  EXPECT_EQ(r.good, 1);
  EXPECT_DOUBLE_EQ(r.goodput(), 0.5);
  EXPECT_DOUBLE_EQ(r.good_fraction(), 0.25);  // one of four: failed requests are not good
  EXPECT_EQ(r.errors.at("RESOURCE_EXHAUSTED").count, 2);
  EXPECT_EQ(r.errors.at("RESOURCE_EXHAUSTED").first_message, "no room, said <the> \"server\"");
  EXPECT_EQ(r.max_in_flight, 3);  // the cancelled request, the second answer and a failure
  EXPECT_DOUBLE_EQ(r.send_delay_ms.max, 5);
  EXPECT_DOUBLE_EQ(r.ttft_ms.mean, 250);
}

TEST(Timeline, AddsUpToTheWhole) {
  const std::vector<TimelineBin> bins = MakeTimeline(Example(), 4);  // 500 ms each
  ASSERT_EQ(bins.size(), 4u);
  EXPECT_EQ(bins[0].tokens, 2);
  EXPECT_EQ(bins[1].tokens, 1);
  EXPECT_EQ(bins[2].tokens, 1);  // at 1000 ms, where a bin begins
  EXPECT_EQ(bins[0].completed + bins[1].completed + bins[2].completed + bins[3].completed, 2);
  EXPECT_NEAR(bins[0].in_flight, 1 + 195.0 / 500, 1e-9);
  EXPECT_NEAR(bins[3].in_flight, 1, 1e-9);
}

Result ExampleResult() {
  Result result;
  result.model.name = "m<1>";
  result.options.goodput = *Goodput::Parse("ttft:200");
  result.options.output.detailed = true;
  Level& level = result.levels.emplace_back();
  level.load = 3;
  level.run.records = Example();
  level.report = MakeReport(level.run, result.options.goodput);
  return result;
}

TEST(JsonReport, HasTheKeysOfVllmBenchServe) {
  const auto json = nlohmann::json::parse(JsonReport(ExampleResult()));
  for (const char* key :
       {"duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
        "request_throughput", "request_goodput", "output_throughput", "total_token_throughput"}) {
    EXPECT_TRUE(json[key].is_number()) << key;
  }
  for (const char* metric : {"ttft", "tpot", "itl", "e2el"}) {
    for (const char* statistic : {"mean", "median", "std", "p50", "p90", "p95", "p99", "max"}) {
      const std::string key = std::string(statistic) + "_" + metric + "_ms";
      EXPECT_TRUE(json[key].is_number()) << key;
    }
  }
  EXPECT_DOUBLE_EQ(json["mean_ttft_ms"], 250);
  EXPECT_DOUBLE_EQ(json["median_itl_ms"], 100);
  for (const char* key :
       {"input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "errors"}) {
    EXPECT_EQ(json[key].size(), 5u) << key;
  }
  EXPECT_DOUBLE_EQ(json["itls"][0][0], 0.1);  // seconds
  EXPECT_EQ(json["ovq"]["errors"]["RESOURCE_EXHAUSTED"]["count"], 2);
  EXPECT_EQ(json["ovq"]["cut_off"], 1);
}

TEST(JsonReport, ListsRequestsOnlyIfAsked) {
  Result result = ExampleResult();
  result.options.output.detailed = false;
  EXPECT_FALSE(nlohmann::json::parse(JsonReport(result)).contains("ttfts"));
}

TEST(CsvReport, HasARowForEveryRequest) {
  const std::string csv = CsvReport(ExampleResult());
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 6);
  EXPECT_THAT(csv,
              HasSubstr("3,0,0,0.000000,0.005000,100.0000,100.0000,100.0000,200.0000,10,2,2,"));
  EXPECT_THAT(csv, HasSubstr("RESOURCE_EXHAUSTED,\"no room, said <the> \"\"server\"\"\"\n"));
  EXPECT_THAT(csv, HasSubstr(",CUT_OFF,"));
}

TEST(TextReport, TellsWhatWentWrong) {
  const std::string text = TextReport(ExampleResult());
  EXPECT_THAT(text, HasSubstr("2 x RESOURCE_EXHAUSTED: no room"));
  EXPECT_THAT(text, HasSubstr("0.50 (25.00% of requests)"));
}

TEST(HtmlReport, NeedsNothingFromOutside) {
  const std::string html = HtmlReport(ExampleResult());
  EXPECT_THAT(html, HasSubstr("m&lt;1&gt;"));
  EXPECT_THAT(html, HasSubstr("said &lt;the&gt; &quot;server&quot;"));
  for (const char* outside : {"<script", "<link", "src=", "href=", "url(", "@import"}) {
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  }
}

TEST(SvgPlot, TicksAreRoundAndCover) {
  EXPECT_THAT(LinearTicks(0, 9.3, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(LinearTicks(0, 0, 2), ElementsAre(0, 0.5, 1));
  EXPECT_THAT(RenderSvg({.title = "t", .x_label = "", .y_label = "", .series = {}}),
              HasSubstr("no data"));
}

Report Throughput(double tokens_per_s, int64_t good = 100) {
  Report report;
  report.completed = 100;
  report.output_throughput = tokens_per_s;
  report.good = good;
  report.duration_s = 2;
  return report;
}

TEST(Sweep, EndsWhereThroughputSaturates) {
  Sweep sweep({.on = true}, 1, /*whole=*/true);
  EXPECT_EQ(sweep.Add(Throughput(100)), "");
  EXPECT_EQ(sweep.load(), 2);
  EXPECT_EQ(sweep.Add(Throughput(180)), "");
  EXPECT_EQ(sweep.load(), 4);
  EXPECT_EQ(sweep.Add(Throughput(185)), "saturated");  // 2.8% more is below 5%
  EXPECT_EQ(sweep.best(), 2u);
}

TEST(Sweep, EndsWithALevelThatIsTooShortToTell) {
  Sweep sweep({.on = true}, 1, /*whole=*/true);
  EXPECT_EQ(sweep.Add(Throughput(100)), "");
  Report brief = Throughput(1000);
  brief.duration_s = 1.9;
  EXPECT_EQ(sweep.Add(brief), "too short to tell");
  EXPECT_EQ(sweep.best(), 0u);
}

TEST(Sweep, EndsWhereGoodputBreaks) {
  Sweep sweep({.on = true}, 1, true);
  EXPECT_EQ(sweep.Add(Throughput(100, 99)), "");
  EXPECT_EQ(sweep.Add(Throughput(200, 98)), "goodput broken");
  EXPECT_EQ(sweep.best(), 0u);
}

TEST(Sweep, EndsAtItsLastLevelAndOnFailure) {
  Sweep two({.on = true, .max_levels = 2, .factor = 1.1}, 1, true);
  EXPECT_EQ(two.Add(Throughput(1)), "");
  EXPECT_EQ(two.load(), 2);  // whole users grow by at least one
  EXPECT_EQ(two.Add(Throughput(9)), "last level");
  Sweep failed({.on = true}, 1, true);
  EXPECT_EQ(failed.Add(Report()), "nothing completed");
  EXPECT_FALSE(failed.best().has_value());
}

}  // namespace
}  // namespace ovq::load
