#include "clients/load/workload.h"

#include <algorithm>
#include <map>
#include <utility>

namespace ovq::load {
namespace {

// Turns in a conversation stay far below this, so streams of different requests never meet.
constexpr uint64_t kTurnStride = uint64_t{1} << 32;

uint64_t StreamOf(int64_t conversation, int64_t turn) {
  return static_cast<uint64_t>(conversation) * kTurnStride + static_cast<uint64_t>(turn);
}

std::vector<Conversation> GroupBySession(const std::vector<TraceEntry>& trace, double speed) {
  std::vector<Conversation> conversations;
  std::map<std::string, size_t> place;  // of a session
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
  // The first requests of the trace, not the first conversations.
  const size_t n = std::min(options_.trace.size(), static_cast<size_t>(options_.max_requests));
  const std::vector<TraceEntry> played(options_.trace.begin(),
                                       options_.trace.begin() + static_cast<std::ptrdiff_t>(n));
  traced_ = GroupBySession(played, options_.trace_speed);
  for (Conversation& conversation : traced_) conversation.index += options_.first_index;
}

std::optional<Conversation> Workload::Next() {
  if (!options_.trace.empty()) {
    if (next_ == static_cast<int64_t>(traced_.size())) return std::nullopt;
    return std::move(traced_[static_cast<size_t>(next_++)]);
  }
  const int64_t turns = std::min(options_.turns, options_.max_requests - requests_);
  if (turns <= 0) return std::nullopt;
  requests_ += turns;
  return Drawn(turns);
}

Conversation Workload::Drawn(int64_t turns) {
  Conversation conversation{
      .index = options_.first_index + next_++, .session = options_.turns > 1, .turns = {}};
  for (int64_t i = 0; i < turns; ++i) {
    Random random(options_.seed, ~StreamOf(conversation.index, i));
    Turn turn;
    turn.input_tokens = options_.input.Draw(random);
    turn.output_tokens = options_.output.Draw(random);
    conversation.turns.push_back(turn);
  }
  return conversation;
}

std::vector<uint32_t> PromptMaker::Make(int64_t conversation, int64_t turn, int64_t tokens) const {
  Random random(seed_, StreamOf(conversation, turn));
  std::vector<uint32_t> ids(static_cast<size_t>(tokens));
  if (text_.empty()) {
    for (uint32_t& id : ids) id = static_cast<uint32_t>(random.Below(vocab_size_));
    return ids;
  }
  size_t at = random.Below(text_.size());
  for (uint32_t& id : ids) {
    id = text_[at];
    if (++at == text_.size()) at = 0;
  }
  return ids;
}

uint64_t SamplingSeed(uint64_t seed, int64_t conversation, int64_t turn) {
  return Random(seed ^ 0x5a3b1e, StreamOf(conversation, turn)).Next();
}

}  // namespace ovq::load
