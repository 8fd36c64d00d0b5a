// Frames the form that a caller asks for as that of a whole answer: reasoning before it, the texts
// that the chat template writes around it, calls to tools in its place.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/answers/answer_syntax.h"
#include "server/calls/answer_tools.h"
#include "server/calls/call_forms.h"
#include "server/engine/common/answer_constraint.h"

namespace ovq::server {

struct FramedForm {
  engine::AnswerForm form;
  std::vector<PlacedSource> sources;  // those in it that callers gave
  bool calls_in_code = false;         // ParserOptions::calls_in_code of its answers
};

// The form of an answer to a conversation of which the prompt has written `begun` already; nothing
// if it may be any. content: what the text for the user keeps; none: any text. Errors: those of
// MakeCallsForm.
absl::StatusOr<std::optional<FramedForm>> FrameAnswer(const answers::AnswerSyntax& syntax,
                                                      std::string_view begun,
                                                      const std::optional<PlacedSource>& content,
                                                      const AnswerTools& tools, bool one_call);

}  // namespace ovq::server
