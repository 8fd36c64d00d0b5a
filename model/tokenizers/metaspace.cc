#include "model/tokenizers/metaspace.h"

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "model/tokenizers/chars.h"

namespace ovq::model {

Metaspace Metaspace::Read(JsonFields& fields) {
  Metaspace metaspace;
  metaspace.replacement = fields.StringOr("replacement", "\xe2\x96\x81");
  if (CountChars(metaspace.replacement) != 1) {
    fields.Fail("replacement",
                absl::StrCat("expected one character, got ", Quoted(metaspace.replacement)));
  }
  // Files from before prepend_scheme use add_prefix_space.
  const bool add_prefix_space = fields.BoolOr("add_prefix_space", true);
  if (fields.Has("prepend_scheme")) {
    constexpr std::string_view kSchemes[] = {"always", "first", "never"};
    metaspace.scheme = static_cast<PrependScheme>(fields.Choice("prepend_scheme", kSchemes));
    if (!add_prefix_space && metaspace.scheme != PrependScheme::kNever) {
      fields.Fail("prepend_scheme", "contradicts \"add_prefix_space\": false");
    }
  } else if (!add_prefix_space) {
    metaspace.scheme = PrependScheme::kNever;
  }
  metaspace.split = fields.BoolOr("split", true);
  return metaspace;
}

}  // namespace ovq::model
