// Metaspace: the fields of the pre-tokenizer and decoder of that name, which replace spaces by
// another character.
#pragma once

#include <string>

#include "model/tokenizers/json_fields.h"

namespace ovq::model {

enum class PrependScheme { kAlways, kFirst, kNever };

struct Metaspace {
  std::string replacement;  // one character
  PrependScheme scheme = PrependScheme::kAlways;
  bool split = true;

  // `fields` keeps errors.
  static Metaspace Read(JsonFields& fields);
};

}  // namespace ovq::model
