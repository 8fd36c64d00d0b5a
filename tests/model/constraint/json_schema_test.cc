#include <gtest/gtest.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "model/constraint/constraint.h"
#include "model/constraint/json_number.h"
#include "tests/folders.h"
#include "tests/model/constraint/constraint_test_util.h"

namespace ovq::constraint::test {
namespace {

class SchemaTest : public testing::Test {
 protected:
  // The schema is accepted, these texts are of its language, and the others are not.
  void Expect(std::string_view schema, const std::vector<std::string>& accepted,
              const std::vector<std::string>& others) {
    Grammar grammar;
    const absl::StatusOr<Grammar::Node> root = AddJsonSchema(schema, grammar, Limits());
    ASSERT_TRUE(root.ok()) << schema << ": " << root.status();
    ExpectTexts(schema, grammar, *root, accepted, others);
  }

  void ExpectTexts(std::string_view what, Grammar& grammar, Grammar::Node root,
                   const std::vector<std::string>& accepted,
                   const std::vector<std::string>& others) {
    grammar.SetRoot(root);
    const auto automaton = CompileGrammar(grammar, Limits());
    ASSERT_TRUE(automaton.ok()) << what << ": " << automaton.status();
    Matcher matcher(*automaton, vocabulary_, kTestCache);
    const auto is_text = [&](const std::string& text) {
      const auto place = matcher.Advance(matcher.Begin(), std::string_view(text));
      return place && place->may_end();
    };
    for (const std::string& text : accepted) EXPECT_TRUE(is_text(text)) << what << ": " << text;
    for (const std::string& text : others) EXPECT_FALSE(is_text(text)) << what << ": " << text;
  }

  void ExpectRefused(std::string_view schema, std::string_view message) {
    Grammar grammar;
    const absl::StatusOr<Grammar::Node> root = AddJsonSchema(schema, grammar, Limits());
    ASSERT_FALSE(root.ok()) << schema;
    EXPECT_TRUE(absl::IsInvalidArgument(root.status()) || absl::IsResourceExhausted(root.status()))
        << root.status();
    EXPECT_TRUE(std::string_view(root.status().message().data(), root.status().message().size())
                    .starts_with(message))
        << schema << ": " << root.status();
  }

  const std::shared_ptr<const Vocabulary> vocabulary_ = ByteVocabulary();
};

TEST_F(SchemaTest, ListedIntegersHaveNoPoint) {
  Expect(R"({"type": "integer", "const": 1.0})", {"1"}, {"1.0", "2"});
  Expect(R"({"type": "integer", "enum": [1e2, 1, 1.0, -0.0, -3.0, 0.5]})", {"100", "1", "0", "-3"},
         {"100.0", "1.0", "-0", "0.5"});
  Expect(R"({"type": "integer", "const": 18446744073709551616})", {"18446744073709551616"},
         {"1.8446744073709552e+19"});
  Expect(R"({"type": ["integer", "string"], "enum": [1.0, "1.0"]})", {"1", "\"1.0\""}, {"1.0"});
  Expect(R"({"type": "number", "const": 1.0})", {"1.0"}, {"1"});
}

TEST_F(SchemaTest, NumbersInListsAreEqualByTheirValues) {
  Expect(R"({"allOf": [{"enum": [1, 2]}, {"enum": [1.0, 3]}], "type": "integer"})", {"1"},
         {"2", "3"});
  Expect(R"({"allOf": [{"enum": [{"a": 1, "b": [10]}]}, {"const": {"b": [1e1], "a": 1.0}}]})",
         {R"({"b":[10.0],"a":1.0})"}, {});
  for (const char* two :
       {R"({"const": -1}, {"const": 18446744073709551615})",
        R"({"const": 9007199254740993}, {"const": 9007199254740992.0})",
        R"({"const": [1]}, {"const": [[1]]})", R"({"const": "1."}, {"const": 1})"}) {
    ExpectRefused(absl::StrCat(R"({"allOf": [)", two, "]}"), "#");
    Expect(absl::StrCat(R"({"oneOf": [)", two, "]}"), {}, {"true"});
  }
}

// Such floats are printed with fewer digits than the integers that they are.
TEST_F(SchemaTest, LargeFloatsAreTheIntegersThatTheyAre) {
  const std::string integer = "1152921504606846976", printed = "1.152921504606847e+18";  // 2^60
  Expect(R"({"allOf": [{"const": 1152921504606846976}, {"const": 1152921504606846976.0}]})",
         {printed}, {"1"});
  ExpectRefused(R"({"oneOf": [{"const": 1152921504606846976}, {"const": 1152921504606846976.0}]})",
                "#");
  Expect(R"({"const": 1152921504606846976.0, "maximum": 1152921504606846976})", {printed}, {"1"});
  Expect(R"({"const": 1152921504606846976, "minimum": 1152921504606846976.0,
             "maximum": 1152921504606846976.0})",
         {integer}, {"1"});
  Expect(R"({"type": "integer", "minimum": 0, "maximum": 18446744073709551616})",
         {"18446744073709551616", "18446744073709551615"}, {"18446744073709551617"});
}

