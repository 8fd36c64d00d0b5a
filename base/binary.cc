#include "base/binary.h"

#include "base/check.h"
#include "base/crc32c.h"

namespace ovq {

void PutText(std::string& out, std::string_view text) {
  Check(text.size() <= kMaxTextBytes, "a text in a file fits its length");
  Put(out, static_cast<uint8_t>(text.size()));
  out.append(text);
}

bool GetText(std::string_view& in, std::string& text) {
  if (in.empty() || in.size() - 1 < static_cast<uint8_t>(in[0])) return false;
  const auto bytes = Get<uint8_t>(in);
  text = in.substr(0, bytes);
  in.remove_prefix(bytes);
  return true;
}

std::string SectionStart(std::string_view tag, uint64_t payload_bytes) {
  std::string start(tag);
  Put(start, payload_bytes);
  return start;
}

void PutSection(std::string& out, std::string_view tag, std::string_view payload) {
  const std::string start = SectionStart(tag, payload.size());
  out.append(start).append(payload);
  Put(out, Crc32c(payload, Crc32c(start)));
}

}  // namespace ovq
