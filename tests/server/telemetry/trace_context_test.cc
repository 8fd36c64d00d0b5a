#include "server/telemetry/trace_context.h"

#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_cat.h"

namespace ovq::server {
namespace {

constexpr char kTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kParent[] = "00f067aa0ba902b7";

std::string Header(const std::string& version, const std::string& flags) {
  return absl::StrCat(version, "-", kTrace, "-", kParent, "-", flags);
}

bool IsHex(const std::string& text, size_t size) {
  return text.size() == size && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

TEST(TraceContext, TakesValidParents) {
  struct Case {
    std::string header;
    bool sampled;
  };
  for (const Case& valid :
       {Case{Header("00", "00"), false}, Case{Header("00", "01"), true},
        Case{Header("00", "02"), false},  // a flag of a later version
        Case{Header("00", "ff"), true}, Case{Header("00", "0b"), true},
        // Later versions: the parts that version 00 has.
        Case{Header("01", "01"), true}, Case{Header("cc", "00"), false},
        Case{Header("cc", "01-what-follows"), true}, Case{Header("fe", "01-"), true}}) {
    const Span span = StartSpan(valid.header, std::nullopt);
    EXPECT_EQ(span.trace_id, kTrace) << valid.header;
    EXPECT_EQ(span.parent_id, kParent) << valid.header;
    EXPECT_EQ(span.sampled, valid.sampled) << valid.header;
    EXPECT_TRUE(IsHex(span.span_id, 16)) << span.span_id;
    EXPECT_NE(span.span_id, kParent);
    EXPECT_EQ(span.traceparent(),
              absl::StrCat("00-", kTrace, "-", span.span_id, valid.sampled ? "-01" : "-00"));
  }
}

TEST(TraceContext, BeginsATraceWhereTheParentIsNotValid) {
  const std::string zero_trace(32, '0'), zero_parent(16, '0');
  for (const std::string& header :
       {std::string(),
        std::string("00"),
        Header("00", "0"),
        Header("00", ""),
        Header("00", "01-"),
        Header("00", "01-more"),
        Header("00", "001"),
        Header("00", "01 "),
        absl::StrCat(" ", Header("00", "01")),
        Header("ff", "01"),
        Header("ff", "01-more"),
        Header("0", "01"),
        Header("000", "01"),
        Header("0A", "01"),
        Header("g0", "01"),
        Header("00", "0G"),
        Header("00", "0F"),
        Header("cc", "01more"),
        Header("cc", "01."),
        Header("cc", "011"),
        absl::StrCat("00-", zero_trace, "-", kParent, "-01"),
        absl::StrCat("00-", kTrace, "-", zero_parent, "-01"),
        std::string("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"),
        std::string("00-4bf92f3577b34da6a3ce929d0e0e4736-00F067AA0BA902B7-01"),
        std::string("00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        std::string("00-4bf92f3577b34da6a3ce929d0e0e4736.00f067aa0ba902b7-01"),
        std::string("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7+01"),
        std::string("00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01"),
        std::string("00-4bf92f3577b34da6a3ce929d0e0e47366-00f067aa0ba902b7-01"),
        std::string("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b-01"),
        std::string("00-4bf92f3577b34da6a3ce929d0e0e473\xff-00f067aa0ba902b7-01"),
        std::string(100'000, '0')}) {
    const Span span = StartSpan(header, "vendor=state");
    EXPECT_TRUE(IsHex(span.trace_id, 32)) << header;
    EXPECT_NE(span.trace_id, kTrace) << header;
    EXPECT_NE(span.trace_id, zero_trace) << header;
    EXPECT_EQ(span.parent_id, "") << header;
    EXPECT_EQ(span.state, "") << header;
    EXPECT_FALSE(span.sampled) << header;
  }
  EXPECT_EQ(StartSpan(std::nullopt, std::nullopt).parent_id, "");
}

TEST(TraceContext, IdsAreNew) {
  std::set<std::string> ids;
  for (int i = 0; i < 100; ++i) {
    const Span span = StartSpan(std::nullopt, std::nullopt);
    ids.insert({span.trace_id, span.span_id, NewRequestId()});
  }
  EXPECT_EQ(ids.size(), 300u);
  EXPECT_TRUE(IsHex(NewRequestId(), 32));
}

TEST(TraceContext, PassesTheStateOnIfItsSizeIsValid) {
  const std::string parent = Header("00", "01");
  for (const std::string& state :
       {std::string("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"), std::string(512, 's')}) {
    EXPECT_EQ(StartSpan(parent, state).state, state);
  }
  for (const std::string& state : {std::string(), std::string(513, 's'), std::string("a=\n"),
                                   std::string("a=\xc3\xa4"), std::string("a=\t")}) {
    EXPECT_EQ(StartSpan(parent, state).state, "") << state;
  }
}

TEST(RequestId, FormOfACallersOwn) {
  for (const std::string& id :
       {std::string("a"), std::string("Order-1.2_3"), std::string(64, 'x')}) {
    EXPECT_TRUE(IsRequestId(id)) << id;
  }
  for (const std::string& id :
       {std::string(), std::string(65, 'x'), std::string("a b"), std::string("a\n"),
        std::string("a\"b"), std::string("\xc3\xa4"), std::string("a/b"), std::string(1, '\0')}) {
    EXPECT_FALSE(IsRequestId(id)) << id;
  }
}

}  // namespace
}  // namespace ovq::server
