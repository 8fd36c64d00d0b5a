#include "server/s3/xml.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace ovq::s3 {
namespace {

constexpr int kDeepest = 16;
constexpr std::string_view kXmlSpace = " \t\r\n";

void AppendUtf8(int code, std::string& out) {
  const auto put = [&out](int byte) { out.push_back(static_cast<char>(byte)); };
  const auto tail = [&](int shift) { put(0x80 | ((code >> shift) & 0x3F)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | (code >> 6));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    tail(6);
  } else {
    put(0xF0 | (code >> 18));
    tail(12);
    tail(6);
  }
  tail(0);
}

class XmlReader {
 public:
  explicit XmlReader(std::string_view document) : all_(document), left_(document) {}

  absl::StatusOr<XmlElement> Document() {
    RETURN_IF_ERROR(SkipMisc());
    XmlElement root;
    RETURN_IF_ERROR(Element(root, 0));
    RETURN_IF_ERROR(SkipMisc());
    if (!left_.empty()) return Bad("the end");
    return root;
  }

 private:
  absl::Status Bad(std::string_view expected) const {
    return absl::DataLossError(
        absl::StrCat("XML, byte ", all_.size() - left_.size(), ": expected ", AbslView(expected)));
  }
  bool Consume(std::string_view text) {
    if (!left_.starts_with(text)) return false;
    left_.remove_prefix(text.size());
    return true;
  }
  void SkipSpace() {
    left_.remove_prefix(std::min(left_.find_first_not_of(kXmlSpace), left_.size()));
  }
  // Consumes up to the end of `end`.
  absl::StatusOr<std::string_view> Until(std::string_view end) {
    const size_t at = left_.find(end);
    if (at == std::string_view::npos) return Bad(end);
    const std::string_view text = left_.substr(0, at);
    left_.remove_prefix(at + end.size());
    return text;
  }

  absl::Status SkipMisc() {
    for (;;) {
      SkipSpace();
      if (Consume("<?")) {
        RETURN_IF_ERROR(Until("?>").status());
      } else if (Consume("<!--")) {
        RETURN_IF_ERROR(Until("-->").status());
      } else {
        return absl::OkStatus();
      }
    }
  }

  absl::StatusOr<std::string> Name() {
    const auto fits = [](char c) {
      return absl::ascii_isalnum(c) || std::string_view(":_-.").find(c) != std::string_view::npos;
    };
    const size_t n = std::ranges::find_if_not(left_, fits) - left_.begin();
    if (n == 0) return Bad("a name");
    const std::string_view name = left_.substr(0, n);
    left_.remove_prefix(n);
    return std::string(name);
  }

  absl::Status SkipAttributes() {
    for (SkipSpace(); !left_.empty() && left_.front() != '>' && left_.front() != '/'; SkipSpace()) {
      RETURN_IF_ERROR(Name().status());
      SkipSpace();
      if (!Consume("=")) return Bad("=");
      SkipSpace();
      const bool single = Consume("'");
      if (!single && !Consume("\"")) return Bad("a quote");
      RETURN_IF_ERROR(Until(single ? "'" : "\"").status());
    }
    return absl::OkStatus();
  }

  absl::Status Entity(std::string& out) {
    ASSIGN_OR_RETURN(const std::string_view name, Until(";"));
    for (const auto& [entity, c] : {std::pair<std::string_view, char>("amp", '&'),
                                    {"lt", '<'},
                                    {"gt", '>'},
                                    {"quot", '"'},
                                    {"apos", '\''}}) {
      if (name == entity) {
        out.push_back(c);
        return absl::OkStatus();
      }
    }
    int code = 0;
    const std::string digits(name.substr(std::min<size_t>(1, name.size())));
    const bool hex = digits.starts_with('x');
    // The parsers of numbers also take signs and white space.
    const bool plain = std::ranges::all_of(digits.substr(hex ? 1 : 0),
                                           [](char c) { return HexDigit(c).has_value(); });
    const bool number =
        name.starts_with('#') && name.size() <= 9 && plain &&
        (hex ? absl::SimpleHexAtoi(digits.substr(1), &code) : absl::SimpleAtoi(digits, &code));
    const bool surrogate = code >= 0xD800 && code < 0xE000;
    if (!number || code < 1 || code > 0x10FFFF || surrogate) return Bad("an entity before this");
    AppendUtf8(code, out);
    return absl::OkStatus();
  }

  absl::Status Content(XmlElement& element, int depth) {
    for (;;) {
      if (left_.empty()) return Bad(absl::StrCat("</", element.name, ">"));
      if (left_.starts_with("</")) return absl::OkStatus();
      if (Consume("<!--")) {
        RETURN_IF_ERROR(Until("-->").status());
      } else if (Consume("&")) {
        RETURN_IF_ERROR(Entity(element.text));
      } else if (left_.front() == '<') {
        RETURN_IF_ERROR(Element(element.children.emplace_back(), depth + 1));
      } else {
        const size_t n = std::min(left_.find_first_of("<&"), left_.size());
        element.text += left_.substr(0, n);
        left_.remove_prefix(n);
      }
    }
  }

  absl::Status Element(XmlElement& element, int depth) {
    if (depth >= kDeepest) return Bad(absl::StrCat("at most ", kDeepest, " elements deep"));
    if (!Consume("<")) return Bad("<");
    ASSIGN_OR_RETURN(const std::string name, Name());
    element.name = name.substr(name.find(':') + 1);
    RETURN_IF_ERROR(SkipAttributes());
    if (Consume("/>")) return absl::OkStatus();
    if (!Consume(">")) return Bad(">");
    RETURN_IF_ERROR(Content(element, depth));
    const std::string end = absl::StrCat("</", name);
    if (!Consume(end)) return Bad(end);
    SkipSpace();
    if (!Consume(">")) return Bad(">");
    element.text = std::string(absl::StripAsciiWhitespace(element.text));
    return absl::OkStatus();
  }

  const std::string_view all_;
  std::string_view left_;
};

}  // namespace

const XmlElement* XmlElement::Child(std::string_view child) const {
  const auto found = std::ranges::find(children, child, &XmlElement::name);
  return found == children.end() ? nullptr : &*found;
}

std::string XmlElement::ChildText(std::string_view child) const {
  const XmlElement* const found = Child(child);
  return found == nullptr ? "" : found->text;
}

absl::StatusOr<XmlElement> ParseXml(std::string_view document) {
  return XmlReader(document).Document();
}

}  // namespace ovq::s3
