#include "model/answers/named_calls.h"

namespace ovq::answers {
namespace {

// JSON objects with the keys "name" and `arguments_key`.
CallSyntax JsonCalls(std::string marker, std::string begin, std::string between, std::string end,
                     const std::string& arguments_key) {
  CallSyntax calls = {.form = CallForm::kJson,
                      .begin = std::move(begin),
                      .between = std::move(between),
                      .end = std::move(end),
                      .marker = std::move(marker),
                      .name_key = "name",
                      .arguments_key = arguments_key};
  calls.opening = calls.begin + "{\"name\": \"";
  calls.opening_after_name = "\", \"" + arguments_key + "\": ";
  return calls;
}

CallSyntax DeepSeek() {
  const std::string call = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>";
  const std::string call_end = "\n```<｜tool▁call▁end｜>";
  const std::string begin = "<｜tool▁calls▁begin｜>";
  return {.form = CallForm::kNamedJson,
          .begin = begin + call,
          .between = call_end + "\n" + call,
          .end = call_end + "<｜tool▁calls▁end｜>",
          .marker = begin,
          .after_name = "\n```json\n",
          .opening = begin + call,
          .opening_after_name = "\n```json\n"};
}

CallSyntax QwenCoder() {
  return {.form = CallForm::kTagged,
          .begin = "<tool_call>\n<function=",
          .between = "\n</function>\n</tool_call>\n<tool_call>\n<function=",
          .end = "\n</function>\n</tool_call>",
          .marker = "<tool_call>",
          .after_name = ">",
          .before_key = "\n<parameter=",
          .after_key = ">\n",
          .after_value = "\n</parameter>",
          .opening = "<tool_call>\n<function=",
          .opening_after_name = ">"};
}

CallSyntax Olmo() {
  return {.form = CallForm::kPython,
          .begin = "<function_calls>",
          .between = "\n",
          .end = "</function_calls>",
          .marker = "<function_calls>",
          .after_key = "=\"",
          .opening = "<function_calls>",
          .opening_after_name = "("};
}

}  // namespace

const std::vector<std::pair<std::string, CallSyntax>>& NamedCalls() {
  static const auto* const calls = new std::vector<std::pair<std::string, CallSyntax>>{
      {"none", {}},
      {"hermes", JsonCalls("<tool_call>", "<tool_call>\n", "\n</tool_call>\n<tool_call>\n",
                           "\n</tool_call>", "arguments")},
      {"mistral", JsonCalls("[TOOL_CALLS]", "[TOOL_CALLS][", ", ", "]", "arguments")},
      {"llama3_json", JsonCalls("", "", "", "", "parameters")},
      {"deepseek_v3", DeepSeek()},
      {"qwen3_coder", QwenCoder()},
      {"olmo3", Olmo()}};
  return *calls;
}

}  // namespace ovq::answers
