// The forms of calls to tools, as the model's chat template writes them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/answers/answer_syntax.h"
#include "server/calls/answer_tools.h"
#include "server/engine/common/answer_constraint.h"

namespace ovq::server {

// A source that is part of a form, and the place in the request that it comes from.
struct PlacedSource {
  constraint::Source source;
  std::string field;
  std::string pointer = "#";  // of its root within the field, where that is a schema
};

// The form of an answer's calls: of a strict tool with arguments that follow its schema, of the
// others with any arguments. marked: the text begins behind CallSyntax::marker; else with white
// space that models may write before it. Adds the sources of the form. InvalidArgument names what
// cannot be kept in the template's form of calls, with its place.
absl::StatusOr<engine::AnswerForm> MakeCallsForm(const answers::CallSyntax& syntax,
                                                 std::span<const Tool> tools, bool one_call,
                                                 bool marked, std::vector<PlacedSource>& sources);

// Whether the template writes calls in JSON and the tool has a schema that their arguments can
// follow.
bool CanFollowSchema(const answers::CallSyntax& syntax, const Tool& tool);

// White space that models write between parts of an answer, or none.
engine::AnswerForm SpaceForm();

}  // namespace ovq::server