TEST_F(SchemaTest, AnyValueIsJson) {
  Expect("{}",
         {"null", "true", "0", "-12.50", "1e5", "2E-09", "\"\\u00e9\\ud83d\\ude00\\/é\"", "[]",
          "[ ]", "[1, [2],\n  {}]", "{\n    \"a\": 1,\n    \"b\": [\n        null\n    ]\n}"},
         {"",     " 1",    "1 ",         "nul",         "01",          "+1",     ".5",
          "5.",   "1e400", "-0",         "\"\\ud83d\"", "\"\\ude00\"", "\"\n\"", "\"\\x\"",
          "[1,]", "[,1]",  "{\"a\" :1}", "{a:1}",       "[1 ,2]",      "[  ]",   "\"\xff\""});
}

TEST_F(SchemaTest, AnyObject) {
  Grammar grammar;
  const absl::StatusOr<Grammar::Node> root = AddJsonObject(grammar, Limits());
  ASSERT_TRUE(root.ok()) << root.status();
  ExpectTexts("any object", grammar, *root, {"{}", "{\"a\":[{\"b\":null}],\"a\":1}"},
              {"[]", "1", "{"});
}

TEST_F(SchemaTest, Types) {
  Expect(R"({"type": ["integer", "null"]})", {"1", "null", "-20"}, {"1.5", "1e2", "true", "\"\""});
  Expect(R"({"type": "boolean"})", {"true", "false"}, {"null", "0"});
  Expect(R"({"type": "number"})", {"1", "1.5", "1e2", "0.0"}, {"null", "-0.0", "1e1000"});
}

TEST_F(SchemaTest, PropertiesKeepTheirOrder) {
  const char* schema = R"({"type": "object", "additionalProperties": false, "required": ["b"],
      "properties": {"a": {"type": "null"}, "b": {"type": "null"}, "é\"": {"type": "null"}}})";
  Expect(schema,
         {"{\"b\":null}", "{\"a\":null,\"b\":null}", "{\"a\":null,\"b\":null,\"é\\\"\":null}",
          "{\"b\":null, \"é\\\"\": null }"},
         {"{}", "{\"a\":null}", "{\"b\":null,\"a\":null}", "{\"b\":null,\"c\":null}",
          "{\"b\":null,\"b\":null}", "{\"b\":null,}"});
}

TEST_F(SchemaTest, AdditionalProperties) {
  Expect(R"({"type": "object", "properties": {"a": {"type": "null"}},
             "additionalProperties": {"type": "integer"}})",
         {"{}", "{\"a\":null}", "{\"b\":1}", "{\"a\":null,\"b\":1,\"aa\":2}", "{\"\":1}"},
         {"{\"a\":1}", "{\"b\":null}", "{\"b\":1,\"a\":null}", "{\"\\u0061\":1}",
          "{\"b\":1,\"a\":1}"});
  Expect(
      R"({"type": "object", "patternProperties": {"^x": {"type": "integer"}, "y$": {"maximum": 5}},
             "additionalProperties": false})",
      {"{\"x\":7}", "{\"xy\":5}", "{\"zy\":\"s\"}", "{\"zy\":5}"},
      {"{\"xy\":6}", "{\"xy\":\"s\"}", "{\"z\":1}", "{\"zy\":6}"});
  Expect(R"({"type": "object", "propertyNames": {"pattern": "^[a-z]+$", "maxLength": 2},
             "properties": {"ABC": true, "ab": {"type": "null"}}})",
         {"{\"ab\":null}", "{\"x\":1}"}, {"{\"ABC\":1}", "{\"abc\":1}", "{\"ab\":1}"});
  Expect(R"({"type": "object", "propertyNames": {"enum": ["p", "q"]}})", {"{\"p\":1,\"q\":2}"},
         {"{\"r\":1}"});
  Expect(R"({"type": "object", "required": ["z"], "properties": {"a": {"type": "null"}},
             "additionalProperties": {"type": "integer"}})",
         {"{\"z\":1}", "{\"a\":null,\"z\":1,\"y\":2}"},
         {"{}", "{\"z\":null}", "{\"y\":2,\"z\":1}"});
}

