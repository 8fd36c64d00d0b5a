#include "model/answers/answer_syntax.h"

#include <algorithm>
#include <cstddef>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "base/text.h"
#include "model/answers/marker.h"

namespace ovq::answers {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Words that no template writes by itself.
constexpr std::string_view kTool = "zqlookup", kOtherTool = "zqmeasure";
constexpr char kOtherCallId[] = "zqid00002";
constexpr char kKey[] = "zqplace", kOtherKey[] = "zqcount", kThirdKey[] = "zqunit";
constexpr std::string_view kValue = "~zq Delft~", kThirdValue = "~zq metre~";
constexpr int kOtherValue = 271828;
constexpr char kText[] = "~zq text~";
constexpr std::string_view kReasoning = "~zq reason~";

std::string ToolsJson() {
  const auto text = [](const char* name) {
    return OrderedJson{{name, {{"type", "string"}, {"description", "A text."}}}};
  };
  const auto tool = [](std::string_view name, OrderedJson properties) {
    return OrderedJson{
        {"type", "function"},
        {"function",
         {{"name", name},
          {"description", "A tool."},
          {"parameters", {{"type", "object"}, {"properties", std::move(properties)}}}}}};
  };
  OrderedJson first = text(kKey);
  first[kOtherKey] = {{"type", "integer"}, {"description", "A number."}};
  return OrderedJson::array({tool(kTool, first), tool(kOtherTool, text(kThirdKey))}).dump();
}

jinja::ToolCall FirstCall() {
  return {.id = std::string(kProbeCallId),
          .name = std::string(kTool),
          .arguments_json = OrderedJson{{kKey, kValue}, {kOtherKey, kOtherValue}}.dump()};
}
jinja::ToolCall SecondCall() {
  return {.id = kOtherCallId,
          .name = std::string(kOtherTool),
          .arguments_json = OrderedJson{{kThirdKey, kThirdValue}}.dump()};
}

std::string_view TrimLeft(std::string_view text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  return text;
}
std::string_view TrimRight(std::string_view text) {
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  return text;
}

bool Opens(char c) { return c == '<' || c == '['; }
bool Closes(char c) { return c == '>' || c == ']'; }

// The tag that ends the text, apart from white space: "<think>" of "...\n<think>\n"; or "".
std::string_view LastTag(std::string_view text) {
  text = TrimRight(text);
  if (text.empty() || !Closes(text.back())) return "";
  const size_t begin = text.find_last_of(text.back() == '>' ? '<' : '[');
  return begin == text.npos ? "" : text.substr(begin);
}
// The tag that begins the text, apart from white space; or "".
std::string_view FirstTag(std::string_view text) {
  text = TrimLeft(text);
  if (text.empty() || !Opens(text.front())) return "";
  const size_t end = text.find(text.front() == '<' ? '>' : ']');
  return end == text.npos ? "" : text.substr(0, end + 1);
}

// The length of the longest common beginning that does not end inside a tag.
size_t CommonBeginning(std::string_view a, std::string_view b) {
  const size_t n = static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  const size_t open = a.substr(0, n).find_last_of("<[");
  if (open == a.npos || a.substr(open, n - open).find_first_of(">]") != a.npos) return n;
  return open;
}
// The length of the longest common end that does not begin inside a tag.
size_t CommonEnd(std::string_view a, std::string_view b) {
  const auto reversed = std::ranges::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend()).in1;
  size_t n = static_cast<size_t>(reversed - a.rbegin());
  const std::string_view end = a.substr(a.size() - n);
  const size_t close = end.find_first_of(">]");
  if (close == end.npos || end.substr(0, close).find_first_of("<[") != end.npos) return n;
  return n - close - 1;
}

// The end of the JSON object that begins at `text[begin]`, or npos.
size_t ObjectEnd(std::string_view text, size_t begin) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = begin; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{') {
      ++depth;
    } else if (c == '}' && --depth == 0) {
      return i + 1;
    }
  }
  return text.npos;
}

struct Range {
  size_t begin, end;
};

// The JSON object that has the word in it, the outermost one, from `from` on.
std::optional<Range> ObjectWith(std::string_view text, std::string_view word, size_t from = 0) {
  const size_t at = text.find(word, from);
  for (size_t p = text.find('{', from); p < at; p = text.find('{', p + 1)) {
    const size_t end = ObjectEnd(text, p);
    if (end == text.npos || end <= at) continue;
    if (OrderedJson::accept(text.substr(p, end - p))) return Range{p, end};
  }
  return std::nullopt;
}

