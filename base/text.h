// Text in messages.
#pragma once

#include <string>
#include <string_view>

namespace ovq {

// A name from a file as it may stand in a message: quoted, escaped, at most 120 characters.
std::string Quoted(std::string_view name);

}  // namespace ovq
