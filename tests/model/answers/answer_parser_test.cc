// The syntax that templates show, and answers taken apart by it, however they are cut. All forms of
// calls are one file, because each test runs over every dialect of its table.
#include "model/answers/answer_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/files.h"
#include "model/answers/named_calls.h"

namespace ovq::answers {
namespace {

using Kind = AnswerPart::Kind;
using testing::HasSubstr;
using testing::Not;

constexpr char kBegin[] =
    "{%- if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{%- for m in messages %}<|im_start|>{{ m.role + '\n' }}"
    "{%- if m.role == 'assistant' %}";
constexpr char kEnd[] =
    "{%- else %}{{ m.content }}{%- endif %}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{{ opening }}{% endif %}";

// Names a template and what it writes of an answer, between the lines that ChatML puts around it.
struct Dialect {
  const char* name;
  CallForm form;
  std::string answer;
  std::string opening = "";  // of an answer, behind ChatML's
};

const std::string kText = "{{ m.content or '' }}";

const std::vector<Dialect>& Dialects() {
  static const std::vector<Dialect> dialects = {
      {"Tags", CallForm::kJson,
       kText + "{%- for c in m.tool_calls or [] %}{{ '\\n' if m.content or not loop.first }}"
               "<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": "
               "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}"},
      {"List", CallForm::kJson,
       kText + "{%- if m.tool_calls %}[CALLS] [{%- for c in m.tool_calls %}"
               "{\"id\": \"{{ c.id }}\", \"tool\": \"{{ c.function.name }}\", \"parameters\": "
               "{{ c.function.arguments | tojson }}}{{ ', ' if not loop.last }}{% endfor %}]"
               "{%- endif %}"},
      {"Holder", CallForm::kJson,
       kText + "{%- for c in m.tool_calls or [] %}<call>{\"type\": \"function\", \"function\": "
               "{{ c.function | tojson }}}</call>{% endfor %}"},
      {"Text", CallForm::kJson,
       kText + "{%- for c in m.tool_calls or [] %}<call>{\"name\": \"{{ c.function.name }}\", "
               "\"arguments\": {{ c.function.arguments | tojson | tojson }}}</call>{% endfor %}"},
      {"Bare", CallForm::kJson,
       "{%- if m.tool_calls %}{{ raise_exception('one call') if m.tool_calls | length > 1 }}"
       "{\"name\": \"{{ m.tool_calls[0].function.name }}\", \"parameters\": "
       "{{ m.tool_calls[0].function.arguments | tojson }}}{%- else %}" +
           kText + "{%- endif %}"},
      {"Named", CallForm::kNamedJson,
       kText + "{%- if m.tool_calls %}<|calls|>{%- for c in m.tool_calls %}<|call|>function<|sep|>"
               "{{ c.function.name }}\n```json\n{{ c.function.arguments | tojson }}\n```<|end|>"
               "{{ '\\n' if not loop.last }}{% endfor %}<|done|>{%- endif %}"},
      {"Tagged", CallForm::kTagged,
       kText + "{%- for c in m.tool_calls or [] %}{{ '\\n\\n' if m.content or not loop.first }}"
               "<tool_call>\n<function={{ c.function.name }}>\n{% for k, v in "
               "c.function.arguments.items() %}<parameter={{ k }}>\n"
               "{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>\n"
               "</tool_call>{% endfor %}"},
      {"Pairs", CallForm::kTagged,
       kText + "{%- for c in m.tool_calls or [] %}\n<tool_call>{{ c.function.name }}\n{% for k, v "
               "in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key>\n<arg_value>"
               "{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}</tool_call>"
               "{% endfor %}"},
      {"Python", CallForm::kPython,
       kText + "{%- if m.tool_calls %}<calls>{%- for c in m.tool_calls %}{{ c.function.name }}("
               "{%- for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson }}"
               "{{ ', ' if not loop.last }}{% endfor %}){{ '\\n' if not loop.last }}{% endfor %}"
               "</calls>{%- endif %}"},
      {"Ids", CallForm::kNamedJson,
       kText + "{%- for c in m.tool_calls or [] %}[CALLS]{{ c.function.name }}[ID]{{ c.id }}[ARGS]"
               "{{ c.function.arguments | tojson }}{% endfor %}"},
      {"Attributes", CallForm::kJson,
       kText + "{%- for c in m.tool_calls or [] %}<call id=\"{{ c.id }}\">{\"name\": \""
               "{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}</call>"
               "{% endfor %}"},
      {"Thinking", CallForm::kJson,
       "<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n" + kText +
           "{%- for c in m.tool_calls or [] %}\n<tool_call>\n{\"name\": \"{{ c.function.name }}\", "
           "\"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}",
       "<think>\n"},
      {"Marked", CallForm::kJson,
       "{%- if m.tool_calls %}<|PLAN|>{{ m.tool_plan }}<|PLANNED|><|ACT|>[{%- for c in "
       "m.tool_calls %}{\"tool_name\": \"{{ c.function.name }}\", \"parameters\": "
       "{{ c.function.arguments | tojson }}}{{ ', ' if not loop.last }}{% endfor %}]<|ACTED|>"
       "{%- else %}<|SAY|>{{ m.content }}<|SAID|>{%- endif %}"},
  };
  return dialects;
}

jinja::ToolCall Weather() {
  return {
      .id = "abcdefgh1",
      .name = "get_weather",
      .arguments_json =
          R"j({"city": "Den \"Haag\" }{ <\u00fc>\n, y=(2)", "days": 3, "how": {"a": [1, "}"]}})j"};
}
jinja::ToolCall Now() { return {.id = "abcdefgh2", .name = "now", .arguments_json = "{}"}; }

std::shared_ptr<const nlohmann::json> Schemas() {
  static const auto schemas = std::make_shared<const nlohmann::json>(
      nlohmann::json{{"get_weather", {{"properties", {{"city", {{"type", "string"}}}}}}},
                     {"now", {}},
                     {"note", nlohmann::json::parse(R"({"properties": {
          "text": {"type": "string"}, "n": {"type": "integer"}, "title": {"type": ["string", "null"]},
          "nick": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "id": {"type": ["string", "integer"]},
          "size": {"enum": ["10", "20", null]}, "version": {"const": "1.0"},
          "either": {"oneOf": [{"type": "string"}, {"type": "null"}]},
          "level": {"enum": ["auto", 1, 2]}, "digit": {"$ref": "#/$defs/Digit"},
          "maybe": {"anyOf": [{"$ref": "#/$defs/Digit"}, {"type": "null"}]},
          "all": {"allOf": [{"description": "A digit."}, {"$ref": "#/$defs/Digit"}]},
          "first": {"$ref": "#/properties/maybe/anyOf/0"}, "slash": {"$ref": "#/$defs/a~1b~01"},
          "round": {"$ref": "#/$defs/Round"}, "nowhere": {"$ref": "#/$defs/Other/x"},
          "generic": {"$ref": "#/$defs/List%3Ca%3E"}, "whole": {"$ref": "tools/now#/$defs/Digit"},
          "seventh": {"$ref": "#/properties/maybe/anyOf/7"}}, "$id": "tools/now",
          "$defs": {"Digit": {"type": "string", "enum": ["1", "2"]}, "a/b~1": {"type": "string"},
                    "List<a>": {"type": "string"},
                    "Round": {"anyOf": [{"$ref": "#/$defs/Round"}, {"$ref": "#/$defs/Round"}]}}})")}});
  return schemas;
}

TEST(NamedCalls, AreReadAsTheyBegin) {
  for (const auto& [name, calls] : NamedCalls()) {
    SCOPED_TRACE(name);
    if (calls.form == CallForm::kNone) continue;
    AnswerSyntax syntax;
    syntax.calls = calls;
    std::string text = calls.opening + "now" + calls.opening_after_name;
    if (calls.form == CallForm::kJson) text += "{}}";
    if (calls.form == CallForm::kNamedJson) text += "{}";
    if (calls.form == CallForm::kPython) text += ")";
    text += calls.end;
    AnswerParser parser(syntax, {.tools = true, .schemas = Schemas()});
    std::vector<AnswerPart> parts;
    parser.Add(text, parts);
    parser.End(parts);
    ASSERT_EQ(parts.size(), 3u) << text;
    EXPECT_EQ(parts[0].text, "now");
    EXPECT_EQ(parts[1].text, "{}");
    EXPECT_EQ(parts[2].kind, Kind::kCallEnd);
  }
}

// The parts of an answer that comes in pieces of so many bytes.
std::vector<AnswerPart> ParseInPieces(const CallSyntax& calls, std::string_view text,
                                      size_t piece) {
  AnswerSyntax syntax;
  syntax.calls = calls;
  AnswerParser parser(syntax, {.tools = true, .schemas = Schemas()});
  std::vector<AnswerPart> parts;
  for (; !text.empty(); text.remove_prefix(std::min(piece, text.size()))) {
    parser.Add(text.substr(0, piece), parts);
  }
  parser.End(parts);
  return parts;
}

std::string ContentOf(const std::vector<AnswerPart>& parts) {
  std::string text;
  for (const AnswerPart& part : parts) {
    EXPECT_EQ(part.kind, Kind::kContent) << part.text;
    text += part.text;
  }
  return text;
}

// The arguments of the only call of a text, whose pieces of one byte give the same.
std::string ArgumentsOf(const std::string& form, const std::string& text) {
  for (const auto& [name, calls] : NamedCalls()) {
    if (name != form) continue;
    std::vector<std::string> found;
    for (const size_t piece : {text.size(), size_t{1}}) {
      found.emplace_back();
      for (const AnswerPart& part : ParseInPieces(calls, text, piece)) {
        EXPECT_NE(part.kind, Kind::kContent) << part.text;
        if (part.kind == Kind::kArguments) found.back() += part.text;
      }
    }
    EXPECT_EQ(found[0], found[1]);
    return found[0];
  }
  ADD_FAILURE() << form;
  return "";
}

std::string TaggedArguments(const std::string& parameters) {
  return ArgumentsOf("qwen3_coder",
                     "<tool_call>\n<function=note>\n" + parameters + "</function>\n</tool_call>");
}

TEST(NamedCalls, ValuesBetweenTagsNeedNoLinesOfTheirOwn) {
  const std::string next = "<parameter=n>\n3\n</parameter>\n";
  EXPECT_EQ(TaggedArguments("<parameter=text>\n</parameter>\n" + next), R"({"text": "", "n": 3})");
  EXPECT_EQ(TaggedArguments("<parameter=text>\n\n</parameter>\n" + next),
            R"({"text": "", "n": 3})");
  EXPECT_EQ(TaggedArguments("<parameter=text></parameter>\n" + next), R"({"text": "", "n": 3})");
  EXPECT_EQ(TaggedArguments("<parameter=text>a\n</parameter>\n" + next),
            R"({"text": "a", "n": 3})");
  EXPECT_EQ(TaggedArguments("<parameter=n>3</parameter><parameter=text>a < b</parameter>"),
            R"({"n": 3, "text": "a < b"})");
  // A text of lines may have the tag in it.
  EXPECT_EQ(TaggedArguments("<parameter=text>\na </parameter> b\n\n</parameter>\n" + next),
            R"({"text": "a </parameter> b\n", "n": 3})");
}

TEST(NamedCalls, ValuesBetweenTagsAreOfTheTypesOfTheirSchema) {
  const auto value = [](const char* key, const std::string& text) {
    const std::string json =
        TaggedArguments(std::string("<parameter=") + key + ">\n" + text + "\n</parameter>\n");
    return json.substr(json.find(": ") + 2);
  };
  for (const char* key : {"title", "nick"}) {
    EXPECT_EQ(value(key, "123"), "\"123\"}");
    EXPECT_EQ(value(key, "True"), "\"True\"}");
    EXPECT_EQ(value(key, "{}"), "\"{}\"}");
    EXPECT_EQ(value(key, "null"), "null}");
    EXPECT_EQ(value(key, "None"), "null}");
    EXPECT_EQ(value(key, "\"a\""), "\"a\"}");
    EXPECT_EQ(value(key, "a"), "\"a\"}");
  }
  EXPECT_EQ(value("size", "10"), "\"10\"}");
  EXPECT_EQ(value("size", "None"), "null}");
  EXPECT_EQ(value("version", "1.0"), "\"1.0\"}");
  EXPECT_EQ(value("either", "10"), "\"10\"}");
  EXPECT_EQ(value("level", "auto"), "\"auto\"}");
  EXPECT_EQ(value("level", "1"), "1}");
  for (const char* key : {"digit", "maybe", "all", "first", "slash", "generic", "whole"}) {
    EXPECT_EQ(value(key, "1"), "\"1\"}") << key;
  }
  EXPECT_EQ(value("maybe", "None"), "null}");
  for (const char* key : {"round", "nowhere", "seventh"}) EXPECT_EQ(value(key, "1"), "1}") << key;
  EXPECT_EQ(value("id", "123"), "123}");
  EXPECT_EQ(value("id", "1.5"), "\"1.5\"}");
  EXPECT_EQ(value("n", "1.5"), "1.5}");
  EXPECT_EQ(value("n", "True"), "true}");
  EXPECT_EQ(value("other", "123"), "123}");
}

TEST(NamedCalls, TheSchemaOfATaggedToolMayBeAReference) {
  const auto schemas = std::make_shared<const nlohmann::json>(nlohmann::json::parse(
      R"({"note": {"$ref": "#/definitions/Note", "definitions": {
            "Note": {"type": "object", "properties": {"text": {"type": "string"}}}}},
          "round": {"$ref": "#"}, "far": {"$ref": "other"}})"));
  const auto arguments = [&](const std::string& tool) {
    for (const auto& [name, calls] : NamedCalls()) {
      if (name != "qwen3_coder") continue;
      AnswerSyntax syntax;
      syntax.calls = calls;
      AnswerParser parser(syntax, {.tools = true, .schemas = schemas});
      std::vector<AnswerPart> parts;
      parser.Add("<tool_call>\n<function=" + tool + ">\n<parameter=text>\n1\n</parameter>\n" +
                     "</function>\n</tool_call>",
                 parts);
      parser.End(parts);
      return parts.size() == 3 ? parts[1].text : "";
    }
    return std::string();
  };
  EXPECT_EQ(arguments("note"), R"({"text": "1"})");
  EXPECT_EQ(arguments("round"), R"({"text": 1})");
  EXPECT_EQ(arguments("far"), R"({"text": 1})");
}

