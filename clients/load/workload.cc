#include "clients/load/workload.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

namespace ovq::load {
namespace {

constexpr int64_t kDefaultRequests = 1000;
// A conversation has far fewer turns than this, so the random streams of different requests never
// overlap.
constexpr uint64_t kTurnStride = uint64_t{1} << 32;

uint64_t RequestStream(int64_t conversation, int64_t turn) {
  return static_cast<uint64_t>(conversation) * kTurnStride + static_cast<uint64_t>(turn);
}

std::vector<Conversation> GroupBySession(std::span<const TraceEntry> trace, double speed) {
  std::vector<Conversation> conversations;
  std::map<std::string, size_t> place;  // index of each session's conversation
  for (const TraceEntry& entry : trace) {
    const Turn turn{entry.input_tokens, entry.output_tokens, entry.at_s / speed};
    if (!entry.session.empty()) {
      const auto [found, first] = place.emplace(entry.session, conversations.size());
      if (!first) {
        conversations[found->second].turns.push_back(turn);
        continue;
      }
    }
    conversations.push_back({.index = static_cast<int64_t>(conversations.size()),
                             .session = !entry.session.empty(),
                             .turns = {turn}});
  }
  return conversations;
}

}  // namespace

Workload::Workload(WorkloadOptions options) : options_(std::move(options)) {
  // The limit counts the trace's requests, not its conversations.
  const int64_t all = options_.trace.size();
  const int64_t n = std::min(all, options_.max_requests.value_or(all));
  traced_ = GroupBySession(std::span(options_.trace).first(n), options_.trace_speed);
  for (Conversation& conversation : traced_) conversation.index += options_.first_index;
}

std::optional<Conversation> Workload::Next() {
  if (!options_.trace.empty()) {
    if (next_ == static_cast<int64_t>(traced_.size())) return std::nullopt;
    return std::move(traced_[next_++]);
  }
  const int64_t left = options_.max_requests.value_or(kDefaultRequests) - requests_;
  const int64_t turns = std::min(options_.turns, left);
  if (turns <= 0) return std::nullopt;
  requests_ += turns;
  Conversation conversation{.index = options_.first_index + next_++, .session = options_.turns > 1};
  for (int64_t i = 0; i < turns; ++i) {
    Random random = RandomStream(options_.seed, ~RequestStream(conversation.index, i));
    Turn& turn = conversation.turns.emplace_back();
    turn.input_tokens = options_.input.Draw(random);
    turn.output_tokens = options_.output.Draw(random);
  }
  return conversation;
}

std::vector<uint32_t> PromptMaker::Make(int64_t conversation, int64_t turn, int64_t tokens) const {
  Random random = RandomStream(seed_, RequestStream(conversation, turn));
  // An id, or the place in the text where the prompt begins.
  std::uniform_int_distribution<size_t> draw(0, (text_.empty() ? vocab_size_ : text_.size()) - 1);
  std::vector<uint32_t> ids(static_cast<size_t>(tokens));
  if (text_.empty()) {
    for (uint32_t& id : ids) id = static_cast<uint32_t>(draw(random));
    return ids;
  }
  size_t at = draw(random);
  for (uint32_t& id : ids) id = text_[at++ % text_.size()];
  return ids;
}

uint64_t PromptMaker::SamplingSeed(int64_t conversation, int64_t turn) const {
  return RandomStream(seed_ ^ 0x5a3b1e, RequestStream(conversation, turn))();
}

}  // namespace ovq::load
