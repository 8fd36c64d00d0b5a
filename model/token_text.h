// A single token as answers show it, and where tokens stand in a text.
#pragma once

#include <cstdint>
#include <string>

#include "model/tokenizer.h"

namespace ovq::model {

struct ShownToken {
  std::string bytes;  // Tokenizer::Bytes
  // Valid UTF-8 that names the token: its bytes where they are UTF-8; otherwise "bytes:" and them,
  // with those beyond printable ASCII as "\xe2"; "token_id:5" where there are none.
  std::string text;
};
// tokenizer: null for a model without one.
ShownToken ShowToken(const Tokenizer* tokenizer, int32_t id);

// Places of tokens in the text that a Detokenizer makes of them, in characters (code points). A
// token that goes on with a character begins where the character does. One thread.
class TextOffsets {
 public:
  // tokenizer: null for a model without text, where every place is 0. at_start: as in Detokenizer.
  TextOffsets(const Tokenizer* tokenizer, bool at_start);
  // Gives the tokens before the text, as Detokenizer::Precede.
  void Precede(std::span<const int32_t> ids);
  // Returns the place of the next token.
  int64_t Add(int32_t id);

 private:
  const Tokenizer* tokenizer_;
  std::optional<Detokenizer> detokenizer_;  // none without text
  int64_t released_ = 0;                    // characters from the detokenizer
  int64_t held_ = 0;                        // characters that began since then
  int64_t last_ = 0;                        // place of the last token
};

}  // namespace ovq::model
