#include "server/calls/answer_form.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status_macros.h"

namespace ovq::server {
namespace {

using engine::AnswerForm;

// The text for the user, in what the template writes around it.
AnswerForm ContentForm(const answers::AnswerSyntax& syntax, const constraint::Source& source) {
  std::vector<AnswerForm> parts;
  if (!syntax.content_begin.empty()) parts.push_back(AnswerForm::Literal(syntax.content_begin));
  parts.push_back(AnswerForm::Given(source));
  if (!syntax.content_end.empty()) parts.push_back(AnswerForm::Literal(syntax.content_end));
  return AnswerForm::Sequence(std::move(parts));
}

// Any text for the user that is no call.
AnswerForm FreeForm(const answers::CallSyntax& calls, bool may_call) {
  if (!may_call) return AnswerForm::Without("");
  if (!calls.marker.empty()) return AnswerForm::Without(calls.marker);
  // A call is then JSON that begins the answer.
  return AnswerForm::Given(
      {.kind = constraint::Source::Kind::kRegex, .text = "(?:[^\\s{][\\s\\S]*)?"});
}

// The tools that an answer may call. Where it must call one, arguments in JSON follow their schema
// also without `strict`, if that can be kept: a model that did not choose the tool knows less of
// it.
std::vector<Tool> CallableTools(const AnswerTools& tools, const answers::CallSyntax& syntax) {
  std::vector<Tool> callable = tools.callable;
  if (tools.use != AnswerTools::Use::kMust) return callable;
  for (Tool& tool : callable) tool.strict = tool.strict || CanFollowSchema(syntax, tool);
  return callable;
}

}  // namespace

absl::StatusOr<std::optional<FramedForm>> FrameAnswer(const answers::AnswerSyntax& syntax,
                                                      std::string_view begun,
                                                      const std::optional<PlacedSource>& content,
                                                      const AnswerTools& tools, bool one_call) {
  using Use = AnswerTools::Use;
  const bool asks =
      tools.use == Use::kMust || !tools.all || std::ranges::any_of(tools.callable, &Tool::strict);
  if (!content && (tools.use == Use::kNone || !asks)) return std::nullopt;
  FramedForm framed;
  std::vector<AnswerForm> parts, bodies;
  const bool thinks = !begun.empty() && begun.find(syntax.think_end) == begun.npos;
  const bool may_think = begun.empty() && !syntax.think_begin.empty();
  if (thinks || may_think) {
    AnswerForm thought = AnswerForm::Through(syntax.think_end);
    if (thinks) {
      parts.push_back(std::move(thought));
      parts.push_back(SpaceForm());
    } else {
      parts.push_back(AnswerForm::Repeat(
          AnswerForm::Sequence({SpaceForm(), AnswerForm::Literal(syntax.think_begin),
                                std::move(thought), SpaceForm()}),
          0, 1));
    }
  }
  if (tools.use != Use::kMust) {
    if (content) framed.sources.push_back(*content);
    bodies.push_back(content ? ContentForm(syntax, content->source)
                             : FreeForm(syntax.calls, tools.use == Use::kMay));
  }
  if (tools.use != Use::kNone) {
    // In free text calls begin at the first marker.
    const bool behind_text = tools.use == Use::kMay && !content && !syntax.calls.marker.empty();
    ASSIGN_OR_RETURN(
        AnswerForm calls,
        MakeCallsForm(syntax.calls, CallableTools(tools, syntax.calls), one_call || tools.one_call,
                      /*marked=*/behind_text, framed.sources));
    if (behind_text) {
      calls = AnswerForm::Sequence({AnswerForm::Through(syntax.calls.marker), std::move(calls)});
      framed.calls_in_code = true;
    }
    bodies.push_back(std::move(calls));
  }
  parts.push_back(bodies.size() == 1 ? std::move(bodies[0])
                                     : AnswerForm::Choice(std::move(bodies)));
  framed.form = parts.size() == 1 ? std::move(parts[0]) : AnswerForm::Sequence(std::move(parts));
  return framed;
}

}  // namespace ovq::server
