// AnswerParser: takes an answer's text apart, as it comes, into reasoning, text for the user and
// calls to tools.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "model/answers/answer_syntax.h"
#include "model/answers/call_reader.h"

namespace ovq::answers {

struct AnswerPart {
  enum class Kind : uint8_t {
    kContent,    // text for the user
    kReasoning,  // text that the model thinks
    kCall,       // a call begins; text: the tool's name
    kArguments,  // a piece of the JSON of the current call's arguments
    kCallEnd,    // the current call's arguments are complete
  };
  Kind kind;
  std::string text;
};

struct ParserOptions {
  bool tools = false;  // look for calls
  // {tool: JSON schema of its arguments}; null: no tools are known.
  std::shared_ptr<const nlohmann::json> schemas = nullptr;
  // Tools whose arguments surely follow their schemas, as a constraint keeps them.
  std::set<std::string> strict = {};
  // The marker of calls begins one within a block of code, too, as a constraint has it.
  bool calls_in_code = false;
};

// The parts of a text do not depend on how it is cut into pieces, apart from where the text of
// consecutive parts of one kind is cut. What cannot be a marker any more is given at once, and a
// marker is never given. A text that only begins like a call is content.
class AnswerParser {
 public:
  // The syntax outlives the parser. An answer begins with what the prompt has written of it
  // already, such as a marker that opens reasoning: Add that first.
  AnswerParser(const AnswerSyntax& syntax, ParserOptions options);

  void Add(std::string_view text, std::vector<AnswerPart>& out);
  // The answer ended: gives what was held back.
  void End(std::vector<AnswerPart>& out);
  bool in_reasoning() const { return state_ == State::kReasoning; }

 private:
  enum class State : uint8_t { kStart, kReasoning, kContent, kCallBegin, kCall, kCallNext };

  // Takes pending text apart as far as that goes.
  void Run(std::vector<AnswerPart>& out);
  // Each takes text from pending_. False: it needs more.
  bool Step(std::vector<AnswerPart>& out);
  bool StepStart();
  bool StepReasoning(std::vector<AnswerPart>& out);
  bool StepContent(std::vector<AnswerPart>& out);
  bool StepCallBegin(std::vector<AnswerPart>& out);
  bool StepCall(std::vector<AnswerPart>& out);
  bool StepCallNext();

  std::string_view Pending() const { return std::string_view(pending_).substr(at_); }
  // Gives back text that was taken from pending_ last.
  void PutBack(std::string_view text);
  // Consumes the marker if the pending text begins with it. Sets `may`, if it may begin with it.
  bool Consume(const std::string& marker, bool& may);
  void BeginCalls();
  void BeginCall();
  // Whether the answer's end would leave a call without a name.
  bool HasUnnamedCall() const;
  // Gives what was read as the beginning of a call: it is content after all. Calls may begin within
  // it, so it is read again, as long as all that was read again is no more than a few times the
  // answer; from there on all of it is content.
  void Revert(std::vector<AnswerPart>& out);
  // Gives one character of content or reasoning, with the white space before it.
  void GiveCharacter(AnswerPart::Kind kind, char c, std::vector<AnswerPart>& out);
  void FollowCode(char c);

  const AnswerSyntax& syntax_;
  const bool looks_for_calls_, calls_in_code_;
  const std::shared_ptr<const nlohmann::json> schemas_;
  const std::set<std::string> strict_;
  State state_ = State::kStart;
  bool ended_ = false;   // no more text comes
  std::string pending_;  // not yet taken apart, from at_ on
  size_t at_ = 0;
  size_t added_ = 0, reread_ = 0;  // bytes of the answer so far, and those that were read again
  std::string space_;              // white space that is given if text of the same kind follows it
  bool given_ = false;             // text was given since the last marker
  bool any_call_ = false, any_reasoning_ = false;
  bool opens_no_code_ = false;                    // the current line, though it begins with a fence
  bool in_opening_line_ = false;                  // of a block of code
  bool between_lost_ = false, end_lost_ = false;  // these markers do not follow the call
  size_t fence_ = 0;      // length of the fence, "```", of the code that content is in; 0: none
  std::string line_;      // the current line of content as far as it may be a fence
  std::string read_;      // of a call whose name is not known yet, or after a call
  size_t after_end_ = 0;  // bytes of read_ up to the calls' end; 0: not seen
  bool named_ = false;    // the name of the current call was given
  std::unique_ptr<CallReader> call_;
  Marker begin_, between_, end_;
};

}  // namespace ovq::answers
