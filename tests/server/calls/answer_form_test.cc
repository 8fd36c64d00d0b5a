// Frames of answers: every text that one allows is taken apart, by the parser of answers, as the
// frame says, and the texts that models write are among them.
#include "server/calls/answer_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "model/answers/answer_parser.h"
#include "model/answers/named_calls.h"
#include "model/constraint/matcher.h"

namespace ovq::server {
namespace {

using answers::AnswerPart;
using answers::AnswerSyntax;
using testing::HasSubstr;
using OrderedJson = nlohmann::ordered_json;
using Kind = AnswerPart::Kind;

constexpr int kBytes = 256;

// Texts of a form, byte by byte.
class FormTexts {
 public:
  explicit FormTexts(const engine::AnswerForm& form)
      : made_(engine::AnswerConstraint::Make(form, {},
                                             std::make_shared<ByteBudget>(size_t{1} << 30), "")) {
    EXPECT_TRUE(made_.ok()) << made_.status();
    std::vector<std::string> bytes;
    for (int byte = 0; byte < kBytes; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
    bytes.emplace_back();  // the end
    vocabulary_ = std::make_shared<constraint::Vocabulary>(bytes, std::vector<int32_t>{kBytes});
    matcher_.emplace((*made_)->automaton(), vocabulary_, size_t{16} << 20);
  }

  bool Has(std::string_view text) {
    const auto place = matcher_->Advance(matcher_->Begin(), text);
    return place && place->may_end();
  }
  // A text drawn at random; it ends where it may after about `length` bytes. Bytes that go on with
  // `wanted`, such as markers, are likelier.
  std::string Draw(std::minstd_rand& random, size_t length, std::string wanted) {
    wanted += "abc";
    constraint::Place place = matcher_->Begin();
    std::string text;
    size_t at = 0;
    while (text.size() < 100 * length) {
      const auto mask = matcher_->Mask(place);
      EXPECT_GT(mask->n_allowed, 0) << text;
      if (mask->Allows(kBytes) && (text.size() >= length || mask->n_allowed == 1)) return text;
      int32_t byte = static_cast<uint8_t>(wanted[at % wanted.size()]);
      if (!mask->Allows(byte) || random() % 16 == 0) {
        std::vector<int32_t> allowed;
        for (int32_t i = ' '; i < 127; ++i) {
          if (mask->Allows(i)) allowed.push_back(i);
        }
        for (int32_t i = 0; i < kBytes && allowed.empty(); ++i) {
          if (mask->Allows(i)) allowed.push_back(i);
        }
        // Quotation marks and brackets end what could go on without end.
        const auto closes = std::ranges::find_if(
            allowed, [](int32_t i) { return i == '"' || i == '}' || i == ']'; });
        const bool ends = closes != allowed.end() && random() % 3 == 0;
        byte = ends ? *closes : allowed[random() % allowed.size()];
        at = random() % wanted.size();
      } else {
        ++at;
      }
      text += static_cast<char>(byte);
      const auto next = matcher_->Advance(place, byte);
      EXPECT_TRUE(next) << text;
      if (!next) return text;
      place = *next;
    }
    return text;  // without an end
  }
  bool Ends(const std::string& text) { return Has(text); }

 private:
  absl::StatusOr<std::shared_ptr<const engine::AnswerConstraint>> made_;
  std::shared_ptr<constraint::Vocabulary> vocabulary_;
  std::optional<constraint::Matcher> matcher_;
};

OrderedJson WeatherSchema() {
  return OrderedJson::parse(R"({
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"},
                   "unit": {"type": "string", "enum": ["C", "F"]},
                   "places": {"type": "array", "items": {"type": "string"}, "maxItems": 2}},
    "required": ["city", "unit"], "additionalProperties": false})");
}

AnswerTools Tools(AnswerTools::Use use, bool strict) {
  AnswerTools tools = {.use = use};
  tools.callable = {
      {.name = "get_weather", .field = "a", .parameters = WeatherSchema(), .strict = strict},
      {.name = "now", .field = "b"}};
  tools.parser.tools = true;
  tools.parser.schemas = std::make_shared<nlohmann::json>(
      nlohmann::json{{"get_weather", nlohmann::json(WeatherSchema())}, {"now", {}}});
  if (strict) tools.parser.strict = {"get_weather"};
  return tools;
}

FramedForm Framed(const AnswerSyntax& syntax, std::string_view begun,
                  const std::optional<PlacedSource>& content, const AnswerTools& tools,
                  bool one_call = false) {
  auto framed = FrameAnswer(syntax, begun, content, tools, one_call);
  EXPECT_TRUE(framed.ok()) << framed.status();
  EXPECT_TRUE(framed->has_value());
  return **framed;
}

std::vector<AnswerPart> Parse(const AnswerSyntax& syntax, const AnswerTools& tools,
                              std::string_view begun, const std::string& text) {
  answers::AnswerParser parser(syntax, tools.parser);
  std::vector<AnswerPart> parts, joined;
  parser.Add(begun, parts);
  parser.Add(text, parts);
  parser.End(parts);
  for (const AnswerPart& part : parts) {
    if (!joined.empty() && joined.back().kind == part.kind && part.kind != Kind::kCall) {
      joined.back().text += part.text;
    } else {
      joined.push_back(part);
    }
  }
  return joined;
}

// Checks the arguments of a call against WeatherSchema, without a validator.
void ExpectWeather(const std::string& arguments, const std::string& text) {
  ASSERT_TRUE(nlohmann::json::accept(arguments)) << arguments << "\nof " << text;
  const nlohmann::json json = nlohmann::json::parse(arguments);
  ASSERT_TRUE(json.is_object());
  EXPECT_TRUE(json.contains("city") && json["city"].is_string()) << arguments << "\nof " << text;
  EXPECT_TRUE(json.value("unit", "") == "C" || json.value("unit", "") == "F") << arguments;
  for (const auto& [key, value] : json.items()) {
    // Integers of 20 digits are no longer integers to this parser.
    EXPECT_TRUE(key != "days" || value == std::floor(value.get<double>())) << arguments;
    if (key == "places") {
      ASSERT_TRUE(value.is_array()) << arguments << "\nof " << text;
      EXPECT_LE(value.size(), 2u);
      for (const auto& place : value) EXPECT_TRUE(place.is_string()) << arguments;
    }
    EXPECT_NE(WeatherSchema()["properties"].count(key), 0u) << arguments;
  }
}

struct Calls {
  int n = 0;
  std::string names;
};

// The calls of an answer, whose arguments are checked.
Calls CheckedCalls(const std::vector<AnswerPart>& parts, bool strict, const std::string& text) {
  Calls calls;
  std::string name, arguments;
  for (const AnswerPart& part : parts) {
    if (part.kind == Kind::kCall) {
      name = part.text;
      arguments.clear();
      ++calls.n;
      calls.names += name + " ";
      EXPECT_TRUE(name == "get_weather" || name == "now") << text;
    } else if (part.kind == Kind::kArguments) {
      arguments += part.text;
    } else if (part.kind == Kind::kCallEnd) {
      EXPECT_TRUE(nlohmann::json::accept(arguments)) << arguments << "\nof " << text;
      if (strict && name == "get_weather") ExpectWeather(arguments, text);
    }
  }
  return calls;
}

// By the name of a form of calls, and whether the model reasons.
class FrameTest : public testing::TestWithParam<std::tuple<size_t, bool>> {
 protected:
  FrameTest() {
    syntax_.calls = answers::NamedCalls()[std::get<0>(GetParam())].second;
    if (std::get<1>(GetParam())) {
      syntax_.think_begin = "<think>";
      syntax_.think_end = "</think>";
    }
  }
  const std::string& form() const { return answers::NamedCalls()[std::get<0>(GetParam())].first; }
  // The beginning of the answer that the prompt writes.
  std::string begun() const { return syntax_.think_begin.empty() ? "" : "<think>\n"; }

