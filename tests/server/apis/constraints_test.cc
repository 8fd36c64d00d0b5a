// Constraints on answers over the HTTP APIs, on a model that draws tokens at random.
#include <cmath>

#include "tests/server/apis/http_api_fixture.h"

namespace ovq::server::test {
namespace {

using testing::HasSubstr;

const Json kSchema = Json::parse(R"({
    "type": "object", "properties": {"name": {"type": "string", "maxLength": 8},
    "age": {"type": "integer", "minimum": 0, "maximum": 150}, "tags": {"type": "array",
    "items": {"enum": ["a", "b"]}, "maxItems": 3}}, "required": ["name", "age", "tags"],
    "additionalProperties": false})");

void ExpectPerson(const std::string& text) {
  ASSERT_TRUE(Json::accept(text)) << text;
  const Json person = Json::parse(text);
  ASSERT_TRUE(person.is_object()) << text;
  EXPECT_EQ(person.size(), 3u) << text;
  EXPECT_TRUE(person["name"].is_string()) << text;
  ASSERT_TRUE(person["age"].is_number_integer()) << text;
  EXPECT_LE(person["age"].get<int>(), 150) << text;
  EXPECT_GE(person["age"].get<int>(), 0) << text;
  for (const Json& tag : person["tags"]) EXPECT_TRUE(tag == "a" || tag == "b") << text;
}

class ConstraintsTest : public HttpApiTest {
 protected:
  Json Choice(const std::string& target, Json body, const char* said = "Who?") {
    if (target == "/v1/completions") {
      body["prompt"] = said;
    } else {
      body["messages"] = {{{"role", "user"}, {"content", said}}};
    }
    if (!body.contains("max_tokens")) body["max_tokens"] = 1000;
    return Post(target, body)["choices"][0];
  }
  std::string Refused(const std::string& target, const Json& body, const std::string& param) {
    const Json error = Error(Call("POST", target, body.dump()), 400);
    EXPECT_EQ(error["param"], param) << error.dump();
    return error["message"];
  }
};

TEST_F(ConstraintsTest, EveryAnswerHasTheSchema) {
  const Json format = {{"type", "json_schema"},
                       {"json_schema", {{"name", "p"}, {"schema", kSchema}}}};
  for (int seed = 0; seed < 10; ++seed) {
    const Json chat = Choice("/v1/chat/completions", {{"response_format", format}, {"seed", seed}});
    ExpectPerson(chat["message"]["content"]);
    EXPECT_EQ(chat["finish_reason"], "stop");
    ExpectPerson(Choice("/v1/completions", {{"guided_json", kSchema}, {"seed", seed}})["text"]);
  }
}

TEST_F(ConstraintsTest, EachKindIsKept) {
  for (int seed = 0; seed < 5; ++seed) {
    const std::string object =
        Choice("/v1/chat/completions", {{"response_format", {{"type", "json_object"}}},
                                        {"seed", seed},
                                        {"max_tokens", 300}})["message"]["content"];
    EXPECT_EQ(object.front(), '{');
    const std::string date =
        Choice("/v1/completions",
               {{"structured_outputs", {{"regex", "[0-9]{4}-[01][0-9]"}}}, {"seed", seed}})["text"];
    EXPECT_THAT(date, testing::MatchesRegex("[0-9][0-9][0-9][0-9]-[01][0-9]"));
    const std::string chosen =
        Choice("/v1/completions", {{"guided_choice", {"left", "right"}}, {"seed", seed}})["text"];
    EXPECT_TRUE(chosen == "left" || chosen == "right") << chosen;
    const std::string sum =
        Choice("/v1/completions",
               {{"grammar", "root ::= [0-9] (\"+\" [0-9]){2}"}, {"seed", seed}})["text"];
    EXPECT_EQ(sum.size(), 5u) << sum;
  }
}

TEST_F(ConstraintsTest, AnAnswerThatIsCutSaysSo) {
  const Json cut =
      Choice("/v1/chat/completions", {{"json_schema", kSchema}, {"max_tokens", 5}, {"seed", 1}});
  EXPECT_EQ(cut["finish_reason"], "length");
  EXPECT_EQ(cut["message"]["content"].get<std::string>().substr(0, 1), "{");
}

TEST_F(ConstraintsTest, ResponsesAndMessagesHaveTheirOwnFields) {
  const Json format = {{"type", "json_schema"}, {"name", "p"}, {"schema", kSchema}};
  const Json response = Post("/v1/responses", {{"input", "Who?"}, {"text", {{"format", format}}}});
  ExpectPerson(response["output"][0]["content"][0]["text"]);
  EXPECT_EQ(response["text"]["format"]["name"], "p");
  for (const Json& fields :
       {Json{{"output_format", format}}, Json{{"output_config", {{"format", format}}}}}) {
    Json body = fields;
    (body.contains("output_format") ? body["output_format"] : body["output_config"]["format"])
        .erase("name");
    body["max_tokens"] = 1000;
    body["messages"] = {{{"role", "user"}, {"content", "Who?"}}};
    const Json message = Post("/v1/messages", body);
    ExpectPerson(message["content"][0]["text"]);
    EXPECT_EQ(message["stop_reason"], "end_turn");
  }
}

TEST_F(ConstraintsTest, WhatCannotBeKeptIsRefusedByItsPlace) {
  const Json bad = {{"type", "object"}, {"properties", {{"a", {{"not", {{"type", "null"}}}}}}}};
  const Json messages = {{{"role", "user"}, {"content", "Hi"}}};
  EXPECT_THAT(
      Refused("/v1/chat/completions",
              {{"messages", messages},
               {"response_format",
                {{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"schema", bad}}}}}},
              "response_format.json_schema.schema"),
      HasSubstr("#/properties/a/not"));
  EXPECT_THAT(
      Refused("/v1/completions", {{"prompt", "x"}, {"guided_regex", "a(?=b)"}}, "guided_regex"),
      HasSubstr("guided_regex: "));
  EXPECT_THAT(Refused("/v1/completions", {{"prompt", "x"}, {"grammar", "root ::= x"}}, "grammar"),
              HasSubstr("grammar: "));
  EXPECT_THAT(
      Refused("/v1/responses",
              {{"input", "x"},
               {"text", {{"format", {{"type", "json_schema"}, {"name", "n"}, {"schema", bad}}}}}},
              "text.format.schema"),
      HasSubstr("#/properties/a/not"));
  EXPECT_THAT(Refused("/v1/messages",
                      {{"messages", messages},
                       {"max_tokens", 9},
                       {"output_config", {{"format", {{"type", "json_schema"}, {"schema", bad}}}}}},
                      "output_config.format.schema"),
              HasSubstr("#/properties/a/not"));
  Json nested = Json::object();
  for (int i = 0; i < 24; ++i) nested = {{"items", nested}, {"minItems", 1}, {"type", "array"}};
  Refused("/v1/completions", {{"prompt", "x"}, {"guided_json", bad}}, "guided_json");
  EXPECT_EQ(Call("POST", "/v1/completions",
                 Json{{"prompt", "x"}, {"guided_json", nested}, {"max_tokens", 3}}.dump())
                .status,
            200);
}

