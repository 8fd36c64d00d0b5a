// Unicode normal forms, with utf8proc's tables.
#pragma once

#include <string>

namespace ovq::model {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Normalizes valid UTF-8. For text without a character that NFC could change it reads each
// character once; n log n in the worst case.
void Normalize(NormalForm form, std::string& text);

}  // namespace ovq::model