  AnswerSyntax syntax_;
};

TEST_P(FrameTest, EveryTextIsACallWhereOneIsRequired) {
  if (syntax_.calls.form == answers::CallForm::kNone) GTEST_SKIP() << "no calls";
  if (syntax_.calls.marker.empty() && !begun().empty()) GTEST_SKIP() << "calls begin the answer";
  std::minstd_rand random(7);
  for (const bool strict : {true, false}) {
    const AnswerTools tools = Tools(AnswerTools::Use::kMust, strict);
    FormTexts texts(Framed(syntax_, begun(), std::nullopt, tools).form);
    int n_calls = 0, n_ends = 0;
    for (int i = 0; i < 40; ++i) {
      const std::string wanted = i % 2 == 0 ? "abc" : syntax_.think_end + syntax_.calls.between;
      const std::string text = texts.Draw(random, 20 + random() % 200, wanted);
      const Calls calls =
          CheckedCalls(Parse(syntax_, tools, begun(), text), strict, form() + ": " + text);
      if (!texts.Ends(text)) continue;
      ++n_ends;
      EXPECT_GE(calls.n, 1) << form() << ": " << text;
      n_calls += calls.n;
    }
    EXPECT_GT(n_ends, 0) << form();
    EXPECT_GE(n_calls, n_ends);
  }
}

// Returns the call of "now" as models write it.
std::string NowCall(const answers::CallSyntax& calls) {
  std::string call = calls.opening + "now" + calls.opening_after_name;
  if (calls.form == answers::CallForm::kJson) call += "{}}";
  if (calls.form == answers::CallForm::kNamedJson) call += "{}";
  if (calls.form == answers::CallForm::kPython) call += ")";
  return call + calls.end;
}

TEST_P(FrameTest, WhatModelsWriteIsAllowed) {
  if (syntax_.calls.form == answers::CallForm::kNone) GTEST_SKIP() << "no calls";
  const answers::CallSyntax& calls = syntax_.calls;
  const std::string call = NowCall(calls);
  const std::string thought = begun().empty() ? "" : "I think.\n</think>\n\n";
  for (const auto use : {AnswerTools::Use::kMay, AnswerTools::Use::kMust}) {
    FormTexts texts(Framed(syntax_, begun(), std::nullopt, Tools(use, true)).form);
    EXPECT_TRUE(texts.Has(thought + call)) << form();
    EXPECT_EQ(texts.Has(thought + "Hello."), use == AnswerTools::Use::kMay) << form();
    EXPECT_FALSE(texts.Has(thought + calls.opening + "then" + calls.opening_after_name)) << form();
  }
}

TEST_P(FrameTest, TextsHoldStrictCallsAlone) {
  if (syntax_.calls.marker.empty()) GTEST_SKIP() << "calls begin the answer";
  std::minstd_rand random(11);
  AnswerTools tools = Tools(AnswerTools::Use::kMay, true);
  const FramedForm framed = Framed(syntax_, begun(), std::nullopt, tools);
  tools.parser.calls_in_code = framed.calls_in_code;
  FormTexts texts(framed.form);
  int n_calls = 0;
  for (int i = 0; i < 40; ++i) {
    const std::string wanted = syntax_.think_end + syntax_.calls.marker;
    const std::string text = texts.Draw(random, 20 + random() % 200, wanted);
    n_calls += CheckedCalls(Parse(syntax_, tools, begun(), text), true, form() + ": " + text).n;
  }
  EXPECT_GT(n_calls, 0) << form();
}

// The form lets nothing but a call follow the marker, so the parser sees one there.
TEST_P(FrameTest, ACallInCodeIsACallToTheParserToo) {
  if (syntax_.calls.marker.empty()) GTEST_SKIP() << "calls begin the answer";
  AnswerTools tools = Tools(AnswerTools::Use::kMay, true);
  const FramedForm framed = Framed(syntax_, begun(), std::nullopt, tools);
  tools.parser.calls_in_code = framed.calls_in_code;
  const std::string thought = begun().empty() ? "" : "I think.\n</think>\n\n";
  const std::string text = thought + "Such:\n```\n" + NowCall(syntax_.calls);
  FormTexts texts(framed.form);
  EXPECT_TRUE(texts.Has(text)) << form();
  EXPECT_FALSE(texts.Has(text + "\n```\n")) << form();
  const std::vector<AnswerPart> parts = Parse(syntax_, tools, begun(), text);
  EXPECT_EQ(std::ranges::count(parts, Kind::kCall, &AnswerPart::kind), 1) << form();
}

INSTANTIATE_TEST_SUITE_P(Forms, FrameTest,
                         testing::Combine(testing::Range(size_t{0}, answers::NamedCalls().size()),
                                          testing::Bool()),
                         [](const auto& info) {
                           return answers::NamedCalls()[std::get<0>(info.param)].first +
                                  (std::get<1>(info.param) ? "_thinks" : "");
                         });

PlacedSource YesOrNo() {
  return {.source = {.kind = constraint::Source::Kind::kChoice, .choices = {"yes", "no"}},
          .field = "f"};
}

TEST(Frame, TheFormBeginsBehindTheThought) {
  AnswerSyntax thinks;
  thinks.think_begin = "<think>";
  thinks.think_end = "</think>";
  FormTexts open(Framed(thinks, "<think>\n", YesOrNo(), {}).form);
  EXPECT_TRUE(open.Has("It is so: no, <think> yes.</think>\n\nyes"));
  EXPECT_FALSE(open.Has("yes"));
  EXPECT_FALSE(open.Has("a</think>\n\nmaybe"));
  FormTexts closed(Framed(thinks, "<think>\n\n</think>\n\n", YesOrNo(), {}).form);
  EXPECT_TRUE(closed.Has("no"));
  EXPECT_FALSE(closed.Has("<think></think>no"));
  FormTexts unbegun(Framed(thinks, "", YesOrNo(), {}).form);
  EXPECT_TRUE(unbegun.Has("no"));
  EXPECT_TRUE(unbegun.Has("<think>Hm.</think>\nno"));
  EXPECT_FALSE(unbegun.Has(" no"));
}

TEST(Frame, TheFormStandsWithinTheTextsAroundContent) {
  AnswerSyntax marked;
  marked.content_begin = "<|SAY|>";
  marked.content_end = "<|SAID|>";
  FormTexts texts(Framed(marked, "", YesOrNo(), {}).form);
  EXPECT_TRUE(texts.Has("<|SAY|>yes<|SAID|>"));
  EXPECT_FALSE(texts.Has("yes"));
}

TEST(Frame, ACallMayStandInPlaceOfTheForm) {
  AnswerSyntax syntax;
  syntax.calls = answers::NamedCalls()[1].second;
  FormTexts texts(Framed(syntax, "", YesOrNo(), Tools(AnswerTools::Use::kMay, false)).form);
  EXPECT_TRUE(texts.Has("yes"));
  EXPECT_TRUE(
      texts.Has("<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\":1}}\n</tool_call>"));
  EXPECT_FALSE(texts.Has("Well, yes"));
}

// A template may write ids of calls around them; each call has one of its own.
TEST(Frame, CallsHaveAnyIds) {
  AnswerSyntax syntax;
  syntax.calls = {.form = answers::CallForm::kNamedJson,
                  .begin = "<call id=\"zqid00001\">",
                  .between = "</call><call id=\"zqid00001\">",
                  .end = "</call>",
                  .marker = "<call id=\"",
                  .after_name = "[ID]zqid00001[ARGS]"};
  const std::string text =
      "<call id=\"abcdefgh1\">now[ID]abcdefgh1[ARGS]{}</call>"
      "<call id=\"abcdefgh2\">now[ID]abcdefgh2[ARGS]{}</call>";
  for (const auto use : {AnswerTools::Use::kMay, AnswerTools::Use::kMust}) {
    const AnswerTools tools = Tools(use, true);
    FormTexts texts(Framed(syntax, "", std::nullopt, tools).form);
    EXPECT_TRUE(texts.Has(text));
    EXPECT_FALSE(texts.Has("<call id=\"abc\">now[ID]abcdefgh1[ARGS]{}</call>"));
    const auto parts = Parse(syntax, tools, "", text);
    EXPECT_EQ(CheckedCalls(parts, true, text).names, "now now ");
  }
}

TEST(Frame, OneLineBreakMayStandAroundAnEmptyArgument) {
  AnswerSyntax syntax;
  for (const auto& [name, calls] : answers::NamedCalls()) {
    if (name == "qwen3_coder") syntax.calls = calls;
  }
  const AnswerTools tools = Tools(AnswerTools::Use::kMust, false);
  FormTexts texts(Framed(syntax, "", std::nullopt, tools).form);
  for (const char* lines : {"\n", "\n\n"}) {
    const std::string text = absl::StrCat("<tool_call>\n<function=get_weather>\n<parameter=city>",
                                          lines, "</parameter>\n</function>\n</tool_call>");
    EXPECT_TRUE(texts.Has(text));
    const auto parts = Parse(syntax, tools, "", text);
    ASSERT_EQ(parts.size(), 3u);
    EXPECT_EQ(parts[1].text, R"({"city": ""})");
  }
}

TEST(Frame, OneCallIsTheLast) {
  AnswerSyntax syntax;
  syntax.calls = answers::NamedCalls()[1].second;
  const std::string call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
  for (const bool one : {true, false}) {
    FormTexts texts(
        Framed(syntax, "", std::nullopt, Tools(AnswerTools::Use::kMust, false), one).form);
    EXPECT_TRUE(texts.Has(call));
    EXPECT_EQ(texts.Has(call + "\n" + call), !one);
  }
}

TEST(Frame, WithoutAWishThereIsNone) {
  AnswerSyntax syntax;
  syntax.calls = answers::NamedCalls()[1].second;
  EXPECT_EQ(FrameAnswer(syntax, "", std::nullopt, Tools(AnswerTools::Use::kMay, false), false)
                ->has_value(),
            false);
  EXPECT_EQ(FrameAnswer(syntax, "", std::nullopt, {}, false)->has_value(), false);
}

TEST(Frame, WhatAFormOfCallsCannotWriteIsRefusedByItsPlace) {
  const auto refusal = [](const char* form, const char* schema) {
    AnswerSyntax syntax;
    for (const auto& [name, calls] : answers::NamedCalls()) {
      if (name == form) syntax.calls = calls;
    }
    AnswerTools tools = {.use = AnswerTools::Use::kMay};
    tools.callable = {
        {.name = "f", .field = "tools", .parameters = OrderedJson::parse(schema), .strict = true}};
    const auto framed = FrameAnswer(syntax, "", std::nullopt, tools, false);
    return std::string(framed.status().message());
  };
  EXPECT_THAT(refusal("hermes", R"({"type": "array"})"), HasSubstr("tools: #/type: expected"));
  const char* const pattern =
      R"({"type": "object", "properties": {"a": {"type": "string", "pattern": "x"}}})";
  EXPECT_EQ(refusal("hermes", pattern), "");
  EXPECT_THAT(refusal("qwen3_coder", pattern), HasSubstr("tools: #/properties/a/pattern: is not"));
  EXPECT_THAT(refusal("qwen3_coder", R"({"type": "object", "properties": {"a b": {}}})"),
              HasSubstr("#/properties/a b: expected a name of"));
  EXPECT_THAT(refusal("olmo3", R"({"type": "object", "anyOf": []})"), HasSubstr("#/anyOf: is not"));
  EXPECT_THAT(refusal("olmo3", R"({"x/y~": 1})"), HasSubstr("tools: #/x~1y~0: is not"));
  EXPECT_THAT(refusal("qwen3_coder", R"({"properties": {"a": {"type": "string", "x/y": 1}}})"),
              HasSubstr("tools: #/properties/a/x~1y: is not"));
  EXPECT_THAT(refusal("qwen3_coder",
                      R"({"properties": {"a": {"type": "string", "enum": ["\n</parameter>"]}}})"),
              HasSubstr("#/properties/a: has a text that"));
}

TEST(Frame, ArgumentsAreAnObjectWhereTheSchemaRefersToOneWithoutAType) {
  AnswerSyntax syntax;
  syntax.calls = answers::NamedCalls()[1].second;
  AnswerTools tools = {.use = AnswerTools::Use::kMust};
  tools.callable = {{.name = "f",
                     .field = "tools",
                     .parameters = OrderedJson::parse(R"({
                       "$ref": "#/$defs/A", "$defs": {"A": {"required": ["a"]}}})"),
                     .strict = true}};
  FormTexts texts(Framed(syntax, "", std::nullopt, tools).form);
  const auto call = [](const std::string& arguments) {
    return "<tool_call>\n{\"name\": \"f\", \"arguments\": " + arguments + "}\n</tool_call>";
  };
  EXPECT_TRUE(texts.Has(call("{\"a\": 1}")));
  EXPECT_FALSE(texts.Has(call("{}")));
  for (const char* other : {"5", "[]", "\"a\"", "null"}) {
    EXPECT_FALSE(texts.Has(call(other))) << other;
  }
}

// A marker within a string of a value that is JSON ends nothing.
TEST(Frame, AStrictValueMayHoldTheMarkerBehindIt) {
  AnswerSyntax syntax;
  syntax.calls = {.form = answers::CallForm::kTagged,
                  .begin = "<tool_call>",
                  .end = "\n</tool_call>",
                  .marker = "<tool_call>",
                  .after_name = "\n",
                  .before_key = "<arg_key>",
                  .after_key = "</arg_key>\n<arg_value>",
                  .after_value = "</arg_value>"};
  AnswerTools tools = Tools(AnswerTools::Use::kMust, true);
  const std::string text =
      "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>"
      "<arg_key>unit</arg_key>\n<arg_value>C</arg_value>"
      "<arg_key>places</arg_key>\n<arg_value>[\"a</arg_value>b\"]</arg_value>\n</tool_call>";
  FormTexts texts(Framed(syntax, "", std::nullopt, tools).form);
  ASSERT_TRUE(texts.Has(text));
  const std::vector<AnswerPart> parts = Parse(syntax, tools, "", text);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[1].text, R"({"city": "Oslo", "unit": "C", "places": ["a</arg_value>b"]})");
}

}  // namespace
}  // namespace ovq::server
