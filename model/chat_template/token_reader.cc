#include "model/chat_template/token_reader.h"

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace ovq::jinja {

void TokenReader::Unexpected(const std::string& expected) const {
  std::string found;
  switch (current().type) {
    case TokenType::kData:
      found = "text";
      break;
    case TokenType::kPrintBegin:
    case TokenType::kBlockBegin:
      found = "the begin of a tag";
      break;
    case TokenType::kPrintEnd:
    case TokenType::kBlockEnd:
      found = "the end of the tag";
      break;
    case TokenType::kEnd:
      found = "the end of the template";
      break;
    default:
      found = Quoted(current().text);
  }
  Fail(absl::StrCat("expected ", expected, ", got ", found));
}

}  // namespace ovq::jinja