TEST_F(SchemaTest, CountsOfProperties) {
  Expect(R"({"type": "object", "minProperties": 1, "maxProperties": 2})",
         {"{\"a\":1}", "{\"a\":1,\"b\":1}"}, {"{}", "{ }", "{\"a\":1,\"b\":1,\"c\":1}"});
  Expect(
      R"({"type": "object", "minProperties": 2, "maxProperties": 2, "additionalProperties": false,
             "properties": {"a": {"const": 1}, "b": {"const": 1}, "c": {"const": 1}}})",
      {"{\"a\":1,\"b\":1}", "{\"a\":1,\"c\":1}", "{\"b\":1,\"c\":1}"},
      {"{\"a\":1}", "{\"a\":1,\"b\":1,\"c\":1}", "{}"});
  Expect(R"({"type": "object", "minProperties": 2, "properties": {"a": {"const": 1}}})",
         {"{\"a\":1,\"x\":1}"}, {"{\"x\":1}", "{\"x\":1,\"x\":1}", "{\"a\":1}"});
  ExpectRefused(R"({"type": "object", "minProperties": 2})", "#: no object has enough properties");
  ExpectRefused(R"({"type": "object", "minProperties": 3, "maxProperties": 2})",
                "#: maxProperties is below minProperties");
}

TEST_F(SchemaTest, Arrays) {
  Expect(R"({"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 3})",
         {"[null,null]", "[null, null,\n null]"},
         {"[]", "[null]", "[null,null,null,null]", "[1,1]"});
  Expect(R"({"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": {"const": 3}})",
         {"[]", "[1]", "[1,2]", "[1,2,3,3]"}, {"[2]", "[1,3]", "[1,2,2]"});
  Expect(R"({"type": "array", "prefixItems": [{"const": 1}, false], "minItems": 1})", {"[1]"},
         {"[]", "[1,1]"});
  Expect(R"({"type": "array", "items": false})", {"[]", "[ ]"}, {"[1]"});
  Expect(R"({"type": "array", "items": {"const": 1}, "minItems": 1000000})", {}, {"[]", "[1]"});
  ExpectRefused(R"({"type": "array", "prefixItems": [{"const": 1}, false], "minItems": 2})",
                "#/prefixItems/1: no value is allowed here");
}

TEST_F(SchemaTest, Strings) {
  Expect(R"({"type": "string", "minLength": 1, "maxLength": 2})",
         {"\"a\"", "\"é😀\"", "\"\\ud83d\\ude00\\n\""}, {"\"\"", "\"abc\"", "\"\\u0061bc\""});
  Expect(R"({"type": "string", "pattern": "b+"})", {"\"b\"", "\"abbc\\n\""}, {"\"a\"", "\"\""});
  Expect(R"({"type": "string", "pattern": "^[^a]*$", "minLength": 2, "maxLength": 3})",
         {"\"bc\"", "\"\\n\\\"\\\\\"", "\"\\u0001é\""},
         {"\"ba\"", "\"b\"", "\"bbbb\"", "\"\\u0062b\"", "\"\\/b\""});
  Expect(R"({"type": "string", "maxLength": 100000})", {"\"a\""}, {});
  ExpectRefused(R"({"type": "string", "pattern": "^a{3}$", "maxLength": 2})",
                "#: no string has the pattern, the format and the length");
}

