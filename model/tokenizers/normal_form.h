// The normal forms of Unicode, by utf8proc's tables.
#pragma once

#include <string>

namespace ovq {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Of valid UTF-8. Text without a character that NFC could change costs one look at each of its
// characters; time is n log n in the worst case.
void Normalize(NormalForm form, std::string& text);

}  // namespace ovq
