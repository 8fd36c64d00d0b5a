#include "server/engine/common/answer.h"

#include <algorithm>
#include <utility>

namespace ovq::engine {
namespace {

model::SamplingParams WithSeed(model::SamplingParams params, uint64_t seed) {
  params.seed = seed;
  return params;
}

}  // namespace

StopMatcher::Watch::Watch(std::string text) : string(std::move(text)), links(string.size(), 0) {
  for (size_t i = 1; i < string.size(); ++i) {
    size_t length = links[i - 1];
    while (length > 0 && string[length] != string[i]) length = links[length - 1];
    if (string[length] == string[i]) ++length;
    links[i] = static_cast<uint16_t>(length);
  }
}

bool StopMatcher::Watch::Follow(char byte) {
  while (matched > 0 && string[matched] != byte) matched = links[matched - 1];
  if (string[matched] == byte) ++matched;
  return matched == string.size();
}

StopMatcher::StopMatcher(std::vector<std::string> strings, bool include_stop_text)
    : include_stop_text_(include_stop_text) {
  for (std::string& string : strings) watches_.emplace_back(std::move(string));
}

StopMatcher::Result StopMatcher::Push(std::string_view text) {
  Result result;
  for (const char byte : text) {
    held_ += byte;
    const Watch* match = nullptr;
    for (Watch& watch : watches_) {
      const bool ends = watch.Follow(byte);
      if (ends && (match == nullptr || watch.string.size() > match->string.size())) match = &watch;
    }
    if (match == nullptr) continue;
    result.text = held_.substr(0, held_.size() - (include_stop_text_ ? 0 : match->string.size()));
    result.matched = match->string;
    held_.clear();
    return result;
  }
  size_t held_back = 0;  // what may begin a stop string
  for (const Watch& watch : watches_) held_back = std::max(held_back, watch.matched);
  const size_t ready = held_.size() - held_back;
  result.text = held_.substr(0, ready);
  held_.erase(0, ready);
  return result;
}

std::string StopMatcher::Flush() { return std::exchange(held_, {}); }

RunningAnswer::RunningAnswer(const GenerateRequest& request, int index, uint64_t seed,
                             const EngineModel& model)
    : request_(request),
      index_(index),
      eos_(model.eos_token_ids),
      banned_early_(eos_),
      sampler_(WithSeed(request.sampling, seed), model.vocab_size),
      matcher_(request.stop.strings, request.stop.include_stop_text) {
  const StopConditions& stop = request.stop;
  banned_early_.insert(banned_early_.end(), stop.token_ids.begin(), stop.token_ids.end());
  for (const auto& [id, text] : stop.special_tokens) banned_early_.push_back(id);
  if (stop.ignore_eos) banned_always_ = eos_;
  for (std::vector<int32_t>* ids : {&banned_early_, &banned_always_}) {
    std::ranges::sort(*ids);
    ids->erase(std::unique(ids->begin(), ids->end()), ids->end());
  }
  if (model.tokenizer == nullptr || !model.tokenizer->has_text()) return;
  const std::optional<PartsOptions>& parts = request.output.parts;
  detokenizer_.emplace(model.tokenizer, /*at_start=*/false,
                       parts ? &model.marker_tokens : nullptr);
  if (!parts) return;
  parser_.emplace(model.answer_syntax, parts->parser);
  parser_->Add(parts->begun, begun_);
}

void RunningAnswer::Observe(std::span<const int32_t> tokens) {
  sampler_.ObservePrompt(tokens);
  if (drafter_) drafter_->Add(tokens);
}

void RunningAnswer::ObservePrompt(std::span<const int32_t> tokens) {
  Observe(tokens);
  // A character has at most four bytes, so no more tokens can have begun it.
  constexpr size_t kTail = 4;
  if (detokenizer_) detokenizer_->Precede(tokens.last(std::min(tokens.size(), kTail)));
}

model::DraftTokens RunningAnswer::Propose(int64_t most) {
  if (!drafter_) return {};
  return drafter_->Propose(std::min(most, request_.stop.max_tokens - generated_ - 1));
}

model::DrawRequest RunningAnswer::NextDraw() const {
  return {.sampler = &sampler_,
          .top_logprobs = request_.output.top_logprobs,
          .banned = banned_always_,
          .banned_early = banned_early_,
          .n_early = std::max<int64_t>(request_.stop.min_tokens - generated_, 0)};
}

void RunningAnswer::AddDraw(model::Sampled drawn, StreamEvent& event) {
  const OutputOptions& output = request_.output;
  ++generated_;
  sampler_.Observe(drawn.token_id);
  if (drafter_) drafter_->Add(drawn.token_id);
  if (!event.chunk) event.chunk.emplace().index = index_;
  TokenChunk& chunk = *event.chunk;
  chunk.token_ids.push_back(drawn.token_id);
  if (output.logprobs) chunk.logprobs.push_back(drawn.logprob);
  if (output.top_logprobs > 0) chunk.top.push_back(std::move(drawn.top));
  Append(drawn.token_id, chunk.text, event.finished);
  if (parser_) Parse(std::exchange(chunk.text, ""), chunk.parts, event.finished);
  if (event.finished) event.finished->index = index_;
}

void RunningAnswer::Append(int32_t token, std::string& text, std::optional<Finished>& finished) {
  const StopConditions& stop = request_.stop;
  const bool is_eos = std::ranges::count(eos_, token) > 0;
  const auto special = stop.special_tokens.find(token);
  const bool is_special = special != stop.special_tokens.end();
  const bool is_stop = is_eos || is_special || std::ranges::count(stop.token_ids, token) > 0;
  if (is_stop) {
    finished.emplace().matched_token_id = token;
  } else if (generated_ >= stop.max_tokens) {
    finished.emplace().reason = FinishReason::kLength;
  }
  if (!detokenizer_) return;

  std::string decoded;
  if (!is_stop || (stop.include_stop_text && !is_eos && !is_special))
    decoded = detokenizer_->Push(token);
  if (finished) decoded += detokenizer_->Finish();
  if (is_special) decoded += special->second;
  StopMatcher::Result result = matcher_.Push(decoded);
  text += result.text;
  if (result.matched) {
    finished.emplace().matched_stop = *std::move(result.matched);  // before any token or length
  } else if (finished) {
    text += matcher_.Flush();
  }
}

void RunningAnswer::Parse(const std::string& text, std::vector<answers::AnswerPart>& parts,
                              std::optional<Finished>& finished) {
  for (answers::AnswerPart& part : std::exchange(begun_, {})) parts.push_back(std::move(part));
  if (parser_->in_reasoning()) ++reasoning_;
  parser_->Add(text, parts);
  if (finished) parser_->End(parts);
  if (one_call_ended_) parts.clear();
  if (one_call_ended_ || !request_.output.parts->one_call) return;
  const auto end = std::ranges::find(parts, answers::AnswerPart::Kind::kCallEnd,
                                     &answers::AnswerPart::kind);
  if (end == parts.end()) return;
  parts.erase(end + 1, parts.end());
  one_call_ended_ = true;
  // A session's state holds what the model wrote up to its own end.
  if (!finished && request_.session_id.empty()) finished.emplace();
}

}  // namespace ovq::engine