TEST(NamedCalls, NoArgumentsAreAnEmptyObject) {
  for (const char* arguments : {"null", "\"\"", "\" \"", "\"{}\"", "{}"}) {
    for (const char* call :
         {R"({"name": "now", "arguments": %})", R"({"arguments":%,"name":"now"})"}) {
      std::string text = call;
      text.replace(text.find('%'), 1, arguments);
      EXPECT_EQ(ArgumentsOf("hermes", "<tool_call>\n" + text + "\n</tool_call>"), "{}") << text;
    }
  }
}

TEST(NamedCalls, ValuesInPythonsNotationAreReadAsJson) {
  const auto value = [](const std::string& python) {
    return ArgumentsOf("olmo3", "<function_calls>now(v=" + python + ")</function_calls>");
  };
  EXPECT_EQ(value(R"('it\'s "x"')"), R"({"v": "it's \"x\""})");
  EXPECT_EQ(value(R"('\d+ \w')"), R"({"v": "\\d+ \\w"})");
  EXPECT_EQ(value("'two\nlines\tand'"), R"({"v": "two\u000alines\u0009and"})");
  EXPECT_EQ(value("'one \\\nline'"), R"({"v": "one line"})");
  EXPECT_EQ(value(R"('\x41\a\0\101\U0001f600\u00e9')"),
            R"({"v": "\u0041\u0007\u0000\u0041\ud83d\ude00\u00e9"})");
  EXPECT_EQ(value(R"(['a', (1, 2,), {'k': None, }, True])"),
            R"({"v": ["a", [1, 2], {"k": null}, true]})");
  EXPECT_EQ(value(R"([('a'), (1,), (), ((2), 3)])"), R"({"v": [ "a", [1], [], [ 2, 3]]})");
  EXPECT_EQ(value("[Other]"), R"({"v": "[Other]"})");
}

TEST(NamedCalls, LiteralsOfPythonAreReadAsPythonReadsThem) {
  const auto value = [](const std::string& python) {
    const std::string json =
        ArgumentsOf("olmo3", "<function_calls>now(v=" + python + ", w=1)</function_calls>");
    const nlohmann::json arguments = nlohmann::json::parse(json, nullptr, false);
    EXPECT_TRUE(arguments.is_object() && arguments.size() == 2 && arguments["w"] == 1) << json;
    return arguments.is_object() ? arguments["v"].dump() : json;
  };
  // Texts between three marks, of which fewer may stand within.
  EXPECT_EQ(value("'''it's \"x\", (a\n'''"), R"("it's \"x\", (a\n")");
  EXPECT_EQ(value(R"("""say ""hi"" \""" ) """)"), R"("say \"\"hi\"\" \"\"\" ) ")");
  EXPECT_EQ(value("''''''"), "\"\"");
  EXPECT_EQ(value("''"), "\"\"");
  EXPECT_EQ(value("['', '''a''']"), R"(["","a"])");
  // Texts one behind another are one.
  EXPECT_EQ(value("'a' \"b\"\n 'c'"), "\"abc\"");
  EXPECT_EQ(value("('one, '\n 'two')"), "\"one, two\"");
  EXPECT_EQ(value("'' ''"), "\"\"");
  // Their prefixes.
  EXPECT_EQ(value(R"(r'\d\'')"), R"("\\d\\'")");
  EXPECT_EQ(value(R"(u'\u00e9')"), "\"é\"");
  EXPECT_EQ(value(R"('a\n' r'b\n' """c""")"), R"("a\nb\\nc")");
  EXPECT_EQ(value("f'{x}'"), R"("f'{x}'")");
  EXPECT_EQ(value("b'x'"), R"("b'x'")");
  // Numbers.
  EXPECT_EQ(value("-3"), "-3");
  EXPECT_EQ(value("[+3, - 3, 1_000, 0x1F, -0b11, 0o17, 00]"), "[3,-3,1000,31,-3,15,0]");
  EXPECT_EQ(value("[.5, 5., -1.5e-3, 01.5, 1_0.2_5]"), "[0.5,5.0,-0.0015,1.5,10.25]");
  EXPECT_EQ(value("[0x_1F, 0b_11, 1_0e1_0, 0B1, 0xE_1]"), "[31,3,100000000000.0,1,225]");
  for (const char* other : {"1__0", "007", "0x",   "1_",   "nan",      "1-2",     "2024-01-02",
                            "-(1)", "1 2", "0_b1", "0_x1", "1_e5",     "1e_5",    "0b2",
                            "0x_",  "(,)", "[,]",  "{,}",  "[1, , 2]", "{(1: 2)}"}) {
    EXPECT_EQ(value(other), '"' + std::string(other) + '"');
  }
  // Parentheses, tuples, and dicts whose keys are no texts; words of JSON.
  EXPECT_EQ(value("(1)"), "1");
  EXPECT_EQ(value("[(1,), (), ((2)), (3, 4)]"), "[[1],[],2,[3,4]]");
  EXPECT_EQ(value("{1: 'a', 'b': True, None: [null, true,],}"),
            R"({"1":"a","b":true,"null":[null,true]})");
  EXPECT_EQ(value("[a(1)]"), "\"[a(1)]\"");
  EXPECT_EQ(value("some words"), "\"some words\"");
  // A mark within a word or behind it begins no text; behind a prefix it does.
  for (const char* words :
       {"it's fine", "[the dogs' bowl]", "l'été d'or", "6'2", "rb'a, b)'", "[F'(', 1]"}) {
    EXPECT_EQ(value(words), '"' + std::string(words) + '"');
  }
}

// However the text is cut, its call ends early and the words behind it are not lost.
void ExpectACallThenSuch(const CallSyntax& calls, const std::string& text) {
  for (const size_t piece : {size_t{1}, text.size()}) {
    const std::vector<AnswerPart> parts = ParseInPieces(calls, text, piece);
    ASSERT_EQ(parts.size(), 2u) << text;
    EXPECT_EQ(parts[0].kind, Kind::kCall) << text;
    EXPECT_EQ(parts[1].kind, Kind::kContent) << text;
    EXPECT_THAT(parts[1].text, testing::EndsWith("Such.")) << text;
  }
}

TEST(NamedCalls, AKeyWithoutAValueEndsTheCall) {
  const CallSyntax& calls = NamedCalls().at(1).second;
  ASSERT_EQ(calls.marker, "<tool_call>");
  for (const char* rest : {R"(})", R"( , "id": 1})", R"(]})", R"()})"}) {
    ExpectACallThenSuch(
        calls, std::string(R"(<tool_call>{"name": "now", "arguments":)") + rest + "\nSuch.");
  }
}

// Nothing of it becomes a part of the next key or value.
TEST(NamedCalls, WhatIsNoArgumentInPythonEndsTheCall) {
  for (const auto& [name, calls] : NamedCalls()) {
    if (name != "olmo3") continue;
    for (const char* arguments :
         {"v=", "v= ", "v=}", "v=, w=2", "1, w=2", "x", "v w=2", "v, w=2"}) {
      ExpectACallThenSuch(calls, std::string("<function_calls>now(") + arguments + ")\nSuch.");
    }
    const std::string spaced =
        ArgumentsOf("olmo3", "<function_calls>now( v =1 ,w\n= 2, )</function_calls>");
    EXPECT_EQ(spaced, R"({"v": 1, "w": 2})");
  }
}

// The parts of an answer, whose pieces of one byte give the same: their texts, and ";" at the end
// of a call.
std::string PartsOf(const std::string& form, const std::string& text) {
  for (const auto& [name, calls] : NamedCalls()) {
    if (name != form) continue;
    std::vector<std::string> found;
    for (const size_t piece : {text.size(), size_t{1}}) {
      found.emplace_back();
      for (const AnswerPart& part : ParseInPieces(calls, text, piece)) {
        found.back() += part.kind == Kind::kCallEnd ? ";" : part.text + "|";
      }
    }
    EXPECT_EQ(found[0], found[1]);
    return found[0];
  }
  ADD_FAILURE() << form;
  return "";
}

// Behind a bracket that nothing closes the call still ends.
TEST(NamedCalls, UnmatchedBracketsDoNotTakeWhatIsBehindTheCall) {
  const auto python = [](const std::string& value) {
    return PartsOf("olmo3", "<function_calls>now(v=" + value + ")</function_calls>Such, and so.");
  };
  EXPECT_EQ(python("[1, 2"), R"(now|{"v": "[1, 2"}|;Such, and so.|)");
  EXPECT_EQ(python("{'a': [1}"), R"(now|{"v": "{'a': [1}"}|;Such, and so.|)");
  EXPECT_EQ(python("[(1, 2], w=3"), R"(now|{"v": "[(1, 2]", "w": 3}|;Such, and so.|)");
  EXPECT_EQ(python("(1, 2], w=3"), R"(now|{"v": "(1, 2]", "w": 3}|;Such, and so.|)");
  EXPECT_EQ(PartsOf("olmo3", "<function_calls>now(v)\nnow()</function_calls>Such."),
            "now|now|{}|;Such.|");
  const auto json = [](const std::string& value) {
    return PartsOf("hermes", "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"v\": " + value +
                                 "\n</tool_call>\nSuch}.");
  };
  EXPECT_EQ(json("[1, 2}}"), R"(now|{"v": [1, 2}|;Such}.|)");
  EXPECT_EQ(json("1}"), R"(now|{"v": 1}|Such}.|)");
  EXPECT_EQ(json("[1, 2,"), "now|{\"v\": [1, 2,\n|Such}.|");
}

std::string Repeated(std::string_view text, size_t times) {
  std::string whole;
  for (size_t i = 0; i < times; ++i) whole += text;
  return whole;
}

TEST(NamedCalls, NoTextIsLostWhereCallsNeverEnd) {
  for (const auto& [name, calls] : NamedCalls()) {
    if (calls.marker.empty()) continue;
    const std::string open = calls.begin + "{\"a\": [", quoted = calls.begin + "{\"a\": \"";
    for (const std::string& text :
         {quoted + calls.marker, quoted + quoted + quoted, open + open + calls.marker,
          calls.marker + calls.marker + calls.marker, open + "\n " + open + " and\n" + calls.begin,
          Repeated(open, 500), Repeated(open, 500) + Repeated("]", 700) + " and",
          "a " + calls.begin + "\v\f " + calls.marker}) {
      for (const size_t piece : {size_t{1}, size_t{2}, size_t{7}, size_t{500}, text.size()}) {
        EXPECT_EQ(ContentOf(ParseInPieces(calls, text, piece)), text) << name << " " << piece;
      }
      if (text.size() > 500) continue;
      for (size_t i = 0; i < text.size(); ++i) {
        EXPECT_EQ(ContentOf(ParseInPieces(calls, text, i + 1)), text) << name << " " << i;
      }
    }
  }
}

// Times are of the processor, and of as much text each: text that is four times as long takes four
// times as long, and sixteen times if every character is read again for each one before it.
TEST(NamedCalls, TextThatIsNoCallAfterAllIsReadInTimeByItsLength) {
  constexpr size_t kBytes = size_t{1} << 20;
  const CallSyntax& calls = NamedCalls().at(1).second;
  ASSERT_EQ(calls.marker, "<tool_call>");
  const std::string open = "<tool_call>{\"a\": [";
  const auto texts = [&](size_t bytes) {
    return std::vector<std::string>{
        "<tool_call>{\"a\": \"" + std::string(bytes, 'x'), Repeated(open, bytes / open.size()),
        Repeated(open, bytes / open.size()) + Repeated("]", bytes / open.size()) + " and",
        Repeated("<tool_call>x", bytes / 12), Repeated("<tool_call>", bytes / 11)};
  };
  const auto seconds = [&](const std::string& text, size_t piece, int times) {
    const std::clock_t begin = std::clock();
    for (int i = 0; i < times; ++i) {
      EXPECT_TRUE(ContentOf(ParseInPieces(calls, text, piece)) == text);
    }
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  const std::vector<std::string> shorter = texts(kBytes / 4), longer = texts(kBytes);
  for (size_t i = 0; i < longer.size(); ++i) {
    for (const size_t piece : {size_t{5}, longer[i].size()}) {
      const double of_short = seconds(shorter[i], piece, 4), of_long = seconds(longer[i], piece, 1);
      EXPECT_LT(of_long, 2.5 * of_short + 0.1) << i << " in pieces of " << piece;
    }
  }
}

// White space within parentheses is not looked at once more for each of them.
TEST(NamedCalls, ParenthesesInPythonAreReadInTimeByTheirLength) {
  const auto seconds = [](size_t depth, int times) {
    const std::string value =
        std::string(depth, '(') + "1" + std::string(depth, ' ') + Repeated(")", depth);
    const std::clock_t begin = std::clock();
    for (int i = 0; i < times; ++i) {
      const auto arguments = nlohmann::json::parse(
          ArgumentsOf("olmo3", "<function_calls>now(v=" + value + ")</function_calls>"));
      EXPECT_EQ(arguments, nlohmann::json({{"v", 1}}));
    }
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  const double of_short = seconds(10'000, 8), of_long = seconds(80'000, 1);
  EXPECT_LT(of_long, 2.5 * of_short + 0.1);
}

class DialectTest : public testing::TestWithParam<size_t> {
 protected:
  const Dialect& dialect() const { return Dialects()[GetParam()]; }
  bool IsOneOf(std::initializer_list<std::string_view> names) const {
    return std::ranges::find(names, dialect().name) != names.end();
  }

  void SetUp() override {
    const std::string folder = testing::TempDir() + "answers_" + dialect().name;
    std::filesystem::create_directories(folder);
    const std::string text = "{%- set opening = " + nlohmann::json(dialect().opening).dump() +
                             " %}" + std::string(kBegin) + dialect().answer + kEnd;
    ASSERT_TRUE(WriteFile(folder + "/chat_template.jinja", text).ok());
    absl::StatusOr<std::unique_ptr<jinja::ChatFormat>> format = jinja::ChatFormat::Load(folder);
    std::filesystem::remove_all(folder);
    ASSERT_TRUE(format.ok()) << format.status();
    format_ = *std::move(format);
    syntax_ = LearnAnswerSyntax([this](const jinja::Conversation& conversation) {
      return format_->Render(conversation, std::tm{});
    });
  }

  // The text that a model would write for this answer.
  std::string Written(const jinja::ChatMessage& answer) const {
    const std::vector<jinja::ChatMessage> messages = {{.role = "user", .content = "Hi"}, answer};
    const auto render = [&](size_t n, bool opens) {
      return format_
          ->Render({.messages = std::span(messages).first(n), .opens_answer = opens}, std::tm{})
          .value();
    };
    const std::string whole = render(2, false), prompt = render(1, true);
    EXPECT_THAT(whole, testing::StartsWith(prompt));
    std::string text = whole.substr(prompt.size());
    text.resize(text.size() - std::string("<|im_end|>\n").size());
    return text;
  }

  std::vector<AnswerPart> Parse(const std::vector<std::string_view>& pieces,
                                const std::string& opened) const {
    AnswerParser parser(syntax_, {.tools = true, .schemas = Schemas()});
    std::vector<AnswerPart> parts, joined;
    parser.Add(opened, parts);
    for (const std::string_view piece : pieces) parser.Add(piece, parts);
    parser.End(parts);
    for (const AnswerPart& part : parts) {
      const bool joins = part.kind != Kind::kCall && part.kind != Kind::kCallEnd;
      if (joins && !joined.empty() && joined.back().kind == part.kind) {
        joined.back().text += part.text;
      } else {
        joined.push_back(part);
      }
    }
    return joined;
  }

  // The parts, which must not depend on where the text is cut.
  std::vector<AnswerPart> ParseCut(const std::string& text, std::string opened = "") const {
    opened.insert(0, dialect().opening);
    const std::vector<AnswerPart> whole = Parse({text}, opened);
    std::vector<std::string_view> bytes;
    for (size_t i = 0; i < text.size(); ++i) {
      const std::string_view view = text;
      bytes.push_back(view.substr(i, 1));
      ExpectSame(Parse({view.substr(0, i), view.substr(i)}, opened), whole, text);
    }
    ExpectSame(Parse(bytes, opened), whole, text);
    return whole;
  }

  static void ExpectSame(const std::vector<AnswerPart>& got, const std::vector<AnswerPart>& want,
                         const std::string& text) {
    const auto show = [](const std::vector<AnswerPart>& parts) {
      std::string shown;
      for (const AnswerPart& part : parts) {
        shown += std::to_string(static_cast<int>(part.kind)) + ":" + part.text + "|";
      }
      return shown;
    };
    ASSERT_EQ(show(got), show(want)) << text;
  }

  static std::string TextOf(const std::vector<AnswerPart>& parts, Kind kind) {
    std::string text;
    for (const AnswerPart& part : parts) {
      if (part.kind == kind) text += part.text;
    }
    return text;
  }

  static void ExpectCalls(const std::vector<AnswerPart>& parts,
                          const std::vector<jinja::ToolCall>& calls) {
    size_t n = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].kind != Kind::kCall) continue;
      ASSERT_LT(n, calls.size());
      ASSERT_LT(i + 2, parts.size());
      EXPECT_EQ(parts[i].text, calls[n].name);
      EXPECT_EQ(parts[i + 1].kind, Kind::kArguments);
      EXPECT_EQ(nlohmann::json::parse(parts[i + 1].text, nullptr, false),
                nlohmann::json::parse(calls[n].arguments_json))
          << parts[i + 1].text;
      EXPECT_EQ(parts[i + 2].kind, Kind::kCallEnd);
      ++n;
    }
    EXPECT_EQ(n, calls.size());
  }

  std::unique_ptr<jinja::ChatFormat> format_;
  AnswerSyntax syntax_;
};

TEST_P(DialectTest, TheFormIsLearnt) { EXPECT_EQ(syntax_.calls.form, dialect().form); }

TEST_P(DialectTest, TextIsText) {
  const std::string text = "Plain *text*, {\"name\": 3} and\n\n <b>more</b>: 1 < 2.";
  const auto parts = ParseCut(Written({.role = "assistant", .content = text}));
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].kind, Kind::kContent);
  EXPECT_EQ(parts[0].text, text);
}

TEST_P(DialectTest, OneCall) {
  const auto parts =
      ParseCut(Written({.role = "assistant", .content = std::nullopt, .tool_calls = {Weather()}}));
  ExpectCalls(parts, {Weather()});
  EXPECT_EQ(TextOf(parts, Kind::kContent), "");
}

TEST_P(DialectTest, TwoCallsBehindText) {
  if (IsOneOf({"Bare"})) GTEST_SKIP() << "its template refuses two calls";
  const auto parts = ParseCut(
      Written({.role = "assistant", .content = "Let me see.", .tool_calls = {Now(), Weather()}}));
  ExpectCalls(parts, {Now(), Weather()});
  if (dialect().name != std::string("Marked")) {
    EXPECT_EQ(TextOf(parts, Kind::kContent), "Let me see.");
  }
}

TEST_P(DialectTest, ReasoningIsApart) {
  const bool reasons = IsOneOf({"Thinking", "Marked"});
  ASSERT_EQ(syntax_.think_begin.empty(), !reasons);
  if (!reasons) GTEST_SKIP() << "its template knows no reasoning";
  const auto parts = ParseCut(Written({.role = "assistant",
                                       .content = "Let me see.",
                                       .reasoning = "The user\n\nis <polite>.",
                                       .tool_calls = {Weather()}}));
  ExpectCalls(parts, {Weather()});
  EXPECT_EQ(TextOf(parts, Kind::kReasoning), "The user\n\nis <polite>.");
}

TEST_P(DialectTest, ACallInCodeIsText) {
  ASSERT_EQ(syntax_.calls.marker.empty(), IsOneOf({"Bare"}));
  if (IsOneOf({"Bare"})) GTEST_SKIP() << "its calls are whole answers";
  jinja::ChatMessage shown = {
      .role = "assistant", .content = std::nullopt, .tool_calls = {Weather()}};
  if (dialect().name == std::string("Thinking")) shown.reasoning = "";
  std::string call = Written(shown);
  call.erase(0, call.find(syntax_.calls.marker));
  const std::string text = "Write this:\n\n````xml\n" + call + "\n````\nand no more.";
  const auto parts = ParseCut(text);
  ExpectCalls(parts, {});
  const Kind kind = dialect().opening.empty() ? Kind::kContent : Kind::kReasoning;
  EXPECT_EQ(TextOf(parts, kind), text);
}

TEST_P(DialectTest, ACallBehindCodeWithinALineIsACall) {
  if (IsOneOf({"Bare"})) GTEST_SKIP() << "its calls are whole answers";
  if (!dialect().opening.empty()) GTEST_SKIP() << "its answers begin as reasoning";
  std::string call =
      Written({.role = "assistant", .content = std::nullopt, .tool_calls = {Weather()}});
  call.erase(0, call.find(syntax_.calls.marker));
  const std::string far(80, 'x');
  for (const std::string& line :
       {std::string("```ls -la```"), std::string("  ```` a `b` ```` and `c`"),
        std::string("``` ```"), "```" + far + "``` and ```" + far, std::string("```sh ```x")}) {
    for (const char* between : {"\n", "\n\n"}) {
      const auto parts = ParseCut("Run it:\n" + line + between + call);
      ExpectCalls(parts, {Weather()});
      EXPECT_EQ(TextOf(parts, Kind::kContent), "Run it:\n" + line);
    }
  }
  // The line of a fence of tildes may have backticks.
  for (const std::string& line : {std::string("~~~ `sh`"), std::string("``````")}) {
    ExpectCalls(ParseCut(line + "\n" + call), {});
  }
}

TEST_P(DialectTest, WhatOnlyBeginsLikeACallIsText) {
  if (!dialect().opening.empty()) GTEST_SKIP() << "its answers begin as reasoning";
  const std::string& marker = syntax_.calls.marker;
  for (const std::string& text :
       {"Use " + marker + " to call.", marker, marker + " {\"other\": 1} behind", "A " + marker,
        std::string("{\"temperature\": 3}"), std::string("{\"name\": \"unknown\"")}) {
    const auto parts = ParseCut(text);
    EXPECT_EQ(TextOf(parts, Kind::kCall), "") << text;
    EXPECT_EQ(TextOf(parts, Kind::kContent), text);
  }
}

TEST_P(DialectTest, AForcedCallGoesOnWithItsArguments) {
  const std::string written =
      Written({.role = "assistant", .content = std::nullopt, .tool_calls = {Weather()}});
  const std::string opening =
      syntax_.calls.opening + "get_weather" + syntax_.calls.opening_after_name;
  const size_t at = written.find(opening);
  const bool holds_id = IsOneOf({"List", "Ids", "Attributes"});
  ASSERT_EQ(at == written.npos, holds_id);
  if (holds_id) GTEST_SKIP() << "its opening holds an id";
  // The parser is given first what the prompt has begun.
  const std::string closes = dialect().opening.empty() ? "" : syntax_.think_end + "\n\n";
  const auto parts = ParseCut(written.substr(at + opening.size()), closes + opening);
  ExpectCalls(parts, {Weather()});
  EXPECT_EQ(TextOf(parts, Kind::kContent), "");
}

// Pieces of markers and of calls in any order: no text is lost or given twice, whatever the cuts.
TEST_P(DialectTest, AnyTextGivesTheSamePartsHoweverItIsCut) {
  std::minstd_rand random(17 + static_cast<unsigned>(GetParam()));
  const CallSyntax& calls = syntax_.calls;
  const std::vector<std::string> words = {calls.begin,
                                          calls.between,
                                          calls.end,
                                          calls.marker,
                                          "<",
                                          "think>",
                                          syntax_.think_begin,
                                          syntax_.think_end,
                                          "get_weather",
                                          calls.opening,
                                          calls.opening_after_name,
                                          "{",
                                          "}",
                                          "\"",
                                          "{}",
                                          "```",
                                          "\n",
                                          " ",
                                          "a",
                                          ":",
                                          ",",
                                          "(",
                                          ")",
                                          "=",
                                          "\\",
                                          "\xc3\xbc",
                                          syntax_.content_begin,
                                          "{\"name\": \"now\", \"arguments\": {\"a\": 1}}",
                                          calls.before_key,
                                          calls.after_key,
                                          calls.after_value};
  for (int round = 0; round < 150; ++round) {
    std::string text;
    for (int i = 0; i < 8; ++i) text += words[random() % words.size()];
    ParseCut(text);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(All, DialectTest, testing::Range<size_t>(0, Dialects().size()),
                         [](const auto& info) { return Dialects()[info.param].name; });

TEST(AnswerSyntax, ATemplateWithoutCallsHasNone) {
  const AnswerSyntax syntax =
      LearnAnswerSyntax([](const jinja::Conversation& conversation) -> absl::StatusOr<std::string> {
        std::string text;
        for (const jinja::ChatMessage& message : conversation.messages) {
          text += "<|" + message.role + "|>" + message.content.value_or("");
        }
        if (conversation.opens_answer) text += "<|assistant|>";
        return text;
      });
  EXPECT_EQ(syntax.calls.form, CallForm::kNone);
  EXPECT_EQ(syntax.think_begin, "");
  EXPECT_EQ(syntax.content_begin, "");
}

TEST(AnswerSyntax, ATemplateThatRefusesEverythingTeachesNothing) {
  const AnswerSyntax syntax =
      LearnAnswerSyntax([](const jinja::Conversation&) -> absl::StatusOr<std::string> {
        return absl::InvalidArgumentError("no");
      });
  EXPECT_EQ(syntax.calls.form, CallForm::kNone);
}

// A template may tell the model about calls without writing any.
TEST(AnswerSyntax, AnExampleInTheTextAboutToolsIsTaken) {
  const AnswerSyntax syntax =
      LearnAnswerSyntax([](const jinja::Conversation& conversation) -> absl::StatusOr<std::string> {
        std::string text;
        if (!conversation.tools_json.empty()) {
          text = "Call like this: <call>\n{\"name\": <name>, \"parameters\": <object>}\n</call>\n";
        }
        for (const jinja::ChatMessage& message : conversation.messages)
          text += message.role + ": " + message.content.value_or("");
        return text;
      });
  EXPECT_EQ(syntax.calls.form, CallForm::kJson);
  EXPECT_EQ(syntax.calls.marker, "<call>");
  EXPECT_EQ(syntax.calls.arguments_key, "parameters");
}

}  // namespace
}  // namespace ovq::answers
