// Fields of Metaspace, which is a pre-tokenizer and a decoder: a character that stands for
// blanks.
#pragma once

#include <string>

#include "model/tokenizers/json_fields.h"

namespace ovq {

enum class PrependScheme { kAlways, kFirst, kNever };

struct Metaspace {
  std::string replacement;  // one character
  PrependScheme scheme = PrependScheme::kAlways;
  bool split = true;

  // Errors go to `fields`.
  static Metaspace Read(JsonFields& fields);
};

}  // namespace ovq
