#include "server/apis/completion_logprobs.h"

#include <cmath>
#include <map>
#include <string>

namespace ovq::server {

void AppendCompletionLogprobs(const engine::TokenChunk& chunk, const model::Tokenizer* tokenizer,
                              model::TextOffsets& offsets, Json& lists) {
  const auto text = [tokenizer](int32_t id) { return model::ShowToken(tokenizer, id).text; };
  if (lists.is_null()) {
    for (const char* name : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
      lists[name] = Json::array();
    }
  }
  for (size_t i = 0; i < chunk.logprobs.size(); ++i) {
    const int32_t id = chunk.token_ids[i];
    const bool known = !std::isnan(chunk.logprobs[i]);
    std::map<std::string, float> best;
    if (known && i < chunk.top.size()) {
      for (const model::TokenLogprob& top : chunk.top[i]) {
        best.emplace(text(top.token_id), top.logprob);
      }
    }
    if (known) best.emplace(text(id), chunk.logprobs[i]);  // the token itself is among them
    lists["tokens"].push_back(text(id));
    lists["token_logprobs"].push_back(known ? Json(chunk.logprobs[i]) : Json());
    lists["top_logprobs"].push_back(known ? Json(best) : Json());
    lists["text_offset"].push_back(offsets.Add(id));
  }
}

}  // namespace ovq::server
