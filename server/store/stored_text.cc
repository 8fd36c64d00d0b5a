#include "server/store/stored_text.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/binary.h"

namespace ovq::store {
namespace {

// A text is this beginning and one section.
constexpr std::string_view kTextMagic = "OVQTEXT\n";
constexpr uint32_t kTextVersion = 1;
constexpr size_t kTextBegin = kTextMagic.size() + sizeof(kTextVersion) + kSectionStartBytes;

}  // namespace

std::string EncodeText(std::string_view text) {
  std::string bytes(kTextMagic);
  Put(bytes, kTextVersion);
  PutSection(bytes, "TEXT", text);
  return bytes;
}

absl::StatusOr<std::string> DecodeText(std::string_view bytes, std::string_view where) {
  constexpr size_t kFrame = kTextBegin + kSectionEndBytes;
  if (bytes.size() >= kFrame) {
    const std::string_view text = bytes.substr(kTextBegin, bytes.size() - kFrame);
    if (EncodeText(text) == bytes) return std::string(text);
  }
  return absl::DataLossError(absl::StrCat(std::string(where), ": damaged"));
}

}  // namespace ovq::store