// The keys of the name and of the arguments, if the object has both.
bool FindKeys(const OrderedJson& object, CallSyntax& to) {
  for (const auto& [key, value] : object.items()) {
    if (value == kTool) to.name_key = key;
    const bool has_key =
        (value.is_object() && value.contains(kKey)) ||
        (value.is_string() && value.get<std::string>().find(kKey) != std::string::npos);
    if (has_key) to.arguments_key = key;
  }
  return !to.name_key.empty() && !to.arguments_key.empty();
}

// Answers of one, two calls as the template writes them, without what the conversation writes
// before and after every answer.
struct CallTexts {
  std::string one, two;
};

std::string_view Between(std::string_view text, size_t begin, size_t end) {
  return begin <= end && end <= text.size() ? text.substr(begin, end - begin) : "";
}

bool LearnJson(const CallTexts& texts, CallSyntax& to) {
  const std::optional<Range> first = ObjectWith(texts.one, kTool);
  if (!first) return false;
  const std::string_view body = Between(texts.one, first->begin, first->end);
  const OrderedJson object = OrderedJson::parse(body);
  bool found = FindKeys(object, to);
  for (const auto& [key, value] : object.items()) {
    if (found || !value.is_object()) continue;
    found = FindKeys(value, to);
    if (found) to.holder = key;
  }
  if (!found) return false;
  to.form = CallForm::kJson;
  to.begin = texts.one.substr(0, first->begin);
  to.end = texts.one.substr(first->end);
  const std::optional<Range> second = ObjectWith(texts.two, kOtherTool, first->end);
  if (second) to.between = Between(texts.two, first->end, second->begin);
  return true;
}

// The pieces of a call whose arguments are a JSON object behind the name.
bool LearnNamedJson(const CallTexts& texts, CallSyntax& to) {
  const size_t name = texts.one.find(kTool), name_end = name + kTool.size();
  const std::optional<Range> arguments = ObjectWith(texts.one, kKey, name_end);
  if (!arguments) return false;
  to.form = CallForm::kNamedJson;
  to.begin = texts.one.substr(0, name);
  to.after_name = Between(texts.one, name_end, arguments->begin);
  to.end = texts.one.substr(arguments->end);
  to.between = Between(texts.two, arguments->end, texts.two.find(kOtherTool));
  return true;
}

bool LearnTagged(const CallTexts& texts, CallSyntax& to) {
  const std::string& text = texts.one;
  const size_t name = text.find(kTool), name_end = name + kTool.size();
  const size_t key = text.find(kKey, name_end), key_end = key + sizeof(kKey) - 1;
  const size_t value = text.find(kValue, name_end), value_end = value + kValue.size();
  const size_t other_key = text.find(kOtherKey, name_end);
  const std::string other = std::to_string(kOtherValue);
  const size_t other_value = text.find(other, name_end);
  if (std::max({key, value, other_key, other_value}) == text.npos) return false;
  const size_t other_end = other_value + other.size();
  const std::string_view before_first = Between(text, name_end, key);
  const std::string_view before_other = Between(text, value_end, other_key);
  const std::string_view rest = std::string_view(text).substr(other_end);
  to.after_key = Between(text, key_end, value);
  if (before_first.starts_with('(')) {
    to.form = CallForm::kPython;
    const size_t close = text.find(')', other_end);
    if (close == text.npos) return false;
    to.end = text.substr(close + 1);
    to.between = Between(texts.two, close + 1, texts.two.find(kOtherTool));
  } else {
    to.form = CallForm::kTagged;
    const size_t n_before = CommonEnd(before_first, before_other);
    to.before_key = before_first.substr(before_first.size() - n_before);
    to.after_name = before_first.substr(0, before_first.size() - n_before);
    to.after_value = before_other.substr(0, before_other.size() - n_before);
    if (to.after_value.empty() || to.after_key.empty() || !rest.starts_with(to.after_value)) {
      return false;
    }
    to.end = rest.substr(to.after_value.size());
    to.between = Between(texts.two, other_end + to.after_value.size(), texts.two.find(kOtherTool));
  }
  to.begin = text.substr(0, name);
  return true;
}