TEST_F(SchemaTest, Formats) {
  const auto expect = [&](const char* format, const std::vector<std::string>& accepted,
                          const std::vector<std::string>& others) {
    const auto quoted = [](std::vector<std::string> texts) {
      for (std::string& text : texts) text = absl::StrCat("\"", text, "\"");
      return texts;
    };
    Expect(absl::StrCat(R"({"type": "string", "format": ")", format, "\"}"), quoted(accepted),
           quoted(others));
  };
  expect("date", {"2024-02-29", "2000-02-29", "0000-02-29", "1999-12-31", "2023-04-30"},
         {"2023-02-29", "1900-02-29", "2023-04-31", "2023-13-01", "2023-00-10", "2023-1-1",
          "23-01-01"});
  expect("time", {"23:59:59Z", "00:00:00.123+01:30"},
         {"24:00:00Z", "12:60:00Z", "12:00:00", "12:00Z"});
  expect("date-time", {"2024-02-29T12:00:00Z", "1990-12-31T15:59:50.123-08:00"},
         {"2023-02-29T12:00:00Z", "2024-02-29 12:00:00Z", "2024-02-29T12:00:00"});
  expect("duration", {"P1Y2M3DT4H5M6S", "PT1H", "P4W", "P1M", "PT0S"},
         {"P", "PT", "P1", "P1W2D", "P1DT", "P1Y3D", "1D"});
  expect("email", {"a.b+c@d-e.example", "a@b.co"},
         {"a", "@b.co", "a@b", ".a@b.co", "a..b@c.de", "a@-b.co"});
  expect("hostname", {"a", "www.example.com", "a-b.c1"},
         {"", "-a", "a-", "a..b", "a.", "xn--a", "a_b", std::string(64, 'a')});
  expect("ipv4", {"0.0.0.0", "255.249.199.9"}, {"256.0.0.1", "1.2.3", "01.2.3.4", "1.2.3.4.5"});
  expect("ipv6", {"::", "::1", "1::", "1:2:3:4:5:6:7:8", "fe80::a:B", "1:2:3:4:5:6:7::"},
         {":::", "1:2:3", "1::2::3", "12345::", "1:2:3:4:5:6:7:8:9", "1:2:3:4:5:6:7:8::"});
  expect("uuid", {"123e4567-e89b-12d3-A456-426614174000"},
         {"123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400g"});
  ExpectRefused(R"({"properties": {"a/b~c": {"format": "uri"}}})",
                "#/properties/a~1b~0c/format: must be one of: date, ");
}

// All decimals between -12 and 12 in steps of a quarter, in two ways of writing.
TEST_F(SchemaTest, BoundsOfNumbersAreExact) {
  std::mt19937 random(4);
  const auto text = [](int quarters, int n_zeros) {
    std::string result = std::to_string(std::abs(quarters) / 4);
    const char* fractions[] = {"", ".25", ".5", ".75"};
    result += fractions[std::abs(quarters) % 4];
    if (n_zeros > 0 && quarters % 4 == 0) result += ".";
    result += std::string(n_zeros, '0');
    return (quarters < 0 ? "-" : "") + result;
  };
  for (int i = 0; i < 60; ++i) {
    const int least = static_cast<int>(random() % 80) - 40;
    const int most = least + static_cast<int>(random() % 40);
    const int multiple = 1 + static_cast<int>(random() % 9);
    const bool excludes_least = random() % 2 == 0;
    const bool excludes_most = random() % 2 == 0;
    const bool has_multiple = random() % 2 == 0;
    const bool is_integer = random() % 3 == 0;
    NumberBounds bounds{.is_integer = is_integer,
                        .least = ParseDecimal(text(least, 0)),
                        .excludes_least = excludes_least,
                        .most = ParseDecimal(text(most, 0)),
                        .excludes_most = excludes_most};
    if (has_multiple) bounds.multiples = {*ParseDecimal(text(multiple, 0))};
    Budget budget{Limits()};
    const Language texts = NumberTexts(bounds, budget).value();
    for (int quarters = -48; quarters <= 48; ++quarters) {
      const bool allowed = (excludes_least ? quarters > least : quarters >= least) &&
                           (excludes_most ? quarters < most : quarters <= most) &&
                           (!has_multiple || quarters % multiple == 0) &&
                           (!is_integer || quarters % 4 == 0);
      EXPECT_EQ(texts.MatchesUtf8(text(quarters, 0)), allowed)
          << text(quarters, 0) << " in " << text(least, 0) << " to " << text(most, 0);
      EXPECT_EQ(bounds.Allows(*ParseDecimal(text(quarters, 0))), allowed);
      const bool may_have_zeros =
          quarters % 4 == 0 && quarters != 0 && !is_integer && !has_multiple;
      if (may_have_zeros) {
        EXPECT_EQ(texts.MatchesUtf8(text(quarters, 1)), allowed);
      }
    }
  }
}

