#include "server/engine/common/engine_config.h"

#include <map>

namespace ovq::engine {

std::shared_ptr<const constraint::Vocabulary> EngineModel::MakeVocabulary() const {
  if (tokenizer == nullptr || !tokenizer->has_text()) return nullptr;
  const std::map<int32_t, std::string> special = tokenizer->special_tokens();
  std::vector<std::string> texts(static_cast<size_t>(vocab_size));
  for (int32_t id = 0; id < vocab_size; ++id) {
    std::string& text = texts[static_cast<size_t>(id)];
    if (std::ranges::count(eos_token_ids, id) > 0) continue;
    if (marker_tokens.contains(id)) {
      const auto found = special.find(id);
      if (found != special.end()) text = found->second;
    } else if (!tokenizer->IsSilent(id)) {
      text = tokenizer->Bytes(id);
    }
  }
  std::vector<int32_t> ends = eos_token_ids;
  std::ranges::sort(ends);
  return std::make_shared<const constraint::Vocabulary>(texts, std::move(ends));
}

}  // namespace ovq::engine