TEST_F(ConstraintsTest, ManyChoicesShareWhatIsCompiled) {
  // The sum of a family's series.
  const auto metric = [&](const std::string& name) {
    double sum = 0;
    for (absl::string_view line : absl::StrSplit(server_.metrics().Text(), '\n')) {
      if (absl::ConsumePrefix(&line, name + "{")) {
        sum += std::stod(std::string(line.substr(line.find("} ") + 2)));
      }
    }
    return sum;
  };
  const Json body = {{"guided_choice", {"left", "right"}}};
  for (int i = 0; i < 3; ++i) Choice("/v1/completions", body);
  EXPECT_EQ(metric("ovq_constraint_compile_seconds_count"), 1);
  EXPECT_EQ(metric("ovq_constraint_cache_hits_total"), 2);
  EXPECT_GT(metric("ovq_constraint_cache_bytes"), 0);
  EXPECT_GT(metric("ovq_constraint_forced_tokens_total"), 0);
  EXPECT_GT(metric("ovq_constraint_masks_total"), 0);
  Refused("/v1/completions", {{"prompt", "x"}, {"grammar", "root ::= x"}}, "grammar");
  EXPECT_EQ(metric("ovq_constraint_refusals_total"), 1);
}

TEST_F(ConstraintsTest, LogProbabilitiesAreThoseOfTheAllowedTokens) {
  const Json choice =
      Choice("/v1/chat/completions",
             {{"guided_choice", {"a", "b"}}, {"logprobs", true}, {"top_logprobs", 5}});
  const Json& token = choice["logprobs"]["content"][0];
  ASSERT_EQ(token["top_logprobs"].size(), 2u) << token.dump();
  double sum = 0;
  for (const Json& top : token["top_logprobs"]) sum += std::exp(top["logprob"].get<double>());
  EXPECT_NEAR(sum, 1, 1e-5);
}

}  // namespace
}  // namespace ovq::server::test