TEST_F(SchemaTest, Numbers) {
  Expect(R"({"type": "integer", "minimum": -9223372036854775808, "maximum": 18446744073709551615})",
         {"-9223372036854775808", "18446744073709551615", "0"},
         {"-9223372036854775809", "18446744073709551616", "-0", "1.0", "1e3"});
  Expect(R"({"type": "number", "exclusiveMinimum": 0, "maximum": 1.5e308})",
         {"0.001", "1", "123456789012345"}, {"0", "0.0", "-1", "1e5"});
  Expect(R"({"type": "number", "multipleOf": 0.01})", {"0", "0.07", "-19.9", "5.10"},
         {"0.001", "1e2"});
  Expect(R"({"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 20})", {"7", "14"},
         {"0", "21", "8"});
  Expect(
      R"({"allOf": [{"minimum": 1}, {"type": "integer", "exclusiveMaximum": 3.5, "minimum": 2}]})",
      {"2", "3"}, {"1", "4", "2.5"});
  ExpectRefused(R"({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2})",
                "#: no number that is written here keeps");
  ExpectRefused(R"({"multipleOf": 0})", "#/multipleOf: must be above 0");
  ExpectRefused(R"({"multipleOf": 1234567.123})", "#: needs an automaton of more than");
  ExpectRefused(R"({"minimum": "1"})", "#/minimum: must be a number");
}

TEST_F(SchemaTest, ListedValues) {
  Expect(R"({"enum": [1, "a\n", null, {"k": [1, {}]}, [], true]})",
         {"1", "\"a\\n\"", "null", "{\"k\":[1,{}]}", "{ \"k\": [ 1, { } ] }", "[ ]", "true"},
         {"2", "\"a\"", "{\"k\":[1]}", "false", "\"\\u0061\\n\""});
  Expect(R"({"type": "string", "enum": [1, "a", "bcd"], "maxLength": 2})", {"\"a\""},
         {"1", "\"bcd\""});
  Expect(R"({"allOf": [{"enum": [{"a": 1, "b": 2}, 3.0]}, {"enum": [{"b": 2, "a": 1}, 3]}]})",
         {"3", "{\"b\":2,\"a\":1}"}, {"{\"a\":1}"});
  ExpectRefused(R"({"enum": []})", "#: none of the listed values is allowed");
  ExpectRefused(
      R"({"properties": {"x": {"const": 1, "type": "string"}}, "type": "object", "required": ["x"]})",
      "#/properties/x: none of the listed values is allowed");
}

TEST_F(SchemaTest, Compositions) {
  Expect(
      R"({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}], "type": ["string", "null"]})",
      {"\"a\"", "\"\""}, {"1", "null", "\"ab\""});
  Expect(R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
             "allOf": [{"properties": {"a": {"minimum": 3}, "b": {"type": "null"}}}],
             "additionalProperties": false})",
         {"{\"a\":3}"}, {"{\"a\":2}", "{\"a\":3,\"b\":null}", "{}"});
  Expect(
      R"({"oneOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "null"}},
                         "required": ["kind"], "additionalProperties": false},
                        {"type": "object", "properties": {"kind": {"enum": ["b", "c"]}},
                         "required": ["kind"], "additionalProperties": false}, {"type": "null"}]})",
      {"{\"kind\":\"a\",\"n\":null}", "{\"kind\":\"c\"}", "null"},
      {"{\"kind\":\"b\",\"n\":null}", "{}"});
  Expect(R"({"oneOf": [{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 3},
                        {"type": "integer", "maximum": 1}, {"type": "number", "exclusiveMinimum": 1}]})",
         {"\"abc\"", "\"a\"", "1", "1.5"}, {"0.5"});
  ExpectRefused(R"({"properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}})",
                "#/properties/a/oneOf: branches 0 and 1 may hold for the same value");
  ExpectRefused(R"({"type": "object", "properties": {"a": false}, "required": ["a"]})",
                "#/properties/a: no value is allowed here");
  Expect(R"({"type": "object", "properties": {"a": false}})", {"{}", "{\"b\":1}"}, {"{\"a\":1}"});
}