// The place of the first call's arguments, for the text that begins a call to a given tool. A token
// may join what follows their key in JSON with their first brace, so that text ends with the key.
void LearnOpening(const std::string& one, CallSyntax& to) {
  const size_t name = one.find(kTool), name_end = name + kTool.size();
  size_t arguments = one.find('{', name_end);
  if (to.form == CallForm::kTagged || to.form == CallForm::kPython) {
    arguments = to.form == CallForm::kPython ? name_end + 1 : name_end + to.after_name.size();
  }
  if (name == one.npos || arguments > one.size()) return;
  if (to.form == CallForm::kJson) {
    const size_t key = one.rfind(to.arguments_key, arguments);
    if (key != one.npos && key > name_end) arguments = key + to.arguments_key.size();
  }
  to.opening = one.substr(0, name);
  to.opening_after_name = one.substr(name_end, arguments - name_end);
}

class Learner {
 public:
  explicit Learner(const RenderProbe& render) : render_(render), tools_(ToolsJson()) {}

  AnswerSyntax Learn() {
    const std::string prompt = Render({}, false, true);
    opening_ = prompt.substr(CommonBeginning(prompt, Render({}, false, false)));
    text_ = Render({.role = "assistant", .content = kText}, false, false);
    LearnReasoning();
    LearnContent();
    LearnCalls();
    if (syntax_.calls.form == CallForm::kNone) LearnExample();
    return syntax_;
  }

 private:
  // A conversation of a question and an answer, which is left out if its role is empty.
  std::string Render(const jinja::ChatMessage& answer, bool tools, bool opens_answer) const {
    std::vector<jinja::ChatMessage> messages = {{.role = "user", .content = "zq question"}};
    if (!answer.role.empty()) messages.push_back(answer);
    return render_({.messages = messages,
                    .tools_json = tools ? std::string_view(tools_) : "",
                    .opens_answer = opens_answer})
        .value_or("");
  }

  void LearnReasoning() {
    const std::string with =
        Render({.role = "assistant", .content = kText, .reasoning = std::string(kReasoning)}, false,
               false);
    const size_t at = with.find(kReasoning);
    if (at != with.npos) {
      syntax_.think_begin = LastTag(std::string_view(with).substr(0, at));
      syntax_.think_end = FirstTag(std::string_view(with).substr(at + kReasoning.size()));
    } else {
      // The template opens reasoning itself, maybe to close it at once, and drops that of the past.
      std::string name(LastTag(opening_));
      if (name.starts_with("</")) name.erase(1, 1);
      if (name.find("think") == name.npos && name.find("reason") == name.npos) return;
      syntax_.think_begin = name;
      syntax_.think_end = name.insert(1, "/");
    }
    DropHalfReasoning();
  }

  void DropHalfReasoning() {
    if (syntax_.think_begin.empty() || syntax_.think_end.empty()) {
      syntax_.think_begin = syntax_.think_end = "";
    }
  }

  void LearnContent() {
    const size_t at = text_.find(kText);
    if (at == text_.npos) return;
    const std::string_view tag = LastTag(std::string_view(text_).substr(0, at));
    if (opening_.find(tag) == opening_.npos && tag != syntax_.think_end)
      syntax_.content_begin = tag;
  }

  void LearnCalls() {
    jinja::ChatMessage call = {
        .role = "assistant", .content = std::nullopt, .tool_calls = {FirstCall()}};
    const std::string text = Render({.role = "assistant", .content = kText}, true, false);
    const std::string one = Render(call, true, false);
    jinja::ChatMessage calls = call;
    calls.tool_calls.push_back(SecondCall());
    const std::string two = Render(calls, true, false);
    if (text.empty() || one.empty()) return;
    const size_t before = CommonBeginning(text, one);
    if (one.find(kTool, before) == one.npos) return;
    const size_t after =
        CommonEnd(std::string_view(text).substr(before), std::string_view(one).substr(before));
    CallTexts texts = {.one = one.substr(before, one.size() - before - after), .two = ""};
    if (two.size() > before + after) texts.two = two.substr(before, two.size() - before - after);
    // Reasoning that the template writes before calls is no part of them.
    const auto skip_reasoning = [this](std::string& part) {
      const size_t end = syntax_.think_end.empty() ? part.npos : part.find(syntax_.think_end);
      if (end < part.find(kTool)) part.erase(0, end + syntax_.think_end.size());
    };
    LearnReasoningOfCalls(call, before);
    skip_reasoning(texts.one);
    skip_reasoning(texts.two);
    if (!syntax_.content_begin.empty()) {
      const size_t at = text.find(kText);
      syntax_.content_end = FirstTag(Between(text, at + sizeof(kText) - 1, text.size() - after));
    }
    CallSyntax& to = syntax_.calls;
    for (const auto learn : {LearnJson, LearnNamedJson, LearnTagged}) {
      CallSyntax found;
      if (!learn(texts, found)) continue;
      to = std::move(found);
      break;
    }
    if (to.form == CallForm::kNone) return;
    LearnOpening(texts.one, to);
    to.between = absl::StrReplaceAll(to.between, {{kOtherCallId, AbslView(kProbeCallId)}});
    to.marker = FirstTag(to.begin);
    if (to.marker.empty()) to.marker = TrimLeft(TrimRight(to.begin));
    // The marker is found as it is, and another call has another id.
    to.marker.resize(std::min(to.marker.find(kProbeCallId), to.marker.size()));
  }

