// Reads the XML of an object store's answers, as far as they use it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ovq::s3 {

struct XmlElement {
  std::string name;       // without a namespace's prefix
  std::string text = {};  // all character data directly in it, trimmed
  std::vector<XmlElement> children = {};

  // The first child of the name; null without one.
  const XmlElement* Child(std::string_view child) const;
  std::string ChildText(std::string_view child) const;  // "" without one
};

// Parses a document of elements, attributes (which are dropped), text, the five entities and those
// by number, comments and a declaration. DataLoss for anything else, such as a DOCTYPE,
// and beyond 16 elements in one another.
absl::StatusOr<XmlElement> ParseXml(std::string_view document);

}  // namespace ovq::s3