TEST_F(SchemaTest, References) {
  Expect(R"({"$defs": {"a/b": {"type": "null"}, "n": {"$anchor": "here", "type": "integer"}},
             "type": "object", "additionalProperties": false, "properties":
             {"x": {"$ref": "#/$defs/a~1b"}, "y": {"$ref": "#here", "minimum": 5}, "z": {"$ref": "#"}}})",
         {"{\"x\":null,\"y\":5}", "{\"z\":{\"z\":{}}}"}, {"{\"x\":1}", "{\"y\":4}", "{\"z\":1}"});
  Expect(
      R"({"$id": "https://example.com/s", "type": "array", "items": {"$ref": "https://example.com/s#"}})",
      {"[[],[[]]]"}, {"[1]"});
  Expect(R"({"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
             "required": ["next"], "additionalProperties": false})",
         {"{\"next\":{\"next\":null}}"}, {"{}", "{\"next\":{}}"});
  ExpectRefused(R"({"$ref": "#"})", "#/$ref: leads through too many references, or to itself");
  ExpectRefused(R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})",
                "#: refers to itself with no property or item in between");
  ExpectRefused(R"({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]},
                    "b": {"allOf": [{"$ref": "#/$defs/a"}]}}})",
                "#/$defs/a: refers to itself");
  ExpectRefused(R"({"$ref": "#/$defs/no"})", "#/$ref: nothing in this document is at '#/$defs/no'");
  Expect(
      R"({"$ref": "#/%24defs/%4b/prefixItems/1", "$defs": {"K": {"prefixItems": [{}, {"type": "null"}]}}})",
      {"null"}, {"1"});
  for (const char* reference : {"#/$defs/%+1", "#/$defs/% 1", "#/$defs/%1", "#/$defs/%1g",
                                "#/$defs/a/prefixItems/+0", "#/$defs/a/prefixItems/00"}) {
    ExpectRefused(absl::StrCat(R"({"$ref": ")", reference,
                               R"(", "$defs": {"\u0001": {}, "a": {"prefixItems": [{}]}}})"),
                  absl::StrCat("#/$ref: nothing in this document is at '", reference, "'"));
  }
  ExpectRefused(R"({"items": {"$id": "b"}})", "#/items/$id: only the whole document");
}

TEST_F(SchemaTest, WhatIsNotKeptIsRefusedByItsPath) {
  ExpectRefused(R"({"properties": {"a": {"if": {}, "then": {}}}})",
                "#/properties/a/if: conditions are not kept");
  ExpectRefused(R"({"not": {"type": "null"}})", "#/not: what must not hold is not kept");
  ExpectRefused(R"({"uniqueItems": true})", "#/uniqueItems: ");
  ExpectRefused(R"({"items": {"contains": {}}})", "#/items/contains: ");
  ExpectRefused(R"({"dependentRequired": {"a": ["b"]}})", "#/dependentRequired: ");
  ExpectRefused(R"({"dependencies": {"a": ["b"]}})", "#/dependencies: ");
  ExpectRefused(R"({"allOf": [{}], "unevaluatedProperties": false})", "#/unevaluatedProperties: ");
  ExpectRefused(R"({"minimun": 1})", "#/minimun: not a keyword that is known");
  ExpectRefused(R"({"type": "text"})", "#/type: must be, or list, of: ");
  ExpectRefused(R"({"items": [{}]})", "#/items: must be an object, true or false");
  ExpectRefused(R"({"pattern": "a\\1"})", "#/pattern: at character 2: back references");
  ExpectRefused(R"({"patternProperties": {"(": {}}})", "#/patternProperties/(: at character 1: ");
  ExpectRefused(R"({"minLength": -1})", "#/minLength: must be an integer of at least 0");
  ExpectRefused(R"({"required": [1]})", "#/required: must be a list of names");
  ExpectRefused(R"({"$schema": "http://json-schema.org/draft-04/schema#"})", "#/$schema: ");
  ExpectRefused("[]", "#: not a JSON object");
  ExpectRefused("{\"type\": }", "#: not valid JSON: line 1, column 10: ");
  ExpectRefused("{\"type\": \"null\", \"type\": \"null\"}", "#: duplicate key 'type'");
  Expect(R"({"uniqueItems": false, "not": false, "title": "t", "type": "null", "then": {},
             "unevaluatedProperties": true, "dependentRequired": {},
             "dependencies": {}})",
         {"null"}, {"1"});
}

