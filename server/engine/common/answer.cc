#include "server/engine/common/answer.h"

#include <algorithm>
#include <utility>

namespace ovq::engine {
namespace {

model::SamplingParams WithSeed(model::SamplingParams params, uint64_t seed) {
  params.seed = seed;
  return params;
}

// Keeps as many of the last tokens as can have begun a character, which has at most four bytes.
void AppendTail(std::span<const int32_t> tokens, std::vector<int32_t>& tail) {
  constexpr size_t kTail = 4;
  tokens = tokens.last(std::min(tokens.size(), kTail));
  tail.insert(tail.end(), tokens.begin(), tokens.end());
  if (tail.size() > kTail) tail.erase(tail.begin(), tail.end() - kTail);
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
      markers_(model.marker_tokens),
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
  detokenizer_.emplace(model.tokenizer, /*at_start=*/false, parts ? &model.marker_tokens : nullptr);
  if (!parts) return;
  parser_.emplace(model.answer_syntax, parts->parser);
  parser_->Add(parts->begun, begun_);
}

absl::Status RunningAnswer::Constrain(MatcherCache& matchers, const UnfinishedAnswer* earlier,
                                      bool forces) {
  if (!parser_) {
    // Markers are tokens without a text here, which no form has.
    for (std::vector<int32_t>* ids : {&banned_early_, &banned_always_}) {
      ids->insert(ids->end(), markers_.begin(), markers_.end());
      std::ranges::sort(*ids);
      ids->erase(std::unique(ids->begin(), ids->end()), ids->end());
    }
  }
  forces_ = forces && request_.stop.strings.empty() &&
            !(request_.output.parts && request_.output.parts->one_call);
  form_.emplace(request_.constraint, matchers, /*has_end=*/!request_.session_id.empty());
  if (earlier != nullptr) {
    tokens_ = earlier->tokens;
    status_ = form_->GoOn(*earlier);
  }
  if (status_.ok() && form_->Ends(bans(), 0)) status_ = form_->DeadEnd();
  return status_;
}

void RunningAnswer::Observe(std::span<const int32_t> tokens) {
  sampler_.ObservePrompt(tokens);
  if (drafter_) drafter_->Add(tokens);
}

void RunningAnswer::ObserveEarlier(std::span<const int32_t> tokens) {
  Observe(tokens);
  AppendTail(tokens, tail_);
}

void RunningAnswer::ObservePrompt(std::span<const int32_t> tokens) {
  Observe(tokens);
  AppendTail(tokens, tail_);
  if (detokenizer_) detokenizer_->Precede(tail_);
}

std::span<const int32_t> RunningAnswer::forced() const { return forced_; }

model::DraftTokens RunningAnswer::Propose(int64_t most) {
  model::DraftTokens drafts;
  const int64_t left = request_.stop.max_tokens - generated_ - std::ssize(forced_) - 1;
  if (drafter_) drafts = drafter_->Propose(std::min(most, left));
  if (!form_) return drafts;
  const auto end = std::ranges::find_if(drafts.tokens, [this](int32_t id) { return IsEnd(id); });
  const auto n = static_cast<size_t>(form_->Draft({drafts.tokens.begin(), end}));
  return {drafts.tokens.first(n), drafts.probabilities.first(n)};
}

RunningAnswer::Following RunningAnswer::Follow(int64_t n_forced, std::span<const float> drafted) {
  const auto n = static_cast<size_t>(n_forced);
  following_.assign(1, *sequence->pending);
  following_.insert(following_.end(), forced_.begin(), forced_.begin() + n_forced);
  following_probabilities_.assign(n, 1);
  following_probabilities_.insert(following_probabilities_.end(), drafted.begin(), drafted.end());
  return {following_, following_probabilities_};
}

model::DrawRequest RunningAnswer::NextDraw() {
  const int64_t drawn = generated_ + std::ssize(forced_);
  return {.sampler = &sampler_,
          .top_logprobs = request_.output.top_logprobs,
          .banned = banned_always_,
          .banned_early = banned_early_,
          .n_early = std::max<int64_t>(request_.stop.min_tokens - drawn, 0),
          .allowed = form_ ? form_->masks() : std::span<const kernels::TokenMaskBits>()};
}

void RunningAnswer::ObserveOwn(int32_t token) {
  sampler_.Observe(token);
  if (drafter_) drafter_->Add(token);
}

bool RunningAnswer::IsEnd(int32_t token) const {
  return std::ranges::count(eos_, token) > 0 || request_.stop.special_tokens.contains(token) ||
         std::ranges::count(request_.stop.token_ids, token) > 0;
}

void RunningAnswer::AddForced(int64_t n, StreamEvent& event) {
  for (int64_t i = 0; i < n; ++i) {
    // A softmax over this token alone gives 0.
    model::Sampled drawn;
    drawn.token_id = forced_[static_cast<size_t>(i)];
    if (request_.output.top_logprobs > 0) drawn.top.push_back({drawn.token_id, 0});
    Emit(std::move(drawn), event);
  }
  forced_.erase(forced_.begin(), forced_.begin() + n);
}

FormBans RunningAnswer::bans() const {
  return {banned_early_, banned_always_, request_.stop.min_tokens};
}

void RunningAnswer::AdvanceForm(int32_t token) {
  if (IsEnd(token)) return;
  status_ = form_->Add(token);
  if (!status_.ok() || !form_->Ends(bans(), generated_ + 1)) return;
  form_ended_ = form_->may_end();
  if (!form_ended_) status_ = form_->DeadEnd();
}

// The last token of an answer stays pending: so none that ends it is forced.
void RunningAnswer::Force() {
  if (!form_ || !forces_ || !status_.ok()) return;
  while (forced_.size() < kMostForced) {
    const int64_t drawn = generated_ + std::ssize(forced_);
    if (drawn + 1 >= request_.stop.max_tokens) return;
    const std::optional<int32_t> next = form_->Forced(bans(), drawn);
    if (!next || IsEnd(*next) || !form_->AddUnlessEnd(*next, bans(), drawn + 1)) return;
    forced_.push_back(*next);
    ObserveOwn(*next);
  }
}

std::optional<UnfinishedAnswer> RunningAnswer::Unfinished() const {
  const auto n_tokens = std::ssize(tokens_);
  if (!form_ || ended_ || !status_.ok() || n_tokens == 0 || n_tokens > kMaxUnfinishedTokens) {
    return std::nullopt;
  }
  UnfinishedAnswer answer = {.constraint = request_.constraint, .tokens = tokens_};
  if (forced_.empty()) answer.place = form_->place();
  return answer;
}

void RunningAnswer::AddDraw(model::Sampled drawn, StreamEvent& event) {
  ObserveOwn(drawn.token_id);
  if (form_) AdvanceForm(drawn.token_id);
  Emit(std::move(drawn), event);
}

void RunningAnswer::Emit(model::Sampled drawn, StreamEvent& event) {
  const OutputOptions& output = request_.output;
  ++generated_;
  if (form_ && !request_.session_id.empty()) tokens_.push_back(drawn.token_id);
  if (!event.chunk) event.chunk.emplace().index = index_;
  TokenChunk& chunk = *event.chunk;
  chunk.token_ids.push_back(drawn.token_id);
  if (output.logprobs) chunk.logprobs.push_back(drawn.logprob);
  if (output.top_logprobs > 0) chunk.top.push_back(std::move(drawn.top));
  Append(drawn.token_id, chunk.text, event.finished);
  if (parser_) Parse(std::exchange(chunk.text, ""), chunk.parts, event.finished);
  if (!event.finished) return;
  event.finished->index = index_;
  ended_ = event.finished->reason == FinishReason::kStop;
}

void RunningAnswer::Append(int32_t token, std::string& text, std::optional<Finished>& finished) {
  const StopConditions& stop = request_.stop;
  const bool is_eos = std::ranges::count(eos_, token) > 0;
  const auto special = stop.special_tokens.find(token);
  const bool is_special = special != stop.special_tokens.end();
  const bool is_stop = IsEnd(token);
  if (is_stop) {
    finished.emplace().matched_token_id = token;
  } else if (form_ended_) {
    finished.emplace();
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
  const auto end =
      std::ranges::find(parts, answers::AnswerPart::Kind::kCallEnd, &answers::AnswerPart::kind);
  if (end == parts.end()) return;
  parts.erase(end + 1, parts.end());
  one_call_ended_ = true;
  // A session's state holds what the model wrote up to its own end.
  if (!finished && request_.session_id.empty()) finished.emplace();
}

}  // namespace ovq::engine
