// AnswerSyntax: how a model writes reasoning, text and tool calls in an answer, learnt from its
// chat template.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "model/chat_template/chat_format.h"

namespace ovq::answers {

// The form of one call within the texts that surround it.
enum class CallForm : uint8_t {
  kNone,       // the template writes no calls
  kJson,       // {"name": NAME, "arguments": {...}} under keys of the template's choice
  kNamedJson,  // NAME after_name {...}
  kTagged,     // NAME after_name (before_key KEY after_key VALUE after_value)*
  kPython,     // NAME(KEY=VALUE, ...)
};

// An answer's calls are begin CALL (between CALL)* end. White space in these texts may differ in
// what models write, and where they have kProbeCallId (marker.h) stands any id.
struct CallSyntax {
  bool operator==(const CallSyntax&) const = default;
  CallForm form = CallForm::kNone;
  std::string begin = {}, between = {}, end = {};
  std::string marker = {};  // the tag that `begin` starts with, up to an id in it; empty: a call is
                            // the answer's first text
  // kJson: the keys of name and arguments, in the object under `holder` if that is not empty.
  std::string holder = {}, name_key = {}, arguments_key = {};
  std::string after_name = {};                                    // kNamedJson, kTagged
  std::string before_key = {}, after_key = {}, after_value = {};  // kTagged
  // The text of an answer from its first character to the arguments of its first call, or to their
  // key in JSON, in two pieces with the name between them.
  std::string opening = {}, opening_after_name = {};
};

struct AnswerSyntax {
  CallSyntax calls;
  std::string think_begin, think_end;      // around reasoning; empty: the template knows none
  std::string content_begin, content_end;  // around the text for the user; mostly empty
};

// Renders a conversation by the chat template.
using RenderProbe = std::function<absl::StatusOr<std::string>(const jinja::Conversation&)>;

// Renders conversations about two made-up tools, and reads off the results how the template writes
// an answer with a call, with two, with text before a call, with reasoning and without. What the
// template refuses to write is absent from the syntax.
AnswerSyntax LearnAnswerSyntax(const RenderProbe& render);
AnswerSyntax LearnAnswerSyntax(const jinja::ChatFormat& format);

// The special tokens (text by id) that are part of the syntax. Other special tokens have no place
// in an answer's text.
std::set<int32_t> MarkerTokens(const AnswerSyntax& syntax,
                               const std::map<int32_t, std::string>& special_tokens);

// The end of a prompt that is part of the answer already: reasoning that it opens, which it may
// also close. Empty if there is none.
std::string_view BegunAnswer(std::string_view prompt, const AnswerSyntax& syntax);

}  // namespace ovq::answers