// Each takes a few milliseconds; the bound leaves room for sanitizers and busy machines.
TEST_F(SchemaTest, CommonSchemasCompileFast) {
  const absl::StatusOr<std::string> file =
      ReadFile(absl::StrCat(GoldenFolder(), "/constraint/schemas.json"), size_t{1} << 20);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto schemas = nlohmann::ordered_json::parse(*file);
  ASSERT_EQ(schemas.size(), 40);
  for (const auto& schema : schemas) {
    const std::clock_t begin = std::clock();
    Grammar grammar;
    const absl::StatusOr<Grammar::Node> root =
        AddJsonSchema(schema["schema"].dump(), grammar, Limits());
    ASSERT_TRUE(root.ok()) << schema["description"] << ": " << root.status();
    grammar.SetRoot(*root);
    ASSERT_TRUE(CompileGrammar(grammar, Limits()).ok()) << schema["description"];
    EXPECT_LT(std::clock() - begin, CLOCKS_PER_SEC / 2) << schema["description"];
  }
}

TEST_F(SchemaTest, HostileSchemasEndAtALimit) {
  std::string nested = "{}";
  for (int i = 0; i < 3000; ++i) nested = absl::StrCat("{\"items\":", nested, "}");
  ExpectRefused(nested, "#: nested more than 32 levels deep");
  ExpectRefused(std::string(Limits().source_bytes + 1, ' '), "#: the schema has ");
  ExpectRefused(R"({"type": "string", "pattern": "(a{1000}){1000}"})",
                "#/pattern: needs an automaton");
  ExpectRefused(R"({"type": "string", "pattern": "[ab]*a[ab]{40}"})",
                "#/pattern: needs an automaton");
  ExpectRefused(R"({"type": "string", "pattern": "a", "minLength": 1000000})",
                "#: needs an automaton");

  nlohmann::json chain = {{"$ref", "#/$defs/0"}};
  for (int i = 0; i < 2000; ++i) {
    chain["$defs"][std::to_string(i)] = {
        {"properties", {{"a", {{"$ref", absl::StrCat("#/$defs/", (i + 1) % 2000)}}}}}};
  }
  ExpectRefused(chain.dump(), "#/$defs/");

  // 2^20 alternatives, and 2^20 ways through shared parts.
  nlohmann::json product = nlohmann::json::object();
  for (int i = 0; i < 20; ++i) {
    product["allOf"].push_back({{"anyOf", {{{"maximum", i}}, {{"minimum", -i}}}}});
  }
  ExpectRefused(product.dump(), "#/allOf/0/anyOf/0: combines to more than 500 alternatives");
  nlohmann::json shared = {{"$ref", "#/$defs/0"}, {"$defs", {{"30", {{"type", "null"}}}}}};
  for (int i = 0; i < 30; ++i) {
    const nlohmann::json next = {{"$ref", absl::StrCat("#/$defs/", i + 1)}};
    shared["$defs"][std::to_string(i)] = {{"type", "object"},
                                          {"properties", {{"a", next}, {"b", next}}}};
  }
  Expect(shared.dump(), {"{}", "{\"a\":{\"b\":{}}}"}, {"null"});

  nlohmann::json values = {{"enum", nlohmann::json::array()}};
  for (int i = 0; i < 20000; ++i) values["enum"].push_back(std::to_string(i * 7919));
  Expect(values.dump(), {"\"7919\""}, {"\"7920\""});
  nlohmann::json wide = {{"type", "object"}};
  for (int i = 0; i < 1000; ++i) wide["properties"][absl::StrCat("name_", i)] = {{"type", "null"}};
  wide["minProperties"] = 500;
  ExpectRefused(wide.dump(), "#: needs a grammar of more than ");
}

}  // namespace
}  // namespace ovq::constraint::test