  // Some templates write reasoning with calls only.
  void LearnReasoningOfCalls(jinja::ChatMessage call, size_t before) {
    if (!syntax_.think_begin.empty()) return;
    call.reasoning = kReasoning;
    const std::string with = Render(call, true, false);
    const size_t at = with.find(kReasoning, before);
    if (at == with.npos) return;
    syntax_.think_begin = LastTag(std::string_view(with).substr(0, at));
    syntax_.think_end = FirstTag(std::string_view(with).substr(at + kReasoning.size()));
    DropHalfReasoning();
  }

  // A template that writes no calls may still tell the model how: its text about tools has an
  // example, <TAG>{"name": <a>, "arguments": <b>}</TAG>.
  void LearnExample() {
    const std::string told = Render({}, true, true);
    const size_t begin = told.find("{\"name\": <"), end = told.find('}', begin);
    if (end == told.npos) return;
    CallSyntax& to = syntax_.calls;
    const std::string_view example = Between(told, begin, end);
    const size_t key = example.find(", \"");
    const size_t key_end = key == example.npos ? key : example.find('"', key + 3);
    const std::string_view tag = LastTag(std::string_view(told).substr(0, begin));
    const std::string_view end_tag = FirstTag(std::string_view(told).substr(end + 1));
    if (key_end == example.npos || tag.empty() || end_tag.empty()) return;
    to = {.form = CallForm::kJson,
          .begin = std::string(tag) + "\n",
          .between = "\n" + std::string(end_tag) + "\n" + std::string(tag) + "\n",
          .end = "\n" + std::string(end_tag),
          .marker = std::string(tag),
          .name_key = "name",
          .arguments_key = std::string(Between(example, key + 3, key_end))};
    to.opening = to.begin + "{\"name\": \"";
    to.opening_after_name = "\", \"" + to.arguments_key;
  }

  const RenderProbe& render_;
  const std::string tools_;
  std::string opening_;  // what opens an answer
  std::string text_;     // an answer of text
  AnswerSyntax syntax_;
};

}  // namespace

AnswerSyntax LearnAnswerSyntax(const RenderProbe& render) { return Learner(render).Learn(); }

AnswerSyntax LearnAnswerSyntax(const jinja::ChatFormat& format) {
  std::tm date = {};  // some day, the same for all probes
  date.tm_mday = 1;
  date.tm_year = 126;
  return LearnAnswerSyntax(
      [&](const jinja::Conversation& conversation) { return format.Render(conversation, date); });
}

std::set<int32_t> MarkerTokens(const AnswerSyntax& syntax,
                               const std::map<int32_t, std::string>& special_tokens) {
  const CallSyntax& calls = syntax.calls;
  std::set<int32_t> ids;
  for (const auto& [id, text] : special_tokens) {
    for (const std::string* part :
         {&calls.begin, &calls.between, &calls.end, &calls.after_name, &calls.before_key,
          &calls.after_key, &calls.after_value, &syntax.think_begin, &syntax.think_end,
          &syntax.content_begin, &syntax.content_end}) {
      if (!text.empty() && part->find(text) != part->npos) ids.insert(id);
    }
  }
  return ids;
}

std::string_view BegunAnswer(std::string_view prompt, const AnswerSyntax& syntax) {
  if (syntax.think_begin.empty()) return "";
  const auto trimmed = [](std::string_view text) {
    while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
    return text;
  };
  std::string_view text = trimmed(prompt);
  if (!syntax.think_end.empty() && text.ends_with(syntax.think_end)) {
    text = trimmed(text.substr(0, text.size() - syntax.think_end.size()));
  }
  if (!text.ends_with(syntax.think_begin)) return "";
  return prompt.substr(text.size() - syntax.think_begin.size());
}

}  // namespace ovq::answers
